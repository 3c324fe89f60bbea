"""The HTTP application of one orchestrator process.

It has the dashboard, two health probes, the gateway, the API, and metrics behind a token. Everything else is refused.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from orchestrator.errors import INTERNAL
from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import Blobs, WorkerDb
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.routes import BASE
from orchestrator.web.api.routes import routes as api_routes
from orchestrator.web.connections import Connections
from orchestrator.web.dashboard.answers import nowhere
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.routes import routes as dashboard_routes
from orchestrator.web.errors import CLOSES, NO_STORE, Refusal
from orchestrator.web.gateway import FUNCTIONS, Gateway
from orchestrator.web.metrics import exposition, holds_token
from orchestrator.web.root_page import STATES, root_page
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
    metrics_token: str | None = None,
    proxy_hops: int = 0,
    sealed: Callable[[str, str], Sequence[str]] = lambda *_: (),
    api: Api | None = None,
    dashboard: Dashboard | None = None,
) -> Starlette:
    """Return the application. The daemon updates `health` (on `time.monotonic`) and `wakeups` from this event loop.

    `on_unanswered` and `sealed`: see `Gateway`. Without a token, the metrics are closed, and
    the health shows only its status; without `db` there is no gateway: pods
    call Supabase.
    """

    def shown(request: Request, now_s: float) -> Mapping[str, Any]:
        report = health.report(now_s)
        return report if holds_token(request, metrics_token) else {"status": report["status"]}

    def probed(request: Request, is_well: Callable[[float], bool]) -> Response:
        now_s = time.monotonic()
        headers = NO_STORE if request.app.state.connections.keeps_probe(request, now_s) else NO_STORE | CLOSES
        return JSONResponse(shown(request, now_s), status_code=200 if is_well(now_s) else 503, headers=headers)

    async def healthz(request: Request) -> Response:
        return probed(request, health.alive)

    async def root(request: Request) -> Response:
        now_s = time.monotonic()
        keeps = request.app.state.connections.keeps_probe(request, now_s)
        return root_page(health.report(now_s)["status"], {} if keeps else CLOSES)

    def status() -> Mapping[str, str]:
        name = health.report(time.monotonic())["status"]
        return {"status": name, "sentence": STATES[name]}

    async def readyz(request: Request) -> Response:
        return probed(request, health.ready)

    async def refused(request: Request, error: Exception) -> Response:
        response = await _refused(request, error)
        is_missing = response.status_code == 404  # noqa: PLR2004
        return nowhere(dashboard) if dashboard and is_missing and _wants_page(request) else response

    numbers = metrics or Metrics()
    routes: list[BaseRoute] = [
        *(dashboard_routes(dashboard) if dashboard else [Route("/", root, methods=["GET"])]),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", exposition(numbers, metrics_token), methods=["GET"]),
    ]
    if db is not None:
        gateway = Gateway(db, blobs, verifier, wakeups, on_unanswered, sealed)
        routes.append(Route("/rest/v1/rpc/{function}", _counted(gateway.rpc, numbers), methods=["POST"]))
    if api is not None:
        routes += api_routes(api)
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: refused, Exception: _broken},
    )
    app.state.connections = Connections(proxy_hops)
    app.state.status = status
    app.router.redirect_slashes = False  # a path with an extra slash is not found
    return app


def _counted(
    answer: Callable[[Request], Awaitable[Response]], metrics: Metrics
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an endpoint, and count its answers by function and status."""

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


def _wants_page(request: Request) -> bool:
    """Whether a person asks, not a program: browsers name HTML first."""
    return request.headers.get("accept", "").partition(",")[0].strip() == "text/html"


async def _broken(request: Request, _error: Exception) -> Response:
    """Answer after a bug: the server logs it, and the caller sees no details."""
    if request.url.path.startswith(BASE):
        return Problem(500, INTERNAL, "the orchestrator has made an error").response()
    return Refusal(500, "XX000", "Internal error").response()
