"""A task that exceeds the pod's memory limit: in a real cgroup where the tests may make one."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.worker.machine import Machine
from tests.process.worker.scripted import Orchestrator, Pod, wait_for

LIMIT_BYTES = 96 << 20  # an agent and a handler host need half of it
GREEDY = """
import os, signal, time

def grows(params, task):
    taken = []
    while params["is_real"]:
        taken.append(bytearray(b"x") * (1 << 20))
    os.rename(params["fresh"], params["counter"])
    os.kill(os.getpid(), signal.SIGKILL)
"""
PYTHON = '#!/bin/sh\necho $$ >{}/cgroup.procs\nexec {} "$@"\n'


@dataclass
class MemoryLimit:
    """The cgroup of the agent, or files in its place."""

    place: Path | None
    machine: Machine

    @property
    def counter(self) -> Path:
        return self.machine.path / "root/sys/fs/cgroup/memory.events"

    def task(self) -> dict[str, object]:
        """What its handler needs to be ended."""
        fresh = self.machine.path / "fresh"
        fresh.write_text("oom 1\noom_kill 1\n")
        return {"is_real": self.place is not None, "fresh": str(fresh), "counter": str(self.counter)}


def _make_cgroup(name: str) -> Path | None:
    """A cgroup with a limit, of version 2 or 1; None where that is not ours to make."""
    for top, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        place = Path(top) / name
        with contextlib.suppress(OSError):
            place.mkdir()
        with contextlib.suppress(OSError):
            if (place / file).exists():
                (place / file).write_text(str(LIMIT_BYTES))
                return place
        with contextlib.suppress(OSError):
            place.rmdir()
    return None


@pytest.fixture
def place() -> Iterator[Path | None]:
    """Before the pods, so that it goes when all of them have ended."""
    made = _make_cgroup(f"orchestrator-test-{os.getpid()}")
    yield made
    if made:
        wait_for(lambda: not (made / "cgroup.procs").read_text())
        made.rmdir()


@pytest.fixture
def limit(place: Path | None, tmp_path: Path) -> MemoryLimit:
    return MemoryLimit(place, Machine(tmp_path / "machine"))


@pytest.fixture
def pod(limit: MemoryLimit, make_pod: Callable[..., Pod], tmp_path: Path) -> Pod:
    made = make_pod({"greedy.py": GREEDY})
    made.env = limit.machine.install(sys.executable)
    made.python = str(limit.machine.bin / "python3")
    if limit.place:
        enters = tmp_path / "python"
        enters.write_text(PYTHON.format(limit.place, sys.executable))
        enters.chmod(0o755)
        made.python = str(enters)
    return made


def test_a_kill_for_memory_is_the_attempts_end_and_stops_claims(
    orchestrator: Orchestrator, pod: Pod, limit: MemoryLimit
) -> None:
    """The kernel ends the handler, not the agent; no task is claimed while its memory may still be short."""
    root = "/" if limit.place else str(limit.machine.path / "root")
    pod.start({"grow": "greedy:grows"}, monitor_s=0.1, system_root=root)
    orchestrator.until(lambda: pod.events("pod_inspected"))
    orchestrator.submit("greedy", "grow", limit.task())
    assert orchestrator.failure("greedy")["exit_class"] == "oom"
    orchestrator.until(lambda: "OOM_KILLED" in orchestrator.findings())
    found = orchestrator.findings()["OOM_KILLED"]
    assert (found["u"], found["severity"]) == (9, "H")
    assert found["evidence"] == "the OOM killer ended 1 process(es) of this pod"
    assert pod.events("claims_stopped")
