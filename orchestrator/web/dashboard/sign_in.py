"""Signing in and out: by a token, or by a one-time link."""

import hmac
import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from orchestrator.core.api_tokens import TokenScope
from orchestrator.errors import BAD_REQUEST
from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem, of_refusal
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.answers import route, too_many
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.sessions import COOKIE, ID_PATTERN, SignedIn, with_cookie
from orchestrator.web.errors import Refusal
from orchestrator.web.request_bodies import read_body

FORM = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 8 << 10
SAFE_NEXT = re.compile(r"/(?:[A-Za-z0-9_.~%?&=:,+-][A-Za-z0-9_./~%?&=:,+-]{0,1000})?")  # an address of this site
FORGED = "the form is not from a page of this session"


def routes(dashboard: Dashboard) -> list[BaseRoute]:
    """The addresses of sign-in."""

    async def login(request: Request) -> Response:
        return await (_login(dashboard, request) if request.method == "POST" else sign_in_page(dashboard, request, 200))

    async def link(request: Request) -> Response:
        return await _link(dashboard, request)

    async def logout(request: Request) -> Response:
        return await _logout(dashboard, request)

    return [
        route(dashboard, "/login", login, "GET", "POST"),
        route(dashboard, "/login/{link}", link, "GET", "POST"),
        route(dashboard, "/logout", logout, "POST"),
    ]


async def _login(dashboard: Dashboard, request: Request) -> Response:
    given = await _form(request)
    address = request.app.state.connections.address(request)
    token = given.get("token", "").strip()
    holder = await dashboard.api.authentication.of_token(token, address)
    if holder is not None and (holder.tenant is not None or not holder.may({TokenScope.READ})):
        why = "has no scope read" if holder.tenant is None else "is restricted to a tenant"
        return await sign_in_page(dashboard, request, 403, f"This token {why}: it opens the API, and no page.")
    cookie = await dashboard.sessions.sign_in(token, address)
    if cookie is not None:
        return _signed_in(dashboard, request, cookie, given.get("next", ""))
    return await _not_signed_in(dashboard, request, "This token is not known, has expired, or was revoked.")


async def _link(dashboard: Dashboard, request: Request) -> Response:
    """A one-time link. Its page opens it, not the first look: programs look at links that people send each other."""
    link = request.path_params["link"]
    if not ID_PATTERN.fullmatch(link):
        return await sign_in_page(dashboard, request, 404, "This is no sign-in link.")
    if request.method != "POST":
        return HTMLResponse(render.environment().get_template("link.html").render(link=link, fleet=dashboard.fleet))
    await _form(request)
    cookie = await dashboard.sessions.follow(link, request.app.state.connections.address(request))
    if cookie is not None:
        return _signed_in(dashboard, request, cookie, "/")
    return await _not_signed_in(dashboard, request, "This link was used, or is too old.")


async def _logout(dashboard: Dashboard, request: Request) -> Response:
    session = await dashboard.sessions.of(request)
    if session is not None:
        await checked_form(request, session)
        await dashboard.sessions.end(request)
    response = RedirectResponse("/", status_code=303)
    response.delete_cookie(COOKIE, path="/")
    return response


async def checked_form(request: Request, session: SignedIn) -> Mapping[str, str]:
    """The fields of a form that a page of this session made. Raises Problem."""
    given = await _form(request)
    if not hmac.compare_digest(given.get("csrf", "").encode(), session.csrf.encode()):
        raise Problem(403, BAD_REQUEST, FORGED, fix="load the page again")
    return given


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
        why=why, is_on=is_on, following=following, status=request.app.state.status()
    )  # fmt: skip
    return HTMLResponse(text, status_code=status)


async def _not_signed_in(dashboard: Dashboard, request: Request, why: str) -> Response:
    if not request.app.state.connections.allows(request, time.monotonic()):
        return too_many(dashboard)
    return await sign_in_page(dashboard, request, 401, why)


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form, each once. Raises Problem."""
    if _is_foreign(request):
        fix = "open the page of the dashboard itself, and send its form"
        raise Problem(403, BAD_REQUEST, "the form is from another site", fix=fix)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem(415, BAD_REQUEST, "this is no form")
    try:
        content = (await read_body(request, MAX_FORM_BYTES)).decode()
        found = parse_qs(content, keep_blank_values=True, strict_parsing=bool(content), max_num_fields=50)
    except Refusal as refusal:
        raise of_refusal(refusal) from None
    except ValueError:
        raise Problem(400, BAD_REQUEST, "this is no form") from None
    return {name: values[0] for name, values in found.items()}


def _is_foreign(request: Request) -> bool:
    """Whether a browser says that the form is from a page of another site. Pages cannot choose these headers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in {"none", "same-origin"}
    return origin is not None and origin.partition("://")[2].lower() != request.headers.get("host", "").lower()


def _signed_in(dashboard: Dashboard, request: Request, cookie: str, following: str) -> Response:
    to = following if SAFE_NEXT.fullmatch(following) else "/"
    return with_cookie(RedirectResponse(to, status_code=303), cookie, is_secure=dashboard.is_secure(request))
