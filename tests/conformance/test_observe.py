"""What one observation says, from the rows of a real database."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.catalog import Catalog
from orchestrator.core.actions import Rescue, Terminate
from orchestrator.core.plan import plan
from orchestrator.observe import Observer
from orchestrator.ports import Db
from tests.conformance.builders import FLEET, Fleet
from tests.core.build import policy

TIMEOUT_S = 0.2  # of heartbeats


async def test_who_knocked_in_vain_is_known_to_live(fleet: Fleet, db: PostgresDb) -> None:
    """With the time of the database's clock; who has gone meanwhile is forgotten."""
    await fleet.lead()
    await fleet.spawn("gpu-1")
    observer = Observer(SqlStore(db, FLEET), None, FLEET, Catalog(None, policy()))
    observer.knocked("gpu-1")
    observer.knocked("gpu-gone")
    seen = await observer.observe(frozenset(), frozenset())
    assert set(seen.knocked) == {"gpu-1"}
    assert timedelta(0) <= seen.now - seen.knocked["gpu-1"] < timedelta(seconds=30)


class Ahead:
    """The database, on whose clock more time has passed than on ours."""

    def __init__(self, db: Db, fleet: Fleet) -> None:
        self._db, self._fleet = db, fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        """As ever, at the fleet's time."""
        return await self._db.call(function, **args, p_now=self._fleet.now)


async def test_a_machine_that_was_suspended_takes_nobody_for_dead(fleet: Fleet, db: Db) -> None:
    """Its monotonic clock stood still with it, and its agents called in vain: whoever lives is heard in a moment."""
    await fleet.lead()
    await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    observer = Observer(SqlStore(Ahead(db, fleet), FLEET), None, FLEET, Catalog(None, policy()))  # type: ignore[arg-type]
    listened_s = 0.0
    while listened_s < TIMEOUT_S:
        seen = await observer.observe(frozenset(), frozenset())
        listened_s = (seen.now - seen.hearing.since).total_seconds()
    fleet.wait(600)
    seen = replace(await observer.observe(frozenset(), frozenset()), pods=())
    assert seen.expired_leases == 1
    patient = policy(fleet_id=FLEET, heartbeat_timeout_s=TIMEOUT_S, absence_age_s=1e6)
    assert not [a for a in plan(seen, patient).actions if isinstance(a, (Rescue, Terminate))]
