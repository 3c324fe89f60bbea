"""The pages of actions: what would happen, and the button that does it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from orchestrator.errors import NO_ROUTE, NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.action_effects import KEY, form_key
from orchestrator.web.dashboard.actions import ACTIONS, PageAction
from orchestrator.web.dashboard.answers import Repetition, route, trouble
from orchestrator.web.dashboard.bulk_actions import BULK_ACTIONS
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.sessions import SignedIn
from orchestrator.web.dashboard.sign_in import checked_form, sign_in_page
from orchestrator.web.fair_turns import CALLER

EVERY_ACTION = {**ACTIONS, **BULK_ACTIONS}
MAX_FIELD_CHARS = 300


def routes(dashboard: Dashboard) -> list[BaseRoute]:
    """`/do/{action}`: GET asks, POST does it and goes back to the page of what was changed."""

    async def answer(request: Request) -> Response:
        session = await dashboard.sessions.of(request)
        if session is None:
            return await sign_in_page(dashboard, request, 401)
        CALLER.set(f"page:{session.holder.name}")
        action = _allowed(session, request.path_params["action"])
        if request.method != "POST":
            return await _asked(dashboard, request, session, action)
        given = await checked_form(request, session)
        fields = {name: given.get(name, "")[:MAX_FIELD_CHARS] for name in (*action.fields, *action.asks, KEY)}
        effect = await action.effect(dashboard.api, session.holder, fields)
        try:
            done = await action.act(dashboard.api, session.holder, fields)
        except PortError as error:
            return trouble(dashboard, error, _again(request, session, action, fields, effect.back))
        said, to = (done, effect.back) if isinstance(done, str) else (done.said, done.to)
        dashboard.notices.add(session.csrf, said)
        dashboard.shared.forget_all()  # the page that follows shows what was done
        return RedirectResponse(to, status_code=303)

    return [route(dashboard, "/do/{action}", answer, "GET", "POST")]


def _again(request: Request, session: SignedIn, action: PageAction, fields: Mapping[str, str], back: str) -> Repetition:
    """How to ask for an action again. With the key of its form, it is done once."""
    page = {name: fields[name] for name in action.fields if fields[name]}
    asks = f"/do/{request.path_params['action']}" + (f"?{urlencode(page)}" if page else "")
    return Repetition(asks, back, action.has_parts, {**fields, "csrf": session.csrf} if action.is_once else None)


async def _asked(dashboard: Dashboard, request: Request, session: SignedIn, action: PageAction) -> Response:
    fields = {name: request.query_params.get(name, "")[:MAX_FIELD_CHARS] for name in action.fields}
    effect = await action.effect(dashboard.api, session.holder, fields)
    if action.is_once:
        fields[KEY] = form_key(datetime.now(UTC))
    template = render.environment().get_template("confirm.html")
    return HTMLResponse(
        template.render(
            action=action,
            effect=effect,
            fields=fields,
            token=session.csrf,
            holder=session.holder,
            fleet=dashboard.fleet,
        )
    )


def _allowed(session: SignedIn, name: str) -> PageAction:
    """The action. Raises Problem."""
    action, holder = EVERY_ACTION.get(name), session.holder
    if action is None:
        raise Problem(404, NO_ROUTE, "there is no such action", fix="use a link of a page")
    if holder.tenant is not None or not holder.may(action.scopes):
        needed = " or ".join(sorted(action.scopes))
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may look only: this needs the scope {needed}")
    return action
