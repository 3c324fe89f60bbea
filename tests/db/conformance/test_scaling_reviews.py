"""What a replay of the queue reads, and the reviews of the rules of scaling."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb
from structlog.testing import capture_logs

from orchestrator.adapters.economics_store import EconomicsStore
from orchestrator.adapters.operator_rows import OperatorRows
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.sizes import SizeStep
from orchestrator.core.states import State
from orchestrator.leader_jobs.review_process import ReviewFailed, replayed
from orchestrator.leader_jobs.scaling_reviews import ScalingReviews
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, START, Agent, Fleet

READS: Mapping[str, Mapping[str, Any]] = {
    "fleet_task_history": {"p_pool": None, "p_since": START - timedelta(days=7), "p_until": None, "p_limit": 100},
    "fleet_pool_costs": {"p_since": START - timedelta(days=7), "p_until": None},
    "fleet_scaling_reviews": {},
}


class AtItsTime:
    """A database whose functions are called at the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        return await self._fleet.call(function, **args)


@pytest.fixture
def store(fleet: Fleet) -> EconomicsStore:
    return EconomicsStore(AtItsTime(fleet), FLEET)


def epoch(seconds: float) -> float:
    return (START + timedelta(seconds=seconds)).timestamp()


async def history(fleet: Fleet, **args: Any) -> Any:
    """A page of the runs since the day before the start."""
    asked = {"p_pool": None, "p_since": START - timedelta(days=1), "p_until": None, "p_limit": 100} | args
    return await fleet.call("fleet_task_history", p_fleet=FLEET, **asked)


async def worked(fleet: Fleet, hand: AsyncConnection[DictRow], agent: Agent, run_s: float, outcome: str = "") -> None:
    """One task that arrives now, is claimed 5 s later, and runs for so long."""
    (task_id,) = await fleet.submit()
    await hand.execute("update tasks set created_at = %s where id = %s", (fleet.now, task_id))
    fleet.wait(5)
    (task,) = await agent.claim()
    fleet.wait(run_s)
    if outcome == "failed":
        await agent.fail(task, code="OOM")
    elif outcome == "released":
        await agent.release(task)
    else:
        await agent.complete(task)


@pytest.mark.parametrize("function", [*READS])
async def test_a_read_only_connection_can_read_what_a_replay_needs(
    fleet: Fleet, hand: AsyncConnection[DictRow], function: str
) -> None:
    """It changes nothing."""
    await worked(fleet, hand, await fleet.agent(), 30)
    args = {"p_fleet": FLEET, "p_now": fleet.now, **READS[function]}
    named = ", ".join(f"{name} => %({name})s" for name in args)
    async with hand.transaction():
        await hand.execute("set transaction read only")
        query = f"select public.{function}({named}) as answer"
        (row,) = await (await hand.execute(query.encode(), args)).fetchall()
    assert row["answer"]["now"]


async def test_each_ended_run_is_read_with_its_arrival_and_what_was_returned_unrun_is_not(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """The newest first."""
    agent = await fleet.agent()
    await worked(fleet, hand, agent, 30)
    await worked(fleet, hand, agent, 7, "failed")
    await worked(fleet, hand, agent, 1, "released")
    found = await history(fleet)
    assert found["runs"] == [
        ["default", epoch(35), epoch(40), epoch(47), agent.id],
        ["default", epoch(0), epoch(5), epoch(35), agent.id],
    ]
    assert found["next"] is None
    assert (await history(fleet, p_pool="other"))["runs"] == []


async def test_pages_have_each_run_once_even_if_some_ended_together(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """Three runs end at one moment, which is where a page of three ends."""
    agent = await fleet.agent()
    for run_s in (10, 10, 10, 10, 10):
        await worked(fleet, hand, agent, run_s)
    await hand.execute(
        "update orchestrator.attempts set ended_at = %s where ended_at in (%s, %s)",
        (START + timedelta(seconds=45), START + timedelta(seconds=30), START + timedelta(seconds=60)),
    )
    seen: list[float] = []
    until: str | None = fleet.now.isoformat()
    while until is not None:
        page = await history(fleet, p_until=until, p_limit=4)
        seen += [run[3] for run in page["runs"]]
        until = page["next"]
    assert seen == [epoch(75), epoch(45), epoch(45), epoch(45), epoch(15)]
    assert not (await store.window(START - timedelta(hours=1), most=100)).is_cut


async def test_what_workers_cost_and_how_they_booted_is_known_of_each_pool(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """A boot of 60 s, of which 20 are not billed, 35 s of work and 15 s of ending at $3.60 an hour."""
    worker = await fleet.spawn()
    agent = Agent(fleet, worker, f"launch-{worker}")
    fleet.wait(20)
    await fleet.move(
        worker, State.SPAWNING, nonce=agent.nonce, token_jti="jti", pod_id="pod", price_usd_per_hour=3.6, billed_s=0
    )
    await agent.call("register", p_agent={"protocol": 1})
    fleet.wait(40)
    await fleet.move(worker, State.SPAWNING, State.ACTIVE)
    await worked(fleet, hand, agent, 30)
    await fleet.end(worker, State.ACTIVE)
    fleet.wait(15)
    await fleet.move(worker, State.TERMINATING, State.TERMINATED)
    await hand.execute("update workers set billing_until = terminated_at, created_at = %s", (START,))
    found = await store.window(START - timedelta(days=1), most=100)
    (pool,) = found.pools
    assert pool.costs.usd == pytest.approx(90 * 3.6 / 3_600)
    assert (pool.costs.paid_s, pool.costs.boots, pool.costs.boot_s) == (90, 1, 60)
    assert (pool.costs.unpaid_s, pool.costs.ending_s) == (20, 15)
    assert (pool.tasks, pool.waits_s) == ([RecordedTask(epoch(60), 30.0, "default")], [5.0])
    assert (found.since, found.until, found.is_cut) == (epoch(0), epoch(110), False)


async def test_more_runs_than_are_read_leave_out_the_earliest(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """The window begins where they begin."""
    agent = await fleet.agent()
    for _ in range(5):
        await worked(fleet, hand, agent, 10)
    found = await store.window(START - timedelta(days=1), most=3)
    assert found.is_cut
    assert found.since >= epoch(15)
    assert len(found.pools[0].tasks) == 4  # of two pages


async def test_damaged_rows_harm_only_themselves(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """Ends without number, starts in another century, ends before the start."""
    agent = await fleet.agent()
    for _ in range(4):
        await worked(fleet, hand, agent, 10)
    ends = [START + timedelta(seconds=15 * n) for n in (1, 2, 3)]
    changes = ("started_at = '-infinity'", "started_at = '1816-01-01'", "started_at = ended_at + interval '1 h'")
    for change, end in zip(changes, ends, strict=True):
        await hand.execute(f"update orchestrator.attempts set {change} where ended_at = %s".encode(), (end,))  # noqa: S608
    (pool,) = (await store.window(START - timedelta(days=1), most=100)).pools
    assert (pool.tasks, pool.left_out) == ([RecordedTask(epoch(45), 10.0, "default")], 3)


async def test_a_review_is_made_once_a_day_by_a_process_of_its_own(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """Not in the first day, in which there is too little to say. It follows the rule that operators have chosen."""
    agent = await fleet.agent()
    for _ in range(3):
        await worked(fleet, hand, agent, 30)
    asked: list[str] = []

    async def ask(question: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(question["pool"])
        return await replayed(question)

    def settings(since: datetime, until: datetime) -> dict[str, ScalingSettings]:
        assert until - since == timedelta(days=7)
        sizes = (SizeStep(since.timestamp(), 1, None),)
        return {"default": ScalingSettings(max_active=2, scheduled=sizes), "empty": ScalingSettings()}

    job = ScalingReviews(store, settings, ask)
    await job.step(fleet.term)
    assert asked == []
    await fleet.call("fleet_scaling_policy", p_fleet=FLEET, p_pool="default", p_policy="learned")
    fleet.wait(86_400)
    fleet.term = (await fleet.lead())["term"]
    await job.step(fleet.term)
    await job.step(fleet.term)
    assert asked == ["default"]
    (kept,) = (await store.reviews())["reviews"]
    review = kept["review"]
    assert (review["tasks"], review["in_force"], set(review["candidates"])) == (
        3, "learned", {"fixed", "learned", "cold_start"}
    )  # fmt: skip
    assert review["tomorrow"] in review["candidates"]
    assert review["recorded"]["wait_p95_s"] == 5
    fleet.wait(86_400)
    fleet.term = (await fleet.lead())["term"]
    await job.step(fleet.term)
    assert asked == ["default", "default"]


async def test_a_rule_that_another_version_chose_is_none(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """The settings decide, and a review is made with them."""
    await fleet.call("fleet_scaling_policy", p_fleet=FLEET, p_pool="default", p_policy="learned")
    values: tuple[Any, ...] = ("clever", {}, [1], 1, None)
    for value in values:
        await hand.execute("update fleet_settings set value = %s where name = 'scaling:default'", (Jsonb(value),))
        assert await store.chosen_policies() == {}
        assert await OperatorRows(fleet.db, FLEET).scaling_policies() == {}


@pytest.mark.parametrize("ended", ["-infinity", "infinity", "4000-01-01 BC"])
async def test_an_attempt_of_an_impossible_time_stops_no_review(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore, ended: str
) -> None:
    """The first attempt says from when on there is a history."""
    await worked(fleet, hand, await fleet.agent(), 30)
    await hand.execute("update orchestrator.attempts set ended_at = %s::timestamptz", (ended,))
    first = datetime.fromisoformat((await store.reviews())["first_at"])
    assert fleet.now - timedelta(days=3_700) < first <= fleet.now
    assert (await store.window(START - timedelta(days=1), most=100)).pools[0].tasks == []


async def test_a_replay_that_fails_is_logged_and_keeps_nothing(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """The process gets a question that it cannot read."""
    await worked(fleet, hand, await fleet.agent(), 30)
    fleet.wait(86_400)
    fleet.term = (await fleet.lead())["term"]
    with pytest.raises(ReviewFailed, match="KeyError"):
        await replayed({"pool": "default"})

    async def ask(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ReviewFailed("no answer")

    with capture_logs() as logs:
        await ScalingReviews(store, lambda *_: {"default": ScalingSettings()}, ask).step(fleet.term)
    assert [(one["event"], one["error"]) for one in logs] == [("review_failed", "no answer")]
    assert (await store.reviews())["reviews"] == []


async def test_the_last_review_of_each_pool_is_kept(
    fleet: Fleet, hand: AsyncConnection[DictRow], store: EconomicsStore
) -> None:
    """One of a time that is still to come does not count, so that the pool is reviewed again."""
    for pool in ("b", "a"):
        await store.record_review(fleet.term, pool, {"tomorrow": "fixed"})
    fleet.wait(60)
    await store.record_review(fleet.term, "b", {"tomorrow": "learned"})
    found = await store.reviews()
    assert [(one["pool"], one["review"]["tomorrow"]) for one in found["reviews"]] == [("a", "fixed"), ("b", "learned")]
    assert datetime.fromisoformat(found["reviews"][1]["at"]) == fleet.now
    assert found["first_at"] is None
    await hand.execute("update orchestrator.scaling_reviews set at = '9999-01-01' where pool = 'a'")
    assert [one["pool"] for one in (await store.reviews())["reviews"]] == ["b"]
    fleet.wait(9 * 86_400)
    assert (await store.reviews())["reviews"] == []


async def test_a_review_of_an_earlier_leader_or_of_no_form_is_refused(fleet: Fleet, store: EconomicsStore) -> None:
    with pytest.raises(NotLeader):
        await store.record_review(fleet.term - 1, "a", {})
    refused: tuple[Any, ...] = ([], None, {"x": "y" * 30_000})
    for review in refused:
        with pytest.raises(BadArgument):
            await store.record_review(fleet.term, "a", review)
    with pytest.raises(BadArgument):
        await store.record_review(fleet.term, "no pool\n", {})
