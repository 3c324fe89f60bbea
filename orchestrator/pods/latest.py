"""What the loop last saw, for those who wait for something to change in it."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from orchestrator.core.model import Pod, Worker


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
        """Replace the list and wake whoever waits."""
        self._seen = {thing.id: thing for thing in things}
        self._news.set()
        self._news = asyncio.Event()

    def now(self, thing_id: str) -> T | None:
        """The thing as it was last listed; None if it was not."""
        return self._seen.get(thing_id)

    async def until(self, thing_id: str, predicate: Callable[[T], bool], timeout_s: float) -> T:
        """The thing, once it is listed and the predicate holds. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                thing = self._seen.get(thing_id)
                if thing is not None and predicate(thing):
                    return thing
                await self._news.wait()


class PodView(_View[Pod]):
    """The provider's newest complete list; a pod that is missing from it is waited for, and judged by the planner."""


class WorkerView(_View[Worker]):
    """The live rows of the newest snapshot."""


@dataclass(frozen=True, slots=True)
class Latest:
    """What the loop saw last, for the parts that wait for a change."""

    pods: PodView = field(default_factory=PodView)
    workers: WorkerView = field(default_factory=WorkerView)
