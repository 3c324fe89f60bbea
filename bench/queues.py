"""Queues for the benchmarks, each filled and worked in the same way: the floor, ours, and the peers."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, LiteralString, Protocol

import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from bench import peers
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres

Connection = psycopg.AsyncConnection[TupleRow]
Turn = Callable[[Connection, int], Awaitable[None]]
WORKER = {
    "gpu_type": "none", "gpu_count": 1, "data_center": None, "reserved_usd": 0, "heartbeat_s": 20, "lease_s": 60,
    "own_program": False, "deadline_s": 3600, "actor": "bench", "reason": "bench", "metadata": {},
}  # fmt: skip
Feature = Literal["none", "tenants", "keys"]
INSERTS: dict[Feature, LiteralString] = {
    "none": "insert into tasks (task_type) select 'x' from generate_series(1, %s)",
    "tenants": "insert into tasks (task_type, tenant) select 'x', n %% 100 from generate_series(1, %s) n",
    # One task of a key runs at a time, so nine of ten queued tasks wait until another one of their key ends.
    "keys": "insert into tasks (task_type, concurrency_key) select 'x', n %% 1000 from generate_series(1, %s) n",
}


class Side(Protocol):
    """One queue."""

    async def fill(self, count: int) -> None:
        """Queue so many more."""
        ...

    async def work(self, connections: int, batch: int, count: int) -> float:
        """Claim and complete so many over so many connections; the seconds."""
        ...


class Floor:
    """The simplest queue."""

    CLAIM = (
        "update floor set state = 1 where ctid = any (array(select ctid from floor where state = 0 order by id "
        "limit %s for update skip locked)) returning id"
    )

    def __init__(self, url: str) -> None:
        self.url = url
        self.connections: list[Connection] = []

    async def open(self, stack: AsyncExitStack, connections: int) -> None:
        """Make its table, and its connections."""
        self.connections = await _connect(stack, self.url, connections)
        await self.connections[0].execute("create table floor (id bigserial primary key, state smallint default 0)")
        await self.connections[0].execute("create index floor_claim on floor (id) where state = 0")

    async def fill(self, count: int) -> None:
        """Queue so many more."""
        await self.connections[0].execute("insert into floor select from generate_series(1, %s)", (count,))
        await self.connections[0].execute("vacuum analyze floor")

    async def claim(self, batch: int, count: int) -> None:
        """Only claim so many."""
        for _ in range(count // batch):
            await self.connections[0].execute(self.CLAIM, (batch,))

    async def work(self, connections: int, batch: int, count: int) -> float:
        """Claim and complete so many."""

        async def turn(connection: Connection, _: int) -> None:
            rows = await (await connection.execute(self.CLAIM, (batch,))).fetchall()
            await connection.execute("update floor set state = 2 where id = any (%s)", ([row[0] for row in rows],))

        return await _turns(self.connections[:connections], turn, count // batch)


class Ours:
    """Through the functions that an agent calls, a worker for each connection.

    As an agent does with tasks this short: the call that completes what one claim brought is the next claim.
    """

    CLAIM = "select worker_claim(%s, %s, %s, %s, 0)"
    COMPLETE_MANY = "select worker_complete_many(%s, %s, %s)"
    COMPLETE_AND_CLAIM = "select worker_complete_and_claim(%s, %s, %s, %s, %s)"

    def __init__(self, url: str, feature: Feature = "none") -> None:
        self.url = url
        self.insert = INSERTS[feature]
        self.connections: list[Connection] = []
        self.workers: list[tuple[str, str]] = []
        self.claims = 0

    async def open(self, stack: AsyncExitStack, connections: int) -> None:
        """Migrate, and verify a worker for each connection."""
        await migrate(self.url)
        db = await PostgresDb.open(self.url, pool_size=1)
        store = SqlStore(db, "default")
        term = (await store.lead("bench", 3_600)).term
        for number in range(connections):
            name = f"gpu-{number}"
            await store.spawn(term, {"id": name, "pool": "default", **WORKER})
            here = (State.SPAWNING,)
            await store.move(term, name, from_states=here, reason="bench", fields={"nonce": name, "token_jti": name})
            await store.move(term, name, from_states=here, to_state=State.ACTIVE, stage=Stage.PROMOTED, reason="bench")
            self.workers.append((name, name))
        await db.close()
        self.connections = await _connect(stack, self.url, connections)

    async def fill(self, count: int) -> None:
        """Queue so many more."""
        await self.connections[0].execute(self.insert, (count,))
        await self.connections[0].execute("vacuum analyze tasks, task_attempts")

    async def claim(self, batch: int, count: int) -> None:
        """Only claim so many."""
        for _ in range(count // batch):
            self.claims += 1
            await _one(self.connections[0], self.CLAIM, (*self.workers[0], self.claims, batch))

    async def work(self, connections: int, batch: int, count: int) -> float:
        """Claim and complete so many."""
        held: list[list[Any]] = [[] for _ in self.workers]

        async def turn(connection: Connection, place: int) -> None:
            self.claims += 1
            ask = self.COMPLETE_AND_CLAIM if held[place] else self.CLAIM
            results = [results_of(held[place])] if held[place] else []
            answer = await _one(connection, ask, (*self.workers[place], *results, self.claims, batch))
            held[place] = answer["tasks"]

        async def last(connection: Connection, place: int) -> None:
            if held[place]:
                await _one(connection, self.COMPLETE_MANY, (*self.workers[place], results_of(held[place])))

        return await _turns(self.connections[:connections], turn, count // batch, last)


class Peer:
    """The queue of another project, in a process of its own."""

    def __init__(self, name: str, python: Path, url: str) -> None:
        self.name, self.python, self.url = name, python, url

    async def fill(self, count: int) -> None:
        """Queue so many more."""
        await peers.drive(self.python, self.name, self.url, "fill", count)

    async def work(self, connections: int, batch: int, count: int) -> float:
        """Run so many in its own worker."""
        return float(await peers.drive(self.python, self.name, self.url, "work", connections, batch, count))


async def database(postgres: EmbeddedPostgres, name: str) -> str:
    """A new database of the server; its address."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute(f'create database "{name}"'.encode())
    return postgres.url_of(name)


async def _connect(stack: AsyncExitStack, url: str, count: int) -> list[Connection]:
    return [
        await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=1)
        )
        for _ in range(count)
    ]


def results_of(tasks: list[Any]) -> Jsonb:
    """The results of claimed tasks, as a completion takes them."""
    return Jsonb([{"task_id": task["id"], "attempt": task["attempt"]} for task in tasks])


async def _turns(connections: list[Connection], turn: Turn, total: int, last: Turn | None = None) -> float:
    """The seconds that so many turns take, and each connection's last one."""
    left = total

    async def loop(connection: Connection, place: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await turn(connection, place)
        if last:
            await last(connection, place)

    began_s = time.perf_counter()
    await asyncio.gather(*(loop(connection, place) for place, connection in enumerate(connections)))
    return time.perf_counter() - began_s


async def _one(connection: Connection, statement: str, args: tuple[Any, ...]) -> Any:
    row = await (await connection.execute(statement.encode(), args)).fetchone()
    assert row is not None  # noqa: S101  a function answers
    return row[0]
