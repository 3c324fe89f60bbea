"""Events for all who listen in this process, from one source: LISTEN where it works, else a cheap poll.

LISTEN needs a session of its own. Supabase's RPC has none, and a transaction pooler accepts LISTEN silently and never
delivers anything: there `poll` asks `fleet_changes` and tells the same events.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

from orchestrator.ports import PortError

Event = tuple[str, str]  # channel, payload
Tell = Callable[[Event], None]

TASKS, FLEET = "orchestrator_tasks", "orchestrator_fleet"
ASKS = "orchestrator_asks"  # never polled here: the leader looks for what pods ask every second anyway
CONNECTED: Event = ("connected", "")  # listeners may have missed something: look for yourself
BACKLOG = 1000  # events that a slow listener may leave unread; past it, it is told to look for itself
POLL_S = 1.0


class Listeners:
    """Who listens; `source` runs while somebody does, and tells each event once."""

    def __init__(self, source: Callable[[Tell], Coroutine[Any, Any, None]]) -> None:
        self._source = source
        self._queues: set[asyncio.Queue[Event]] = set()
        self._running: asyncio.Task[None] | None = None

    async def stream(self) -> AsyncIterator[Event]:
        """Events as they come, CONNECTED first."""
        queue: asyncio.Queue[Event] = asyncio.Queue(BACKLOG)
        self._queues.add(queue)
        try:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._source(self.tell), name="database_listener")
            else:
                queue.put_nowait(CONNECTED)
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)
            if not self._queues:  # nobody listens: no connection is held for it
                await self.close()

    def tell(self, event: Event) -> None:
        """Hand an event to everybody."""
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(CONNECTED)
            queue.put_nowait(event)

    async def close(self) -> None:
        """Listen no more."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def poll(call: Callable[..., Awaitable[Any]], every_s: float, tell: Tell) -> None:
    """Ask for ever what has changed; CONNECTED first, and after each time that there was no answer."""
    digest: str | None = None
    known: Mapping[str, Mapping[str, str]] = {}
    deaf = True
    while True:
        try:
            answer = await call("fleet_changes", p_digest=digest)
        except PortError:  # whoever calls for something says why it fails; here it is only not known what has changed
            deaf = True
        else:
            if deaf:
                tell(CONNECTED)
                deaf = False
            if answer["marks"] is not None:
                if digest is not None:
                    for event in _changes(known, answer["marks"]):
                        tell(event)
                digest, known = answer["digest"], answer["marks"]
        await asyncio.sleep(every_s)


def _changes(known: Mapping[str, Mapping[str, str]], marks: Mapping[str, Mapping[str, str]]) -> Iterator[Event]:
    """What NOTIFY would have told: pools with something new to claim, and workers that changed or went."""
    for channel, now in marks.items():
        before = known.get(channel, {})
        yield from ((channel, key) for key, mark in now.items() if before.get(key) != mark)
    for key in known.get(FLEET, {}).keys() - marks[FLEET].keys():
        yield FLEET, key
