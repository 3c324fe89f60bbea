"""The meaning of each code: its text, who must act, what happens next by itself, and the fix.

`of(code)` answers for every failure code, also XID_<n>; `finding(code)` for the findings of agents; `ending(cause)` for
every exit cause; `waiting(on)` for each party that a worker can wait for. The texts are rows of the catalogues in
`orchestrator/core`.
"""

import re
from dataclasses import dataclass, replace

from orchestrator.core.clusters.diagnoses import Diagnosis
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import SILENCES, FailureCode
from orchestrator.core.findings import GUARDS
from orchestrator.core.meanings import Meaning
from orchestrator.core.states import WaitingOn
from orchestrator.core.task_failures import TaskFailure

TEXT_CHARS = 1_000  # of a question
XID_LINE = re.compile(r"\bXid[ :#]{0,3}(?:\([^)]{1,48}\):?)?[ :=]{0,3}(\d{1,4})\b", re.IGNORECASE)
TASKS: dict[str, Meaning] = {str(code): code.row for code in TaskFailure}
ENDINGS: dict[str, Meaning] = {str(cause): cause.row for cause in ExitCause}
CLUSTERS: dict[str, Meaning] = {str(code): code.row for code in Diagnosis}
WAITS: dict[str, Meaning] = {str(on): on.row for on in WaitingOn}


@dataclass(frozen=True, slots=True)
class Cause:
    """The meaning of one code."""

    code: str
    means: str
    who: str  # must act: orchestrator, provider, worker, operator, capacity, budget or nobody
    then: str  # what happens next by itself
    fix: str

    def about(self, *, worker: str | None = None, task: str | None = None) -> "Cause":
        """Return the same with the ids filled into the fix."""
        fix = self.fix.replace("<worker>", worker or "<worker>").replace("<task>", task or "<task>")
        return replace(self, fix=fix)


def of(code: str, subcause: str | None = None) -> Cause | None:
    """Return the meaning of a failure code, made more precise by its sub-cause. None for a code of no catalogue."""
    if code in TASKS:
        return _made(code, TASKS[code])
    try:
        row = FailureCode(code).row
    except ValueError:
        return None
    cause = _made(code, row)
    precise = row.subcauses.get((subcause or "").upper())
    return replace(cause, means=precise[0], fix=precise[1]) if precise else cause


def named(code: str, subcause: str | None) -> str:
    """Return the code with its sub-cause: `AUTH_FAILED/REFUSED`."""
    return f"{code}/{subcause}" if subcause else code


def finding(code: str) -> Cause | None:
    """Return the meaning of an agent's finding about its machine."""
    return _made(code, GUARDS[code].meaning) if code in GUARDS else None


def ending(exit_cause: str) -> Cause | None:
    """Return why a worker ended."""
    return _made(exit_cause, ENDINGS[exit_cause]) if exit_cause in ENDINGS else None


def silence(subcause: str | None) -> Cause:
    """Return the meaning of NO_HEARTBEAT for a promoted worker, by what the final snapshot of its pod shows."""
    return _made(FailureCode.NO_HEARTBEAT, SILENCES[subcause or ""])


def of_cluster(code: str) -> Cause | None:
    """Return the meaning of a diagnosis of a cluster."""
    return _made(code, CLUSTERS[code]) if code in CLUSTERS else None


def waiting(on: str) -> Cause | None:
    """Return what it means to wait for this party."""
    return _made(on, WAITS[on]) if on in WAITS else None


def lookup(word: str) -> tuple[Cause, ...]:
    """Return every meaning of a word that an operator typed; empty if there is none."""
    code = of(word.upper()) or finding(word.upper()) or of_cluster(word.upper())
    found = [cause for cause in (code, ending(word.lower()), waiting(word.lower())) if cause]
    exact = [cause for cause in found if cause.code == word]  # STALE_CODE and stale_code are two different codes
    return tuple(exact or found)


def xid_in(text: str) -> tuple[Cause, ...]:
    """Return the meaning of the Xid that a line of the kernel log, or a question, names; empty if there is none."""
    found = XID_LINE.search(text[:TEXT_CHARS])
    cause = of(f"XID_{found[1]}") if found else None
    return (cause,) if cause else ()


def codes() -> tuple[str, ...]:
    """Return every failure code of the catalogues, without the Xids."""
    return (*FailureCode, *TaskFailure, *Diagnosis)


def _made(code: str, row: Meaning) -> Cause:
    return Cause(str(code), row.means, row.who, row.then, row.fix)
