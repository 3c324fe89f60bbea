"""Apply steps to a database: one migrator at a time, short locks, bounded retries."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg

from orchestrator.migrate.ledger import Connection
from orchestrator.migrate.steps import RELOAD, SETTINGS, Statement, Step
from orchestrator.ports import SchemaMismatch, Unavailable

LOCK_KEY = 0x6F72_6368_6573_7472  # "orchestr": pg_try_advisory_xact_lock(bigint)
MIGRATOR_WAIT_S = 600  # seconds to wait for another migrator, which may be building indexes
MIGRATOR_POLL_S = 0.2
LOCK_TIMEOUT_S = 3  # seconds for a table lock: other users of the table wait behind this one for as long
LOCK_TRIES = 20
LOCK_PAUSE_S = 1.0  # seconds between two tries, so that waiting users of the table can continue
INDEX_TIMEOUT_S = 3600  # CREATE INDEX CONCURRENTLY waits for old transactions, and no other statement waits for it
CONNECT_TIMEOUT_S = 15

INDEX = re.compile(r"create (?:unique )?index concurrently if not exists (\w+)", re.IGNORECASE)
INVALID = """select true from pg_catalog.pg_index i
 where i.indexrelid = to_regclass('public.' || %s) and not i.indisvalid"""
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
            yield connection
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
                await connection.execute("set local idle_in_transaction_session_timeout = 0")
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


async def _together(connection: Connection, step: Step) -> None:
    async with connection.transaction():
        await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_S}s'")
        await connection.execute("set local statement_timeout = 0")
        for setting in SETTINGS:
            await connection.execute(setting.encode())
        for statement in step.statements:
            await _execute(connection, statement)
        await connection.execute(RELOAD)


async def _one_by_one(connection: Connection, step: Step) -> None:
    """Apply statements with settings of the session, without a transaction. Reset them for a pooler's next client."""
    await connection.execute("set statement_timeout = 0")
    try:
        for statement in step.statements:
            index = INDEX.search(statement.text)
            timeout_s = INDEX_TIMEOUT_S if index else LOCK_TIMEOUT_S
            await connection.execute(f"set lock_timeout = '{timeout_s}s'".encode())
            if index and await (await connection.execute(INVALID, (index[1],))).fetchone():
                await connection.execute(f"drop index concurrently public.{index[1]}".encode())
            await _execute(connection, statement)
    finally:
        with suppress(psycopg.OperationalError):
            await connection.execute("reset statement_timeout; reset lock_timeout")


async def _execute(connection: Connection, statement: Statement) -> None:
    try:
        await connection.execute(statement.text.encode())
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        error.add_note(f"{statement.path}: {_title(statement.text, error.diag.context)}")
        raise
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        hint = f"; fix: {error.diag.message_hint}" if error.diag.message_hint else ""
        raise SchemaMismatch(
            f"{statement.path} does not fit this database, which stays as it was before that file: "
            f"{error.diag.message_primary}: {error.diag.message_detail or ''}{hint}"
        ) from error


async def _waited(connection: Connection, error: psycopg.OperationalError) -> str:
    rows = await (await connection.execute(HOLDERS)).fetchall()
    holders = "; sessions with locks: " + ", ".join(holder for (holder,) in rows) if rows else ""
    return (
        f"a lock was not to be had in {LOCK_TRIES} tries of {LOCK_TIMEOUT_S} s: {' '.join(error.__notes__)}{holders}; "
        "fix: end the transaction that holds it (pg_stat_activity, pg_terminate_backend) and run migrate again"
    )


def _title(text: str, context: str | None) -> str:
    """Return the title of the statement that waited.

    PostgreSQL's context within a block, else the first line of code.
    """
    if context:
        return " ".join(context.split())
    return next(line.strip() for line in text.split("\n") if line.strip() and not line.startswith("--"))
