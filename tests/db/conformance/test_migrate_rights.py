"""A login with few rights, and a server with other defaults: nothing is changed in part, and the SQL is named."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.config.settings import Settings
from orchestrator.diagnostics.doctor.database import database
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.errors import from_port_error
from orchestrator.migrate import migrate, missing_sql, planned, removed
from orchestrator.ports import BadToken, MissingRight
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import SOON_S, Fleet
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_schema import NOW
from tests.db.conformance.test_schema_legacy import ENUM, MAKE_ENUM, TASKS, TEXT, WORKERS

NUMBERS = itertools.count(1)
MIGRATE_S = 120.0  # a migration that waits for itself would wait for ever
Admin = AsyncConnection[Any]
# Defaults of a database that made a migration hang, grant nothing or say nothing; and others.
DEFAULTS = (
    "default_transaction_isolation = 'repeatable read'",
    "quote_all_identifiers = on",
    "client_min_messages = error",
    "search_path = ''",
)
MORE = (
    "default_transaction_isolation = 'serializable'",
    "standard_conforming_strings = off",
    "row_security = off",
    "array_nulls = off",
    "plpgsql.extra_errors = 'all'",
    "plpgsql.variable_conflict = 'use_column'",
    "datestyle = 'German'",
    "statement_timeout = '5s'",
    "idle_in_transaction_session_timeout = '1s'",
    "lock_timeout = '1s'",
    "intervalstyle = 'sql_standard'",
)


@pytest.fixture(scope="module")
async def alone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedPostgres]:
    """A server without our role, which belongs to a whole server."""
    directory = tmp_path_factory.mktemp("alone") / "data"
    async with EmbeddedPostgres(directory, durable=False, keep=False) as server:
        yield server


@pytest.fixture
async def admin(alone: EmbeddedPostgres) -> AsyncIterator[Admin]:
    """The administrator, in a new database that belongs to `app`, who may create no role."""
    name = f"project_{next(NUMBERS)}"
    async with await psycopg.AsyncConnection.connect(alone.url, autocommit=True) as connection:
        if not await (await connection.execute("select 1 from pg_roles where rolname = 'app'")).fetchone():
            await connection.execute("create role app login")
        await connection.execute(f"create database {name} owner app".encode())
    async with await psycopg.AsyncConnection.connect(alone.url_of(name), autocommit=True) as connection:
        yield connection
        await connection.execute("drop owned by gpu_worker" if await has_role(connection) else "select")
        await connection.execute("drop role if exists gpu_worker")


async def has_role(connection: Admin) -> bool:
    return bool(await (await connection.execute("select 1 from pg_roles where rolname = 'gpu_worker'")).fetchone())


@pytest.fixture
def app(alone: EmbeddedPostgres, admin: Admin) -> str:
    """The login of the database's owner."""
    return alone.url_of(admin.info.dbname).replace("postgres@", "app@")


async def run_as_told(admin: Admin, told: MissingRight | str) -> None:
    """Run the SQL that a note or an error names for the administrator, and nothing else."""
    if isinstance(told, MissingRight):
        shown = from_port_error(told)
        assert shown.kind.id == "E014"
        told = shown.fix
    statements = told.partition("an administrator of the database runs: ")[2].partition("; then: ")[0]
    await admin.execute(statements.encode())


async def works(url: str) -> None:
    """A pod claims a task and completes it."""
    db = await PostgresDb.open(url)
    try:
        fleet = Fleet(db, ids=NUMBERS)
        fleet.term = (await fleet.lead())["term"]
        agent = await fleet.agent()
        await fleet.submit()
        await fleet.call("fleet_worker", p_fleet="default", p_worker_id=agent.id)
        claims = {"role": "gpu_worker", "sub": agent.id, "jti": await jti(url, agent.id)}
        args = {"p_worker_id": agent.id, "p_nonce": agent.nonce}
        claim = {"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
        (task,) = json.loads((await db.call_as_worker(claims, "worker_claim", args | claim))["tasks"].json)
        ended = {"p_results": [{"task_id": task["id"], "attempt": task["attempt"], "result_data": None}]}
        assert (await db.call_as_worker(claims, "worker_complete_many", args | ended))["outcomes"] == ["ok"]
    finally:
        await db.close()


async def jti(url: str, worker: str) -> str:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute(
            "update public.workers set token_jti = coalesce(token_jti, 'j') where id = %s returning token_jti",
            (worker,),
        )
        return str((await found.fetchone() or ("",))[0])


async def test_an_owner_who_may_create_no_role_gets_everything_else_and_the_sql_for_it(admin: Admin, app: str) -> None:
    """Pods work through the gateway. The notes of the plan and of migrate have the SQL for the role that lacks."""
    await admin.execute("set role app")
    await admin.execute(TASKS.format(status=TEXT, extra="").encode())
    await admin.execute("insert into tasks (task_type) values ('mine'); reset role")
    told = "an administrator of the database runs: create role gpu_worker nologin; grant gpu_worker to "
    assert any(told in note for note in (await planned(app)).notes)
    (note,) = (note for note in (await migrate(app)).notes if told in note)
    assert note.startswith("pods call through the orchestrator's gateway only")
    async with await psycopg.AsyncConnection.connect(app, autocommit=True) as owner:
        await owner.execute("""select task_submit('[{"task_type": "t"}]')""")
        assert await (await owner.execute("select count(*) from tasks")).fetchone() == (2,)
        await owner.execute("delete from tasks")
    await works(app)
    for look in (planned, migrate):
        assert ((report := await look(app)).applied, [told in note for note in report.notes]) == ((), [True])
    await run_as_told(admin, note)
    assert (await migrate(app)).notes == ()
    await works(app)


async def test_without_the_role_a_pod_is_still_held_to_its_token(admin: Admin, app: str) -> None:
    """It may speak for itself only, with its present token."""
    await migrate(app)
    db = await PostgresDb.open(app)
    try:
        fleet = Fleet(db)
        fleet.term = (await fleet.lead())["term"]
        agent, other = await fleet.agent(), await fleet.agent()
        beat: dict[str, Any] = {"p_nonce": agent.nonce, "p_tasks": [], "p_health": None, "p_logs": None}
        right = {"role": "gpu_worker", "sub": agent.id, "jti": await jti(app, agent.id)}
        for claims, worker in ((right, other.id), (right | {"jti": "stolen"}, agent.id), ({}, agent.id)):
            with pytest.raises(BadToken):
                await db.call_as_worker(claims, "worker_heartbeat", {"p_worker_id": worker, **beat})
    finally:
        await db.close()


async def test_doctor_says_that_pods_cannot_call(admin: Admin, app: str) -> None:
    """Also when the right was taken away later."""
    await admin.execute("create role gpu_worker nologin; grant gpu_worker to app")
    await migrate(app)
    for change, what, fix in (
        (
            "revoke gpu_worker from app",
            "pods can call through the gateway only, not through Supabase's API",
            'an administrator of the database runs: grant gpu_worker to "app"; then: ',
        ),
        (
            "revoke execute on all functions in schema public from gpu_worker",
            "pods cannot call its functions",
            "python -m orchestrator migrate",
        ),
    ):
        assert what not in await doctor(app)
        await admin.execute(change.encode())
        assert (await doctor(app))[what].startswith(fix)
        await admin.execute("grant gpu_worker to app")
        await migrate(app)


async def doctor(url: str) -> dict[str, str]:
    """What `doctor database` finds wrong, with the fixes."""
    section = Section("database")
    await database(Settings.model_validate({"database_url": url}), section)
    return {one.what: one.fix for one in section.findings if one.status in ("fail", "warn")}


async def test_the_printed_sql_works_without_the_role_too(admin: Admin, app: str) -> None:
    """It is applied by hand; the next `migrate` says what is lacking."""
    text = await missing_sql(app, NOW)
    async with await psycopg.AsyncConnection.connect(app, autocommit=True) as owner:
        await owner.execute(text.encode())
    (note,) = (note for note in (await migrate(app)).notes if "create role gpu_worker" in note)
    await run_as_told(admin, note)
    await migrate(app)
    await works(app)


async def test_a_role_that_another_login_made_is_granted_by_the_administrator(admin: Admin, app: str) -> None:
    """The login may not take it on: pods work through the gateway."""
    await admin.execute("create role gpu_worker nologin")
    (note,) = (note for note in (await migrate(app)).notes if 'runs: grant gpu_worker to "app"' in note)
    await works(app)
    await run_as_told(admin, note)
    await migrate(app)
    await works(app)


@pytest.mark.parametrize("lacks", ["table", "schema", "type", "writing", "triggers"])
async def test_a_right_that_lacks_is_named_before_the_first_change(admin: Admin, app: str, lacks: str) -> None:
    """With the SQL that gives it, by migrate and by its plan; the database stays as it was."""
    await admin.execute("create role gpu_worker; grant gpu_worker to app; set role app")
    await admin.execute(MAKE_ENUM)
    await admin.execute(TASKS.format(status=ENUM, extra="").encode())
    await admin.execute(WORKERS)
    await admin.execute("reset role")
    change = {
        "table": "alter table tasks owner to postgres",
        "schema": "alter schema public owner to postgres; grant usage on schema public to app",
        "type": "alter type task_status owner to postgres",
        "writing": f"alter database {admin.info.dbname} set default_transaction_read_only = on",
        "triggers": f"alter database {admin.info.dbname} set session_replication_role = replica",
    }
    await admin.execute(change[lacks].encode())
    url = app.replace("app@", "postgres@")
    before = await dump(url)
    for look in (planned, migrate):
        with pytest.raises(MissingRight, match="stays as it was; fix: an administrator") as said:
            await look(app)
    assert await dump(url) == before
    await run_as_told(admin, said.value)
    await migrate(app)
    await works(app)


@pytest.mark.parametrize("setting", [*DEFAULTS, *(pytest.param(one, marks=pytest.mark.full) for one in MORE)])
async def test_the_defaults_of_a_database_change_nothing(admin: Admin, setting: str) -> None:
    """The migration ends, its notes are heard, and a pod works."""
    url = f"postgresql://postgres@127.0.0.1:{admin.info.port}/{admin.info.dbname}"
    await admin.execute(TASKS.format(status=TEXT, extra="").encode())
    await admin.execute("insert into tasks (task_type, status) values ('t', 'Complete'), ('t', 'In Progress')")
    await admin.execute(WORKERS)
    await admin.execute("insert into workers values ('old', 'gpu', 'active')")
    await admin.execute(f"alter database {admin.info.dbname} set {setting}".encode())
    async with asyncio.timeout(MIGRATE_S):
        report = await migrate(url)
    assert any("workers from before count as terminated" in note for note in report.notes)
    async with asyncio.timeout(SOON_S):
        await works(url)


# As if the present version had new functions, and the database were of an earlier one.
FORGET_FUNCTIONS = """
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proname like 'internal\\_%'
           and not exists (select from pg_depend d where d.refobjid = p.oid and d.refclassid = 'pg_proc'::regclass)
    loop
        execute format('drop function %s', v_function);
    end loop;
    update public.schema_migrations set checksum = '' where version like 'functions/%';
end
$$"""
OWNERS = """
select distinct pg_get_userbyid(p.proowner) from pg_proc p where p.pronamespace = 'public'::regnamespace
union select pg_get_userbyid(c.relowner) from pg_class c where c.relnamespace = 'public'::regnamespace"""


@pytest.mark.parametrize("second", ["postgres", "colleague"])
async def test_another_login_may_bring_the_schema_up_to_date(
    alone: EmbeddedPostgres, admin: Admin, app: str, second: str
) -> None:
    """A superuser, or a member of the first login's role: what it makes belongs to the first login, and pods go on."""
    await admin.execute("create role gpu_worker nologin; grant gpu_worker to app")
    await admin.execute("create role colleague login in role app")
    try:
        await migrate(app)
        await admin.execute(FORGET_FUNCTIONS)
        await migrate(alone.url_of(admin.info.dbname).replace("postgres@", f"{second}@"))
        assert await (await admin.execute(OWNERS)).fetchall() == [("app",)]
        await works(app)
    finally:
        await admin.execute("drop owned by colleague; drop role colleague")


async def test_a_superuser_is_told_whose_triggers_run_as_it(alone: EmbeddedPostgres, admin: Admin, app: str) -> None:
    """The owner of the table could do everything on the server. Its own migration gives it nothing new."""
    async with await psycopg.AsyncConnection.connect(app, autocommit=True) as owner:
        await owner.execute(TASKS.format(status=TEXT, extra="").encode())
    notes = (await migrate(alone.url_of(admin.info.dbname))).notes
    (note,) = (note for note in notes if "superuser" in note)
    assert "tasks belongs to app, whose triggers on it now run as the superuser postgres" in note
    await removed(alone.url_of(admin.info.dbname))
    await admin.execute("grant gpu_worker to app")
    assert not any("superuser" in note for note in (await migrate(app)).notes)
