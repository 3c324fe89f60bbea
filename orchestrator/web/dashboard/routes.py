"""The routes of the pages, of their streams, and of static files."""

import mimetypes
from functools import cache
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from orchestrator.errors import BAD_REQUEST, NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.task_events import EventStream
from orchestrator.web.dashboard import confirm, downloads, render, sign_in
from orchestrator.web.dashboard.answers import Answer, route
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.pages import PAGES
from orchestrator.web.dashboard.sessions import SignedIn
from orchestrator.web.dashboard.stream import NOT_FOUND, events, signed_out
from orchestrator.web.dashboard.views import Page, View
from orchestrator.web.fair_turns import CALLER

MAX_QUERY_CHARS = 2_000
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


def routes(dashboard: Dashboard) -> list[BaseRoute]:
    """Every address of the dashboard."""
    made = [
        *sign_in.routes(dashboard),
        *confirm.routes(dashboard),
        *downloads.routes(dashboard),
        route(dashboard, "/static/{digest}/{name}", _static, "GET"),
    ]
    for page in PAGES:
        made.append(route(dashboard, page.path, _page(dashboard, page), "GET"))
        path = "/live" + page.path.rstrip("/")
        made.append(route(dashboard, path, _live(dashboard, page), "GET", middleware=()))
    return made


def _page(dashboard: Dashboard, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        session = await dashboard.sessions.of(request)
        if session is None:
            return await sign_in.sign_in_page(dashboard, request, 200 if page.path == "/" else 401)
        _known(request, session)
        view = _view(session, page, request)
        content = await dashboard.content(page, view)
        query = f"?{urlencode(view.query)}" if view.query else ""
        text = render.page(
            content,
            csrf=session.csrf,
            session=session,
            events="/live" + request.url.path.rstrip("/") + query,
            digest=content.digest,
            notice=None if request.method == "HEAD" else dashboard.notices.pop(session.csrf),
        )
        return HTMLResponse(text)

    return answer


def _live(dashboard: Dashboard, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(status_code=405, headers={"Allow": "GET"})  # it would hold a stream that nobody reads
        session = await dashboard.sessions.of(request)
        if session is None:
            return Response(signed_out(), media_type="text/event-stream")
        _known(request, session)
        view = _view(session, page, request)
        await _require_there(dashboard, page, view)

        async def still() -> bool:
            now = await dashboard.sessions.of(request)
            return now is not None and now.holder == session.holder

        made = events(
            lambda: dashboard.content(page, view),
            still,
            last=request.headers.get("last-event-id") or request.query_params.get("digest"),
            csrf=session.csrf,
            look_s=page.look_s,
            closed=lambda: dashboard.api.watch.closed,
        )
        return EventStream(made, dashboard.api.watch.place(f"page:{session.holder.name}"))

    return answer


async def _require_there(dashboard: Dashboard, page: Page, view: View) -> None:
    """Raise Problem if there is nothing to follow: then a browser does not open the stream again."""
    try:
        await dashboard.content(page, view)
    except PortError:
        return  # the stream says so, and goes on when the database answers
    except Problem as problem:
        if problem.status == NOT_FOUND:
            raise


def _known(request: Request, session: SignedIn) -> None:
    caller = f"page:{session.holder.name}"
    CALLER.set(caller)
    request.app.state.connections.known(request.client, caller)


def _view(session: SignedIn, page: Page, request: Request) -> View:
    """What is looked at. Raises Problem."""
    holder = session.holder
    if holder.tenant is not None:
        why = "is restricted to a tenant: it may use the API's tasks"
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} {why}")
    if not holder.may(page.scopes):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} needs the scope {' or '.join(sorted(page.scopes))}")
    if page.is_fleets and holder.pools is not None:
        why = "is restricted to pools, and this is about all of them"
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} {why}")
    if len(request.url.query) > MAX_QUERY_CHARS or "\0" in request.url.query or "%00" in request.url.query:
        raise Problem(400, BAD_REQUEST, "the address is too long, or has a NUL character")
    query = {name: value for name, value in request.query_params.items() if value and name != "digest"}
    return View(holder, dict(request.path_params), query)


async def _static(request: Request) -> Response:
    """A file of this version; any other address is not found."""
    name = request.path_params["name"]
    if name not in _files() or render.static_url(name) != request.url.path:
        return Response(status_code=404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(_files()[name], media_type=kind, headers=FOREVER)


@cache
def _files() -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in render.STATIC.iterdir() if one.is_file()}
