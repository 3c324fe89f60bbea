"""The handler hosts that stay warm between tasks, and the log that they all write to."""

from __future__ import annotations

import os

from .children import HandlerHost
from .code_check import CodeChanged, CodeCheck
from .families import Families
from .handler_names import COMMAND
from .output_log import OutputLog
from .usercode import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent_state import AgentState, HeldTask
    from .config import Config, RunDir
    from .finding_list import FindingList
    from .journal import Journal

MAX_WARM = 4  # hosts kept at once; the least recently used one is ended first


class WarmHosts:
    """Used only by the agent's main thread."""

    def __init__(self, config: Config, run: RunDir, pyz: str, journal: Journal, findings: FindingList) -> None:
        self._config, self._run, self._pyz, self._journal = config, run, pyz, journal
        self._findings, self._code = findings, CodeCheck(config, pyz)
        self.families = Families()
        if not self.families.adopts:
            journal.log("orphans_not_adopted", message="a process of a task that changes its session may outlive it")
        self._warm: dict[str, HandlerHost] = {}  # by module, in order of last use
        self._started = 0
        self.log: OutputLog | None = None  # of all hosts; None before the first one

    def __bool__(self) -> bool:
        return bool(self._warm)

    def take(self, key: str, state: AgentState) -> HandlerHost:
        """Return the host of this module, or of the commands. Raises OSError and CodeChanged."""
        child = self._warm.pop(key, None)
        while len(self._warm) >= MAX_WARM:
            self._warm.pop(next(iter(self._warm))).end()
        if child:
            child.receive(0.0, state)  # whether it has ended since then
        if child is None or child.closed:
            child = self.spawn(own=key == COMMAND)
        self._warm[key] = child
        return child

    def spawn(self, *, own: bool) -> HandlerHost:
        """Start a new host. Raises OSError, and CodeChanged if the code on the disk is not the code that was sent."""
        self._started += 1
        code_dir = unpack(os.path.dirname(self._pyz), self._config.user_code)
        changed = self._code.findings()
        self._findings.update("code", changed)
        if changed:
            raise CodeChanged(changed[0].evidence)
        if self.log is None:
            self.log = OutputLog(self._run.log("handler"), self._journal.secrets)
        self.log.reopen()
        self.log.serve()
        child = HandlerHost(
            self._config, self._run, self._pyz, self._journal, code_dir, self.log.fd, self.families,
            number=self._started, own=own,
        )  # fmt: skip
        self._journal.log("host_started", pid=child.pid)
        return child

    def settle(self, child: HandlerHost, held: HeldTask, key: str) -> None:
        """End the processes that the task left, and a host that is not as it was before the task."""
        if not child.closed and held.task["task_type"] in self._config.keep_processes:
            child.keep_processes()
        elif not child.closed:
            names = child.end_task()
            if names:
                self._journal.log("processes_ended", task=held.id, attempt=held.attempt, names=names)
                self.note(f"ended the processes that task {held.id} left: {', '.join(names)}")
                why = "objects of its handler may refer to processes that were ended"
                child.renew = child.renew or (None if key == COMMAND else why)
        if child.renew and not child.closed:
            self._journal.log("host_renewed", pid=child.pid, why=child.renew)
            child.end()
        if child.closed:
            child.end()
            self._warm.pop(key, None)

    def settle_log(self) -> None:
        """Write what the task printed to the log: its end is reported after its output can be read."""
        if self.log:
            self.log.settle()

    def note(self, text: str) -> None:
        """Write a line of the agent itself to the log."""
        if self.log:
            self.log.note(text)

    def close(self) -> None:
        """End every host."""
        while self._warm:
            self._warm.popitem()[1].end()
        self.settle_log()
