"""The fleet: workers, decisions, pools, pauses, costs, and the audit log."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.model import EVERY_POOL, ID_PATTERN
from orchestrator.diagnostics import first_cause
from orchestrator.diagnostics.condition_kinds import HIGH
from orchestrator.errors import BAD_ARGUMENT, NO_WORKER, NOT_ALLOWED
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.api.fleet_models import (
    AuditPage,
    ConditionShown,
    CostShown,
    HealthShown,
    PauseShown,
    PausesShown,
    PoolsShown,
    WorkerAsked,
    WorkerShown,
    WorkersShown,
)
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem

Row = Mapping[str, Any]
MAX_LINES = 1_000  # of each list of costs


async def workers(api: Api, call: ApiCall) -> Response:
    """A page of the workers."""
    query, place = call.query, place_of(call.query.cursor, _worker_id)
    rows = await api.rows.workers(call.holder, ended=query.ended, after=place, limit=query.limit)
    last = [rows[-1]["created_at"], rows[-1]["id"]] if len(rows) == query.limit else None
    return shown(WorkersShown(workers=list(rows), next=cursor_of(last)))


async def worker(api: Api, call: ApiCall) -> Response:
    """One worker."""
    return shown(WorkerShown.model_validate(await visible_worker(api, call)))


async def terminate(api: Api, call: ApiCall) -> Response:
    """Ask for its end."""
    name = (await visible_worker(api, call))["id"]
    answer = await api.rows.terminate(call.holder.name, name, call.body.reason, at_once=call.body.at_once)
    return shown(WorkerAsked(outcome=answer["outcome"]), 202)


async def pools(api: Api, call: ApiCall) -> Response:
    """The pools that have had a decision, with the last one."""
    found, paused = await asyncio.gather(api.rows.scaling(), api.rows.pauses())
    rows = [
        {"pool": pool, "decision": decision, "paused": paused.get(pool) or paused.get(EVERY_POOL)}
        for pool, decision in sorted(found["decisions"].items())
    ]
    return shown(PoolsShown(pools=_visible(call.holder, rows), offers=list(found["offers"]), leader=found["leader"]))


async def health(api: Api, call: ApiCall) -> Response:
    """What is wrong, as far as it concerns the pools of the token."""
    standing = await api.rows.standing()
    found = [_condition(call.holder, row) for row in first_cause.known(standing) if call.holder.concerned(row["pools"])]
    led = standing["leader"] is not None
    first = next((one for one in found if one.severity == HIGH or not led), None)
    healthy = False if first else None if standing["conditions"] is None else True
    answer = HealthShown(at=standing["now"], led=led, healthy=healthy, first_cause=first, conditions=found)
    return shown(answer)


async def pauses(api: Api, call: ApiCall) -> Response:
    """The pauses in force that concern the token."""
    return _pauses(call.holder, await api.rows.pauses())


async def pause(api: Api, call: ApiCall) -> Response:
    """Stop spawning."""
    _check_pool(call.holder, call.body.pool)
    await api.require_pool(call.holder, call.body.pool)
    given = call.body
    found = await api.rows.pause(call.holder.name, given.reason, pool=given.pool, for_s=given.for_s)
    return _pauses(call.holder, found)


async def resume(api: Api, call: ApiCall) -> Response:
    """Spawn again."""
    _check_pool(call.holder, call.query.pool)
    return _pauses(call.holder, await api.rows.pause(call.holder.name, None, pool=call.query.pool))


async def costs(api: Api, call: ApiCall) -> Response:
    """Return the cost of the fleet."""
    if call.holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, "a token that is restricted to pools sees no costs")
    since, until = call.query.since or datetime.now(UTC) - timedelta(days=1), call.query.until
    found, bill = await asyncio.gather(api.rows.cost(utc(since), until and utc(until)), api.rows.bill())
    listed = list(found["workers"])
    left_out = max(0, len(listed) - MAX_LINES)
    answer = {**found, "workers": listed[:MAX_LINES], "workers_left_out": left_out, "bill": bill}
    return shown(CostShown.model_validate(answer))


async def audit(api: Api, call: ApiCall) -> Response:
    """The audit log."""
    if call.holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, "a token that is restricted to pools does not see the audit log")
    limit = call.query.limit
    entries = await api.rows.audit(before=call.query.before, limit=limit, subject=call.query.subject)
    following = entries[-1]["id"] if len(entries) == limit else None
    return shown(AuditPage(entries=list(entries), next=following))


def utc(at: datetime) -> str:
    """The time in UTC, for which every database has room. Raises Problem."""
    try:
        return at.astimezone(UTC).isoformat()
    except OverflowError:
        raise Problem(422, BAD_ARGUMENT, "a time is before the year 1 or after the year 9999") from None


def _pauses(holder: TokenHolder, found: Row) -> Response:
    seen = {pool: PauseShown(**one) for pool, one in found.items() if pool == EVERY_POOL or holder.sees(pool)}
    return shown(PausesShown(pauses=seen))


async def visible_worker(api: Api, call: ApiCall) -> Row:
    """The worker in the path. Raises Problem."""
    name = call.path["worker_id"]
    row = await api.rows.worker(name) if ID_PATTERN.fullmatch(name) else None
    if row is None or not call.holder.sees(row["pool"]):
        why = "there is no worker with this id, or not for this token"
        raise Problem(404, NO_WORKER, why, fix="GET /api/v1/workers")
    return row


def _condition(holder: TokenHolder, row: Row) -> ConditionShown:
    same = {name: row[name] for name in ("kind", "subject", "who", "then", "since", "until")}
    same["pools"] = row["pools"] and list(filter(holder.sees, row["pools"]))
    return ConditionShown(severity=row["priority"], text=row["issue"], evidence=row["detail"], **same)


def _worker_id(name: str) -> str:
    """The id. Raises ValueError."""
    if not ID_PATTERN.fullmatch(name):
        raise ValueError(name)
    return name


def _visible(holder: TokenHolder, rows: Iterable[Row]) -> list[Any]:
    return [row for row in rows if holder.sees(row["pool"])]


def _check_pool(holder: TokenHolder, pool: str | None) -> None:
    if not (holder.pools is None if pool is None else holder.sees(pool)):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may pause its own pools only: name one")
