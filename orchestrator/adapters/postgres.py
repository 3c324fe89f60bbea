"""The direct transport: a psycopg pool on DATABASE_URL.

Every call is one statement in its own transaction, with a deadline on both sides. One more connection listens for
notifications, for all listeners of this process.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Self

import psycopg
import psycopg_pool
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads

from orchestrator.adapters.call_deadline import CallDeadline
from orchestrator.adapters.connection_test import CONNECT_TIMEOUT_S, connection_error
from orchestrator.adapters.functions import refusal
from orchestrator.adapters.notifications import ASKS, CONNECTED, FLEET, POLL_S, TASKS, Listeners, Publish, poll
from orchestrator.adapters.replies import loads
from orchestrator.adapters.session_test import is_direct, keeps_session
from orchestrator.adapters.statements import bind, statement
from orchestrator.ports import DatabaseAuth, EncodedTasks, PortError, TooManyConnections, Unavailable
from worker import protocol

CHANNELS = (TASKS, FLEET, ASKS)
PREPARE_AFTER = 5  # calls of a statement
DEADLOCK = "40P01"  # the transaction was rolled back, so a repetition is safe
DEADLOCK_TRIES = 4
BROKEN = (None, "57P01", "57P02")  # the connection is lost, or the server stopped or crashed
TASKS_KEY = "tasks"
CLAIMING = frozenset({protocol.CLAIM, protocol.COMPLETE_AND_CLAIM})  # functions whose answers have tasks
CLAIMS = "the claims"  # no argument can have this name
POD = b"set_config('orchestrator.caller', 'pod', true), set_config('request.jwt.claims', %(the claims)s, true); "
AS_POD = b"select " + POD
AS_ROLE = b"select set_config('role', 'gpu_worker', true), " + POD
NO_ROLE = ("22023", "42501")  # the role does not exist, or this login may not take it on
RECONNECT_TIMEOUT_S = 5.0  # the pool then waits for the next call, because its own back-off grows to minutes
CLOSE_TIMEOUT_S = 5.0
POOL_SHARE = 0.9  # of a call's time; the rest is for a connection test
SERVER_SHARE = 0.9  # so that the server cancels a statement first, and it is known to be rolled back
# Claims at a higher level, which a database or role may have as its default, would fail as serialization errors.
LEVEL = "select set_config('default_transaction_isolation', 'read committed', false)"
# With another encoding as the default, one character that it lacks would stop the claims of all tasks.
ENCODING = "select set_config('client_encoding', 'UTF8', false)"
STAY = "select set_config('idle_session_timeout', '0', false)"  # a role's limit would end each pause with a failed call
LISTEN_PROBE_S = 20.0  # idle time after which the connection is tested
LISTEN_BACKOFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)


class PostgresDb:
    """A Db over psycopg (see ports.Db). Use `open`, or call `start` once inside a running loop."""

    def __init__(
        self,
        url: str,
        *,
        application_name: str = "orchestrator",
        pool_size: int = 4,
        kept: int = 1,
        call_timeout_s: float = 15,
    ) -> None:
        self._conninfo = make_conninfo(
            url,
            application_name=conninfo_to_dict(url).get("application_name", application_name),
            connect_timeout=CONNECT_TIMEOUT_S,
            keepalives_idle=20,
            keepalives_interval=5,
            keepalives_count=3,
        )
        self._call_timeout_s = call_timeout_s
        self._size, self._kept = pool_size, kept
        self._pool = self._new_pool()
        self._listeners = Listeners(self._hear)
        self._pooler_keeps_sessions: bool | None = None  # None: not found out
        self._has_role = True  # until a call of a pod shows that there is no role gpu_worker for this login
        self._checking: asyncio.Task[None] | None = None
        self._testing: asyncio.Task[PortError | None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        application_name: str = "orchestrator",
        pool_size: int = 4,
        kept: int = 1,
        call_timeout_s: float = 15,
    ) -> Self:
        """Return a started Db with at most `pool_size` connections, of which `kept` stay open when idle.

        It does not wait for the database; the first call does.
        """
        db = cls(url, application_name=application_name, pool_size=pool_size, kept=kept, call_timeout_s=call_timeout_s)
        await db.start()
        return db

    async def start(self) -> None:
        """Open the pool."""
        await self._pool.open(wait=False)

    async def resize(self, size: int) -> None:
        """Limit the connections to `size`. If this is not more than before, close idle connections now."""
        grows, self._size = size > self._size, size
        if grows:
            await self._pool.resize(self._kept, size)
            return
        before, self._pool = self._pool, self._new_pool()
        await self._pool.open(wait=False)
        await before.close(timeout=CLOSE_TIMEOUT_S)  # a connection in use is closed after its call

    def _new_pool(self) -> psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]]:
        return psycopg_pool.AsyncConnectionPool(
            self._conninfo,
            min_size=self._kept,
            max_size=self._size,
            open=False,
            timeout=self._call_timeout_s,
            reconnect_timeout=RECONNECT_TIMEOUT_S,
            reconnect_failed=_try_on,
            kwargs={"autocommit": True, "prepare_threshold": None},
            configure=self._configure,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._listeners.close()
        for task in (self._checking, self._testing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._checking = self._testing = None
        await self._pool.close(timeout=CLOSE_TIMEOUT_S)

    async def call(self, function: str, /, **args: Any) -> Any:
        """Return the function's decoded jsonb. Raises the port's error for the SQLSTATE.

        Unavailable without a clear answer.
        """
        return await self._bounded(None, function, args)

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """Call as a pod, as PostgREST does: role gpu_worker and the claims of its token, for one transaction.

        Without that role the functions check the claims all the same.
        """
        try:
            return await self._bounded(claims, function, args)
        except PortError as error:
            why = error.__cause__
            if not (self._has_role and isinstance(why, psycopg.Error) and why.sqlstate in NO_ROLE):
                raise
            if '"gpu_worker"' not in str(why):  # another right that lacks
                raise
            self._has_role = False
            return await self._bounded(claims, function, args)

    async def heartbeats(self, batch: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Call `fleet_heartbeats`; return the workers' answers by their ids."""
        answers: Mapping[str, Any] = await self.call("fleet_heartbeats", p_beats=batch)
        return answers

    async def _bounded(self, claims: Mapping[str, Any] | None, function: str, args: Mapping[str, Any]) -> Any:
        apart = TASKS_KEY if claims is not None and function in CLAIMING else None
        text = statement(function, tuple(args), apart=apart)
        values = {name: bind(name, value) for name, value in args.items()}
        limit = CallDeadline(self._call_timeout_s)
        kept_s = self._call_timeout_s * (1 - POOL_SHARE)
        for attempt in range(1, DEADLOCK_TRIES + 1):
            try:
                async with self._pool.connection(timeout=max(0.0, limit.left_s - kept_s)) as connection:
                    with limit.on(connection):
                        return await _replaced_if_read_only(connection, self._once(connection, claims, text, values))
            except psycopg_pool.PoolTimeout as error:
                raise await self._no_connection(function, limit) from error
            except psycopg.Error as error:
                if error.sqlstate == DEADLOCK and attempt < DEADLOCK_TRIES:
                    continue
                if error.sqlstate in BROKEN:  # other connections of the pool are probably lost too
                    self._check_pool()
                if limit.is_over:
                    raise Unavailable(f"{function}: no answer within {self._call_timeout_s:g} s") from error
                raise _port_error(function, error) from error
        raise AssertionError("unreachable")

    async def _once(
        self,
        connection: psycopg.AsyncConnection[TupleRow],
        claims: Mapping[str, Any] | None,
        statement: bytes,
        values: Mapping[str, Any],
    ) -> Any:
        if claims is None:
            return await _value(connection, statement, values)
        # Both statements are in one message, which the server runs as one transaction. With BEGIN and COMMIT, each of a
        # thousand agents' calls would wait four times for our event loop. The values are quoted here, because such a
        # message has no parameters.
        before = AS_ROLE if self._has_role else AS_POD
        cursor = psycopg.AsyncClientCursor(connection)
        set_json_loads(_undecoded, cursor)
        await cursor.execute(before + statement, {CLAIMS: json.dumps(dict(claims)), **values})
        cursor.nextset()
        row = await cursor.fetchone()
        answer = loads(_of_row(row))
        if row is not None and len(row) > 1 and row[1] is not None:
            answer[TASKS_KEY] = EncodedTasks(row[1])
        return answer

    async def _no_connection(self, function: str, limit: CallDeadline) -> PortError:
        """Return why the pool has no connection, while time is left. All waiting calls share one connection test."""
        testing = self._testing
        if testing is None or testing.done():
            testing = self._testing = asyncio.create_task(
                connection_error(self._conninfo), name="database_connection_test"
            )
        await asyncio.wait({testing}, timeout=limit.left_s)
        why = testing.result() if testing.done() else None
        if isinstance(why, DatabaseAuth | TooManyConnections):
            return type(why)(f"{function}: {why}")
        detail = f": {why}" if why else ""
        return Unavailable(f"{function}: no connection within {self._call_timeout_s:g} s{detail}")

    async def _configure(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        set_json_loads(loads, connection)
        if await self._keeps_session(connection):
            connection.prepare_threshold = PREPARE_AFTER
            limit_ms = int(self._call_timeout_s * 1000 * SERVER_SHARE)
            await connection.execute("select set_config('statement_timeout', %s, false)", (str(limit_ms),))
            await connection.execute(
                "select set_config('idle_in_transaction_session_timeout', %s, false)", (str(limit_ms),)
            )
            await connection.execute(LEVEL)
            await connection.execute(ENCODING)
            await connection.execute(STAY)

    async def _keeps_session(self, connection: psycopg.AsyncConnection[TupleRow]) -> bool:
        with CallDeadline(self._call_timeout_s).on(connection):
            if await is_direct(connection):
                return True
        if self._pooler_keeps_sessions is None:
            try:
                self._pooler_keeps_sessions = await keeps_session(connection, self._connect, self._call_timeout_s)
            except psycopg.OperationalError:  # such as no room for a second connection
                if connection.broken:
                    raise
        return self._pooler_keeps_sessions is True

    async def _connect(self) -> psycopg.AsyncConnection[TupleRow]:
        return await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def _check_pool(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._pool.check(), name="database_pool_check")

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """Yield (channel, payload) forever, and reconnect if necessary. CONNECTED comes first, and after each gap."""
        return self._listeners.stream()

    async def _hear(self, publish: Publish) -> None:
        """Publish events: from LISTEN, or from a poll if a pooler takes the session away."""
        failures = 0
        while True:
            try:
                async with await self._connect() as connection:
                    if not await self._keeps_session(connection):
                        break
                    await self._listen(connection)
                    failures = 0
                    publish(CONNECTED)
                    while True:
                        async for notice in connection.notifies(timeout=LISTEN_PROBE_S):
                            publish((notice.channel, notice.payload))
                        with CallDeadline(self._call_timeout_s).on(connection):
                            await connection.execute("select 1")
            except psycopg.Error:
                await asyncio.sleep(LISTEN_BACKOFF_S[min(failures, len(LISTEN_BACKOFF_S) - 1)])
                failures += 1
        await poll(self.call, POLL_S, publish)

    async def _listen(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        with CallDeadline(self._call_timeout_s).on(connection):
            await connection.execute(STAY)
            for channel in CHANNELS:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))


async def _try_on(pool: psycopg_pool.AsyncConnectionPool[Any]) -> None:
    """Make waiting calls fail, because the pool has given up and waits for the next call."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


async def _replaced_if_read_only(connection: psycopg.AsyncConnection[TupleRow], call: Awaitable[Any]) -> Any:
    """Return the call's answer. Close a connection that allows no writes: the pool makes a new one in its place.

    A session keeps `default_transaction_read_only` of its start; Supabase sets it while a disk is full.
    """
    try:
        return await call
    except psycopg.errors.ReadOnlySqlTransaction:
        await connection.close()
        raise


def _undecoded(reply: str | bytes) -> bytes:
    return reply if isinstance(reply, bytes) else reply.encode()


async def _value(connection: psycopg.AsyncConnection[TupleRow], statement: bytes, values: Mapping[str, Any]) -> Any:
    return _of_row(await (await connection.execute(statement, values)).fetchone())


def _of_row(row: TupleRow | None) -> Any:
    if row is None:
        raise Unavailable("a function answered without a row")
    return row[0]


def _port_error(function: str, error: psycopg.Error) -> PortError:
    what = error.diag.message_primary or str(error).strip() or type(error).__name__
    return refusal(error.sqlstate, f"{function}: {what}", error.diag.message_detail, error.diag.message_hint)
