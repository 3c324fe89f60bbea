"""`tasks submit|list|show|cancel|retry`."""

import asyncio
import json
import re
import signal
import uuid
from pathlib import Path

import psycopg

from tests.process.cli.builders import PROGRAM, TIMEOUT_S, Cli, Fleet, ended, start


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


async def test_ctrl_c_ends_the_wait_and_not_the_task(cli: Cli, fleet: Fleet) -> None:
    """It says so, and how to follow the task again; also for a program that does not know the id yet."""
    for words in ([], ["--json"]):
        submit = ["tasks", "submit", "--type", f"kind-{uuid.uuid4().hex[:8]}", "--wait", *words]
        process = await start(*PROGRAM, *submit, environment=cli.environment)
        assert process.stderr is not None
        async with asyncio.timeout(TIMEOUT_S):
            while b"Queued" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        process.send_signal(signal.SIGINT)
        ran = await ended(process)
        assert ran.code == 130
        said = re.fullmatch(
            r"The task continues. To follow it again: python -m orchestrator tasks watch (.+)\n\n", ran.err
        )
        assert said, ran.err
        assert (await fleet.store.task(said[1]))["task"]["status"] == "Queued"


async def test_what_would_wait_or_fail_for_ever_is_said_at_once(cli: Cli) -> None:
    """It is queued all the same: the orchestrator's own settings may be others."""
    handled = {"WORKER_HANDLERS": "segment=travel:segment,stitch=travel:stitch"}
    ran = await cli("tasks", "submit", "--type", "sement", "--pool", "big", **handled)
    assert ran.code == 0
    assert "WORKER_HANDLERS has none for 'sement': it names segment, stitch" in ran.err
    assert "there is no pool 'big': the task waits until POOLS_FILE has it; the pools are default" in ran.err
    ran = await cli("tasks", "submit", "--type", "segment", "--pool", "default", **handled)
    assert ran.err == "queued\n"


async def test_a_task_can_depend_on_others(cli: Cli, fleet: Fleet) -> None:
    """--depends, once for each."""
    ids = [task["id"] for task in await fleet.store.submit([{"task_type": "t", "params": {}}] * 2)]
    ran = await cli("tasks", "submit", "--type", "t", "--depends", ids[0], "--depends", ids[1], "--max-attempts", "1")
    task = (await fleet.store.task(ran.out.strip()))["task"]
    assert task["depends_on"] == ids
    assert task["max_attempts"] == 1


async def test_a_trace_comes_from_an_option_or_the_environment(cli: Cli) -> None:
    """One that is none is ignored, and the reason is said."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    submit = ("tasks", "submit", "--type", "t", "--json")
    for given in (await cli(*submit, "--traceparent", trace), await cli(*submit, TRACEPARENT=trace)):
        [made] = given.json()["tasks"]
        assert (await cli("tasks", "show", made["id"], "--json")).json()["task"]["traceparent"] == trace
    ran = await cli(*submit, "--traceparent", "x\x1b[2J")
    assert (ran.code, ran.json()["tasks"][0]["ignored"]) == (0, "traceparent: it has 5 characters, not 55")
    assert "ignored: traceparent: it has 5 characters, not 55" in ran.err


async def test_an_unknown_task_is_exit_code_3(cli: Cli) -> None:
    """For every command that names one."""
    nobody = str(uuid.uuid4())
    commands = (["show", nobody], ["cancel", nobody, "--force"], ["retry", nobody])
    for ran in await asyncio.gather(*(cli("tasks", *command) for command in commands)):
        assert (ran.code, ran.out) == (3, "")
        assert "error[E041]" in ran.err


async def test_the_first_digits_of_an_id_are_enough(cli: Cli, fleet: Fleet) -> None:
    """For every command that names a task; digits of several name them."""
    start = uuid.uuid4().hex[:8]
    ids = [f"{start}-0000-4000-8000-00000000000{n}" for n in (1, 2)]
    await fleet.store.submit([{"id": one, "task_type": "t", "params": {}} for one in ids])
    assert (await cli("tasks", "show", ids[0][:36], "--json")).json()["task"]["id"] == ids[0]
    ran = await cli("tasks", "cancel", start, "--yes")
    assert ran.code == 3
    assert f"several tasks' ids begin with '{start}'" in ran.err
    assert all(f"{one} (t, Queued)" in ran.err for one in ids)
    await fleet.db.call("task_cancel", p_id=ids[1])
    (only,) = await fleet.store.submit([{"task_type": "t", "params": {}}])
    part = only["id"].replace("-", "")[:14]
    for words in (["tasks", "show"], ["explain"], ["logs", "--task"]):
        ran = await cli(*words, part)
        assert ran.code == 0, ran.err
        assert only["id"][:13] in ran.out or "was never claimed" in ran.err
    assert (await cli("tasks", "cancel", part, "--yes")).out == f"{only['id']}: cancelled (Cancelled)\n"


async def test_the_list_is_filtered_by_label_tenant_and_age(cli: Cli, fleet: Fleet) -> None:
    """And a queued row says what it waits for."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    submit = ["tasks", "submit", "--type", kind, "--label", "show=7", "--label", "stage=a=b", "--tenant", "acme"]
    task_id = (await cli(*submit, "--run-after", "2h")).out.strip()
    row = (await fleet.store.task(task_id))["task"]
    assert (row["labels"], row["tenant"]) == ({"show": "7", "stage": "a=b"}, "acme")
    await fleet.store.submit([{"task_type": kind, "params": {}}])
    listed = await cli("tasks", "list", "--label", "show=7", "--tenant", "acme", "--since", "1h")
    (line,) = listed.lines_with(kind)
    assert re.search(r"starts in 1h5\dm$", line)
    (line,) = (await cli("tasks", "list", "--type", kind, "--status", "Queued")).lines_with("waits for a worker")


async def test_tasks_are_changed_by_the_hundred(cli: Cli, fleet: Fleet) -> None:
    """All that the options select, after a confirmation, and no other; a refusal stops no other task."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    key = uuid.uuid4().hex
    await fleet.store.submit([{"task_type": kind, "params": {}}] * 501 + [{"task_type": kind, "dedupe_key": key}])
    other = (await fleet.store.submit([{"task_type": f"{kind}-other", "params": {}}]))[0]["id"]
    asked = await cli("tasks", "cancel", "--type", kind)
    assert (asked.code, asked.out) == (2, "")
    assert "Cancel 502 Queued tasks?" in asked.err
    assert (await cli("tasks", "cancel", "--type", kind, "--yes")).out == "502 tasks: cancelled\n"
    assert (await fleet.store.task(other))["task"]["status"] == "Queued"
    await fleet.store.submit([{"task_type": f"{kind}-taken", "dedupe_key": key}])
    ran = await cli("tasks", "retry", "--type", kind, "--status", "cancelled", "--yes", "--json")
    assert ran.code == 1
    assert (ran.json()["outcomes"], ran.json()["refusals"]) == ({"requeued": 501}, 1)
    nothing = await cli("tasks", "retry", "--type", kind, "--yes")
    assert (nothing.code, nothing.out) == (0, "")
    assert "No task matches" in nothing.err


ENDS = """
    update tasks set status = case when id = %(done)s then 'Complete' else 'Failed' end,
           result_data = '{"frames": 48}', failure_code = 'HANDLER_ERROR', error_message = 'ValueError: none'
     where task_type = %(kind)s
"""


async def test_waiting_for_a_task_ends_with_its_result(cli: Cli, fleet: Fleet) -> None:
    """Changes go to stderr, the result to stdout; the exit code is 1 unless it is Complete."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    waiting = [asyncio.create_task(cli("tasks", "submit", "--type", kind, "--wait", "--pool", kind)) for _ in "ab"]
    async with asyncio.timeout(TIMEOUT_S):
        while len(rows := (await fleet.store.find.tasks({"type": kind}, 2))["tasks"]) < len(waiting):
            await asyncio.sleep(0.05)
    async with await psycopg.AsyncConnection.connect(str(cli.environment["DATABASE_URL"])) as connection:
        await connection.execute(ENDS, {"done": rows[0]["id"], "kind": kind})
    done, failed = sorted(await asyncio.gather(*waiting), key=lambda ran: ran.code)
    assert (done.code, done.out) == (0, f'{rows[0]["id"]}\n{{"frames": 48}}\n')
    assert failed.code == 1
    assert "is Failed\nwhy: HANDLER_ERROR: ValueError: none\nfix: python -m orchestrator explain" in failed.err
    again = await cli("tasks", "watch", rows[1]["id"])
    assert (again.code, again.out) == (1, "")
    assert "Failed: HANDLER_ERROR: ValueError: none" in again.err


async def test_an_import_submits_each_line_once(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """A bad line is named, and the others are submitted. A second call submits only the corrected line."""
    kind, file = f"kind-{uuid.uuid4().hex[:8]}", tmp_path / f"{uuid.uuid4().hex}.jsonl"
    good = [json.dumps({"params": {"n": n}}) for n in range(600)]
    bad = [good[0], "{", '{"labels": {"a": 7}}', *good[1:]]
    file.write_text("\n".join(bad))
    words = ("tasks", "import", str(file), "--type", kind)
    ran = await cli(*words)
    assert (ran.code, ran.out) == (1, "600 tasks submitted\n")
    assert re.search(r'^line 2: not JSON: .*\nline 3: .*labels.*the value of "a" is a JSON number', ran.err)
    assert "2 lines are not imported" in ran.err
    file.write_text("\n".join([good[0], "{}", '{"labels": {"a": "7"}}', *good[1:]]))
    assert (await cli(*words)).out == "2 tasks submitted, 600 were there already\n"
    content = file.read_text()
    piped = (await cli("tasks", "import", "-", "--type", kind, "--key", file.name, "--json", stdin=content)).json()
    assert (piped["created"], piped["existing"], piped["bad_lines"]) == (0, 602, [])
    assert (await fleet.store.find.tasks({"type": kind}, 0))["counts"] == {"Queued": 602}


async def test_submissions_are_in_the_audit_log(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """With the person's name: one entry for a task, and one for each call of an import; none if nothing is new."""
    kind, file = f"kind-{uuid.uuid4().hex[:8]}", tmp_path / f"{uuid.uuid4().hex}.jsonl"
    file.write_text("\n".join(json.dumps({"params": {"n": n}}) for n in range(501)))
    task = (await cli("tasks", "submit", "--type", kind, "--dedupe-key", kind)).out.strip()
    for _ in range(2):
        assert (await cli("tasks", "submit", "--type", kind, "--dedupe-key", kind)).out.strip() == task
        assert (await cli("tasks", "import", str(file), "--type", kind)).code == 0
    last, first, one = (await fleet.store.api.audit(limit=3))[:3]
    assert {entry["actor"].partition(":")[0] for entry in (one, first, last)} == {"cli"}
    assert [entry["action"] for entry in (one, first, last)] == ["task.submit"] * 3
    assert (one["subject"], one["detail"]) == (task, {"tasks": 1})
    assert [entry["detail"] for entry in (first, last)] == [{"tasks": 500}, {"tasks": 1}]


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
