"""What a command opens before it can answer: settings, the store, the provider, the bucket."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.core.model import ID_PATTERN
from orchestrator.errors import BAD_ARGUMENT, NO_WORKER, SETTING, Failure, Failures

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

LOOKUP_LIMIT = 1_000  # rows searched for a pod id or the end of a worker id


def runs(command: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., int | None]:
    """A command written as a coroutine."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> int | None:
        return asyncio.run(command(*args, **kwargs))

    return run


def settings_for(*parts: str) -> "Settings":
    """The environment, with what these parts need. Raises Failures with everything that is wrong with it."""
    from orchestrator.config.environment import load
    from orchestrator.config.errors import SettingsError
    from orchestrator.config.validation import require

    try:
        return require(load(), *parts)
    except SettingsError as error:
        raise Failures([Failure(SETTING, what=what, why=why, fix=fix) for what, why, fix in error.problems]) from None


@asynccontextmanager
async def opened_store() -> "AsyncIterator[SqlStore]":
    """The fleet's rows."""
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_store(settings) as store:
        yield store


async def find_worker(store: "SqlStore", name: str) -> Mapping[str, Any]:
    """All about the worker of this id, pod id or unique end of an id. Raises Failure."""
    if not ID_PATTERN.fullmatch(name):
        raise Failure(BAD_ARGUMENT, why=f"{name!r} is not a worker id: letters, digits, '-' and '_', at most 63")
    found = await store.worker(name)
    if found.get("worker"):
        return found
    rows = await store.workers(all=True, limit=LOOKUP_LIMIT)
    ids = sorted({row["id"] for row in rows if name == row.get("pod_id") or row["id"].endswith(name)})
    if len(ids) == 1:
        return await store.worker(ids[0])
    if ids:
        raise Failure(NO_WORKER, what=f"{name!r} is the end of several workers", why=f"they are {', '.join(ids[:5])}")
    raise Failure(NO_WORKER, what=f"no worker {name!r}", why="the database knows none with this id or pod id")


def utcnow() -> datetime:
    """The time on this machine, for ages; the database's own clock decides everything else."""
    return datetime.now(UTC)
