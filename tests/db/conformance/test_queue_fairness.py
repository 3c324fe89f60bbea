"""Tenants share a pool by weight: nobody waits behind the backlog of another."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import Agent, Fleet, Row, result

BACKLOG = 10_000
FEW = 10
WORKERS = 4
BATCH = 5
Hand = AsyncConnection[DictRow]


async def order(agent: Agent, fleet: Fleet, count: int, *, batch: int = 1) -> list[str]:
    """The tenants ("-" for none) of the next tasks, in the order in which they are claimed and completed."""
    tenants: list[str] = []
    while len(tenants) < count and (claimed := await agent.claim(batch=batch)):
        for task in claimed:
            tenants.append((await fleet.task(task["id"]))["tenant"] or "-")
            await agent.complete(task)
    return tenants


async def backlog(hand: Hand, tenant: str | None, count: int = BACKLOG) -> None:
    """One statement of a user, who knows nothing of turns."""
    query = "insert into tasks (task_type, tenant) select 't', %s from generate_series(1, %s)"
    await hand.execute(query, (tenant, count))


@pytest.mark.parametrize(("large", "small"), [("large", "small"), (None, "small"), ("large", None)])
async def test_ten_tasks_of_one_tenant_alternate_with_ten_thousand_of_another(
    fleet: Fleet, hand: Hand, large: str | None, small: str | None
) -> None:
    """Tasks without a tenant get turns when a claim meets a tenant's: they wait for one claim more."""
    agent = await fleet.agent()
    await backlog(hand, large)
    first = await order(agent, fleet, 5)
    await backlog(hand, small, 10)
    then = await order(agent, fleet, 24)
    assert first == [large or "-"] * 5
    name = small or "-"
    assert then.index(name) <= (1 if small else 2), then
    assert Counter(then)[name] == 10, then
    shared = itertools.groupby(then[: then.index(name) + 18])
    assert max(len(list(run)) for tenant, run in shared if tenant != name) <= 2
    await hand.execute("truncate tasks")


@dataclass
class Claim:
    """What one worker got, and when: moments are numbers that grow."""

    sent: int
    answered: int
    size: int
    tasks: Sequence[str]


class Crew:
    """Workers with a connection each; each of them claims, runs and completes tasks at once."""

    def __init__(self, fleet: Fleet, workers: Sequence[tuple[Agent, Hand]], large: list[str]) -> None:
        self.fleet, self.workers, self.large = fleet, workers, large
        self.moments = itertools.count()
        self.claims: list[list[Claim]] = [[] for _ in workers]

    async def claim(self, number: int, size: int) -> Sequence[Row]:
        """The next tasks of one worker, over its connection, in the transaction that is open there, if one is."""
        (agent, hand), sent = self.workers[number], next(self.moments)
        query = "select worker_claim(%s, %s, %s, %s, 0, %s)->'tasks' as tasks"
        args = (agent.id, agent.nonce, next(agent.numbers), size, self.fleet.now)
        (row,) = await (await hand.execute(query, args)).fetchall()
        tasks: Sequence[Row] = row["tasks"]
        self.claims[number].append(Claim(sent, next(self.moments), size, [task["id"] for task in tasks]))
        return tasks

    async def complete(self, number: int, tasks: Sequence[Row]) -> None:
        """They are done."""
        agent, hand = self.workers[number]
        results = Jsonb([result(task) for task in tasks])
        query = "select worker_complete_many(%s, %s, %s, %s)"
        await hand.execute(query, (agent.id, agent.nonce, results, self.fleet.now))

    async def begin(self) -> list[str]:
        """Each worker claims in a transaction that stays open; the tasks in the order of the claims."""
        for _, hand in self.workers:
            await hand.execute("begin")
        return [task["id"] for number in range(WORKERS) for task in await self.claim(number, BATCH)]

    async def commit(self) -> None:
        """All those transactions end."""
        for _, hand in self.workers:
            await hand.execute("commit")


@pytest.fixture
async def crew(direct: PostgresDb, database: str) -> AsyncIterator[Crew]:
    """Its workers wait, and one tenant has handed in its backlog."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    async with AsyncExitStack() as stack:
        hands: list[Hand] = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row)
            )
            for _ in range(WORKERS)
        ]
        workers = [(await fleet.agent(), hand) for hand in hands]
        query = (
            "insert into tasks (task_type, tenant, created_at)"
            " select 't', 'large', %s + n * interval '1 millisecond' from generate_series(1, %s) n"
        )
        await hands[0].execute(query, (fleet.now, BACKLOG))
        fleet.wait(60)
        rows = await hands[0].execute("select id::text from tasks order by created_at")
        yield Crew(fleet, workers, [row["id"] for row in await rows.fetchall()])
        await hands[0].execute("truncate tasks")


async def test_a_backlog_delays_another_tenant_by_one_claim_of_each_worker(crew: Crew) -> None:
    """By the claims that are under way when its tasks come, and by no other."""
    under_way = await crew.begin()
    small = await crew.fleet.submit(count=FEW, tenant="small")
    await crew.commit()
    assert under_way == crew.large[: WORKERS * BATCH]
    then = await crew.begin()
    await crew.commit()
    assert then[:FEW] == small
    assert then[FEW:] == crew.large[WORKERS * BATCH :][: WORKERS * BATCH - FEW]


# "l": a task of the tenant with the backlog. A step of weight 3 is rounded down, so now and then four tasks go first.
@pytest.mark.parametrize(("weight", "expected"), [(1, "lslslslslslslslslsls"), (3, "lssslsssslssslllllll")])
async def test_workers_that_claim_at_once_alternate_by_weight(crew: Crew, weight: int, expected: str) -> None:
    """Exactly, and each tenant's tasks are in order, although no claim sees what the one before it has taken."""
    await crew.fleet.call("task_tenant_set", p_tenant="small", p_weight=weight)
    small = await crew.fleet.submit(count=FEW, tenant="small")
    claimed = await crew.begin()
    await crew.commit()
    assert "".join("s" if one in small else "l" for one in claimed) == expected
    assert [one for one in claimed if one in small] == small
    assert [one for one in claimed if one not in small] == crew.large[: WORKERS * BATCH - FEW]


@pytest.mark.parametrize("weight", [1, 3])
async def test_among_workers_in_full_swing_ten_tasks_pass_ten_thousand(crew: Crew, weight: int) -> None:
    """All overlaps are allowed. Each tenant's tasks run in order, no claim comes back short while tasks are ready."""
    await crew.fleet.call("task_tenant_set", p_tenant="small", p_weight=weight)
    small: list[str] = []
    here = asyncio.Event()
    handed_in: list[int] = []

    async def work(number: int) -> None:
        claims = crew.claims[number]
        # Large claims once the ten tasks are taken: the rest is about losing none.
        while tasks := await crew.claim(number, BATCH if len(claims) < 20 or not handed_in else 100):
            if len(claims) == 5:
                here.set()
            await crew.complete(number, tasks)

    async def hand_in() -> None:
        await here.wait()
        small.extend(await crew.fleet.submit(count=FEW, tenant="small"))
        handed_in.append(next(crew.moments))

    await asyncio.gather(hand_in(), *map(work, range(WORKERS)))
    claims = sorted(itertools.chain(*crew.claims), key=lambda claim: claim.sent)
    place = {one: number for number, one in enumerate(crew.large)}
    for number, one in enumerate(small):
        (its,) = (claim for claim in claims if one in claim.tasks)
        # Of claims that began after the ten came, and had ended when its claim began. Any other is under way at one
        # of these moments: at most one of each worker.
        before = [c for c in claims if c.sent > handed_in[0] and c.answered < its.sent]
        assert sum(task in place for c in before for task in c.tasks) <= number // weight + 1
    for own in crew.claims:
        mine = [task for claim in own for task in claim.tasks]
        assert [t for t in mine if t in place] == sorted((t for t in mine if t in place), key=place.__getitem__)
        assert [t for t in mine if t in small] == [t for t in small if t in mine]
    everything = [task for claim in claims for task in claim.tasks]
    assert sorted(everything) == sorted(crew.large + small)
    short = min(claim.answered for claim in claims if len(claim.tasks) < claim.size)
    assert not any(claim.tasks for claim in claims if claim.sent > short), "a claim left tasks that were ready"


async def test_tenants_get_tasks_in_the_proportion_of_their_weights(fleet: Fleet) -> None:
    """Each in its own order; and one that is alone gets everything."""
    await fleet.call("task_tenant_set", p_tenant="double", p_weight=2)
    sent = {name: await fleet.submit(count=40, tenant=name) for name in ("one", "double", "two")}
    agent = await fleet.agent()
    claimed = [task["id"] for task in await agent.claim(batch=40)]
    got = {name: [one for one in claimed if one in ids] for name, ids in sent.items()}
    assert {name: len(ids) for name, ids in got.items()} == {"one": 10, "double": 20, "two": 10}
    assert all(ids == sent[name][: len(ids)] for name, ids in got.items())
    rest = [task["id"] for task in await agent.claim(batch=100)]
    assert [one for one in rest if one in sent["one"]] == sent["one"][10:], "nothing is kept back for an absent tenant"


async def test_a_new_weight_applies_to_queued_tasks(fleet: Fleet) -> None:
    """At once, and 1 is the weight of every tenant again."""
    for name in ("a", "b"):
        await fleet.submit(count=40, tenant=name)
    agent = await fleet.agent()
    assert Counter(await order(agent, fleet, 20, batch=4)) == {"a": 10, "b": 10}
    await fleet.call("task_tenant_set", p_tenant="b", p_weight=4)
    assert Counter(await order(agent, fleet, 20, batch=4))["b"] in (16, 15, 17)
    await fleet.call("task_tenant_set", p_tenant="b", p_weight=1)
    rows = (await fleet.call("task_tenants"))["tenants"]
    assert {row["tenant"]: row["weight"] for row in rows} == {"a": 1, "b": 1}


async def test_priority_comes_before_fairness(fleet: Fleet) -> None:
    """A tenant's share is of its pool and priority."""
    await fleet.submit(count=3, tenant="calm")
    urgent = await fleet.submit(count=3, tenant="urgent", priority=1)
    agent = await fleet.agent()
    assert [task["id"] for task in await agent.claim(batch=3)] == urgent


async def test_a_tenant_that_comes_back_gets_no_credit_for_its_absence(fleet: Fleet) -> None:
    """It alternates with the others from where they are."""
    await fleet.submit(count=60, tenant="busy")
    agent = await fleet.agent()
    assert set(await order(agent, fleet, 30)) == {"busy"}
    await fleet.submit(count=30, tenant="back")
    assert Counter(await order(agent, fleet, 20)) == {"busy": 10, "back": 10}


async def test_tasks_that_become_ready_together_do_not_jump_the_queue(fleet: Fleet) -> None:
    """Those of one time, those that wait for one task, and those that are queued again."""
    (first,) = await fleet.submit(tenant="calm")
    agent = await fleet.agent()
    (held,) = await agent.claim()
    await fleet.submit(count=30, tenant="many", depends_on=[first])
    await fleet.submit(count=30, tenant="many", run_after=fleet.now.replace(hour=13).isoformat())
    ended = await fleet.submit(count=30, tenant="many")
    for one in ended:
        await fleet.call("task_cancel", p_id=one)
    await fleet.submit(count=60, tenant="calm")
    await order(agent, fleet, 20)
    await agent.complete(held)
    for one in ended:
        await fleet.call("task_retry", p_id=one)
    fleet.wait(7200)
    assert Counter(await order(agent, fleet, 40))["calm"] in range(19, 22)


@pytest.mark.parametrize("tenant", ["chain", None])
@pytest.mark.parametrize("cause", ["dependency", "limit"])
async def test_tasks_that_become_ready_one_after_the_other_delay_no_other_tenant(
    fleet: Fleet, cause: str, tenant: str | None
) -> None:
    """Each has its turn after those who wait already, although it was submitted before them."""
    one: dict[str, Any] = {"tenant": tenant}
    if cause == "limit":
        await fleet.submit(count=20, concurrency_key="k", **one)
    else:
        await fleet.submit(one, *({**one, "depends_on": [f"#{before}"]} for before in range(19)))
    agent = await fleet.agent()
    name = tenant or "-"
    assert await order(agent, fleet, 3) == [name] * 3
    fleet.wait(1)
    await fleet.submit(count=5, tenant="other")
    then = await order(agent, fleet, 10)
    assert then.index("other") <= 1, then
    assert Counter(then) == {name: 5, "other": 5}


async def test_a_task_that_comes_back_from_a_worker_is_next(fleet: Fleet) -> None:
    """It has waited its turn already."""
    for name in ("a", "b"):
        await fleet.submit(count=10, tenant=name)
    agent = await fleet.agent()
    (given,) = await agent.claim()
    await order(agent, fleet, 6)
    await agent.release(given)
    assert (await agent.claim())[0]["id"] == given["id"]


USERS_WRITES: dict[str, str] = {
    "delete": "delete from tasks where tenant = 'large' and created_at < now() and random() < 0.5",
    "change of tenant": "update tasks set tenant = 'large' where tenant = 'small' and priority = 0 and random() < 0.2",
    "change of priority": "update tasks set priority = 1 where tenant = 'large' and random() < 0.5",
    "no triggers": "alter table tasks disable trigger user; insert into tasks (task_type, tenant, pool, max_attempts) "
    "select 't', 'large', 'default', 3 from generate_series(1, 50); alter table tasks enable trigger user",
}


@pytest.mark.parametrize("write", USERS_WRITES.values(), ids=USERS_WRITES)
async def test_writes_of_users_lose_no_task_and_stop_no_tenant(fleet: Fleet, hand: Hand, write: str) -> None:
    """Every task is claimed once, whatever was changed in the middle."""
    await backlog(hand, "large", 200)
    await backlog(hand, "small", 20)
    agent = await fleet.agent()
    done = await order(agent, fleet, 10)
    await hand.execute(write.encode())
    await fleet.fleet("retention")
    for _ in range(2):  # the audit finds what no trigger saw: from where it is to the end, and from the beginning
        await hand.execute("select orchestrator.audit(1000000)")
    await fleet.maintain()
    row = await (await hand.execute("select count(*) as n from tasks where status = 'Queued'")).fetchone()
    assert row is not None
    rest = 0
    while claimed := await agent.claim(batch=20):
        await agent.complete_many(*map(result, claimed))
        rest += len(claimed)
    assert rest == row["n"]
    assert set(done) == {"large", "small"}


async def test_turns_with_gaps_are_given_again_once_an_hour(fleet: Fleet, hand: Hand) -> None:
    """A tenant that cancelled the first half of its tasks does not wait for the turns that they would have taken."""
    await fleet.submit(count=50, tenant="a")
    await hand.execute(
        "update tasks set status = 'Cancelled'"
        " where id in (select task_id from orchestrator.live where turn <= 40000000)"
    )
    await fleet.submit(count=1, tenant="b")
    await hand.execute("update orchestrator.live set turn = 0 where tenant = 'b'")
    await fleet.submit(count=39, tenant="b")
    agent = await fleet.agent()
    await fleet.fleet("retention")
    assert Counter(await order(agent, fleet, 20)) == {"a": 10, "b": 10}


async def test_a_queue_without_tenants_has_no_turns(fleet: Fleet, hand: Hand) -> None:
    """Nothing changes for users without tenants."""
    await fleet.submit(count=5)
    agent = await fleet.agent()
    await agent.release((await agent.claim())[0])
    query = "select count(*) as n from orchestrator.live where turn < 9007199254740991"
    row = await (await hand.execute(query.encode())).fetchone()
    assert row == {"n": 0}


async def test_sessions_that_submit_and_claim_at_once_never_wait_for_each_other(
    direct: PostgresDb, fleet: Fleet, hand: Hand
) -> None:
    """An open transaction of a user delays no other submission of the same tenant."""
    async with hand.transaction():
        await backlog(hand, "same", 10)
        async with asyncio.timeout(30):
            await fleet.submit(count=10, tenant="same")
            agent = await fleet.agent()
            assert len(await agent.claim(batch=20)) == 10


@pytest.mark.parametrize(
    ("tenant", "weight"), [("", 2), ("x" * 201, 2), ("a\u0007", 2), ("a", 0), ("a", 1001), ("a", None), (None, 2)]
)
async def test_a_bad_weight_is_refused(fleet: Fleet, tenant: Any, weight: Any) -> None:
    """Before it is in a table."""
    with pytest.raises(BadArgument):
        await fleet.call("task_tenant_set", p_tenant=tenant, p_weight=weight)


@pytest.mark.parametrize("count", [2, 250])
async def test_tasks_that_go_to_another_pool_keep_their_order(
    fleet: Fleet, hand: AsyncConnection[DictRow], count: int
) -> None:
    """However the rows lie: an update writes the oldest one behind the others, and a few are read as they lie."""
    ids = await fleet.submit(*({"tenant": "acme", "params": {"n": n}} for n in range(count)))
    for task_id in reversed(ids[: count // 2]):
        await hand.execute("update tasks set labels = '{}' where id = %s", (task_id,))
    await fleet.fleet("declare_pools", p_pools=[{"task_type": "t", "pool": "big"}])
    rows = await (
        await hand.execute("select task_id::text as id from orchestrator.live order by turn, created_at, task_id")
    ).fetchall()
    assert [row["id"] for row in rows] == ids


async def test_tasks_that_fail_again_and_again_pass_nobody(fleet: Fleet) -> None:
    """They wait for their next attempt, and take a turn of their tenant then."""
    agent = await fleet.agent(metadata={"max_failures": 1000})
    await fleet.submit(count=10, tenant="failing")
    for task in await agent.claim(batch=10):
        assert await agent.fail(task, code="BAD", message="no") == "requeued"
    (other,) = await fleet.submit(tenant="other")
    fleet.wait(60)
    await fleet.snapshot()
    assert other in [task["id"] for task in await agent.claim(batch=2)]
