"""Connections to the store: several at a time, each with its own thread, or one in the caller's thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

from .store import Again, StoreConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .uploads import StoreRequest

FRESH_S = 240.0  # a presigned URL is valid for 300 s


class ParallelConnections:
    """Sends requests over `count` connections. The threads end with `close`, or with the process."""

    def __init__(self, count: int) -> None:
        self._queue: queue.SimpleQueue[tuple[StoreRequest, dict[str, Any], float] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[StoreRequest, Exception | None]] = queue.SimpleQueue()
        self._count = count
        self.pending = 0  # requests without a result
        for _ in range(count):
            threading.Thread(target=self._serve, name="store", daemon=True).start()

    def submit(self, request: StoreRequest, item: dict[str, Any]) -> None:
        """Queue a request with the URLs that were signed for it now."""
        self.pending += 1
        self._queue.put((request, item, time.monotonic()))

    def next(self) -> tuple[StoreRequest, Exception | None]:
        """Wait for the next result: (request, its error). Every request has a timeout, so the wait ends."""
        done = self._done.get()
        self.pending -= 1
        return done

    def recall(self) -> list[StoreRequest]:
        """Remove and return the requests that no connection has begun."""
        recalled = []
        with contextlib.suppress(queue.Empty):
            while queued := self._queue.get_nowait():
                recalled.append(queued[0])
        self.pending -= len(recalled)
        return recalled

    def close(self) -> None:
        self.recall()
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self) -> None:
        connection = StoreConnection()
        try:
            while queued := self._queue.get():
                request, item, signed_at = queued
                expired = time.monotonic() - signed_at > FRESH_S
                self._done.put((request, Again() if expired else _send(request, item, connection)))
        finally:
            connection.close()


class SingleConnection:
    """The same interface for one request at a time in the caller's thread, so that a cancellation interrupts it."""

    def __init__(self, idle: list[StoreConnection]) -> None:
        """`idle`: connections for reuse; `close` returns this one to the list."""
        self._idle = idle
        self._connection = idle.pop() if idle else StoreConnection()
        self._done: list[tuple[StoreRequest, Exception | None]] = []

    @property
    def pending(self) -> int:
        return len(self._done)

    def submit(self, request: StoreRequest, item: dict[str, Any]) -> None:
        self._done.append((request, _send(request, item, self._connection)))

    def next(self) -> tuple[StoreRequest, Exception | None]:
        return self._done.pop()

    def recall(self) -> list[StoreRequest]:
        return []

    def close(self) -> None:
        self._idle.append(self._connection)


def _send(request: StoreRequest, item: dict[str, Any], connection: StoreConnection) -> Exception | None:
    """Send once and return the error. The transfer loop decides what it means."""
    try:
        request.send(item, connection)
    except Exception as error:  # noqa: BLE001
        return error
    return None
