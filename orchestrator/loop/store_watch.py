"""Detects whether the object store serves this process: from each call, and from a probe if there are no calls.

Reads and writes are counted separately: a bucket that allows only reads counts as unavailable.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.ports import BlobRefused, Blobs, NotFound, PortError

FAILURES = 2  # in a row; a single failure does not count
QUIET_S = 10.0  # without an answered call: then a probe is sent
MEASURE_S = 60.0  # between two probes at most, even if other calls are answered
SLOW_S = 5.0  # a probe without an answer by then counts as failed
KEY = "probes/store"  # overwritten by each probe; relative to S3_PREFIX
CONTENT = b"written by the orchestrator to see whether this bucket takes objects\n"
WHY_CHARS = 200
FIX = "check S3_BUCKET, S3_ENDPOINT_URL and the AWS keys: python -m orchestrator doctor"


@dataclass(slots=True)
class _CallKind:
    """Calls of one kind."""

    failures: int = 0  # in a row
    since_s: float = 0.0  # the first of them
    why: str = ""
    refused: bool = False

    def note(self, now_s: float, error: PortError | None) -> None:
        """Note the result of one call."""
        if error is None or isinstance(error, NotFound):
            self.failures = 0
            return
        if not self.failures:
            self.since_s = now_s
        self.failures += 1
        self.why, self.refused = _why(error), isinstance(error, BlobRefused)


class StoreWatch:
    """What one process knows about the object store. Any thread may use `note_call`."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic  # a default value would be bound too early for a simulator
        self._reads, self._writes = _CallKind(), _CallKind()
        self._answered_s: float | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probed_s = 0.0
        self.took_s = 0.0  # for the last probe that was answered; 0: none was

    def note_call(self, operation: str, error: PortError | None) -> None:
        """Note how a call of this process ended. `error` is None if it was answered."""
        now_s = self._clock()
        (self._writes if operation == "put" else self._reads).note(now_s, error)
        if error is None or isinstance(error, NotFound):
            self._answered_s = now_s
        if operation == "put" and error is None:  # a put also reads the size back
            self._reads.note(now_s, None)

    @property
    def is_known(self) -> bool:
        """Whether the store has ever answered this process."""
        return self._answered_s is not None

    def outage(self) -> tuple[float, str, bool] | None:
        """Return for how long it has been unavailable, why, and whether it refuses.

        None if it serves, or is unknown.
        """
        now_s = self._clock()
        failing = [kind for kind in (self._writes, self._reads) if kind.failures >= FAILURES]
        if failing:
            first = min(failing, key=lambda kind: kind.since_s)
            return now_s - first.since_s, first.why, first.refused
        pending_s = now_s - self._probed_s if self._probe else 0.0
        return (pending_s, f"S3 has not answered for {SLOW_S:.0f} s", False) if pending_s >= SLOW_S else None

    async def probe_if_due(self, blobs: Blobs) -> None:
        """Begin a probe if one is due. Nothing waits for it, because a hanging store holds a call for minutes."""
        if self._probe is not None:
            return
        failing = self._reads.failures or self._writes.failures
        now_s = self._clock()
        quiet = self._answered_s is None or now_s - self._answered_s >= QUIET_S
        if failing or quiet or now_s - self._probed_s >= MEASURE_S:
            self._probed_s = now_s
            self._probe = asyncio.create_task(self._probe_once(blobs, writes=bool(failing)), name="probe:store")

    def stop(self) -> None:
        """Cancel the running probe."""
        if self._probe is not None:
            self._probe.cancel()

    async def _probe_once(self, blobs: Blobs, *, writes: bool) -> None:
        try:
            if writes:
                await blobs.put(KEY, CONTENT, content_type="text/plain")
            else:
                await blobs.size(KEY)
            self.took_s = self._clock() - self._probed_s
        except NotFound:
            self.took_s = self._clock() - self._probed_s
        except PortError:
            pass  # `note_call` has noted it
        finally:
            self._probe = None


def _why(error: PortError) -> str:
    text = f"{type(error).__name__}: {str(error)[:WHY_CHARS]}"
    return f"S3 refuses ({text}); {FIX}" if isinstance(error, BlobRefused) else f"S3 does not answer ({text})"
