"""A task whose type only the present release has a handler for, and workers of an earlier one: no attempt is lost."""

from datetime import datetime
from typing import Any

import pytest

from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, Agent, Fleet
from tests.db.conformance.test_queue_endings import attempts

OLD, NEW = "image@old", "image@new"
UNABLE = {"code": "NO_HANDLER", "message": "this worker has no handler", "exit_class": "exception"}
BACK = ("released", "EARLIER_RELEASE", "exception")
COUNTED = ("failed", "NO_HANDLER", "exception")


@pytest.fixture
async def declared(fleet: Fleet, db: Any) -> Fleet:
    """The new release leads; it handles `draw` and `sing`."""
    await SqlStore(db, FLEET).declare_release(fleet.term, {"default": NEW}, ["draw", "sing"])
    return fleet


async def row(fleet: Fleet, agent: Agent) -> Any:
    """A worker's row."""
    return (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id))["worker"]


async def used(fleet: Fleet, task_id: str) -> int:
    """Attempts that count."""
    task = await fleet.task(task_id)
    return int(task["attempts"] - task["uncounted"])


async def test_ten_earlier_workers_burn_no_attempt_of_one_task(declared: Fleet) -> None:
    """Only the first of them is even asked; the task waits, and the first worker of the release that leads does it."""
    fleet = declared
    (task_id,) = await fleet.submit({"task_type": "sing", "max_attempts": 1})
    earlier = [await fleet.agent(release=OLD) for _ in range(10)]
    claimed = {agent.id: await agent.claim() for agent in earlier[:1]}
    (task,) = claimed[earlier[0].id]
    assert await earlier[0].fail(task, **UNABLE) == "requeued"
    assert await earlier[0].fail(task, **UNABLE) == "already"
    assert [await agent.claim() for agent in earlier] == [[]] * 10
    waits = await fleet.task(task_id)
    assert (waits["status"], waits["failure_code"]) == ("Queued", "EARLIER_RELEASE")
    assert (datetime.fromisoformat(waits["run_after"]) - fleet.now).total_seconds() == 60
    assert (
        "is of an earlier release, image@old, which has no handler for sing; image@new has one"
        in waits["error_message"]
    )
    marked = [await row(fleet, agent) for agent in earlier]
    assert [one["metadata"].get("lacks") for one in marked] == ["sing", *[None] * 9]
    assert [one["drain_requested_at"] for one in marked] == [None] * 10  # they go on with what they can do
    replacement = await fleet.agent(release=NEW)
    assert (await fleet.task(task_id))["run_after"] is None  # it was due when the first of them was promoted
    (task,) = await replacement.claim()
    assert await replacement.complete(task) == "ok"
    assert await attempts(fleet, task_id) == [BACK, ("complete", None, None)]


async def test_an_earlier_worker_drains_at_once_when_the_release_is_there(declared: Fleet) -> None:
    """It claims nothing more, the task can be claimed at once, and what else it holds it finishes."""
    fleet = declared
    await fleet.agent(release=NEW)
    ids = await fleet.submit({"task_type": "draw"}, {"task_type": "sing"}, {"task_type": "sing"})
    earlier, other = await fleet.agent(release=OLD), await fleet.agent(release=OLD)
    draw, *unable = await earlier.claim(batch=3)
    assert [await earlier.fail(task, **UNABLE) for task in unable] == ["requeued"] * 2  # a batch of several such
    assert (await row(fleet, earlier))["drain_requested_at"] is not None
    assert (await earlier.claiming())["wanted"] == "drain"
    assert await earlier.complete(draw) == "ok"
    assert (await row(fleet, other))["drain_requested_at"] is None
    assert {task["id"] for task in await other.claim(batch=3)} == set(ids[1:])
    assert [await used(fleet, task_id) for task_id in ids[1:]] == [1, 1]  # those now under way alone


@pytest.mark.parametrize(
    ("release", "task_type"),
    [(NEW, "sing"), (None, "sing"), (OLD, "snig")],  # the present release; one that nobody knows; a slip of the pen
)
async def test_a_failure_in_the_current_release_too_counts(
    declared: Fleet, release: str | None, task_type: str
) -> None:
    """As ever: after max_attempts it has failed, and nobody is drained for it."""
    fleet = declared
    (task_id,) = await fleet.submit({"task_type": task_type, "max_attempts": 2})
    agent = await fleet.agent(release=release)
    for outcome in ("requeued", "failed"):
        fleet.wait(60)
        (task,) = await agent.claim()
        assert await agent.fail(task, **UNABLE) == outcome
    assert await attempts(fleet, task_id) == [COUNTED, COUNTED]
    assert (await row(fleet, agent))["metadata"].get("lacks") is None


async def test_a_later_leader_that_declares_nothing_ends_what_was_declared(declared: Fleet) -> None:
    """After a rollback to a leader without releases, an earlier leader's declaration does not count."""
    fleet = declared
    (task_id,) = await fleet.submit({"task_type": "sing"})
    agent = await fleet.agent(release=OLD)
    (task,) = await agent.claim()
    fleet.wait(3601)
    fleet.term += 1
    assert (await fleet.lead("another"))["term"] == fleet.term
    fleet.wait(59)  # it has hardly begun to lead
    assert await agent.fail(task, **UNABLE) == "requeued"
    assert await used(fleet, task_id) == 0
    fleet.wait(60)
    (task,) = await agent.claim()
    assert await agent.fail(task, **UNABLE) == "requeued"
    assert await used(fleet, task_id) == 1


async def test_while_the_release_cannot_start_the_task_is_tried_less_and_less_often(declared: Fleet) -> None:
    """Earlier workers stay and do the rest; at most once in ten minutes one of them sees it again, uncounted."""
    fleet = declared
    (task_id,) = await fleet.submit({"task_type": "sing", "max_attempts": 1})
    agent = await fleet.agent(release=OLD)
    waits = []
    for _ in range(7):
        (task,) = await agent.claim()
        await agent.fail(task, **UNABLE)
        due = datetime.fromisoformat((await fleet.task(task_id))["run_after"])
        waits.append((due - fleet.now).total_seconds())
        fleet.wait(waits[-1])
    assert waits == [60, 120, 240, 480, 600, 600, 600]
    assert (await fleet.task(task_id))["status"] == "Queued"


async def test_a_later_promotion_leaves_other_pauses_alone(declared: Fleet) -> None:
    """What failed keeps its pause, and so does what waits for a worker of another release or pool."""
    fleet = declared
    ids = await fleet.submit({"task_type": "sing"}, {"task_type": "draw"})
    agent = await fleet.agent(release=OLD)
    sing, draw = await agent.claim(batch=2)
    await agent.fail(sing, **UNABLE)
    await agent.fail(draw, code="HANDLER_ERROR")
    await fleet.agent(release=NEW, pool="other")
    await fleet.agent(release=OLD)
    assert [(await fleet.task(task_id))["run_after"] is None for task_id in ids] == [False, False]
    await fleet.agent(release=NEW)
    assert [(await fleet.task(task_id))["run_after"] is None for task_id in ids] == [True, False]


async def test_a_cancelled_task_stays_cancelled_and_a_draining_worker_keeps_draining(declared: Fleet) -> None:
    """Handing back ends what was cancelled; the mark changes no state."""
    fleet = declared
    (task_id,) = await fleet.submit({"task_type": "sing"})
    agent = await fleet.agent(release=OLD)
    (task,) = await agent.claim()
    await fleet.call("task_cancel", p_id=task_id)
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, exit_cause="manual")
    assert await agent.fail(task, **UNABLE) == "cancelled"
    assert (await fleet.task(task_id))["status"] == "Cancelled"
    assert await fleet.status(agent.id) == "terminating"


async def test_a_declaration_needs_the_lead_and_a_shape(fleet: Fleet, db: Any) -> None:
    """As every fleet_* write."""
    store = SqlStore(db, FLEET)
    with pytest.raises(NotLeader):
        await store.declare_release(fleet.term + 1, {"default": NEW}, [])
    with pytest.raises(BadArgument):
        await fleet.fleet("declare_release", p_releases=[], p_task_types=["sing"])


@pytest.mark.parametrize(("task_type", "is_held_back"), [("drwa", False), ("draw", True)])
async def test_a_type_that_no_release_has_says_nothing_about_its_worker(
    declared: Fleet, task_type: str, is_held_back: bool
) -> None:
    """A submitter's misspelt type would end all workers. A worker without a handler that its release has is unfit."""
    fleet = declared
    await fleet.submit(count=6, task_type=task_type)
    agent = await fleet.agent(release=NEW)
    for task in await agent.claim(batch=6):
        await agent.fail(task, **UNABLE)
    assert bool((await row(fleet, agent))["held_back"]) is is_held_back
