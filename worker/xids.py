"""NVIDIA's Xid errors in the kernel log (guards U22)."""

from __future__ import annotations

import re

XID_SEVERITIES: dict[int, str] = {
    **dict.fromkeys((48, 62, 64, 79, 95, 109, 119, 120, 140, 143, 158), "C"),
    **dict.fromkeys((13, 31, 43, 45, 69, 74, 94), "M"),  # a second Xid 74 has severity C
    **dict.fromkeys((63, 92), "I"),
}
LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]{1,32})[^)]{0,32}\): (?P<number>\d{1,9})\b(?P<text>.{0,120})"
)
MAX_UNCLAIMED = 64  # lines
EVENT_S = 10.0  # seconds in which lines of one number belong to one event: NVLink errors name each link


class Xid:
    """The events of one number since the agent started."""

    def __init__(self, at_s: float) -> None:
        self.since_s = self.last_s = at_s
        self.events = 1
        self.text = ""


class XidLog:
    """The Xids of our GPUs, those of other GPUs, and those that are not in the table."""

    def __init__(self) -> None:
        self.ours: dict[int, Xid] = {}
        self.others: dict[str, Xid] = {}  # XID_OTHER, XID_FOREIGN
        self.unclaimed: list[tuple[str, float]] = []  # lines and times, while our addresses are unknown

    def add(self, line: str, at_s: float, buses: set[str]) -> None:
        """Take one line of the kernel log. `buses`: the PCI addresses of our GPUs, empty while they are unknown.

        All containers of a host share the log: a line that names another GPU does not count for this pod. While our
        addresses are unknown, a line waits for them.
        """
        found = LINE.search(line)
        if not found:
            return
        if not buses:
            self.unclaimed = [*self.unclaimed, (line, at_s)][-MAX_UNCLAIMED:]
            return
        bus, number = bus_of(found["bus"]), int(found["number"])
        text = f"NVRM: Xid ({found['bus']}): {number}{found['text']}"
        if bus not in buses:
            self._count(self.others, "XID_FOREIGN", at_s, text)
        elif number not in XID_SEVERITIES:
            self._count(self.others, "XID_OTHER", at_s, text)
        else:
            self._count(self.ours, number, at_s, text)

    def claim(self, buses: set[str]) -> None:
        """Judge the lines that wait, once our addresses are known."""
        waiting, self.unclaimed = self.unclaimed, []
        for line, at_s in waiting:
            self.add(line, at_s, buses)

    @staticmethod
    def _count(events: dict, key: object, at_s: float, text: str) -> None:  # type: ignore[type-arg]
        known = events.get(key)
        if known is None:
            known = events[key] = Xid(at_s)
        elif at_s - known.last_s >= EVENT_S:
            known.events += 1
        known.last_s, known.text = at_s, text


def bus_of(text: str) -> str | None:
    """Return the PCI address of nvidia-smi (`00000000:41:00.0`) or the kernel (`0000:41:00`) in one form.

    Domain, bus, device.
    """
    parts = re.fullmatch(r"(?:([0-9A-Fa-f]{1,8}):)?([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})(?:\.\d)?", text.strip())
    return ":".join(f"{int(part or '0', 16):x}" for part in parts.groups()) if parts else None
