"""The budgets of one worker's logs: bytes per hour, and waiting time per round.

Both protect the other workers and the bucket from a pod that writes without end or answers slowly. At most one piece of
a worker is in flight (shipper.PIECE_BYTES).
"""

import time
from dataclasses import dataclass

from orchestrator.ports import Unavailable

LOG_BYTES_PER_HOUR = 4 * 1024**3  # of one worker; also what may go out at once after an hour without any
POD_ROUND_S = 15.0  # that one round waits for one pod's answers; what is left comes in a later round
HOUR_S = 3600.0


class BudgetSpent(Unavailable):
    """A worker has shipped as many bytes as it may; the rest stays on the pod for now."""


class ByteBudget:
    """A token bucket that holds the bytes of one hour. It is in memory only: a new leader begins with a full one."""

    def __init__(self) -> None:
        self._left, self._at_s = float(LOG_BYTES_PER_HOUR), time.monotonic()

    def take(self, wanted_bytes: int) -> bool:
        """Take all of it or nothing."""
        self._refill()
        if wanted_bytes > self._left:
            return False
        self._left -= wanted_bytes
        return True

    @property
    def full(self) -> bool:
        """Whether it is full, like a new budget."""
        self._refill()
        return self._left >= LOG_BYTES_PER_HOUR

    def _refill(self) -> None:
        now_s = time.monotonic()
        refilled = self._left + (now_s - self._at_s) * LOG_BYTES_PER_HOUR / HOUR_S
        self._left, self._at_s = min(float(LOG_BYTES_PER_HOUR), refilled), now_s


class Budgets:
    """The byte budgets of workers; one that is full again is forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, ByteBudget] = {}

    def of(self, worker_id: str) -> ByteBudget:
        """The budget of a worker."""
        if worker_id not in self._known:
            self._known = {name: budget for name, budget in self._known.items() if not budget.full}
            self._known[worker_id] = ByteBudget()
        return self._known[worker_id]


@dataclass(slots=True)
class Round:
    """One shipment of one worker: what it took and what it had to leave."""

    limit_s: float = POD_ROUND_S  # that it may wait for the pod
    waited_s: float = 0.0
    shipped_bytes: int = 0
    withheld_bytes: int = 0  # that the byte budget did not allow

    @property
    def over(self) -> bool:
        """Whether its time is used up."""
        return self.waited_s >= self.limit_s

    @property
    def may_pause(self) -> bool:
        """Whether it may end here and continue in a later round: its time is used up, and it has shipped something."""
        return self.over and self.shipped_bytes > 0
