"""Apply steps to a database: one migrator at a time, short locks, bounded retries."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psycopg
from psycopg.rows import TupleRow

from orchestrator.migrate.ledger import Connection
from orchestrator.migrate.steps import ADOPTION, ENTER, RELOAD, SETTINGS, Statement, Step
from orchestrator.ports import SchemaMismatch, Unavailable

LOCK_KEY = 0x6F72_6368_6573_7472  # "orchestr": pg_try_advisory_xact_lock(bigint)
MIGRATOR_WAIT_S = 600  # seconds to wait for another migrator, which may be building indexes
MIGRATOR_POLL_S = 0.2
LOCK_TIMEOUT_S = 0.5  # seconds for a table lock: other users of the table wait behind this one for as long
LOCK_TRIES = 60
LOCK_PAUSE_S = 0.5  # seconds between two tries, so that waiting users of the table can continue
INDEX_TIMEOUT_S = 3600  # CREATE INDEX CONCURRENTLY waits for old transactions, and no other statement waits for it
CONNECT_TIMEOUT_S = 15
TELL_S = 5.0  # between two lines about the progress of the adoption
# For statements outside a transaction, whatever the role or the database has as its default.
OF_SESSION = {
    "statement_timeout": "0",
    "default_transaction_isolation": "read committed",
    "quote_all_identifiers": "off",
    "client_min_messages": "notice",
}

# In PostgreSQL's context of an error, the innermost function that is not ours.
USERS_FUNCTION = re.compile(r"function (?!(?:public\.)?internal_|inline_)(\S+\([^()]*\))")
NOT_FOUND = ("42P01", "42883", "42704", "3F000")  # SQLSTATEs of a name that the search path does not find
OUR_CLASS = "OR"
INDEX = re.compile(r"create (?:unique )?index concurrently if not exists (\w+)", re.IGNORECASE)
# For a pooler that gives each transaction, or each statement, another session.
SESSION_URL = "use the server itself or a session pooler in DATABASE_URL (Supabase: port 5432; PgBouncer: pool_mode)"
INVALID = """select true from pg_catalog.pg_index i
 where i.indexrelid = to_regclass('public.' || %s) and not i.indisvalid"""
MAY_ENTER = """select pg_has_role(n.nspowner, 'usage') from pg_catalog.pg_namespace n
 where n.nspname = 'orchestrator'"""
NO_TIMEOUTS = """select set_config(name, '0', true) from pg_catalog.pg_settings
 where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')"""
HOLDERS = """
select distinct format('%s (%s, %s) on %s', a.pid, coalesce(nullif(a.application_name, ''), a.usename), a.state,
                       l.relation::regclass)
  from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a using (pid)
 where l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
   and l.relation in (to_regclass('public.tasks'), to_regclass('public.workers')) and l.granted
   and pid <> pg_backend_pid() order by 1 limit 5
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Open a connection in autocommit mode that a pooler can share. Unavailable if the database does not answer."""
    try:
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, prepare_threshold=None
        ) as connection:
            # At a higher level, a migrator that waits for its lock holds a snapshot, for which each index build waits.
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            yield connection
    except psycopg.errors.ProtocolViolation as error:  # PgBouncer gives each statement another session
        raise Unavailable(f"the database cannot be migrated here: {error}; fix: {SESSION_URL}") from error
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database cannot be migrated now: {error}") from error


@asynccontextmanager
async def alone(url: str) -> AsyncIterator[Connection]:
    """Keep other migrators of this database out.

    The lock belongs to a transaction on its own connection, because a pooler may give each transaction another session,
    and CREATE INDEX CONCURRENTLY cannot run in a transaction. It is tried in short transactions and not awaited in one:
    the index build of the migrator with the lock would wait for a transaction that holds a snapshot.
    """
    async with connected(url) as connection:
        for _ in range(int(MIGRATOR_WAIT_S / MIGRATOR_POLL_S)):
            async with connection.transaction():
                await connection.execute(NO_TIMEOUTS)
                tried = await connection.execute("select pg_try_advisory_xact_lock(%s)", (LOCK_KEY,))
                if await tried.fetchone() == (True,):
                    yield connection
                    return
            await asyncio.sleep(MIGRATOR_POLL_S)
    raise Unavailable(f"another migrator has been at work on this database for {MIGRATOR_WAIT_S} s")


async def apply(connection: Connection, step: Step) -> None:
    """Apply one step. Unavailable if a table stays locked; SchemaMismatch if a statement does not fit the database."""
    for tried in range(1, LOCK_TRIES + 1):
        try:
            await (_together if step.in_transaction else _one_by_one)(connection, step)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if tried == LOCK_TRIES:
                raise Unavailable(await _waited(connection, error)) from error
            await asyncio.sleep(LOCK_PAUSE_S)
        else:
            return


async def adopt(connection: Connection, step: Step, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Bring the tasks that were there before into the queue, a batch in each transaction. Return the notes."""
    (statement,) = step.statements
    _, leased, stale, locked, unknown = await _whole(connection, statement, tell)
    found = (
        (leased, "tasks In Progress got a lease of one hour; whoever runs them has until then to finish"),
        (stale, "tasks In Progress have not changed for a day: no worker starts for them, and none is queued again"),
        (unknown, "tasks keep a status that this system does not know; they are never claimed"),
        (locked, "tasks are locked by open transactions of yours; the leader adds them to the queue when these end"),
    )
    return tuple(f"{number} {text}" for number, text in found if number)


async def enter_missing(connection: Connection, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Bring open tasks that are missing in the queue into it. Return the notes."""
    if await (await connection.execute(MAY_ENTER)).fetchone() != (True,):
        return ()
    entered, locked, unfit = await _whole(connection, Statement(ADOPTION, ENTER), tell)
    found = (
        (entered, "tasks were missing in the queue, and are in it now"),
        (locked, "tasks are missing in the queue, locked by open transactions; the leader adds them when these end"),
        (unfit, "tasks cannot be in the queue: see the warnings `cannot be queued` in the log of PostgreSQL"),
    )
    return tuple(f"{number} {text}" for number, text in found if number)


async def _whole(connection: Connection, statement: Statement, tell: Callable[[str], None]) -> list[int]:
    """Repeat a statement that reads the next pages of `tasks` until all are read. Return the sums of its counts."""
    began, told = time.monotonic(), time.monotonic()
    first: int | None = None
    blocks, totals = 0, [0] * 5
    while True:
        text = statement.text.format(first=blocks)
        blocks, all_blocks, *counts = await _batch(connection, Statement(statement.path, text))
        totals = [total + n for total, n in zip(totals, counts, strict=False)]
        now = time.monotonic()
        if blocks >= all_blocks:
            return totals
        if first is None:
            first, began = blocks, now
        elif now - told > TELL_S and blocks > first:
            left_s = (all_blocks - blocks) * (now - began) / (blocks - first)
            in_queue = f"{totals[0]} have come into the queue"
            tell(f"{blocks / all_blocks:.0%} of tasks is read, {in_queue}; about {left_s:.0f} s left")
            told = now


async def _batch(connection: Connection, statement: Statement) -> tuple[int, ...]:
    for tried in range(1, LOCK_TRIES + 1):
        try:
            async with connection.transaction():
                await connection.execute(NO_TIMEOUTS)
                return await (await _execute(connection, statement)).fetchone() or ()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if tried == LOCK_TRIES:
                raise Unavailable(await _waited(connection, error)) from error
            await asyncio.sleep(LOCK_PAUSE_S)
    raise AssertionError("unreachable")


async def _together(connection: Connection, step: Step) -> None:
    async with connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S * 1000:g}ms'")
        await connection.execute(NO_TIMEOUTS)
        for setting in SETTINGS:
            await connection.execute(setting.encode())
        for statement in step.statements:
            await _execute(connection, statement)
        if step.versions:
            await connection.execute(RELOAD)


async def _one_by_one(connection: Connection, step: Step) -> None:
    """Apply statements with settings of the session, without a transaction. Reset them for a pooler's next client."""
    for name, value in OF_SESSION.items():
        await connection.execute(f"set {name} = '{value}'".encode())
    try:
        for statement in step.statements:
            index = INDEX.search(statement.text)
            timeout_s = INDEX_TIMEOUT_S if index else LOCK_TIMEOUT_S
            await connection.execute(f"set lock_timeout = '{timeout_s * 1000:g}ms'".encode())
            if index and await (await connection.execute(INVALID, (index[1],))).fetchone():
                await connection.execute(f"drop index concurrently public.{index[1]}".encode())
            await _execute(connection, statement)
    finally:
        with suppress(psycopg.OperationalError):
            await connection.execute("; ".join(f"reset {name}" for name in ("lock_timeout", *OF_SESSION)).encode())


async def _execute(connection: Connection, statement: Statement) -> psycopg.AsyncCursor[TupleRow]:
    try:
        return await connection.execute(statement.text.encode())
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        error.add_note(f"{statement.path}: {_title(statement.text, error.diag.context)}")
        raise
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        detail = f": {error.diag.message_detail}" if error.diag.message_detail else ""
        ours = (error.sqlstate or "").startswith(OUR_CLASS) and error.diag.message_hint  # PostgreSQL's own is no fix
        fix = of_function(error) or f"; fix: {ours or 'change in the database what this names, and repeat this'}"
        raise SchemaMismatch(
            f"{statement.path} cannot be applied: {error.diag.message_primary}{detail}. "
            f"Nothing of this file was changed{fix}"
        ) from error


def of_function(error: psycopg.Error) -> str:
    """Name the function of the user's that failed, such as an event trigger's, with a fix; empty if it was none."""
    function = USERS_FUNCTION.search(error.diag.context or "")
    if not function:
        return ""
    named = (
        f"name the schemas in it, or: alter function {function[1]} set search_path = public"
        if (error.sqlstate or "") in NOT_FOUND
        else "let it accept this, or, if an event trigger calls it: alter event trigger … disable, while migrate runs"
    )
    return f", in the function {function[1]}; fix: {named}"


async def _waited(connection: Connection, error: psycopg.OperationalError) -> str:
    rows = await (await connection.execute(HOLDERS)).fetchall()
    holders = "; sessions with locks: " + ", ".join(holder for (holder,) in rows) if rows else ""
    return (
        f"no lock within {LOCK_TRIES} tries of {LOCK_TIMEOUT_S} s: {' '.join(error.__notes__)}{holders}; "
        "fix: end the transaction that holds it (pg_stat_activity, pg_terminate_backend) and run migrate again"
    )


def _title(text: str, context: str | None) -> str:
    """Return the title of the statement that waited.

    PostgreSQL's context within a block, else the first line of code.
    """
    if context:
        return " ".join(context.split())
    return next(line.strip() for line in text.split("\n") if line.strip() and not line.startswith("--"))
