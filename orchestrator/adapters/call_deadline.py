"""The deadline of a call, for a connection whose server may not answer."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import psycopg
from psycopg.rows import TupleRow


class CallDeadline:
    """Ends the wait of a connection by closing its socket.

    A cancel would first ask the server to cancel the statement, and an unresponsive server does not answer that either.
    """

    def __init__(self, limit_s: float) -> None:
        self._at = asyncio.get_running_loop().time() + limit_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._at - asyncio.get_running_loop().time())

    @property
    def is_over(self) -> bool:
        """Return whether the time is over."""
        return self.left_s <= 0

    @contextlib.contextmanager
    def on(self, connection: psycopg.AsyncConnection[TupleRow]) -> Iterator[None]:
        """Apply the deadline to the connection within the context."""
        timer = asyncio.get_running_loop().call_at(self._at, _sever, connection)
        try:
            yield
        finally:
            timer.cancel()


def _sever(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
