"""What every address of the dashboard does: security headers, compression, and a page for each kind of trouble."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from orchestrator.errors import BAD_REQUEST, INTERNAL, NO_ROUTE
from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem, of_port_error, too_fast
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.errors import CLOSES

MIN_COMPRESSED_BYTES = 1_000
COMPRESSION = 5  # of 9: a page of 300 kB takes a few milliseconds
COMPRESSED = (Middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=COMPRESSION),)
Answer = Callable[[Request], Awaitable[Response]]
Kind = Literal["forbidden", "missing", "refused", "broken", "down"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Repetition:
    """An action of which the end is not known, and how to ask for it again."""

    asks: str  # the address of the page that asks
    back: str  # … and of the page that shows what was done
    has_parts: bool
    form: Mapping[str, str] | None  # its fields, if a second time is known as one


def route(
    dashboard: Dashboard, path: str, answer: Answer, *methods: str, middleware: Sequence[Middleware] = COMPRESSED
) -> Route:
    """An address whose answer is never anything but a page: also after a bug, and with the headers of all pages."""

    async def answered(request: Request) -> Response:
        try:
            response = await answer(request)
        except ClientDisconnect:
            response = Response(status_code=400)  # nobody reads it
        except (Problem, PortError) as error:
            response = trouble(dashboard, error)
        except Exception:
            log.exception("page_broken", page=path)
            response = trouble(dashboard, Problem(500, INTERNAL, "the log of the orchestrator says why"))
        for name, value in dashboard.headers.items():
            response.headers.setdefault(name, value)
        return response

    return Route(path, answered, methods=list(methods), middleware=middleware)


def trouble(dashboard: Dashboard, error: Problem | PortError, again: Repetition | None = None) -> Response:
    """A page that says what is wrong, since when, and what to do; `again`: how to repeat the action it met."""
    problem = error if isinstance(error, Problem) else of_port_error(error)
    if isinstance(error, PortError):
        log.info("page_failed", why=f"{type(error).__name__}: {error}"[:500])
    kind, now = _kind(problem), datetime.now(UTC)
    if kind == "down":
        dashboard.down_since = dashboard.down_since or now
    text = render.environment().get_template("trouble.html").render(
        kind=kind, title=problem.kind.what, why=str(problem), fix=problem.fix, since=dashboard.down_since, now=now,
        again=again if kind == "down" else None,
    )  # fmt: skip
    return HTMLResponse(text, status_code=problem.status, headers=dict(problem.headers))


def nowhere(dashboard: Dashboard) -> Response:
    """404 for an address that is no page."""
    response = trouble(
        dashboard, Problem(404, NO_ROUTE, "there is nothing at this address", fix="begin with the overview")
    )
    response.headers.update(dashboard.headers)
    return response


def too_many(dashboard: Dashboard) -> Response:
    """429, and the end of the connection."""
    response = trouble(dashboard, too_fast("too many requests without a valid token"))
    response.headers.update(CLOSES)
    return response


def _kind(problem: Problem) -> Kind:
    if problem.kind is INTERNAL:
        return "broken"
    if problem.status >= 500:  # noqa: PLR2004
        return "down"
    if problem.kind is BAD_REQUEST:
        return "refused"  # also with 403: a form of another site says nothing about the token
    kinds: dict[int, Kind] = {401: "forbidden", 403: "forbidden", 404: "missing"}
    return kinds.get(problem.status, "refused")
