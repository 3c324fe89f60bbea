"""The runtime monitor: a thread that reads the pod while tasks run, and reports what is wrong with it as findings.

It acts in two ways only. While there is a finding of severity C or H, the agent claims no tasks. After an Xid that
names a program's error, the next task gets a new handler host. If the monitor itself fails, that is shown as unknown.
"""

from __future__ import annotations

import threading

from . import protocol
from .texts import in_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .agent_state import AgentState
    from .config import Config, RunDir
    from .finding_list import FindingList
    from .journal import Journal

WHY_CHARS = 100


class Monitor(threading.Thread):
    """Reads the pod every `monitor_s`; ends with `stop`."""

    def __init__(
        self, config: Config, run: RunDir, state: AgentState, journal: Journal, findings: FindingList,
        gpu_users: Callable[[], int],
    ) -> None:  # fmt: skip
        """`gpu_users` returns how many live processes of handlers use a GPU."""
        super().__init__(name="monitor", daemon=True)
        self._every_s, self._state, self._journal = config.monitor_s, state, journal
        self._inspected = (config, run, state, journal, findings, gpu_users)
        self._program_errors = self._seen_errors = 0
        self._interrupt: Callable[[], None] | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        from .inspection import Inspection  # noqa: PLC0415 in this thread, so that the first claim does not wait for it

        inspection = Inspection(*self._inspected)
        self._interrupt = inspection.interrupt
        try:
            inspection.run()
            self._journal.log("pod_inspected", gpus=inspection.gpus, every_s=self._every_s)
            while not self._stopped.wait(self._every_s):
                inspection.run()
                self._program_errors = inspection.program_errors
        except Exception as error:  # noqa: BLE001 after any error, tasks and heartbeats must continue
            why = f"{type(error).__name__}: {error}"
            self._journal.log("monitor_failed", why=why)
            self._state.health[protocol.UNKNOWN] = {"monitor": in_short(self._journal.clean(why), WHY_CHARS)}
        finally:
            inspection.close()

    def stop(self) -> None:
        """End the thread, and a program that it waits for."""
        self._stopped.set()
        if self._interrupt:
            self._interrupt()

    def needs_new_hosts(self) -> bool:
        """Whether an Xid named a program's error since the last call."""
        seen, self._seen_errors = self._seen_errors, self._program_errors
        return self._seen_errors > seen
