"""What one observation says, from the rows of a real database."""

from datetime import timedelta

from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.catalog import Catalog
from orchestrator.observe import Observer
from tests.conformance.builders import FLEET, Fleet
from tests.core.build import policy


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
