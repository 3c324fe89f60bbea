"""Periodic work of the leader in addition to its ticks. Each job has its own timer."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from orchestrator.ports import PortError

# options of a timer: a late run happens once, as soon as the previous run has ended
ONE_AT_A_TIME = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaderJob:
    """A job that a leader repeats, from the begin of its leadership on."""

    name: str
    every_s: float
    run: Callable[[int], Awaitable[object]]  # gets the term; a PortError is logged, and the next run tries again
    channel: str | None = None  # a notification on this channel starts it at once


class JobTimers:
    """The timers of the jobs of one process."""

    def __init__(self, jobs: Sequence[LeaderJob], scheduler: AsyncIOScheduler, term: Callable[[], int | None]) -> None:
        """`term` returns the term in which a job may begin; None while this process does not lead, or ends."""
        self._jobs, self._scheduler, self._term = jobs, scheduler, term
        self._of_channel = {job.channel: job for job in jobs if job.channel}
        self._running: set[str] = set()

    def add(self) -> None:
        """Add the timers to the scheduler."""
        for job in self._jobs:
            run = partial(self._run_once, job)
            self._scheduler.add_job(run, "interval", seconds=job.every_s, id=job.name, **ONE_AT_A_TIME)

    def begin(self) -> None:
        """Start every job at once: this process begins to lead."""
        for job in self._jobs:
            self._scheduler.modify_job(job.name, next_run_time=datetime.now(UTC))

    def on_notification(self, channel: str) -> bool:
        """Start the job that waits for this channel, unless it runs. Return whether there is one."""
        job = self._of_channel.get(channel)
        if job and job.name not in self._running and self._scheduler.running and self._term() is not None:
            self._scheduler.modify_job(job.name, next_run_time=datetime.now(UTC))
        return job is not None

    async def _run_once(self, job: LeaderJob) -> None:
        term = self._term()
        if term is None:
            return
        self._running.add(job.name)
        try:
            await job.run(term)
        except PortError as error:
            log.warning("job_delayed", job=job.name, error=f"{type(error).__name__}: {error}")
        finally:
            self._running.discard(job.name)
