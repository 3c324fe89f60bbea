"""The agent's main loop: register, claim, run, report; until it is told to end, or nobody answers any more.

What it promises: a finished result is offered until somebody acknowledges it; a claim is repeated under its number
until it was answered, so that a lost reply loses no task; a task that was fenced is dropped without a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from . import protocol
from .config import DONE_FILE
from .disk import LOOK_AGAIN_S, has_room
from .exits import Outcome, cancelled
from .heartbeat import Heartbeat
from .http1 import Interrupted, Unreachable
from .journal import Journal, secret_values
from .life import Held, Life
from .reports import FAREWELL_CALL_S, FAREWELL_S, Reports
from .rpc import CALL_S, Refused, Rpc, backoff_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .runner import Runner

BATCH_S = 2.0  # after a claim of several: what has not begun by then is handed back
EMPTY_PAUSE_S = 0.2  # after an empty answer that came at once; doubles up to EMPTY_PAUSE_MAX_S
EMPTY_PAUSE_MAX_S = 2.0
UNSERVED_PAUSE_S = 30.0  # before the next claim of a pod that could not wait for a service any longer
REASON_CHARS = 1_000
CRASHED = 1


def live(config: Config, run: RunDir, pyz: str, line: dict[str, Any]) -> int:
    """The agent's life; its exit status. <run dir>/done.json says how it ended (guards U18)."""
    # Handlers have the first in their environment; the second opens this worker's next token.
    pods_own = {"RUNPOD_API_KEY": os.environ.get("RUNPOD_API_KEY", ""), "RENEWAL_KEY": config.renewal_key or ""}
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
        with contextlib.suppress(OSError):  # a full disk must not keep the pod from being stopped
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
        self._reports = Reports(self.life, journal, self._rpc)
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

            self._runner_made = Runner(
                self._config, self._run, self._pyz, self.life, self._journal, self._rpc, self._reports.beside
            )
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
        answer = self._reports.until_answered(protocol.REGISTER, {"p_agent": about})
        if answer is not None:
            self._heartbeat.every_s = float(answer.get("heartbeat_s") or self._heartbeat.every_s)
            self.life.obey(answer)
            self._journal.log("agent_registered", wanted=answer.get("wanted"))

    def _work(self) -> None:
        pause_s = EMPTY_PAUSE_S
        while not self.life.leaving():
            if not has_room(self._run.path, self.life, self._journal):
                self.life.pause(LOOK_AGAIN_S)
                continue
            asked = time.monotonic()
            held = self._claim()
            if held:
                pause_s = EMPTY_PAUSE_S
            elif time.monotonic() - asked < self._config.claim_wait_s / 2:
                self.life.pause(pause_s)  # nobody held our question open: do not hammer
                pause_s = min(pause_s * 2, EMPTY_PAUSE_MAX_S)
            while held:
                self._carry_all(held)
                held = self._tell_and_claim()

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
                self._reports.refused(protocol.CLAIM, error)
                return []
            return self._claimed(answer)

    def _claimed(self, answer: dict[str, Any]) -> list[Held]:
        self._claim_no += 1
        self.life.obey(answer)
        tasks = answer.get("tasks") or []
        for task in tasks:
            self._journal.log("task_claimed", task=task["id"], attempt=task["attempt"], type=task["task_type"])
        return [self.life.hold(task) for task in tasks]

    def _tell_and_claim(self) -> list[Held]:
        """See every outcome acknowledged, and in the same call ask for more; [] when that has to be asked by itself."""
        results = self._reports.results()
        if not results or self.life.leaving() or not has_room(self._run.path, self.life, self._journal):
            self._reports.settle()
            return []
        args = {"p_results": results, "p_claim_no": self._claim_no, "p_batch": self._config.batch}
        try:
            answer = self._rpc.call(protocol.COMPLETE_AND_CLAIM, args)
        except (Unreachable, Refused) as error:
            self._reports.unanswered(error)
            self._reports.settle()
            return self._claim()  # what that call may have claimed comes under the same number
        self._reports.heard(answer)
        return self._claimed(answer)

    def _carry_all(self, tasks: list[Held]) -> None:
        """Run what one claim brought; a task that must be handed back stays held.

        Other workers may be idle: what has not begun BATCH_S after the claim is for them.
        """
        until = time.monotonic() + BATCH_S
        for held in tasks:
            late = held is not tasks[0] and time.monotonic() > until
            if not self.life.ending and not (late and self._release(held, "not begun soon enough")):
                self._carry(held)

    def _carry(self, held: Held) -> None:
        if held.fenced:
            outcome = Outcome("dropped")
        elif held.cancelled:
            outcome = cancelled("before it began")
        else:
            outcome = self._runner.run(held)
        if outcome.kind == "unserved":
            self._hand_back(held, outcome.why)
        elif outcome.kind != "stopped":
            self._reports.add(held, outcome)

    def _hand_back(self, held: Held, why: str) -> None:
        """Release a task that an outage kept this pod from finishing: the attempt does not count."""
        args = {"p_task_id": held.id, "p_attempt": held.attempt, "p_reason": why[:REASON_CHARS]}
        with contextlib.suppress(Refused):  # it has been logged, and the lease runs out
            self._reports.until_answered(protocol.RELEASE, args, held)
        if not self.life.ending:
            self._journal.log("task_unserved", task=held.id, attempt=held.attempt, why=why)
            self.life.let_go(held)
            self.life.pause(UNSERVED_PAUSE_S)

    def _farewell(self) -> None:
        """Hand back what is still held, so that another worker can have it at once."""
        until = time.monotonic() + FAREWELL_S
        for held in self.life.held():
            if not (held.fenced or self.life.forsaken or time.monotonic() > until):
                self._release(held, self.life.ending or "drained")

    def _release(self, held: Held, reason: str) -> bool:
        """Hand a task back, as if never begun; whether that was heard. If not, its lease will run out."""
        args = {"p_task_id": held.id, "p_attempt": held.attempt, "p_reason": reason}
        try:
            answer = self._rpc.call(protocol.RELEASE, args, deadline_s=FAREWELL_CALL_S)
        except (Unreachable, Refused) as error:
            self._journal.log("task_unreleased", task=held.id, attempt=held.attempt, why=str(error))
            return False
        self._journal.log("task_released", task=held.id, attempt=held.attempt, outcome=answer.get("outcome"))
        self.life.let_go(held)
        return True
