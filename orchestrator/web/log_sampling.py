"""Samples log lines about anonymous callers: the first of a kind, then one per minute with the number of calls."""

import logging
import time

EVERY_S = 60.0


class Sampler:
    """Decides which calls of one kind are logged."""

    def __init__(self) -> None:
        self._count, self._next_s = 0, float("-inf")

    def take(self, now_s: float) -> int:
        """The number of calls since the last line, with this one; 0 if this one makes no line."""
        self._count += 1
        if now_s < self._next_s:
            return 0
        count, self._count, self._next_s = self._count, 0, now_s + EVERY_S
        return count


class SampledWarnings(logging.Filter):
    """Samples the HTTP server's own warnings in the same way: a malformed request causes one or two."""

    def __init__(self) -> None:
        super().__init__()
        self._sampler = Sampler()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if record.levelno != logging.WARNING:
            return True
        count = self._sampler.take(time.monotonic())
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} warnings in the last minute)", ()
        return count > 0
