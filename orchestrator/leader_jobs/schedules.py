"""Schedules: the due times of recurring tasks, and the leader's step that serves them.

A due time is served once: the database writes its row in `schedule_runs` and submits the task in one transaction,
unless it was served before. A due time that is more than LATE_S old when a leader sees it was missed.

Cron expressions follow Debian's cron at the changes of daylight saving time: a time that is skipped is due at the next
valid minute, and a time that occurs twice is due once.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.core import cron

EVERY_S = 5.0
LATE_S = 60.0
AT_ONCE = 100  # schedules in one step
TIMES_AT_ONCE = 1_000  # due times of one schedule in one call
CALLS = 20  # for one schedule in one step; the next step continues
log = structlog.get_logger()


class ScheduleError(ValueError):
    """The due times cannot be computed. The text names the cause."""


def due_times(schedule: Mapping[str, Any], after: datetime) -> Iterator[datetime]:
    """Return the due times after a moment, in UTC and in order. Raises ScheduleError, also while iterating."""
    if schedule["every_s"] is not None:
        return _every(schedule["every_s"], _time(schedule, "created_at"), after)
    try:
        zone = ZoneInfo(schedule["timezone"])
    except (KeyError, ValueError, OSError) as error:
        raise ScheduleError(f"no time zone {schedule['timezone']!r}: use a name such as Europe/Berlin") from error
    try:
        times = _utc(cron.times(schedule["cron"], after, zone), schedule["cron"])
    except cron.CronError as error:
        raise ScheduleError(str(error)) from error
    return (time for time in times if time > after)  # in a repeated hour, the first one is the hour before


def next_due(schedule: Mapping[str, Any], now: datetime) -> datetime:
    """Return the due time that the leader serves next. Raises ScheduleError."""
    return next(due_times(schedule, now)) if schedule["next_at"] is None else _time(schedule, "next_at")


def _every(every_s: int, begin: datetime, after: datetime) -> Iterator[datetime]:
    first = max(1, int((after - begin).total_seconds() // every_s) + 1)
    try:
        for number in itertools.count(first):
            yield begin + timedelta(seconds=every_s * number)
    except OverflowError:
        raise ScheduleError("created_at is so late that it is never due") from None


def _time(schedule: Mapping[str, Any], column: str) -> datetime:
    try:
        return datetime.fromisoformat(schedule[column])
    except ValueError:
        raise ScheduleError(f"{column} is {schedule[column]!r}: set it to a time of the years 1 to 9999") from None


def _utc(times: Iterator[datetime], text: str) -> Iterator[datetime]:
    yield from (time.astimezone(UTC) for time in times)
    raise ScheduleError(f"{text!r} is never due")  # a day that no month has


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """What to do with the due times of a schedule up to now."""

    missed: Sequence[datetime]
    due_at: datetime | None  # submit its task
    next_at: datetime


def next_step(schedule: Mapping[str, Any], now: datetime) -> ScheduleStep:
    """Decide on the due times that have come, TIMES_AT_ONCE at most. Raises ScheduleError."""
    if schedule["next_at"] is None:
        return ScheduleStep((), None, next_due(schedule, now))
    first = next_due(schedule, now)
    missed: list[datetime] = []
    for time, following in itertools.pairwise(itertools.chain([first], due_times(schedule, first))):
        if time > now:
            return ScheduleStep(missed, None, time)
        is_late = (now - time).total_seconds() > LATE_S
        if not is_late or (schedule["catch_up"] == "once" and following > now):
            return ScheduleStep(missed, time, following)
        missed.append(time)
        if len(missed) == TIMES_AT_ONCE:
            return ScheduleStep(missed, None, following)
    raise AssertionError("due times have no end")


class Schedules:
    """Serves the due times of all schedules."""

    def __init__(self, store: ScheduleStore) -> None:
        self._store = store

    async def step(self, term: int) -> None:
        """Serve what is due. Raises PortError."""
        now, due = await self._store.due(AT_ONCE)
        for schedule in due:
            await self._serve(term, schedule, now)

    async def _serve(self, term: int, schedule: Mapping[str, Any], now: datetime) -> None:
        for _ in range(CALLS):
            try:
                step = next_step(schedule, now)
            except ScheduleError as error:
                log.warning("schedule_set_aside", schedule=schedule["name"], message=str(error))
                await self._store.set_aside(term, schedule["name"], str(error))
                return
            done = await self._store.run(
                term,
                schedule["name"],
                schedule["next_at"],
                missed=step.missed,
                due_at=step.due_at,
                next_at=step.next_at,
            )
            if done["outcome"] == "stale":
                return
            _report(schedule["name"], step, done)
            if step.next_at > now:
                return
            schedule = {**schedule, "next_at": step.next_at.isoformat()}


def _report(name: str, step: ScheduleStep, done: Mapping[str, Any]) -> None:
    if step.missed:
        log.warning("schedule_missed", schedule=name, count=len(step.missed), first=step.missed[0].isoformat())
    if step.due_at is not None:
        about = {"schedule": name, "due_at": step.due_at.isoformat()}
        if done["outcome"] == "fired":
            log.info("schedule_fired", task=done["task_id"], **about)
        else:
            log.warning("schedule_skipped", reason=done["reason"], **about)
