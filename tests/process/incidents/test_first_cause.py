"""A set-up command that fails on each pod: every command of a first day names it, from what the leader recorded."""

import asyncio
import os
import signal
import sys

from testbed.stack import ROOT, Stack
from tests.process.guide.conftest import fleet_of

CAUSE = "No worker comes up in pool default"
RECORDED = """
    select 1 from fleet_settings s, jsonb_array_elements(s.value) one
     where s.name = 'conditions' and s.fleet = %s and one->>'kind' = 'bringups_fail' and one->>'priority' = 'HIGH'
"""
WAIT_S = 60.0


async def test_a_set_up_command_that_fails(stack: Stack) -> None:
    """`submit --wait` says it by itself; `list`, `tasks list`, `explain` and `health` say the same."""
    async with fleet_of(stack) as fleet:
        await fleet.orchestrator(WORKER_SETUP_COMMAND="echo no such pip >&2; exit 127")
        submit = (sys.executable, "-m", "orchestrator", "tasks", "submit", "--type", "work", "--wait")
        pipe = asyncio.subprocess.PIPE
        waiting = await asyncio.create_subprocess_exec(
            *submit, stdout=pipe, stderr=pipe, env=fleet.environment, cwd=ROOT
        )
        try:
            assert waiting.stderr is not None
            said = ""
            async with asyncio.timeout(WAIT_S):
                while CAUSE not in said:
                    line = await waiting.stderr.readline()
                    assert line, said
                    said = line.decode()
            assert await fleet.until(RECORDED, fleet.environment["FLEET_ID"])
            [task] = await fleet.until("select id from tasks where status = 'Queued'")
            commands = (("list",), ("tasks", "list"), ("explain", str(task["id"])), ("health",))
            for ran in await asyncio.gather(*(fleet.cli(*command) for command in commands)):
                assert f"{CAUSE}: the last" in ran.out + ran.err
                assert "SETUP_FAILED" in ran.out + ran.err
                assert "fix: " in ran.out + ran.err
        finally:
            os.kill(waiting.pid, signal.SIGINT)
            await waiting.wait()
