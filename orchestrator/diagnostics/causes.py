"""What each code means, who must act, what happens by itself, and what to paste.

`of(code)` answers for every failure code, XID_<n> included, `ending(cause)` for every exit cause, `waiting(on)` for
whom a worker can wait for. `<worker>` and `<task>` in a fix stand for the id that it is shown with.
"""

import re
from dataclasses import dataclass, replace

from orchestrator.core.failures import (
    AVOIDED,
    BRING_UP,
    ENDINGS,
    GPU,
    LOGS,
    MORE,
    NOBODY,
    OPERATOR,
    PROVIDER,
    SILENCES,
    SUBCAUSES,
    TASKS,
    WAITS,
    Sentence,
)
from orchestrator.core.gpus import FATAL_XIDS, RECOVERY_XID, REPEATABLE_XIDS
from orchestrator.core.states import FailureCode

XID = re.compile(r"XID_(\d{1,4})")
# NVIDIA's catalogue of Xids (docs.nvidia.com/deploy/xid-errors), as far as it matters here.
XIDS = {
    13: "a graphics engine exception: an illegal access of the program, most often",
    31: "a page fault on the GPU: an illegal address of the program, most often",
    43: "a kernel of the program was stopped",
    45: "a channel was torn down: another fault came before, or the program was ended",
    48: "a double-bit memory error",
    62: "the GPU's micro-controller halted",
    63: "a memory row is recorded for remapping",
    64: "a memory row could not be recorded for remapping",
    69: "a class error of the graphics engine",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error: one program is hurt",
    95: "an uncontained memory error: every program is hurt",
    109: "a context switch timed out",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    140: "an unrecovered memory error",
    143: "the GPU's initialisation failed",
    154: "the driver wants the GPU to be reset or the machine to be rebooted",
    158: "a fatal timeout inside the GPU",
}
NOTED_XIDS = frozenset({63, 92})  # nothing happens


@dataclass(frozen=True, slots=True)
class Cause:
    """One code, in words."""

    code: str
    means: str
    who: str  # must act: orchestrator, provider, worker, operator, capacity, budget or nobody
    then: str  # what happens next by itself
    fix: str

    def about(self, *, worker: str | None = None, task: str | None = None) -> "Cause":
        """The same with the ids in the fix."""
        fix = self.fix.replace("<worker>", worker or "<worker>").replace("<task>", task or "<task>")
        return replace(self, fix=fix)


def of(code: str, subcause: str | None = None) -> Cause | None:
    """A failure code's meaning, sharpened by its sub-cause; None for a code that nobody has explained."""
    xid = XID.fullmatch(code)
    if xid:
        return _xid(code, int(xid[1]))
    row = BRING_UP.get(code) or GPU.get(code) or TASKS.get(code)
    if row is None:
        return None
    cause = _made(code, row)
    sharper = SUBCAUSES.get((code, (subcause or "").upper()))
    return replace(cause, means=sharper[0], fix=sharper[1]) if sharper else cause


def ending(exit_cause: str) -> Cause | None:
    """Why a worker ended."""
    row = ENDINGS.get(exit_cause)
    return _made(exit_cause, row) if row else None


def silence(subcause: str | None) -> Cause:
    """What NO_HEARTBEAT means of a worker that had been promoted, by what the last look at its pod showed."""
    return _made(FailureCode.NO_HEARTBEAT, SILENCES[subcause or ""])


def waiting(on: str) -> Cause | None:
    """What it means to wait for somebody."""
    row = WAITS.get(on)
    return _made(on, row) if row else None


def lookup(word: str) -> tuple[Cause, ...]:
    """Every meaning of a word, as an operator may type it; empty if there is none."""
    found = [cause for cause in (of(word.upper()), ending(word.lower()), waiting(word.lower())) if cause]
    exact = [cause for cause in found if cause.code == word]  # STALE_CODE and stale_code are two things
    return tuple(exact or found)


def codes() -> tuple[str, ...]:
    """Every code in the tables, without the XIDs."""
    return (*BRING_UP, *GPU, *TASKS)


def _made(code: str, row: Sentence) -> Cause:
    means, who, then, fix = row
    return Cause(code, means, who, then, fix)


def _xid(code: str, number: int) -> Cause:
    means = f"The GPU's driver reported Xid {number}: {XIDS.get(number, 'not in our list of known numbers')}."
    if number in NOTED_XIDS:
        return Cause(code, means, NOBODY, "nothing: it is only noted", MORE)
    if number in REPEATABLE_XIDS:
        return Cause(code, means, PROVIDER, f"only noted the first time; when it comes again: {AVOIDED}", MORE)
    if number in FATAL_XIDS | {RECOVERY_XID}:
        return Cause(code, means, PROVIDER, AVOIDED, MORE)
    return Cause(code, means, OPERATOR, "the program is started once more; the pod stays", LOGS)
