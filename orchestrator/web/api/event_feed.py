"""The pages of events that streams read. Streams at the same place share one: they cost one query a second."""

import asyncio
import time
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Protocol

from orchestrator.core.api_tokens import TokenHolder

POLL_S = 1.0
PAGE = 200  # events that a stream reads at once; it holds no more of them
AT_ONCE = 2  # pages that are read from the database at once

Row = Mapping[str, Any]


class EventRows(Protocol):
    """The events of a fleet."""

    async def events(self, holder: TokenHolder, *, after: int | None, limit: int) -> Row: ...


class EventFeed:
    """The pages of one process. All methods run on one event loop."""

    def __init__(self, rows: EventRows) -> None:
        self._rows, self._places = rows, asyncio.Semaphore(AT_ONCE)
        self._pages: dict[tuple[Any, int | None], tuple[float, asyncio.Task[Row]]] = {}

    async def page(self, holder: TokenHolder, after: int | None) -> Row:
        """A page after an event, not older than POLL_S. Raises PortError."""
        now_s = time.monotonic()
        self._pages = {key: one for key, one in self._pages.items() if now_s - one[0] < POLL_S / 2}
        key = (holder.pools, after)
        if key not in self._pages:
            reading = asyncio.create_task(self._read(holder, after), name="api_events", context=Context())
            self._pages[key] = now_s, reading
        return await asyncio.shield(self._pages[key][1])

    async def _read(self, holder: TokenHolder, after: int | None) -> Row:
        async with self._places:
            return await self._rows.events(holder, after=after, limit=PAGE)
