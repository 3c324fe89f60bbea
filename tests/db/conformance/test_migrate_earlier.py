"""A database of a version from before the first release becomes a present one, while its agents work."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.migrate import migrate, missing_sql, sql_files
from orchestrator.ports import PortError, SchemaMismatch, Unavailable
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import Agent, Fleet
from tests.db.conformance.conftest import create_database, drop_database
from tests.db.conformance.schema_dump import dump
from tests.db.conformance.test_migrate_interrupted import Killer
from tests.db.conformance.test_schema import NOW
from tests.db.conformance.test_schema_legacy import project
from tests.proofs.rolling_upgrade import NoHistory, checkout

__all__ = ["project"]

COMMITS = {"0028": "e922ccf5", "0030": "cdea80fc"}  # by the last table file
TASKS = 400
AGENTS = 3
BUSY_S = 60.0
COUNTED = """select t.status, count(*) as tasks, count(a.task_id) as attempts
  from tasks t left join orchestrator.attempts a on a.task_id = t.id and a.outcome = 'complete' group by 1"""
STATES = "select state::text, attempt, nonce from orchestrator.live order by 1, 2"
OPEN = "select count(*) as n from tasks where status <> 'Complete'"


@pytest.fixture(scope="module")
async def templates(
    server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, str]]:
    """The names of two databases, each migrated by the program of its time."""
    names = {}
    for last, commit in COMMITS.items():
        try:
            root = checkout(tmp_path_factory.mktemp("earlier") / last, commit)
        except NoHistory as why:
            pytest.skip(str(why))
        names[last] = await create_database(server, f"earlier_{last}")
        await asyncio.to_thread(_migrated_there, root, server.url_of(names[last]))
    yield names
    for name in names.values():
        await drop_database(server, name)


def _migrated_there(root: Path, url: str) -> None:
    environment = os.environ | {"DATABASE_URL": url}
    subprocess.run([sys.executable, "-m", "orchestrator", "migrate"], cwd=root, env=environment, check=True)


@pytest.fixture
async def earlier(
    request: pytest.FixtureRequest, server: EmbeddedPostgres, templates: dict[str, str]
) -> AsyncIterator[str]:
    """The URL of a copy of such a database: of the state before the queue, unless the test names another."""
    last = getattr(request, "param", "0028")
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as owner:
        made = sql.SQL("create database earlier template {}").format(sql.Identifier(templates[last]))
        await owner.execute(made)
    yield server.url_of("earlier")
    await drop_database(server, "earlier")


@pytest.mark.parametrize("way", ["migrate", "printed"])
@pytest.mark.parametrize("earlier", list(COMMITS), indirect=True)
async def test_it_equals_a_fresh_one(earlier: str, empty_database: str, way: str) -> None:
    """Tables, columns, indexes, constraints, functions and rights; and a second migration finds nothing to do."""
    if way == "migrate":
        await migrate(earlier)
    else:
        text = await missing_sql(earlier, NOW)
        async with await psycopg.AsyncConnection.connect(earlier, autocommit=True) as owner:
            await owner.execute(text.encode())
    report = await migrate(earlier)
    assert (report.applied, report.version) == ((), str(sql_files().version))
    await migrate(empty_database)
    assert await dump(earlier) == await dump(empty_database)


async def test_a_version_in_between_is_refused_untouched(earlier: str) -> None:
    """It was never released."""
    async with await psycopg.AsyncConnection.connect(earlier, autocommit=True) as owner:
        await owner.execute("delete from schema_migrations where version = '0028'")
    before = await dump(earlier)
    with pytest.raises(SchemaMismatch, match="the database was made from other files"):
        await migrate(earlier)
    assert await dump(earlier) == before


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
async def test_it_can_be_killed_at_each_step_and_goes_on(
    server: EmbeddedPostgres, earlier: str, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """What its agents hold stays theirs, and the schema is that of a run without an interruption."""
    db = await PostgresDb.open(earlier)
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    await fleet.submit({}, {}, {"depends_on": ["#0"]})
    held = await agent.claim(batch=2)
    await db.close()
    killer = Killer(monkeypatch)
    async with await psycopg.AsyncConnection.connect(server.url_of("postgres"), autocommit=True) as owner:
        url = server.url_of("killed")
        await owner.execute("create database killed template earlier")
        await migrate(url)
        whole = await dump(url)
        for place in killer.edges()[::every]:
            await owner.execute("drop database killed with (force)")
            await owner.execute("create database killed template earlier")
            killer.paths, killer.at = [], place
            with pytest.raises(Unavailable):
                await migrate(url)
            killer.at = None
            await migrate(url)
            assert await dump(url) == whole, place
            async with await psycopg.AsyncConnection.connect(url) as user:
                states = await (await user.execute(STATES)).fetchall()
            assert states == [("running", 1, agent.nonce)] * len(held) + [("waits_for_tasks", 0, None)], place
        await owner.execute("drop database killed with (force)")


class Crew:
    """Agents that were there before: they claim and complete all the time, and repeat what was not answered."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.held = fleet, asyncio.Event()
        self.unanswered = 0

    async def work(self, agent: Agent) -> None:
        """As an agent does."""
        while True:
            number = next(agent.numbers)
            while (tasks := await self._answered(agent.claiming(batch=3, number=number))) is None:
                pass
            self.held.set()
            for task in tasks["tasks"]:
                await self._answered(agent.beat({"task_id": task["id"], "attempt": task["attempt"]}))
                while (outcome := await self._answered(agent.complete(task))) is None:
                    pass
                assert outcome == "ok"
            if not tasks["tasks"]:
                await asyncio.sleep(0.01)

    async def _answered(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except PortError:
            self.unanswered += 1
            return None


async def test_its_agents_lose_nothing(earlier: str) -> None:
    """They hold tasks, and go on claiming and completing meanwhile; each task is completed once."""
    db = await PostgresDb.open(earlier, pool_size=AGENTS + 2)
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    agents = [await fleet.agent() for _ in range(AGENTS)]
    first, *_ = ids = await fleet.submit(count=TASKS)
    ids += await fleet.submit({"depends_on": [first]}, {"depends_on": [ids[-1]]})
    ids += await fleet.submit(*({"concurrency_key": "k"} for _ in range(5)))
    (held,) = await (slow := await fleet.agent()).claim()
    crew = Crew(fleet)
    working = [asyncio.create_task(crew.work(agent)) for agent in agents]
    await crew.held.wait()
    await migrate(earlier)
    async with await psycopg.AsyncConnection.connect(earlier, autocommit=True) as owner, asyncio.timeout(BUSY_S):
        (row,) = await (await owner.execute("select state::text, attempt, nonce from orchestrator.live "
                                            "where task_id = %s", (held["id"],))).fetchall()  # fmt: skip
        assert row == ("running", 1, slow.nonce)
        assert await slow.complete(held) == "ok"
        while await (await owner.execute(OPEN)).fetchone() != (0,):
            await fleet.maintain(1)
            assert [one for one in working if one.done()] == []
            await asyncio.sleep(0.05)
        for one in working:
            one.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert await (await owner.execute(COUNTED)).fetchall() == [("Complete", len(ids), len(ids))]
        for left in ("live", "edges", "publications"):
            assert await (await owner.execute(f"select count(*) from orchestrator.{left}")).fetchone() == (0,)  # noqa: S608
    await db.close()


async def test_what_waits_in_it_waits_on(earlier: str) -> None:
    """For a task, a time and a key; a dedupe key still finds its task; a used attempt counts."""
    db = await PostgresDb.open(earlier)
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    await fleet.submit({"max_attempts": 1})
    (released,) = await agent.claim()
    assert await agent.release(released) == "ok"
    async with await psycopg.AsyncConnection.connect(earlier, autocommit=True) as owner:
        await owner.execute("update tasks set run_after = %s", (fleet.now.replace(year=2999),))
    await fleet.submit({"max_attempts": 2}, {"concurrency_key": "k"})
    failing, key = await agent.claim(batch=2)
    assert await agent.fail(failing, message="no", retryable=True) == "requeued"
    later = f"{fleet.now.replace(year=2999):%Y-%m-%dT%H:%M:%SZ}"
    (needed,) = await fleet.submit({"run_after": later})
    waiting = await fleet.submit(
        {"depends_on": [needed]}, {"concurrency_key": "k"}, {"dedupe_key": "d", "run_after": later}
    )
    await migrate(earlier)
    states = [(await fleet.task(one))["state"] for one in (needed, *waiting)]
    assert states == ["waits_for_time", "waits_for_tasks", "waits_for_key", "waits_for_time"]
    (again,) = (await fleet.call("task_submit", p_tasks=[{"task_type": "t", "dedupe_key": "d"}]))["tasks"]
    assert again["id"] == waiting[2]
    assert await agent.complete(key) == "ok"
    fleet.wait(3600)
    async with await psycopg.AsyncConnection.connect(earlier, autocommit=True) as owner:
        await owner.execute("update tasks set run_after = null where id = %s", (released["id"],))
    await fleet.maintain()
    claimed = {task["id"]: task["attempt"] for task in await agent.claim(batch=9)}
    assert claimed == {failing["id"]: 2, waiting[1]: 1, released["id"]: 2}
    assert (await fleet.task(released["id"]))["uncounted"] == 1
    assert await agent.fail({**failing, "attempt": 2}, message="no", retryable=True) == "failed"
    await db.close()
