"""From exec: the daemon ready with its migrations current, and `list` to its end; the bars are 2 s and 0.5 s.

Interleaved with `python -c "import asyncio"`, which says what this machine needs for the least of all programs at that
moment. The agent's start has a benchmark of its own, agent_start.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from bench.figures import quantile
from testbed.stack import Stack

TRIES = 10
GOALS = {"list_s": ("<=", 0.5), "ready_s": ("<=", 2.0)}
TIMEOUT_S = 60.0


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Medians in seconds, and each against the least program."""
    took_s: dict[str, list[float]] = {"least": [], "list": [], "ready": []}
    async with Stack(directory) as stack:
        await stack.migrate()
        for _ in range(tries):
            began_s = time.perf_counter()
            least = await asyncio.create_subprocess_exec(sys.executable, "-c", "import asyncio")
            async with asyncio.timeout(TIMEOUT_S):
                await least.wait()
            took_s["least"].append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            await stack.run("list")
            took_s["list"].append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            daemon = await stack.start_orchestrator()
            took_s["ready"].append(time.perf_counter() - began_s)
            await daemon.stop()
    medians = {name: quantile(values, 0.5) for name, values in took_s.items()}
    return {
        **{f"{name}_s": round(value, 3) for name, value in medians.items()},
        **{f"{name}_of_least": round(medians[name] / medians["least"], 1) for name in ("list", "ready")},
    }
