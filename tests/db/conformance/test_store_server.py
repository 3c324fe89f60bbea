"""The server of our own: it keeps its port and its rows, and outlives nobody."""

import asyncio
import signal
import sys
from pathlib import Path

import psycopg
import pytest

from testbed.services.postgres import EmbeddedPostgres, PostgresFailed

PROGRAM = """
import asyncio, os, pathlib, sys
from testbed.services.postgres import EmbeddedPostgres

async def start():
    server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), durable=False)
    await server.start()
    print(server.url, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), 9)

asyncio.run(start())
"""


async def test_a_crash_loses_no_committed_row_and_a_restart_keeps_the_port(tmp_path: Path) -> None:
    """Clients find it where it was."""
    async with EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server:
        url = server.url
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("create table kept as select 7 as n")
        await server.stop("immediate")
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect(url)
        await server.start()
        assert server.url == url
        async with await psycopg.AsyncConnection.connect(url) as connection:
            assert await (await connection.execute("select n from kept")).fetchone() == (7,)


async def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """However that one ended; another then finds the data and goes on."""
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "data")]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
    assert child.stdin is not None
    assert child.stdout is not None
    async with asyncio.timeout(60):
        url = (await child.stdout.readline()).decode().strip()
        assert await answers(url)
        child.stdin.write(b"\n")
        assert await child.wait() == -signal.SIGKILL
        while await answers(url):
            await asyncio.sleep(0.02)
        async with EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server:
            assert await answers(server.url)
    assert not (tmp_path / "data").exists()


async def test_an_invalid_data_directory_is_named(tmp_path: Path) -> None:
    """With the server's own words."""
    directory = tmp_path / "data"
    async with EmbeddedPostgres(directory, durable=False, keep=False) as server:
        real = directory.resolve()
        await server.stop()
        (real / "postgresql.conf").write_text("nonsense = 1\n")
        with pytest.raises(PostgresFailed, match="nonsense"):
            await server.start()


async def answers(url: str) -> bool:
    """Whether a server is there."""
    try:
        await (await psycopg.AsyncConnection.connect(url)).close()
    except psycopg.OperationalError:
        return False
    return True
