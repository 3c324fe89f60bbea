"""Sizes of a pool that follow the time: `min_active` and `max_active` from the due times of a cron expression on.

The entry that was due last is in force. An operator's limit for a time (scale_limits.py) stands above it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile

from orchestrator.core import cron
from orchestrator.core.blocked import WORKERS, Blocked, BlockedReason
from orchestrator.core.economics.sizes import SizeStep
from orchestrator.core.policy import Policy, Pool, ScheduledSize

MINUTE = timedelta(minutes=1)
AMBIGUOUS = timedelta(hours=3)  # longer than clocks go back
MOST_DUE = 20_000  # times that are looked at for a replay
Due = tuple[datetime, int, ScheduledSize]  # and the place of the entry in the file


def in_force(policy: Policy, now: datetime) -> Policy:
    """Return the policy with the sizes of this minute."""
    minute = now.replace(second=0, microsecond=0)
    if not any(pool.scheduled_sizes for pool in policy.pools):
        return policy
    return replace(policy, pools=tuple(_sized(pool, minute) for pool in policy.pools))


def most_reason(pool: Pool, count: int, now: datetime) -> Blocked:
    """Return why a pool may not have more workers: its own limit, or the entry in force."""
    if pool.sized_by is None or pool.sized_by[0].max_active is None:
        return Blocked(BlockedReason.MAX_ACTIVE, count, WORKERS, {"limit": pool.max_active})
    entry, since = pool.sized_by
    detail = {"limit": pool.max_active, "cron": entry.cron, "since": f"{since:%Y-%m-%d %H:%M} UTC"}
    due = [at for one in pool.scheduled_sizes if (at := next_due(one, now.replace(second=0, microsecond=0)))]
    return Blocked(BlockedReason.SCHEDULED_SIZE, count, WORKERS, detail, min(due, default=None))


@lru_cache(maxsize=256)
def next_due(entry: ScheduledSize, minute: datetime) -> datetime | None:
    """Return when an entry is due after a full minute. None: never. Raises CronError."""
    due = next(cron.times(entry.cron, minute, entry.zone), None)
    return due and due.astimezone(minute.tzinfo)


def text(pool: Pool) -> str:
    """Return which entry a pool has its sizes from, for the rule of a decision: `; min and max by cron …`."""
    if pool.sized_by is None:
        return ""
    entry, since = pool.sized_by
    return f"; min and max by cron {entry.cron!r} ({entry.zone.key}) since {since:%Y-%m-%d %H:%M} UTC"


@lru_cache(maxsize=256)
def last_due(entry: ScheduledSize, minute: datetime) -> datetime | None:
    """Return when an entry was last due, until the end of a full minute. None: never. Raises CronError.

    Forwards from a time that the zone has once: backwards from one that it has twice, cron misses what was due then.
    """
    begin = minute - AMBIGUOUS
    if _is_twice(begin.astimezone(entry.zone)):
        begin -= AMBIGUOUS
    before = next(cron.times(entry.cron, begin + MINUTE, entry.zone, reverse=True), None)
    later = takewhile(lambda at: at <= minute, cron.times(entry.cron, begin, entry.zone))
    due = max((at.astimezone(minute.tzinfo) for at in later), default=before)
    return due and due.astimezone(minute.tzinfo)


def _is_twice(local: datetime) -> bool:
    return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def steps(pool: Pool, since: datetime, until: datetime) -> list[SizeStep]:
    """Return the sizes of a pool from each change between two moments on, the first from `since` on.

    Of more than MOST_DUE due times, the first ones count.
    """
    minute = since.replace(second=0, microsecond=0)
    before = _last(pool, minute)
    each = (_due(place, entry, minute) for place, entry in enumerate(pool.scheduled_sizes))
    due = heapq.merge(*each, key=lambda one: one[:2])
    within = takewhile(lambda one: one[0] <= until, islice(due, MOST_DUE))
    found: list[SizeStep] = []
    for at, _, entry in [*([before] if before else []), *within]:
        step = SizeStep(max(at, since).timestamp(), entry.min_active, entry.max_active)
        if found and found[-1].since == step.since:
            found.pop()
        if not found or found[-1][1:] != step[1:]:
            found.append(step)
    return found


def _due(place: int, entry: ScheduledSize, minute: datetime) -> Iterator[Due]:
    """Yield when an entry is due after a full minute. Raises CronError."""
    for at in cron.times(entry.cron, minute, entry.zone):
        yield at.astimezone(minute.tzinfo), place, entry


def _last(pool: Pool, minute: datetime) -> Due | None:
    """Return the entry in force, since when, and its place. Of two that are due at once, the later one in the file."""
    due = [(since, place, entry) for place, entry in enumerate(pool.scheduled_sizes)
           if (since := last_due(entry, minute))]  # fmt: skip
    return max(due, key=lambda one: one[:2], default=None)


def _sized(pool: Pool, minute: datetime) -> Pool:
    found = _last(pool, minute)
    if found is None:
        return pool
    since, _, entry = found
    return replace(
        pool,
        min_active=pool.min_active if entry.min_active is None else entry.min_active,
        max_active=pool.max_active if entry.max_active is None else entry.max_active,
        sized_by=(entry, since),
    )
