"""Callbacks through which the process around the loop learns of the loop's events."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.loop.jobs import LeaderJob


async def _nothing(_leads: bool) -> None:
    """The default of `on_lead`: a leader opens nothing more."""


def _ignore(_first: object, _second: object) -> None:
    """The default of the other hooks: nobody listens."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of the process at the loop's events."""

    on_notify: Callable[[str, str], object] = _ignore  # a notification of the database: channel, payload
    on_lead: Callable[[bool], Awaitable[None]] = _nothing  # this process begins or ends to lead
    on_plan: Callable[[Snapshot, Plan], object] = _ignore  # the snapshot and plan of a tick
    on_tick_failed: Callable[[str], object] = lambda _why: None
    probe_store: Callable[[], Awaitable[None]] | None = None  # probes the object store
    on_retention: Callable[[], Awaitable[None]] | None = None  # once an hour, after old rows were deleted
    jobs: Sequence[LeaderJob] = ()


NO_HOOKS = Hooks()
