"""The connection between the agent and its handler host: JSON lines over a socket pair."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any


class Channel:
    """JSON lines to and from the agent. Any thread may send; one thread listens."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._lock = threading.Lock()
        self._seq = 0
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send and wait for the reply. Raises TimeoutError."""
        reply: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
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
        """Read messages until the agent has ended, then end this whole session."""
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message["op"] == "reply":
                    waiting = self._replies.get(message["seq"])
                    if waiting:
                        waiting.put(message)
                elif message["op"] == "terminate":
                    terminate.set()
                else:
                    self.requests.put(message)
        mark = os.environ.get(processes.MARK, "")
        if mark:
            processes.end(os.getsid(0), mark, 0.0)
        os.killpg(0, signal.SIGKILL)
