"""How an attempt ended: its exit class, from the exit status, the cgroup's OOM counter and the log (guards U3, U10)."""

from __future__ import annotations

import signal

from .cgroup import Cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VRAM_WORDS = "CUDA out of memory"
SHELL_SIGNAL = 128  # plus a signal's number: a shell's exit status for a child that this signal ended


class Outcome:
    """The end of one attempt: a result, a failure, or neither.

    `dropped`: it was fenced. `stopped`: the agent must release it. `unserved`: the agent must release it, because a
    service was unavailable for too long. `hung`: it was stuck, and its processes cannot be ended.
    """

    def __init__(
        self,
        kind: str,
        *,
        location: str | None = None,
        result: dict[str, Any] | None = None,
        failure: dict[str, Any] | None = None,
        why: str = "",
    ) -> None:
        self.kind = kind  # done | failed | dropped | stopped | unserved
        self.why = why
        self.location = location
        self.result = result
        self.failure = failure


def failed(
    code: str, message: str, exit_class: str, *, point: str = "Processing", retryable: bool = True, **detail: Any
) -> Outcome:
    """Return a failure in the format of `worker_fail`."""
    failure = {"code": code, "message": message, "point": point, "exit_class": exit_class, "retryable": retryable}
    return Outcome("failed", failure={**failure, "detail": {name: text for name, text in detail.items() if text}})


def cancelled(when: str) -> Outcome:
    """Return the outcome of an attempt that was cancelled."""
    return failed("CANCELLED", f"cancelled {when}", "cancelled", retryable=False)


def stuck(still_s: float) -> Outcome:
    """Return the outcome of an attempt without a sign of life."""
    nothing = "no report, no output, no change of its files, no processor or GPU time"
    why = f"no sign of life for {still_s:.0f} s: {nothing}"
    if still_s < 1:
        why = "it ran for more than twice its timeout_s: from then on signs of life do not count"
    return failed("TASK_STUCK", why, "timeout")


def of_process(status: int | None, oom_kills: int | None, log: str) -> tuple[str, str, str]:
    """Return (exit class, code, message) of a handler's process that ended without an answer. None: unknown status."""
    number = _signal(status)
    if oom_kills:
        return "oom", "OOM", f"the OOM killer of the memory limit ended {oom_kills} process(es) while the handler ran"
    if VRAM_WORDS in log:
        return "vram_oom", "VRAM_OOM", "the GPU's memory was too small: CUDA out of memory"
    if number is not None:
        return "signal", "SIGNAL", f"the handler's process was ended by {_name(number)}"
    if status is None:
        return "lost", "LOST", "the handler's process closed its connection to the agent without ending"
    return "exception", "EXIT_STATUS", f"the handler's process ended with status {status}"


def of_exception(kind: str, message: str, oom_kills: int | None, log: str) -> tuple[str, str, str]:
    """Return (exit class, code, message) of a handler that raised an exception."""
    if oom_kills:  # the OOM killer ended a child of the handler, and the handler noticed
        return "oom", "OOM", f"{kind}: {message} (the OOM killer of the memory limit ended {oom_kills} process(es))"
    if VRAM_WORDS in message or VRAM_WORDS in log:
        return "vram_oom", "VRAM_OOM", f"{kind}: {message}"
    return "exception", "HANDLER_ERROR", f"{kind}: {message}"


def oom_kills(root: str) -> int | None:
    """Return how many processes the OOM killer has ended in our memory cgroup (v2 or v1), or None if unreadable."""
    return Cgroup(root).oom_kills()


def _signal(status: int | None) -> int | None:
    if status is None:
        return None
    number = -status if status < 0 else status - SHELL_SIGNAL
    return number if number > 0 and number in {int(one) for one in signal.Signals} else None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
