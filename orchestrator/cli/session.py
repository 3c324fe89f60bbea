"""Opens what commands need: settings, the store, the provider, the bucket."""

import asyncio
import functools
import getpass
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.core.model import ID_PATTERN
from orchestrator.errors import BAD_ARGUMENT, NO_TASK, NO_WORKER, SETTING, Failure, Failures

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

LONGER = "give more of the id"
NAMED = 5  # candidates that an error names
UUID_DIGITS = 32
TASK_PREFIX = re.compile(r"[0-9a-f]{1,32}")  # without hyphens
CANCEL_AGAIN_S, CANCELS = 2.0, 10  # how often Ctrl-C is repeated


def runs(command: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., int | None]:
    """Make a command of a coroutine."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> int | None:
        return asyncio.run(ends_if_cancelled(command(*args, **kwargs)))

    return run


async def ends_if_cancelled(command: Coroutine[Any, Any, int | None]) -> int | None:
    """Run a command. Repeat a cancellation: Python 3.11's wait_for loses one that meets the awaited answer."""
    running = asyncio.ensure_future(command)
    try:
        await asyncio.wait({running})
    except asyncio.CancelledError:
        for _ in range(CANCELS):
            running.cancel()
            if (await asyncio.wait({running}, timeout=CANCEL_AGAIN_S))[0]:
                break
        else:
            raise
    return await running


def settings_for(*parts: str) -> "Settings":
    """Load the settings that these parts need. Raises Failures with all problems."""
    from orchestrator.config.environment import load
    from orchestrator.config.errors import SettingsError
    from orchestrator.config.validation import require

    try:
        return require(load(), *parts)
    except SettingsError as error:
        raise Failures([Failure(SETTING, what=what, why=why, fix=fix) for what, why, fix in error.problems]) from None


def settings_to_run() -> "Settings":
    """Load the settings of a process that leads. Raises Failures with all problems."""
    from orchestrator.config.validation import TO_RUN

    return settings_for(*TO_RUN)


@asynccontextmanager
async def opened_store() -> "AsyncIterator[SqlStore]":
    """Open the store. What its driver logs is part of the error that the command shows, and not a line of its own."""
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # otherwise Python prints it on stderr
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_store(settings) as store:
        yield store


async def find_worker(store: "SqlStore", name: str) -> Mapping[str, Any]:
    """Return the rows of the worker with this id, pod id, or unique beginning or end of an id. Raises Failure."""
    if not ID_PATTERN.fullmatch(name):
        raise Failure(BAD_ARGUMENT, why=f"{name!r} is not a worker id: letters, digits, '-' and '_', at most 63")
    found = await store.worker(name)
    if found.get("worker"):
        return found
    rows = await store.find.worker_ids(name)
    chosen = [row for row in rows if row["exact"]] or rows
    if len(chosen) == 1:
        return await store.worker(chosen[0]["id"])
    if chosen:
        named = _some([f"{row['id']} ({row['status']}, pool {row['pool']})" for row in chosen])
        what = f"{name!r} is a part of several workers' ids"
        raise Failure(NO_WORKER, what=what, why=f"they are {named}", fix=LONGER)
    raise Failure(NO_WORKER, what=f"no worker {name!r}", why="the database knows none with this id or pod id")


async def find_task_id(store: "SqlStore", text: str) -> str:
    """Return the id of the task whose id is, or uniquely begins with, this text. Raises Failure.

    A whole id is returned as it is, whether or not the task exists.
    """
    digits = text.replace("-", "").lower()
    if not TASK_PREFIX.fullmatch(digits):
        raise Failure(BAD_ARGUMENT, why=f"{text!r} is not a task id: those are UUIDs, or their first digits")
    if len(digits) == UUID_DIGITS:
        return str(uuid.UUID(digits))
    rows = await store.find.task_ids(digits)
    if len(rows) == 1:
        return str(rows[0]["id"])
    if rows:
        named = _some([f"{row['id']} ({row['task_type']}, {row['status']})" for row in rows])
        raise Failure(NO_TASK, what=f"several tasks' ids begin with {text!r}", why=f"they are {named}", fix=LONGER)
    raise Failure(NO_TASK, why=f"the database has no task whose id begins with {text!r}")


def _some(candidates: Sequence[str]) -> str:
    return ", ".join(candidates[:NAMED]) + (", …" if len(candidates) > NAMED else "")


def utcnow() -> datetime:
    """Return this machine's time, for ages. All decisions use the database's clock."""
    return datetime.now(UTC)


def actor() -> str:
    """Return the name of the person at the terminal, for the audit log."""
    with suppress(OSError, KeyError):
        return f"cli:{getpass.getuser()}"
    return "cli"
