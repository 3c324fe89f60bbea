"""Maintenance: the leader executes a request, or this command does without a leader. It verifies the result."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import Output
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.diagnostics.amounts import span

if TYPE_CHECKING:
    from orchestrator.adapters.runpod import RunPodCloud
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

LOOK_EVERY_S = 2.0
PATIENCE_S = 180.0  # after 3 minutes, the command reports what is left
NAMED = 5  # of the rest, in a line of progress
LEADING = "Nobody leads: this command leads until it is done."


@asynccontextmanager
async def opened_cloud(settings: "Settings") -> "AsyncIterator[RunPodCloud]":
    """The provider."""
    from orchestrator import wiring

    cloud = wiring.open_cloud(settings)
    try:
        yield cloud
    finally:
        await cloud.close()


async def leader(store: "SqlStore") -> Any:
    """Return the leader ({holder, since, term}), or None. Read only."""
    return (await store.leadership())["leader"]


async def carried_out(
    store: "SqlStore",
    settings: "Settings",
    output: Output,
    job: MaintenanceJob,
    left: Callable[[], Awaitable[Sequence[str]]],
) -> Sequence[str]:
    """Wait for the leader, or lead, until nothing is left. Return what is left after PATIENCE_S."""
    from orchestrator import service
    from orchestrator.config.validation import require

    began_s, last_line = time.monotonic(), ""

    async def remaining() -> Sequence[str]:
        nonlocal last_line
        rest = await left()
        spent_s = time.monotonic() - began_s
        shown(f"{len(rest)} left after {span(spent_s)}; given up after {span(PATIENCE_S)}")
        more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
        line = f"{len(rest)} left: {', '.join(rest[:NAMED])}{more}"
        if rest and line != last_line:
            output.say(f"{span(spent_s):>6}  {line}")
            last_line = line
        return rest

    async def is_done() -> bool:
        return not await remaining()

    with output.waiting("looking") as shown:
        while (rest := await remaining()) and (spent_s := time.monotonic() - began_s) < PATIENCE_S:
            if await leader(store) is None:
                require(settings, "database", "cloud", "shell", "blobs", "gateway")
                output.say(LEADING, "yellow")
                await service.lead_for(settings, job, is_done, timeout_s=PATIENCE_S - spent_s)
            else:
                await asyncio.sleep(LOOK_EVERY_S)
    return rest
