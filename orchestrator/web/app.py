"""The HTTP side of one orchestrator process: two health probes and the workers' gateway; everything else is refused."""

import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.ports import Blobs
from orchestrator.web.gateway import Gateway, WorkerDb
from orchestrator.web.health import Health
from orchestrator.web.refusals import NO_STORE, Refusal
from orchestrator.web.signal import TaskSignal
from orchestrator.web.tokens import Claims


def build_app(
    *,
    db: WorkerDb,
    blobs: Blobs,
    verifier: Callable[[str], Claims],
    health: Health,
    task_signal: TaskSignal,
    on_unanswered: Callable[[str], None] = lambda _: None,
) -> Starlette:
    """The application; the daemon updates `health` (on `time.monotonic`) and `task_signal` from this event loop.

    `on_unanswered`: see `Gateway`.
    """

    async def healthz(_: Request) -> Response:
        now_s = time.monotonic()
        return JSONResponse(health.report(now_s), status_code=200 if health.alive(now_s) else 503, headers=NO_STORE)

    async def readyz(_: Request) -> Response:
        now_s = time.monotonic()
        return JSONResponse(health.report(now_s), status_code=200 if health.ready(now_s) else 503, headers=NO_STORE)

    gateway = Gateway(db, blobs, verifier, task_signal, on_unanswered)
    return Starlette(
        routes=[
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Route("/rest/v1/rpc/{function}", gateway.rpc, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused, Exception: _broken},
    )


async def _refused(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    names = {404: ("PGRST125", "Invalid path"), 405: ("PGRST117", "Unsupported HTTP method")}
    code, message = names.get(status, ("PGRST000", "The request cannot be served"))
    return Refusal(status, code, message).response()


async def _broken(_: Request, _error: Exception) -> Response:
    """A bug of ours: the server logs it, the caller learns nothing of it."""
    return Refusal(500, "XX000", "Internal error").response()
