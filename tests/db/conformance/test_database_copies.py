"""A copy of a database, such as a restored backup: its orchestrator ends no pod of the original."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import sql

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.migrate import migrate
from orchestrator.ports import BadArgument
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import FLEET
from tests.db.conformance.test_foreign_pods import api, orchestrator
from tests.process.emulator.build import Api

__all__ = ["api"]
COPY = "copy_of_the_fleet"


@pytest.fixture
async def original(empty_database: str, api: Api) -> str:
    """The URL of a database whose orchestrator has created one pod, and runs no more."""
    await migrate(empty_database)
    async with orchestrator(empty_database, api) as (loop, store):
        assert await loop.once() is not None
        assert len(await store.workers()) == 1
    return empty_database


@pytest.fixture
async def copy(original: str, server: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of a copy with all rows."""
    name = original.rpartition("/")[2]
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as owner:
        make = sql.SQL("create database {} template {}").format(sql.Identifier(COPY), sql.Identifier(name))
        await owner.execute(make)
        yield server.url_of(COPY)
        await owner.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(COPY)))


def pods(api: Api) -> set[str]:
    """Return the pods that the account pays for."""
    return {pod.id for pod in api.emulator.core.world.live()}


async def test_a_copied_database_has_no_leader_and_health_names_the_reason(original: str, copy: str, api: Api) -> None:
    """The pods of the original stay, and its orchestrator goes on."""
    (pod,) = pods(api)
    async with orchestrator(copy, api) as (loop, store):
        with pytest.raises(BadArgument, match="is a copy"):
            await loop.once()
        with pytest.raises(BadArgument, match=r"a copy of the one in which the fleet was led.*sync database_moved"):
            await store.lead("somebody", 30)
        (problem,) = await store.schema_problems()
        assert "copy" in problem["what"]
    assert pods(api) == {pod}
    async with orchestrator(original, api) as (loop, store):
        assert await loop.once() is not None
        assert await store.schema_problems() == []
        assert await store.confirm_database(is_copy=True) is False
    assert pods(api) == {pod}


async def test_a_copy_that_is_another_database_leaves_the_pods_of_the_original_alone(
    original: str, copy: str, api: Api
) -> None:
    """It has pods of its own, and neither orchestrator ends one of the other's."""
    (pod,) = pods(api)
    async with orchestrator(copy, api) as (copied, store), orchestrator(original, api) as (first, theirs):
        assert await store.confirm_database(is_copy=True) is True
        for loop in (copied, first, copied, first, copied):
            assert await loop.once() is not None
        assert await store.schema_problems() == []
        assert pod in pods(api)
        assert [row["pod_id"] for row in await theirs.workers()] == [pod]


async def test_a_copy_that_replaces_the_original_takes_over_its_pods(copy: str, api: Api) -> None:
    """As after an upgrade of the server or the restoration of a backup."""
    (pod,) = pods(api)
    async with orchestrator(copy, api) as (loop, store):
        assert await store.confirm_database(is_copy=False) is True
        assert [entry["action"] for entry in await store.api.audit(before=None, limit=1)] == ["database.moved"]
        for _ in range(3):
            assert await loop.once() is not None
        assert [row["pod_id"] for row in await store.workers()] == [pod]
    assert pods(api) == {pod}


async def test_on_a_server_that_hides_its_identity_a_renewed_lease_writes_no_identity(empty_database: str) -> None:
    """The lease is renewed every few seconds."""
    await migrate(empty_database)
    db = await PostgresDb.open(empty_database)
    async with await psycopg.AsyncConnection.connect(empty_database, autocommit=True) as owner:
        await owner.execute(
            """create role unprivileged; alter function internal_place() owner to unprivileged;
               revoke execute on function pg_control_system() from public"""
        )
        seen = set[tuple[str, str | None]]()
        for _ in range(3):
            assert (await SqlStore(db, FLEET).lead("somebody", 30)).leader
            rows = await owner.execute("select xmin::text, led_in from database_identity")
            seen |= set(await rows.fetchall())
        await owner.execute("reassign owned by unprivileged to current_user; drop role unprivileged")
    await db.close()
    assert len(seen) == 1
    assert {led_in for _, led_in in seen} == {None}
