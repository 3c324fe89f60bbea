"""Reads files of the pod's own cgroup, version 2 or 1. A file that cannot be read is unknown (None)."""

from __future__ import annotations

import os
import re

READ_BYTES = 64 << 10  # bytes of one file


def read_text(path: str) -> str | None:
    """Return the beginning of a small file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def boot_id(root: str) -> str | None:
    """Return the id of the host's boot. A different id than before means that the host was restarted (guards U3)."""
    text = (read_text(os.path.join(root, "proc/sys/kernel/random/boot_id")) or "").strip()
    return text if re.fullmatch(r"[0-9a-f-]{36}", text) else None


def pairs(text: str | None) -> dict[str, int]:
    """Return the lines `name number` of a file as a dict."""
    words = (line.split() for line in (text or "").splitlines())
    return {two[0]: int(two[1]) for two in words if len(two) == 2 and re.fullmatch(r"[0-9]{1,20}", two[1])}  # noqa: PLR2004


def whole(text: str | None) -> int | None:
    """Return the number in a file; None if there is none."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


class Cgroup:
    """The cgroup files under one root directory; tests use another root than `/`."""

    def __init__(self, root: str) -> None:
        self._top = os.path.join(root, "sys/fs/cgroup")
        self._own: dict[str, str] = {}  # controller -> our path; "" is the unified hierarchy
        for line in (read_text(os.path.join(root, "proc/self/cgroup")) or "").splitlines():
            fields = line.split(":", 2)
            if len(fields) == 3:  # noqa: PLR2004
                self._own.update({name: fields[2].lstrip("/") for name in fields[1].split(",")})
        self._found: dict[str, str] = {}  # file of version 2 -> the path that worked last

    def read(self, unified: str, controller: str, legacy: str) -> str | None:
        """Return the text of a file: `unified` of version 2, or `legacy` of this controller of version 1.

        A container often sees its own cgroup as the top directory, although /proc/self/cgroup has another path.
        """
        if unified in self._found:
            text = read_text(self._found[unified])
            if text is not None:
                return text
        v1 = os.path.join(self._top, controller)
        for path in (
            os.path.join(self._top, self._own.get("", ""), unified),
            os.path.join(self._top, unified),
            os.path.join(v1, self._own.get(controller, ""), legacy),
            os.path.join(v1, legacy),
        ):
            text = read_text(path)
            if text is not None:
                self._found[unified] = path
                return text
        return None

    def cpus(self) -> float | None:
        """Return the processors of the pod's slice; None without a quota."""
        words = (self.read("cpu.max", "cpu", "cpu.cfs_quota_us") or "").split()
        quota = whole(words[0]) if words else None
        period = whole(words[1] if len(words) > 1 else self.read("cpu.period", "cpu", "cpu.cfs_period_us"))
        return quota / period if quota and period and quota > 0 and period > 0 else None

    def oom_kills(self) -> int | None:
        """Return how many processes the OOM killer has ended in this cgroup."""
        return pairs(self.read("memory.events", "memory", "memory.oom_control")).get("oom_kill")
