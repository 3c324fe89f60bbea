"""The agent's main loop: register, claim, run, report; until it is told to end, or nobody answers any more.

What it promises: a finished result is offered until somebody acknowledges it; a claim is repeated under its number
until it was answered, so that a lost reply loses no task; a task that was fenced is dropped without a word.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from . import protocol
from .exits import Outcome, cancelled, failed
from .heartbeat import Heartbeat
from .http1 import Interrupted, Unreachable
from .journal import Journal, secret_values
from .launch import DONE_FILE
from .life import Held, Life
from .rpc import AGAIN_S, CALL_S, NotYet, Refused, Rpc, backoff_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .runner import Runner

FAREWELL_S = 4.0  # for handing back, or delivering, what is held when the agent must end
FAREWELL_CALL_S = 2.0
PROGRESS_CHARS = 300  # of the reason why a result is not delivered
EMPTY_PAUSE_S = 0.2  # after an empty answer that came at once; doubles up to EMPTY_PAUSE_MAX_S
EMPTY_PAUSE_MAX_S = 2.0
CRASHED = 1


def live(config: Config, run: RunDir, pyz: str, line: dict[str, Any]) -> int:
    """The agent's life; its exit status. <run dir>/done.json says how it ended (guards U18)."""
    pods_own = {"RUNPOD_API_KEY": os.environ.get("RUNPOD_API_KEY", "")}  # handlers have it in their environment
    commands = (config.setup_command, config.start_command)
    journal = Journal(run.log("agent"), secret_values(config.token, {**config.env, **pods_own}, *commands))
    agent = Agent(config, run, pyz, line, journal)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: agent.life.end(f"{signal.Signals(number).name} received"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reason, status = "crashed", CRASHED
    try:
        reason = agent.live()
        status = 0
    except BaseException as error:
        journal.log("agent_crashed", type=type(error).__name__, why=str(error))
        raise
    finally:
        agent.close()
        journal.log("agent_ended", reason=reason, message=f"Agent ended: {reason}")
        run.write(DONE_FILE, json.dumps({"reason": reason, "status": status, "at": time.time()}))
    if agent.life.deserted:
        from .podstop import stop_pod  # noqa: PLC0415 the last resort of few agents

        stop_pod(config.system_root, journal)
    return status


class Agent:
    """Owns the main thread."""

    def __init__(self, config: Config, run: RunDir, pyz: str, line: dict[str, Any], journal: Journal) -> None:
        self.life = Life(config.deadman_s)
        self._config, self._run, self._pyz, self._line, self._journal = config, run, pyz, line, journal
        self._rpc = Rpc(config, self.life)
        self._heartbeat = Heartbeat(config, run, self.life, journal)
        # Grows over restarts of the agent too, so that no new claim is taken for a repetition of an old one.
        self._claim_no = int(time.time() * 1000)
        self._runner_made: Runner | None = None

    def live(self) -> str:
        """Work until there is a reason not to; returns it."""
        self._journal.log("agent_started", **self._line, protocol=protocol.PROTOCOL)
        self._register()
        self._heartbeat.start()
        if self._config.start_command and not self.life.ending:
            from .program import supervise  # noqa: PLC0415 most workers have no program of their own

            reason = supervise(self._config, self._run, self.life, self._journal, self._runner)
            self._heartbeat.last_word(FAREWELL_S)
        else:
            self._work()
            reason = self.life.ending or "drained"
        self._farewell()
        return reason

    def close(self) -> None:
        """End every child and thread."""
        self._heartbeat.stop()
        if self._runner_made:
            self._runner_made.close()

    @property
    def _runner(self) -> Runner:
        if self._runner_made is None:
            from .runner import Runner  # noqa: PLC0415 a worker that has no task yet starts the quicker

            self._runner_made = Runner(self._config, self._run, self._pyz, self.life, self._journal, self._rpc)
        return self._runner_made

    def _register(self) -> None:
        about = {
            "protocol": protocol.PROTOCOL,
            "code_sha": self._line["code_sha256"],
            "pid": self._line["pid"],
            "start_time": self._line["start_time"],
            "python": self._line["python"],
            "prefix": sys.prefix,
            "user_code": self._config.user_code,
            "handlers": sorted(self._config.handlers),
        }
        answer = self._until_answered(protocol.REGISTER, {"p_agent": about})
        if answer is not None:
            self._heartbeat.every_s = float(answer.get("heartbeat_s") or self._heartbeat.every_s)
            self.life.obey(answer)
            self._journal.log("agent_registered", wanted=answer.get("wanted"))

    def _work(self) -> None:
        pause_s = EMPTY_PAUSE_S
        while not self.life.leaving():
            asked = time.monotonic()
            held = self._claim()
            for one in held:
                self._carry(one)
            if held:
                pause_s = EMPTY_PAUSE_S
            elif time.monotonic() - asked < self._config.claim_wait_s / 2:
                self.life.pause(pause_s)  # nobody held our question open: do not hammer
                pause_s = min(pause_s * 2, EMPTY_PAUSE_MAX_S)

    def _claim(self) -> list[Held]:
        """Ask for work under the present claim number until answered; [] when there is none, or no more is wanted."""
        wait_s, tries = self._config.claim_wait_s, 0
        while True:
            leaving = self.life.leaving()
            args = {"p_claim_no": self._claim_no, "p_batch": self._config.batch, "p_wait_s": 0 if leaving else wait_s}
            try:
                answer = self._rpc.call(
                    protocol.CLAIM, args, deadline_s=FAREWELL_CALL_S if leaving else wait_s + CALL_S,
                    unless=None if leaving else self.life.leaving,
                )  # fmt: skip
            except Interrupted:
                continue  # once more, without waiting: what was granted meanwhile must not be left lying
            except Unreachable as error:
                self._journal.log("claim_unanswered", why=str(error))
                if leaving:
                    return []
                tries += 1
                self.life.pause(backoff_s(tries))
                continue
            except Refused as error:
                self._refused(protocol.CLAIM, error)
                return []
            self._claim_no += 1
            self.life.obey(answer)
            tasks = answer.get("tasks") or []
            for task in tasks:
                self._journal.log("task_claimed", task=task["id"], attempt=task["attempt"], type=task["task_type"])
            return [self.life.hold(task) for task in tasks]

    def _carry(self, held: Held) -> None:
        """Run one task and see its outcome acknowledged; a task that must be handed back stays held."""
        if self.life.ending:
            return
        if held.fenced:
            outcome = Outcome("dropped")
        elif held.cancelled:
            outcome = cancelled("before it began")
        else:
            outcome = self._runner.run(held)
        if outcome.kind != "stopped":
            self._report(held, outcome)

    def _report(self, held: Held, outcome: Outcome) -> None:
        """Say how the task ended, again and again until answered; a fenced task is dropped without a word."""
        about = {"task": held.id, "attempt": held.attempt, "kind": outcome.kind}
        try:
            answer = None if outcome.kind == "dropped" else self._deliver(held, outcome)
        except Refused as error:
            self._journal.log("task_refused", **about, why=str(error))
        else:
            if answer is not None:
                why = (outcome.failure or {}).get("message")
                self._journal.log("task_reported", **about, outcome=answer.get("outcome"), why=why)
            elif held.fenced:
                self._journal.log("task_dropped", **about)  # somebody else has it, or its end has been heard already
            else:
                self._journal.log("task_undelivered", **about, why=self.life.ending)
        self.life.let_go(held)

    def _deliver(self, held: Held, outcome: Outcome) -> dict[str, Any] | None:
        """The answer to the task's end; a result that is not taken is a failure instead. Raises Refused."""
        try:
            answer = self._until_answered(*_report_call(held, outcome, self._journal), held)
        except Refused as error:
            if error.final or outcome.kind == "failed":
                raise
            instead = failed("RESULT_REFUSED", str(error), "exception", point="Completion", retryable=False)
        else:
            if answer is not None and answer.get("outcome") == protocol.UNVERIFIED:
                why = f"{outcome.location} was reported as the output and the store does not have it"
                instead = failed(protocol.OUTPUT_MISSING, why, "exception", point="Completion")
            elif answer is None and held.cancelled and not (held.fenced or self.life.ending):
                instead = cancelled("before its result could be delivered")
            else:
                return answer
        return self._until_answered(*_report_call(held, instead, self._journal), held)

    def _until_answered(self, function: str, args: dict[str, Any], held: Held | None = None) -> dict[str, Any] | None:
        """The answer; None if the agent must end first, or `held` was fenced, or cancelled with its result undelivered.

        Raises Refused when it is about `held`.
        """
        tries, farewell = 0, 0.0
        while not (held and (held.fenced or (held.cancelled and tries and function == protocol.COMPLETE))):
            if self.life.ending:
                farewell = farewell or time.monotonic() + FAREWELL_S
                if held is None or self.life.forsaken or time.monotonic() > farewell:
                    return None
            try:
                return self._rpc.call(function, args, deadline_s=FAREWELL_CALL_S if farewell else CALL_S)
            except NotYet:
                tries += 1
                self.life.pause(min(backoff_s(tries), AGAIN_S))
            except Unreachable as error:
                tries += 1
                self._journal.log("call_unanswered", function=function, tries=tries, why=str(error))
                if held:  # seen by whoever asks how far the task is, and no standstill
                    why = self._journal.clean(str(error), limit=PROGRESS_CHARS)
                    held.progress = {"fraction": 1.0, "message": f"ended, and not yet heard: try {tries}: {why}"}
                self.life.pause(min(backoff_s(tries), 0.5 if farewell else 8.0))
            except Refused as error:
                self._refused(function, error)
                if held:
                    raise
                self.life.pause(backoff_s(tries := tries + 1))
        return None

    def _refused(self, function: str, error: Refused) -> None:
        self._journal.log("call_refused", function=function, why=str(error))
        if error.final:
            self.life.end(f"refused by the orchestrator: {error}", forsaken=True)

    def _farewell(self) -> None:
        """Hand back what is still held, so that another worker can have it at once."""
        until = time.monotonic() + FAREWELL_S
        for held in self.life.held():
            if held.fenced or self.life.forsaken or time.monotonic() > until:
                continue
            args = {"p_task_id": held.id, "p_attempt": held.attempt, "p_reason": self.life.ending or "drained"}
            try:
                answer = self._rpc.call(protocol.RELEASE, args, deadline_s=FAREWELL_CALL_S)
                self._journal.log("task_released", task=held.id, attempt=held.attempt, outcome=answer.get("outcome"))
            except (Unreachable, Refused) as error:  # its lease will run out
                self._journal.log("task_unreleased", task=held.id, attempt=held.attempt, why=str(error))


def _report_call(held: Held, outcome: Outcome, journal: Journal) -> tuple[str, dict[str, Any]]:
    token = {"p_task_id": held.id, "p_attempt": held.attempt}
    if outcome.kind == "done":
        result = journal.clean_result(outcome.result)
        return protocol.COMPLETE, {**token, "p_output_location": outcome.location, "p_result_data": result}
    failure = dict(outcome.failure or {})
    failure["message"] = journal.clean(failure["message"])
    failure["detail"] = {
        name: journal.clean(text) if isinstance(text, str) else text for name, text in failure["detail"].items()
    }
    return protocol.FAIL, {**token, "p_failure": failure}
