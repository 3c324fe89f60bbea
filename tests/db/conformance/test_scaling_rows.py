"""What scaling keeps in the database: reservations, bring-ups, releases, offers, pauses, declared types."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.store import SqlStore
from orchestrator.core import budget
from orchestrator.core.actions import Adopt
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import EndedBringUp, Pause, PodPrice, ScaleLimit, Spent
from orchestrator.core.policy import TaskType
from orchestrator.core.states import Stage, State
from orchestrator.ports import BadArgument, Db, NotLeader, OverBudget
from tests.db.conformance.builders import FLEET, Agent, Fleet
from tests.db.conformance.loops import daemon_over, executor_over
from tests.unit.core.build import policy, snapshot


@pytest.fixture
def store(db: Db) -> SqlStore:
    """The port under test."""
    return SqlStore(db, FLEET)


def reserving(usd: float, usd_per_hour: float, *, hourly: float | None = None, daily: float | None = None) -> Any:
    """The fields of an intent that reserves so much under such a budget."""
    budget = {"hourly_usd": hourly, "daily_usd": daily, "useful_usd": 0}
    return {"reserved_usd": usd, "reserved_usd_per_hour": usd_per_hour, "budget": budget}


async def spent(fleet: Fleet) -> Spent:
    """Today's money."""
    return Spent(**{name: float(usd) for name, usd in (await fleet.snapshot())["spent"].items()})


@pytest.mark.parametrize("limits", [{"daily": 1.0}, {"hourly": 3.0}])
async def test_reservations_made_at_once_never_add_up_to_more_than_the_budget(
    fleet: Fleet, limits: dict[str, float]
) -> None:
    """Of twenty requests at the same moment with room for ten, exactly ten are recorded."""
    intent = reserving(0.1, 0.3, **limits)
    answers = await asyncio.gather(*(fleet.spawn(f"gpu-{n}", **intent) for n in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, str) for answer in answers) == 10
    assert sum(isinstance(answer, OverBudget) for answer in answers) == 10
    assert (await spent(fleet)).committed_usd == pytest.approx(1.0)


async def test_a_refused_reservation_shows_its_arithmetic(fleet: Fleet) -> None:
    """For each budget, with the setting's name."""
    await fleet.spawn(**reserving(0.4, 1.5))
    with pytest.raises(OverBudget, match=r"\$1\.5000/h running \+ \$1\.0000/h > MAX_HOURLY_COST_USD=2"):
        await fleet.spawn(**reserving(0.1, 1, hourly=2))
    with pytest.raises(OverBudget, match=r"\$0\.0000 spent \+ \$0\.4000 committed \+ \$0\.7000 > DAILY_BUDGET_USD=1"):
        await fleet.spawn(**reserving(0.7, 1, daily=1))


async def test_a_repeated_intent_does_not_count_against_itself(fleet: Fleet) -> None:
    """The reply to the first was lost: the second finds its row."""
    intent = reserving(0.6, 1, daily=1)
    await fleet.spawn("gpu-1", **intent)
    answer = await fleet.fleet("spawn", p_worker={"id": "gpu-1", **intent})
    assert answer == {"created": False}


async def test_the_next_offer_must_fit_too(fleet: Fleet) -> None:
    """A move to a more expensive offer replaces the reservation. If it does not fit, nothing changes."""
    worker_id = await fleet.spawn(**reserving(0.4, 1, hourly=2))
    await fleet.move(worker_id, State.SPAWNING, stage=Stage.POD_CREATED, **reserving(0.7, 2, hourly=2))
    assert (await spent(fleet)).committed_usd == pytest.approx(0.7)
    with pytest.raises(OverBudget):
        await fleet.move(worker_id, State.SPAWNING, stage=Stage.INTENT, **reserving(0.9, 2.5, hourly=2))
    assert (await spent(fleet)).hourly_usd == pytest.approx(2)


async def test_the_price_of_a_pod_replaces_that_of_its_offer(fleet: Fleet, store: SqlStore) -> None:
    """What its end may cost is reserved at the price that RunPod bills, which may be higher than the catalogue's."""
    rules = policy(fleet_id=FLEET)
    await fleet.spawn("gpu-1", **budget.reservation(1.0, rules))
    executor = executor_over(store, None, rules)
    seen = snapshot(*(await store.snapshot()).workers)
    await executor.start(fleet.term, seen, (Adopt("gpu-1", "pod-1", "the reply was lost", 3.0),))
    committed_usd = 3.0 * budget.wind_down_s(rules) / budget.HOUR_S
    assert (await spent(fleet)).committed_usd == pytest.approx(committed_usd)


async def test_a_price_that_a_list_shows_later_raises_the_reservation(fleet: Fleet) -> None:
    """The create reply may lack it; an unexpectedly low one releases nothing."""
    worker_id = await fleet.spawn(**reserving(0.4, 1))
    await fleet.move(worker_id, State.SPAWNING, stage=Stage.POD_RUNNING, pod_id="p", price_usd_per_hour=3)
    assert (await spent(fleet)).committed_usd == pytest.approx(1.2)
    await fleet.move(worker_id, State.SPAWNING, price_usd_per_hour=0.5)
    assert (await spent(fleet)).committed_usd == pytest.approx(0.4)


async def test_todays_spend_is_the_booked_and_the_running_cost(fleet: Fleet) -> None:
    """An hour at 3.60 dollars, half of it before midnight UTC: half of it counts."""
    fleet.now = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent(State.ACTIVE, **reserving(0.5, 3.6))
    await fleet.end(agent.id, State.ACTIVE)
    fleet.wait(600)
    assert (await spent(fleet)).today_usd == pytest.approx(0.6)
    fleet.wait(3000)
    assert (await spent(fleet)).today_usd == pytest.approx(1.8)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    money = await spent(fleet)
    assert money.today_usd == pytest.approx(1.8)
    assert (money.committed_usd, money.hourly_usd) == (0, 0)
    fleet.wait(86_400)
    assert await spent(fleet) == Spent(0, 0, 0)


async def test_a_pod_whose_price_is_never_shown_costs_what_was_reserved(fleet: Fleet) -> None:
    """While it runs and once it is booked; its task and the bill of the fleet count the same dollar."""
    began = fleet.now
    worker_id = await fleet.spawn(**reserving(0.2, 1))
    await fleet.move(worker_id, State.SPAWNING, nonce="launch", token_jti="jti", pod_id="pod-1")
    agent = Agent(fleet, worker_id, "launch")
    await agent.call("register", p_agent={"protocol": 1})
    await fleet.move(worker_id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
    await fleet.submit()
    (task,) = await agent.claim()
    fleet.wait(3600)
    assert (await spent(fleet)).today_usd == pytest.approx(1)
    window = {"p_since": began, "p_until": None}
    running = await fleet.call("fleet_cost", p_fleet=FLEET, **window)
    await agent.complete(task)
    await fleet.end(worker_id, State.ACTIVE)
    await fleet.move(worker_id, State.TERMINATING, State.TERMINATED)
    assert (await spent(fleet)).today_usd == pytest.approx(1)
    booked = await fleet.call("fleet_cost", p_fleet=FLEET, **window)
    assert [(bill["usd"], [one["usd"] for one in bill["tasks"]]) for bill in (running, booked)] == [(1, [1])] * 2
    assert (await fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id))["worker"]["cost_usd"] == 1


async def test_a_price_of_zero_is_a_price(fleet: Fleet) -> None:
    """One that somebody wrote: the reservation does not replace it."""
    worker_id = await fleet.spawn(**reserving(0.2, 1))
    await fleet.move(worker_id, State.SPAWNING, pod_id="pod-1", price_usd_per_hour=0)
    fleet.wait(3600)
    assert (await spent(fleet)).today_usd == 0
    await fleet.end(worker_id, State.SPAWNING)
    await fleet.move(worker_id, State.TERMINATING, State.TERMINATED)
    assert (await spent(fleet)).today_usd == 0


async def test_the_reservation_for_ending_is_used_up_while_a_worker_ends(fleet: Fleet) -> None:
    """A terminating worker commits what is left of its reservation."""
    agent = await fleet.agent(State.ACTIVE, **reserving(0.5, 3.6))
    assert (await spent(fleet)).committed_usd == pytest.approx(0.5)
    await fleet.end(agent.id, State.ACTIVE)
    fleet.wait(400)
    assert (await spent(fleet)).committed_usd == pytest.approx(0.1)
    fleet.wait(400)
    assert (await spent(fleet)).committed_usd == 0


async def test_another_fleets_money_is_its_own(fleet: Fleet) -> None:
    """A budget is of one environment."""
    await fleet.call("fleet_spawn", p_fleet="other", p_term=None, p_worker={"id": "gpu-x", **reserving(9, 9)})
    await fleet.spawn(**reserving(0.9, 1, daily=1, hourly=1))


async def test_ended_bringups_tell_how(fleet: Fleet, store: SqlStore) -> None:
    """The newest last: promoted, or with cause and code; and what a GPU of its pod cost."""
    fleet.now = datetime.now(UTC)  # the store asks by the real clock
    fleet.term = (await fleet.lead())["term"]
    good = await fleet.agent(State.TERMINATED, release="image@1")
    fleet.wait(10)
    bad = await fleet.spawn(release="image@2", pool="b", gpu_count=2, metadata={"offer": "A40||SECURE"})
    await fleet.move(bad, State.SPAWNING, pod_id="pod-bad", price_usd_per_hour=3.0)
    await fleet.move(
        bad, State.SPAWNING, State.TERMINATING, exit_cause=ExitCause.SPAWN_FAILED, failure_code="NO_RUNTIME"
    )
    await fleet.spawn()
    seen = await fleet.snapshot()
    assert [bring_up["worker_id"] for bring_up in seen["ended"]] == [good.id, bad]
    assert seen["promoted_releases"] == ["image@1"]
    failed = EndedBringUp(
        bad, "b", fleet.now, False, ExitCause.SPAWN_FAILED, "NO_RUNTIME", "image@2", offer="A40||SECURE"
    )
    assert (await store.snapshot()).ended[-1] == failed


async def test_the_newest_price_of_an_offer_is_known_and_how_often_it_was_too_high(
    fleet: Fleet, store: SqlStore
) -> None:
    """Of all pools, by the time of the pod, also if an earlier and cheaper one lives; after a new leader as before."""
    fleet.now = datetime.now(UTC)
    fleet.term = (await fleet.lead())["term"]

    async def pod(usd: float | None, cause: ExitCause | None, pool: str = "default", **intent: Any) -> datetime:
        fleet.wait(10)
        name, made_at = await fleet.spawn(pool=pool, metadata={"offer": "A40||SECURE"}, **intent), fleet.now
        await fleet.move(name, State.SPAWNING, pod_id=f"pod-{name}", price_usd_per_hour=usd)
        if cause is None:
            await fleet.move(name, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
        else:
            fleet.wait(1)
            await fleet.move(name, State.SPAWNING, State.TERMINATING, exit_cause=cause)
        return made_at

    live_at = await pod(0.6, None)
    assert (await store.snapshot()).pod_prices == (PodPrice("A40||SECURE", 0.6, live_at, None, 0),)
    for n, pool in enumerate(("default", "other"), start=1):
        made_at = await pod(11.8, ExitCause.BUDGET, pool, gpu_count=2)
        found = PodPrice("A40||SECURE", 5.9, made_at, made_at + timedelta(seconds=1), n)
        assert (await store.snapshot()).pod_prices == (found,)
    await pod(None, ExitCause.SPAWN_FAILED)
    assert (await store.snapshot()).pod_prices == (found,)
    made_at = await pod(0.7, ExitCause.SPAWN_FAILED)
    found = PodPrice("A40||SECURE", 0.7, made_at, made_at + timedelta(seconds=1), 0)
    assert (await store.snapshot()).pod_prices == (found,)


async def test_the_bringup_of_a_promoted_worker_says_how_the_worker_ended(fleet: Fleet) -> None:
    """Whether it has completed a task, and when it began to end and why; its burial changes nothing of that."""
    await fleet.submit()
    agent = await fleet.agent(State.ACTIVE)
    (bring_up,) = (await fleet.snapshot())["ended"]
    assert (bring_up["promoted"], bring_up["exit_cause"], bring_up["ending_since"], bring_up["worked"]) == (
        True,
        None,
        None,
        False,
    )
    (task,) = await agent.claim()
    await agent.complete(task)
    fleet.wait(20)
    await fleet.move(
        agent.id, State.ACTIVE, State.TERMINATING, exit_cause=ExitCause.HEARTBEAT_LOST, failure_code="NO_PROCESS"
    )
    fell = fleet.now
    fleet.wait(20)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    (bring_up,) = (await fleet.snapshot())["ended"]
    assert (datetime.fromisoformat(bring_up["ending_since"]), bring_up["worked"]) == (fell, True)
    assert (bring_up["exit_cause"], bring_up["failure_code"]) == (ExitCause.HEARTBEAT_LOST, "NO_PROCESS")


async def test_bringups_are_kept_for_a_day_and_a_hundred_of_each_pool(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """The breaker needs to look back to the last success, not for ever."""
    for pool, count in (("a", 101), ("b", 2)):
        for _ in range(count):
            await fleet.spawn(pool=pool)
    await hand.execute("update workers set status = 'terminating', exit_cause = 'spawn_failed'")
    await hand.execute("update workers set bringup_ended_at = %s", (fleet.now,))
    pools = [bring_up["pool"] for bring_up in (await fleet.snapshot())["ended"]]
    assert (pools.count("a"), pools.count("b")) == (100, 2)
    fleet.wait(86_400)
    assert (await fleet.snapshot())["ended"] == []


async def test_a_release_is_proven_for_thirty_days_after_its_last_promotion(fleet: Fleet) -> None:
    """By any worker of the fleet."""
    await fleet.agent(State.ACTIVE, release="image@1")
    fleet.wait(20 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    await fleet.agent(State.ACTIVE, release="image@1")
    fleet.wait(20 * 86_400)
    assert (await fleet.snapshot())["promoted_releases"] == ["image@1"]
    fleet.wait(11 * 86_400)
    assert (await fleet.snapshot())["promoted_releases"] == []


async def test_the_slowest_task_of_each_worker_is_named(fleet: Fleet) -> None:
    """With when it last told of progress, where a program of the user's own may run them side by side."""
    await fleet.submit(count=2)
    agent = await fleet.agent(State.ACTIVE, own_program=True)
    first, second = await agent.claim(batch=2)
    began = fleet.now
    fleet.wait(30)
    for task, progress in ((first, {"fraction": 0.5}), (second, None)):
        await agent.beat({"id": task["id"], "attempt": 1, "progress": progress})
    (worker,) = (await fleet.snapshot())["workers"]
    assert (worker["slowest_task"], datetime.fromisoformat(worker["progress_at"])) == (second["id"], began)


async def test_an_offers_probe_budget_doubles_with_each_success(fleet: Fleet, store: SqlStore) -> None:
    """One after a refusal; without limit while it was never refused."""

    async def note(*, refused: bool) -> Any:
        await fleet.fleet("note_offer", p_key="GPU|*|SECURE", p_refused=refused, p_code="NO_CAPACITY")
        return (await store.snapshot()).offers["GPU|*|SECURE"].probe_budget

    assert [await note(refused=False) for _ in range(3)] == [None] * 3
    assert await note(refused=True) == 1
    assert [await note(refused=False) for _ in range(3)] == [2, 4, 8]
    assert await note(refused=True) == 1


async def test_pauses_hold_for_a_pool_or_all_and_end_by_themselves(fleet: Fleet) -> None:
    """Tasks of a paused pool are counted as paused, not as demand."""

    async def paused(**changes: Any) -> Any:
        return await fleet.call(
            "fleet_pause", **({"p_fleet": FLEET, "p_pool": None, "p_reason": "x", "p_for_s": None} | changes)
        )

    await fleet.submit({"pool": "a"}, {"pool": "b"})
    await paused(p_pool="a", p_for_s=60)
    demand = {d["pool"]: (d["claimable"], d["blocked"]["paused"]) for d in (await fleet.snapshot())["demand"]}
    assert demand == {"a": (0, 1), "b": (1, 0)}
    fleet.wait(60)
    assert (await fleet.snapshot())["paused"] == {}
    await paused(p_pool="a")
    assert set((await paused())["paused"]) == {"*", "a"}
    assert [d["claimable"] for d in (await fleet.snapshot())["demand"]] == [0, 0]
    assert set((await paused(p_reason=None, p_pool="a"))["paused"]) == {"*"}
    await paused(p_pool="b")
    assert (await paused(p_reason=None))["paused"] == {}
    with pytest.raises(BadArgument, match="must last longer"):
        await paused(p_for_s=0)


async def test_a_pause_is_decoded(fleet: Fleet, store: SqlStore) -> None:
    """The reason and, where it has one, the end."""
    assert await store.pause("stock-taking") == {"*": {"reason": "stock-taking", "until": None}}
    assert (await store.snapshot()).paused == {"*": Pause("stock-taking", None)}


async def test_a_limit_of_workers_holds_for_a_pool_or_the_fleet_and_ends_by_itself(fleet: Fleet) -> None:
    """A second one of the same pool takes the place of the first; one of the fleet is apart."""

    async def limits(pool: str | None, most: int | None, for_s: float | None = 60) -> Any:
        args = {"p_pool": pool, "p_most": most, "p_reason": "a demo", "p_for_s": for_s}
        found = (await fleet.call("fleet_scale_limit", p_fleet=FLEET, **args))["limits"]
        assert (await fleet.snapshot())["scale_limits"] == found
        return {name: one["most"] for name, one in found.items()}

    assert await limits("a", 8) == {"a": 8}
    assert await limits("a", 3) == {"a": 3}
    assert await limits(None, 9, 120) == {"a": 3, "*": 9}
    assert await limits("b", 1, 120) == {"a": 3, "b": 1, "*": 9}
    fleet.wait(60)
    assert set((await fleet.snapshot())["scale_limits"]) == {"b", "*"}
    assert await limits("b", None) == {"*": 9}
    await limits("a", 8)
    assert await limits(None, None) == {}


async def test_a_limit_of_workers_is_decoded(store: SqlStore) -> None:
    """The number, the reason and the end."""
    limits = await store.limit_workers(8, "a demo", pool="a", for_s=60)
    assert limits == await store.scale_limits()
    until = datetime.fromisoformat(limits["a"]["until"])
    assert (await store.snapshot()).scale_limits == {"a": ScaleLimit("a", 8, "a demo", until)}


async def test_a_limit_without_end_or_below_one_is_refused(fleet: Fleet, store: SqlStore) -> None:
    """A pause is for none at all."""
    for most, for_s in ((0, 60), (-1, 60), (100_001, 60), (3, 0), (3, 31_536_001)):
        with pytest.raises(BadArgument, match="limit"):
            await store.limit_workers(most, "x", for_s=for_s)
    with pytest.raises(BadArgument, match="at most a year"):
        await fleet.call("fleet_scale_limit", p_fleet=FLEET, p_pool=None, p_most=3, p_reason="x", p_for_s=None)
    args = {"p_actor": "x", "p_action": "pool.limit", "p_subject": "*", "p_args": {"for_s": 60}}
    with pytest.raises(BadArgument, match="how many"):
        await fleet.call("fleet_act", p_fleet=FLEET, **args)
    assert await store.scale_limits() == {}


async def test_a_limit_and_its_end_are_audited(fleet: Fleet, store: SqlStore) -> None:
    """With who asked, how many, for how long and why."""
    await store.limit_workers(8, "a demo", pool="a", for_s=60, actor="ops")
    await store.limit_workers(None, pool="a", actor="ops")
    entries = (await fleet.call("fleet_audit", p_fleet=FLEET, p_before=None, p_limit=10, p_subject=None))["entries"]
    assert [(one["actor"], one["action"], one["subject"]) for one in entries] == [
        ("ops", "pool.unlimit", "a"),
        ("ops", "pool.limit", "a"),
    ]
    assert entries[1]["detail"] == {"most": 8, "reason": "a demo", "for_s": 60}


async def test_a_task_gets_the_defaults_declared_for_its_type(fleet: Fleet, store: SqlStore) -> None:
    """Pool, limit and attempts, unless it says so itself; an undeclared type gets the defaults."""
    await store.declare_pools(fleet.term, [TaskType("train", "training", 7200, 1), TaskType("draw", None, 60, None)])
    own = {"task_type": "train", "pool": "default", "timeout_s": 5, "max_attempts": 9}
    ids = await fleet.submit({"task_type": "train"}, {"task_type": "draw"}, own, {"task_type": "other"})
    rows = [await fleet.task(task_id) for task_id in ids]
    assert [(row["pool"], row["timeout_s"], row["max_attempts"]) for row in rows] == [
        ("training", 7200, 1),
        ("default", 60, 3),
        ("default", 5, 9),
        ("default", None, 3),
    ]


async def test_queued_tasks_follow_their_type_unless_they_named_a_pool(fleet: Fleet, store: SqlStore) -> None:
    """After a change of POOLS_FILE, the values of queued tasks are filled in again; running tasks keep theirs."""
    await store.declare_pools(fleet.term, [TaskType("train", "training", None, None)])
    own = {"task_type": "train", "pool": "training"}
    ids = await fleet.submit({"task_type": "train"}, own, {"task_type": "train"}, {"task_type": "draw"})
    agent = await fleet.agent(pool="training")
    await agent.claim()
    for declared, pools in (
        ([TaskType("train", "large", None, None)], ["training", "training", "large", "default"]),
        ([TaskType("draw", "large", None, None)], ["training", "training", "default", "large"]),
    ):
        await store.declare_pools(fleet.term, declared)
        assert [(await fleet.task(task_id))["pool"] for task_id in ids] == pools


async def test_a_task_that_comes_back_follows_its_type(fleet: Fleet, store: SqlStore) -> None:
    """It ran while POOLS_FILE changed; a declaration that changes nothing looks through nothing."""
    train = TaskType("train", "training", None, None)
    await store.declare_pools(fleet.term, [train])
    (task_id,) = await fleet.submit({"task_type": "train"})
    agent = await fleet.agent(pool="training")
    await agent.claim()
    await store.declare_pools(fleet.term, [replace(train, pool="large")])
    assert (await fleet.task(task_id))["pool"] == "training"
    await fleet.fleet("rescue", p_worker_id=agent.id)
    row = await fleet.task(task_id)
    assert (row["status"], row["pool"]) == ("Queued", "large")


async def test_a_row_that_a_project_inserts_itself_is_routed_too(
    fleet: Fleet, store: SqlStore, hand: AsyncConnection[DictRow]
) -> None:
    """Existing projects write into `tasks` without asking a function."""
    await store.declare_pools(fleet.term, [TaskType("train", "training", None, 2)])
    await hand.execute("insert into tasks (task_type) values ('train'), ('x')")
    query = "select pool, max_attempts from orchestrator.live order by task_type"
    rows = await (await hand.execute(query)).fetchall()
    assert rows == [{"pool": "training", "max_attempts": 2}, {"pool": "default", "max_attempts": 3}]


async def test_a_declaration_that_is_no_longer_made_is_forgotten(fleet: Fleet, store: SqlStore) -> None:
    """A declaration is the whole truth of its fleet, and needs the lead."""
    await store.declare_pools(fleet.term, [TaskType("train", "training", None, None)])
    await store.declare_pools(fleet.term, [TaskType("draw", "training", None, None)])
    ids = await fleet.submit({"task_type": "train"}, {"task_type": "draw"})
    assert [(await fleet.task(task_id))["pool"] for task_id in ids] == ["default", "training"]
    with pytest.raises(NotLeader):
        await store.declare_pools(fleet.term + 1, [])
    with pytest.raises(BadArgument):
        await store.declare_pools(fleet.term, [TaskType("train", "no such name!", None, None)])


async def test_a_process_that_leads_again_declares_again(
    db: Db, store: SqlStore, hand: AsyncConnection[DictRow]
) -> None:
    """What another leader declared meanwhile, of another release, counts no longer; nor does what it said before."""
    rules = policy(fleet_id=FLEET, handled=("sing",), task_types=(TaskType("sing", "default", 60.0, 2),))
    one = daemon_over(store, db, None, rules)

    async def declared() -> tuple[Any, ...]:
        settings = "select name, value - 'term' as value from fleet_settings where name in ('release', 'programs')"
        types = "select task_type, pool, timeout_s, max_attempts from task_types"
        return tuple([await (await hand.execute(f"{query} order by 1")).fetchall() for query in (settings, types)])

    await one.once()
    first = await declared()
    term = (await store.lead("another", 60)).term
    await store.declare_pools(term, ())
    await store.declare_programs(term, ["default"], 60)
    await store.declare_release(term, {"default": "another"}, [])
    assert all(was != now for was, now in zip(first, await declared(), strict=True))
    await store.resign("another", term)
    await one.once()
    assert await declared() == first
    query = "select value->'term' as term from fleet_settings where name = 'release'"
    assert await (await hand.execute(query)).fetchall() == [{"term": term + 1}]
