"""The agent's runtime monitor: its share of a core and its memory, against an agent without it in the same run.

Both agents are idle. The one with the monitor reads its pod a hundred times as often as on a real one, because the
processor's time is counted in steps of 10 ms; the figure is for the real interval. Here nvidia-smi is a script that
prints eight GPUs: the time that the real program takes is not measured.
"""

import asyncio
import hashlib
import io
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil

from bench.agent_start import AgentGateway, agent_config, run_agent
from bench.figures import cpu_s
from orchestrator.pods.bundle import AGENT_PACKAGE, build_bundle
from testbed.runpod.fake_tools import write_facts, write_programs

TRIES = 60  # seconds
GOALS = {"monitor_of_a_core": ("<=", 0.005), "monitor_extra_mib": ("<=", 30.0)}
INTERVAL_S, FASTER = 15.0, 100
SETTLE_S = 5.0
GPU, GPUS = "NVIDIA H100 80GB HBM3", 8
WITHOUT = """
class Inspection:
    gpus, program_errors = None, 0
    def __init__(self, *_): pass
    def run(self): pass
    def close(self): pass
    def interrupt(self): pass
"""


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Processor time over `tries` seconds, and resident memory at their end."""
    machine = directory / "machine"
    machine.mkdir()
    write_programs(machine / "bin", sys.executable)
    write_facts(machine, GPU, GPUS)
    env = {**os.environ, "EMULATED_POD": str(machine), "PATH": f"{machine / 'bin'}:{os.environ['PATH']}"}
    whole = build_bundle(None).agent
    agents = {"with": whole, "without": _without_monitor(whole)}
    pids: dict[str, int] = {}
    gateway = AgentGateway()
    async with gateway:
        for name, content in agents.items():
            path = directory / f"agent-{hashlib.sha256(content).hexdigest()}.pyz"
            path.write_bytes(content)
            config = agent_config(gateway.url, name, monitor_s=INTERVAL_S / FASTER)
            pids[name] = json.loads(await run_agent(path, directory / name, "start", config, env=env))["pid"]
            agents[name] = path.name.encode()
        await asyncio.sleep(SETTLE_S)
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        await asyncio.sleep(tries)
        used_s = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
        memory_mib = {name: psutil.Process(pid).memory_info().rss / 2**20 for name, pid in pids.items()}
        for name, file in agents.items():
            await run_agent(directory / file.decode(), directory / name, "stop", b"", "--grace-s", "0.1")
    # The agent without the monitor still wakes up for it: its idle work is the same otherwise.
    monitor_s = max(0.0, used_s["with"] - used_s["without"]) / FASTER
    return {
        "seconds": tries,
        "monitor_of_a_core": round(monitor_s / tries, 6),
        "idle_agent_of_a_core": round(used_s["without"] / tries, 6),
        "monitor_extra_mib": round(memory_mib["with"] - memory_mib["without"], 1),
        "idle_agent_mib": round(memory_mib["without"], 1),
    }


def _without_monitor(agent: bytes) -> bytes:
    """The same agent with a monitor that does nothing."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(agent)) as source, zipfile.ZipFile(made, "w") as target:
        for entry in source.infolist():
            is_monitor = entry.filename == f"{AGENT_PACKAGE}/inspection.py"
            target.writestr(entry, WITHOUT if is_monitor else source.read(entry))
    return made.getvalue()
