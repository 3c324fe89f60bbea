"""What people set up, and what came of it: schedules, webhooks, limits, tenants, tokens, avoided hosts."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response

from orchestrator.core.decision_text import row_sentence
from orchestrator.diagnostics import blocked_times
from orchestrator.errors import NO_WEBHOOK, NOT_ALLOWED
from orchestrator.web.api.fleet import utc
from orchestrator.web.api.fleet_models import DecisionsShown
from orchestrator.web.api.list_models import (
    BlockedTimes,
    HostsShown,
    LimitsShown,
    Resent,
    SchedulesShown,
    TenantsShown,
    TokensShown,
    WebhooksShown,
)
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem

MAX_DECISIONS = 1_000  # of a time
HOUR = timedelta(hours=1)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # an hour before year 1 is no time


async def decisions(api: Api, call: ApiCall) -> Response:
    """A page of the decisions."""
    query = call.query
    rows = await api.rows.decisions(call.holder, before=query.before, limit=query.limit, pool=query.pool)
    following = rows[-1]["id"] if len(rows) == query.limit else None
    return shown(DecisionsShown(decisions=list(rows), next=following))


async def blocked(api: Api, call: ApiCall) -> Response:
    """What was blocked in a time."""
    until = call.query.until or datetime.now(UTC)
    since = call.query.since or max(until, EARLIEST) - HOUR
    found = await api.rows.decisions_between(
        call.holder, utc(since), utc(until), limit=MAX_DECISIONS, pool=call.query.pool
    )
    until = min(until, datetime.fromisoformat(found["now"]))
    pools = [_pool_time(one) for one in blocked_times.explained(found["decisions"], since, until)]
    return shown(BlockedTimes.model_validate({"since": since, "until": until, "pools": pools, "is_cut": found["more"]}))


def _pool_time(one: blocked_times.PoolTime) -> dict[str, Any]:
    return dataclasses.asdict(one) | {"target": one.last["target"], "sentence": row_sentence(one.last)}


async def hosts(api: Api, call: ApiCall) -> Response:
    """Machines and places that are avoided now."""
    _check_fleets(call, "the avoided hosts")
    return shown(HostsShown(hosts=list(await api.rows.hosts(avoided=True))))


async def schedules(api: Api, call: ApiCall) -> Response:
    """The recurring tasks."""
    _check_fleets(call, "the schedules")
    found = await api.rows.schedules()
    return shown(SchedulesShown(at=found["now"], schedules=list(found["schedules"])))


async def webhooks(api: Api, call: ApiCall) -> Response:
    """The addresses, and what came of the newest messages."""
    _check_fleets(call, "the webhooks")
    found = await api.rows.webhooks(state=call.query.state, limit=call.query.limit)
    addresses = [{**one, "origin": origin_of(one["url"])} for one in found["webhooks"]]
    counts = {name: found["troubles"][name] for name in ("undeliverable", "late")}
    answer = {"at": found["now"], "webhooks": addresses, "messages": found["messages"], **counts}
    return shown(WebhooksShown.model_validate(answer))


async def resend(api: Api, call: ApiCall) -> Response:
    """Send unsent messages again."""
    _check_fleets(call, "the webhooks")
    wanted = call.body.message_id
    due = await api.rows.resend(call.holder.name, str(wanted) if wanted else None)
    if wanted and not due:
        raise Problem(404, NO_WEBHOOK, "there is no unsent message with this id", fix="GET /api/v1/webhooks")
    return shown(Resent(due=due))


def origin_of(url: str) -> str:
    """Scheme and host of a webhook's URL: the rest of it may be a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:  # somebody wrote the row by hand
        return "–"


async def limits(api: Api, call: ApiCall) -> Response:
    """The limits of keys and types."""
    _check_fleets(call, "the limits")
    return shown(LimitsShown(limits=list(await api.rows.limits())))


async def tenants(api: Api, call: ApiCall) -> Response:
    """The tenants that share the queue."""
    _check_fleets(call, "the tenants")
    return shown(TenantsShown(tenants=list(await api.rows.tenants())))


async def tokens(api: Api, call: ApiCall) -> Response:
    """The tokens, without their hashes."""
    _check_fleets(call, "the tokens")
    return shown(TokensShown(tokens=list(await api.rows.tokens())))


def _check_fleets(call: ApiCall, what: str) -> None:
    if call.holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, f"a token that is restricted to pools does not see {what}")
