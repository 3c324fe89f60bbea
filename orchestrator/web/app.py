"""The HTTP side of one orchestrator process: two health probes, the workers' gateway, and metrics for who has a token.

Everything else is refused.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import Blobs, WorkerDb
from orchestrator.web.connections import Connections
from orchestrator.web.errors import CLOSES, NO_STORE, Refusal
from orchestrator.web.gateway import FUNCTIONS, Gateway
from orchestrator.web.metrics import exposition, holds_token
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import Claims


def build_app(
    *,
    db: WorkerDb | None,
    blobs: Blobs,
    verifier: Callable[[str], Claims],
    health: Health,
    wakeups: WakeupHub,
    on_unanswered: Callable[[str], None] = lambda _: None,
    metrics: Metrics | None = None,
    metrics_tokens: Sequence[str] = (),
    proxy_hops: int = 0,
    sealed: Callable[[str, str], Sequence[str]] = lambda *_: (),
) -> Starlette:
    """The application; the daemon updates `health` (on `time.monotonic`) and `wakeups` from this event loop.

    `on_unanswered` and `sealed`: see `Gateway`. Without a token, nobody may read the metrics or more of
    the health than its status; without `db` there is no gateway: pods
    speak to Supabase.
    """

    def shown(request: Request, now_s: float) -> Mapping[str, Any]:
        report = health.report(now_s)
        return report if holds_token(request, metrics_tokens) else {"status": report["status"]}

    def probed(request: Request, is_well: Callable[[float], bool]) -> Response:
        now_s = time.monotonic()
        headers = NO_STORE if request.app.state.connections.keeps_probe(request, now_s) else NO_STORE | CLOSES
        return JSONResponse(shown(request, now_s), status_code=200 if is_well(now_s) else 503, headers=headers)

    async def healthz(request: Request) -> Response:
        return probed(request, health.alive)

    async def readyz(request: Request) -> Response:
        return probed(request, health.ready)

    numbers = metrics or Metrics()
    routes = [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", exposition(numbers, metrics_tokens), methods=["GET"]),
    ]
    if db is not None:
        gateway = Gateway(db, blobs, verifier, wakeups, on_unanswered, sealed)
        routes.append(Route("/rest/v1/rpc/{function}", _counted(gateway.rpc, numbers), methods=["POST"]))
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refused, Exception: _broken},
    )
    app.state.connections = Connections(proxy_hops)
    app.router.redirect_slashes = False  # a path that is nearly right is not there
    return app


def _counted(
    answer: Callable[[Request], Awaitable[Response]], metrics: Metrics
) -> Callable[[Request], Awaitable[Response]]:
    """The same endpoint, its answers counted by function and status."""

    async def counted(request: Request) -> Response:
        function = request.path_params["function"]
        status = 500
        try:
            response = await answer(request)
            status = response.status_code
        finally:
            metrics.gateway.labels(function if function in FUNCTIONS else "other", str(status)).inc()
        return response

    return counted


async def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    names = {404: ("PGRST125", "Invalid path"), 405: ("PGRST101", "Cannot use this method here")}
    code, message = names.get(status, ("PGRST000", "The request cannot be served"))
    connections: Connections = request.app.state.connections
    return connections.refuse(request, Refusal(status, code, message), time.monotonic())


async def _broken(_: Request, _error: Exception) -> Response:
    """A bug of ours: the server logs it, the caller learns nothing of it."""
    return Refusal(500, "XX000", "Internal error").response()
