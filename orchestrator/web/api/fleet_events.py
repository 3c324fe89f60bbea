"""What happens to the workers: a list that is read on from its end, or a stream of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import structlog
from starlette.responses import Response

from orchestrator.ports import PortError
from orchestrator.web.api.event_feed import POLL_S
from orchestrator.web.api.fleet_models import EventQuery, EventShown, EventsShown
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.task_events import KEEP_ALIVE_S, RETRY_MS, STREAM_S, EventStream, event, is_still_allowed

POLLER = "*events*"  # no worker's id: the hub wakes it when the server stops
STREAM = "text/event-stream"
log = structlog.get_logger()

Row = Mapping[str, Any]


async def read(api: Api, call: ApiCall) -> Response:
    """A page, or the stream for a caller that accepts one."""
    query: EventQuery = call.query
    if STREAM in call.request.headers.get("accept", ""):
        given = call.request.headers.get("last-event-id", "")
        after = int(given) if given.isdecimal() and len(given) <= len(str(2**53)) else query.after
        if after is None:  # asked before the answer begins: then it can still be a refusal
            after = (await api.rows.events(call.holder, after=None, limit=1))["next"]
        return EventStream(_events(api, call, after), api.watch.place(call.holder.name))
    found = await api.rows.events(call.holder, after=query.after, limit=query.limit)
    return shown(EventsShown.model_validate(found))


async def _events(api: Api, call: ApiCall, after: int) -> AsyncGenerator[str]:
    """Begin after an event."""
    now = asyncio.get_running_loop().time
    until, told_at = now() + STREAM_S, now()
    yield f"retry: {RETRY_MS}\n\n"
    while now() < until and not api.watch.closed:
        try:
            page: Row = await api.feed.page(call.holder, after)
        except PortError as error:
            log.info("api_events_failed", why=f"{type(error).__name__}: {error}"[:300])
            page = {"events": (), "next": after, "more": False}
        for row in page["events"]:
            yield event("worker", str(row["id"]), EventShown.model_validate(row).model_dump(mode="json"))
            told_at = now()
        after = page["next"]
        if not await is_still_allowed(api, call):
            return
        if not page["more"]:
            await api.wakeups.wait(None, POLL_S, worker_id=POLLER)
        if now() - told_at > KEEP_ALIVE_S:
            yield ": still here\n\n"
            told_at = now()
