"""The observation window: the time in which the orchestrator could receive heartbeats. Silence counts only in it.

A gap (no leadership, no database) does not count as silence, and it does not reset the silence before it. So a dead
worker is also detected while the database fails again and again, only later.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

RETRY_S = 10.0  # the longest time after a gap until an agent whose call failed in it repeats the call


@dataclass(frozen=True, slots=True)
class ObservationWindow:
    """The time in which this orchestrator could receive heartbeats."""

    since: datetime  # the begin of the window
    gaps: tuple[tuple[datetime, datetime], ...] = ()  # without these gaps, oldest first

    def back(self, seconds: float, now: datetime) -> datetime | None:
        """Return the start of the last `seconds` in which heartbeats could be received. None if there were fewer.

        Agents retry more and more rarely during a gap, so their silence continues for about the gap's length after it.
        """
        left, until = timedelta(seconds=seconds), now
        for began, ended in reversed(self.gaps):
            felt = min(ended + min(ended - began, timedelta(seconds=RETRY_S)), until)
            if until - felt >= left:
                break
            left -= until - felt
            until = began
        return until - left if until - left >= self.since else None
