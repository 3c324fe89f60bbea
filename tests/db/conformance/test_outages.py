"""Outages: nobody claims while the store is away, and no attempt is used up because nobody could be reached."""

from typing import Any

import pytest

from orchestrator.adapters.store import SqlStore
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import StoreOutage
from orchestrator.core.states import State
from orchestrator.loop.tick import HOLD_S, ClaimHold
from orchestrator.ports import BadArgument, Db, NotLeader
from tests.db.conformance.builders import FLEET, START, Fleet
from tests.db.conformance.test_schedules import Clocked

TICK_S = 15.0


@pytest.fixture
def store(db: Db) -> SqlStore:
    """The port over the same database."""
    return SqlStore(db, FLEET)


async def held(fleet: Fleet, reason: str | None = "S3 does not answer", **changes: Any) -> Any:
    """Say that the store is away, or is back."""
    since = fleet.now.isoformat() if reason else None
    given = {"p_reason": reason, "p_since": since, "p_for_s": 60 if reason else None}
    return await fleet.fleet("store_away", **(given | changes))


async def test_no_task_is_claimed_while_the_store_is_away(fleet: Fleet) -> None:
    """Not by any of the two ways to claim; running tasks are completed, and once it is back there is work."""
    await fleet.submit(count=3)
    agent, other = await fleet.agent(), await fleet.agent()
    (task,) = await agent.claim()
    assert await held(fleet) == {"away": True}
    assert await other.claim() == []
    assert await fleet.status(other.id) == "idle"
    answer = await agent.complete_and_claim({"task_id": task["id"], "attempt": task["attempt"], "result_data": {}})
    assert (answer["outcomes"], answer["tasks"]) == (["ok"], [])
    assert await held(fleet, None) == {"away": False}
    assert len(await other.claim()) == 1


async def test_a_repeated_claim_gets_the_same_answer(fleet: Fleet) -> None:
    """A claim whose reply was lost gets its tasks, whatever the store does."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim(number=7)
    await held(fleet)
    assert [one["id"] for one in await agent.claim(number=7)] == [task["id"]]


async def test_a_silent_leader_delays_no_other_process(fleet: Fleet) -> None:
    """What it said lapses."""
    await fleet.submit()
    agent = await fleet.agent()
    await held(fleet)
    fleet.wait(61)
    assert len(await agent.claim()) == 1


async def test_only_the_leader_says_so(fleet: Fleet, store: SqlStore) -> None:
    """With its term, and for a bounded time."""
    with pytest.raises(BadArgument):
        await held(fleet, p_for_s=0)
    with pytest.raises(NotLeader):
        await fleet.call(
            "fleet_store_away", p_fleet=FLEET, p_term=0, p_reason="x", p_since=fleet.now.isoformat(), p_for_s=60
        )


async def test_an_outage_of_the_database_uses_up_no_attempt(fleet: Fleet) -> None:
    """Nobody could renew a lease for 20 minutes: every agent has ended itself, and no task has failed for that."""
    (task_id,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    await fleet.lead("us", 15)
    assert len(await agent.claim()) == 1
    fleet.wait(1200)
    fleet.term = (await fleet.lead("us", 3600))["term"]
    await fleet.fleet("rescue_overdue", p_over_s=0)
    row = await fleet.task(task_id)
    assert (row["status"], row["uncounted"]) == ("Queued", 1)
    assert "was away" in row["error_message"]


async def test_a_worker_that_is_silent_while_a_process_leads_has_lost_its_task(fleet: Fleet) -> None:
    """Its attempt counts, although a redeployment fell into its silence."""
    (task_id,) = await fleet.submit(max_attempts=1)
    agent = await fleet.agent()
    assert len(await agent.claim()) == 1
    fleet.wait(3600)
    fleet.term = (await fleet.lead("another", 3600))["term"]
    await fleet.end(agent.id, State.ACTIVE, ExitCause.HEARTBEAT_LOST)
    await fleet.fleet("rescue", p_worker_id=agent.id)
    assert (await fleet.task(task_id))["status"] == "Failed"


async def test_the_store_hold_is_written_and_read_through_the_port(fleet: Fleet, store: SqlStore) -> None:
    """The leader's own words."""
    await fleet.submit()
    agent = await fleet.agent()
    term = (await fleet.lead())["term"]
    await store.hold_claims(term, StoreOutage(fleet.now, "S3 does not answer"), for_s=60)
    assert await agent.claim() == []
    await store.hold_claims(term, None, for_s=60)
    assert len(await agent.claim()) == 1


async def test_a_hold_is_renewed_for_as_long_as_the_store_is_away(fleet: Fleet) -> None:
    """Longer than one hold lasts, twice; between and after the outages there is work, at once."""
    await fleet.submit(count=9)
    agent = await fleet.agent()
    store = SqlStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]

    def clock() -> float:
        return (fleet.now - START).total_seconds()

    hold = ClaimHold(store, clock)
    for _ in range(2):
        away = StoreOutage(fleet.now, "S3 does not answer")
        for _ in range(int(3 * HOLD_S / TICK_S) + 1):  # the last one is renewed just before its end
            await hold.follow(fleet.term, away, is_known=True)
            assert await agent.claim() == []
            fleet.wait(TICK_S)
        await hold.follow(fleet.term, None, is_known=True)
        (task,) = await agent.claim()
        assert await agent.complete(task) == "ok"
    await hold.follow(fleet.term, StoreOutage(fleet.now, "S3 does not answer"), is_known=True)
    next_leader = ClaimHold(store)
    await next_leader.follow(fleet.term, None, is_known=False)  # one that does not know the store frees nothing
    assert await agent.claim() == []
    await next_leader.follow(fleet.term, None, is_known=True)
    assert len(await agent.claim()) == 1
