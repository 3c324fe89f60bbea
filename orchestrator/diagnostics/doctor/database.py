"""The database: connection, version, schema, functions, and the leader."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator import wiring
from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.session_test import is_direct, keeps_session
from orchestrator.config.settings import Settings
from orchestrator.config.validation import lacks, require
from orchestrator.core import moments
from orchestrator.core.meanings import START_LEADER
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.diagnostics.scaling_reviews import told
from orchestrator.errors import MIGRATE
from orchestrator.migrate import lost_of, sql_files
from orchestrator.migrate.rights import pods_can_call, pods_lack
from orchestrator.migrate.run import MAY_ENTER, SESSION_URL
from orchestrator.ports import BadToken, PortError, SchemaMismatch

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

OWNER = "use the role that ran the migrations; on Supabase, the secret key (service_role)"
# The functions that this login may not execute, and who made them.
RIGHTS = """
select count(*), min(pg_catalog.pg_get_userbyid(p.proowner)), current_user, to_regrole('service_role') is not null
  from pg_catalog.pg_proc p
 where p.pronamespace = to_regnamespace('public') and p.proname = any (%s)
   and not pg_catalog.has_function_privilege(p.oid, 'execute')
"""
MISSING = "select count(*) from (select from orchestrator.missing limit %s) m"
NAMED_MISSING = 1000  # more are not counted
MISSING_TIMEOUT_S = 10
READ_ONLY = "select current_setting('default_transaction_read_only') = 'on', pg_catalog.pg_is_in_recovery()"
OLDEST = 150_000  # PostgreSQL 15, as server_version_num
CONNECT_TIMEOUT_S = 10
WHAT_IF = "python -m orchestrator what-if, and if it says the same: SCALING_POLICY"


async def database(settings: Settings, section: Section) -> None:
    """Check connection, version, schema and functions."""
    require(settings, "database")
    if settings.database_url is not None and not await _server(settings.database_url.get_secret_value(), section):
        section.skip("its schema and functions", "it cannot be used")
        return
    fix = migrates(settings)
    if settings.database_url is not None and not await _complete(settings.database_url.get_secret_value(), section):
        section.skip("its schema and functions", "it is damaged")
        return
    async with wiring.open_store(settings) as store:
        try:
            there = await store.check_functions()
        except SchemaMismatch as error:
            why = str(error).partition("; fix: ")[0]
            section.fail("its schema is not this version's", why, fix)
            return
        except BadToken as error:
            section.fail("its functions may not be called", str(error), OWNER)
            return
        ours = sql_files().version
        standing = ours.standing(there)
        if standing == "older":  # what it lacks otherwise, the migration brings
            section.fail("its schema is older than this program", f"it has {there}, this program brings {ours}", fix)
            return
        problems = [*await store.schema_problems(), *await store.trigger_problems()]
        for problem in problems:
            section.fail(problem["what"], problem["why"], problem["fix"])
        if standing == "newer":
            why = f"it has {there}, this program knows {ours}"
            section.warn("its schema is newer than this program", why, "deploy the newer program here too")
        else:
            section.ok("its schema is current", there)
        if settings.database_url is not None:
            await _pods(settings.database_url.get_secret_value(), section)
            await _missing(settings.database_url.get_secret_value(), section)
        try:
            seen = await store.snapshot()
        except BadToken as error:
            if not problems:
                section.fail("its functions may not be called", str(error), OWNER)
            return
        section.ok("its functions answer", f"{counted(len(seen.workers), 'live worker')} in fleet {settings.fleet_id}")


def migrates(settings: Settings) -> str:
    """Return how to create or update the tables."""
    return MIGRATE["DATABASE_URL" if settings.database_url is not None else "SUPABASE_URL"]


async def leader(settings: Settings, section: Section) -> None:
    """Show who leads. A second orchestrator of the same fleet stands by."""
    if missing := lacks(settings, "database"):
        section.skip("who leads", missing)
        return
    reviews: Sequence[Mapping[str, Any]] = ()
    try:
        async with wiring.open_store(settings) as store:
            found = (await store.explain_scaling())["leader"]
            with suppress(PortError):  # a schema before the reviews: the section `database` says so
                reviews = (await store.economics.reviews())["reviews"]
    except PortError as error:
        section.skip("who leads", f"{type(error).__name__}: {error}")
        return
    if not found:
        why = f"nobody holds the lease of fleet {settings.fleet_id}, so nothing is decided"
        section.warn("no orchestrator leads", why, START_LEADER)
        _reviews(reviews, section)
        return
    since = moments.moment(found["since"]).astimezone(UTC)
    led = f"{found['holder']} since {since:%Y-%m-%d %H:%M:%SZ}, term {found['term']}"
    section.ok("an orchestrator leads; another one would stand by", led)
    _reviews(reviews, section)


def _reviews(rows: Sequence[Mapping[str, Any]], section: Section) -> None:
    """Say what another rule of scaling would have cost."""
    for one in told(rows):
        if one.is_better:
            section.note(one.sentence, one.basis, WHAT_IF)
        else:
            section.ok(one.sentence, one.basis)


async def _server(url: str, section: Section) -> bool:
    """Connect once without a pool, because a pool does not report the reason of a failure."""
    import psycopg  # noqa: PLC0415  not needed if Supabase's API is the transport

    try:
        async with await _connect(url) as connection:
            version, port = connection.info.server_version, connection.info.port
            direct = await is_direct(connection)
            listens = direct or await keeps_session(connection, partial(_connect, url), CONNECT_TIMEOUT_S)
            may_not = await _rights(connection)
            read_only, standby = await (await connection.execute(READ_ONLY)).fetchone() or (False, False)
    except (psycopg.Error, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        is_late = isinstance(error, psycopg.errors.ConnectionTimeout)
        what = f"the database did not answer within {CONNECT_TIMEOUT_S} s" if is_late else "no connection to it"
        section.fail(what, why, 'psql "$DATABASE_URL" -c "select 1"')
        return False
    shown = f"PostgreSQL {version // 10_000}.{version % 10_000}"
    if version < OLDEST:
        section.fail("it is too old", f"{shown}; 15 or newer is needed", "move to PostgreSQL 15 or newer")
    elif not listens:
        why = f"port {port} gives each transaction another session: no LISTEN, so changes are polled for every second"
        section.warn("it answers, through a transaction pooler", why, SESSION_URL)
    else:
        through = "" if direct else ", through a session pooler"
        section.ok("it answers", f"{shown}, port {port}{through}: LISTEN works")
    if standby:
        section.fail("it is a standby", "it allows no writes", "use the primary server in DATABASE_URL")
    elif read_only:
        fix = "alter role … or alter database … reset default_transaction_read_only"
        section.fail("it allows no writes", "default_transaction_read_only is on for this role or database", fix)
    if may_not:
        section.fail(*may_not)
    return not (standby or may_not)


async def _connect(url: str) -> "AsyncConnection[TupleRow]":
    import psycopg  # noqa: PLC0415  not needed if Supabase's API is the transport

    return await psycopg.AsyncConnection.connect(
        url, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True, prepare_threshold=None
    )


async def _complete(url: str, section: Section) -> bool:
    """Check that nothing of the queue's schema was dropped."""
    import psycopg  # noqa: PLC0415  not needed if Supabase's API is the transport

    try:
        async with await _connect(url) as connection:
            lost = await lost_of(connection)
    except (psycopg.Error, SchemaMismatch):  # it is no database of ours: what follows says so
        return True
    if lost:
        section.fail("its queue was dropped in part", f"missing: {lost}", MIGRATE["DATABASE_URL"])
    return not lost


async def _missing(url: str, section: Section) -> None:
    """Count the open tasks that are missing in the queue. It only reads."""
    import psycopg  # noqa: PLC0415  not needed if Supabase's API is the transport

    try:
        async with await _connect(url) as connection, connection.transaction():
            await connection.execute(f"set transaction read only; set local statement_timeout = '{MISSING_TIMEOUT_S}s'")
            if await (await connection.execute(MAY_ENTER)).fetchone() != (True,):
                return
            (count,) = await (await connection.execute(MISSING, (NAMED_MISSING + 1,))).fetchone() or (0,)
    except psycopg.Error as unanswered:
        section.skip("whether every open task is in the queue", " ".join(str(unanswered).split()))
        return
    if count:
        shown = f"more than {NAMED_MISSING:,} tasks" if count > NAMED_MISSING else counted(count, "task")
        why = f"{shown} Queued or In Progress; the leader finds them within an hour"
        section.fail("open tasks are missing in the queue", why, MIGRATE["DATABASE_URL"])


async def _pods(url: str, section: Section) -> None:
    """Call a function as the gateway does for a pod."""
    import psycopg  # noqa: PLC0415  not needed if Supabase's API is the transport

    try:
        async with await _connect(url) as connection:
            error, lacking = await pods_can_call(connection), await pods_lack(connection)
    except psycopg.Error as unanswered:
        section.skip("the call of a pod", " ".join(str(unanswered).split()))
        return
    if error and lacking:
        fix = f"an administrator of the database runs: {lacking}; then: {MIGRATE['DATABASE_URL']}"
        section.warn("pods can call through the gateway only, not through Supabase's API", error, fix)
    elif error:
        section.fail("pods cannot call its functions", error, MIGRATE["DATABASE_URL"])


async def _rights(connection: "AsyncConnection[TupleRow]") -> tuple[str, str, str] | None:
    """Return what this login may not do, why, and the statement that changes it; None if it may call every function."""
    row = await (await connection.execute(RIGHTS, (list(FUNCTIONS),))).fetchone()
    if row is None or not row[0]:
        return None
    lacking, owner, user, has_service = row
    why = f"the role {user} has no EXECUTE on {lacking} functions of the orchestrator; rights on tables do not help"
    calls = "" if has_service else f"; grant execute on all functions in schema public to {user}, after each migrate"
    roles = "service_role, gpu_worker" if has_service else "gpu_worker"
    return "its functions may not be called", why, f"DATABASE_URL of {owner}, or: grant {roles} to {user}{calls}"
