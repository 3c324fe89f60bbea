"""What a pod's own tools said, read and judged: disk, inodes, clock and cgroup limits here, GPUs in `gpus.py`.

A probe's output is sections, each a line `=== <name> <exit status>` and what the tool printed. An answer that cannot be
read is unknown: it is written down as such, and is neither good nor bad.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.failures import FailureCode

HEAD = re.compile(r"=== ([^ ]+) (\d{1,9})")
TIMED_OUT = 124  # what timeout(1) says of a program that it had to end
KIB, GIB = 1024, 1024**3
DISK_NEEDED_BYTES = 5 * GIB  # U6 of the guards; on a disk smaller than twice that, half of it
DISK_FULL, DISK_TIGHT = 0.97, 0.90  # shares in use: too full, worth a word
INODES_FULL, INODES_TIGHT = 0.98, 0.90  # U7
SKEW_S = 30.0
MEMORY_TIGHT = 0.85  # U9, of the cgroup's limit
UNLIMITED_BYTES = 2**60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class Section:
    """One tool's answer."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        """Whether the tool itself was content."""
        return self.status == 0

    @property
    def said(self) -> str:
        """Its answer in one line, for people."""
        if self.status == TIMED_OUT:
            return "it did not answer in time"
        return (" ".join(self.text.split()) or f"exit status {self.status}")[:300]


Sections = Mapping[str, Section]
NOTHING = Section(TIMED_OUT, "")  # no section: the probe was ended before that tool had answered


@dataclass(slots=True)
class Verdict:
    """What is known, what is not, what is worth a word, and the first thing that rules the pod out."""

    facts: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fault: tuple[FailureCode, str] | None = None

    def blame(self, code: FailureCode, why: str) -> None:
        """Rule the pod out; the first reason stays."""
        self.fault = self.fault or (code, why)

    @property
    def evidence(self) -> dict[str, Any]:
        """What goes into the attempt's row."""
        named = {"unknown": sorted(self.unknown), "warnings": self.warnings}
        return self.facts | {name: value for name, value in named.items() if value}


def sections(output: bytes) -> dict[str, Section]:
    """A probe's output, by section; what comes before the first head is no section."""
    found: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in output.decode("utf-8", "replace").splitlines():
        head = HEAD.fullmatch(line.rstrip())
        if head:
            lines = []
            found[head[1]] = (int(head[2]), lines)
        else:
            lines.append(line)
    return {name: Section(status, "\n".join(said).strip()) for name, (status, said) in found.items()}


def platform(found: Sections, asked_at_s: float, answered_at_s: float) -> Verdict:
    """Judge disk, inodes and clock; note the cgroup's limits. The times are ours, epoch seconds around the probe."""
    verdict = Verdict()
    _disk(found, verdict)
    _inodes(found, verdict)
    _clock(found, asked_at_s, answered_at_s, verdict)
    _cgroup(found, verdict)
    return verdict


def _disk(found: Sections, verdict: Verdict) -> None:
    row = _df(found.get("disk", NOTHING))
    if row is None:
        verdict.unknown.append("disk")
        return
    total, used, free = (value * KIB for value in row)
    share = used / (used + free) if used + free else 0.0
    verdict.facts |= {"disk_free_bytes": free, "disk_total_bytes": total, "disk_used": round(share, 3)}
    needed = min(DISK_NEEDED_BYTES, total / 2)
    if free < needed or share >= DISK_FULL:
        verdict.blame(FailureCode.DISK, f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free, {share:.0%} in use")
    elif share >= DISK_TIGHT:
        verdict.warnings.append(f"the disk is {share:.0%} full")


def _inodes(found: Sections, verdict: Verdict) -> None:
    row = _df(found.get("inodes", NOTHING))
    if row is None or row[0] == 0:  # some filesystems (btrfs, overlays of them) count none
        verdict.unknown.append("inodes")
        return
    total, used, _ = row
    verdict.facts |= {"inodes_total": total, "inodes_used": round(used / total, 3)}
    if used / total >= INODES_FULL:
        verdict.blame(FailureCode.INODES, f"{used} of {total} inodes are in use")
    elif used / total >= INODES_TIGHT:
        verdict.warnings.append(f"{used / total:.0%} of the inodes are in use")


def _clock(found: Sections, asked_at_s: float, answered_at_s: float, verdict: Verdict) -> None:
    """The pod told its time twice, whole seconds, between our asking and its answer: that bounds its offset."""
    first, last = (_whole(found.get(name, NOTHING).text) for name in ("clock_first", "clock_last"))
    if first is None or last is None:
        verdict.unknown.append("clock")
        return
    most, least = first + 1 - asked_at_s, last - answered_at_s
    verdict.facts["clock_skew_s"] = round((most + least) / 2, 1)
    if least > SKEW_S or most < -SKEW_S:
        verdict.blame(FailureCode.CLOCK_SKEW, f"the pod's clock is off by {(most + least) / 2:+.0f} s")


def _cgroup(found: Sections, verdict: Verdict) -> None:
    """Memory, CPU and process limits, of cgroup v2 or v1; recorded, never judged beyond a word."""
    text = {name.removeprefix("cgroup/"): section.text for name, section in found.items() if name.startswith("cgroup/")}
    limit = _limit(text.get("memory.max") or text.get("memory/memory.limit_in_bytes"))
    used = _whole(text.get("memory.current") or text.get("memory/memory.usage_in_bytes") or "")
    verdict.facts |= {
        "cgroup": 2 if "memory.max" in text else 1 if text else None,
        "memory_limit_bytes": limit,
        "memory_used_bytes": used,
        "cpus": _cpus(text),
        "pids_limit": _limit(text.get("pids.max") or text.get("pids/pids.max")),
    }
    if not text:
        verdict.unknown.append("cgroup")
    if limit and used and used / limit > MEMORY_TIGHT:
        verdict.warnings.append(f"{used / limit:.0%} of the memory limit is in use before anything runs")


def _cpus(text: Mapping[str, str]) -> float | None:
    """CPUs of the slice; None without a limit."""
    quota, _, period = text.get("cpu.max", "").partition(" ")
    if not period:
        quota, period = text.get("cpu/cpu.cfs_quota_us", ""), text.get("cpu/cpu.cfs_period_us", "")
    micros, of_micros = _whole(quota), _whole(period)
    return round(micros / of_micros, 2) if micros and of_micros and micros > 0 else None


def _limit(text: str | None) -> int | None:
    """A cgroup's limit; None where there is none, or none that can be read."""
    value = _whole(text or "")
    return value if value is not None and 0 <= value < UNLIMITED_BYTES else None


def _df(section: Section) -> tuple[int, int, int] | None:
    """(total, used, free) of the last line that `df -P` printed, in its unit."""
    words = section.text.splitlines()[-1].split() if section.ok and section.text else []
    numbers = [_whole(word) for word in words[1:4]]
    if len(numbers) != 3 or None in numbers:  # noqa: PLR2004
        return None
    return numbers[0] or 0, numbers[1] or 0, numbers[2] or 0


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None
