"""`[[pools.<name>.scheduled_sizes]]` of POOLS_FILE: the sizes of a pool that follow the time."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator

from orchestrator.config.errors import SettingProblem, shown
from orchestrator.core import cron
from orchestrator.core.policy import Pool, PoolKind, ScheduledSize

MAX_ENTRIES = 50
MAX_WORKERS = 10_000
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_WORKERS)]


class SizeEntry(BaseModel):
    """One entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cron: str
    time_zone: str = "UTC"
    min_active_gpus: Count | None = None
    max_active_gpus: Count | None = None

    @field_validator("cron")
    @classmethod
    def _is_due(cls, value: str) -> str:
        if next(cron.times(value, datetime.now(UTC), ZoneInfo("UTC")), None) is None:
            raise ValueError("it is never due")
        return value

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{shown(value)} is no time zone of this machine") from None
        return value

    def size(self) -> ScheduledSize:
        """Return it as the planner reads it."""
        return ScheduledSize(self.cron, ZoneInfo(self.time_zone), self.min_active_gpus, self.max_active_gpus)


def size_problems(pool: Pool, where: str) -> Iterator[SettingProblem]:
    """Yield what is wrong with the scheduled sizes of a pool. `where` names its place in the file."""
    for place, entry in enumerate(pool.scheduled_sizes, start=1):
        what = f"{where}: entry {place} of scheduled_sizes contradicts itself"
        least = pool.min_active if entry.min_active is None else entry.min_active
        most = pool.max_active if entry.max_active is None else entry.max_active
        if entry.min_active is None and entry.max_active is None:
            yield SettingProblem(what, "it sets nothing", "give min_active_gpus, max_active_gpus, or both")
        elif most and least > most:
            why = f"min_active_gpus {least} is more than max_active_gpus {most}"
            yield SettingProblem(what, why, "lower min_active_gpus")
        elif most == 0 and entry.min_active and entry.max_active is None:
            why = f"it starts no worker: min_active_gpus is {least}, and the pool's max_active_gpus is 0"
            yield SettingProblem(what, why, f"give the entry max_active_gpus, at least {least}")
        elif pool.kind is PoolKind.CLUSTER and entry.min_active:
            why = "the number of its workers is the number of nodes of its cluster"
            yield SettingProblem(what, why, "remove min_active_gpus")
