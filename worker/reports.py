"""How tasks ended, said until somebody has heard it.

A task shorter than a call is not worth one of its own: small results gather while more tasks of the same claim follow,
for GATHER_S at most, and go in one call. Whatever that call leaves open is said again of each task alone.
"""

from __future__ import annotations

import json
import time

from . import protocol
from .exits import cancelled, failed
from .http1 import Unreachable
from .rpc import AGAIN_S, CALL_S, NotYet, Refused, Rpc, StoreAway, backoff_s
from .waits import STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .exits import Outcome
    from .journal import Journal
    from .life import Held, Life

GATHER_S = 0.1  # that a result waits for others at most
GATHER_MAX = 100  # what one call takes
SMALL_BYTES = 8 << 10  # of a result that may wait: that many of them fit into the body of one call
BESIDE_CALL_S = 2.0  # for a call while a task runs: its cancellation must not have to wait longer
FAREWELL_S = 4.0  # for delivering what is held when the agent must end
FAREWELL_CALL_S = 2.0
PROGRESS_CHARS = 300  # of the reason why a result is not delivered


class Reports:
    """Belongs to the agent's main thread; what has been heard is let go."""

    def __init__(self, life: Life, journal: Journal, rpc: Rpc) -> None:
        self._life, self._journal, self._rpc = life, journal, rpc
        self._gathered: list[tuple[Held, Outcome]] = []
        self._due = 0.0  # when the oldest of them has waited long enough
        self._tries = 0

    def add(self, held: Held, outcome: Outcome) -> None:
        """A task has ended. Heard when this returns, unless it is small and done: then by `settle` at the latest."""
        if outcome.kind != "done" or outcome.location is not None or not _is_small(outcome.result):
            self._report(held, outcome)
            return
        if not self._gathered:
            self._due = time.monotonic() + GATHER_S
        self._gathered.append((held, outcome))
        if len(self._gathered) == GATHER_MAX:
            self.settle()

    def settle(self) -> None:
        """Everything that has ended, until it is heard, or the agent must end first."""
        until = time.monotonic() + FAREWELL_S
        if len(self._gathered) > 1:
            self._send(FAREWELL_CALL_S if self._life.ending else CALL_S)
        gathered, self._gathered = self._gathered, []
        for held, outcome in gathered:
            if self._life.ending and time.monotonic() > until:
                self._undelivered(held, outcome)
            else:
                self._report(held, outcome)

    def beside(self) -> float:
        """While a task runs: send what has waited long enough; returns the seconds until it should be asked again."""
        left_s = self._due - time.monotonic()
        if self._gathered and left_s <= 0:
            self._send(BESIDE_CALL_S)
            self._tries = self._tries + 1 if self._gathered else 0
            left_s = backoff_s(self._tries)
            self._due = time.monotonic() + left_s
        return left_s if self._gathered else float("inf")

    def until_answered(self, function: str, args: dict[str, Any], held: Held | None = None) -> dict[str, Any] | None:
        """The answer; None if the agent must end first, or `held` was fenced, or cancelled with its result undelivered.

        Raises Refused when it is about `held`.
        """
        tries, farewell = 0, 0.0
        while not (held and (held.fenced or (held.cancelled and tries and function == protocol.COMPLETE))):
            if self._life.ending:
                farewell = farewell or time.monotonic() + FAREWELL_S
                if held is None or self._life.forsaken or time.monotonic() > farewell:
                    return None
            try:
                return self._rpc.call(function, args, deadline_s=FAREWELL_CALL_S if farewell else CALL_S)
            except NotYet as error:
                tries += 1
                self._say_undelivered(held, tries, error)
                self._life.pause(min(backoff_s(tries), AGAIN_S))
            except Unreachable as error:
                tries += 1
                self._journal.log("call_unanswered", function=function, tries=tries, why=str(error))
                self._say_undelivered(held, tries, error)
                self._life.pause(min(backoff_s(tries), 0.5 if farewell else 8.0))
            except Refused as error:
                self.refused(function, error)
                if held:
                    raise
                self._life.pause(backoff_s(tries := tries + 1))
        return None

    def _say_undelivered(self, held: Held | None, tries: int, error: Exception) -> None:
        """Say in the progress that the task has ended: each try is a sign of life, and no standstill."""
        if held is None:
            return
        why = self._journal.clean(str(error), limit=PROGRESS_CHARS)
        held.progress = {"fraction": 1.0, "message": f"ended, and not yet heard: try {tries}: {why}"}
        held.store_away = isinstance(error, StoreAway)
        if held.store_away:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            before = self._life.health.get(STORE) or {}
            self._life.health[STORE] = {"since": before.get("since", now), "why": why}

    def refused(self, function: str, error: Refused) -> None:
        """Note a refusal; one that holds for ever ends the agent."""
        self._journal.log("call_refused", function=function, why=str(error))
        if error.final:
            self._life.end(f"refused by the orchestrator: {error}", forsaken=True)

    def results(self) -> list[dict[str, Any]]:
        """All that have gathered, as one call takes them."""
        return [
            {"task_id": held.id, "attempt": held.attempt, "result_data": self._journal.clean_result(outcome.result)}
            for held, outcome in self._gathered
        ]

    def heard(self, answer: dict[str, Any]) -> None:
        """The answer to a call with `results`; those that it leaves open stay."""
        outcomes = answer.get("outcomes") or []
        for (held, outcome), said in zip(self._gathered, outcomes):
            self._heard(held, outcome, said)
        del self._gathered[: len(outcomes)]

    def unanswered(self, error: Exception) -> None:
        """… or none came."""
        self._journal.log("results_unanswered", tasks=len(self._gathered), why=str(error))

    def _send(self, deadline_s: float) -> None:
        """One try of all that have gathered, in one call."""
        try:
            answer = self._rpc.call(protocol.COMPLETE_MANY, {"p_results": self.results()}, deadline_s=deadline_s)
        except (Unreachable, Refused) as error:
            self.unanswered(error)
        else:
            self.heard(answer)

    def _report(self, held: Held, outcome: Outcome) -> None:
        """Say how one task ended, again and again until answered; a fenced task is dropped without a word."""
        try:
            answer = None if outcome.kind == "dropped" else self._deliver(held, outcome)
        except Refused as error:
            self._journal.log("task_refused", **_about(held, outcome), why=str(error))
        else:
            if answer is not None:
                self._heard(held, outcome, answer.get("outcome"))
            elif held.fenced:  # somebody else has it, or its end has been heard already
                self._journal.log("task_dropped", **_about(held, outcome))
            else:
                self._undelivered(held, outcome)
                return
        finally:
            self._life.health.pop(STORE, None)
        self._life.let_go(held)

    def _heard(self, held: Held, outcome: Outcome, said: str | None) -> None:
        why = (outcome.failure or {}).get("message")
        self._journal.log("task_reported", **_about(held, outcome), outcome=said, why=why)
        self._life.let_go(held)

    def _undelivered(self, held: Held, outcome: Outcome) -> None:
        self._journal.log("task_undelivered", **_about(held, outcome), why=self._life.ending)
        if not held.store_away or self._life.forsaken:  # otherwise the farewell hands it back, and nothing is counted
            self._life.let_go(held)  # its lease runs out

    def _deliver(self, held: Held, outcome: Outcome) -> dict[str, Any] | None:
        """The answer to the task's end; a result that is not taken is a failure instead. Raises Refused."""
        try:
            answer = self.until_answered(*self._call(held, outcome), held)
        except Refused as error:
            if error.final or outcome.kind == "failed":
                raise
            instead = failed("RESULT_REFUSED", str(error), "exception", point="Completion", retryable=False)
        else:
            if answer is not None and answer.get("outcome") == protocol.UNVERIFIED:
                why = f"{outcome.location} was reported as the output and the store does not have it"
                instead = failed(protocol.OUTPUT_MISSING, why, "exception", point="Completion")
            elif answer is None and held.cancelled and not (held.fenced or self._life.ending):
                instead = cancelled("before its result could be delivered")
            else:
                return answer
        return self.until_answered(*self._call(held, instead), held)

    def _call(self, held: Held, outcome: Outcome) -> tuple[str, dict[str, Any]]:
        token = {"p_task_id": held.id, "p_attempt": held.attempt}
        if outcome.kind == "done":
            result = self._journal.clean_result(outcome.result)
            return protocol.COMPLETE, {**token, "p_output_location": outcome.location, "p_result_data": result}
        failure = dict(outcome.failure or {})
        failure["message"] = self._journal.clean(failure["message"])
        failure["detail"] = {
            name: self._journal.clean(text) if isinstance(text, str) else text
            for name, text in failure["detail"].items()
        }
        return protocol.FAIL, {**token, "p_failure": failure}


def _about(held: Held, outcome: Outcome) -> dict[str, Any]:
    return {"task": held.id, "attempt": held.attempt, "kind": outcome.kind}


def _is_small(result: dict[str, Any] | None) -> bool:
    return len(json.dumps(result)) <= SMALL_BYTES
