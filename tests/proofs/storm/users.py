"""Users' writes to `tasks` while the queue runs: every kind of statement, in transactions that overlap."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

# A user's own sessions give up rather than hold a lock for long; `lock_timeout` also ends a wait for a schema lock.
SESSION = "set lock_timeout = '2s'; set statement_timeout = '5s'"
# What a user's statement may fail with among others: a deadlock or a wait of users' own, a trigger of theirs that
# raises, a row or publication that is there already.
THEIR_OWN = ("40P01", "55P03", "57014", "P0001", "23505", "42710", "42P01")
OPEN_S = 0.05  # how long a user's transaction stays open between two statements
SOME = "array(select id from tasks order by {chance} limit {n})"
CHANCE = "hashtext(id::text || {salt})"

# Single statements, on {n} rows that {salt} chooses.
WRITES: Sequence[str] = (
    "insert into tasks (task_type, priority) select 't', g % 3 from generate_series(1, {n}) g",
    "insert into tasks (task_type, depends_on) select 'child', {some} from generate_series(1, {n})",
    "insert into tasks (task_type, run_after) values ('t', now() + interval '1 second')",
    "insert into tasks (task_type, concurrency_key, tenant) select 'a', n % 2, 'x' from generate_series(1, {n}) n",
    "insert into tasks (task_type, status, worker_id) values ('mine', 'In Progress', 'a program')",
    "update tasks set status = 'Queued', attempts = 0 where id = any ({some})",
    "update tasks set status = 'Queued', worker_id = null where id = any ({some}) and status = 'In Progress'",
    "update tasks set status = 'Cancelled' where id = any ({some})",
    "update tasks set status = 'Complete' where id = any ({some})",
    "update tasks set depends_on = {some} where status = 'Queued' and id = any ({some})",
    "update tasks set worker_id = 'somebody' where id = any ({some}) and status = 'In Progress'",
    "update tasks set priority = priority # 1",
    "update tasks set run_after = null where run_after is not null",
    "delete from tasks where id = any ({some})",
    "update tasks set concurrency_key = 'k' || priority where id = any ({some})",
    "update tasks set task_type = 'limited' where id = any ({some})",
    "select from tasks where id = any ({some}) for update",
    "select task_cancel(id) from tasks order by {chance} limit {n}",
    "select task_retry(id) from tasks where status in ('Failed', 'Cancelled') order by {chance} limit {n}",
)
TRUNCATE = "truncate tasks"
RARE: Sequence[str] = (TRUNCATE, "delete from tasks", "update tasks set status = 'Queued'")

DEEPEST = 3  # triggers of users that fire each other stop there
TRIGGERS: Mapping[str, tuple[str, str]] = {
    "requeues": (
        "after update on tasks for each row",
        "update public.tasks set status = 'Queued' where id = new.id and status = 'Complete' and attempts < 3",
    ),
    "inserts": (
        "after update on tasks for each statement",
        "insert into public.tasks (task_type, depends_on) select 'late', array[id] from public.tasks limit 1",
    ),
    "cancels": (
        "after update on tasks for each row",
        "update public.tasks set status = 'Cancelled' where status = 'Queued' and task_type = 'late'",
    ),
    "takes back": (
        "before update on tasks for each row",
        "if new.status = 'Complete' and new.attempts = 1 then new.status := 'Queued'; end if",
    ),
    "refuses": (
        "before update on tasks for each row",
        "if new.status = 'In Progress' and new.task_type = 'late' then raise 'not this one'; end if",
    ),
    "suppresses": (
        "before update on tasks for each row",
        "if new.status = 'Complete' and new.priority = 1 then return null; end if",
    ),
    "keeps": (
        "before update on tasks for each row",
        "if new.status = 'In Progress' and new.priority = 1 then return old; end if",
    ),
    "sleeps": ("before update on tasks for each row", "perform pg_sleep(0.02)"),
    "raises at the end": (
        "after update on tasks deferrable initially deferred for each row",
        "if new.status = 'Failed' then raise 'not now'; end if",
    ),
}
FUNCTION = """
    create or replace function users_own() returns trigger language plpgsql as $$
    begin
        if pg_trigger_depth() <= {depth} then
            {body};
        end if;
        return {returned};
    end $$"""


class Users:
    """Sessions that write until `until` (of time.monotonic). Refusals are counted by SQLSTATE."""

    def __init__(self, url: str, seed: int, until: float) -> None:
        self._url = url
        self._seed = seed
        self._until = until
        self.done = 0
        self.refused: Counter[str] = Counter()
        self.said: dict[str, str] = {}  # one message of each SQLSTATE
        self._is_locking = False  # a statement that locks the whole table runs, or waits for that lock
        self._locked_until = -math.inf

    def has_locked_table(self, since: float) -> bool:
        """Whether a user's statement locked the whole table, or waited for that, at some time since `since`."""
        return self._is_locking or self._locked_until >= since

    async def write(self, number: int) -> None:
        """A session that writes one statement after the other."""
        await self._session(f"writer {number}", self._one)

    async def hold(self, number: int) -> None:
        """A session whose transactions stay open over several statements."""
        await self._session(f"holder {number}", self._several)

    async def rebuild(self, number: int) -> None:
        """The session that makes and drops triggers and publications, truncates, and puts deleted rows back."""
        await self._session(f"builder {number}", self._structure)

    async def _session(
        self, name: str, act: Callable[[AsyncConnection[TupleRow], random.Random], Awaitable[None]]
    ) -> None:
        dice = random.Random(f"{self._seed} {name}")
        async with await AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute(SESSION)
            while time.monotonic() < self._until:
                try:
                    await act(connection, dice)
                    self.done += 1
                except psycopg.Error as error:
                    state = error.sqlstate or type(error).__name__
                    self.refused[state] += 1
                    self.said.setdefault(state, str(error))
                await asyncio.sleep(dice.random() * OPEN_S)

    async def _one(self, connection: AsyncConnection[TupleRow], dice: random.Random) -> None:
        await connection.execute(self._statement(dice))

    async def _several(self, connection: AsyncConnection[TupleRow], dice: random.Random) -> None:
        async with connection.transaction(force_rollback=dice.random() < 0.2):
            for _ in range(dice.randint(2, 3)):
                await connection.execute(self._statement(dice))
                await asyncio.sleep(dice.random() * OPEN_S)

    async def _structure(self, connection: AsyncConnection[TupleRow], dice: random.Random) -> None:
        kind = dice.randrange(8)
        if kind == 0:
            statement = dice.choice(RARE)
            if statement == TRUNCATE:
                await self._locking(connection, statement)
            else:
                await connection.execute(statement.encode())
        elif kind == 1:
            await connection.execute("create publication everything for all tables")
        elif kind == 2:
            await connection.execute("drop publication if exists everything")
        elif kind < 5:
            await self._locking(connection, "drop function if exists users_own() cascade")
            await self._trigger(connection, *dice.choice(list(TRIGGERS.values())))
        else:
            async with connection.transaction():
                delete = "delete from tasks where id in (select id from tasks limit 5) returning id"
                again = await (await connection.execute(delete)).fetchall()
                await connection.cursor().executemany("insert into tasks (id, task_type) values (%s, 't')", again)

    async def _locking(self, connection: AsyncConnection[TupleRow], statement: str) -> None:
        self._is_locking = True
        try:
            await connection.execute(statement.encode())
        finally:
            self._is_locking, self._locked_until = False, time.monotonic()

    async def _trigger(self, connection: AsyncConnection[TupleRow], moment: str, body: str) -> None:
        text = FUNCTION.format(depth=DEEPEST, body=body, returned="new" if "before" in moment else "null")
        async with connection.transaction():
            await connection.execute(text.encode())
            kind = "constraint trigger" if "deferrable" in moment else "trigger"
            await connection.execute(f"create {kind} users_own {moment} execute function users_own()".encode())

    def _statement(self, dice: random.Random) -> bytes:
        n, chance = dice.randint(1, 4), CHANCE.format(salt=dice.randrange(10**6))
        return dice.choice(WRITES).format(n=n, chance=chance, some=SOME.format(n=n, chance=chance)).encode()


async def cleared(hand: AsyncConnection[Any]) -> None:
    """Remove the triggers and publications of the users. Their rows stay."""
    await hand.execute("drop publication if exists everything")
    await hand.execute("drop function if exists users_own() cascade")
