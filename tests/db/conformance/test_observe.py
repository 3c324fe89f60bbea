"""What one observation says, from the rows of a real database; no row, however odd, ends every look at the fleet."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, NoReturn

import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Plan, Rescue, Terminate
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.core.states import State
from orchestrator.loop import daemon
from orchestrator.loop.daemon import Daemon
from orchestrator.loop.observe import Observer
from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import Db
from tests.db.conformance.builders import FLEET, SOON_S, Fleet
from tests.db.conformance.loops import daemon_over
from tests.unit.core import build
from tests.unit.core.build import policy

TIMEOUT_S = 0.2  # of heartbeats


async def test_a_worker_whose_call_got_no_answer_counts_as_alive(fleet: Fleet, db: PostgresDb) -> None:
    """With the time of the database's clock; who has gone meanwhile is forgotten."""
    await fleet.lead()
    await fleet.spawn("gpu-1")
    observer = Observer(SqlStore(db, FLEET), None, FLEET, Catalog(None, policy()))
    observer.note_unanswered("gpu-1")
    observer.note_unanswered("gpu-gone")
    seen = await observer.observe(frozenset(), frozenset())
    assert set(seen.unanswered_at) == {"gpu-1"}
    assert timedelta(0) <= seen.now - seen.unanswered_at["gpu-1"] < timedelta(seconds=30)


async def test_the_time_of_an_idle_workers_last_claim_is_seen(fleet: Fleet, db: PostgresDb) -> None:
    """By its number, which every claim without a task changes; a new leader begins to look again."""
    await fleet.lead()
    agent = await fleet.agent()
    await agent.claim()
    observer = Observer(SqlStore(db, FLEET), None, FLEET, Catalog(None, policy()))

    async def seen_at() -> datetime:
        return (await observer.observe(frozenset(), frozenset())).claim_seen_at[agent.id]

    first = await seen_at()
    assert await seen_at() == first
    await agent.claim()
    assert first < (second := await seen_at()) == await seen_at()
    observer.forget()
    assert await seen_at() > second


class Ahead:
    """The database, on whose clock more time has passed than on ours."""

    def __init__(self, db: Db, fleet: Fleet) -> None:
        self._db, self._fleet = db, fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        """As ever, at the fleet's time."""
        return await self._db.call(function, **args, p_now=self._fleet.now)


async def test_after_a_suspension_no_worker_counts_as_lost(fleet: Fleet, db: Db) -> None:
    """Its monotonic clock stood still too, and its agents got no answer: running agents send a heartbeat soon."""
    await fleet.lead()
    await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    observer = Observer(SqlStore(Ahead(db, fleet), FLEET), None, FLEET, Catalog(None, policy()))  # type: ignore[arg-type]
    listened_s = 0.0
    while listened_s < TIMEOUT_S:
        seen = await observer.observe(frozenset(), frozenset())
        listened_s = (seen.now - seen.window.since).total_seconds()
    fleet.wait(600)
    seen = replace(await observer.observe(frozenset(), frozenset()), pods=())
    assert seen.expired_leases == 1
    patient = policy(fleet_id=FLEET, heartbeat_timeout_s=TIMEOUT_S, absence_age_s=1e6)
    assert not [a for a in plan(seen, patient).actions if isinstance(a, (Rescue, Terminate))]


@pytest.mark.parametrize("at", ["-infinity", "infinity", "20000-01-01", "4000-01-01 BC"])
async def test_a_task_from_beyond_all_calendars_is_counted(
    fleet: Fleet, db: Db, hand: AsyncConnection[DictRow], at: str
) -> None:
    """Somebody wanted it to go before all others."""
    await hand.execute("insert into tasks (task_type, created_at) values ('t', %s)", (at,))
    (demand,) = (await SqlStore(db, FLEET).snapshot()).demand
    assert demand.claimable == 1
    assert plan(build.snapshot(demand=(demand,)), policy()).decisions


async def test_a_pause_for_ten_thousand_years_is_one(fleet: Fleet, db: Db) -> None:
    """For good, as far as Python's calendar goes."""
    store = SqlStore(db, FLEET)
    await store.pause("never again", for_s=1e12)
    assert (await store.snapshot()).paused["*"].reason == "never again"


async def test_a_code_of_a_later_version_does_not_blind_an_earlier_one(
    fleet: Fleet, db: Db, hand: AsyncConnection[DictRow]
) -> None:
    """After a roll-back the worker that bears it still has to be ended, and all the others looked after."""
    agent = await fleet.agent(State.TERMINATING)
    await hand.execute("update workers set failure_code = 'OF_A_LATER_VERSION' where id = %s", (agent.id,))
    (worker,) = (await SqlStore(db, FLEET).snapshot()).workers
    assert plan(build.snapshot(worker), policy()).actions


def daemon_of(db: PostgresDb, think: Callable[[Snapshot, Policy], Plan], health: Health, metrics: Metrics) -> Daemon:
    """A whole loop over this database, without a provider."""
    store = SqlStore(db, FLEET)
    return daemon_over(store, db, None, policy(), poll_s=0.1, health=health, metrics=metrics, planner=think)


async def test_a_tick_that_crashes_shows_in_the_probes(direct: PostgresDb) -> None:
    """Nothing is decided then: that must not look like a healthy fleet."""
    told = asyncio.Event()

    def crash(*_: object) -> NoReturn:
        asyncio.get_running_loop().call_soon(told.set)
        raise ZeroDivisionError("a mistake of ours")

    health, metrics, stop = Health(started_at_s=0), Metrics(), asyncio.Event()
    running = asyncio.create_task(daemon_of(direct, crash, health, metrics).run(stop))
    async with asyncio.timeout(SOON_S):
        await told.wait()
        stop.set()
        await running
    assert health.reason == "ZeroDivisionError: a mistake of ours"
    told = await direct.call("fleet_report", p_fleet=FLEET)
    assert told["tick_failed"]["reason"] == "ZeroDivisionError: a mistake of ours"  # `health` reads it there
    assert metrics.registry.get_sample_value("orchestrator_ticks_total", {"outcome": "aborted"})


async def test_a_clock_that_is_set_back_stops_no_timer(direct: PostgresDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of it would be an hour in which nobody leads."""
    ahead, thoughts, running_s = timedelta(0), asyncio.Semaphore(0), time.time

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + ahead

    for module in (apscheduler.schedulers.base, apscheduler.triggers.interval, daemon):
        monkeypatch.setattr(module, "datetime", Moment)
    monkeypatch.setattr(time, "time", lambda: running_s() + ahead.total_seconds())
    monkeypatch.setattr(daemon, "LEAD_EVERY_S", 0.2)

    def think(seen: Snapshot, by: Policy) -> Plan:
        asyncio.get_running_loop().call_soon(thoughts.release)
        return plan(seen, by)

    stop, one = asyncio.Event(), daemon_of(direct, think, Health(started_at_s=0), Metrics())
    running = asyncio.create_task(one.run(stop))
    async with asyncio.timeout(SOON_S):
        await thoughts.acquire()
        await one._no_tick_runs.wait()
        ahead -= timedelta(hours=1)
        for _ in range(10):
            await thoughts.acquire()
        stop.set()
        await running
