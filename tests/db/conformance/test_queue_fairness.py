"""Tenants share a pool by weight: nobody waits behind the backlog of another."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import Agent, Fleet, result

BACKLOG = 10_000
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
    """Whoever came first. Tasks without a tenant get turns when a claim meets a tenant's: they wait for one more."""
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


async def test_a_backlog_delays_another_tenant_by_one_claim_of_each_worker(fleet: Fleet, hand: Hand) -> None:
    """All of them claim once; then it is the other's turn."""
    workers = [await fleet.agent() for _ in range(4)]
    await backlog(hand, "large")
    for worker in workers:
        await worker.claim(batch=20)
    (wanted,) = await fleet.submit(tenant="small")
    assert wanted in {task["id"] for task in await workers[0].claim(batch=2)}
    await hand.execute("truncate tasks")


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
    await hand.execute("update tasks set status = 'Cancelled' where queue_turn <= 40 * 1000000")
    await fleet.submit(count=1, tenant="b")
    await hand.execute("update tasks set queue_turn = 0 where tenant = 'b'")
    await fleet.submit(count=39, tenant="b")
    agent = await fleet.agent()
    await fleet.fleet("retention")
    assert Counter(await order(agent, fleet, 20)) == {"a": 10, "b": 10}


async def test_a_queue_without_tenants_has_no_turns(fleet: Fleet, hand: Hand) -> None:
    """Nothing changes for whoever does not use them."""
    await fleet.submit(count=5)
    agent = await fleet.agent()
    await agent.release((await agent.claim())[0])
    query = "select count(*) as n from tasks where queue_turn < 9007199254740991"
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


@pytest.mark.parametrize("turn", [-(2**63), -1, 2**63 - 1])
async def test_no_turn_that_a_user_writes_stops_later_submissions(fleet: Fleet, hand: Hand, turn: int) -> None:
    """The next turn is counted on from it, within the range of the type."""
    agent = await fleet.agent()
    await fleet.submit(*[{"tenant": "a"}, {"tenant": "b"}] * 3)
    await hand.execute("update tasks set queue_turn = %s", (turn,))
    taken = len(await agent.claim())
    for _ in range(3):
        await fleet.submit({"tenant": "a"}, {"tenant": "b"}, {})
        taken += len(await agent.claim(batch=2))
    taken += len(await agent.claim(batch=50))
    assert taken == 15


@pytest.mark.parametrize("count", [2, 250])
async def test_tasks_that_go_to_another_pool_keep_their_order(
    fleet: Fleet, hand: AsyncConnection[DictRow], count: int
) -> None:
    """However the rows lie: an update writes the oldest one behind the others, and a few are read as they lie."""
    ids = await fleet.submit(*({"tenant": "acme", "params": {"n": n}} for n in range(count)))
    for task_id in reversed(ids[: count // 2]):
        await hand.execute("update tasks set labels = '{}' where id = %s", (task_id,))
    await fleet.fleet("declare_pools", p_pools=[{"task_type": "t", "pool": "big"}])
    rows = await (await hand.execute("select id::text from tasks order by queue_turn, created_at, id")).fetchall()
    assert [row["id"] for row in rows] == ids
