"""`stop` and `probe`: the agent of one launch, seen and ended from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

from . import processes
from .config import DONE_FILE, STOPPED_FILE, RunDir
from .launch import running


def stop(run_dir: str, grace_s: float) -> int:
    """TERM the agent, give it `grace_s` to hand back what it holds, then end all that is left of the launch.

    For good: a `start` of it that is still on its way starts nothing.
    """
    run = RunDir(run_dir)
    with contextlib.suppress(OSError):  # on a full disk it is ended all the same
        os.makedirs(run.path, mode=0o700, exist_ok=True)
        run.write(STOPPED_FILE, "")
    line = running(run)
    if line:
        with contextlib.suppress(ProcessLookupError):
            os.kill(line["pid"], signal.SIGTERM)
        until = time.monotonic() + grace_s
        while processes.alive(line["pid"], line["start_time"]) and time.monotonic() < until:
            time.sleep(processes.POLL_S)
        if processes.alive(line["pid"], line["start_time"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(line["pid"], signal.SIGKILL)
    left = processes.end(None, f"{run.path}#", 0.0)
    for session in _sessions(run):
        left |= processes.end(session, f"{run.path}#", 0.0)
    if line:
        until = time.monotonic() + processes.KILL_WAIT_S
        while processes.alive(line["pid"], line["start_time"]) and time.monotonic() < until:
            time.sleep(processes.POLL_S)
        left |= {line["pid"]} if processes.alive(line["pid"], line["start_time"]) else set()
    print(json.dumps({"stopped": not left, **({"alive": sorted(left)} if left else {})}))
    return 1 if left else 0


def probe(run_dir: str) -> int:
    """Print the running agent's line, or that there is none and how it ended."""
    run = RunDir(run_dir)
    line = running(run)
    done = None
    with contextlib.suppress(OSError, ValueError), open(run.at(DONE_FILE), encoding="utf-8") as file:
        done = json.load(file)
    print(json.dumps({"alive": line is not None, **(line or {}), "done": done}))
    return 0 if line else 1


def _sessions(run: RunDir) -> list[int]:
    """Sessions of handlers that the agent noted, unless their number has been given to another process since."""
    found = []
    try:
        names = os.listdir(run.at("sessions"))
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue  # what a write that a full disk cut short has left behind
        try:
            with open(run.at("sessions", name), encoding="utf-8") as file:
                started = file.read() or None
        except OSError:
            continue
        if processes.start_time(int(name)) in {None, started}:
            found.append(int(name))
    return found
