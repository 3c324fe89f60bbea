"""The loop's last observations, for code that waits for a change."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from orchestrator.core.model import Worker
from orchestrator.core.provider import Pod


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


class _View(Generic[T]):
    """The newest complete list, by id."""

    def __init__(self) -> None:
        self._seen: dict[str, T] = {}
        self._news = asyncio.Event()

    def update(self, things: Iterable[T]) -> None:
        """Replace the list and wake all waiters."""
        self._seen = {thing.id: thing for thing in things}
        self._news.set()
        self._news = asyncio.Event()

    def now(self, thing_id: str) -> T | None:
        """Return the item of the last list, or None."""
        return self._seen.get(thing_id)

    async def until(self, thing_id: str, predicate: Callable[[T], bool], timeout_s: float) -> T:
        """Wait until the item is listed and the predicate holds. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                thing = self._seen.get(thing_id)
                if thing is not None and predicate(thing):
                    return thing
                await self._news.wait()


class PodView(_View[Pod]):
    """The provider's newest complete list. Waiters keep waiting for a missing pod; the planner decides about it."""


class WorkerView(_View[Worker]):
    """The live rows of the newest snapshot."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The last observations of the loop."""

    pods: PodView = field(default_factory=PodView)
    workers: WorkerView = field(default_factory=WorkerView)
