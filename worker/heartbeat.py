"""The heartbeat: a thread that says what is held and hears what is wanted, whatever the main thread is doing."""

from __future__ import annotations

import os
import threading
import time

from . import protocol
from .http1 import Unreachable
from .renewal import Renewal
from .rpc import CALL_S, Refused, Rpc, backoff_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .journal import Journal
    from .life import Life


ASK_S = 2.5  # between beats while a task is held: with KILL_CANCELLED_S it makes a cancellation take less than 5 s
ASK_REST = 10.0  # times the last beat's own time between two: a thousand agents ease off where answers come slowly


class Heartbeat(threading.Thread):
    """Beats every `heartbeat_s`, about every ASK_S while a task is held, sooner after a failure; ends with `stop`."""

    def __init__(self, config: Config, run: RunDir, life: Life, journal: Journal) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._rpc, self._life, self._run, self._journal = Rpc(config, life), life, run, journal
        self._renewal = Renewal(config, run, journal, self._rpc)
        self.every_s = config.heartbeat_s
        self._ask_s = ASK_S
        self._stopped = threading.Event()

    def run(self) -> None:
        failures, beaten = 0, time.monotonic()
        try:
            while not self._stopped.wait(self._wait_s(failures, beaten)):
                if failures or self._life.held() or time.monotonic() - beaten >= self.every_s:
                    began = time.monotonic()
                    failures, beaten = (0 if self.beat() else failures + 1), time.monotonic()
                    if not failures:
                        self._renewal.renew_if_due()
                    self._ask_s = max(ASK_S, (beaten - began) * ASK_REST)
        except BaseException as error:
            # Without heartbeats the leases lapse in silence: better an agent that has ended than one nobody hears.
            self._life.end(f"the heartbeat crashed: {type(error).__name__}: {error}")
            raise

    def _wait_s(self, failures: int, beaten: float) -> float:
        """Until the next look; before the next beat is due, because a task may be claimed meanwhile."""
        if failures:
            return min(self.every_s, backoff_s(failures))
        return max(0.0, min(self._ask_s, beaten + self.every_s - time.monotonic()))

    def beat(self) -> bool:
        """One heartbeat; whether it was answered."""
        held = self._life.held()
        args = {
            "p_tasks": [_lease(one.id, one.attempt, one.progress) for one in held],
            "p_health": dict(self._life.health),
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
                self._life.end(f"refused by the orchestrator: {error}", forsaken=True)
            return False
        self.every_s = float(answer.get("heartbeat_s") or self.every_s)
        self._life.obey(answer)
        if self._life.led(answer.get("led") is not False):  # an older database does not say
            self._journal.log("fleet_unled", message="nobody leads the fleet: no more work, then the pod is stopped")
        cancel, fenced = set(answer.get("cancel") or ()), set(answer.get("fenced") or ())
        for one in held:  # those we spoke of: a task claimed anew since then is another attempt
            one.cancelled = one.cancelled or one.id in cancel
            one.fenced = one.fenced or one.id in fenced
        if cancel or fenced:
            self._life.wake()
        return True

    def stop(self) -> None:
        self._stopped.set()

    def last_word(self, timeout_s: float) -> None:
        """One more beat, from the caller's thread, after the regular ones have ended."""
        self.stop()
        self.join(timeout_s)
        if not self.is_alive():
            self.beat()


def _lease(task_id: str, attempt: int, progress: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": task_id, "attempt": attempt, **({"progress": progress} if progress is not None else {})}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # removed, or unreadable: a heartbeat is worth more than a size
        return 0
