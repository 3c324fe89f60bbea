"""The money that a replay may spend in one day, for all of its pools."""

from dataclasses import dataclass
from math import floor, inf

DAY_S = 86_400.0
HOUR_S = 3_600.0
MARGIN = 1e-9  # share of the budget that is not spent, because the sums of others are rounded differently


@dataclass(slots=True)
class DailyBudget:
    """Counts what live workers cost. Days begin at multiples of 86,400 s."""

    daily_usd: float  # inf: no limit
    usd_per_hour: float
    day: int = 0
    spent_usd: float = 0.0  # in this day, until `at`
    at: float = 0.0

    def advance(self, now: float, live: int) -> None:
        """Add the cost of `live` workers until now. No midnight may lie in between, except now itself."""
        self.spent_usd += live * (now - self.at) * self.usd_per_hour / HOUR_S
        self.at = now
        if floor(now / DAY_S) != self.day:
            self.day, self.spent_usd = floor(now / DAY_S), 0.0

    @property
    def midnight(self) -> float:
        """Return the end of this day."""
        return (self.day + 1) * DAY_S

    def runway_s(self, live: int) -> float:
        """Return for how long so many workers can be paid. It is without end if that is until midnight."""
        usd_per_s = live * self.usd_per_hour / HOUR_S
        if self.daily_usd == inf or not usd_per_s:
            return inf
        left_s = (self.daily_usd * (1 - MARGIN) - self.spent_usd) / usd_per_s
        return inf if self.at + left_s >= self.midnight else max(0.0, left_s)
