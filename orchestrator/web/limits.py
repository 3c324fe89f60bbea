"""The limits for unauthenticated callers: bytes and seconds of a request's head, and connections.

uvicorn limits none of these. The gateway limits bodies.

A connection has one request at a time. No client of ours sends the next request before it has read the answer, and
uvicorn makes an object for every request in a read of 256 KiB: 13,000 of them hold the event loop for a third of a
second. So the parse stops at the second request, the first one is answered, and the connection closes.
"""

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchestrator.web.connections import Connections
from orchestrator.web.log_sampling import SampledWarnings

MAX_HEAD_BYTES = 64 << 10  # request line and headers; a token has at most 4 KiB
MAX_HEADERS = 128  # of one request; proxies add a dozen
MAX_BODY_PIECES = 512  # in one read of 256 KiB: a chunked body may come byte by byte, and each piece is a call
MAX_REST_BYTES = 8 << 20  # after an answer: a caller that is cut off while it sends its body never reads the refusal
HEAD_TIMEOUT_S = 10.0  # from a connection's first moment, or a request's first byte, to the end of its headers
ANSWER_TIMEOUT_S = 30.0  # for a caller to take an answer once its window is full, or the connection is being closed
KEEP_ALIVE_S = 45  # an idle agent's heartbeats, every 20 s by default, use one connection
ANONYMOUS_KEEP_ALIVE_S = 5  # without a worker's token
SAID = b'{"code":"PGRST000","message":"The request\'s headers are too large","details":null,"hint":null}'
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(SAID), SAID)
)


class _Excess(Exception):
    """Raised within the parser, to skip the rest of the data."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which closes the connection after an endless or slow head, or a pipelined request."""

    _unparsed_bytes = 0  # of a head that is not complete, or of what follows an answer
    _in_head = True
    _head_bytes = _headers = 0  # of the request that is being parsed
    _pieces = 0  # of bodies, in one read
    _slow: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None
    _has_pipelined = False
    callers: Connections
    peer = ("", 0)

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self.timeout_keep_alive = ANONYMOUS_KEEP_ALIVE_S
        self.peer = self.client or ("", id(self))
        self.callers.opened(self)
        self._wait()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: Any = self.cycle  # None before the first request, although its annotation excludes None
        return cycle is not None and not cycle.response_complete

    def mark_known(self) -> None:
        """Mark it as a worker's connection, which stays open between heartbeats."""
        self.timeout_keep_alive = KEEP_ALIVE_S

    def close_now(self) -> None:
        """Close it and remove it at once: several may close in one turn of the event loop."""
        self.callers.closed(self)
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and remove the connection."""
        self._stop_waiting()
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self.callers.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what does not complete a head, and is not the body of a request that is being answered."""
        before = self.cycle
        if self._has_pipelined or (self.busy and not before.more_body):
            self._pipelined(len(data))
            return
        self._unparsed_bytes += len(data)
        self._pieces = 0
        super().data_received(data)
        if self.cycle is not before or self.busy:
            self._unparsed_bytes = 0
            self._stop_waiting()
        else:
            self._wait()
            if self._unparsed_bytes > (MAX_HEAD_BYTES if self._in_head else MAX_REST_BYTES):
                self._refuse_head()

    def on_message_begin(self) -> None:
        """Stop at a second request before the answer to the first."""
        if self.busy:
            raise _Excess
        self._head_bytes = self._headers = self._unparsed_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Stop at a head that is too large."""
        self._count_head(len(url), 0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Stop at a head that is too large or has too many lines."""
        self._count_head(len(name) + len(value), 1)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note the end of the head: the rest is body."""
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Stop at a body in too many pieces."""
        self._pieces += 1
        if self._pieces > MAX_BODY_PIECES:
            raise _Excess
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what has been read. If a request is being answered, its answer is the last one."""
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            self._refuse_head()
        elif self._pieces > MAX_BODY_PIECES:
            self.transport.abort()
        elif self.busy:
            self._pipelined(0)
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Limit the time for which the last answer waits for the caller."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()

    def pause_writing(self) -> None:
        """Limit the time for which an answer waits for a caller that does not read."""
        super().pause_writing()
        self._close_by_force()

    def resume_writing(self) -> None:
        """Cancel the limit, because the caller reads again."""
        super().resume_writing()
        if self._closing is not None and not self.transport.is_closing():
            self._closing.cancel()
            self._closing = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without further requests."""
        self._close()

    def _count_head(self, size_bytes: int, lines: int) -> None:
        self._head_bytes += size_bytes
        self._headers += lines
        if self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS:
            raise _Excess

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            if not self.busy:
                self.transport.write(TOO_LARGE)
            self._close()

    def _pipelined(self, size_bytes: int) -> None:
        """Make the present answer the last one of this connection. Later bytes are not parsed."""
        self._has_pipelined = True
        self.cycle.keep_alive = False
        self._unparsed_bytes += size_bytes
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self._close_by_force()

    def _close_by_force(self) -> None:
        if self._closing is None:
            self._closing = self.loop.call_later(ANSWER_TIMEOUT_S, self.transport.abort)

    def _wait(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(HEAD_TIMEOUT_S, self._close)

    def _stop_waiting(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


def bounded(app: Starlette, host: str, port: int) -> uvicorn.Config:
    """The application on this address, within these limits."""
    callers = getattr(app.state, "connections", None) or Connections()
    protocol = type("BoundProtocol", (BoundedProtocol,), {"callers": callers})
    warnings = logging.getLogger("uvicorn.error")
    if not any(isinstance(known, SampledWarnings) for known in warnings.filters):
        warnings.addFilter(SampledWarnings())
    return uvicorn.Config(
        app,
        host,
        port,
        http=protocol,
        ws="none",  # an upgraded connection would leave these limits
        proxy_headers=False,  # Connections reads these headers, with the number of trusted proxies
        timeout_keep_alive=KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
