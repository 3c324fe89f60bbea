"""The agent's main loop: register, claim, run, report.

It ends on request, or after too long without an answer to any call.

The agent sends a finished result until it is acknowledged. It drops a fenced task without a report.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from . import protocol
from .agent_state import AgentState, HeldTask
from .claims import Claims
from .config import DONE_FILE
from .exits import Outcome, cancelled
from .finding_list import FindingList
from .heartbeat import Heartbeat
from .http1 import Unreachable
from .journal import Journal, secret_values
from .monitor import Monitor
from .reports import FLUSH_CALL_S, FLUSH_S, Reports
from .rpc import HEARTBEAT_S, Refused, Rpc, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .runner import Runner

BATCH_S = 2.0  # seconds after a claim of several tasks, after which the agent releases those that have not begun
EMPTY_PAUSE_S = 0.2  # after an immediate empty answer; doubles up to EMPTY_PAUSE_MAX_S
EMPTY_PAUSE_MAX_S = 2.0
UNSERVED_PAUSE_S = 30.0  # seconds before the next claim, after a task was released because a service was unavailable
REASON_CHARS = 1_000
BLOCKED_PAUSE_S = 5.0  # seconds between checks whether the finding that stops the claims has ended
CRASHED = 1
HELD = "GPU_MEMORY_HELD"  # a finding


def run_agent(config: Config, run: RunDir, pyz: str, identity: dict[str, Any]) -> int:
    """Run the agent and return its exit status. <run dir>/done.json records how it ended (guards U18)."""
    # Handlers have the API key in their environment. The renewal key decrypts this worker's next token.
    pods_own = {"RUNPOD_API_KEY": os.environ.get("RUNPOD_API_KEY", ""), "RENEWAL_KEY": config.renewal_key or ""}
    commands = (config.setup_command, config.start_command)
    variables = {**os.environ, **config.env, **pods_own}
    journal = Journal(run.log("agent"), secret_values(config.token, variables, *commands))
    agent = Agent(config, run, pyz, identity, journal)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: agent.state.end(f"{signal.Signals(number).name} received"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reason, status = "crashed", CRASHED
    try:
        reason = agent.run()
        status = 0
    except BaseException as error:
        journal.log("agent_crashed", type=type(error).__name__, why=str(error))
        raise
    finally:
        agent.close()
        journal.log("agent_ended", reason=reason, message=f"Agent ended: {reason}")
        with contextlib.suppress(OSError):  # a full disk must not prevent the stop of the pod
            run.write(DONE_FILE, json.dumps({"reason": reason, "status": status, "at": time.time()}))
    if agent.state.must_stop_pod:
        from .podstop import stop_pod  # noqa: PLC0415 few agents need it

        stop_pod(config.system_root, journal)
    return status


class Agent:
    """The main thread of the agent: it registers, claims tasks, runs them, and reports."""

    def __init__(self, config: Config, run: RunDir, pyz: str, identity: dict[str, Any], journal: Journal) -> None:
        self.state = AgentState(config.deadman_s, run)
        self._config, self._run_dir, self._pyz, self._identity, self._journal = config, run, pyz, identity, journal
        self._rpc = Rpc(config, self.state)
        self._reports = Reports(self.state, journal, self._rpc)
        self._heartbeat = Heartbeat(config, run, self.state, journal)
        self._runner_made: Runner | None = None
        self._findings = FindingList(self.state, journal, run.path)
        self._monitor = Monitor(config, run, self.state, journal, self._findings, self._gpu_users)
        self._claims = Claims(config, self.state, journal, self._rpc, self._reports, self._findings)

    def run(self) -> str:
        """Work until there is a reason to end. Return the reason."""
        self._journal.log("agent_started", **self._identity, protocol=protocol.PROTOCOL)
        self._register()
        self._heartbeat.start()
        self._monitor.start()
        if self._config.start_command and not self.state.ending:
            from .program import supervise  # noqa: PLC0415 most workers have no program of their own

            reason = supervise(self._config, self._run_dir, self.state, self._journal, self._runner)
            self._heartbeat.beat_once_more(FLUSH_S)
        else:
            self._work()
            reason = self.state.ending or "drained"
        self._release_all()
        return reason

    def close(self) -> None:
        """End every child and thread."""
        self._heartbeat.stop()
        self._monitor.stop()
        if self._runner_made:
            self._runner_made.hosts.close()

    @property
    def _runner(self) -> Runner:
        if self._runner_made is None:
            from .runner import Runner  # noqa: PLC0415 an agent without a task starts faster

            self._runner_made = Runner(
                self._config, self._run_dir, self._pyz, self.state, self._journal, self._rpc, self._reports.send_due,
                self._findings,
            )  # fmt: skip
        return self._runner_made

    def _gpu_users(self) -> int:
        """Return how many live processes of handlers use a GPU; a worker program counts as one."""
        if self._config.start_command:
            return 1
        return self._runner_made.hosts.families.gpu_users() if self._runner_made else 0

    def _register(self) -> None:
        about = {
            "protocol": protocol.PROTOCOL,
            "code_sha": self._identity["code_sha256"],
            "pid": self._identity["pid"],
            "start_time": self._identity["start_time"],
            "python": self._identity["python"],
            "prefix": sys.prefix,
            "user_code": self._config.user_code,
            "handlers": sorted(self._config.handlers),
        }
        answer = self._reports.until_answered(protocol.REGISTER, {"p_agent": about})
        if answer is not None:
            self._heartbeat.every_s = within(answer.get("heartbeat_s"), *HEARTBEAT_S, self._heartbeat.every_s)
            self.state.follow_answer(answer)
            self._journal.log("agent_registered", wanted=answer.get("wanted"))

    def _work(self) -> None:
        from . import preflight, reach  # noqa: PLC0415 once, before the first claim

        reach.check_store(self._config, self._findings, self.state)
        preflight.run(self._config, self._pyz, self._findings, self._journal)
        pause_s = EMPTY_PAUSE_S
        while not self.state.is_leaving():
            if not self._claims.may_claim():
                self._free_gpu_memory()
                self.state.pause(BLOCKED_PAUSE_S)
                continue
            asked = time.monotonic()
            held = self._claims.claim()
            if held:
                pause_s = EMPTY_PAUSE_S
            elif time.monotonic() - asked < self._config.claim_wait_s / 2:
                self.state.pause(pause_s)  # the server did not hold the call open, so it is not repeated at once
                pause_s = min(pause_s * 2, EMPTY_PAUSE_MAX_S)
            while held:
                self._run_all(held)
                held = self._claims.complete_and_claim()

    def _free_gpu_memory(self) -> None:
        """End the warm hosts if GPU memory is in use that no process explains. If that frees none, the worker ends."""
        if HELD in self._findings.codes() and self._runner_made and self._runner_made.hosts:
            self._journal.log("hosts_replaced", why=HELD)
            self._runner_made.hosts.close()

    def _run_all(self, tasks: list[HeldTask]) -> None:
        """Run the tasks of one claim.

        A task that has not begun BATCH_S after the claim is released, because another worker may be idle. So is every
        task that has not begun when a finding stops the claims.
        """
        until = time.monotonic() + BATCH_S
        for held in tasks:
            late = held is not tasks[0] and time.monotonic() > until
            why = self._findings.blocking() or ("not begun soon enough" if late else None)
            if why and not self.state.ending:
                self._give_back(held, why)
            elif not self.state.ending:
                self._run_task(held)

    def _run_task(self, held: HeldTask) -> None:
        if held.fenced:
            outcome = Outcome("dropped")
        elif held.cancelled:
            outcome = cancelled("before it began")
        else:
            if self._monitor.needs_new_hosts():  # after an Xid, the affected process must not run the next task
                self._journal.log("hosts_replaced", why="an Xid names a program's error")
                self._runner.hosts.close()
            outcome = self._runner.run(held)
        if outcome.kind == "unserved":
            self._release_unserved(held, outcome.why)
        elif outcome.kind == "hung":
            self._await_stop(held)
        elif outcome.kind != "stopped":
            self._reports.add(held, outcome)

    def _release_unserved(self, held: HeldTask, why: str) -> None:
        """Release a task that an outage prevented: the attempt does not count."""
        self._give_back(held, why)
        if not self.state.ending:
            self._journal.log("task_unserved", task=held.id, attempt=held.attempt, why=why)
            self.state.pause(UNSERVED_PAUSE_S)

    def _give_back(self, held: HeldTask, why: str) -> None:
        """Release a task, and repeat it until it is answered. At the agent's end the task stays held.

        A call without an answer may have arrived: another worker may have the task, so it must not run here.
        """
        args = {"p_task_id": held.id, "p_attempt": held.attempt, "p_reason": self._journal.clean(why, REASON_CHARS)}
        answer = None
        with contextlib.suppress(Refused):  # the refusal is logged, and the lease expires
            answer = self._reports.until_answered(protocol.RELEASE, args, held)
        if answer is not None:  # otherwise it was refused or fenced, or the agent ends
            self._journal.log("task_released", task=held.id, attempt=held.attempt, outcome=answer.get("outcome"))
        if not self.state.ending:
            self.state.drop(held)

    def _await_stop(self, hung: HeldTask) -> None:
        """Release the other tasks and wait for the orchestrator to end this pod: a stuck process cannot be killed."""
        self._journal.log("host_hung", task=hung.id, attempt=hung.attempt)
        for held in self.state.held():
            if held is not hung:
                self._release(held, f"task {hung.id} is stuck, and its process cannot be ended")
        while not self.state.ending:
            self.state.pause(BLOCKED_PAUSE_S)

    def _release_all(self) -> None:
        """Release all held tasks, so that another worker can claim them at once."""
        until = time.monotonic() + FLUSH_S
        for held in self.state.held():
            if not (held.fenced or self.state.unreachable or time.monotonic() > until):
                self._release(held, self.state.ending or "drained")

    def _release(self, held: HeldTask, reason: str) -> bool:
        """Release a task as if it had never begun. Return whether the call was answered.

        Without an answer, the lease expires.
        """
        args = {"p_task_id": held.id, "p_attempt": held.attempt, "p_reason": self._journal.clean(reason, REASON_CHARS)}
        try:
            answer = self._rpc.call(protocol.RELEASE, args, deadline_s=FLUSH_CALL_S)
        except (Unreachable, Refused) as error:
            self._journal.log("task_unreleased", task=held.id, attempt=held.attempt, why=str(error))
            return False
        self._journal.log("task_released", task=held.id, attempt=held.attempt, outcome=answer.get("outcome"))
        self.state.drop(held)
        return True
