"""Two databases, each with an orchestrator, on one account and under one fleet id: neither touches the other's pods."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.store import SqlStore
from orchestrator.core.provider import Offer
from orchestrator.loop.daemon import Daemon
from orchestrator.migrate import migrate
from tests.db.conformance.builders import FLEET
from tests.db.conformance.loops import daemon_over
from tests.process.emulator.build import GPU, PUBLIC_KEY, Api, emulated
from tests.unit.core import build

OFFER = Offer(GPU, None, "SECURE")
POLICY = build.policy(
    fleet_id=FLEET, public_key=PUBLIC_KEY, orphan_grace_s=0, pool={"offers": (OFFER,), "min_active": 1}
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """An account without pods."""
    async with emulated(tmp_path / "account", light=True) as made:
        yield made


@asynccontextmanager
async def orchestrator(url: str, api: Api) -> AsyncIterator[tuple[Daemon, SqlStore]]:
    """A loop that keeps one worker and reaps what nobody names at once, and its rows."""
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url)
    db = await PostgresDb.open(url)
    store = SqlStore(db, FLEET)
    yield daemon_over(store, db, cloud, POLICY), store
    await db.close()


async def test_neither_touches_the_others_pods(database: str, empty_database: str, api: Api) -> None:
    """Nor counts them; each tells of them once. A pod without an identity is an orphan, as ever."""
    await migrate(empty_database)
    async with orchestrator(database, api) as (production, theirs), orchestrator(empty_database, api) as (staging, own):
        with capture_logs() as logs:
            for one in (production, staging, production, staging):
                assert await one.once() is not None
        (kept,), (ours,) = await theirs.workers(), await own.workers()
        assert {kept["pod_id"], ours["pod_id"]} == {pod.id for pod in api.emulator.core.world.live()}
        assert [one["pods"] for one in logs if one["event"] == "foreign_pods_found"] == [
            [kept["pod_id"]],
            [ours["pod_id"]],
        ]
        stray = await api.create("gpu-9", env={"ORCHESTRATOR_FLEET_ID": FLEET, "ORCHESTRATOR_WORKER_ID": "gpu-9"})
        await production.once()
        assert stray["id"] not in {pod.id for pod in api.emulator.core.world.live()}


async def test_a_database_stays_the_same_one(direct: PostgresDb, database: str, empty_database: str) -> None:
    """For every orchestrator and fleet on it, however often it is migrated; another one is another."""
    ours = (await SqlStore(direct, FLEET).snapshot()).database_id
    await migrate(database)
    assert ours
    assert (await SqlStore(direct, "staging").snapshot()).database_id == ours
    await migrate(empty_database)
    other = await PostgresDb.open(empty_database)
    assert (await SqlStore(other, FLEET).snapshot()).database_id not in (None, ours)
    await other.close()
