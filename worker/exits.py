"""How an attempt ended: its exit class, from exit status, the cgroup's OOM counter and the log (guards U3, U10)."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VRAM_WORDS = "CUDA out of memory"
SHELL_SIGNAL = 128  # a shell's exit status for a child that a signal ended is this plus the signal's number


class Outcome:
    """The end of one attempt: a result, a failure, or neither.

    `dropped`: fenced. `stopped`: to be handed back. `unserved`: to be handed back, because a service was away too long.
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
    """A failure as `worker_fail` takes it."""
    failure = {"code": code, "message": message, "point": point, "exit_class": exit_class, "retryable": retryable}
    return Outcome("failed", failure={**failure, "detail": {name: text for name, text in detail.items() if text}})


def cancelled(when: str) -> Outcome:
    """The end of an attempt that somebody asked to end."""
    return failed("CANCELLED", f"cancelled {when}", "cancelled", retryable=False)


def of_process(status: int | None, oom_kills: int | None, log: str) -> tuple[str, str, str]:
    """(exit class, code, message) of a handler's process that ended without an answer; status None means unknown."""
    number = _signal(status)
    if oom_kills:
        return "oom", "OOM", f"the memory limit's OOM killer struck {oom_kills} time(s) while the handler ran"
    if VRAM_WORDS in log:
        return "vram_oom", "VRAM_OOM", "the GPU's memory was too small: CUDA out of memory"
    if number is not None:
        return "signal", "SIGNAL", f"the handler's process was ended by {_name(number)}"
    if status is None:
        return "lost", "LOST", "the handler's process let go of the agent without ending"
    return "exception", "EXIT_STATUS", f"the handler's process ended with status {status}"


def of_exception(kind: str, message: str, oom_kills: int | None, log: str) -> tuple[str, str, str]:
    """(exit class, code, message) of a handler that raised."""
    if oom_kills:  # a child of the handler's was taken, and the handler noticed
        return "oom", "OOM", f"{kind}: {message} (the memory limit's OOM killer struck {oom_kills} time(s))"
    if VRAM_WORDS in message or VRAM_WORDS in log:
        return "vram_oom", "VRAM_OOM", f"{kind}: {message}"
    return "exception", "HANDLER_ERROR", f"{kind}: {message}"


def oom_kills(root: str) -> int | None:
    """Processes that the OOM killer has ended in our memory cgroup, v2 or v1; None where that cannot be read."""
    own = _own_cgroups(root)
    for place, name in (
        (own.get(""), "memory.events"),
        ("", "memory.events"),
        (own.get("memory"), "memory.oom_control"),
        ("", "memory.oom_control"),
    ):
        if place is None:
            continue
        top = "sys/fs/cgroup" if name == "memory.events" else "sys/fs/cgroup/memory"
        for key, value in _pairs(os.path.join(root, top, place.lstrip("/"), name)):
            if key == "oom_kill" and value.isdigit():
                return int(value)
    return None


def _own_cgroups(root: str) -> dict[str, str]:
    """Controller -> our path; "" is the unified hierarchy."""
    found = {}
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _pairs(path: str) -> list[tuple[str, str]]:
    return [(words[0], words[1]) for words in map(str.split, _lines(path)) if len(words) == 2]  # noqa: PLR2004


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:  # unknown is an answer of its own
        return []


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
