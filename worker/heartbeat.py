"""The heartbeat: a thread that says what is held and hears what is wanted, whatever the main thread is doing."""

from __future__ import annotations

import os
import threading

from . import protocol
from .http1 import Unreachable
from .rpc import CALL_S, Refused, Rpc, backoff_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .journal import Journal
    from .life import Life


class Heartbeat(threading.Thread):
    """Beats every `heartbeat_s`, sooner after a failure; ends with `stop`."""

    def __init__(self, config: Config, run: RunDir, life: Life, journal: Journal) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._rpc, self._life, self._run, self._journal = Rpc(config, life), life, run, journal
        self.every_s = config.heartbeat_s
        self._stopped = threading.Event()

    def run(self) -> None:
        failures, wait_s = 0, self.every_s
        try:
            while not self._stopped.wait(wait_s):
                failures = 0 if self.beat() else failures + 1
                wait_s = min(self.every_s, backoff_s(failures)) if failures else self.every_s
        except BaseException as error:
            # Without heartbeats the leases lapse in silence: better an agent that has ended than one nobody hears.
            self._life.end(f"the heartbeat crashed: {type(error).__name__}: {error}")
            raise

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
    except FileNotFoundError:
        return 0
