"""Reports of how tasks ended, repeated until they are acknowledged.

Short tasks share a call: small results are gathered for at most GATHER_S while more tasks of the same claim follow, and
are sent together. Results that this call leaves open are reported one by one.
"""

from __future__ import annotations

import json
import time

from . import protocol
from .exits import cancelled, failed
from .http1 import Unreachable
from .rpc import CALL_S, NotYet, Refused, Rpc, StoreUnavailable, UnknownFunction, backoff_s, list_of
from .waits import STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState, HeldTask
    from .exits import Outcome
    from .journal import Journal

GATHER_S = 0.1  # seconds that a result waits for others
GATHER_MAX = 100  # results in one call
SMALL_BYTES = 8 << 10  # of a result that may wait: GATHER_MAX of them fit into the body of one call
SEND_CALL_S = 2.0  # deadline of a call while a task runs: a cancellation must not wait longer
FLUSH_S = 4.0  # for all reports when the agent must end
FLUSH_CALL_S = 2.0
PROGRESS_CHARS = 300  # characters of the reason why a result is not delivered


class Reports:
    """Used only by the agent's main thread. A task is dropped once its report is acknowledged."""

    def __init__(self, state: AgentState, journal: Journal, rpc: Rpc) -> None:
        self._state, self._journal, self._rpc = state, journal, rpc
        self._gathered: list[tuple[HeldTask, Outcome]] = []
        self._due = 0.0  # when the oldest of them has waited long enough
        self._tries = 0

    def add(self, held: HeldTask, outcome: Outcome) -> None:
        """Report the end of a task. A small result may wait for others, until `flush` at the latest."""
        if outcome.kind != "done" or outcome.location is not None or not _is_small(outcome.result):
            self._report(held, outcome)
            return
        if not self._gathered:
            self._due = time.monotonic() + GATHER_S
        self._gathered.append((held, outcome))
        if len(self._gathered) == GATHER_MAX:
            self.flush()

    def flush(self) -> None:
        """Report all ended tasks until each is acknowledged, or the agent must end first."""
        until = time.monotonic() + FLUSH_S
        if len(self._gathered) > 1:
            self._send(FLUSH_CALL_S if self._state.ending else CALL_S)
        gathered, self._gathered = self._gathered, []
        waiting: list[tuple[HeldTask, Outcome]] = []
        for held, outcome in gathered:
            if self._state.ending and time.monotonic() > until:
                self._undelivered(held, outcome)
            elif not self._report(held, outcome, once=len(gathered) > 1):
                waiting.append((held, outcome))
        for held, outcome in waiting:  # a result that the database refuses does not delay the others
            self._report(held, outcome)

    def send_due(self) -> float:
        """While a task runs: send the results that have waited long enough. Return the seconds until the next call."""
        left_s = self._due - time.monotonic()
        if self._gathered and left_s <= 0:
            self._send(SEND_CALL_S)
            self._tries = self._tries + 1 if self._gathered else 0
            left_s = backoff_s(self._tries)
            self._due = time.monotonic() + left_s
        return left_s if self._gathered else float("inf")

    def until_answered(
        self, function: str, args: dict[str, Any], held: HeldTask | None = None, *, once: bool = False
    ) -> dict[str, Any] | None:
        """Return the answer. None if the agent must end first, or if `held` was fenced, or cancelled before delivery.

        Raises Refused if the call is about `held`; with `once`, NotYet if the answer is that it must be repeated.
        """
        tries, flush_until = 0, 0.0
        while not (held and (held.fenced or (held.cancelled and tries and function in protocol.COMPLETIONS))):
            if self._state.ending:
                flush_until = flush_until or time.monotonic() + FLUSH_S
                if held is None or self._state.unreachable or time.monotonic() > flush_until:
                    return None
            self._state.still_s = 0.0  # each try is a sign of life
            try:
                return self._rpc.call(function, args, deadline_s=FLUSH_CALL_S if flush_until else CALL_S)
            except NotYet as error:
                tries += 1
                self._show_undelivered(held, tries, error)
                if once:
                    raise
                self._state.pause(min(backoff_s(tries), error.most_s))
            except Unreachable as error:
                tries += 1
                self._journal.log("call_unanswered", function=function, tries=tries, why=str(error))
                self._show_undelivered(held, tries, error)
                if isinstance(error, UnknownFunction) and function == protocol.COMPLETE_OUTPUT:
                    function, args = protocol.COMPLETE, {name: args[name] for name in args if name != "p_output"}
                self._state.pause(min(backoff_s(tries), 0.5 if flush_until else 8.0))
            except Refused as error:
                self.refused(function, error)
                if held:
                    raise
                self._state.pause(backoff_s(tries := tries + 1))
        return None

    def _show_undelivered(self, held: HeldTask | None, tries: int, error: Exception) -> None:
        """Show each try in the task's progress, so that the task does not count as stuck."""
        if held is None:
            return
        why = self._journal.clean(str(error), limit=PROGRESS_CHARS)
        held.progress = {"fraction": 1.0, "message": f"ended, not yet acknowledged: try {tries}: {why}"}
        held.store_unavailable = isinstance(error, StoreUnavailable)
        if held.store_unavailable:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            before = self._state.health.get(STORE) or {}
            self._state.health[STORE] = {"since": before.get("since", now), "why": why}

    def refused(self, function: str, error: Refused) -> None:
        """Note a refusal. A final refusal ends the agent."""
        self._journal.log("call_refused", function=function, why=str(error))
        if error.final:
            self._state.end(f"refused by the orchestrator: {error}", unreachable=True)

    def results(self) -> list[dict[str, Any]]:
        """Return the gathered results as arguments of one call."""
        return [
            {"task_id": held.id, "attempt": held.attempt, "result_data": self._journal.clean_result(outcome.result)}
            for held, outcome in self._gathered
        ]

    def note_answer(self, answer: dict[str, Any]) -> None:
        """Take the answer to a call with `results`. Results that it leaves open stay gathered."""
        outcomes: list[Any] = list_of(object, answer.get("outcomes"))[: len(self._gathered)]
        for (held, outcome), acknowledged_as in zip(self._gathered, outcomes):
            self._acknowledged(held, outcome, acknowledged_as)
        del self._gathered[: len(outcomes)]

    def note_no_answer(self, error: Exception) -> None:
        """Note that a call with `results` was not answered."""
        self._journal.log("results_unanswered", tasks=len(self._gathered), why=str(error))

    def _send(self, deadline_s: float) -> None:
        """Try once to send all gathered results in one call."""
        try:
            answer = self._rpc.call(protocol.COMPLETE_MANY, {"p_results": self.results()}, deadline_s=deadline_s)
        except (Unreachable, Refused) as error:
            self.note_no_answer(error)
        else:
            self.note_answer(answer)

    def _report(self, held: HeldTask, outcome: Outcome, *, once: bool = False) -> bool:
        """Report how one task ended until it is acknowledged. A fenced task is dropped without a report.

        With `once`, return False if the report must be repeated.
        """
        try:
            answer = None if outcome.kind == "dropped" else self._deliver(held, outcome, once=once)
        except NotYet:
            return False
        except Refused as error:
            self._journal.log("task_refused", **_about(held, outcome), why=str(error))
        else:
            if answer is not None:
                self._acknowledged(held, outcome, answer.get("outcome"))
            elif held.fenced:  # another worker has the task, or its end is known already
                self._journal.log("task_dropped", **_about(held, outcome))
            else:
                self._undelivered(held, outcome)
                return True
        finally:
            self._state.health.pop(STORE, None)
        self._state.drop(held)
        return True

    def _acknowledged(self, held: HeldTask, outcome: Outcome, acknowledged_as: str | None) -> None:
        why = (outcome.failure or {}).get("message")
        self._journal.log("task_reported", **_about(held, outcome), outcome=acknowledged_as, why=why)
        self._state.drop(held)

    def _undelivered(self, held: HeldTask, outcome: Outcome) -> None:
        self._journal.log("task_undelivered", **_about(held, outcome), why=self._state.ending)
        # If only the store is unavailable, the agent releases the task at its end, and the attempt does not count.
        if not held.store_unavailable or self._state.unreachable:
            self._state.drop(held)  # its lease expires

    def _deliver(self, held: HeldTask, outcome: Outcome, *, once: bool) -> dict[str, Any] | None:
        """Return the answer to the task's end. A refused result becomes a failure. Raises Refused and NotYet."""
        try:
            answer = self.until_answered(*self._call(held, outcome), held, once=once)
        except Refused as error:
            if error.final:
                raise
            instead = _instead_of_refused(outcome, error)
        else:
            if answer is not None and answer.get("outcome") == protocol.UNVERIFIED:
                why = f"{outcome.location} was reported as the output and the store does not have it"
                instead = failed(protocol.OUTPUT_MISSING, why, "exception", point="Completion")
            elif answer is None and held.cancelled and not (held.fenced or self._state.ending):
                instead = cancelled("before its result could be delivered")
            else:
                return answer
        return self.until_answered(*self._call(held, instead), held)

    def _call(self, held: HeldTask, outcome: Outcome) -> tuple[str, dict[str, Any]]:
        token = {"p_task_id": held.id, "p_attempt": held.attempt}
        if outcome.kind == "done":
            result = self._journal.clean_result(outcome.result)
            location = self._journal.clean_result(outcome.location)
            completion = {**token, "p_output_location": location, "p_result_data": result}
            if held.upload_ended_s is None:
                return protocol.COMPLETE, completion
            upload = {"started_s": held.upload_started_s, "ended_s": held.upload_ended_s}
            return protocol.COMPLETE_OUTPUT, {**completion, "p_output": {"upload": upload}}
        failure = dict(outcome.failure or {})
        failure["message"] = self._journal.clean(failure["message"])
        failure["detail"] = {
            name: self._journal.clean(text) if isinstance(text, str) else text
            for name, text in failure["detail"].items()
        }
        return protocol.FAIL, {**token, "p_failure": failure}


def _instead_of_refused(outcome: Outcome, error: Refused) -> Outcome:
    """Return what is reported if a report was refused: a refused result, or a failure without its texts."""
    if outcome.failure is None:
        return failed("RESULT_REFUSED", str(error), "exception", point="Completion", retryable=False)
    why = f"the text of this failure was refused ({error}): see the log"
    known = {name: outcome.failure[name] for name in ("exit_class", "point", "retryable")}
    return failed(outcome.failure["code"], why, **known)


def _about(held: HeldTask, outcome: Outcome) -> dict[str, Any]:
    return {"task": held.id, "attempt": held.attempt, "kind": outcome.kind}


def _is_small(result: dict[str, Any] | None) -> bool:
    return len(json.dumps(result)) <= SMALL_BYTES
