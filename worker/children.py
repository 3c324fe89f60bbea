"""One handler host, seen from the agent: a child process in its own session. A socket pair carries JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys

from . import messages, processes
from .cgroup import Cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState
    from .config import Config, RunDir
    from .journal import Journal

MAX_LINE_BYTES = 64 << 20  # bytes of one message; a host that sends more is ended
SHOWN_BYTES = 200  # bytes of an ignored message that go into the log
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
KILL_GRACE_S = 2.0  # seconds between TERM and KILL
EXIT_WAIT_S = 2.0  # seconds for the exit of a child whose socket is closed


def _defaults(root: str) -> dict[str, str]:
    """Return variables for handlers; those of the image and of WORKER_ENV override them.

    Libraries start a thread for each processor of the host, of which the pod has a slice.
    """
    found = {"PYTHONUNBUFFERED": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    cpus = Cgroup(root).cpus()
    if cpus is not None:
        found |= dict.fromkeys(THREADS, str(max(1, int(cpus))))
    return found


class HandlerHost:
    """A running handler host. `closed` is true once its end of the socket is closed."""

    def __init__(
        self, config: Config, run: RunDir, pyz: str, journal: Journal, code_dir: str | None, *, number: int, own: bool
    ) -> None:
        """Start a host with the user's interpreter, or with the agent's (`own`) for commands. Raises OSError."""
        self._run, self._journal = run, journal
        self._has_ignored_one = False
        self.mark = f"{run.path}#{number}#"
        self.closed = False
        self.left: set[int] = set()  # pids that even SIGKILL did not end
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        python = [sys.executable, "-I"] if own else [config.python]
        path = os.pathsep.join(filter(None, [code_dir, config.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        env = {**_defaults(config.system_root), **os.environ, **config.env, processes.MARK: self.mark}
        if path:
            env["PYTHONPATH"] = path
        try:
            with open(run.log("handler"), "ab", buffering=0) as log:
                self._process = subprocess.Popen(
                    [*python, "-u", pyz, "handler-host", "--fd", str(theirs.fileno()), "--run-dir", run.path],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=code_dir or run.path,
                    pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # on a full disk, the mark in its environment still identifies it
            os.makedirs(run.at("sessions"), exist_ok=True)
            run.write(os.path.join("sessions", str(self.pid)), processes.start_time(self.pid) or "")

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. `receive` notices a child that has closed the socket."""
        self._socket.settimeout(10.0)
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self.closed = True

    def receive(self, timeout_s: float, state: AgentState) -> list[dict[str, Any]]:
        """Return the child's messages.

        An empty list after `timeout_s`, at a wake-up, or if the child has ended (`closed`).
        """
        if not self.closed:
            ready = select.select([self._socket.fileno(), state.wake_fd], [], [], max(0.0, timeout_s))[0]
            if state.wake_fd in ready:
                state.drain_wake()
            if self._socket.fileno() in ready:
                self._read()
            elif self._process.poll() is not None:
                self.closed = True  # its children may still hold the other end open
        *lines, self._buffer = self._buffer.split(b"\n")
        try:
            return [message for line in lines for message in self._taken(line)]
        except (ValueError, RecursionError):  # the handler wrote to the socket itself
            self.closed = True
            return []

    def _taken(self, line: bytes) -> list[dict[str, Any]]:
        """Return the message of a line; [] if no host would send it. The first such line is logged."""
        message = json.loads(line)
        if messages.is_known(message):
            return [message]
        if not self._has_ignored_one:
            self._has_ignored_one = True
            shown = line[:SHOWN_BYTES].decode("utf-8", "replace")
            self._journal.log("message_ignored", pid=self.pid, message=shown)
        return []

    def _read(self) -> None:
        try:
            more = self._socket.recv(1 << 20)
        except OSError:
            more = b""
        self._buffer += more
        self.closed = not more or len(self._buffer) > MAX_LINE_BYTES

    def terminate(self) -> None:
        """Ask the host to end, but not the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, grace_s: float = KILL_GRACE_S) -> int | None:
        """End the child and all processes that it started. Return its exit status, or None."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.closed:
                self._process.wait(EXIT_WAIT_S)  # it is ending by itself: its own exit status says more
        status = self._process.poll()
        if status is None:
            processes.signal_all({self.pid}, self.pid, 15)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.left = processes.end(self.pid, self.mark, 0.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        self._socket.close()
        self.closed = True
        with contextlib.suppress(OSError):
            os.unlink(self._run.at("sessions", str(self.pid)))
        return status
