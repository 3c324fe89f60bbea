"""The state that the stages of one bring-up share."""

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
AT_ONCE = ("shown", "pod_log")  # parts of the evidence whose changes are recorded at once


@dataclass(slots=True)
class BringupContext:
    """The last written row, and the facts found so far."""

    term: int
    worker: Worker
    entered_at: datetime  # the database's clock when the present stage was entered
    limit_s: float = 0.0  # the time for the present stage
    clock_ahead_s: float = 0.0  # by how much this process's clock is ahead of the database's
    facts: dict[str, Any] = field(default_factory=dict)  # columns for the next move
    unassigned_at_s: float | None = None  # monotonic: when its pod was last seen without a machine
    suspect: FailureCode | None = None  # a more precise code for a passed deadline
    evidence: Evidence = field(default_factory=dict)  # the evidence for this code
    note: Callable[[FailureCode | None, Evidence], Awaitable[None]] | None = None  # writes both to the open attempt
    reported_pod_id: str = ""
    gpus: Sections = field(default_factory=dict)  # the output of nvidia-smi and the kernel log
    agent: agent_commands.LaunchedAgent | None = None
    launched_at: datetime | None = None

    async def suspects(self, code: FailureCode | None, evidence: Evidence) -> None:
        """Keep the code for a passed deadline, and record it if the code or the evidence has changed."""
        is_news = code != self.suspect or any(evidence.get(name) != self.evidence.get(name) for name in AT_ONCE)
        self.suspect, self.evidence = code, evidence
        if is_news and self.note is not None:
            # this is only a remark; errors of the write that closes the attempt are raised
            with contextlib.suppress(PortError):
                await self.note(code, evidence)


StageCheck = Callable[[BringupContext], Awaitable[Evidence]]
