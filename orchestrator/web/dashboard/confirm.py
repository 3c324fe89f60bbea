"""The pages of actions: what would happen, and the button that does it."""

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from orchestrator.errors import NO_ROUTE, NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.actions import ACTIONS, PageAction
from orchestrator.web.dashboard.routes import Dashboard, checked_form, sign_in_page, trouble
from orchestrator.web.dashboard.sessions import SignedIn
from orchestrator.web.errors import NO_STORE
from orchestrator.web.fair_turns import CALLER

MAX_FIELD_CHARS = 300


def action_routes(dashboard: Dashboard) -> list[BaseRoute]:
    """`/do/{action}`: GET asks, POST does it and goes back to the page of what was changed."""

    async def answer(request: Request) -> Response:
        try:
            session = await dashboard.sessions.of(request)
            if session is None:
                return await sign_in_page(dashboard, request, 401)
            CALLER.set(f"page:{session.holder.name}")
            action = _allowed(session, request.path_params["action"])
            if request.method == "GET":
                return await _asked(dashboard, request, session, action)
            given = await checked_form(request, session)
            fields = {name: given.get(name, "")[:MAX_FIELD_CHARS] for name in (*action.fields, *action.asks)}
            effect = await action.effect(dashboard.api, session.holder, fields)
            said = await action.act(dashboard.api, session.holder, fields)
        except (Problem, PortError) as error:
            return trouble(dashboard, error)
        dashboard.notices.add(session.csrf, said)
        return RedirectResponse(effect.back, status_code=303, headers=NO_STORE)

    return [Route("/do/{action}", answer, methods=["GET", "POST"])]


async def _asked(dashboard: Dashboard, request: Request, session: SignedIn, action: PageAction) -> Response:
    fields = {name: request.query_params.get(name, "")[:MAX_FIELD_CHARS] for name in action.fields}
    effect = await action.effect(dashboard.api, session.holder, fields)
    text = render.environment().get_template("confirm.html").render(
        action=action, effect=effect, fields=fields, token=session.csrf, holder=session.holder, now=datetime.now(UTC)
    )  # fmt: skip
    return HTMLResponse(text, headers=dashboard.headers)


def _allowed(session: SignedIn, name: str) -> PageAction:
    """The action. Raises Problem."""
    action, holder = ACTIONS.get(name), session.holder
    if action is None:
        raise Problem(404, NO_ROUTE, "there is no such action")
    if holder.tenant is not None or not holder.may(action.scopes):
        needed = " or ".join(sorted(action.scopes))
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may look only: this needs the scope {needed}")
    return action
