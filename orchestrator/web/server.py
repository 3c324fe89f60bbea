"""The HTTP server, on its own thread and event loop.

A thousand agents make hundreds of calls per second. On the loop's event loop, each tick would wait for them, and a slow
tick would delay agents and health probes. The threads share thread-safe objects (the health record, the metrics, the
bucket), and pass everything else through their event loops.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog
import uvicorn
from starlette.applications import Starlette

from orchestrator.web.limits import bounded
from orchestrator.web.wakeups import WakeupHub

EVERY_ADDRESS = "::"
BACKLOG = 2_048  # connections that wait to be accepted, as uvicorn has it
log = structlog.get_logger()


class GatewayServer:
    """One HTTP server; its methods are called on the event loop that made it."""

    def __init__(
        self, host: str, port: int, application: Callable[[WakeupHub], AbstractAsyncContextManager[Starlette]]
    ) -> None:
        """`application` is opened and closed on the server's thread. It gets the hub that wakes its long polls."""
        self._address, self._application = (host, port), application
        self._wakeups = WakeupHub()
        self._loop = asyncio.new_event_loop()
        self._server: uvicorn.Server | None = None
        self._home = asyncio.get_running_loop()
        self.closed = asyncio.Event()  # also set if the server could not open, for example because the port is in use
        self._thread = threading.Thread(target=self._run, name="http_server", daemon=True)

    def open(self) -> None:
        """Begin to serve; `closed` is set if that fails."""
        self._thread.start()

    def on_notification(self, channel: str, payload: str) -> None:
        """Pass on a notification of the database."""
        self._call_soon(lambda: self._wakeups.on_notification(channel, payload))

    async def close(self, within_s: float) -> None:
        """End all long polls, then the running answers. Slower ones are cut off with the process."""
        self._call_soon(self._begin_shutdown)
        try:
            async with asyncio.timeout(within_s):
                await self.closed.wait()
        except TimeoutError:
            log.info("http_answers_cut_off", message=f"answers were still under way after {within_s:g} s")

    def _call_soon(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the server's event loop has closed: nothing is left to call
            self._loop.call_soon_threadsafe(callback)

    def _begin_shutdown(self) -> None:
        self._wakeups.close()
        if self._server is not None:
            self._server.should_exit = True  # idle connections end now, the others with their answers

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except SystemExit:  # uvicorn raises it if it cannot listen there; the process then ends
            host, port = self._address
            fix = "set HOST to an address of this machine, and PORT to one at which nothing listens"
            words = f"the HTTP server could not be opened at {host}:{port}; fix: {fix}"
            log.warning("http_server_not_opened", message=words, port=port)
        finally:
            with contextlib.suppress(RuntimeError):  # the control loop has already closed
                self._home.call_soon_threadsafe(self.closed.set)

    async def _serve(self) -> None:
        async with self._application(self._wakeups) as application:
            self._server = uvicorn.Server(bounded(application, *self._address))
            await self._server.serve(sockets=_every_address(*self._address))


def _every_address(host: str, port: int) -> list[socket.socket] | None:
    """Return a socket that takes IPv6 and IPv4, for the host `::`. None for another host, which uvicorn opens.

    asyncio's own socket would take IPv6 only. Raises SystemExit if the port is in use, as uvicorn does.
    """
    if host != EVERY_ADDRESS or not socket.has_dualstack_ipv6():
        return None
    try:
        return [socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)]
    except OSError as error:
        raise SystemExit(1) from error
