"""`GET /metrics` for Prometheus, behind a bearer token: cost and activity of a fleet are confidential."""

import hmac
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.observability.metrics import Metrics
from orchestrator.web.errors import NO_STORE, Refusal

CLOSED = "METRICS_CLOSED"  # no token is configured
UNAUTHORIZED = "METRICS_TOKEN"


def holds_token(request: Request, token: str | None) -> bool:
    """Whether a request carries this token; no request carries a token that is not configured."""
    if not token:
        return False
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def exposition(metrics: Metrics, token: str | None) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint. It is closed if no token is configured."""

    async def answer(request: Request) -> Response:
        refusal = None
        if not token:
            why = "The metrics are closed"
            refusal = Refusal(403, CLOSED, why, hint="set METRICS_TOKEN on the service")
        elif not holds_token(request, token):
            refusal = Refusal(401, UNAUTHORIZED, "Not allowed", hint="send Authorization: Bearer <METRICS_TOKEN>")
        if refusal is not None:
            refused: Response = request.app.state.connections.refuse(request, refusal, time.monotonic())
            return refused
        headers = {**NO_STORE, "Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(metrics.registry), headers=headers)

    return answer
