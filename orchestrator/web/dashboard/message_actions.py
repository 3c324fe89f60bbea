"""What people may do to messages of webhooks: send them again."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.plurals import counted
from orchestrator.errors import NO_WEBHOOK, NOT_ALLOWED
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.action_effects import ActionEffect, Fields

LOOKED_AT = 1_000  # messages
BACK = "/webhooks"


async def resend_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    """What sending again would do."""
    message = _message(holder, fields)
    found = await _unsent(api, message)
    hosts = sorted({str(one["host"]) for one in found})
    what = "This message" if message else f"{counted(len(found), 'message')}{' or more' * (len(found) == LOOKED_AT)}"
    to = f" to {', '.join(hosts[:3])}{', …' if hosts[3:] else ''}" if hosts else ""
    effects = (
        f"{what}{to} {'is' if message or len(found) == 1 else 'are'} due now.",
        "A message that is refused again is repeated for another day. It costs nothing.",
    )
    command = f"orchestrator webhooks retry {message}" if message else "orchestrator webhooks retry"
    question = "Send this message again?" if message else "Send every message again that was given up?"
    return ActionEffect(question, effects, command, BACK)


async def resend(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Send again."""
    message = _message(holder, fields)
    due = await api.rows.resend(holder.name, message)
    if message and not due:
        raise _no_message()
    return f"{counted(due, 'message')} {'is' if due == 1 else 'are'} due now."


async def _unsent(api: Api, message: str | None) -> Sequence[Mapping[str, Any]]:
    """The unsent message that is named; without one, all that were given up."""
    states = ("waiting", "undeliverable") if message else ("undeliverable",)
    listed = [(await api.rows.webhooks(state=state, limit=LOOKED_AT))["messages"] for state in states]
    return [one for some in listed for one in some if message in (None, one["id"])]


def _message(holder: TokenHolder, fields: Fields) -> str | None:
    """The message that is named; None for all. Raises Problem."""
    if holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} is restricted to pools, and messages are of all")
    text = fields.get("message", "").strip()
    try:
        return str(UUID(text)) if text else None
    except ValueError:
        raise _no_message() from None


def _no_message() -> Problem:
    return Problem(404, NO_WEBHOOK, "there is no unsent message with this id: it is unknown, or was sent")
