"""Runs one task in the handler host it belongs to, and says how it ended.

A host stays warm between tasks, so that what a handler's module loads (a model) is loaded once. After a timeout, a
cancellation, an exhausted GPU or a death the host and everything it started are gone, and the next task gets a new one.
"""

from __future__ import annotations

import os
import re
import shutil
import time

from . import exits, protocol
from .children import KILL_GRACE_S, Child
from .exits import Outcome, failed
from .http1 import Interrupted, Unreachable
from .rpc import AGAIN_S, NotYet, Refused, Rpc
from .usercode import unpack
from .waits import Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .config import Config, RunDir
    from .journal import Journal
    from .life import Held, Life

MAX_WARM = 4  # hosts kept at once; the one used longest ago goes first
KILL_CANCELLED_S = 1.0  # between TERM and KILL of a cancelled task
POLL_S = 0.5  # between looks at a child that says nothing
LOG_TAIL_BYTES = 64 << 10  # of the attempt's own log that is searched for causes
DETAIL_CHARS = 2_000  # of it that goes into the failure report
PROGRESS_CHARS = 500
COMMAND = "cmd:"


class Runner:
    """Belongs to the agent's main thread."""

    def __init__(
        self, config: Config, run: RunDir, pyz: str, life: Life, journal: Journal, rpc: Rpc, beside: Callable[[], float]
    ) -> None:
        """`beside` is called again and again while a task runs; it says within how many seconds the next time."""
        self._config, self._run, self._pyz = config, run, pyz
        self._life, self._journal, self._rpc, self._beside = life, journal, rpc, beside
        self._warm: dict[str, Child] = {}  # by module, in order of last use
        self._started = 0

    def run(self, held: Held) -> Outcome:
        """Run the task to its end."""
        handler = self._config.handlers.get(held.task["task_type"])
        if handler is None:
            why = f"this worker has no handler for the task type {held.task['task_type']!r}: see WORKER_HANDLERS"
            return failed("NO_HANDLER", why, "exception")
        key = COMMAND if handler.startswith(COMMAND) else handler.partition(":")[0]
        folder = self._run.at("tasks", re.sub(r"[^A-Za-z0-9_-]", "_", f"{held.id}-{held.attempt}"))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.makedirs(folder)
            child = self._child(key)
        except OSError as error:  # no such interpreter, or no space
            return failed("HANDLER_NOT_STARTED", f"{type(error).__name__}: {error}", "exception")
        self._life.running = held
        try:
            outcome = self._attempt(child, held, handler, folder)
        finally:
            self._life.running = None
            shutil.rmtree(folder, ignore_errors=True)
        if child.closed:
            self._warm.pop(key, None)
        return outcome

    def close(self) -> None:
        """End every host."""
        while self._warm:
            self._warm.popitem()[1].end()

    def spawn(self, *, own: bool) -> Child:
        """A new host. Raises OSError."""
        self._started += 1
        code_dir = unpack(os.path.dirname(self._pyz), self._config.user_code)
        child = Child(self._config, self._run, self._pyz, self._journal, code_dir, number=self._started, own=own)
        self._journal.log("host_started", pid=child.pid)
        return child

    def _child(self, key: str) -> Child:
        child = self._warm.pop(key, None)
        while len(self._warm) >= MAX_WARM:
            self._warm.pop(next(iter(self._warm))).end()
        if child:
            child.receive(0.0, self._life)  # has it ended since?
        if child is None or child.closed:
            child = self.spawn(own=key == COMMAND)
        self._warm[key] = child
        return child

    def _attempt(self, child: Child, held: Held, handler: str, folder: str) -> Outcome:
        log_from, kills = self._log_bytes(), exits.oom_kills(self._config.system_root)
        timeout_s = float(held.task.get("timeout_s") or self._config.default_timeout_s)
        child.send({
            "op": "run", "handler": handler, "task": held.task, "dir": folder, "patience_s": self._config.deadman_s,
        })  # fmt: skip
        waits = Waits(held, self._life, self._journal)
        try:
            message, outcome = self._attend(child, held, waits, timeout_s)
        finally:
            waits.end()
        if outcome is not None:
            child.end(KILL_CANCELLED_S if held.cancelled else KILL_GRACE_S)
            return outcome
        self._note_dropped(held, message or {})
        if message and message["op"] == "done":
            return Outcome("done", location=message["output_location"], result=message["result_data"])
        if message and message.get("outage"):
            return Outcome("unserved", why=message["message"])
        status = child.end() if message is None else message.get("status")
        log, kills_now = self._log_since(log_from), exits.oom_kills(self._config.system_root)
        fresh_kills = None if kills is None or kills_now is None else kills_now - kills
        if message is None or "status" in message:
            exit_class, code, text = exits.of_process(status, fresh_kills, log)
        else:
            exit_class, code, text = exits.of_exception(message["type"], message["message"], fresh_kills, log)
        if exit_class in {"oom", "vram_oom"}:
            child.end()  # what it holds of the memory goes with it
        told = message or {}
        return failed(
            told.get("code") or code, text, exit_class,
            point=told.get("point", "Processing"), retryable=told.get("retryable", True),
            type=told.get("type"), traceback=told.get("traceback"), log=log[-DETAIL_CHARS:], status=status,
        )  # fmt: skip

    def _attend(
        self, child: Child, held: Held, waits: Waits, timeout_s: float
    ) -> tuple[dict[str, Any] | None, Outcome | None]:
        """Serve the child until its last message (None: it died), or until the attempt must end (the outcome).

        What it waits for outside the pod does not count towards `timeout_s`.
        """
        began = time.monotonic()
        while True:
            left_s = began + timeout_s + waits.stood_s() - time.monotonic()
            if held.fenced:
                return None, Outcome("dropped")
            if self._life.ending:
                return None, Outcome("stopped")
            if held.cancelled:
                return None, exits.cancelled("on request")
            if left_s <= 0:
                return None, failed("TIMEOUT", f"no end within {timeout_s:g} s", "timeout")
            for message in child.receive(min(POLL_S, left_s, self._beside()), self._life):
                if message["op"] in {"progress", "service"}:
                    self._note(message, held, waits)
                elif message["op"] == "grants":
                    child.send({"op": "reply", "seq": message["seq"], **self._grants(message["items"])})
                else:
                    return message, None
            if child.closed:
                return None, None

    def _note(self, message: dict[str, Any], held: Held, waits: Waits) -> None:
        """Take in what the child says of its progress or of its transfers."""
        if message["task"] != held.id:
            return  # a thread that an earlier task left behind
        if message["op"] == "service":
            waits.told(message)
        else:
            waits.progressed(self._progress(message))

    def _progress(self, message: dict[str, Any]) -> dict[str, Any]:
        text = message["message"]
        clean = None if text is None else self._journal.clean(str(text), limit=PROGRESS_CHARS)
        fraction = message["fraction"]
        known = fraction is not None and 0 <= fraction <= 1  # NaN is not
        return {"fraction": float(fraction) if known else None, "message": clean}

    def _grants(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """One try, so that a cancellation is never far away; the child asks again."""
        try:
            answer = self._rpc.call(protocol.GRANTS, {"p_items": items}, unless=self._life.interrupting)
        except NotYet:
            return {"error": "the orchestrator has not answered yet", "final": False, "again_s": AGAIN_S}
        except (Unreachable, Interrupted) as error:
            return {"error": f"{type(error).__name__}: {error}", "final": False}
        except Refused as error:
            return {"error": str(error), "final": True}
        return {name: answer.get(name) or [] for name in ("items", "refused", "replaced")}

    def _note_dropped(self, held: Held, message: dict[str, Any]) -> None:
        """Declare output that a full disk did not take: in the log, and in each heartbeat from then on."""
        dropped = message.get("dropped_bytes")
        if dropped:
            self._life.health["output_dropped_bytes"] = self._life.health.get("output_dropped_bytes", 0) + dropped
            self._journal.log("output_dropped", task=held.id, attempt=held.attempt, bytes=dropped)

    def _log_bytes(self) -> int:
        try:
            return os.path.getsize(self._run.log("handler"))
        except OSError:  # the handler removed it
            return 0

    def _log_since(self, offset: int) -> str:
        try:
            with open(self._run.log("handler"), "rb") as file:
                file.seek(max(offset, self._log_bytes() - LOG_TAIL_BYTES))
                return file.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
