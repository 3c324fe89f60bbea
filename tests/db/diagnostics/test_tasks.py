"""`explain <task>`: where it is, why it waits, each attempt and the fix."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from demo import narrator
from orchestrator.adapters.store import SqlStore
from orchestrator.cli import explain_view, task_rows
from orchestrator.core.blocked import WORKERS, Blocked, BlockedReason, text
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.silence import CALLS_UNANSWERED
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.tasks import FEW
from orchestrator.leader_jobs.conditions import RECORDED, ConditionRecord
from orchestrator.ports import BadArgument, Db, NotLeader
from tests.db.conformance.builders import FLEET, START, Fleet, result
from tests.db.diagnostics.build import bring_up, lines, promoted, times, told

DECISION = {"pool": "default", "rule": "min(max(…), 0 max) = 0", "target": 0, "inputs": {}, "actions": []}


DEAR = Blocked(BlockedReason.PRICE_UNKNOWN, 1, detail={"gpu_type": "NVIDIA A40", "cloud": "SECURE"})

FAILING = {"what": "No worker comes up", "pool": "default", "count": 6, "code": "X", "means": "m", "fix": "f"}


async def decided(fleet: Fleet, *blocked: Blocked, **fields: Any) -> None:
    """What the loop last decided for the pool."""
    await fleet.fleet(
        "record_decision", p_decision={**DECISION, "blocked": [reason.as_json() for reason in blocked], **fields}
    )


async def test_a_blocked_task_names_the_dependencies_that_are_missing(fleet: Fleet) -> None:
    """Where each is, on whom it runs, and what to look at next."""
    (running,) = await fleet.submit(task_type="segment")
    agent = await fleet.agent()
    await agent.claim()
    (waiting,) = await fleet.submit(task_type="segment")
    (task,) = await fleet.submit(task_type="stitch", depends_on=[running, waiting])
    said = await told(fleet, task)
    assert said.what == (
        f"2 of 2 dependencies: segment {running} is In Progress on {agent.id}; segment {waiting} is Queued"
    )
    assert (said.who, said.fix) == ("worker", f"python -m orchestrator explain {running}")
    assert (await told(fleet, running)).holding_up == 1


async def test_a_task_of_a_silent_worker_that_may_be_well_waits_for_what_the_worker_waits_for(fleet: Fleet) -> None:
    """Its lease is renewed as long as SSH shows that the agent calls, so the end of the lease says nothing."""
    agent = await fleet.agent()
    (task,) = await fleet.submit()
    await agent.claim()
    await fleet.move(agent.id, State.ACTIVE, waiting_on="operator", waiting_for=CALLS_UNANSWERED, deadline_s=600)
    await fleet.call("task_cancel", p_id=task)
    said = await told(fleet, task)
    assert (said.who, said.fix) == ("operator", ConditionKind.GATEWAY_UNREACHED.row.fix)
    assert said.what.startswith(
        f"{CALLS_UNANSWERED}; worker {agent.id} (active) to finish it; its cancellation was asked"
    )
    assert said.then == "if that lasts until then, its worker ends"
    assert said.until is not None
    assert datetime.fromisoformat(said.until) == fleet.now + timedelta(seconds=600)


@pytest.mark.parametrize("priority", [-(2**31), 2**31 - 1])
async def test_the_ends_of_the_priorities_are_ordered_too(fleet: Fleet, priority: int) -> None:
    """The least integer has no negative."""
    await fleet.submit()
    (task,) = await fleet.submit(priority=priority)
    explained = await fleet.call("fleet_task_explain", p_fleet="default", p_task_id=task)
    assert explained["ahead"] == (1 if priority < 0 else 0)


async def test_a_task_for_later_says_when(fleet: Fleet) -> None:
    """Nobody needs to act."""
    later = fleet.now + timedelta(hours=1)
    (task,) = await fleet.submit(run_after=later.isoformat())
    said = await told(fleet, task)
    assert said.who == "nobody"
    assert said.until is not None
    assert times([said.until]) == [later]


async def test_a_pause_after_a_failure_says_what_failed(fleet: Fleet) -> None:
    """The attempt's code, its sentence, and until when."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    await agent.fail(claimed, code="VRAM_OOM", message="CUDA out of memory", exit_class="vram_oom", point="Processing")
    said = await told(fleet, task)
    assert said.what == "attempt 2 of 3. Last error: CUDA out of memory"
    assert (said.code, said.until is not None) == ("VRAM_OOM", True)
    assert "RUNPOD_GPU_TYPE" in said.fix
    (attempt,) = said.attempts
    assert (attempt.worker_id, attempt.outcome, attempt.exit_class) == (agent.id, "failed", "vram_oom")
    assert (attempt.point, attempt.message) == ("Processing", "CUDA out of memory")


@pytest.mark.parametrize(
    ("blocked", "who", "fix"),
    [
        (Blocked(BlockedReason.MAX_ACTIVE, 2, WORKERS, {"limit": 0}), "operator", "MAX_ACTIVE_GPUS"),
        (Blocked(BlockedReason.OFFERS_REFUSED, 2), "capacity", "RUNPOD_DATA_CENTERS"),
        (DEAR, "budget", "remove the budgets"),
        (Blocked(BlockedReason.BREAKER_OPEN, 3), "orchestrator", "python -m orchestrator explain scaling"),
        (Blocked(BlockedReason.PAUSED, 2, detail={"reason": "budget"}), "operator", "python -m orchestrator resume"),
        (Blocked(BlockedReason.SCALE_LIMIT, 2, WORKERS, {"limit": 1, "where": "the whole fleet", "reason": "a demo"}),
         "operator", "python -m orchestrator scale unlimit"),
    ],
)  # fmt: skip
async def test_without_a_worker_the_decision_says_why_none_is_started(
    fleet: Fleet, blocked: Blocked, who: str, fix: str
) -> None:
    """Capacity, budget, breaker, the most that are allowed, or a pause."""
    (task,) = await fleet.submit()
    await decided(fleet, blocked)
    said = await told(fleet, task)
    assert (said.who, text(blocked) in said.what) == (who, True)
    assert fix in said.fix


async def test_a_paused_fleet_is_the_operators(fleet: Fleet) -> None:
    """With the reason that was given."""
    (task,) = await fleet.submit()
    await fleet.call("fleet_pause", p_fleet="default", p_pool=None, p_reason="new prices", p_for_s=None)
    said = await told(fleet, task)
    assert (said.who, said.condition) == ("operator", ConditionKind.PAUSED)
    assert "new prices" in said.what
    assert said.fix == "python -m orchestrator resume"


async def test_a_pause_of_its_own_pool_is_the_operators_and_one_of_another_is_not(fleet: Fleet) -> None:
    """The fix resumes that pool alone."""
    (task,) = await fleet.submit()
    for pool in ("other", "default"):
        assert (await told(fleet, task)).who != "operator"
        await fleet.call("fleet_pause", p_fleet="default", p_pool=pool, p_reason="new image", p_for_s=600)
    said = await told(fleet, task)
    assert (said.who, said.condition) == ("operator", ConditionKind.PAUSED)
    assert "pool default (new image" in said.what
    assert said.fix == "python -m orchestrator resume --pool default"
    assert said.until is not None


async def test_a_task_with_workers_says_why_there_will_be_no_more(fleet: Fleet) -> None:
    """What blocks its pool, after who goes before it."""
    (task,) = await fleet.submit()
    await promoted(fleet, 10)
    await decided(fleet, DEAR)
    said = await told(fleet, task)
    assert "1 worker serves it; no more workers are started: " in said.what
    assert said.condition == ConditionKind.PRICE_UNKNOWN


async def test_a_pool_with_the_target_zero_shows_the_last_decision(fleet: Fleet) -> None:
    """The decision's own."""
    (task,) = await fleet.submit()
    await decided(fleet)
    assert "did not count this task yet: min(max(…), 0 max) = 0" in (await told(fleet, task)).what


async def test_a_task_shows_the_tasks_before_it_and_the_workers_that_serve_it(fleet: Fleet) -> None:
    """By priority, then age."""
    (task,) = await fleet.submit()
    fleet.wait(1)
    await fleet.submit(count=2, priority=1)
    await fleet.submit(count=3)
    await bring_up(fleet, Stage.TCP)
    said = await told(fleet, task)
    assert (said.who, said.what) == ("provider", "2 tasks of pool default go before it. A worker is starting.")
    await promoted(fleet, 10)
    said = await told(fleet, task)
    assert said.what == "a free worker: 2 tasks of pool default go before it, 1 worker serves it"


async def test_a_dependency_that_does_not_exist_is_named_without_a_command_to_explain_it(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """It may still be inserted; the task fails if it is not."""
    absent = "10000000-0000-0000-0000-00000000000f"
    query = "insert into tasks (task_type, depends_on) values ('t', array[%s::uuid]) returning id::text"
    (row,) = await (await hand.execute(query, (absent,))).fetchall()
    said = await told(fleet, row["id"])
    assert (said.who, said.what) == ("operator", f"1 of 1 dependencies: {absent} (does not exist)")
    assert said.fix.startswith(f"python -m orchestrator tasks cancel {row['id']}")


async def test_a_dependency_that_was_deleted_is_named_as_the_cause(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Before it was complete: the task has failed with it."""
    (first,) = await fleet.submit()
    (task,) = await fleet.submit(depends_on=[first])
    await hand.execute("delete from tasks where id = %s", (first,))
    said = await told(fleet, task)
    assert (said.code, first in said.what) == ("DEPENDENCY_DELETED", True)


async def test_a_result_that_a_users_trigger_refuses_names_the_refusal(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Nothing is lost, no worker waits, and what the trigger said is shown."""
    agent = await fleet.agent()
    (task_id,) = await fleet.submit()
    (task,) = await agent.claim()
    body = "begin if new.status = 'Complete' then raise exception 'unpaid'; end if; return new; end"
    await hand.execute(f"create function users_own() returns trigger language plpgsql as $$ {body} $$".encode())
    await hand.execute("create trigger users_own before update on tasks for each row execute function users_own()")
    try:
        assert await agent.complete(task) == "ok"
        said = await told(fleet, task_id)
    finally:
        await hand.execute("drop function users_own() cascade")
    assert (said.status, said.who, said.until is not None) == ("Complete", "operator", True)
    assert said.what.endswith("; its row still shows In Progress: writing it failed 1 time: unpaid (P0001)")
    assert said.fix.startswith("change the trigger or constraint on tasks that refuses it")
    assert "nothing is lost" in said.then
    fleet.wait(2)
    await fleet.maintain()
    assert (await told(fleet, task_id)).who != "operator"


async def test_without_a_leader_no_worker_is_started(fleet: Fleet) -> None:
    """The fix is to run one."""
    (task,) = await fleet.submit()
    fleet.wait(7200)
    said = await told(fleet, task)
    assert (said.condition, said.who) == (ConditionKind.NO_LEADER, "orchestrator")
    assert "python -m orchestrator run" in said.fix


async def test_a_limit_of_zero_does_not_end_by_itself(fleet: Fleet) -> None:
    """Whoever set it must raise it: no running task makes room."""
    await fleet.call("task_limit_set", p_kind="key", p_name="stopped-account", p_most=0)
    (task,) = await fleet.submit(concurrency_key="stopped-account")
    said = await told(fleet, task)
    assert (said.who, said.then) == ("operator", "nothing until the limit is raised")
    assert said.what == "the limit of the key 'stopped-account' is 0: none of its tasks may run"
    assert said.fix == "python -m orchestrator limits set --key NAME NUMBER"
    row = {"status": "Queued", "waits": {"kind": "limit", "scope": "key", "name": "a", "running": 0, "most": 0}}
    assert task_rows.note(row, START) == "waits: the limit of the key a is 0"


async def test_a_database_that_allows_no_writes_is_the_cause(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Although nobody can lead then."""
    (task,) = await fleet.submit()
    await hand.execute("set default_transaction_read_only = on")
    for call in ("fleet_leadership('default')", f"fleet_task_explain('default', '{task}')"):
        answer = (await (await hand.execute(f"select {call}".encode())).fetchone() or {}).values()
        assert [one["read_only"] for one in answer] == [True]
    await hand.execute("set default_transaction_read_only = off")
    assert (await fleet.call("fleet_leadership", p_fleet="default"))["read_only"] is False


async def test_a_task_names_the_first_cause_that_the_leader_recorded(fleet: Fleet) -> None:
    """For a minute; the workers that are on the way do not hide it."""
    (task,) = await fleet.submit()
    await bring_up(fleet, Stage.TCP)
    held = Condition(ConditionKind.BRINGUPS_FAIL, "default", FAILING, "deploy: no pip", Impact.WAIT, pools=("default",))
    rows = [held.as_json()]
    await fleet.fleet("note_conditions", p_conditions=rows, p_for_s=60)
    said = await told(fleet, task)
    assert (said.condition, said.what) == (ConditionKind.BRINGUPS_FAIL, f"{held.text} (deploy: no pip)")
    recorded = await _conditions(fleet)
    assert [{**one, "since": None} for one in recorded] == rows
    fleet.wait(61)
    await fleet.fleet("note_tick", p_error=None, p_for_s=60)
    assert (await told(fleet, task)).condition is None
    with pytest.raises(BadArgument):
        await fleet.fleet("note_conditions", p_conditions={}, p_for_s=60)
    with pytest.raises(NotLeader):
        await fleet.call("fleet_note_conditions", p_fleet="default", p_term=fleet.term - 1, p_conditions=[], p_for_s=60)


async def test_a_condition_has_been_there_since_it_was_first_recorded(fleet: Fleet) -> None:
    """Unless it knows better. One that ends and comes back is a new one, and of two pools each has its own time."""
    kind = ConditionKind.BRINGUPS_FAIL
    here, there = (Condition(kind, pool, FAILING, pools=(pool,)).as_json() for pool in ("default", "other"))
    known = Condition(ConditionKind.NO_HOLDER, detail={"count": 1}, since=fleet.now).as_json()
    times: list[list[str]] = []
    for rows in ([here, known], [there, here, known], [known], [here, known]):
        await fleet.fleet("note_conditions", p_conditions=rows, p_for_s=60)
        times.append([one["since"] for one in await _conditions(fleet)])
        fleet.wait(15)
    (first, own), (second, again, _), _, (third, _) = times
    assert again == first < second < third
    assert all(found[-1] == known["since"] == own for found in times)
    for seconds, kept in ((60 + 14 * 60, True), (60 + 16 * 60, False)):  # no leader for so long
        fleet.wait(seconds)
        await fleet.fleet("note_conditions", p_conditions=[here], p_for_s=60)
        assert ([one["since"] for one in await _conditions(fleet)] == [third]) is kept


async def test_a_condition_that_was_not_shown_keeps_its_time(fleet: Fleet) -> None:
    """More were there than are shown; or a new leader, whose ticks fail, does not know what else is wrong."""
    store, now_s = SqlStore(cast("Db", fleet), FLEET), 0.0  # calls at the time of the fleet
    record = ConditionRecord(store, lambda: now_s)
    here = Condition(ConditionKind.POOL_UNKNOWN, "nopool", {"pool": "nopool", "count": 1}, pools=("nopool",))
    many = [replace(here, subject=f"p{n}") for n in range(RECORDED)]
    began = fleet.now
    for found, is_all, shown in (
        ([*many, here], True, RECORDED), ([here], True, 1), ([], False, 0), ([here], True, 1), ([], True, 0),
    ):  # fmt: skip
        record.note(found, is_all=is_all)
        await record.step(fleet.term)
        kept = await _conditions(fleet)
        assert len(kept) == shown
        if found == [here]:
            assert datetime.fromisoformat(kept[0]["since"]) == began
        now_s += 20
        fleet.wait(20)
    record.note([here])
    await record.step(fleet.term)
    assert datetime.fromisoformat((await _conditions(fleet))[0]["since"]) == fleet.now  # it had ended


async def test_a_condition_that_an_earlier_version_recorded_without_a_time_gets_one(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """It has none only until it is recorded again."""
    row = Condition(ConditionKind.BRINGUPS_FAIL, "default", FAILING).as_json()
    await fleet.fleet("note_conditions", p_conditions=[row], p_for_s=60)
    query = "update fleet_settings set value = jsonb_set(value, '{0,since}', 'null') where name = 'conditions'"
    await hand.execute(query)
    await fleet.fleet("note_conditions", p_conditions=[row], p_for_s=60)
    assert [datetime.fromisoformat(one["since"]) for one in await _conditions(fleet)] == [fleet.now]


async def _conditions(fleet: Fleet) -> list[dict[str, Any]]:
    return list((await fleet.call("fleet_leadership", p_fleet="default"))["conditions"])


async def test_an_unknown_pool_is_named(fleet: Fleet) -> None:
    """With those that there are."""
    (task,) = await fleet.submit(pool="big")
    said = await told(fleet, task)
    assert "pool big, which no orchestrator with these settings has: there are default" in said.what
    assert "POOLS_FILE" in said.fix


async def test_a_running_task_names_its_worker_and_its_lease(fleet: Fleet) -> None:
    """And what happens when the worker falls silent."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    said = await told(fleet, task)
    assert (said.who, said.what) == ("worker", f"worker {agent.id} (active) to finish it")
    assert said.until is not None
    assert times([said.until]) == [fleet.now + timedelta(seconds=60)]


async def test_a_finished_task_says_where_its_output_is(fleet: Fleet) -> None:
    """And what its attempt cost and wrote."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.beat(p_logs={"handler": 100})
    (claimed,) = await agent.claim()
    fleet.wait(10)
    await agent.beat(p_logs={"handler": 350})
    await agent.complete(claimed, p_output_location="s3://b/outputs/x")
    said = await told(fleet, task)
    assert (said.who, said.what) == ("nobody", "it is done: s3://b/outputs/x")
    (attempt,) = said.attempts
    assert attempt.log == "bytes 100–350 of handler"
    assert attempt.usd == pytest.approx(0.01)


async def test_tasks_of_one_claim_share_what_it_cost(fleet: Fleet) -> None:
    """The costs are those of `cost`: attempts follow each other, and those that end together share equally."""
    ids = await fleet.submit(count=3)
    agent = await fleet.agent()
    first, *others = await agent.claim(batch=3)
    fleet.wait(60)
    await agent.complete(first)
    fleet.wait(2)
    await agent.complete_many(*map(result, others))
    spent = {task: (await told(fleet, task)).usd for task in ids}
    assert spent[first["id"]] == pytest.approx(0.06)
    assert [spent[task["id"]] for task in others] == pytest.approx([0.001, 0.001])
    booked = await fleet.call("fleet_cost", p_fleet="default", p_since=START, p_until=None)
    assert spent == {row["id"]: pytest.approx(float(row["usd"])) for row in booked["tasks"]}


async def test_an_attempt_costs_nothing_after_the_bill_has_ended(fleet: Fleet) -> None:
    """The pod had vanished an hour before that was noticed; the next attempt costs its own, and the task both."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    fleet.wait(100)
    await agent.beat()
    fleet.wait(3_600)
    lost = {"exit_cause": ExitCause.POD_LOST, "failure_code": "POD_MISSING"}
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **lost)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    other = await fleet.agent()
    await other.claim()
    fleet.wait(20)
    said = await told(fleet, task)
    assert [attempt.usd for attempt in said.attempts] == pytest.approx([0.1, 0.02])
    assert said.usd == pytest.approx(0.12)
    assert "spent: $0.12" in "\n".join(lines(*explain_view.task(said, fleet.now)))


async def test_a_task_without_an_attempt_has_no_cost(fleet: Fleet) -> None:
    """Nothing is said of it."""
    (task,) = await fleet.submit()
    said = await told(fleet, task)
    assert said.usd is None
    assert "spent" not in "\n".join(lines(*explain_view.task(said, fleet.now)))


@pytest.mark.parametrize("code", ["HANDLER_ERROR", "OOM", "TIMEOUT", "NO_HANDLER", "SIGNAL"])
async def test_a_failed_task_names_the_code_its_words_and_the_fix(fleet: Fleet, code: str) -> None:
    """And each attempt in a table."""
    (task,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    await agent.fail(claimed, code=code, message="ValueError: no", exit_class="exception", point="Processing")
    said, cause = await told(fleet, task), causes.of(code)
    assert cause is not None
    assert (said.status, said.code) == ("Failed", code)
    assert said.what == f"{cause.means} Message: ValueError: no"
    assert said.fix == f"{cause.about(worker=agent.id).fix}; then python -m orchestrator tasks retry {task}"
    text = "\n".join(lines(*explain_view.task(said, fleet.now)))
    assert f"FAILED: {cause.means}" in text
    assert f"{code} exception at Processing" in text


async def test_a_task_that_an_earlier_release_could_not_do_names_both_releases(fleet: Fleet) -> None:
    """It waits for a worker that can; the attempt says that it does not count."""
    await fleet.fleet("declare_release", p_releases={"default": "image@new"}, p_task_types=["t"])
    (task,) = await fleet.submit()
    agent = await fleet.agent(release="image@old")
    (claimed,) = await agent.claim()
    await agent.fail(claimed, code="NO_HANDLER", message="no handler")
    said = await told(fleet, task)
    assert (said.who, said.code) == ("orchestrator", "EARLIER_RELEASE")
    assert said.what == (
        f"a worker of the present release: Worker {agent.id} is of an earlier release, image@old, "
        "which has no handler for t; image@new has one"
    )
    text = "\n".join(lines(*explain_view.task(said, fleet.now)))
    assert "attempts 0 of 3" in text
    assert "EARLIER_RELEASE" in text


async def test_a_task_that_is_returned_in_circles_says_until_when_it_waits_and_why(fleet: Fleet) -> None:
    """As after a failure, but no attempt was used up."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    for _ in range(3):
        (claimed,) = await agent.claim()
        await agent.release(claimed)
    said = await told(fleet, task)
    assert (said.status, said.code) == ("Queued", "RELEASED")
    assert said.what == "attempt 1 of 3. Last error: returned 3 times in a row: draining"
    assert said.until is not None
    assert datetime.fromisoformat(said.until) == fleet.now + timedelta(seconds=30)


async def test_a_task_whose_worker_was_lost_says_so(fleet: Fleet) -> None:
    """The attempt names how the worker ended."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    await fleet.end(agent.id, State.ACTIVE, ExitCause.HEARTBEAT_LOST)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    (attempt,) = (await told(fleet, task)).attempts
    assert (attempt.outcome, attempt.code, attempt.worker) == ("lost", "WORKER_LOST", "heartbeat_lost")
    assert attempt.fix == f"python -m orchestrator explain {agent.id}"


async def test_a_stuck_task_says_for_how_long_and_what_to_change(fleet: Fleet) -> None:
    """Its worker lived, so that looking for it there would be the wrong way."""
    (task,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    await agent.claim()
    fleet.wait(1205)
    await fleet.end(agent.id, State.ACTIVE, ExitCause.TASK_STUCK)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    said = await told(fleet, task)
    assert said.code == "TASK_STUCK"
    assert said.what.endswith(f"Message: No sign of life for 1205 s; worker {agent.id} was ended for that")
    assert said.fix.startswith("report progress in the handler, or raise TASK_STUCK_TIMEOUT_SEC; then ")
    (attempt,) = said.attempts
    assert (attempt.code, attempt.exit_class, attempt.worker) == ("TASK_STUCK", "timeout", "task_stuck")


async def test_a_task_that_is_lost_again_waits_for_its_pause(fleet: Fleet) -> None:
    """And says after what."""
    (task,) = await fleet.submit()
    for _ in range(2):
        agent = await fleet.agent()
        await agent.claim()
        await fleet.end(agent.id, State.ACTIVE, ExitCause.POD_LOST)
        await fleet.fleet("rescue", p_worker_id=agent.id)
    said = await told(fleet, task)
    assert (said.who, said.code) == ("nobody", "WORKER_LOST")
    assert said.what == f"attempt 3 of 3. Last error: Worker {agent.id} is gone"


async def test_a_task_that_failed_with_its_dependency_is_retried_with_it(fleet: Fleet) -> None:
    """The fix names the dependency."""
    (first,) = await fleet.submit(max_attempts=1)
    (second,) = await fleet.submit(depends_on=[first])
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    await agent.fail(claimed, code="OOM", message="too big")
    said = await told(fleet, second)
    assert (said.code, said.fix) == ("DEPENDENCY_FAILED", f"python -m orchestrator tasks retry {first}")


async def test_a_cancelled_task_can_be_retried(fleet: Fleet) -> None:
    """Nobody waits for anything."""
    (task,) = await fleet.submit()
    await fleet.call("task_cancel", p_id=task)
    said = await told(fleet, task)
    assert (said.status, said.fix) == ("Cancelled", f"python -m orchestrator tasks retry {task}")


async def test_a_task_that_ends_without_a_run_shows_when(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Cancelled by the API or by a statement: in its row, too. A retry shows when it was queued again, and no end."""
    later = (fleet.now + timedelta(hours=1)).isoformat()
    task, by_hand = await fleet.submit({"run_after": later}, {"run_after": later})
    fleet.wait(1200)
    at = fleet.now.isoformat()
    await fleet.call("task_cancel", p_id=task)
    row = await fleet.task(task)
    assert (row["updated_at"], row["generation_processed_at"], row["cancel_requested_at"]) == (at, at, at)
    assert (await told(fleet, task)).since == at
    statement = "update public.tasks set status = 'Cancelled', cancel_requested_at = %s where id = %s"
    await hand.execute(statement, (fleet.now, by_hand))
    assert (await told(fleet, by_hand)).since == at
    fleet.wait(60)
    await fleet.call("task_retry", p_id=task)
    row = await fleet.task(task)
    assert (row["updated_at"], row["generation_processed_at"]) == (fleet.now.isoformat(), None)


@pytest.mark.parametrize("at", ["infinity", "-infinity", "4000-01-01 BC", "294000-01-01"])
@pytest.mark.parametrize("column", ["updated_at", "cancel_requested_at"])
async def test_a_cancelled_task_of_an_impossible_time_is_explained(
    fleet: Fleet, hand: AsyncConnection[DictRow], column: str, at: str
) -> None:
    """Since the other of the two times, if that can be read."""
    (task,) = await fleet.submit()
    await fleet.call("task_cancel", p_id=task)
    await hand.execute(f"update tasks set {column} = %s::timestamptz where id = %s", (at, task))  # noqa: S608
    assert (await told(fleet, task)).since == fleet.now.isoformat()


async def test_the_usual_duration_of_the_task_type_is_shown(fleet: Fleet) -> None:
    """It comes from recent tasks, each without the time of earlier ones in the same claim. Too few tasks give none."""
    *earlier, task = await fleet.submit(count=5)
    agent = await fleet.agent(State.ACTIVE)
    claimed = await agent.claim(batch=4)
    for number, one in enumerate(claimed):
        if number == FEW - 1:
            assert (await told(fleet, task)).usual is None
        fleet.wait(10 * (number + 1))
        await agent.complete(one)
    await fleet.submit(task_type="other")
    (other,) = [one for one in await agent.claim(batch=2) if one["task_type"] == "other"]
    fleet.wait(500)
    await agent.complete(other)
    said = await told(fleet, task)
    assert said.usual == {"task_type": said.task_type, "n": len(earlier), "p50_s": 25, "p95_s": 38.5}
    shown = lines(*explain_view.task(said, fleet.now))
    assert any(line.startswith(f"usual for {said.task_type}: p50 25s, p95 38s (n=4)   fix: ") for line in shown)


@pytest.mark.parametrize("fraction", ["1e400", "-5", '"half"', "null", "[1]", "true", "0.5"])
async def test_the_demo_says_how_far_its_tasks_are_whatever_their_progress_is(
    fleet: Fleet, hand: AsyncConnection[DictRow], fraction: str
) -> None:
    """What is no share of 1 counts as none."""
    (task,) = await fleet.submit()
    progress = f'{{"fraction": {fraction}}}'
    await hand.execute("update tasks set status = 'In Progress', progress = %s where id = %s", (progress, task))
    row = await (await hand.execute(narrator.TASKS)).fetchone()
    assert row is not None
    assert row["percent"] == (50 if fraction == "0.5" else 0)
