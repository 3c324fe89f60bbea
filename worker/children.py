"""One handler host, seen from the agent: a child in its own session, spoken to in JSON lines over a socket pair."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys

from . import messages, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .journal import Journal
    from .life import Life

MAX_LINE_BYTES = 64 << 20  # of one message; more is a host gone mad
SHOWN_BYTES = 200  # of a message that is ignored
KILL_GRACE_S = 2.0  # between TERM and KILL
EXIT_WAIT_S = 2.0  # for a child whose socket has closed to be gone


class Child:
    """A running handler host; `closed` once it has let go of the socket."""

    def __init__(
        self, config: Config, run: RunDir, pyz: str, journal: Journal, code_dir: str | None, *, number: int, own: bool
    ) -> None:
        """Start one: the user's interpreter for Python handlers, the agent's (`own`) for commands. Raises OSError."""
        self._run, self._journal = run, journal
        self._has_misspoken = False
        self.mark = f"{run.path}#{number}#"
        self.closed = False
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        python = [sys.executable, "-I"] if own else [config.python]
        path = os.pathsep.join(filter(None, [code_dir, config.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        env = {**os.environ, **config.env, "PYTHONUNBUFFERED": "1", processes.MARK: self.mark}
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
        with contextlib.suppress(OSError):  # on a full disk the mark in its environment still tells whose it is
            os.makedirs(run.at("sessions"), exist_ok=True)
            run.write(os.path.join("sessions", str(self.pid)), processes.start_time(self.pid) or "")

    def send(self, message: dict[str, Any]) -> None:
        """Say something; a child that no longer listens is noticed by `receive`."""
        self._socket.settimeout(10.0)
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self.closed = True

    def receive(self, timeout_s: float, life: Life) -> list[dict[str, Any]]:
        """What the child has said; empty after `timeout_s`, at a wake-up, or when it has gone (`closed`)."""
        if not self.closed:
            ready = select.select([self._socket.fileno(), life.wake_fd], [], [], max(0.0, timeout_s))[0]
            if life.wake_fd in ready:
                life.drain_wake()
            if self._socket.fileno() in ready:
                self._read()
            elif self._process.poll() is not None:
                self.closed = True  # its own children may still hold the other end
        *lines, self._buffer = self._buffer.split(b"\n")
        try:
            return [message for line in lines for message in self._taken(line)]
        except (ValueError, RecursionError):  # the handler wrote to a descriptor that is not its own
            self.closed = True
            return []

    def _taken(self, line: bytes) -> list[dict[str, Any]]:
        """The message of a line; none if it is not one that a host sends, and the first of those is logged."""
        message = json.loads(line)
        if messages.is_known(message):
            return [message]
        if not self._has_misspoken:
            self._has_misspoken = True
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
        """Ask it, and only it, to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, grace_s: float = KILL_GRACE_S) -> int | None:
        """End the child and all it started; its exit status, None if there is none."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.closed:
                self._process.wait(EXIT_WAIT_S)  # it is ending by itself: its own status is the better evidence
        status = self._process.poll()
        if status is None:
            processes.signal_all({self.pid}, self.pid, 15)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        processes.end(self.pid, self.mark, 0.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        self._socket.close()
        self.closed = True
        with contextlib.suppress(OSError):
            os.unlink(self._run.at("sessions", str(self.pid)))
        return status
