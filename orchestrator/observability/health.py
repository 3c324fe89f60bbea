"""The answers of the two health probes, from a record that the daemon keeps.

`/healthz` is 503 only if the loop is dead, so that a platform restarts the process only then. An outage of the database
is only a reason in the body. `/readyz` is 200 for a leader and for a healthy standby: otherwise a rolling deploy would
wait forever for the new process to lead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

DEAD_AFTER_S = 120.0  # no tick begun for so long after it was due: the loop hangs


@dataclass(slots=True)
class Health:
    """The last reported state of the daemon. Times are seconds of one monotonic clock."""

    started_at_s: float
    dead_after_s: float = DEAD_AFTER_S
    role: str = "starting"  # starting | leader | standby | stopping
    term: int | None = None
    holder: str | None = None  # who leads, us included
    tick_at_s: float | None = None  # when the last tick began, as leader or standby, also if it failed
    database_answered: bool = False  # once since the start
    reason: str | None = None  # why the last tick, or the last request for the lease, failed
    runs: Mapping[str, str | None] = field(default_factory=dict)  # version, commit, schema
    steps: int = 0  # of all ticks together, for the watchdog
    depends: Callable[[], Mapping[str, str]] = dict  # database, provider, s3 -> up | down | unknown

    def ticked(self, now_s: float) -> None:
        """Note the begin of a tick."""
        self.tick_at_s = now_s
        self.stepped()

    def stepped(self) -> None:
        """Note the end of one step of a tick."""
        self.steps += 1

    def leads(self, term: int, holder: str) -> None:
        """Note that this process leads."""
        self.role, self.term, self.holder, self.database_answered = "leader", term, holder, True

    def stands_by(self, term: int, holder: str) -> None:
        """Note that another process leads. No tick runs, so nothing else ends the reason of a failed request."""
        self.role, self.term, self.holder, self.database_answered = "standby", term, holder, True
        self.reason = None

    def stops(self) -> None:
        """Note that the process is ending."""
        self.role = "stopping"

    def failed(self, reason: str) -> None:
        """Note a failed tick, or a failed request for the lease."""
        self.reason = reason

    def recovered(self) -> None:
        """Note a successful tick."""
        self.reason = None

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the last tick began, or since the start if there was none."""
        return max(0.0, now_s - (self.started_at_s if self.tick_at_s is None else self.tick_at_s))

    def alive(self, now_s: float) -> bool:
        """Whether the loop still runs."""
        return self.age_s(now_s) <= self.dead_after_s

    def ready(self, now_s: float) -> bool:
        """Whether the loop runs and has reached the database."""
        return self.alive(now_s) and self.database_answered and self.role in {"leader", "standby"}

    def report(self, now_s: float) -> dict[str, Any]:
        """Return the body of both probes."""
        alive = self.alive(now_s)
        reason = self.reason if alive else f"no tick for {self.age_s(now_s):.0f} s: the loop is dead"
        return {
            "status": "dead" if not alive else "ok" if self.reason is None else "degraded",
            "role": self.role,
            "term": self.term,
            "leader": self.holder,
            "last_tick_age_s": None if self.tick_at_s is None else round(self.age_s(now_s), 3),
            "database_answered": self.database_answered,
            "reason": reason,
            **self.runs,
            "depends_on": dict(self.depends()),
        }
