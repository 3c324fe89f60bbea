"""The list of findings in p_health. The monitor's thread and the main thread both write to it."""

from __future__ import annotations

import threading
import time

from . import protocol
from .disk import read_disk
from .findings import BLOCKING, CODES, EVIDENCE_CHARS, of_disk, worst_first
from .texts import in_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState
    from .findings import Found
    from .journal import Journal

RAW_CHARS = 2_000  # characters of evidence before secrets are removed


class FindingList:
    """The present findings.

    Each one keeps the evidence of its beginning, so that p_health stays equal while it lasts.
    """

    def __init__(self, state: AgentState, journal: Journal, disk_path: str) -> None:
        """`disk_path` is a path on the file system on which tasks run."""
        self._state, self._journal, self._disk_path = state, journal, disk_path
        self._lock = threading.Lock()
        self._parts: dict[str, list[Found]] = {}
        self._shown: dict[str, dict[str, Any]] = {}  # by code, worst first; replaced as a whole

    def update(self, part: str, found: list[Found]) -> None:
        """Replace one part of the list."""
        with self._lock:
            self._parts[part] = found
            present = worst_first(one for part in self._parts.values() for one in part)
            fresh = {one.code: self._shown.get(one.code) or self._as_json(one) for one in present}
            for code in fresh.keys() - self._shown.keys():
                self._journal.log("finding_began", **fresh[code])
            for code in self._shown.keys() - fresh.keys():
                self._journal.log("finding_ended", code=code)
            if fresh != self._shown:
                self._publish(fresh)

    def update_disk(self) -> None:
        """Read the disk on which tasks run."""
        self.update("disk", of_disk(read_disk(self._disk_path), time.monotonic()))

    def add_evidence(self, code: str, text: str) -> None:
        """Add text to the evidence of a finding."""
        with self._lock:
            if code in self._shown:
                evidence = self._clean(f"{self._shown[code]['evidence']}; {text}")
                self._publish({**self._shown, code: {**self._shown[code], "evidence": evidence}})

    def codes(self) -> set[str]:
        return set(self._shown)

    def blocking(self) -> str | None:
        """Return why the agent must claim no task; None if it may claim."""
        reasons = [one for one in self._shown.values() if one["severity"] in BLOCKING]
        return f"{reasons[0]['code']}: {reasons[0]['evidence']}" if reasons else None

    def _publish(self, fresh: dict[str, dict[str, Any]]) -> None:
        before, self._shown = self.blocking(), fresh
        now, health = self.blocking(), self._state.health
        full = fresh.get("DISK_FULL") or fresh.get("INODES_FULL")
        disk = {"since": full["since"], "why": full["evidence"]} if full else None
        for name, value in ((protocol.FINDINGS, list(fresh.values())), (protocol.DISK, disk)):
            if value:
                health[name] = value
            else:
                health.pop(name, None)
        if now and not before:
            self._journal.log("claims_stopped", why=now, message=f"no task is claimed: {now}")
            self._state.wake()  # a claim that waits for a task must be withdrawn
        elif before and not now:
            self._journal.log("claims_resumed")

    def _as_json(self, one: Found) -> dict[str, Any]:
        guard, severity = CODES[one.code]
        since = time.time() - (time.monotonic() - one.since_s)
        return {
            "u": guard, "code": one.code, "severity": severity, "since": round(since, 1),
            "evidence": self._clean(one.evidence),
        }  # fmt: skip

    def _clean(self, text: str) -> str:
        printable = "".join(c if c.isprintable() else " " for c in text[:RAW_CHARS])
        return in_short(self._journal.clean(printable), EVIDENCE_CHARS)
