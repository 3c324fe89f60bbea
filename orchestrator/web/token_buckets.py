"""Rate limits of requests and bytes: a token bucket for each worker's token and each anonymous address.

A known worker is limited only by its token, so workers behind one address do not limit each other, and an anonymous
caller there does not limit them.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_CALLERS = 10_000  # callers that are remembered; the oldest is dropped first


@dataclass(frozen=True, slots=True)
class Rate:
    """An allowance: a burst, and a rate per second."""

    burst: float
    per_s: float


WORKER_REQUESTS = Rate(400, 100)
WORKER_BYTES = Rate(16 << 20, 1 << 20)
API_REQUESTS = Rate(200, 50)  # of one token of the API
API_BYTES = Rate(16 << 20, 1 << 20)
ANONYMOUS_REQUESTS = Rate(40, 10)
PROBE_REQUESTS = Rate(60, 10)  # of one address, on connections that stay open


class Buckets:
    """The rest of each caller's allowance."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> what was left, when

    def take(self, caller: str, amount: float, now_s: float) -> bool:
        """Take from a caller's allowance; False, and nothing taken, if that much is not left."""
        left, since_s = self._left.pop(caller, (self._rate.burst, now_s))
        left = min(self._rate.burst, left + (now_s - since_s) * self._rate.per_s)
        enough = left >= amount
        self._left[caller] = (left - amount if enough else left, now_s)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        return enough

    def give_back(self, caller: str, amount: float) -> None:
        """Return what a caller took."""
        if caller in self._left:
            left, since_s = self._left[caller]
            self._left[caller] = (left + amount, since_s)
