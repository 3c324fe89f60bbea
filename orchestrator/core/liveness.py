"""When somebody who spoke would have been heard: silence counts only then.

A gap (no lead, no database) makes no silence, but it does not unmake the silence before it either: where the database
drops out again and again, a dead worker is told from a live one all the same, only later.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

RETRY_S = 10.0  # after a gap, at most, until an agent that got no answer in it asks again


@dataclass(frozen=True, slots=True)
class ObservationWindow:
    """What this orchestrator could have heard."""

    since: datetime  # nothing before this
    gaps: tuple[tuple[datetime, datetime], ...] = ()  # and nothing in these, oldest first

    def back(self, seconds: float, now: datetime) -> datetime | None:
        """The moment since which it was listened for so long; None if it never was.

        Agents that a gap left unanswered ask less and less often: their silence goes on for about as long again.
        """
        left, until = timedelta(seconds=seconds), now
        for began, ended in reversed(self.gaps):
            felt = min(ended + min(ended - began, timedelta(seconds=RETRY_S)), until)
            if until - felt >= left:
                break
            left -= until - felt
            until = began
        return until - left if until - left >= self.since else None
