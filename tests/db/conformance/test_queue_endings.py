"""The end of a task: once, by its holder; or it returns to the queue."""

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.rows import worker_of
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, START, Agent, Fleet, result, rows_read

NOBODYS = str(uuid.uuid4())


async def attempts(fleet: Fleet, task_id: str) -> list[tuple[str | None, ...]]:
    """(outcome, failure code, exit class) of each attempt."""
    rows = (await fleet.call("task_get", p_id=task_id))["attempts"]
    return [(row["outcome"], row["failure_code"], row["exit_class"]) for row in rows]


async def test_a_completion_counts_once(fleet: Fleet) -> None:
    """Repeated it is answered `already`, and changes nothing."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    fleet.wait(5)
    await agent.beat({"id": task["id"], "attempt": task["attempt"], "progress": {"fraction": 0.9}})
    assert (await fleet.task(task_id))["progress"] == {"fraction": 0.9}
    assert await agent.complete(task, p_output_location="s3://b/o", p_result_data={"n": 1}) == "ok"
    assert await agent.complete(task, p_output_location="s3://b/other", p_result_data={"n": 2}) == "already"
    row = await fleet.task(task_id)
    assert (row["status"], row["output_location"], row["result_data"]) == ("Complete", "s3://b/o", {"n": 1})
    assert datetime.fromisoformat(row["generation_processed_at"]) == fleet.now
    assert (row["lease_expires_at"], row["progress"]) == (None, None)
    assert await attempts(fleet, task_id) == [("complete", None, None)]


async def test_an_attempt_that_another_worker_completed_is_fenced(fleet: Fleet) -> None:
    """`already` is the answer to the one that did it."""
    await fleet.submit()
    agent, other = await fleet.agent(), await fleet.agent()
    (task,) = await agent.claim()
    assert await agent.complete(task) == "ok"
    assert await other.complete(task) == "fenced"
    assert await other.complete_many(result(task)) == ["fenced"]


async def test_many_completions_in_one_call_are_answered_one_by_one(fleet: Fleet) -> None:
    """Each as worker_complete would: ok, already, fenced; who depends on them may begin."""
    ids = await fleet.submit(count=4)
    (waiting,) = await fleet.submit({"depends_on": ids[:2]})
    agent, other = await fleet.agent(), await fleet.agent()
    mine, (theirs,) = await agent.claim(batch=3), await other.claim()
    fleet.wait(5)
    assert await agent.complete(mine[2]) == "ok"
    stale = {**result(mine[0]), "attempt": 2}
    said = [result(mine[1], n=1), result(theirs), result(mine[2], n=3), stale, result(mine[0])]
    assert await agent.complete_many(*said) == ["ok", "fenced", "already", "fenced", "ok"]
    assert await agent.complete_many(*said) == ["already", "fenced", "already", "fenced", "already"]
    rows = [await fleet.task(task["id"]) for task in mine]
    assert [(row["status"], row["result_data"]) for row in rows] == [
        ("Complete", None), ("Complete", {"n": 1}), ("Complete", None),
    ]  # fmt: skip
    assert [await attempts(fleet, task_id) for task_id in ids[:2]] == [[("complete", None, None)]] * 2
    assert datetime.fromisoformat(rows[1]["generation_processed_at"]) == fleet.now
    assert rows[1]["lease_expires_at"] is None
    assert (await fleet.task(theirs["id"]))["status"] == "In Progress"
    (freed,) = await agent.claim()
    assert (freed["id"], freed["dependencies"][1]["result_data"]) == (waiting, {"n": 1})


async def test_many_completions_of_an_older_launch_are_fenced(fleet: Fleet) -> None:
    """Every one of them."""
    await fleet.submit(count=2)
    agent = await fleet.agent()
    tasks = await agent.claim(batch=2)
    agent.nonce = "an older one"
    assert await agent.complete_many(*map(result, tasks)) == ["fenced", "fenced"]


@pytest.mark.parametrize(
    "results",
    [None, {}, [], [None], [{}], [{"task_id": "x", "attempt": 1}], [{"task_id": NOBODYS, "attempt": "one"}],
     [{"task_id": NOBODYS, "attempt": 1, "output_location": "s3://b/o"}], [{"task_id": NOBODYS, "attempt": 1}] * 101,
     [{"task_id": NOBODYS, "attempt": 1, "result_data": "x" * 1_048_576}]],
)  # fmt: skip
async def test_malformed_results_are_refused(fleet: Fleet, results: Any) -> None:
    """Not a list of 1 to 100 entries that name task and attempt, too large, or with an output that nobody has seen."""
    agent = await fleet.agent()
    with pytest.raises(BadArgument, match="p_results"):
        await agent.call("complete_many", p_results=results)


async def test_ended_tasks_bring_the_next_one(fleet: Fleet) -> None:
    """One call completes and claims; what just became free can be claimed; repeated it says and brings the same."""
    (task_id,) = await fleet.submit()
    (waiting,) = await fleet.submit({"depends_on": [task_id]})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    fleet.wait(5)
    said = await agent.complete_and_claim(result(task, n=1), number=2)
    (following,) = said["tasks"]
    assert (said["outcome"], said["outcomes"], said["wanted"], said["state"]) == ("ok", ["ok"], "run", "active")
    assert (following["id"], following["dependencies"][0]["result_data"]) == (waiting, {"n": 1})
    again = await agent.complete_and_claim(result(task, n=2), number=2)
    assert (again["outcomes"], again["tasks"]) == (["already"], [following])
    assert await agent.claim(number=2, wait_s=20) == [following]
    assert (await fleet.task(task_id))["result_data"] == {"n": 1}
    last = await agent.complete_and_claim(result(following), number=3)
    assert (last["outcomes"], last["tasks"], last["state"]) == (["ok"], [], "idle")
    await fleet.submit()
    assert (await agent.complete_and_claim(result(following), number=3))["tasks"] == []  # its number is spent
    assert len((await agent.complete_and_claim(result(following), number=4))["tasks"]) == 1


async def test_a_worker_that_may_not_claim_can_still_complete(fleet: Fleet) -> None:
    """A worker that drains hands in what it has and gets nothing; an older launch neither."""
    await fleet.submit(count=3)
    agent, older = await fleet.agent(), await fleet.agent()
    (task,), (theirs,) = await agent.claim(), await older.claim()
    await fleet.call(
        "fleet_request_termination", p_fleet=FLEET, p_worker_id=agent.id, p_reason="test", p_now_not_drain=False
    )
    said = await agent.complete_and_claim(result(task))
    assert (said["outcomes"], said["wanted"], said["tasks"]) == (["ok"], "drain", [])
    older.nonce = "an older one"
    said = await older.complete_and_claim(result(theirs))
    assert (said["outcome"], said["outcomes"], said["wanted"], said["tasks"]) == ("fenced", ["fenced"], "stop", [])


async def test_a_claim_that_is_refused_takes_back_the_completions(fleet: Fleet) -> None:
    """The call did both or neither."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    with pytest.raises(BadArgument, match="p_claim_no"):
        await agent.complete_and_claim(result(task), number=0)
    assert (await fleet.task(task_id))["status"] == "In Progress"
    assert await agent.complete(task) == "ok"


async def test_ended_tasks_bring_the_next_without_a_look_at_the_queue(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Over a new connection too, which plans what it does."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await hand.execute("insert into tasks (task_type) select 'x' from generate_series(1, 2000)")
    await hand.execute("analyze tasks, task_attempts")
    async with hand.transaction():
        before = await rows_read(hand, "tasks")
        args = (agent.id, agent.nonce, Jsonb([result(task)]), next(agent.numbers))
        (said,) = await (
            await hand.execute("select worker_complete_and_claim(%s, %s, %s, %s, 1) as it", args)
        ).fetchall()
        read = await rows_read(hand, "tasks") - before
    assert (said["it"]["outcomes"], len(said["it"]["tasks"])) == (["ok"], 1)
    assert read < 50


async def test_two_completions_at_the_same_moment_count_once(fleet: Fleet) -> None:
    """One ok, seven already."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    outcomes = await asyncio.gather(*(agent.complete(task) for _ in range(8)))
    assert sorted(outcomes) == ["already"] * 7 + ["ok"]


async def test_a_stale_attempt_is_fenced(fleet: Fleet) -> None:
    """Rescued and claimed elsewhere, the task no longer listens to the first worker."""
    (task_id,) = await fleet.submit()
    slow, quick = await fleet.agent(), await fleet.agent()
    (first,) = await slow.claim()
    fleet.wait(61)
    assert (await fleet.fleet("rescue", p_worker_id=None))["tasks"] == [
        {"id": task_id, "worker_id": slow.id, "outcome": "requeued"}
    ]
    (second,) = await quick.claim()
    assert second["attempt"] == 2
    assert (await slow.beat(first))["fenced"] == [task_id]
    assert [await slow.complete(first), await slow.fail(first), await slow.release(first)] == ["fenced"] * 3
    assert await quick.complete(first) == "fenced"  # its own task, another's token
    assert await quick.complete(second) == "ok"
    assert await slow.complete(first) == "fenced"
    assert await attempts(fleet, task_id) == [("lost", "LEASE_EXPIRED", "lost"), ("complete", None, None)]


async def test_a_stale_attempt_is_fenced_while_its_launch_runs_the_next_one(fleet: Fleet) -> None:
    """A result that a worker sends late must not complete the attempt that it has begun since."""
    await fleet.submit()
    agent = await fleet.agent()
    (first,) = await agent.claim()
    fleet.wait(61)
    await fleet.fleet("rescue", p_worker_id=None)
    (second,) = await agent.claim()
    assert (first["id"], first["attempt"] + 1) == (second["id"], second["attempt"])
    assert await agent.complete_many(result(first)) == ["fenced"]
    assert await agent.complete(first) == "fenced"
    assert await agent.complete_many(result(second)) == ["ok"]


async def test_a_failed_task_is_queued_with_a_doubling_delay_until_its_last_attempt(fleet: Fleet) -> None:
    """30 s, then 60 s, each give or take a fifth; then Failed, with where and how."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    for expected_s in (30, 60):
        (task,) = await agent.claim()
        assert await agent.fail(task, code="E", message="boom", point="Processing", exit_class="oom") == "requeued"
        assert await agent.fail(task) == "already"
        row = await fleet.task(task_id)
        delay_s = (datetime.fromisoformat(row["run_after"]) - fleet.now).total_seconds()
        assert 0.8 * expected_s <= delay_s <= 1.2 * expected_s
        assert (row["status"], row["worker_id"], row["error_message"]) == ("Queued", None, "boom")
        assert await agent.claim() == []
        fleet.wait(1.2 * expected_s)
    (task,) = await agent.claim()
    assert await agent.fail(task, code="E", message="boom", point="Completion", exit_class="exception") == "failed"
    row = await fleet.task(task_id)
    assert (row["status"], row["failure_code"], row["failed_at_point"]) == ("Failed", "E", "Completion")
    assert [outcome for outcome, *_ in await attempts(fleet, task_id)] == ["failed"] * 3


async def test_a_failure_without_retry_ends_the_task_at_once(fleet: Fleet) -> None:
    """The handler says so."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert await agent.fail(task, retryable=False, message="bad params") == "failed"
    assert (await fleet.task(task_id))["status"] == "Failed"


async def test_an_invalid_failure_is_refused(fleet: Fleet) -> None:
    """A key that nobody reads is a mistake."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    with pytest.raises(BadArgument, match="surprise"):
        await agent.fail(task, surprise=1)


async def test_a_released_task_counts_no_attempt(fleet: Fleet) -> None:
    """The token still grows, so that it stays unique; the attempts left do not shrink."""
    (task_id,) = await fleet.submit({"max_attempts": 1})
    agent = await fleet.agent()
    for number in (1, 2):
        (task,) = await agent.claim()
        assert task["attempt"] == number
        assert await agent.release(task) == "ok"
        assert await agent.release(task) == "already"
        assert await agent.complete(task) == "fenced"
    (task,) = await agent.claim()
    assert await agent.fail(task) == "failed"
    assert [outcome for outcome, *_ in await attempts(fleet, task_id)] == ["released"] * 2 + ["failed"]


async def in_circles(fleet: Fleet, agent: Agent, task_id: str, times: int) -> list[float]:
    """Return the task that often, each time as soon as it may be claimed: the seconds until then."""
    waits = []
    for _ in range(times):
        (task,) = await agent.claim()
        assert task["id"] == task_id
        fleet.wait(1)
        assert await agent.release(task) == "ok"
        waits.append(await pause(fleet, task_id))
        if waits[-1]:
            fleet.wait(waits[-1] - 0.001)
            assert await agent.claim() == []
            fleet.wait(0.001)
    return waits


async def pause(fleet: Fleet, task_id: str) -> float:
    """Seconds until a queued task may be claimed."""
    task = await fleet.task(task_id)
    assert task["status"] == "Queued"
    until = task["run_after"]
    return (datetime.fromisoformat(until) - fleet.now).total_seconds() if until else 0


async def test_a_task_that_is_returned_in_circles_waits_longer_each_time(fleet: Fleet) -> None:
    """From the third time in a row on: 30 s, which double up to an hour. No attempt is used up."""
    (task_id,) = await fleet.submit({"max_attempts": 1})
    agent = await fleet.agent()
    assert await in_circles(fleet, agent, task_id, 11) == [0, 0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    (task,) = await agent.claim()
    assert await agent.release(task) == "ok"
    found = await fleet.call("task_find", p_filter={"ids": [task_id]}, p_limit=9, p_full=False)
    [row] = found["tasks"]
    assert (row["waits"]["kind"], row["waits"]["code"]) == ("retry", "RELEASED")
    assert (await fleet.task(task_id))["error_message"] == "returned 12 times in a row: draining"
    fleet.wait(3600)
    (task,) = await agent.claim()
    assert await agent.complete(task) == "ok"


async def test_workers_that_end_may_return_a_task_any_number_of_times(fleet: Fleet) -> None:
    """Each of them returns it once: on request, or because its pod was told to stop. Nothing waits for that."""
    (task_id,) = await fleet.submit()
    for number in range(6):
        agent = await fleet.agent()
        (task,) = await agent.claim()
        fleet.wait(1)
        if number % 2:
            await fleet.end(agent.id, State.ACTIVE)
        assert await agent.release(task) == "ok"
        assert await pause(fleet, task_id) == 0


async def test_a_worker_that_was_asked_to_end_returns_even_such_a_task_at_once(fleet: Fleet) -> None:
    """The next worker need not have the problem of this one."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    assert await in_circles(fleet, agent, task_id, 4) == [0, 0, 30, 60]
    (task,) = await agent.claim()
    await fleet.end(agent.id, State.ACTIVE)
    assert await agent.release(task) == "ok"
    assert await pause(fleet, task_id) == 0


async def test_tasks_of_a_batch_that_did_not_begin_soon_enough_do_not_wait(fleet: Fleet) -> None:
    """Their worker runs a task of each claim, so this has an end."""
    *_, last = await fleet.submit(*({"priority": -number} for number in range(6)))
    agent = await fleet.agent()
    for _ in range(5):
        first, *others = await agent.claim(batch=10)
        fleet.wait(10)
        for task in others:
            assert await agent.release(task) == "ok"
        assert await pause(fleet, last) == 0
        assert await agent.complete(first) == "ok"


async def test_a_task_that_began_to_run_is_returned_for_the_first_time_again(fleet: Fleet) -> None:
    """The failed attempt counted, and it had its own pause."""
    (task_id,) = await fleet.submit({"max_attempts": 3})
    agent = await fleet.agent()
    assert await in_circles(fleet, agent, task_id, 3) == [0, 0, 30]
    (task,) = await agent.claim()
    assert await agent.fail(task) == "requeued"
    fleet.wait(await pause(fleet, task_id))
    assert await in_circles(fleet, agent, task_id, 3) == [0, 0, 30]


async def test_heartbeats_renew_the_leases_they_name_and_no_others(fleet: Fleet) -> None:
    """The forgotten task is rescued, the named one is not."""
    await fleet.submit(count=2)
    agent = await fleet.agent()
    named, forgotten = await agent.claim(batch=2)
    fleet.wait(40)
    assert (await agent.beat(named))["fenced"] == []
    fleet.wait(40)
    assert (await fleet.snapshot())["expired_leases"] == 1
    rescued = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
    assert [task["id"] for task in rescued] == [forgotten["id"]]
    assert await agent.complete(named) == "ok"


async def test_the_stuck_clock_follows_the_last_sign_of_life(fleet: Fleet) -> None:
    """What the agent says of it counts, not the progress. The clock never goes back; nonsense changes nothing."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    seen = []
    for still_s in (0, 15.5, 300, -1, "soon", 1e300, None, 2):
        fleet.wait(20)
        await agent.beat(dict(task) | {"progress": {"fraction": 0.1}, "still_s": still_s})
        at = datetime.fromisoformat((await fleet.task(task_id))["progress_at"])
        seen.append((at - START).total_seconds())
    assert seen == [20, 24.5, 24.5, 24.5, 24.5, 24.5, 24.5, 158]


@pytest.mark.parametrize(("timeout_s", "until_s"), [(None, 7200), (600, 1200)])
async def test_signs_of_life_count_for_twice_the_timeout(fleet: Fleet, timeout_s: float | None, until_s: float) -> None:
    """A pod that lies, or whose agent does not enforce the timeout, is ended all the same."""
    (task_id,) = await fleet.submit({"timeout_s": timeout_s})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await fleet.fleet("declare_programs", p_pools=[], p_stuck_s=900)
    for _ in range(int(until_s + 900) // 50 - 1):
        fleet.wait(50)
        assert (await agent.beat(dict(task) | {"still_s": 0}))["stuck"] == []
    fleet.wait(50)
    assert (await agent.beat(dict(task) | {"still_s": 0, "progress": {"fraction": 0.9}}))["stuck"] == [task_id]
    (worker,) = map(worker_of, (await fleet.snapshot())["workers"])
    assert worker.progress_at == START + timedelta(seconds=until_s)


async def test_an_outage_of_the_store_makes_no_task_stuck(fleet: Fleet) -> None:
    """However short its timeout: the agent waits with the result. After the outage it has its time again."""
    (task_id,) = await fleet.submit({"timeout_s": 60})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await fleet.fleet("declare_programs", p_pools=[], p_stuck_s=900)
    away = {"p_reason": "503", "p_since": fleet.now.isoformat(), "p_for_s": 3600}
    await fleet.fleet("store_away", **away)
    for _ in range(36):
        fleet.wait(50)
        assert (await agent.beat(dict(task) | {"still_s": 0}))["stuck"] == []
    await fleet.fleet("store_away", p_reason=None, p_since=None, p_for_s=None)
    for told in (*([] for _ in range(17)), [task_id]):
        fleet.wait(50)
        assert (await agent.beat(dict(task) | {"still_s": 0}))["stuck"] == told


async def test_the_answer_to_a_heartbeat_names_stuck_tasks(fleet: Fleet) -> None:
    """After the time that the leader declared; a task that waits its turn shows no sign of life and needs none."""
    stuck, waiting = await fleet.submit(count=2)
    agent = await fleet.agent()
    tasks = {task["id"]: task for task in await agent.claim(batch=2)}
    said = [dict(tasks[stuck]), dict(tasks[waiting]) | {"still_s": 0}]
    fleet.wait(50)
    assert (await agent.beat(*said))["stuck"] == []  # no leader has said for how long
    await fleet.fleet("declare_programs", p_pools=[], p_stuck_s=60)
    for told in ([], [stuck]):
        assert (await agent.beat(*said))["stuck"] == told
        fleet.wait(10)


async def test_the_stuck_clock_of_an_earlier_agent_moves_only_when_progress_changes(fleet: Fleet) -> None:
    """It does not say still_s; a heartbeat that says the same again is no progress."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    seen = []
    for progress in ({"fraction": 0.1}, {"fraction": 0.1}, None, {"fraction": 0.2}):
        fleet.wait(20)
        await agent.beat(dict(task) | {"progress": progress})
        seen.append((await fleet.task(task_id))["progress_at"])
    times = [datetime.fromisoformat(at) for at in seen]
    assert times[0] == times[1] == times[2]
    assert times[3] - times[0] == timedelta(seconds=60)
    assert (await fleet.task(task_id))["progress"] == {"fraction": 0.2}


async def test_rescue_counts_and_the_last_one_fails(fleet: Fleet) -> None:
    """A task that kills its workers does not go round for ever."""
    (task_id,) = await fleet.submit({"max_attempts": 2})
    agent = await fleet.agent()
    outcomes = []
    for _ in range(2):
        assert len(await agent.claim()) == 1
        fleet.wait(60)
        (rescued,) = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
        outcomes.append(rescued["outcome"])
    assert outcomes == ["requeued", "failed"]
    row = await fleet.task(task_id)
    assert (row["status"], row["failure_code"], row["worker_id"]) == ("Failed", "LEASE_EXPIRED", agent.id)


async def test_a_task_that_is_lost_again_waits_a_little(fleet: Fleet) -> None:
    """The first loss was likely its worker's fault, the next ones likely its own; a retry begins at zero."""
    (task_id,) = await fleet.submit({"max_attempts": 4})
    waits = []
    for number in range(5):
        if number == 4:  # its attempts are used up
            await fleet.call("task_retry", p_id=task_id)
        agent = await fleet.agent()
        assert len(await agent.claim()) == 1
        await fleet.end(agent.id, State.ACTIVE, ExitCause.POD_LOST)
        await fleet.fleet("rescue", p_worker_id=agent.id)
        until = (await fleet.task(task_id))["run_after"]
        waits.append((datetime.fromisoformat(until) - fleet.now).total_seconds() if until else 0)
        if until:
            assert await (await fleet.agent()).claim() == []
            fleet.wait(waits[-1])
    assert (waits[0], waits[3], waits[4]) == (0, 0, 0)
    assert all(24 <= wait_s <= 36 for wait_s in waits[1:3])


async def test_a_planned_end_after_a_loss_costs_no_pause(fleet: Fleet) -> None:
    """What is given back was not lost."""
    (task_id,) = await fleet.submit()
    for cause in (ExitCause.POD_LOST, ExitCause.MANUAL):
        agent = await fleet.agent()
        assert len(await agent.claim()) == 1
        await fleet.end(agent.id, State.ACTIVE, cause)
        await fleet.fleet("rescue", p_worker_id=agent.id)
    assert (await fleet.task(task_id))["run_after"] is None


@pytest.mark.parametrize("way", ["its end", "its last move", "its lease"])
async def test_a_task_without_progress_for_too_long_fails_as_stuck(fleet: Fleet, way: str) -> None:
    """And not what else the worker held, which is lost with it; by whichever way it is taken from the worker."""
    stuck, moving = await fleet.submit(count=2, max_attempts=1)
    agent = await fleet.agent()
    tasks = {task["id"]: task for task in await agent.claim(batch=2)}
    fleet.wait(70)
    await agent.beat(tasks[stuck], dict(tasks[moving]) | {"progress": {"fraction": 0.5}})
    fleet.wait(30)
    end: dict[str, Any] = {"exit_cause": ExitCause.TASK_STUCK, "metadata": {"stuck_s": 90}}
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **end)
    if way == "its end":
        await fleet.fleet("rescue", p_worker_id=agent.id)
    elif way == "its last move":
        await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    else:
        fleet.wait(30)
        await fleet.fleet("rescue", p_worker_id=None)
    row = await fleet.task(stuck)
    still_s = 130 if way == "its lease" else 100
    assert (row["status"], row["failure_code"], row["failed_at_point"]) == ("Failed", "TASK_STUCK", "Processing")
    assert row["error_message"] == f"No sign of life for {still_s} s; worker {agent.id} was ended for that"
    assert await attempts(fleet, stuck) == [("lost", "TASK_STUCK", "timeout")]
    code = "LEASE_EXPIRED" if way == "its lease" else "WORKER_LOST"
    assert await attempts(fleet, moving) == [("lost", code, "lost")]


async def test_all_that_a_stuck_worker_held_is_stuck_where_its_time_is_not_known(fleet: Fleet) -> None:
    """An orchestrator of before did not write it down."""
    ids = await fleet.submit(count=2, max_attempts=1)
    agent = await fleet.agent()
    await agent.claim(batch=2)
    await fleet.end(agent.id, State.ACTIVE, ExitCause.TASK_STUCK)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    assert [(await fleet.task(task_id))["failure_code"] for task_id in ids] == ["TASK_STUCK"] * 2


async def test_a_named_workers_tasks_are_rescued_whatever_their_lease(fleet: Fleet) -> None:
    """And nobody else's."""
    await fleet.submit(count=3)
    dead, alive = await fleet.agent(), await fleet.agent()
    taken = {task["id"] for task in await dead.claim(batch=2)}
    await alive.claim()
    rescued = (await fleet.fleet("rescue", p_worker_id=dead.id))["tasks"]
    assert {task["id"] for task in rescued} == taken
    assert (await fleet.fleet("rescue", p_worker_id=None))["tasks"] == []
    assert {task["id"] for task in await alive.claim(batch=9)} == taken  # at once, without a delay


async def test_a_terminated_worker_leaves_no_task_behind(fleet: Fleet) -> None:
    """Its last move rescues what it still held."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    await fleet.end(agent.id, State.ACTIVE, ExitCause.POD_LOST)
    assert (await fleet.task(task_id))["status"] == "In Progress"
    row = await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    assert (row["tasks_running"], row["stage"]) == (0, Stage.GONE)
    assert (await fleet.task(task_id))["status"] == "Queued"


async def test_an_end_that_was_meant_costs_no_attempt(fleet: Fleet) -> None:
    """An operator's shutdown gives the task back, by whichever way it is taken from the worker."""
    (task_id,) = await fleet.submit({"max_attempts": 1})
    for ended_by in ("its last move", "its lease"):
        agent = await fleet.agent()
        await agent.claim()
        await fleet.end(agent.id, State.ACTIVE, ExitCause.MANUAL)
        if ended_by == "its lease":
            fleet.wait(61)
            (given,) = (await fleet.fleet("rescue", p_worker_id=None))["tasks"]
            assert given["outcome"] == "requeued"
        else:
            await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
        assert (await fleet.task(task_id))["status"] == "Queued"
    agent = await fleet.agent()
    await agent.claim()
    await fleet.end(agent.id, State.ACTIVE, ExitCause.POD_LOST)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    assert (await fleet.task(task_id))["status"] == "Failed"
    given_back = ("released", "RELEASED", None)
    assert await attempts(fleet, task_id) == [given_back, given_back, ("lost", "WORKER_LOST", "lost")]


async def test_a_draining_worker_finishes_its_tasks(fleet: Fleet) -> None:
    """Its token stays good for that."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await fleet.end(agent.id, State.ACTIVE)
    assert (await agent.beat(task))["wanted"] == "drain"
    assert await agent.complete(task) == "ok"
    await fleet.move(agent.id, State.TERMINATING, stage=Stage.FLUSHING)
    assert (await agent.beat())["wanted"] == "stop"


async def test_cancelling(fleet: Fleet) -> None:
    """A queued task at once; a running one through its agent; an ended one not at all."""
    queued, running = await fleet.submit({"priority": 0}, {"priority": 1})
    agent = await fleet.agent()
    (task,) = await agent.claim()
    assert await fleet.call("task_cancel", p_id=queued) == {"outcome": "cancelled", "status": "Cancelled"}
    assert await fleet.call("task_cancel", p_id=queued) == {"outcome": "already", "status": "Cancelled"}
    for _ in range(2):
        assert await fleet.call("task_cancel", p_id=running) == {"outcome": "cancelling", "status": "In Progress"}
    assert (await agent.beat(task))["cancel"] == [running]
    assert await agent.fail(task, exit_class="cancelled", message="killed on request") == "cancelled"
    assert await agent.fail(task) == "already"
    assert (await fleet.task(running))["status"] == "Cancelled"
    nobody = "00000000-0000-0000-0000-000000000000"
    assert (await fleet.call("task_cancel", p_id=nobody))["outcome"] == "not_found"


async def test_a_cancelled_task_is_not_rescued_into_the_queue(fleet: Fleet) -> None:
    """Its worker died before it was told."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    await fleet.call("task_cancel", p_id=task_id)
    fleet.wait(61)
    assert [task["outcome"] for task in (await fleet.fleet("rescue", p_worker_id=None))["tasks"]] == ["cancelled"]
    assert (await fleet.task(task_id))["status"] == "Cancelled"


async def test_a_cancelled_task_that_is_given_back_is_not_queued_again(fleet: Fleet) -> None:
    """Its worker drains before it was told."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await fleet.call("task_cancel", p_id=task_id)
    assert await agent.release(task) == "ok"
    assert (await fleet.task(task_id))["status"] == "Cancelled"


async def test_work_that_was_done_before_the_cancel_arrived_is_kept(fleet: Fleet) -> None:
    """The completion wins."""
    (task_id,) = await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    await fleet.call("task_cancel", p_id=task_id)
    assert await agent.complete(task) == "ok"
    assert (await fleet.task(task_id))["status"] == "Complete"


async def test_a_retry_has_all_its_attempts_again(fleet: Fleet) -> None:
    """Only of what ended badly."""
    (task_id,) = await fleet.submit({"max_attempts": 1})
    agent = await fleet.agent()
    assert (await fleet.call("task_retry", p_id=task_id))["outcome"] == "not_ended"
    (task,) = await agent.claim()
    assert await agent.fail(task, message="boom") == "failed"
    assert (await fleet.call("task_retry", p_id=task_id))["outcome"] == "requeued"
    row = await fleet.task(task_id)
    assert (row["status"], row["error_message"], row["failure_code"]) == ("Queued", None, None)
    (task,) = await agent.claim()
    assert task["attempt"] == 2
    assert await agent.complete(task) == "ok"
    assert (await fleet.call("task_retry", p_id=task_id))["outcome"] == "not_ended"


async def test_a_rescue_and_a_completion_at_the_same_moment_agree(fleet: Fleet) -> None:
    """Either it completed, or it was requeued and the completion is fenced; never both."""
    for _ in range(15):
        (task_id,) = await fleet.submit()
        agent = await fleet.agent()
        (task,) = await agent.claim()
        outcome, rescued = await asyncio.gather(agent.complete(task), fleet.fleet("rescue", p_worker_id=agent.id))
        status = (await fleet.task(task_id))["status"]
        assert (outcome, len(rescued["tasks"]), status) in {
            ("ok", 0, "Complete"),
            ("fenced", 1, "Queued"),
            ("pending", 1, "Queued"),  # asked again, it is fenced
        }
        await fleet.call("task_cancel", p_id=task_id)


async def test_the_row_of_a_worker_counts_its_tasks(fleet: Fleet) -> None:
    """Done, failed and running."""
    await fleet.submit(count=3)
    agent = await fleet.agent()
    done, failed, _running = await agent.claim(batch=3)
    await agent.complete(done)
    await agent.fail(failed)
    (row,) = (await fleet.call("fleet_workers", p_fleet=FLEET, p_all=False, p_limit=10))["workers"]
    assert (row["tasks_done"], row["tasks_failed"], row["tasks_running"]) == (1, 1, 1)


async def test_a_fleet_leaves_anothers_tasks_to_it(fleet: Fleet) -> None:
    """Its agents may be calling a gateway that is unavailable now; where nobody leads it, somebody must."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    fleet.wait(61)
    staging = await fleet.call("fleet_lead", p_fleet="staging", p_holder="them", p_ttl_s=3600)
    theirs = {"p_fleet": "staging", "p_term": staging["term"]}
    seen = await fleet.call("fleet_snapshot", p_fleet="staging")
    assert (seen["expired_leases"], (await fleet.snapshot())["expired_leases"]) == (0, 1)
    assert (await fleet.call("fleet_rescue_overdue", **theirs, p_over_s=0))["tasks"] == []
    await fleet.call("fleet_resign", p_fleet=FLEET, p_holder="us", p_term=fleet.term)
    assert (await fleet.call("fleet_snapshot", p_fleet="staging"))["expired_leases"] == 1
    (rescued,) = (await fleet.call("fleet_rescue_overdue", **theirs, p_over_s=0))["tasks"]
    assert rescued["id"] == task["id"]
