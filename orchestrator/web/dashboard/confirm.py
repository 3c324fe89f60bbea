"""The pages of actions: what would happen, and the button that does it."""

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from orchestrator.errors import NO_ROUTE, NOT_ALLOWED
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.actions import ACTIONS, PageAction
from orchestrator.web.dashboard.answers import route
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.sessions import SignedIn
from orchestrator.web.dashboard.sign_in import checked_form, sign_in_page
from orchestrator.web.fair_turns import CALLER

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
        fields = {name: given.get(name, "")[:MAX_FIELD_CHARS] for name in (*action.fields, *action.asks)}
        effect = await action.effect(dashboard.api, session.holder, fields)
        dashboard.notices.add(session.csrf, await action.act(dashboard.api, session.holder, fields))
        dashboard.shared.forget_all()  # the page to which it goes back shows what was done
        return RedirectResponse(effect.back, status_code=303)

    return [route(dashboard, "/do/{action}", answer, "GET", "POST")]


async def _asked(dashboard: Dashboard, request: Request, session: SignedIn, action: PageAction) -> Response:
    fields = {name: request.query_params.get(name, "")[:MAX_FIELD_CHARS] for name in action.fields}
    effect = await action.effect(dashboard.api, session.holder, fields)
    template = render.environment().get_template("confirm.html")
    return HTMLResponse(
        template.render(action=action, effect=effect, fields=fields, token=session.csrf, holder=session.holder)
    )


def _allowed(session: SignedIn, name: str) -> PageAction:
    """The action. Raises Problem."""
    action, holder = ACTIONS.get(name), session.holder
    if action is None:
        raise Problem(404, NO_ROUTE, "there is no such action")
    if holder.tenant is not None or not holder.may(action.scopes):
        needed = " or ".join(sorted(action.scopes))
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may look only: this needs the scope {needed}")
    return action
