"""How much one caller may cost before anything is known of it: bytes and seconds of a request's head, connections.

uvicorn bounds none of these with its faster parser. What a body may cost, the gateway says.
"""

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from orchestrator.web.connections import Connections
from orchestrator.web.log_sampling import SampledWarnings

MAX_HEAD_BYTES = 64 << 10  # request line and headers; a token has at most 4 KiB
MAX_REST_BYTES = 8 << 20  # after an answer: who is cut off while it still sends its body never reads the refusal
HEAD_TIMEOUT_S = 10.0  # from a connection's first moment, or a request's first byte, to the end of its headers
KEEP_ALIVE_S = 45  # an idle agent's beats, every 20 s by default, go over one connection
STRANGER_KEEP_ALIVE_S = 5  # without a worker's token
SAID = b'{"code":"PGRST000","message":"The request\'s headers are too large","details":null,"hint":null}'
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(SAID), SAID)
)


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, hanging up on who sends a head without end or without haste."""

    _head_bytes = 0
    _slow: asyncio.TimerHandle | None = None
    callers: Connections
    peer = ("", 0)

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self.timeout_keep_alive = STRANGER_KEEP_ALIVE_S
        self.peer = self.client or ("", id(self))
        self.callers.opened(self)
        self._wait()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def know(self) -> None:
        """A worker's: its beats go over one connection."""
        self.timeout_keep_alive = KEEP_ALIVE_S

    def hang_up(self) -> None:
        """Close it, and forget it at once: several may have to go in one turn of the event loop."""
        self.callers.closed(self)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self._wait_no_more()
        self.callers.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what does not complete a head, and is not the body of a request that is being answered."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_bytes = 0
            self._wait_no_more()
        elif before is None or before.response_complete:
            self._head_bytes += len(data)
            self._wait()
            if (
                self._head_bytes > (MAX_HEAD_BYTES if before is None else MAX_REST_BYTES)
                and not self.transport.is_closing()
            ):
                if before is None:
                    self.transport.write(TOO_LARGE)
                self.transport.close()

    def _wait(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _wait_no_more(self) -> None:
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
        proxy_headers=False,  # Connections reads them, and knows how many to believe
        timeout_keep_alive=KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
