"""`GET /metrics` for Prometheus, behind a bearer token: what a fleet costs and does is nobody else's business."""

import hmac
import time
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.observability.metrics import Metrics
from orchestrator.web.errors import NO_STORE, Refusal

CLOSED = "METRICS_CLOSED"  # no token is configured: there is none that would open it
UNAUTHORIZED = "METRICS_TOKEN"


def holds_token(request: Request, tokens: Sequence[str]) -> bool:
    """Whether a request carries one of these tokens."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given = token.strip().encode()
    known = [hmac.compare_digest(given, one.encode()) for one in tokens if one]  # all of them: the time tells nothing
    return scheme.lower() == "bearer" and any(known)


def exposition(metrics: Metrics, tokens: Sequence[str]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint that answers to any of the tokens, and to nobody when there is none."""

    async def answer(request: Request) -> Response:
        refusal = None
        if not any(tokens):
            why = "The metrics are closed"
            refusal = Refusal(403, CLOSED, why, hint="set METRICS_TOKEN or ADMIN_TOKEN on the service")
        elif not holds_token(request, tokens):
            refusal = Refusal(401, UNAUTHORIZED, "Not allowed", hint="send Authorization: Bearer <METRICS_TOKEN>")
        if refusal is not None:
            refused: Response = request.app.state.connections.refuse(request, refusal, time.monotonic())
            return refused
        headers = {**NO_STORE, "Content-Type": CONTENT_TYPE_LATEST}
        return Response(generate_latest(metrics.registry), headers=headers)

    return answer
