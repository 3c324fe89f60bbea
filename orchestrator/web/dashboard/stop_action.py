"""Stop everything: no worker starts any more, and those that are there end now."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.plurals import counted
from orchestrator.errors import NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.action_effects import ActionEffect, Fields, per_hour, reason_of

AT_ONCE = 8  # calls; after as many that failed, it is the database
MAX_SAID = 600  # characters
LOOKS = 3  # a tick that was planned before the pause may still have added workers


async def stop_effect(api: Api, holder: TokenHolder, _: Fields) -> ActionEffect:
    """What it would end. Raises Problem."""
    if holder.pools is not None:
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may change its own pools only")
    live = _left(await api.rows.observe(), frozenset())
    running = sum(one["tasks_running"] or 0 for one in live)
    lost = "loses the work of its attempt and is" if running == 1 else "lose the work of their attempts and are"
    effects = (
        "Every pool is paused until somebody resumes it: no worker starts.",
        f"{counted(len(live), 'worker')} for {per_hour(live)} {'ends' if len(live) == 1 else 'end'} now.",
        "Logs are shipped before the pods are deleted.",
        f"{counted(running, 'running task')} {lost} queued again.",
        "Queued tasks stay queued. Resume every pool on the page Pools to go on.",
    )
    return ActionEffect("Stop everything?", effects, "orchestrator pause --reason '…' && orchestrator shutdown", "/")


async def stop(api: Api, holder: TokenHolder, fields: Fields) -> str:
    """Pause every pool, then ask for the end of each worker. Doing it again does no harm.

    A worker whose row a trigger or a lock of the user's protects does not keep the others. Raises PortError.
    """
    reason = reason_of(fields, "everything was stopped on the dashboard")
    await api.rows.pause(holder.name, reason, pool=None)
    tried: frozenset[str] = frozenset()
    refused: dict[str, PortError] = {}  # by worker id
    slots = asyncio.Semaphore(AT_ONCE)

    async def end(worker_id: str) -> None:
        async with slots:
            if len(refused) >= AT_ONCE:
                raise refused[min(refused)]
            try:
                await api.rows.terminate(holder.name, worker_id, reason, at_once=True)
            except PortError as error:
                refused[worker_id] = error

    for _ in range(LOOKS):
        left = [str(one["id"]) for one in _left(await api.rows.observe(), tried)]
        if not left:
            break
        await asyncio.gather(*map(end, left))
        tried |= frozenset(left)
    asked = counted(len(tried) - len(refused), "worker")
    said = f"Everything stops: every pool is paused, and the end of {asked} is asked for."
    if refused:
        name, error = min(refused.items())
        said += f" {counted(len(refused), 'worker')} could not be asked, so stop everything again: {name} ({error})."
    return said[:MAX_SAID]


def _left(seen: Mapping[str, Any], tried: frozenset[str]) -> Sequence[Mapping[str, Any]]:
    """The workers that nobody has asked to end at once; one that drains could go on for a long time."""
    return [one for one in seen["workers"] if one["stop_requested_at"] is None and one["id"] not in tried]
