"""Events for all listeners of this process, from one source: LISTEN if it works, otherwise a cheap poll.

LISTEN needs its own session. Supabase's RPC has none, and a transaction pooler accepts LISTEN but never delivers
anything. In these cases `poll` calls `fleet_changes` and produces the same events.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

from orchestrator.ports import PortError

Event = tuple[str, str]  # channel, payload
Publish = Callable[[Event], None]

TASKS, FLEET = "orchestrator_tasks", "orchestrator_fleet"
ASKS = "orchestrator_asks"  # not polled here: the leader reads pods' requests every second
CONNECTED: Event = ("connected", "")  # listeners may have missed events and must query the state
BACKLOG = 1000  # unread events of a slow listener; beyond this, it gets CONNECTED instead
POLL_S = 1.0
CANCEL_AGAIN_S, CANCELS = 1.0, 10


class Listeners:
    """All listeners of this process. `source` runs while there is at least one."""

    def __init__(self, source: Callable[[Publish], Coroutine[Any, Any, None]]) -> None:
        self._source = source
        self._queues: set[asyncio.Queue[Event]] = set()
        self._running: asyncio.Task[None] | None = None

    async def stream(self) -> AsyncIterator[Event]:
        """Yield events, CONNECTED first."""
        queue: asyncio.Queue[Event] = asyncio.Queue(BACKLOG)
        self._queues.add(queue)
        try:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._source(self.publish), name="database_listener")
            else:
                queue.put_nowait(CONNECTED)
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)
            if not self._queues:  # without a listener, no connection is kept
                await self.close()

    def publish(self, event: Event) -> None:
        """Pass an event to all listeners."""
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(CONNECTED)
            queue.put_nowait(event)

    async def close(self) -> None:
        """Stop listening."""
        running, self._running = self._running, None
        if running is None:
            return
        for _ in range(CANCELS):  # before Python 3.12, a library's wait_for may swallow a cancel
            running.cancel()
            if (await asyncio.wait({running}, timeout=CANCEL_AGAIN_S))[0]:
                break
        else:
            return  # the end of the event loop cancels it again
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def poll(call: Callable[..., Awaitable[Any]], every_s: float, publish: Publish) -> None:
    """Poll forever for changes. Yields CONNECTED first, and after each failed poll."""
    digest: str | None = None
    known: Mapping[str, Mapping[str, str]] = {}
    missed = True
    while True:
        try:
            answer = await call("fleet_changes", p_digest=digest)
        except PortError:  # other calls report the failure; here, only the changes are unknown
            missed = True
        else:
            if missed:
                publish(CONNECTED)
                missed = False
            if answer["marks"] is not None:
                if digest is not None:
                    for event in _changes(known, answer["marks"]):
                        publish(event)
                digest, known = answer["digest"], answer["marks"]
        await asyncio.sleep(every_s)


def _changes(known: Mapping[str, Mapping[str, str]], marks: Mapping[str, Mapping[str, str]]) -> Iterator[Event]:
    """Yield the events that NOTIFY would have sent: pools with new tasks, and workers that changed or ended."""
    for channel, now in marks.items():
        before = known.get(channel, {})
        yield from ((channel, key) for key, mark in now.items() if before.get(key) != mark)
    for key in known.get(FLEET, {}).keys() - marks[FLEET].keys():
        yield FLEET, key
