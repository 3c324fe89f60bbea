"""`/schedules`, `/webhooks`, `/limits`, `/tokens`: what people set up, and what comes of it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from orchestrator.core.api_tokens import TokenScope
from orchestrator.diagnostics.amounts import ago
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.lists import origin_of
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.views import READ, Facts, Page, Reads, View

MESSAGES = 100  # on a page
STATES = ("waiting", "undeliverable", "sent")
ADMIN = frozenset({TokenScope.ADMIN})
LISTS = (("/schedules", "Schedules", READ), ("/webhooks", "Webhooks", READ), ("/limits", "Limits and tenants", READ),
         ("/tokens", "Tokens", ADMIN))  # fmt: skip


def others(view: View) -> Sequence[tuple[str, str]]:
    """The lists that this holder may see: address and name."""
    return [(path, name) for path, name, scopes in LISTS if view.holder.pools is None and view.holder.may(scopes)]


async def schedules(reads: Reads, view: View) -> Facts:
    """The recurring tasks, with their next and last due times."""
    found = (await reads.get("schedules"))["schedules"]
    return {
        "title": "Schedules",
        "schedules": found,
        "broken": [one["name"] for one in found if one["problem"]],
        "missed": sum(one["recent"].get("missed", 0) for one in found),
        "lists": others(view),
    }


async def webhooks(reads: Reads, view: View) -> Facts:
    """The addresses, and the newest messages."""
    state = view.query.get("state")
    if state not in (None, *STATES):
        raise Problem(400, BAD_ARGUMENT, f"the states are {', '.join(STATES)}")
    found = await reads.get("webhooks", state=state, limit=MESSAGES)
    return {
        "title": "Webhooks",
        "webhooks": [{**one, "origin": origin_of(one["url"])} for one in found["webhooks"]],
        "messages": found["messages"],
        "troubles": found["troubles"],
        "state": state,
        "states": STATES,
        "most": MESSAGES,
        "may_act": view.holder.may({TokenScope.OPERATE}),
        "lists": others(view),
    }


async def limits(reads: Reads, view: View) -> Facts:
    """The limits of keys and types, and the tenants."""
    listed, tenants = await asyncio.gather(reads.get("limits"), reads.get("tenants"))
    return {
        "title": "Limits and tenants",
        "limits": listed,
        "waiting": sum(one["waiting"] for one in listed),
        "tenants": tenants,
        "lists": others(view),
    }


async def tokens(reads: Reads, view: View) -> Facts:
    """The tokens, without what they are made of."""
    now = datetime.now(UTC)
    listed = [{**one, "is_over": (ago(one["expires_at"], now) or 0) > 0} for one in await reads.get("tokens")]
    return {"title": "Tokens", "tokens": listed, "lists": others(view)}


SCHEDULES = Page(
    "/schedules", "", "schedules.html", schedules, lambda _: "orchestrator schedules list", is_fleets=True,
    look_s=5.0, parent="/pools",
)  # fmt: skip
WEBHOOKS = Page(
    "/webhooks", "", "webhooks.html", webhooks,
    lambda view: "orchestrator webhooks list" + (f" --state {view.query['state']}" if "state" in view.query else ""),
    is_fleets=True, look_s=2.0, parent="/pools",
)  # fmt: skip
LIMITS = Page(
    "/limits", "", "limits.html", limits, lambda _: "orchestrator limits list", is_fleets=True, look_s=2.0,
    parent="/pools",
)  # fmt: skip
TOKENS = Page(
    "/tokens", "", "tokens.html", tokens, lambda _: "orchestrator tokens list", scopes=ADMIN, is_fleets=True,
    look_s=5.0, parent="/pools",
)  # fmt: skip
