"""The table of pages, and what stands around them: sign-in, streams, and static files."""

import asyncio
import mimetypes
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qs, urlencode

import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from orchestrator.errors import NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.operations import Api, too_many_refusals
from orchestrator.web.api.problems import Problem, of_port_error
from orchestrator.web.api.task_events import EventStream
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.pages import PAGES
from orchestrator.web.dashboard.sessions import COOKIE, ID_PATTERN, Sessions, SignedIn, with_cookie
from orchestrator.web.dashboard.shared import Shared
from orchestrator.web.dashboard.stream import events
from orchestrator.web.dashboard.views import Page, Reads, View
from orchestrator.web.errors import NO_STORE, Refusal
from orchestrator.web.fair_turns import CALLER
from orchestrator.web.request_bodies import read_body

MAX_QUERY_CHARS = 2_000
FORM = "application/x-www-form-urlencoded"
MAX_NOTICES = 1_000
MAX_FORM_BYTES = 8 << 10
PAGE_S = 5.0  # for the facts of a page
SAFE_NEXT = re.compile(r"/(?:[A-Za-z0-9_.~%?&=:,+-][A-Za-z0-9_./~%?&=:,+-]{0,1000})?")  # an address of this site
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
Answer = Callable[[Request], Awaitable[Response]]

log = structlog.get_logger()


class Notices:
    """What was done, by session: its next page says it once."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, str] = OrderedDict()

    def add(self, csrf: str, said: str) -> None:
        """Remember it for the session with this `csrf`."""
        self._said[csrf] = said
        if len(self._said) > MAX_NOTICES:
            self._said.popitem(last=False)

    def pop(self, csrf: str) -> str | None:
        """What was done since the last page."""
        return self._said.pop(csrf, None)


class Dashboard:
    """What the pages of one process share."""

    def __init__(self, api: Api, fleet: str, *, bucket_origin: str | None = None, is_https: bool = False) -> None:
        """`bucket_origin`: from where browsers load outputs. `is_https`: a proxy in front of this server has TLS."""
        self.api, self.fleet, self.shared = api, fleet, Shared()
        self.sessions = Sessions(api.rows, api.authentication)
        self._is_https = is_https
        self.notices = Notices()
        self.headers = _headers(bucket_origin)

    def is_secure(self, request: Request) -> bool:
        """Whether the browser's connection has TLS."""
        said = request.headers.get("x-forwarded-proto", "").split(",")[0].strip() if self._is_https else ""
        return (said or request.url.scheme) == "https"

    async def content(self, page: Page, view: View) -> render.Rendered:
        """The content of a page now. Raises Problem or PortError."""
        reads = Reads(self.api, self.shared, view)

        async def ask() -> render.Rendered:
            try:
                async with asyncio.timeout(PAGE_S):
                    facts, nav = await page.facts(reads, view), await _nav(self.fleet, page, reads, view)
            except TimeoutError:
                raise Problem(503, NOT_ALLOWED, f"the database did not answer within {PAGE_S:g} s") from None
            return render.rendered(page.template, {**facts, "command": page.command(view), "view": view}, nav,
                                   datetime.now(UTC))  # fmt: skip

        allowed = (view.holder.pools, view.holder.tenant, view.holder.scopes)
        key = (page.path, tuple(view.path.items()), tuple(sorted(view.query.items())), allowed)
        return await self.shared.get(key, ask)


def routes(dashboard: Dashboard) -> list[BaseRoute]:
    """The routes of the pages. `/` without a session is left to the caller's own route; see web/app.py."""
    made: list[BaseRoute] = [
        Route("/login", _login(dashboard), methods=["GET", "POST"]),
        Route("/login/{link}", _link(dashboard), methods=["GET", "POST"]),
        Route("/logout", _logout(dashboard), methods=["POST"]),
        Route("/static/{digest}/{name}", _static, methods=["GET"]),
    ]
    for page in PAGES:
        made.append(Route(page.path, _page(dashboard, page), methods=["GET"]))
        made.append(Route("/live" + page.path.rstrip("/"), _live(dashboard, page), methods=["GET"]))
    return made


def _page(dashboard: Dashboard, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        try:
            session = await dashboard.sessions.of(request)
            if session is None:
                return await sign_in_page(dashboard, request, 200 if page.path == "/" else 401)
            CALLER.set(f"page:{session.holder.name}")
            view = _view(session, page, request)
            content = await dashboard.content(page, view)
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        request.app.state.connections.known(request.client, f"page:{session.holder.name}")
        query = f"?{urlencode(view.query)}" if view.query else ""
        text = render.page(
            content,
            csrf=session.csrf,
            session=session,
            events="/live" + request.url.path.rstrip("/") + query,
            digest=content.digest,
            notice=dashboard.notices.pop(session.csrf),
        )
        return HTMLResponse(text, headers=dashboard.headers)

    return answer


def _live(dashboard: Dashboard, page: Page) -> Answer:
    async def answer(request: Request) -> Response:
        try:
            session = await dashboard.sessions.of(request)
            if session is None:
                return Response(status_code=204, headers=NO_STORE)  # the browser does not try again
            view = _view(session, page, request)
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        CALLER.set(f"page:{session.holder.name}")
        request.app.state.connections.known(request.client, f"page:{session.holder.name}")

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


def _view(session: SignedIn, page: Page, request: Request) -> View:
    """What is looked at. Raises Problem."""
    holder = session.holder
    if holder.tenant is not None:
        raise Problem(
            403, NOT_ALLOWED, f"the token {holder.name} is restricted to a tenant: it may use the API's tasks"
        )
    if not holder.may(page.scopes):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} needs the scope {' or '.join(sorted(page.scopes))}")
    if page.is_fleets and holder.pools is not None:
        raise Problem(
            403, NOT_ALLOWED, f"the token {holder.name} is restricted to pools, and this is about all of them"
        )
    if len(request.url.query) > MAX_QUERY_CHARS or "\0" in request.url.query or "%00" in request.url.query:
        raise Problem(400, NOT_ALLOWED, "the address is too long, or has a NUL character")
    query = {name: value for name, value in request.query_params.items() if value and name != "digest"}
    return View(holder, dict(request.path_params), query)


async def _nav(fleet: str, page: Page, reads: Reads, view: View) -> Mapping[str, Any]:
    """What stands around every page: the pages that this holder may see, who leads, and how many things are wrong."""
    standing = await reads.get("standing")
    found = standing["conditions"] or []
    shown = [
        one for one in PAGES
        if one.title and view.holder.may(one.scopes) and not (one.is_fleets and view.holder.pools is not None)
    ]  # fmt: skip
    return {
        "fleet": fleet,
        "pages": [{"path": one.path, "title": one.title} for one in shown],
        "current": page.parent or page.path,
        "problems": len(found) + (standing["leader"] is None),
        "leader": standing["leader"],
        "at": standing["now"],
    }


def _login(dashboard: Dashboard) -> Answer:
    async def answer(request: Request) -> Response:
        if request.method == "GET":
            return await sign_in_page(dashboard, request, 200)
        try:
            given = await _form(request)
            address = request.app.state.connections.address(request)
            cookie = await dashboard.sessions.sign_in(given.get("token", "").strip(), address)
            if cookie is None:
                refused = too_many_refusals(request)
                return refused or await sign_in_page(
                    dashboard, request, 401, "This token is not known, has expired, or was revoked."
                )
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        return _signed_in(dashboard, request, cookie, given.get("next", ""))

    return answer


def _link(dashboard: Dashboard) -> Answer:
    """A one-time link. Its page opens it, not the first look: programs look at links that people send each other."""

    async def answer(request: Request) -> Response:
        link = request.path_params["link"]
        if not ID_PATTERN.fullmatch(link):
            return await sign_in_page(dashboard, request, 404, "This is no sign-in link.")
        if request.method == "GET":
            text = render.environment().get_template("link.html").render(link=link, fleet=dashboard.fleet)
            return HTMLResponse(text, headers=dashboard.headers)
        try:
            cookie = await dashboard.sessions.follow(link)
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        if cookie is None:
            refused = too_many_refusals(request)
            return refused or await sign_in_page(dashboard, request, 401, "This link was used, or is too old.")
        return _signed_in(dashboard, request, cookie, "/")

    return answer


def _logout(dashboard: Dashboard) -> Answer:
    async def answer(request: Request) -> Response:
        try:
            session = await dashboard.sessions.of(request)
            if session is not None:
                await checked_form(request, session)
                await dashboard.sessions.end(request)
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        response = RedirectResponse("/", status_code=303, headers=NO_STORE)
        response.delete_cookie(COOKIE, path="/")
        return response

    return answer


async def checked_form(request: Request, session: SignedIn) -> Mapping[str, str]:
    """The fields of a form that a page of this session made. Raises Problem."""
    given = await _form(request)
    if given.get("csrf") != session.csrf:
        raise Problem(403, NOT_ALLOWED, "the form is not from a page of this session", fix="load the page again")
    return given


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form, each once. Raises Problem."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(415, NOT_ALLOWED, "this is no form")
    try:
        content = (await read_body(request, MAX_FORM_BYTES)).decode()
        found = parse_qs(content, keep_blank_values=True, strict_parsing=bool(content), max_num_fields=50)
    except Refusal as refusal:
        raise Problem(refusal.status, NOT_ALLOWED, str(refusal)) from None
    except ValueError:
        raise Problem(400, NOT_ALLOWED, "this is no form") from None
    return {name: values[0] for name, values in found.items()}


def _signed_in(dashboard: Dashboard, request: Request, cookie: str, following: str) -> Response:
    to = following if SAFE_NEXT.fullmatch(following) else "/"
    response = RedirectResponse(to, status_code=303, headers=NO_STORE)
    return with_cookie(response, cookie, is_secure=dashboard.is_secure(request))


async def sign_in_page(dashboard: Dashboard, request: Request, status: int, why: str = "") -> Response:
    """The name, the state, and sign-in; without any token, how to make one."""
    try:
        await dashboard.api.authentication.require_on()
        is_on = True
    except Problem:
        is_on = False
    except PortError:
        is_on = True
    query = f"?{request.url.query}" if request.url.query else ""
    following = "/" if request.url.path.startswith("/log") else request.url.path + query
    text = render.environment().get_template("login.html").render(
        why=why, is_on=is_on, following=following, status=request.app.state.status(), fleet=None
    )  # fmt: skip
    return HTMLResponse(text, status_code=status, headers=dashboard.headers)


def trouble(dashboard: Dashboard, error: Problem | PortError) -> Response:
    """A page that says what is wrong, since when, and what to do."""
    problem = error if isinstance(error, Problem) else of_port_error(error)
    if isinstance(error, PortError):
        log.info("page_failed", why=f"{type(error).__name__}: {error}"[:500])
    kind: Literal["forbidden", "missing", "down"] = (
        "forbidden" if problem.status in {401, 403} else "down" if problem.status >= 500 else "missing"  # noqa: PLR2004
    )
    template, now = render.environment().get_template("trouble.html"), datetime.now(UTC)
    text = template.render(kind=kind, title=problem.kind.what, why=str(problem), fix=problem.fix, now=now)
    headers = dashboard.headers | dict(problem.headers)
    return HTMLResponse(text, status_code=problem.status, headers=headers)


async def _static(request: Request) -> Response:
    """A file of this version; any other address is not found."""
    name = request.path_params["name"]
    known = {one.name for one in render.STATIC.iterdir() if one.is_file()}
    if name not in known or render.static_url(name) != request.url.path:
        return Response(status_code=404, headers=NO_STORE)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response((render.STATIC / name).read_bytes(), media_type=kind, headers=FOREVER)


def _headers(bucket_origin: str | None) -> dict[str, str]:
    media = f"'self' {bucket_origin}" if bucket_origin else "'self'"
    policy = (
        f"default-src 'self'; img-src {media} data:; media-src {media}; base-uri 'none'; object-src 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
