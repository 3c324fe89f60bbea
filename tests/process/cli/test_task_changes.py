"""`tasks cancel|retry --background` and `tasks changes`: the leader changes what a filter selects."""

import uuid

from tests.process.cli.builders import Cli, Fleet


async def test_a_change_is_started_followed_and_done_by_the_leader(cli: Cli, fleet: Fleet) -> None:
    """Its number alone is on stdout; stderr has the command that follows it."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    await fleet.store.submit([{"task_type": kind, "params": {}, "labels": {"a": "1"}}] * 3)
    await fleet.store.submit([{"task_type": kind, "params": {}}])
    refused = await cli("tasks", "cancel", "--type", kind, "--background")
    assert refused.code == 2
    assert "Cancel 4 tasks?" in refused.err
    ran = await cli("tasks", "cancel", "--type", kind, "--label", "a=1", "--since", "1h", "--background", "--yes")
    assert ran.code == 0, ran.err
    number = ran.out.strip()
    assert f"python -m orchestrator tasks changes {number}" in ran.err
    waits = await cli("tasks", "changes", number)
    assert "waits" in waits.out
    while (await fleet.store.api.task_changes.step(fleet.term))["more"]:
        pass
    done = await cli("tasks", "changes", number)
    assert [line.split() for line in done.lines_with("changed")] == [["changed", "3"]]
    assert f"Queued or In Progress, type {kind}, label a=1, submitted since" in done.out
    (line,) = [line for line in (await cli("tasks", "changes")).out.splitlines() if line.split()[0] == number]
    assert "done" in line
    (row,) = (await cli("tasks", "changes", number, "--json")).json()["changes"]
    assert (row["changed"], row["outcome"], row["actor"].startswith("cli")) == (3, "done", True)
    assert (await cli("tasks", "changes", "--json")).json()["changes"][0]["id"] == int(number)
    again = await cli("tasks", "retry", "--status", "cancelled", "--type", kind, "--background", "--yes", "--json")
    assert again.json()["outcome"] == "started"
    while (await fleet.store.api.task_changes.step(fleet.term))["more"]:
        pass
    (row,) = (await cli("tasks", "changes", str(again.json()["id"]), "--json")).json()["changes"]
    assert row["changed"] == 3


async def test_a_change_is_stopped(cli: Cli, fleet: Fleet) -> None:
    """What is not changed stays as it is. It ends once."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    await fleet.store.submit([{"task_type": kind, "params": {}}])
    ran = await cli("tasks", "cancel", "--type", kind, "--background", "--yes", "--json")
    number = str(ran.json()["id"])
    assert (await cli("tasks", "changes", number, "--stop")).code == 2
    stopped = await cli("tasks", "changes", number, "--stop", "--yes")
    assert (stopped.code, "stopped by cli" in stopped.out) == (0, True)
    again = await cli("tasks", "changes", number, "--stop", "--yes")
    assert (again.code, "it had ended already" in again.err) == (0, True)
    assert [row["status"] for row in (await fleet.store.find.tasks({"type": kind}, 9))["tasks"]] == ["Queued"]


async def test_what_cannot_be_is_said(cli: Cli) -> None:
    """No filter, ids, a status that is not changed, a number of nothing."""
    for arguments, code, text in (
        (("cancel", "--background"), 2, "--background is for tasks that"),
        (("cancel", str(uuid.uuid4()), "--background"), 2, "--background is for tasks that"),
        (("retry", "--status", "queued", "--background", "--yes"), 2, "retry does not apply to such tasks"),
        (("changes", "999999999"), 3, "no change 999999999"),
        (("changes", "--stop"), 2, "--stop needs the number"),
        (("changes", "x"), 2, "x"),
    ):
        ran = await cli("tasks", *arguments)
        assert (ran.code, text in ran.err) == (code, True), (arguments, ran.err)
