"""The HTTP server, on its own thread and event loop.

A thousand agents make hundreds of calls per second. On the loop's event loop, each tick would wait for them, and a slow
tick would delay agents and health probes. The threads share thread-safe objects (the health record, the metrics, the
bucket), and pass everything else through their event loops.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import structlog
import uvicorn
from starlette.applications import Starlette

from orchestrator.web.limits import bounded
from orchestrator.web.wakeups import WakeupHub

log = structlog.get_logger()


class GatewayServer:
    """One HTTP server; every method belongs to the event loop that made it."""

    def __init__(
        self, host: str, port: int, application: Callable[[WakeupHub], AbstractAsyncContextManager[Starlette]]
    ) -> None:
        """`application` is opened and closed on the thread; what it is given wakes its long polls."""
        self._address, self._application = (host, port), application
        self._signal = WakeupHub()
        self._loop = asyncio.new_event_loop()
        self._server: uvicorn.Server | None = None
        self._home = asyncio.get_running_loop()
        self.closed = asyncio.Event()  # also set if the server could not open, for example because the port is in use
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def open(self) -> None:
        """Begin to serve; `closed` is set if that fails."""
        self._thread.start()

    def heard(self, channel: str, payload: str) -> None:
        """Pass on a notification of the database."""
        self._tell(lambda: self._signal.heard(channel, payload))

    async def close(self, within_s: float) -> None:
        """End all long polls, then the running answers. Slower ones are cut off with the process."""
        self._tell(self._leave)
        try:
            async with asyncio.timeout(within_s):
                await self.closed.wait()
        except TimeoutError:
            log.info("door_cut_off", message=f"answers were still under way after {within_s:g} s")

    def _tell(self, say: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it has gone, and who would have heard with it
            self._loop.call_soon_threadsafe(say)

    def _leave(self) -> None:
        self._signal.close()
        if self._server is not None:
            self._server.should_exit = True  # idle connections end now, the others with their answers

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except SystemExit:  # uvicorn's way to say that the port is taken; the process ends with it
            host, port = self._address
            words = f"the HTTP server could not be opened at {host}:{port}; fix: end what listens there, or set PORT"
            log.warning("door_shut", message=words, port=port)
        finally:
            with contextlib.suppress(RuntimeError):  # the process is over before us
                self._home.call_soon_threadsafe(self.closed.set)

    async def _serve(self) -> None:
        async with self._application(self._signal) as application:
            self._server = uvicorn.Server(bounded(application, *self._address))
            await self._server.serve()
