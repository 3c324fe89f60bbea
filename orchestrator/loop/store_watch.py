"""Whether the object store serves this process: known from each of its calls, and from a probe while none tells.

Reading and writing are told apart: a bucket that may be read and not written to is away for all that matters here.
"""

import asyncio
import time
from dataclasses import dataclass

from orchestrator.ports import BlobRefused, Blobs, NotFound, PortError

FAILURES = 2  # in a row; one may be a hiccup
QUIET_S = 10.0  # without a call that was answered: then it is asked
SLOW_S = 5.0  # a probe that takes longer is no answer
KEY = "probes/store"  # overwritten by each probe; relative to S3_PREFIX
CONTENT = b"written by the orchestrator to see whether this bucket takes objects\n"
WHY_CHARS = 200
FIX = "check S3_BUCKET, S3_ENDPOINT_URL and the AWS keys: python -m orchestrator doctor"


@dataclass(slots=True)
class _Side:
    """Calls of one kind."""

    failures: int = 0  # in a row
    since_s: float = 0.0  # the first of them
    why: str = ""
    refused: bool = False

    def note(self, now_s: float, error: PortError | None) -> None:
        """Take in one call's end."""
        if error is None or isinstance(error, NotFound):
            self.failures = 0
            return
        if not self.failures:
            self.since_s = now_s
        self.failures += 1
        self.why, self.refused = _why(error), isinstance(error, BlobRefused)


class StoreWatch:
    """One process's view; `called` may be used from any thread."""

    def __init__(self) -> None:
        self._reads, self._writes = _Side(), _Side()
        self._answered_s: float | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed_s = 0.0

    def called(self, operation: str, error: PortError | None) -> None:
        """A call of this process ended; None: it was answered."""
        now_s = time.monotonic()
        (self._writes if operation == "put" else self._reads).note(now_s, error)
        if error is None or isinstance(error, NotFound):
            self._answered_s = now_s
        if operation == "put" and error is None:  # a put reads the size back
            self._reads.note(now_s, None)

    @property
    def is_known(self) -> bool:
        """Whether the store has ever answered this process."""
        return self._answered_s is not None

    def away(self) -> tuple[float, str, bool] | None:
        """For how many seconds it has been away, why, and whether it refuses; None while it serves, or is unknown."""
        now_s = time.monotonic()
        sides = [side for side in (self._writes, self._reads) if side.failures >= FAILURES]
        if sides:
            first = min(sides, key=lambda side: side.since_s)
            return now_s - first.since_s, first.why, first.refused
        pending_s = now_s - self._probed_s if self._probe else 0.0
        return (pending_s, f"S3 has not answered for {SLOW_S:.0f} s", False) if pending_s >= SLOW_S else None

    async def look(self, blobs: Blobs) -> None:
        """Begin a probe if one is due; it is not waited for, because a store that hangs holds a call for minutes."""
        if self._probe is not None:
            return
        failing = self._reads.failures or self._writes.failures
        if failing or self._answered_s is None or time.monotonic() - self._answered_s >= QUIET_S:
            self._probed_s = time.monotonic()
            self._probe = asyncio.create_task(self._ask(blobs, writes=bool(failing)), name="probe:store")

    def stop(self) -> None:
        """Give up the probe under way."""
        if self._probe is not None:
            self._probe.cancel()

    async def _ask(self, blobs: Blobs, *, writes: bool) -> None:
        try:
            if writes:
                await blobs.put(KEY, CONTENT, content_type="text/plain")
            else:
                await blobs.size(KEY)
        except PortError:
            pass  # `called` has been told
        finally:
            self._probe = None


def _why(error: PortError) -> str:
    said = f"{type(error).__name__}: {str(error)[:WHY_CHARS]}"
    return f"S3 refuses ({said}); {FIX}" if isinstance(error, BlobRefused) else f"S3 does not answer ({said})"
