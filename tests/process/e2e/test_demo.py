"""`./run demo` itself, as a person would run it."""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

DEMO_TIMEOUT_S = 240
START_TIMEOUT_S = 90
DEATH_TIMEOUT_S = 30
COLUMNS = 80
SILENCE_S = 30.0  # the most between two lines; on an idle machine it is 2 s, and here others run


async def demo(directory: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo", "--directory", str(directory), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize(("transport", "tasks"), [("direct", 4), pytest.param("supabase", 3, marks=pytest.mark.full)])
async def test_the_demo_loses_doubles_leaks_and_misses_nothing(tmp_path: Path, transport: str, tasks: int) -> None:
    """Pictures become a film; a pod dies on the way; every figure that must be zero is zero, over both transports."""
    process = await demo(tmp_path / "demo", "--json", "--transport", transport, "--tasks", str(tasks))
    async with asyncio.timeout(DEMO_TIMEOUT_S):
        told, out = await asyncio.gather(_lines(process.stderr), _whole(process.stdout))
    assert await process.wait() == 0, told
    # A path is one line, so that it can be copied.
    assert max(len(line) for _, line in told if not line.startswith("The video is in ")) <= COLUMNS, told
    pauses = [(later - at, line) for (at, line), (later, _) in itertools.pairwise(told)]
    assert max(pauses)[0] <= SILENCE_S, pauses
    wanted = [line for _, line in told if " per GPU → " in line]
    assert wanted, told
    assert tasks < 4 or any("because this release is new" in line for _, line in told), told  # more than one worker
    assert not any("max(ceil(" in line for _, line in told)  # formulas only with -v
    summary = json.loads(out.decode().splitlines()[-1])
    assert summary["tasks_done"] == summary["tasks_submitted"] == tasks
    for name in ("tasks_lost", "tasks_doubled", "tasks_failed", "pods_leaked", "log_bytes_missing"):
        assert summary[name] == 0, name
    assert summary["pods_killed"] >= 1
    assert summary["killed_task_done_elsewhere"]
    produced, shipped = summary["log_bytes_produced"], summary["log_bytes_shipped"]
    assert 0 < shipped <= produced
    assert produced == shipped + summary["log_bytes_declared_lost"]
    assert summary["dollars"] > 0
    assert Path(summary["video"]).stat().st_size > 10_000
    assert summary["video_seconds"] == pytest.approx(summary["video_expected_seconds"], abs=1)


async def _lines(stream: asyncio.StreamReader | None) -> list[tuple[float, str]]:
    """The narration, each line with the time at which it came."""
    assert stream is not None
    return [(time.monotonic(), line.decode().rstrip("\n")) async for line in stream]


async def _whole(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    return await stream.read()


def _working_below(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(directory) in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process)
        except psutil.Error:
            continue
    return found


if sys.platform == "linux":  # elsewhere there is no parent-death signal to rely on

    @pytest.mark.full
    async def test_nothing_outlives_a_killed_demo(tmp_path: Path) -> None:
        """SIGKILL of the demo takes Postgres, S3, the emulator, its pods and the orchestrator with it."""
        process = await demo(tmp_path / "demo", "--keep")
        assert process.stderr is not None
        seen = b""
        async with asyncio.timeout(START_TIMEOUT_S):
            while b"is ready" not in seen:
                line = await process.stderr.readline()
                assert line, seen.decode()
                seen += line
        family = psutil.Process(process.pid).children(recursive=True)
        ours = [*family, *_working_below(tmp_path)]
        assert len(family) >= 4
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, ours, DEATH_TIMEOUT_S)
        assert not alive, [p.cmdline() for p in alive]
        assert not _working_below(tmp_path)
