"""The progress of journeys: each task is followed once, however many people watch it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from gpu_orchestrator_client import ApiError, AsyncClient, ServiceUnavailable, TaskEvent
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MAX_JOURNEYS = 10  # followed at a time; each has a connection for each of its tasks
MAX_VIEWERS = 500
STREAM_S = 600.0  # then the browser connects again: a viewer who does not read cannot stay for ever
KEEP_ALIVE_S = 15.0
RETRY_MS = 3_000
MAX_TEXT = 300  # characters of a text that a pod wrote
ENDED = frozenset({"Complete", "Failed", "Cancelled"})


class TooManyViewers(Exception):
    """There is no place for another one."""


class Journey:
    """The tasks of one video, followed until they have ended or `following` is cancelled."""

    def __init__(self, client: AsyncClient, journey_id: str) -> None:
        self.parts: dict[str, dict[str, Any]] = {}  # the last one joins the others
        self.problem = ""
        self.changed = asyncio.Event()  # a new one for each change
        self.viewers = 0
        self.following = asyncio.create_task(self._follow(client, journey_id))

    def shown(self) -> dict[str, Any]:
        """JSON for the page."""
        parts = list(self.parts.values())
        ended = bool(self.problem) or bool(parts and all(part["status"] in ENDED for part in parts))
        return {"parts": parts, "problem": self.problem, "ended": ended}

    def _tell(self) -> None:
        """Wake those who wait for a change."""
        self.changed, old = asyncio.Event(), self.changed
        old.set()

    async def _follow(self, client: AsyncClient, journey_id: str) -> None:
        try:
            raw = (await client.task(journey_id).info()).raw
            self.parts = {one: _part(None) for one in [*(raw["depends_on"] or ()), journey_id]}
            async with asyncio.TaskGroup() as group:
                for task_id in self.parts:
                    group.create_task(self._follow_task(client, task_id))
        except* (ApiError, ServiceUnavailable, ValueError) as errors:
            print(f"journey {journey_id}: {errors.exceptions[0]!r}", flush=True)
            self.problem = "This video cannot be followed. It may have been deleted."
            self._tell()

    async def _follow_task(self, client: AsyncClient, task_id: str) -> None:
        task = client.task(task_id)
        async for event in task.events():
            if event.name == "deleted":
                raise ValueError("deleted")
            part = _part(event)
            if part["status"] == "Failed":
                part["error"] = _text((await task.info()).error)
            self.parts[task_id] = part
            self._tell()


class Journeys:
    """The journeys that somebody watches now."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._watched: dict[str, Journey] = {}
        self._viewers = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        following = [one.following for one in self._watched.values()]
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    @contextlib.contextmanager
    def watching(self, journey_id: str) -> Any:
        """The journey, followed for as long as somebody watches. Raises TooManyViewers."""
        journey = self._watched.get(journey_id)
        if self._viewers >= MAX_VIEWERS or (journey is None and len(self._watched) >= MAX_JOURNEYS):
            raise TooManyViewers
        if journey is None:
            journey = self._watched[journey_id] = Journey(self._client, journey_id)
        self._viewers, journey.viewers = self._viewers + 1, journey.viewers + 1
        try:
            yield journey
        finally:
            self._viewers, journey.viewers = self._viewers - 1, journey.viewers - 1
            if not journey.viewers:
                del self._watched[journey_id]
                journey.following.cancel()

    async def watch(self, journey_id: str) -> AsyncIterator[str]:
        """Server-sent events. A slow reader gets the newest state next, not every state in between."""
        yield f"retry: {RETRY_MS}\n\n"
        try:
            with self.watching(journey_id) as journey:
                while True:
                    changed, shown = journey.changed, journey.shown()
                    yield f"data: {json.dumps(shown)}\n\n"
                    if shown["ended"]:
                        return
                    while not await _within(changed, KEEP_ALIVE_S):
                        yield ": still here\n\n"
        except TooManyViewers:
            return  # the browser asks again after RETRY_MS


class Stream(StreamingResponse):
    """An answer of server-sent events that ends after STREAM_S, also if the viewer does not read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STREAM_S), contextlib.aclosing(self.body_iterator):  # type: ignore[type-var]
                await super().__call__(scope, receive, send)


def stream(events: AsyncIterator[str]) -> Stream:
    """The answer with these events."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(events, media_type="text/event-stream", headers=headers)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _part(event: TaskEvent | None) -> dict[str, Any]:
    """One task for the page. Progress is JSON that a pod wrote: anything else than a number and a text is left out."""
    progress = event.progress if event and isinstance(event.progress, dict) else {}
    fraction = progress.get("fraction")
    known = isinstance(fraction, int | float) and 0 <= fraction <= 1
    return {
        "status": (event.status if event else None) or "Queued",
        "attempt": (event.attempt if event else None) or 0,
        "fraction": fraction if known else 0,
        "message": _text(progress.get("message")),
        "error": "",
    }


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
