"""Users write anything to the queue while workers claim: no limit is exceeded, and no task is left behind."""

import asyncio
import random
import uuid

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Agent, Fleet
from tests.db.conformance.consistency import broken

Hand = AsyncConnection[DictRow]
WORKERS, USERS, STATEMENTS = 6, 3, 50
KEYS = {"k0": 1, "k1": 2, "k2": 5}
TYPES = {"y": 3}
WORDS = {
    # Locked in the order of their ids: two users whose statements lock rows in other orders deadlock without any help.
    "SOME": """where status = 'Queued' and id = any (array(
        select id from tasks where status = 'Queued'
           and id = any (array(select id from tasks where status = 'Queued' order by random() limit 5))
         order by id for update))""",
    "ANY_KEY": "(array['k0', 'k1', 'k2', null])[1 + (random() * 3)::int]",
    "ANY_TYPE": "(array['x', 'y', 'z'])[1 + (random() * 2)::int]",
}
WRITES = (
    *("insert into tasks (task_type, concurrency_key) select ANY_TYPE, ANY_KEY from generate_series(1, 12)",) * 5,
    "update tasks set status = 'Cancelled' SOME",
    "delete from tasks SOME",
    "update tasks set concurrency_key = ANY_KEY SOME",
    "update tasks set task_type = ANY_TYPE SOME",
    "update tasks set priority = (random() * 3)::int SOME",
    "update tasks set run_after = now() + interval '0.1 s' SOME",
    "select orchestrator.maintain(clock_timestamp())",
)
EXCEEDED = """
    select concurrency_key as name, count(*) as n from orchestrator.live
     where state = 'running' and concurrency_key is not null group by 1
    union all
    select task_type, count(*) from orchestrator.live where state = 'running' and task_type = 'y' group by 1"""


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.full)])
async def test_no_write_of_a_user_lets_a_claim_exceed_a_limit(
    direct: PostgresDb, database: str, hand: Hand, seed: int
) -> None:
    """Each moment that a watcher sees has at most as many leases as the limits allow."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    for kind, limits in (("key", KEYS), ("type", TYPES)):
        for name, most in limits.items():
            await fleet.call("task_limit_set", p_kind=kind, p_name=name, p_most=most)
    agents = [await fleet.agent() for _ in range(WORKERS)]
    writing, working = asyncio.Event(), asyncio.Event()
    exceeded: list[DictRow] = []
    async with asyncio.TaskGroup() as everybody:  # a failure of one ends the others before the next test begins
        everybody.create_task(_watch(database, working, exceeded))
        claiming = [everybody.create_task(_work(database, a, writing, random.Random(seed))) for a in agents]
        await asyncio.gather(*(_write(database, random.Random(f"{seed} {user}")) for user in range(USERS)))
        writing.set()
        await asyncio.gather(*claiming)
        working.set()
    assert exceeded == []
    assert await broken(hand) == {}


async def _connect(url: str) -> Hand:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row)


async def _write(url: str, draw: random.Random) -> None:
    """So many statements of one user."""
    async with await _connect(url) as connection:
        for _ in range(STATEMENTS):
            statement = draw.choice(WRITES)
            for word, text in WORDS.items():
                statement = statement.replace(word, text)
            await connection.execute(statement.encode())


async def _work(url: str, agent: Agent, written: asyncio.Event, draw: random.Random) -> None:
    """Claim and complete until the users have ended and no task is queued."""
    async with await _connect(url) as connection:
        number = 0
        while True:
            number += 1
            last = written.is_set()
            query = "select worker_claim(%s, %s, %s, %s, 0) as it"
            claim = await connection.execute(query, (agent.id, agent.nonce, number, draw.randint(1, 5)))
            (row,) = await claim.fetchall()
            for task in row["it"]["tasks"]:
                result = (agent.id, agent.nonce, uuid.UUID(task["id"]), task["attempt"])
                query = "select worker_complete(%s, %s, %s, %s, null, null)->>'outcome' as it"
                while (await (await connection.execute(query, result)).fetchall())[0]["it"] == "pending":
                    await asyncio.sleep(0)  # a user's statement is changing it
            if last and not row["it"]["tasks"]:
                await connection.execute("select orchestrator.maintain(clock_timestamp())")
                queued = await connection.execute("select from tasks where status = 'Queued' limit 1")
                if not await queued.fetchall():
                    return


async def _watch(url: str, done: asyncio.Event, exceeded: list[DictRow]) -> None:
    async with await _connect(url) as connection:
        while not done.is_set():
            rows = await (await connection.execute(EXCEEDED.encode())).fetchall()
            exceeded.extend(row for row in rows if row["n"] > (KEYS | TYPES)[row["name"]])
