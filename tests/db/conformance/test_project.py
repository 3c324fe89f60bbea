"""A new Supabase project: nothing but SQL, by an owner who is no superuser, and no step in its dashboard."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from orchestrator.adapters.store import SqlStore
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.migrate import migrate, missing_sql, sql_files
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.supabase_roles import become_project
from tests.db.conformance.conftest import JWT_SECRET


@pytest.fixture
async def project(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    """Its database, before anything of ours."""
    async with EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server:
        await become_project(server.url)
        async with await psycopg.AsyncConnection.connect(server.url) as owner:
            row = await (await owner.execute("select usesuper from pg_user where usename = current_user")).fetchone()
            assert row == (False,)
        yield server


async def works_over_the_api(server: EmbeddedPostgres) -> str:
    """The schema's version, as a fleet sees that takes its first task."""
    async with EmbeddedPostgrest(server.url, JWT_SECRET) as postgrest:
        db = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key)
        store = SqlStore(db, "default")
        version = await store.check_functions()
        assert (await store.lead("us", 60)).leader
        assert len(await store.submit([{"task_type": "t"}])) == 1
        await db.close()
    return version


async def member(server: EmbeddedPostgres) -> bool:
    """Whether PostgREST's login may become a pod."""
    async with await psycopg.AsyncConnection.connect(server.url) as owner:
        query = "select pg_has_role('authenticator', 'gpu_worker', 'member')"
        return await (await owner.execute(query)).fetchone() == (True,)


async def test_migrate_installs(project: EmbeddedPostgres) -> None:
    """All of it, roles included, while PostgREST is running."""
    last = str(sql_files().version)
    async with EmbeddedPostgrest(project.url, JWT_SECRET) as postgrest:
        report = await migrate(project.url)
        assert (report.version, report.notes) == (last, ())  # nothing was there that anybody must be told of
        db = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key)
        assert await SqlStore(db, "default").check_functions() == last  # it has read the schema again by itself
        await db.close()
    assert await member(project)


async def test_supabase_db_push_installs(project: EmbeddedPostgres) -> None:
    """The printed file, applied by the project's owner, who is no superuser."""
    async with await psycopg.AsyncConnection.connect(project.url, autocommit=True) as owner:
        await owner.execute((await missing_sql(None, datetime.now(UTC))).encode())
    last = str(sql_files().version)
    assert await works_over_the_api(project) == last
    assert await member(project)
    report = await migrate(project.url)
    assert (report.applied, report.version) == ((), last)
    assert await works_over_the_api(project) == last
