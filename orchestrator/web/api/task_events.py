"""Server-sent events of one task: its states and its progress, until it ends."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from orchestrator.ports import PortError
from orchestrator.web.api.operations import Api, ApiCall
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.tasks import found_task, state_of
from orchestrator.web.api.waiting import ENDED, TaskState, mark_of
from orchestrator.web.errors import NO_STORE

KEEP_ALIVE_S = 15.0  # proxies end silent answers
STREAM_S = 3_600.0  # then the client connects again, with Last-Event-ID
RETRY_MS = 2_000
SHOWN = ("id", "status", "progress", "progress_at", "version", "attempt")  # of a task's state
HEADERS = NO_STORE | {"X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """An answer of server-sent events. The next one is made when the connection has room for it."""

    def __init__(self, events: AsyncGenerator[str], place: AbstractContextManager[None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events, self._place = events, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hold a waiting place while it is sent; without one, answer that instead."""
        try:
            with self._place, suppress(TimeoutError):  # also for a caller that reads nothing
                async with asyncio.timeout(STREAM_S + KEEP_ALIVE_S):
                    await super().__call__(scope, receive, send)
        except Problem as problem:  # before the first byte
            await problem.response()(scope, receive, send)
        finally:
            await self._events.aclose()


def event(name: str, event_id: str, content: Mapping[str, Any]) -> str:
    """One event. JSON has no line break, so the content is one line."""
    return f"event: {name}\nid: {event_id}\ndata: {json.dumps(content)}\n\n"


async def is_still_allowed(api: Api, call: ApiCall) -> bool:
    """Whether the token is valid. If the database does not answer, it counts as before."""
    try:
        await api.authentication.holder(call.request)
    except Problem:
        return False
    except PortError:
        return True
    return True


async def follow(api: Api, call: ApiCall) -> Response:
    """Begin with the present state, unless Last-Event-ID names it."""
    state = state_of((await found_task(api, call))["task"])
    return EventStream(_events(api, call, state), api.watch.place(call.holder.name))


async def _events(api: Api, call: ApiCall, state: TaskState) -> AsyncGenerator[str]:
    now = asyncio.get_running_loop().time
    until = now() + STREAM_S
    yield f"retry: {RETRY_MS}\n\n"
    if call.request.headers.get("last-event-id") != mark_of(state):
        yield _event(state)
    while state["status"] not in ENDED and now() < until and not api.watch.closed:
        changed = await api.watch.changed(state["id"], state, KEEP_ALIVE_S)
        if changed is None or not call.holder.sees(changed["pool"], changed["tenant"]):
            yield event("deleted", "deleted", {"id": state["id"]})
            return
        if not await is_still_allowed(api, call):
            return
        yield ": still here\n\n" if changed is state else _event(changed)
        state = changed


def _event(state: TaskState) -> str:
    shown = {name: state[name] for name in SHOWN}
    return event("ended" if state["status"] in ENDED else "state", str(mark_of(state)), shown)
