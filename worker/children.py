"""One handler host, seen from the agent: a child process in its own session. A socket pair carries JSON lines.

The kernel names the process that wrote each part of the stream. The first part is the host's, written before it loads
the user's code. Parts of other processes, which inherited or copied the descriptor, are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys

from . import messages, processes
from .cgroup import Cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState
    from .config import Config, RunDir
    from .families import Families
    from .journal import Journal

READ_BYTES = 1 << 20  # bytes that are read at a time
MAX_LINE_BYTES = 64 << 20  # bytes of one message; a host that sends more is ended
SHOWN_BYTES = 200  # bytes of an ignored message that go into the log
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
KILL_GRACE_S = 2.0  # seconds between TERM and KILL
EXIT_WAIT_S = 2.0  # seconds for the exit of a child whose socket is closed
LINGER_S = 0.5  # seconds in which the processes of a task may end by themselves after the task
TASK_GRACE_S = 1.0  # seconds between TERM and KILL of processes that a task left
SHOWN_PROCESSES = 10
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
SENDER = getattr(socket, "SO_PASSCRED", None)  # Linux: the kernel tells who sent


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
        self, config: Config, run: RunDir, pyz: str, journal: Journal, code_dir: str | None, output_fd: int,
        families: Families, *, number: int, own: bool,
    ) -> None:  # fmt: skip
        """Start a host with the user's interpreter, or with the agent's (`own`) for commands. Raises OSError.

        It and its processes write to `output_fd`.
        """
        self._run, self._journal, self._families = run, journal, families
        self._has_ignored_one = self._is_over = False
        self.mark = f"{run.path}#{number}#"
        self.closed = False
        self.renew: str | None = None  # why the next task needs a new host
        self.left: set[int] = set()  # pids that even SIGKILL did not end
        self._buffer = b""
        self._last = run.at("sessions", f"{number}.last")  # the last message of a host that has lost its socket
        self._speaker: int | None = None  # the pid of the host as the kernel names it, from its first message on
        self._socket, theirs = socket.socketpair()
        if SENDER is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, SENDER, 1)
        python = [sys.executable, "-I"] if own else [config.python]
        options = {"fd": str(theirs.fileno()), "run-dir": run.path, "last": self._last, "code": code_dir or ""}
        words = [word for name, value in options.items() if value for word in (f"--{name}", value)]
        env = {**_defaults(config.system_root), **os.environ, **config.env, processes.MARK: self.mark}
        try:
            with contextlib.suppress(OSError):  # a full disk
                os.makedirs(run.at("sessions"), exist_ok=True)
            self._process = subprocess.Popen(
                [*python, "-u", pyz, "handler-host", *words], stdin=subprocess.DEVNULL, stdout=output_fd,
                stderr=output_fd, env=env, cwd=code_dir or run.path, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        families.add(self.pid, self.mark)
        with contextlib.suppress(OSError):  # on a full disk, the mark in its environment still identifies it
            run.write(os.path.join("sessions", str(self.pid)), processes.start_time(self.pid) or "")

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. `receive` notices a child that has closed the socket."""
        self._socket.settimeout(10.0)
        try:
            self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self.closed = True

    def reply(self, question: dict[str, Any], **answer: Any) -> None:
        """Answer a message of the host that has a number."""
        self.send({"op": "reply", **{name: question[name] for name in ("task", "attempt", "seq")}, **answer})

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
            if self.closed:
                self._buffer += self._last_message()
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
            return [] if message["op"] == "ready" else [message]
        self._note_ignored(line, self.pid)
        return []

    def _note_ignored(self, content: bytes, sender: int) -> None:
        if not self._has_ignored_one:
            self._has_ignored_one = True
            known = self._journal.secrets
            shown = known.clean(content[: SHOWN_BYTES + known.longest])[:SHOWN_BYTES].decode("utf-8", "replace")
            self._journal.log("message_ignored", pid=sender, message=shown)

    def _read(self) -> None:
        try:
            more, about, _, _ = self._socket.recvmsg(READ_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        except OSError:
            more, about = b"", []
        sender = _sender(about)
        if self._speaker is None:
            self._speaker = sender
        if more and sender != self._speaker:
            self._note_ignored(more, sender or 0)
            return
        self._buffer += more
        self.closed = not more or len(self._buffer) > MAX_LINE_BYTES

    def _last_message(self) -> bytes:
        """Return the message that a host wrote to a file, because its task had closed the socket."""
        try:
            with open(self._last, "rb") as file:
                content = file.read(MAX_LINE_BYTES)
            os.unlink(self._last)
        except OSError:
            return b""
        return content

    def terminate(self) -> None:
        """Ask the host to end, but not the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, grace_s: float = KILL_GRACE_S) -> int | None:
        """End the child and all processes that it started. Return its exit status, or None."""
        if self._is_over:
            return self._process.poll()
        self._is_over = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.closed:
                self._process.wait(EXIT_WAIT_S)  # it is ending by itself: its own exit status says more
        status = self._process.poll()
        if status is None:
            processes.signal_all({self.pid}, self.pid, 15)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.left = processes.end_all(self.processes, self.pid, 0.0)
        self.left |= self._families.chase(self.pid, is_over=True)[1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT_S)
        self._families.remove(self.pid)
        self._socket.close()
        self.closed = True
        for name in (self._run.at("sessions", str(self.pid)), self._last):
            with contextlib.suppress(OSError):
                os.unlink(name)
        return status

    def processes(self) -> set[int]:
        """Return the live processes of the host: itself, and what its tasks started."""
        return self._families.of(self.pid)

    def keep_processes(self) -> None:
        """Let the processes that run now outlive their task: they end with the host."""
        self._families.keep(self.pid)

    def end_task(self) -> list[str]:
        """End the processes that a task left, and return their names."""
        if self._families.is_alone(self.pid):
            return []

        def find() -> set[int]:
            return self._families.left_by_task(self.pid)

        left = processes.wait_gone(find, LINGER_S)
        names = sorted(processes.name_of(pid) for pid in left)[:SHOWN_PROCESSES]
        if left:
            self.left = processes.end_all(find, None, TASK_GRACE_S)
        chased, alive = self._families.chase(self.pid, is_over=False)
        self.left |= alive
        return names or sorted(chased)


def _sender(about: list[tuple[int, int, bytes]]) -> int | None:
    """Return the pid of the process that wrote a part of the stream; None if the system does not tell."""
    for level, kind, data in about:
        if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", None):
            return int(CREDENTIALS.unpack_from(data)[0])
    return None
