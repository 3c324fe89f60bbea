"""What each code means, who must act, what happens by itself, and what to paste.

`of(code)` answers for every failure code, XID_<n> included, `ending(cause)` for every exit cause, `waiting(on)` for
whom a worker can wait for. The texts are the rows of the catalogues in `orchestrator/core`.
"""

from dataclasses import dataclass, replace

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import SILENCES, FailureCode
from orchestrator.core.meanings import Meaning
from orchestrator.core.states import WaitingOn
from orchestrator.core.task_failures import TaskFailure

TASKS: dict[str, Meaning] = {str(code): code.row for code in TaskFailure}
ENDINGS: dict[str, Meaning] = {str(cause): cause.row for cause in ExitCause}
WAITS: dict[str, Meaning] = {str(on): on.row for on in WaitingOn}


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
    """A failure code's meaning, made more precise by its sub-cause; None for a code that is in no catalogue."""
    if code in TASKS:
        return _made(code, TASKS[code])
    try:
        row = FailureCode(code).row
    except ValueError:
        return None
    cause = _made(code, row)
    precise = row.subcauses.get((subcause or "").upper())
    return replace(cause, means=precise[0], fix=precise[1]) if precise else cause


def ending(exit_cause: str) -> Cause | None:
    """Why a worker ended."""
    return _made(exit_cause, ENDINGS[exit_cause]) if exit_cause in ENDINGS else None


def silence(subcause: str | None) -> Cause:
    """What NO_HEARTBEAT means for a worker that had been promoted, by what the final snapshot of its pod showed."""
    return _made(FailureCode.NO_HEARTBEAT, SILENCES[subcause or ""])


def waiting(on: str) -> Cause | None:
    """What it means to wait for somebody."""
    return _made(on, WAITS[on]) if on in WAITS else None


def lookup(word: str) -> tuple[Cause, ...]:
    """Every meaning of a word, as an operator may type it; empty if there is none."""
    found = [cause for cause in (of(word.upper()), ending(word.lower()), waiting(word.lower())) if cause]
    exact = [cause for cause in found if cause.code == word]  # STALE_CODE and stale_code are two things
    return tuple(exact or found)


def codes() -> tuple[str, ...]:
    """Every failure code in the catalogues, without the Xids."""
    return (*FailureCode, *TaskFailure)


def _made(code: str, row: Meaning) -> Cause:
    return Cause(str(code), row.means, row.who, row.then, row.fix)
