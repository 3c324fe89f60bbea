"""`stop` and `probe`: end the agent of one launch, or report its state."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from . import processes
from .config import BIRTH_FILE, DONE_FILE, STOPPED_FILE, RunDir
from .launch import birth_marks, running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def stop(run_dir: str, grace_s: float) -> int:
    """Send TERM to the agent, give it `grace_s` to release its tasks, then end all processes of the launch.

    A later `start` of the same launch starts nothing.
    """
    run = RunDir(run_dir)
    identity = running(run)
    how = None if identity else _exit_class(run)
    with contextlib.suppress(OSError):  # a full disk must not prevent the stop
        os.makedirs(run.path, mode=0o700, exist_ok=True)
        run.write(STOPPED_FILE, "")
    identity = identity or running(run)  # a `start` may have taken the lock first
    family = _family(run, identity["pid"] if identity else None)
    if identity:
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity["pid"], signal.SIGTERM)
        until = time.monotonic() + grace_s
        while processes.alive(identity["pid"], identity["start_time"]) and time.monotonic() < until:
            time.sleep(processes.POLL_S)
        if processes.alive(identity["pid"], identity["start_time"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity["pid"], signal.SIGKILL)
    left = processes.end(None, f"{run.path}#", 0.0)
    left |= processes.end_all(lambda: {pid for pid in family if processes.alive(pid, family[pid])}, None, 0.0)
    for session in _sessions(run):
        left |= processes.end(session, f"{run.path}#", 0.0)
    if identity:
        until = time.monotonic() + processes.KILL_WAIT_S
        while processes.alive(identity["pid"], identity["start_time"]) and time.monotonic() < until:
            time.sleep(processes.POLL_S)
        left |= {identity["pid"]} if processes.alive(identity["pid"], identity["start_time"]) else set()
    alive = {"alive": sorted(left)} if left else {}
    print(json.dumps({"stopped": not left, **alive, **({"exit": how} if how else {})}))
    return 1 if left else 0


def _family(run: RunDir, agent: int | None) -> dict[int, str]:
    """Return the descendants of the agent and of its handlers, by pid with the start time, without the agent."""
    table, marked = processes.table(), processes.tree(None, f"{run.path}#")
    found = processes.descendants(table, marked | ({agent} if agent else set())) - {agent}
    return {pid: table[pid].started for pid in found}


def probe(run_dir: str) -> int:
    """Print the running agent's identity, or how the agent ended."""
    run = RunDir(run_dir)
    identity = running(run)
    print(json.dumps({"alive": identity is not None, **(identity or {}), "done": _done(run)}))
    return 0 if identity else 1


def _done(run: RunDir) -> Any:
    """Return the record that the agent wrote at its end; None without one."""
    with contextlib.suppress(OSError, ValueError), open(run.at(DONE_FILE), encoding="utf-8") as file:
        return json.load(file)
    return None


def _exit_class(run: RunDir) -> str | None:
    """Return how an agent ended that wrote no record of its end. A later stop returns the same."""
    done, how = _done(run), None
    if done is None:
        how = _judge(run)
    elif isinstance(done, dict):
        how = done.get("exit")
    if done is None and how:
        with contextlib.suppress(OSError):
            run.write(DONE_FILE, json.dumps({"reason": "it left no word", "exit": how}))
    return how


def _judge(run: RunDir) -> str | None:
    """Return REBOOT, OOM, MANUAL (an earlier stop of ours), or UNKNOWN; None if there was no agent."""
    try:
        with open(run.at(BIRTH_FILE), encoding="utf-8") as file:
            before = json.load(file)
        now = birth_marks(before["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if None not in {before["boot_id"], now["boot_id"]} and before["boot_id"] != now["boot_id"]:
        return "REBOOT"
    if None not in {before["oom_kills"], now["oom_kills"]} and now["oom_kills"] > before["oom_kills"]:
        return "OOM"
    return "MANUAL" if os.path.exists(run.at(STOPPED_FILE)) else "UNKNOWN"


def _sessions(run: RunDir) -> list[int]:
    """Return the sessions that the agent recorded, without those whose pid belongs to another process now."""
    found = []
    try:
        names = os.listdir(run.at("sessions"))
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue  # the rest of a write that a full disk cut short
        try:
            with open(run.at("sessions", name), encoding="utf-8") as file:
                started = file.read() or None
        except OSError:
            continue
        if processes.start_time(int(name)) in {None, started}:
            found.append(int(name))
    return found
