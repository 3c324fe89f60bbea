"""The heartbeat: a thread that reports the held tasks and receives requests, independently of the main thread."""

from __future__ import annotations

import os
import threading
import time

from . import protocol
from .http1 import Unreachable
from .node_tasks import NodeTasks
from .renewal import Renewal
from .rpc import CALL_S, HEARTBEAT_S, Refused, Rpc, backoff_s, list_of, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState, HeldTask
    from .config import Config, RunDir
    from .journal import Journal


ASK_S = 2.5  # between heartbeats while a task is held; with KILL_CANCELLED_S, a cancellation takes less than 5 s
ASK_REST = 10.0  # the pause is at least this many times the last call's duration, so agents slow down with the server


class Heartbeat(threading.Thread):
    """Sends a heartbeat every `heartbeat_s`, about every ASK_S while a task is held, and earlier after a failure."""

    def __init__(self, config: Config, run: RunDir, state: AgentState, journal: Journal) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._rpc, self._state, self._run, self._journal = Rpc(config, state), state, run, journal
        self._renewal = Renewal(config, run, journal, self._rpc)
        self._node_tasks = NodeTasks(self._rpc, journal)
        self.every_s = config.heartbeat_s
        self._ask_s = ASK_S
        self._acknowledged: dict[str, Any] | None = None  # the p_health of the last answered heartbeat
        self._counted_at = time.monotonic()
        self._stopped = threading.Event()

    def run(self) -> None:
        failures, beaten = 0, time.monotonic()
        try:
            while not self._stopped.wait(self._wait_s(failures, beaten)):
                if failures or self._state.held() or self._has_news() or time.monotonic() - beaten >= self.every_s:
                    began = time.monotonic()
                    failures, beaten = (0 if self.beat() else failures + 1), time.monotonic()
                    if not failures:
                        self._renewal.renew_if_due()
                    self._ask_s = max(ASK_S, (beaten - began) * ASK_REST)
        except BaseException as error:
            # Without heartbeats the leases would expire while the agent works, so the agent ends.
            self._state.end(f"the heartbeat crashed: {type(error).__name__}: {error}")
            raise

    def _wait_s(self, failures: int, beaten: float) -> float:
        """Return the seconds until the next check. Checks are more frequent than heartbeats.

        A task may be claimed in between.
        """
        if failures:
            return min(self.every_s, backoff_s(failures))
        return max(0.0, min(self._ask_s, beaten + self.every_s - time.monotonic()))

    def beat(self) -> bool:
        """Send one heartbeat. Return whether it was answered."""
        held, health = self._state.held(), dict(self._state.health)
        running, still_s = self._state.running, self._count_still()
        args = {
            "p_tasks": [_lease(one, still_s) for one in held],
            "p_health": None if health == self._acknowledged else health,
            "p_logs": {stream: _size(self._run.log(stream)) for stream in protocol.STREAMS},
        }
        try:
            answer = self._rpc.call(protocol.HEARTBEAT, args, deadline_s=min(CALL_S, max(2.0, self.every_s)))
        except Unreachable as error:
            self._journal.log("heartbeat_unanswered", why=str(error))
            return False
        except Refused as error:
            self._journal.log("heartbeat_refused", why=str(error))
            if error.final:
                self._state.end(f"refused by the orchestrator: {error}", unreachable=True)
            self._run.record_unanswered(time.time())  # perhaps by a proxy in between
            return False
        self._acknowledged = health
        self.every_s = within(answer.get("heartbeat_s"), *HEARTBEAT_S, self.every_s)
        self._state.follow_answer(answer)
        if self._state.note_leader(answer.get("led") is not False):  # an older database does not return this key
            self._journal.log("fleet_unled", message="no leader: the agent claims no more tasks, then stops the pod")
        cancel, fenced, stuck = (set(list_of(str, answer.get(name))) for name in ("cancel", "fenced", "stuck"))
        for one in held:  # only the reported tasks: a task that was claimed again since then is another attempt
            one.cancelled = one.cancelled or one.id in cancel
            one.fenced = one.fenced or one.id in fenced
        if running and running.id in stuck:
            running.stuck = self._state.still_s >= still_s  # a smaller number: there has been a sign of life since then
        if cancel or fenced or (running and running.stuck):
            self._state.wake()
        self._node_tasks.carry_out(answer.get("node_tasks"))
        return True

    def _has_news(self) -> bool:
        """Return whether p_health has changed; a new finding must not wait for the next regular heartbeat."""
        return self._state.health != (self._acknowledged or {})

    def _count_still(self) -> float:
        """Count the time since the last heartbeat as time without a sign of life. A sign sets it to 0.

        It applies to all held tasks: those that wait for the running one need no sign of their own. A long gap between
        two heartbeats counts as a short one: the pod may have been frozen, and the task with it.
        """
        passed_s = min(time.monotonic() - self._counted_at, 2 * self.every_s)
        self._counted_at = time.monotonic()
        self._state.still_s += passed_s
        return self._state.still_s

    def stop(self) -> None:
        self._stopped.set()

    def beat_once_more(self, timeout_s: float) -> None:
        """Stop the thread, then send one more heartbeat from the caller's thread."""
        self.stop()
        self.join(timeout_s)
        if not self.is_alive():
            self.beat()


def _lease(held: HeldTask, still_s: float) -> dict[str, Any]:
    progress = {"progress": held.progress} if held.progress is not None else {}
    return {"id": held.id, "attempt": held.attempt, "still_s": round(still_s, 1), **progress}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # removed or unreadable: the heartbeat has no size for it
        return 0
