"""`tasks submit|list|show|cancel|retry`."""

import asyncio
import uuid
from pathlib import Path

from tests.process.cli.builders import Cli, Fleet


async def test_a_task_from_submission_to_its_end(cli: Cli) -> None:
    """What is on stdout is the id alone, so that a script can use it; each later command knows it."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    ran = await cli("tasks", "submit", "--type", kind, "--params", '{"n": 1}')
    assert ran.code == 0, ran.err
    task_id = ran.out.strip()
    assert str(uuid.UUID(task_id)) == task_id

    shown, listed = await asyncio.gather(cli("tasks", "show", task_id), cli("tasks", "list", "--type", kind))
    assert shown.code == 0
    assert all(part in shown.out for part in (task_id, "Queued", kind, '{"n": 1}'))
    (line,) = listed.lines_with(task_id)
    assert "Queued" in line
    assert "0/3" in line

    cancelled = await cli("tasks", "cancel", task_id, "--force")
    assert (cancelled.code, cancelled.out) == (0, f"{task_id}: cancelled (Cancelled)\n")
    again = await cli("tasks", "retry", task_id)
    assert (again.code, again.out) == (0, f"{task_id}: queued again\n")
    again = await cli("tasks", "retry", task_id)
    assert again.code == 1
    assert "error[E051]" in again.err


async def test_the_list_as_json(cli: Cli, fleet: Fleet) -> None:
    """Rows, newest first, and counts over all of them."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    ids = [(await fleet.store.submit([{"task_type": kind, "params": {}}]))[0]["id"] for _ in range(2)]
    document = (await cli("tasks", "list", "--type", kind, "--status", "queued", "--json")).json()
    assert [task["id"] for task in document["tasks"]] == ids[::-1]
    assert document["counts"]["Queued"] >= 2


async def test_params_come_from_a_file_or_from_stdin(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """What is too long for a command line."""
    (tmp_path / "p.json").write_text('{"from": "file"}')
    for arguments, stdin, value in ((f"@{tmp_path / 'p.json'}", "", "file"), ("@-", '{"from": "stdin"}', "stdin")):
        ran = await cli("tasks", "submit", "--type", "t", "--params", arguments, "--json", stdin=stdin)
        (made,) = ran.json()["tasks"]
        assert (await fleet.store.task(made["id"]))["task"]["params"] == {"from": value}


async def test_a_dedupe_key_submits_once(cli: Cli, fleet: Fleet) -> None:
    """The second time the same id comes back, and stderr says why."""
    key = uuid.uuid4().hex
    (first,) = await fleet.store.submit([{"task_type": "t", "params": {}, "dedupe_key": key}])
    second = await cli("tasks", "submit", "--type", "t", "--dedupe-key", key)
    assert second.out == f"{first['id']}\n"
    assert "already there" in second.err


async def test_what_would_wait_or_fail_for_ever_is_said_at_once(cli: Cli) -> None:
    """It is queued all the same: the orchestrator's own settings may be others."""
    handled = {"WORKER_HANDLERS": "segment=travel:segment,stitch=travel:stitch"}
    ran = await cli("tasks", "submit", "--type", "sement", "--pool", "big", **handled)
    assert ran.code == 0
    assert "WORKER_HANDLERS has none for 'sement': it names segment, stitch" in ran.err
    assert "there is no pool 'big': it waits until POOLS_FILE has it; now there are default" in ran.err
    ran = await cli("tasks", "submit", "--type", "segment", "--pool", "default", **handled)
    assert ran.err == "queued\n"


async def test_a_task_can_depend_on_others(cli: Cli, fleet: Fleet) -> None:
    """--depends, once for each."""
    ids = [task["id"] for task in await fleet.store.submit([{"task_type": "t", "params": {}}] * 2)]
    ran = await cli("tasks", "submit", "--type", "t", "--depends", ids[0], "--depends", ids[1], "--max-attempts", "1")
    task = (await fleet.store.task(ran.out.strip()))["task"]
    assert task["depends_on"] == ids
    assert task["max_attempts"] == 1


async def test_an_unknown_task_is_exit_code_3(cli: Cli) -> None:
    """For every command that names one."""
    nobody = str(uuid.uuid4())
    commands = (["show", nobody], ["cancel", nobody, "--force"], ["retry", nobody])
    for ran in await asyncio.gather(*(cli("tasks", *command) for command in commands)):
        assert (ran.code, ran.out) == (3, "")
        assert "error[E041]" in ran.err


WRONG: tuple[list[str], ...] = (
    ["--type", "t", "--params", "{"],
    ["--type", "t", "--params", "[1]"],
    ["--type", "t", "--params", "@/nowhere/at/all"],
    ["--type", "t", "--depends", "yesterday"],
    ["--type", "t", "--max-attempts", "0"],
    ["--type", ""],
    [],
)


async def test_a_wrong_argument_is_exit_code_2(cli: Cli) -> None:
    """Nothing is submitted."""
    for ran in await asyncio.gather(*(cli("tasks", "submit", *arguments) for arguments in WRONG)):
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert [line.partition(" ")[0] for line in ran.err.splitlines()] == ["error[E052]:", "why:", "fix:"]


async def test_cancelling_off_a_terminal_needs_force(cli: Cli, fleet: Fleet) -> None:
    """Never a prompt where nobody can answer."""
    task_id = (await fleet.store.submit([{"task_type": "t", "params": {}}]))[0]["id"]
    ran = await cli("tasks", "cancel", task_id, stdin="y\n")
    assert (ran.code, ran.out) == (2, "")
    assert "--force" in ran.err
    assert (await fleet.store.task(task_id))["task"]["status"] == "Queued"
