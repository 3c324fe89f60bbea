"""Checks of a pod's machine from the output of its tools: disk, inodes, clock and cgroup limits. GPUs are in `gpus.py`.

A probe's output has sections. Each begins with a line `=== <name> <exit status>`, followed by the tool's output. An
unreadable answer is recorded as unknown, which is neither good nor bad.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.failures import FailureCode

HEAD = re.compile(r"=== ([^ ]+) (\d{1,9})")
TIMED_OUT = 124  # the exit status of timeout(1) for a program that it ended
KIB, GIB = 1024, 1024**3
DISK_NEEDED_BYTES = 5 * GIB  # guard U6; on a disk smaller than twice that, half of the disk
DISK_FULL, DISK_TIGHT = 0.97, 0.90  # shares in use: a fault, a warning
INODES_FULL, INODES_TIGHT = 0.98, 0.90  # U7
SKEW_S = 30.0
MEMORY_TIGHT = 0.85  # U9, of the cgroup's limit
UNLIMITED_BYTES = 2**60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """One tool's answer."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        """Whether the tool succeeded."""
        return self.status == 0

    @property
    def summary(self) -> str:
        """Return its answer as one line."""
        if self.status == TIMED_OUT:
            return "it did not answer in time"
        return (" ".join(self.text.split()) or f"exit status {self.status}")[:300]


Sections = Mapping[str, ToolOutput]
NOTHING = ToolOutput(TIMED_OUT, "")  # for a missing section: the probe was ended before this tool had answered


@dataclass(slots=True)
class CheckResult:
    """The result of a check: facts, unknown values, warnings, and the first fault that rules the pod out."""

    facts: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fault: tuple[FailureCode, str] | None = None

    def blame(self, code: FailureCode, why: str) -> None:
        """Rule the pod out. The first fault is kept."""
        self.fault = self.fault or (code, why)

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the evidence for the attempt's row."""
        named = {"unknown": sorted(self.unknown), "warnings": self.warnings}
        return self.facts | {name: value for name, value in named.items() if value}


def sections(output: bytes) -> dict[str, ToolOutput]:
    """Split a probe's output into sections. Text before the first head is dropped."""
    found: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in output.decode("utf-8", "replace").splitlines():
        head = HEAD.fullmatch(line.rstrip())
        if head:
            lines = []
            found[head[1]] = (int(head[2]), lines)
        else:
            lines.append(line)
    return {name: ToolOutput(status, "\n".join(lines).strip()) for name, (status, lines) in found.items()}


def platform(found: Sections, asked_at_s: float, answered_at_s: float) -> CheckResult:
    """Check disk, inodes and clock, and note the cgroup's limits.

    The times are epoch seconds before and after the probe.
    """
    result = CheckResult()
    _disk(found, result)
    _inodes(found, result)
    _clock(found, asked_at_s, answered_at_s, result)
    _cgroup(found, result)
    return result


def _disk(found: Sections, result: CheckResult) -> None:
    row = _df(found.get("disk", NOTHING))
    if row is None:
        result.unknown.append("disk")
        return
    total, used, free = (value * KIB for value in row)
    share = used / (used + free) if used + free else 0.0
    result.facts |= {"disk_free_bytes": free, "disk_total_bytes": total, "disk_used": round(share, 3)}
    needed = min(DISK_NEEDED_BYTES, total / 2)
    if free < needed or share >= DISK_FULL:
        result.blame(FailureCode.DISK, f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free, {share:.0%} in use")
    elif share >= DISK_TIGHT:
        result.warnings.append(f"the disk is {share:.0%} full")


def _inodes(found: Sections, result: CheckResult) -> None:
    row = _df(found.get("inodes", NOTHING))
    if row is None or row[0] == 0:  # some file systems (btrfs, and overlays on it) have no inode count
        result.unknown.append("inodes")
        return
    total, used, _ = row
    result.facts |= {"inodes_total": total, "inodes_used": round(used / total, 3)}
    if used / total >= INODES_FULL:
        result.blame(FailureCode.INODES, f"{used} of {total} inodes are in use")
    elif used / total >= INODES_TIGHT:
        result.warnings.append(f"{used / total:.0%} of the inodes are in use")


def _clock(found: Sections, asked_at_s: float, answered_at_s: float, result: CheckResult) -> None:
    """Check the clock. The pod printed its time twice, in whole seconds, during the probe: this bounds its offset."""
    first, last = (_whole(found.get(name, NOTHING).text) for name in ("clock_first", "clock_last"))
    if first is None or last is None:
        result.unknown.append("clock")
        return
    most, least = first + 1 - asked_at_s, last - answered_at_s
    result.facts["clock_skew_s"] = round((most + least) / 2, 1)
    if least > SKEW_S or most < -SKEW_S:
        result.blame(FailureCode.CLOCK_SKEW, f"the pod's clock is off by {(most + least) / 2:+.0f} s")


def _cgroup(found: Sections, result: CheckResult) -> None:
    """Record the limits of memory, CPU and processes (cgroup v2 or v1). They can only cause a warning."""
    text = {name.removeprefix("cgroup/"): section.text for name, section in found.items() if name.startswith("cgroup/")}
    limit = _limit(text.get("memory.max") or text.get("memory/memory.limit_in_bytes"))
    used = _whole(text.get("memory.current") or text.get("memory/memory.usage_in_bytes") or "")
    result.facts |= {
        "cgroup": 2 if "memory.max" in text else 1 if text else None,
        "memory_limit_bytes": limit,
        "memory_used_bytes": used,
        "cpus": _cpus(text),
        "pids_limit": _limit(text.get("pids.max") or text.get("pids/pids.max")),
    }
    if not text:
        result.unknown.append("cgroup")
    if limit and used and used / limit > MEMORY_TIGHT:
        result.warnings.append(f"{used / limit:.0%} of the memory limit is in use before anything runs")


def _cpus(text: Mapping[str, str]) -> float | None:
    """Return the number of CPUs, or None without a limit."""
    quota, _, period = text.get("cpu.max", "").partition(" ")
    if not period:
        quota, period = text.get("cpu/cpu.cfs_quota_us", ""), text.get("cpu/cpu.cfs_period_us", "")
    micros, of_micros = _whole(quota), _whole(period)
    return round(micros / of_micros, 2) if micros and of_micros and micros > 0 else None


def _limit(text: str | None) -> int | None:
    """Return a cgroup's limit, or None if there is none or it is unreadable."""
    value = _whole(text or "")
    return value if value is not None and 0 <= value < UNLIMITED_BYTES else None


def _df(section: ToolOutput) -> tuple[int, int, int] | None:
    """Return (total, used, free) from the last line of `df -P`, in its unit."""
    words = section.text.splitlines()[-1].split() if section.ok and section.text else []
    numbers = [_whole(word) for word in words[1:4]]
    if len(numbers) != 3 or None in numbers:  # noqa: PLR2004
        return None
    return numbers[0] or 0, numbers[1] or 0, numbers[2] or 0


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None
