"""Whether a connection has a session of its own, or a transaction pooler gives each transaction another one.

In a pooler's session, prepared statements, settings and LISTEN are lost between two transactions, without an error. The
port says nothing about it, so the connection is tried.
"""

import secrets
from collections.abc import Awaitable, Callable

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from orchestrator.adapters.call_deadline import CallDeadline

Connection = psycopg.AsyncConnection[TupleRow]
HEARD_WITHIN_S = 3.0  # a notification arrives within milliseconds; a pooler never delivers it
WHICH = "select pg_backend_pid()"


async def is_direct(connection: Connection) -> bool:
    """Return whether the server itself, and no pooler, has said which session this is."""
    return await _session(connection) == connection.info.backend_pid


async def keeps_session(connection: Connection, connect: Callable[[], Awaitable[Connection]], limit_s: float) -> bool:
    """Return whether a pooler leaves the connection its session. psycopg.Error if that cannot be found out.

    `connection` is in autocommit mode and prepares no statements; `connect` opens another one like it.
    """
    limit = CallDeadline(limit_s)
    async with await connect() as other:
        with limit.on(connection), limit.on(other):
            try:
                return await _is_separate(connection, other) and await _hears(connection, other)
            except psycopg.errors.ProtocolViolation:  # PgBouncer gives each statement another session
                return False


async def _is_separate(connection: Connection, other: Connection) -> bool:
    mine = await _session(connection)
    async with other.transaction():  # keeps its session busy, so that a pooler must use another one for us
        return await _session(other) != mine and await _session(connection) == mine


async def _session(connection: Connection) -> int:
    row = await (await connection.execute(WHICH)).fetchone()
    return int(row[0]) if row else 0


async def _hears(connection: Connection, other: Connection) -> bool:
    channel = sql.Identifier(f"orchestrator_{secrets.token_hex(8)}")
    await connection.execute(sql.SQL("listen {}").format(channel))
    await other.execute(sql.SQL("notify {}").format(channel))
    heard = [notice async for notice in connection.notifies(timeout=HEARD_WITHIN_S, stop_after=1)]
    await connection.execute(sql.SQL("unlisten {}").format(channel))
    return bool(heard)
