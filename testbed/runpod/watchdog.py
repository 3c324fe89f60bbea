"""Finds and kills every process of emulated pods. As a program, it does so when the emulator has ended.

A pod's processes have EMULATED_POD=<directory of the pod> in their environment. One that cleared its environment is
found as a descendant of one that did not, or, once orphaned, by its working directory; never a process with a
terminal, which would be a person looking at the pod's files.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable

import psutil

MARK = "EMULATED_POD"
KILL_TIMEOUT_S = 15
CALM_SWEEPS = 2  # sweeps in a row without a find: a child born during the first is seen by the second
SWEEP_PAUSE_S = 0.01
PARENT_POLL_S = 1.0


class StillAliveError(Exception):
    """Processes outlived KILL_TIMEOUT_S of SIGKILL."""


def find(is_pod: Callable[[str], bool]) -> list["psutil.Process"]:
    """Every process of the pods whose directory `is_pod` accepts, zombies left out."""
    marked: set[int] = set()
    found: dict[int, psutil.Process] = {}
    parents: dict[int, tuple[int, psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, UnicodeError):
            environment = process.environ()
            if not environment and not process.cmdline():
                continue  # a kernel thread or a zombie
            parents[process.pid] = (process.ppid(), process)
            mark = environment.get(MARK)
            if (mark is not None and is_pod(mark)) or (mark is None and _stray(process, is_pod)):
                marked.add(process.pid)
                found[process.pid] = process
    grew = bool(marked)
    while grew:
        grew = False
        for pid, (parent, process) in parents.items():
            if parent in found and pid not in found and pid != os.getpid():
                found[pid] = process
                grew = True
    return [process for pid, process in found.items() if pid != os.getpid()]


def _stray(process: "psutil.Process", is_pod: Callable[[str], bool]) -> bool:
    """Tell whether an unmarked process works below a pod's home and has no terminal."""
    directory = process.cwd()
    at = directory.find("/pods/")
    if at < 0:
        return False
    pod = "/".join([directory[:at], "pods", directory[at + len("/pods/") :].split("/", 1)[0]])
    return is_pod(pod) and process.terminal() is None


def kill(is_pod: Callable[[str], bool]) -> int:
    """SIGKILL every process of those pods until none is left, and say how many there were; StillAliveError if not."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    killed: set[int] = set()
    calm = 0
    while calm < CALM_SWEEPS:
        victims = find(is_pod)
        calm = 0 if victims else calm + 1
        if victims and time.monotonic() > deadline:
            message = f"processes {sorted(process.pid for process in victims)} cannot be killed"
            raise StillAliveError(message)
        for process in victims:
            killed.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(SWEEP_PAUSE_S)
    return len(killed)


def send(is_pod: Callable[[str], bool], number: signal.Signals) -> int:
    """Send a signal to every process of those pods, and say to how many."""
    processes = find(is_pod)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    return len(processes)


def below(pods_dir: str) -> Callable[[str], bool]:
    """Accept every pod of one emulator."""
    prefix = pods_dir.rstrip("/") + "/"
    return lambda pod: pod.startswith(prefix)


def one_of(pods: Iterable[str]) -> Callable[[str], bool]:
    """Accept the pods with these directories."""
    return frozenset(pods).__contains__


def main(pods_dir: str) -> None:
    """Wait until standard input ends or the parent changes: the emulator is gone; then kill what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], PARENT_POLL_S)
        if ready and not os.read(0, 1):
            break
    kill(below(pods_dir))


if __name__ == "__main__":
    main(sys.argv[1])
