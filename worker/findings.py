"""Findings: what the readings of a pod mean. The rules are pure: they read a window of readings and act on nothing.

host_findings.py and gpu_findings.py have the rules that only the monitor's thread needs.
CODES is the one table of the agent's findings: code -> (number of the guard U, severity). C: replace the pod. H: claim
no tasks. M: warn. I: note. An unknown value (None) ends the run of readings that a rule looks at, so a rule never finds
anything in a signal that cannot be read.
"""

from __future__ import annotations

from .xids import XID_SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from .disk import Disk
    from .readings import MachineReading
    from .window import SmiSample

    Sample = TypeVar("Sample", MachineReading, SmiSample)

SEVERITIES = "CHMI"  # worst first
BLOCKING = "CH"  # the agent claims nothing while it has such a finding
CODES: dict[str, tuple[int, str]] = {
    "DISK_FULL": (6, "H"), "DISK_TIGHT": (6, "M"), "VOLUME_FULL": (6, "M"),
    "INODES_FULL": (7, "H"), "INODES_TIGHT": (7, "M"),
    "VOLUME_SLOW": (8, "M"),
    "MEMORY_TIGHT": (9, "M"), "OOM_KILLED": (9, "H"),
    "VRAM_LOW": (10, "H"),
    "GPU_MEMORY_HELD": (11, "H"),
    "GPU_UNDERFED": (21, "I"),
    "GPU_LOST": (22, "C"), "GPU_COUNT_DROPPED": (22, "C"), "GPU_RECOVERY": (22, "C"),
    "ECC_UNCORRECTED": (22, "C"), "ECC_CONTAINED": (22, "M"),
    "GPU_HUNG": (22, "C"), "GPU_UNCHECKED": (22, "H"),
    **{f"XID_{number}": (22, severity) for number, severity in XID_SEVERITIES.items()},
    "XID_74_REPEATED": (22, "C"), "XID_OTHER": (22, "I"), "XID_FOREIGN": (22, "I"),
    "GPU_HOT": (23, "M"), "GPU_OVERHEATED": (23, "H"),
    "GPU_STARVED": (24, "I"),
    "MANY_SMALL_FILES": (25, "M"),
    "TORCH_ARCH": (28, "H"), "LOCK_DRIFT": (29, "M"),
    "STORE_UNREACHED": (35, "H"),
    "CPU_BOUND": (38, "I"), "TASK_STALLED": (38, "M"),
    "CPU_THROTTLED": (40, "M"),
    "NOISY_NEIGHBOUR": (41, "I"),
    "CODE_CHANGED": (42, "H"),
}  # fmt: skip
MAX_FINDINGS = 32
EVIDENCE_CHARS = 200

MANY_FILES, SOME_FILES, SMALL_BYTES = 10_000, 1_000, 64 << 10


class Found:
    """A condition that holds now, since `since_s` (monotonic seconds)."""

    def __init__(self, code: str, since_s: float, evidence: str) -> None:
        self.code, self.since_s, self.evidence = code, since_s, evidence

    @property
    def severity(self) -> str:
        return CODES[self.code][1]

    @property
    def rank(self) -> tuple[int, int, str]:
        """The worst first."""
        return SEVERITIES.index(self.severity), CODES[self.code][0], self.code


def of_disk(disk: Disk | None, at_s: float) -> list[Found]:
    """U6 and U7: the file system on which tasks run."""
    found = []
    if disk and (disk.is_full or disk.is_tight):
        found.append(Found("DISK_FULL" if disk.is_full else "DISK_TIGHT", at_s, disk.space))
    if disk and (disk.inodes_are_full or disk.inodes_are_tight):
        found.append(Found("INODES_FULL" if disk.inodes_are_full else "INODES_TIGHT", at_s, disk.files))
    return found


def many_small_files(files: int, size_bytes: int, at_s: float) -> Found | None:
    """U25: the outputs of one task are more than 10,000 files, or at least 1,000 files below 64 KiB on average."""
    if files <= MANY_FILES and (files < SOME_FILES or size_bytes >= files * SMALL_BYTES):
        return None
    text = f"a task stored {files} files of {size_bytes // files} bytes on average: pack them into fewer files"
    return Found("MANY_SMALL_FILES", at_s, text)


def trailing(samples: Sequence[Sample], holds: Callable[[Sample], bool]) -> list[Sample]:
    """The newest samples, back to the first for which the condition does not hold; oldest first."""
    run = []
    for one in reversed(samples):
        if not holds(one):
            break
        run.append(one)
    return run[::-1]


def lasts(run: Sequence[Sample], seconds: float) -> bool:
    return bool(run) and run[-1].at_s - run[0].at_s >= seconds


def worst_first(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda one: one.rank)[:MAX_FINDINGS]
