"""The embedded PostgREST: its key check, and that it leaves nothing behind."""

import asyncio
import signal
import sys

import httpx
import psutil

from testbed.services.postgrest import EmbeddedPostgrest

PROGRAM = """
import asyncio, os, sys
from testbed.services.postgrest import EmbeddedPostgrest

async def start():
    async with EmbeddedPostgrest(sys.argv[1], "s" * 40) as postgrest:
        print(postgrest.pid, flush=True)
        os.kill(os.getpid(), 9)

asyncio.run(start())
"""


async def test_a_key_of_the_project_is_required(postgrest: EmbeddedPostgrest) -> None:
    """And answers for itself while the server behind it is away, at the same address afterwards."""
    async with httpx.AsyncClient(base_url=postgrest.url, trust_env=False) as client:

        async def status(**headers: str) -> int:
            return (await client.post("/rpc/fleet_describe", json={}, headers=headers)).status_code

        assert await status() == 401
        assert await status(apikey="sb_secret_of_another_project") == 401
        assert await status(apikey=postgrest.publishable_key) == 401
        assert await status(apikey=postgrest.secret_key) == 200
        assert await status(apikey=postgrest.anon_key, authorization=f"Bearer {postgrest.service_role_key}") == 200
        await postgrest.stop()
        assert await status(apikey=postgrest.secret_key) == 502
        await postgrest.start()
        assert await status(apikey=postgrest.secret_key) == 200


if sys.platform == "linux":  # elsewhere a watcher does it, when it finds the pipe closed

    async def test_it_ends_with_the_process_that_started_it(postgrest: EmbeddedPostgrest, database: str) -> None:
        """However that one ended."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, database, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        async with asyncio.timeout(60):
            pid = int(await child.stdout.readline())
            assert await child.wait() == -signal.SIGKILL
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.02)
