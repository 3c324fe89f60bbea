"""How many requests and bytes one caller may send: a token bucket for each worker's token and each stranger's address.

A known worker is limited by its token alone, so that workers behind one address never pay for each other or for a
stranger there.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_CALLERS = 10_000  # remembered; the one that called longest ago is forgotten first


@dataclass(frozen=True, slots=True)
class Rate:
    """An allowance: so much at once, and so much a second."""

    burst: float
    per_s: float


WORKER_REQUESTS = Rate(400, 100)
WORKER_BYTES = Rate(16 << 20, 1 << 20)
STRANGER_REQUESTS = Rate(40, 10)
PROBE_REQUESTS = Rate(60, 10)  # of one address, on connections that stay open


class Buckets:
    """What each caller has left of one allowance."""

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
