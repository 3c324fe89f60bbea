"""The connection between the agent and its handler host: JSON lines over a socket pair.

Only the host's own process uses it. A program that the host starts does not inherit it, a process that the host forks
has a null device in its place, and no message is sent from such a process. Each message about a task names the task and
the attempt, and none is sent once the attempt is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import stat
import threading

from . import processes
from .transfer_errors import Unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

# Bound once: a handler may replace the functions of a module.
ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
DECODE = json.JSONDecoder().decode
PID = os.getpid
ELSEWHERE = "only the process that runs the handler can do this, not one that it has forked"
OVER = "the task has ended"


class Channel:
    """JSON lines to and from the agent. Any thread may send; one thread listens."""

    def __init__(self, source: socket.socket, last: str | None = None) -> None:
        """`last` is the file for the last message of a host whose socket its task has closed."""
        self._socket, self._last = source, last
        self._fd, self._pid, self._session = source.fileno(), PID(), os.getsid(0)
        self._identity = _identity(self._fd)
        self._mark = os.environ.get(processes.MARK, "")
        self._lock = threading.Lock()
        self._seq = 0
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        os.set_inheritable(self._fd, False)
        os.register_at_fork(after_in_child=self._leave)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises OSError if the socket is gone, and Unsent in another process than the host."""
        line = ENCODE(message).encode() + b"\n"
        if PID() != self._pid:
            raise Unsent(ELSEWHERE)
        with self._lock:
            if _identity(self._fd) != self._identity:
                raise OSError("the socket to the agent was closed")
            self._socket.sendall(line)

    def send_last(self, message: dict[str, Any]) -> bool:
        """Send the last message of a task. Return False if it had to be written to the file: the host must end."""
        try:
            self.send(message)
        except OSError:
            if self._last is None:
                raise
            with open(self._last, "wb") as file:
                file.write(ENCODE(message).encode() + b"\n")
            return False
        return True

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send and wait for the reply. Raises TimeoutError."""
        reply: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        if PID() != self._pid:  # the lock may be held by a thread that this process does not have
            raise Unsent(ELSEWHERE)
        with self._lock:
            self._seq += 1
            seq = self._seq
            self._replies[seq] = reply
        try:
            self.send({**message, "seq": seq})
            return reply.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no reply from the agent within {timeout_s:g} s") from None
        finally:
            del self._replies[seq]

    def listen(self, terminate: threading.Event) -> None:
        """Read messages until the agent has ended, then end all processes of this host."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the handler's threads
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                message = DECODE(line.decode())
                if message["op"] == "reply":
                    waiting = self._replies.get(message["seq"])
                    if waiting:
                        waiting.put(message)
                elif message["op"] == "terminate":
                    terminate.set()
                else:
                    self.requests.put(message)
        if self._mark:
            processes.end_all(self._others, None, 0.0)  # not the session: a TERM would end this process too early
        os.killpg(0, signal.SIGKILL)

    def _others(self) -> set[int]:
        family = processes.descendants(processes.table(), {self._pid})
        return (family | processes.tree(self._session, self._mark)) - {self._pid}

    def _leave(self) -> None:
        """Put a null device in the place of the socket: this is a forked process."""
        if PID() != self._pid and _identity(self._fd) == self._identity:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, self._fd, inheritable=False)
            os.close(null)


class TaskChannel:
    """The channel as the attempt of one task uses it."""

    def __init__(self, channel: Channel, task_id: str, attempt: int) -> None:
        self._channel, self._names = channel, {"task": task_id, "attempt": attempt}
        self._pid, self._lock = PID(), threading.Lock()
        self._is_over = False

    def send(self, message: dict[str, Any]) -> None:
        """Send a message about the attempt. Raises Unsent after its end, and in another process than the host."""
        self._check()
        with self._lock:
            self._check()
            self._channel.send({**message, **self._names})

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send and wait for the reply. Raises TimeoutError, and Unsent like `send`."""
        self._check()
        return self._channel.ask({**message, **self._names}, timeout_s)

    def finish(self, last: dict[str, Any]) -> bool:
        """End the attempt, so that its threads send nothing more, and send its last message, as `send_last` does."""
        with self._lock:
            self._is_over = True
        return self._channel.send_last({**last, **self._names})

    def _check(self) -> None:
        if PID() != self._pid:
            raise Unsent(ELSEWHERE)
        if self._is_over:
            raise Unsent(OVER)


def _identity(fd: int) -> tuple[int, int] | None:
    """Return the socket behind a descriptor; None if it is closed, or no socket."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None
