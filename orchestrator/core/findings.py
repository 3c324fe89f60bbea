"""Findings: what an agent reports of the machine that it runs on, and the catalogue of their codes.

The agent sends {u, code, severity, since, evidence} records in its heartbeat (`worker/findings.py` has its rules). A
record counts only if the catalogue has its code with the same severity. Any other record is *unknown*: it is shown and
never leads to an action. So is a signal that the agent could not read several times in a row ({signal: why}).
`core/guards.py` decides what follows from a finding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any

from orchestrator.core.failures import FailureCode
from orchestrator.core.meanings import LOGS, MORE, NOBODY, OPERATOR, PROVIDER, Meaning
from orchestrator.core.xids import XIDS, XidClass, xid_meaning
from worker.protocol import FINDINGS, UNKNOWN

MAX_FINDINGS = 32
MAX_SIGNALS = 16
CODE_CHARS, EVIDENCE_CHARS = 64, 200
UNREAD, UNREADABLE = "SIGNAL_LOST", "SIGNAL_UNKNOWN"  # a signal that a machine with a GPU gives; any other one
UNCHECKED = "GPU_UNCHECKED"
ALWAYS_READ = frozenset({"nvidia_smi", "monitor"})  # signals that every machine with a GPU gives
NO_PROGRAM = "No such file"  # nvidia-smi is not installed: that is no change, and bring-up decides about it
SHOWN = "nothing: it is only shown"
DISK_ROOM = "raise RUNPOD_CONTAINER_DISK_GB, or let the handlers delete their files"


class Severity(StrEnum):
    """What a finding means for its worker."""

    REPLACE = "C"
    BLOCK = "H"  # it claims no tasks
    WARN = "M"
    NOTE = "I"
    UNKNOWN = "?"

    @property
    def blocks(self) -> bool:
        """Whether the worker claims no tasks while it lasts."""
        return self in (Severity.REPLACE, Severity.BLOCK)


@dataclass(frozen=True, slots=True)
class Guard:
    """One code of the catalogue."""

    u: int  # its row in docs/gpu-guards.md
    severity: Severity
    meaning: Meaning
    code: FailureCode | None = None  # of the worker's end; None: the finding never ends a worker


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """One condition of a machine, as its agent reports it now."""

    code: str
    severity: Severity
    since: datetime | None
    evidence: str
    guard: Guard | None = None  # None if the severity is unknown

    @property
    def text(self) -> str:
        """The code and the evidence, for a reason."""
        return f"{self.code}: {self.evidence}" if self.evidence else self.code


def findings_of(health: Any) -> tuple[GuardFinding, ...]:
    """Decode the findings in an agent's health. An unreadable record affects no other. No code: no finding.

    Signals that it cannot read come last, each as a warning or a note.
    """
    if not isinstance(health, Mapping):
        return ()
    records, signals = health.get(FINDINGS), health.get(UNKNOWN)
    found = [_finding_of(record) for record in records[:MAX_FINDINGS]] if isinstance(records, list) else []
    if isinstance(signals, Mapping):
        found += [_unread(*signal) for signal in islice(signals.items(), MAX_SIGNALS)]
    return tuple(one for one in found if one is not None)


def _unread(signal: Any, why: Any) -> GuardFinding | None:
    if not isinstance(signal, str) or not isinstance(why, str) or not _clean(signal, CODE_CHARS):
        return None
    code = UNREAD if signal in ALWAYS_READ and NO_PROGRAM not in why else UNREADABLE
    return GuardFinding(code, GUARDS[code].severity, None, _clean(f"{signal}: {why}", EVIDENCE_CHARS), GUARDS[code])


def _finding_of(record: Any) -> GuardFinding | None:
    code = record.get("code") if isinstance(record, Mapping) else None
    if not isinstance(code, str) or not _clean(code, CODE_CHARS):
        return None
    guard = GUARDS.get(code)
    if guard is not None and guard.severity != record.get("severity"):
        guard = None
    severity = guard.severity if guard else Severity.UNKNOWN
    evidence = record.get("evidence")
    cleaned = _clean(evidence, EVIDENCE_CHARS) if isinstance(evidence, str) else ""
    return GuardFinding(_clean(code, CODE_CHARS), severity, _time(record.get("since")), cleaned, guard)


def _clean(text: str, most: int) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()


def _time(seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(seconds), UTC) if isinstance(seconds, int | float) else None
    except (OverflowError, OSError, ValueError):
        return None


def _ends(u: int, severity: Severity, code: FailureCode) -> Guard:
    """A finding that ends its worker with this code: at once, or when it lasts."""
    return Guard(u, severity, code.row, code)


def _warns(u: int, means: str, who: str, fix: str) -> Guard:
    return Guard(u, Severity.WARN, Meaning(means, who, SHOWN, fix))


def _notes(u: int, means: str, fix: str) -> Guard:
    return Guard(u, Severity.NOTE, Meaning(means, NOBODY, SHOWN, fix))


def _xid(number: int) -> Guard:
    kind = XIDS[number][0]
    if kind is XidClass.FATAL:
        return _ends(22, Severity.REPLACE, FailureCode.xid(number))
    return Guard(22, Severity.NOTE if kind is XidClass.NOTED else Severity.WARN, xid_meaning(number))


# fmt: off
GUARDS: Mapping[str, Guard] = MappingProxyType({
    "DISK_FULL": _ends(6, Severity.BLOCK, FailureCode.DISK_FULL),
    "DISK_TIGHT": _warns(6, "The pod's disk is 90 % full.", OPERATOR, DISK_ROOM),
    "VOLUME_FULL": _warns(
        6, "Another volume of the pod is full.", OPERATOR, "delete what is not needed on the volume in the evidence"),
    "INODES_FULL": _ends(7, Severity.BLOCK, FailureCode.INODES_FULL),
    "INODES_TIGHT": _warns(7, "90 % of the inodes of the pod's disk are in use.", OPERATOR, DISK_ROOM),
    "VOLUME_SLOW": _warns(
        8, "The network volume is slow.", OPERATOR, "let the handler copy its data to the pod's disk first"),
    "MEMORY_TIGHT": _warns(
        9, "The pod uses more than 85 % of its memory limit.", OPERATOR,
        "raise RUNPOD_MIN_MEMORY_GB, or let the handler start fewer loader processes"),
    "OOM_KILLED": _ends(9, Severity.BLOCK, FailureCode.OOM_KILLED),
    "VRAM_LOW": _ends(10, Severity.BLOCK, FailureCode.VRAM_LOW),
    "GPU_MEMORY_HELD": _ends(11, Severity.BLOCK, FailureCode.GPU_MEMORY_HELD),
    "GPU_UNDERFED": _notes(
        21, "The GPU reports that it is busy, but its clock or power is low: it waits for data.", LOGS),
    "GPU_LOST": _ends(22, Severity.REPLACE, FailureCode.GPU_LOST),
    "GPU_COUNT_DROPPED": _ends(22, Severity.REPLACE, FailureCode.GPU_COUNT_DROPPED),
    "GPU_RECOVERY": _ends(22, Severity.REPLACE, FailureCode.GPU_RECOVERY),
    "GPU_HUNG": _ends(22, Severity.REPLACE, FailureCode.GPU_HUNG),
    UNCHECKED: Guard(22, Severity.BLOCK, Meaning(
        "The driver gives no answer, so no further task begins before a check.", PROVIDER,
        "the running task goes on; then the driver is checked, and if that fails too, the worker is replaced", MORE),
        FailureCode.GPU_HUNG),
    UNREAD: Guard(22, Severity.WARN, Meaning(
        "The state of the GPUs is unknown: the agent gets no answer about them.", PROVIDER,
        "if that lasts, the next task waits for a check, and the worker is replaced if the check fails", MORE)),
    UNREADABLE: _notes(22, "The agent cannot read this signal on this machine.", MORE),
    "ECC_UNCORRECTED": _ends(22, Severity.REPLACE, FailureCode.ECC_UNCORRECTED),
    "ECC_CONTAINED": _warns(
        22, "A GPU had an uncorrected memory error that affected one program only.", PROVIDER, MORE),
    **{f"XID_{number}": _xid(number) for number, (kind, _) in XIDS.items() if kind is not XidClass.RECOVERY},
    "XID_74_REPEATED": _ends(22, Severity.REPLACE, FailureCode.xid(74)),
    "XID_OTHER": _notes(22, "The GPU's driver reported an Xid that is not in our table.", MORE),
    "XID_FOREIGN": _notes(22, "The GPU's driver reported an Xid of a GPU that is not this pod's.", MORE),
    "GPU_HOT": _warns(23, "A GPU is hot, and its clock is lowered because of it.", PROVIDER, MORE),
    "GPU_OVERHEATED": _ends(23, Severity.BLOCK, FailureCode.GPU_OVERHEATED),
    "GPU_STARVED": _notes(
        24, "The GPU is busy only in part, and the task is slower than usual: the GPU waits for data.",
        "let the handler load data with more processes, if the pod's memory allows it"),
    "MANY_SMALL_FILES": _warns(
        25, "A task stores many small files, each of which costs two requests to S3.", OPERATOR,
        "let the handler pack its files before it stores them"),
    "TORCH_ARCH": _ends(28, Severity.BLOCK, FailureCode.TORCH_ARCH),
    "LOCK_DRIFT": _warns(
        29, "Installed packages are not those of the lock file.", OPERATOR,
        "set WORKER_SETUP_COMMAND to an installation from the lock file"),
    "STORE_UNREACHED": _ends(35, Severity.BLOCK, FailureCode.STORE_UNREACHED),
    "CPU_BOUND": _notes(38, "The task works on the CPU and leaves the GPU idle.", LOGS),
    "TASK_STALLED": _warns(
        38, "The task reports nothing, writes nothing, and uses neither CPU nor GPU.", OPERATOR,
        "TASK_STUCK_TIMEOUT_SEC says when a stuck task is ended; " + LOGS),
    "CPU_THROTTLED": _warns(
        40, "The pod's CPU quota stops the task while the GPU waits.", OPERATOR,
        "raise RUNPOD_MIN_VCPU, or let the handler start fewer threads"),
    "NOISY_NEIGHBOUR": _notes(41, "Other pods on the host keep its CPUs busy.", MORE),
    "CODE_CHANGED": _ends(42, Severity.BLOCK, FailureCode.CODE_CHANGED),
})
# fmt: on
