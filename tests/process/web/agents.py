"""Real agents, each with a pod that is a directory, behind the real gateway."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.process.web.builders import Caller, ServerUnderTest
from tests.process.worker.scripted import Pod

CODE = """
import os, pathlib, signal, subprocess, sys, time

def quick(params, task):
    return {"attempt": task.attempt}

def gated(params, task):
    # Runs until the file `gate` appears, and will not be asked to end: neither it nor what it starts.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    stored = task.upload(_note(task, params["says"])) if "says" in params else None
    pathlib.Path(params["begun"]).write_text(f"{os.getpid()} {helper.pid}\\n")
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)
    helper.kill()
    return stored

def leaf(params, task):
    return task.upload(_note(task, params["says"]))

def join(params, task):
    parts = [one.download().read_text() for one in task.dependencies]
    return task.upload(_note(task, "(" + "+".join(parts) + ")"))

def bad(params, task):
    raise ValueError("no such prompt")

def poison(params, task):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

def liar(params, task):
    location = task.upload(_note(task, "truth"))
    return location + ".not"

def _note(task, text):
    path = task.dir / "note.txt"
    path.write_text(text)
    return path
"""
HANDLERS = {name: f"work:{name}" for name in ("quick", "gated", "leaf", "join", "bad", "poison", "liar")}
WAIT_S = 60.0  # for what should take a second or two


@dataclass(frozen=True, slots=True)
class _Url:
    url: str


@dataclass(frozen=True, slots=True)
class Rented:
    """A worker, its pod, and the agent that runs there."""

    caller: Caller
    pod: Pod
    pid: int


class Agents:
    """Starts agents of a gateway, and ends all of them with the test."""

    def __init__(
        self, gateway: ServerUnderTest, directory: Path, *, url: str | None = None, api_key: str | None = None
    ) -> None:
        self.gateway, self._directory = gateway, directory
        self._url, self._api_key = url or str(gateway.client.base_url).rstrip("/"), api_key
        self._pods: list[Pod] = []

    async def create(self, pool: str | None = None, *, heartbeat_s: float = 20, lease_s: float = 60) -> Rented:
        """A worker with an agent that runs the handlers above."""
        caller = await self.gateway.worker(pool=pool, heartbeat_s=heartbeat_s, lease_s=lease_s)
        home = self._directory / caller.id
        pod = await asyncio.to_thread(Pod, home, _Url(self._url), {"work.py": CODE}, caller.nonce)
        self._pods.append(pod)
        who = {"worker_id": caller.id, "token": caller.token, "heartbeat_s": heartbeat_s, "claim_wait_s": 20}
        line = await asyncio.to_thread(pod.start, HANDLERS, api_key=self._api_key, **who)
        return Rented(caller, pod, line["pid"])

    async def close(self) -> None:
        """Nothing of them runs any more."""
        for pod in self._pods:
            assert (await asyncio.to_thread(pod.stop, 0))["stopped"]  # besides, how an agent ended that was killed

    async def ended(self, task_id: str, timeout_s: float = WAIT_S) -> Mapping[str, Any]:
        """A task's row, once it has ended."""
        return await self.shows(task_id, {"Complete", "Failed", "Cancelled"}, timeout_s)

    async def shows(self, task_id: str, statuses: set[str], timeout_s: float = WAIT_S) -> Mapping[str, Any]:
        """A task's row, once it has one of these statuses."""
        async with asyncio.timeout(timeout_s):
            while True:
                row: Mapping[str, Any] = (await self.gateway.store.task(task_id))["task"]
                if row["status"] in statuses:
                    return row
                await asyncio.sleep(0.02)

    async def attempts(self, task_id: str) -> list[tuple[str | None, str | None, str | None]]:
        """(outcome, failure code, exit class) of each attempt at a task."""
        rows = (await self.gateway.store.task(task_id))["attempts"]
        return [(row["outcome"], row["failure_code"], row["exit_class"]) for row in rows]


class Gate:
    """A handler that says when it has begun, and goes on when the gate is opened."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._gate, self._begun = folder / name, folder / f"{name}-begun"
        self.params = {"gate": str(self._gate), "begun": str(self._begun)}

    async def begun(self) -> list[int]:
        """The pids of the handler and of what it started, once it runs."""
        async with asyncio.timeout(WAIT_S):
            while not (self._begun.exists() and self._begun.read_text().endswith("\n")):
                await asyncio.sleep(0.01)
        return [int(pid) for pid in self._begun.read_text().split()]

    def open(self) -> None:
        """Let it end."""
        self._gate.touch()
