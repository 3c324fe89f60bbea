"""What the learned rule of scaling reads and keeps: runs of tasks, open tasks, statistics, and operators' choices."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.store import SqlStore
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.stored import as_json
from orchestrator.core.states import State
from orchestrator.loop.learning import LAG_S, Learning
from orchestrator.ports import BadArgument, NotLeader, PoolHistory, Unavailable
from tests.db.conformance.builders import FLEET, START, Agent, Fleet, rows_read
from tests.unit.core.build import policy

RUNS = "select * from orchestrator.task_runs(%s, %s, %s, %s, %s)"


def at(seconds: float) -> datetime:
    """A moment of the fleet's clock."""
    return START + timedelta(seconds=seconds)


async def runs(
    hand: AsyncConnection[DictRow], pool: str | None = None, since_s: float = -1, limit: int = 100, fleet: str = FLEET
) -> list[dict[str, Any]]:
    """The runs until an hour after the start, the newest first."""
    return await (await hand.execute(RUNS, (fleet, pool, at(since_s), at(3600), limit))).fetchall()


async def complete_one(agent: Agent, run_s: float) -> str:
    """Run the next task for so long; its id."""
    (task,) = await agent.claim()
    agent.fleet.wait(run_s)
    await agent.complete(task)
    return str(task["id"])


async def created(hand: AsyncConnection[DictRow], task_id: str, seconds: float) -> None:
    """Let a task have been created then."""
    await hand.execute("update tasks set created_at = %s where id = %s", (at(seconds), task_id))


async def test_a_run_has_its_arrival_start_end_pool_and_worker(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The task waited from its creation until the claim."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    fleet.wait(10)
    await complete_one(agent, 5)
    (run,) = await runs(hand)
    assert (run["arrived_at"], run["started_at"], run["ended_at"]) == (at(0), at(10), at(15))
    assert (str(run["task_id"]), run["attempt"], run["outcome"]) == (task, 1, "complete")
    assert (run["pool"], run["worker_id"]) == ("default", agent.id)


async def test_a_task_arrives_when_its_time_has_come(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Before that, no worker could have run it; also if the audit has looked at it meanwhile."""
    (task,) = await fleet.submit({"run_after": at(60).isoformat()})
    await created(hand, task, 0)
    agent = await fleet.agent()
    fleet.wait(70)
    (claimed,) = await agent.claim()
    fleet.wait(30)
    await fleet.maintain(6)
    await agent.complete(claimed)
    (run,) = await runs(hand)
    assert (run["arrived_at"], run["started_at"], run["ended_at"]) == (at(60), at(70), at(100))


async def test_a_task_arrives_when_what_it_needs_has_ended(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The later one of two."""
    first, second = await fleet.submit(count=2)
    (last,) = await fleet.submit({"depends_on": [first, second]})
    for task in (first, second, last):
        await created(hand, task, 0)
    agent = await fleet.agent()
    await complete_one(agent, 20)
    await complete_one(agent, 30)
    fleet.wait(7)
    assert await complete_one(agent, 1) == last
    newest, *_ = await runs(hand)
    assert (newest["arrived_at"], newest["started_at"]) == (at(50), at(57))


async def test_a_later_attempt_arrives_when_the_one_before_has_ended(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Or after the pause that the failure caused."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    fleet.wait(10)
    await agent.release(claimed)
    fleet.wait(30)
    await complete_one(agent, 5)
    newest, oldest = await runs(hand)
    assert (oldest["attempt"], oldest["outcome"], oldest["arrived_at"]) == (1, "released", at(0))
    assert (newest["attempt"], newest["arrived_at"], newest["started_at"]) == (2, at(10), at(40))


async def test_the_run_of_a_deleted_task_arrives_at_its_start(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Nothing is known of the time before."""
    (task,) = await fleet.submit()
    await created(hand, task, 0)
    agent = await fleet.agent()
    fleet.wait(10)
    await complete_one(agent, 5)
    await hand.execute("delete from tasks where id = %s", (task,))
    (run,) = await runs(hand)
    assert run["arrived_at"] == run["started_at"] == at(10)


async def test_runs_are_those_of_a_fleet_a_pool_and_a_window(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The newest ones, if there are more than asked for."""
    default, other = await fleet.agent(), await fleet.agent(pool="other")
    await fleet.submit(count=3)
    await fleet.submit({"pool": "other"})
    for _ in range(3):
        await complete_one(default, 10)  # end at 10, 20 and 30 s
    await complete_one(other, 10)
    ends = [(run["pool"], run["ended_at"]) for run in await runs(hand)]
    assert ends == [("other", at(40)), *(("default", at(seconds)) for seconds in (30, 20, 10))]
    assert [run["ended_at"] for run in await runs(hand, "default", since_s=10)] == [at(30), at(20)]
    assert [run["ended_at"] for run in await runs(hand, "default", limit=1)] == [at(30)]
    assert [run["pool"] for run in await runs(hand, "other")] == ["other"]
    assert await runs(hand, fleet="another") == []
    assert await fleet.status(default.id) == State.ACTIVE


class StoppedClock:
    """A database whose calls happen at the fleet's time; it may be unavailable for these functions."""

    def __init__(self, fleet: Fleet, *away: str) -> None:
        self._fleet, self.away = fleet, away

    async def call(self, function: str, /, **args: Any) -> Any:
        """Call a function now."""
        if function in self.away:
            raise Unavailable("gone")
        return await self._fleet.call(function, **args)


def store_of(fleet: Fleet) -> SqlStore:
    """The leader's rows, on the fleet's clock."""
    return SqlStore(StoppedClock(fleet), FLEET)  # type: ignore[arg-type]


async def history(fleet: Fleet, since_s: float | None = 0.0, pool: str = "default") -> PoolHistory:
    """What has happened in a pool since a moment of the fleet's clock."""
    since = None if since_s is None else at(since_s).timestamp()
    return (await store_of(fleet).histories({pool: since}))[pool]


def seconds(moments: Any) -> list[float]:
    """Moments as seconds of the fleet's clock."""
    return sorted(moment - START.timestamp() for moment in moments)


async def test_a_history_has_runs_open_tasks_and_busy_workers(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """One task has ended, one runs, two wait; one of these was there before."""
    for second in (-5, 1, 2, 3):
        (task,) = await fleet.submit()
        await created(hand, task, second)
    agent = await fleet.agent()
    fleet.wait(10)
    await complete_one(agent, 5)
    await agent.claim()
    fleet.wait(20)
    found = await history(fleet)
    ((run, worker),) = found.runs
    assert (worker, seconds(run)) == (agent.id, [-5, 10, 15])
    assert (found.open_tasks, seconds(found.opened), seconds(found.waiting)) == (3, [1, 2, 3], [2, 3])
    assert {name: moment - START.timestamp() for name, moment in found.busy_since.items()} == {agent.id: 15}
    later = await history(fleet, since_s=15)
    assert (later.runs, later.open_tasks, later.opened) == ((), 3, ())


async def test_an_open_task_arrives_when_it_could_have_run(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Its time has come; what it needs has ended; the attempt before has ended, and the pause after it."""
    (timed,) = await fleet.submit({"run_after": at(60).isoformat()})
    await created(hand, timed, 0)
    agent = await fleet.agent()
    fleet.wait(70)
    await fleet.pass_time()
    assert seconds((await history(fleet)).waiting) == [60]
    await complete_one(agent, 5)
    (first,) = await fleet.submit()
    (second,) = await fleet.submit({"depends_on": [first]})
    await created(hand, first, 1)
    await created(hand, second, 2)
    await complete_one(agent, 25)  # until 100
    fleet.wait(10)
    assert seconds((await history(fleet)).waiting) == [100]
    (task,) = await agent.claim()
    fleet.wait(10)
    await agent.release(task)  # at 120
    assert seconds((await history(fleet)).waiting) == [120]


@pytest.mark.parametrize("found", [*ReviewCandidate, None, "magic", {"x": 1}])
async def test_a_history_has_the_rule_of_the_last_review(
    fleet: Fleet, hand: AsyncConnection[DictRow], found: object
) -> None:
    """For two days, and not before its time. A name that nobody knows is no rule."""
    await hand.execute(
        "insert into orchestrator.scaling_reviews (fleet, pool, at, review) values (%s, 'default', %s, %s)",
        (FLEET, fleet.now, Jsonb({"tomorrow": found})),
    )
    assert (await history(fleet)).reviewed == (found if isinstance(found, ReviewCandidate) else None)
    fleet.wait(2 * 86_400)
    assert (await history(fleet)).reviewed is None
    await hand.execute("update orchestrator.scaling_reviews set at = '9999-01-01'")
    assert (await history(fleet)).reviewed is None


@pytest.mark.parametrize("started", ["-infinity", "infinity", "2016-01-01"])
async def test_a_run_that_cannot_be_true_is_not_learned(
    fleet: Fleet, hand: AsyncConnection[DictRow], started: str
) -> None:
    """The others are."""
    agent = await fleet.agent()
    await fleet.submit(count=2)
    damaged = await complete_one(agent, 5)
    await complete_one(agent, 7)
    await hand.execute(
        "update orchestrator.attempts set started_at = %s::timestamptz where task_id = %s", (started, damaged)
    )
    assert [run.ended - run.started for run, _ in (await history(fleet)).runs] == [7]


@pytest.mark.parametrize("moment", ["-infinity", "infinity", "4000-01-01 BC"])
async def test_the_times_of_open_tasks_are_moments_until_now(
    fleet: Fleet, hand: AsyncConnection[DictRow], moment: str
) -> None:
    """Whatever a user has written."""
    await fleet.submit(count=2)
    await hand.execute("update orchestrator.live set created_at = %s::timestamptz", (moment,))
    found = await history(fleet)
    assert found.open_tasks == 2
    assert all(0 <= at <= found.now for at in (*found.waiting, *found.opened))
    agent = await fleet.agent()
    await agent.claim()
    await hand.execute("update orchestrator.live set claimed_at = %s::timestamptz where state = 'running'", (moment,))
    assert all(0 <= at <= found.now for at in (await history(fleet)).busy_since.values())


async def test_a_history_is_that_of_one_pool_and_fleet(fleet: Fleet) -> None:
    """Tasks that wait belong to every fleet of the database."""
    await fleet.submit({"pool": "other"})
    agent = await fleet.agent(pool="other")
    await complete_one(agent, 5)
    await fleet.submit({"pool": "other"})
    await agent.claim()
    assert len((await history(fleet, pool="other")).runs) == 1
    found = await history(fleet)
    assert (found.runs, found.open_tasks, found.busy_since) == ((), 0, {})


async def test_statistics_are_kept_by_the_leader(fleet: Fleet) -> None:
    """One row of a pool; the next history begins where they end."""
    store, known = store_of(fleet), Statistics(boot_s=70.0, boots=3)
    assert (await history(fleet, None)).stored is None
    for until_s in (30, 50):
        await store.learn(fleet.term, {"default": (known, at(until_s).timestamp())})
    fleet.wait(100)
    found = await history(fleet, None)
    assert found.stored is not None
    assert (as_json(found.stored), seconds([found.since])) == (as_json(known), [50])
    with pytest.raises(NotLeader):
        await store.learn(fleet.term - 1, {"default": (known, 0.0)})


async def test_a_history_goes_back_fourteen_days_at_most(fleet: Fleet) -> None:
    """Without statistics, and with old ones."""
    days = -14 * 86_400
    assert seconds([(await history(fleet, None)).since]) == [days]
    await store_of(fleet).learn(fleet.term, {"default": (Statistics(60.0), at(days - 5).timestamp())})
    assert seconds([(await history(fleet, None)).since]) == [days]


async def test_more_runs_than_one_answer_has_begin_with_the_newest(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """The history then begins later."""
    agent = await fleet.agent()
    await hand.execute(
        """insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at)
           select gen_random_uuid(), 1, %s, 'n', 1, %s::timestamptz, %s::timestamptz + n * interval '1 second'
             from generate_series(1, 10100) n""",
        (agent.id, at(-20_000), at(-20_000)),
    )
    found = await history(fleet, -86_400)
    assert (len(found.runs), seconds([found.since])) == (10_000, [-20_000 + 101])
    await hand.execute("delete from orchestrator.attempts")


async def test_the_statistics_of_a_lost_row_are_learned_from_the_runs(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """They equal those that were kept from tick to tick."""
    await fleet.submit(count=4)
    agent, store = await fleet.agent(), store_of(fleet)
    rules = policy(fleet_id=FLEET, pool={"scaling_policy": ScalingPolicy.LEARNED})
    learning = Learning(store, rules)
    for _ in range(4):
        await complete_one(agent, 7)
        fleet.wait(20)
        await learning.read(await store.snapshot())
    fleet.wait(120)
    kept = (await learning.read(await store.snapshot()))["default"].known
    await learning.keep(fleet.term)
    (row,) = await (await hand.execute("select * from orchestrator.scaling_statistics")).fetchall()
    assert row["until"] == fleet.now - timedelta(seconds=LAG_S)
    again = (await Learning(store, rules).read(await store.snapshot()))["default"].known
    assert as_json(again) == as_json(kept)
    assert kept.runs == 4
    for broken in ({"form": 1, "boot_s": "x"}, "text", None):
        await hand.execute("update orchestrator.scaling_statistics set statistics = %s", (Jsonb(broken),))
        rebuilding = Learning(store, rules)
        await rebuilding.read(await store.snapshot())
        rebuilt = (await rebuilding.read(await store.snapshot()))["default"].known
        assert as_json(rebuilt) == as_json(kept), broken


async def test_a_tick_goes_on_without_the_history(fleet: Fleet) -> None:
    """What is known stays, without the tasks that waited then; nothing is stored, and the next tick tries again."""
    clock = StoppedClock(fleet)
    store = SqlStore(clock, FLEET)  # type: ignore[arg-type]
    learning = Learning(store, policy(fleet_id=FLEET, pool={"scaling_policy": ScalingPolicy.LEARNED}))
    clock.away = ("fleet_scaling_facts",)
    assert await learning.read(await store.snapshot()) == {}
    clock.away = ()
    await fleet.submit(count=2)
    await complete_one(await fleet.agent(), 7)
    before = (await learning.read(await store.snapshot()))["default"]
    assert (before.known.runs, len(before.waiting)) == (1, 1)
    clock.away = ("fleet_scaling_facts", "fleet_learn")
    after = (await learning.read(await store.snapshot()))["default"]
    assert (as_json(after.known), after.waiting) == (as_json(before.known), ())
    await learning.keep(fleet.term)
    assert (await history(fleet, None)).stored is None
    clock.away = ()
    await learning.keep(fleet.term)
    assert (await history(fleet, None)).stored is not None


async def test_an_operator_chooses_the_rule_and_takes_it_back(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """The observation has it, and the audit log names who it was."""
    store = store_of(fleet)
    assert await store.choose_policy("learned", actor="anna") == {"*": "learned"}
    assert await store.choose_policy("fixed", pool="a") == {"*": "learned", "a": "fixed"}
    assert await store.scaling_policies() == {"*": "learned", "a": "fixed"}
    assert (await store.snapshot()).scaling_policies == {"*": ScalingPolicy.LEARNED, "a": ScalingPolicy.FIXED}
    assert await store.choose_policy(None, pool="a") == {"*": "learned"}
    assert await store.choose_policy("learned", pool="b") == {"*": "learned", "b": "learned"}
    assert await store.choose_policy(None) == {}
    with pytest.raises(BadArgument, match="fixed or learned"):
        await store.choose_policy("clever")
    log = await (await hand.execute("select actor, action, subject from audit_log order by id limit 2")).fetchall()
    assert [tuple(row.values()) for row in log] == [("anna", "pool.policy", "*"), ("operator", "pool.policy", "a")]


async def test_a_history_reads_no_more_than_its_bounds(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Thirty thousand tasks wait and as many have run, behind the planner's back."""
    await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, 30000)")
    agent = await fleet.agent()
    await hand.execute(
        """insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at)
           select gen_random_uuid(), 1, %s, 'n', 1, now() - interval '1 day', now() - n * interval '1 second'
             from generate_series(1, 30000) n""",
        (agent.id,),
    )
    for since_s, most in ((None, 40_000), (60.0, 2_000)):
        async with hand.transaction():
            before = [await rows_read(hand, table) for table in ("live", "attempts", "tasks", "edges")]
            await hand.execute(
                "select fleet_scaling_facts(%s, jsonb_build_object('default', extract(epoch from now()) - %s))",
                (FLEET, since_s),
            )
            after = [await rows_read(hand, table) for table in ("live", "attempts", "tasks", "edges")]
        live, *others = (one - other for one, other in zip(after, before, strict=True))
        assert live <= 10_200
        assert sum(others) <= most
    await hand.execute("truncate tasks, orchestrator.attempts")
