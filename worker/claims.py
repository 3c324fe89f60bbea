"""Claims of tasks, alone or with the results of the last ones.

A claim is repeated under the same number until it is answered, so a lost reply loses no task.
"""

from __future__ import annotations

import time

from . import protocol
from .http1 import Interrupted, Unreachable
from .reports import FLUSH_CALL_S
from .rpc import CALL_S, Refused, backoff_s, list_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState, HeldTask
    from .config import Config
    from .finding_list import FindingList
    from .journal import Journal
    from .reports import Reports
    from .rpc import Rpc


class Claims:
    """The claims of one agent. Claimed tasks are held."""

    def __init__(
        self, config: Config, state: AgentState, journal: Journal, rpc: Rpc, reports: Reports, findings: FindingList
    ) -> None:
        self._config, self._state, self._journal = config, state, journal
        self._rpc, self._reports, self._findings = rpc, reports, findings
        # The number also grows over restarts of the agent: a new claim must not look like a repetition of an old one.
        self._claim_no = int(time.time() * 1000)

    def may_claim(self) -> bool:
        """Return whether no finding stops the claims. Reads the disk again for it."""
        self._findings.update_disk()
        return self._findings.blocking() is None

    def claim(self) -> list[HeldTask]:
        """Repeat the claim under its number until it is answered.

        Return [] if there is no task, or if claims must stop.
        """
        wait_s, tries = self._config.claim_wait_s, 0
        while True:
            is_hurried = self._must_not_wait()
            args = {
                "p_claim_no": self._claim_no,
                "p_batch": self._config.batch,
                "p_wait_s": 0 if is_hurried else wait_s,
            }
            try:
                answer = self._rpc.call(
                    protocol.CLAIM, args, deadline_s=FLUSH_CALL_S if is_hurried else wait_s + CALL_S,
                    unless=None if is_hurried else self._must_not_wait,
                )  # fmt: skip
            except Interrupted:
                continue  # again, without waiting: fetch the tasks that the interrupted call may have claimed
            except Unreachable as error:
                self._journal.log("claim_unanswered", why=str(error))
                if is_hurried:
                    return []
                tries += 1
                self._state.pause(backoff_s(tries))
                continue
            except Refused as error:
                self._reports.refused(protocol.CLAIM, error)
                return []
            return self._claimed(answer)

    def complete_and_claim(self) -> list[HeldTask]:
        """Report all outcomes and claim in the same call. Return [] if the caller must send a claim of its own."""
        results = self._reports.results()
        if not results or self._state.is_leaving() or not self.may_claim():
            self._reports.flush()
            return []
        args = {"p_results": results, "p_claim_no": self._claim_no, "p_batch": self._config.batch}
        try:
            answer = self._rpc.call(protocol.COMPLETE_AND_CLAIM, args)
        except (Unreachable, Refused) as error:
            self._reports.note_no_answer(error)
            self._reports.flush()
            return self.claim()  # the same claim number returns the tasks that the failed call may have claimed
        self._reports.note_answer(answer)
        return self._claimed(answer)

    def _must_not_wait(self) -> bool:
        """Return whether a claim must be answered at once, without a wait for a task."""
        return self._state.is_leaving() or self._findings.blocking() is not None

    def _claimed(self, answer: dict[str, Any]) -> list[HeldTask]:
        self._claim_no += 1
        self._state.follow_answer(answer)
        tasks = [task for task in list_of(dict, answer.get("tasks")) if _is_task(task)]
        for task in tasks:
            self._journal.log("task_claimed", task=task["id"], attempt=task["attempt"], type=task["task_type"])
        return [self._state.hold(task) for task in tasks]


def _is_task(task: dict[str, Any]) -> bool:
    """Whether it has what the agent itself needs. One that has not is named in no heartbeat, and its lease expires."""
    words = (task.get("id"), task.get("task_type"))
    return all(isinstance(word, str) for word in words) and isinstance(task.get("attempt"), int)
