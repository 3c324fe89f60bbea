"""One climb under way: what its stages share."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestrator.core.failures import FailureCode
from orchestrator.core.machine_checks import Sections
from orchestrator.core.model import Worker
from orchestrator.pods import agent_commands
from orchestrator.ports import PortError

Evidence = dict[str, Any]
SIGHTS = ("shown", "pod_log")  # of the evidence: what is written down at once where it changes


@dataclass(slots=True)
class BringupContext:
    """The row as last written, and what the stages found so far."""

    term: int
    worker: Worker
    entered_at: datetime  # the database's clock when the present stage was entered
    limit_s: float = 0.0  # what the present stage may take
    facts: dict[str, Any] = field(default_factory=dict)  # columns that the next move writes
    unassigned_at_s: float | None = None  # monotonic: when its pod was last seen without a machine
    suspect: FailureCode | None = None  # what a deadline would be called now, if there is a better word
    evidence: Evidence = field(default_factory=dict)  # … and what is known by then
    note: Callable[[FailureCode | None, Evidence], Awaitable[None]] | None = None  # writes both to the open attempt
    said_pod_id: str = ""
    gpus: Sections = field(default_factory=dict)  # what nvidia-smi and the kernel log said
    agent: agent_commands.Agent | None = None
    launched_at: datetime | None = None

    async def suspects(self, code: FailureCode | None, evidence: Evidence) -> None:
        """Keep what a deadline would be called now, and write it down if it is another code or another sight."""
        is_news = code != self.suspect or any(evidence.get(name) != self.evidence.get(name) for name in SIGHTS)
        self.suspect, self.evidence = code, evidence
        if is_news and self.note is not None:
            with contextlib.suppress(PortError):  # a remark; what closes the attempt must be written, and raises
                await self.note(code, evidence)


StageCheck = Callable[[BringupContext], Awaitable[Evidence]]
