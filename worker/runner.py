"""Runs one task in its handler host and returns how it ended.

A host stays warm between tasks, so a handler's module loads its model once. After a timeout, a cancellation, exhausted
GPU memory or a crash, the host and all its processes are ended, and the next task gets a new host.
"""

from __future__ import annotations

import os
import re
import shutil
import time

from . import exits, protocol
from .children import KILL_GRACE_S, HandlerHost
from .code_check import CodeChanged
from .exits import Outcome, failed
from .findings import many_small_files
from .handler_names import COMMAND, handler_problem
from .http1 import Interrupted, Unreachable
from .rpc import AGAIN_S, NotYet, Refused, Rpc
from .signs import SignsOfLife
from .waits import ServiceWaits
from .warm_hosts import WarmHosts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .agent_state import AgentState, HeldTask
    from .config import Config, RunDir
    from .finding_list import FindingList
    from .journal import Journal

KILL_CANCELLED_S = 1.0  # seconds between TERM and KILL of a cancelled task
POLL_S = 0.5  # seconds between checks of a host that sends nothing
DETAIL_CHARS = 2_000  # bytes of the log in the failure report
PROGRESS_CHARS = 500


class Runner:
    """Used only by the agent's main thread."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        pyz: str,
        state: AgentState,
        journal: Journal,
        rpc: Rpc,
        send_due: Callable[[], float],
        findings: FindingList,
    ) -> None:
        """`send_due` is called repeatedly while a task runs; it returns the seconds until its next call."""
        self._config, self._run = config, run
        self._state, self._journal, self._rpc, self._send_due = state, journal, rpc, send_due
        self._findings = findings
        self.hosts = WarmHosts(config, run, pyz, journal, findings)
        self._files: list[tuple[int, int]] = []  # files that the running task stored: their number and bytes

    def run(self, held: HeldTask) -> Outcome:
        """Run the task to its end."""
        handler = self._config.handlers.get(held.task["task_type"])
        if handler is None:
            why = f"this worker has no handler for the task type {held.task['task_type']!r}: see WORKER_HANDLERS"
            return failed("NO_HANDLER", why, "exception")
        problem = handler_problem(handler)
        if problem:
            why = f"the handler {handler!r} of WORKER_HANDLERS cannot be used: {problem}"
            return failed("NO_HANDLER", why, "exception")
        needs_no_code = handler.startswith(COMMAND) or handler == protocol.SLURM_HANDLER
        key = COMMAND if needs_no_code else handler.partition(":")[0]
        folder = self._run.at("tasks", re.sub(r"[^A-Za-z0-9_-]", "_", f"{held.id}-{held.attempt}"))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.makedirs(folder)
            child = self.hosts.take(key, self._state)
        except CodeChanged as error:
            return Outcome("unserved", why=f"CODE_CHANGED: {error}")
        except OSError as error:  # no such interpreter, or no space
            return failed("HANDLER_NOT_STARTED", f"{type(error).__name__}: {error}", "exception")
        self._state.still_s = 0.0
        self._state.running = held
        try:
            outcome = self._attempt(child, held, handler, folder)
            self.hosts.settle(child, held, key)
        finally:
            self._state.running = None
            self.hosts.settle_log()
            self._judge_files()
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _attempt(self, child: HandlerHost, held: HeldTask, handler: str, folder: str) -> Outcome:
        log = self.hosts.log
        log_from, kills = log.size() if log else 0, exits.oom_kills(self._config.system_root)
        timeout_s = float(held.task.get("timeout_s") or self._config.default_timeout_s)
        child.send({
            "op": "run", "handler": handler, "task": held.task, "dir": folder, "patience_s": self._config.deadman_s,
        })  # fmt: skip
        waits = ServiceWaits(held, self._state, self._journal)
        signs = SignsOfLife(self._state, self._config, self._run, folder, child.processes)
        try:
            message, outcome = self._attend(child, held, waits, signs, timeout_s)
        finally:
            waits.end()
            self.hosts.settle_log()
        if outcome is not None:
            child.end(KILL_CANCELLED_S if held.cancelled else KILL_GRACE_S)
            self._note_end(held, outcome.kind)
            return Outcome("hung") if held.stuck and child.left else outcome
        self._note_dropped(held, message or {})
        child.renew = self._journal.clean(message["renew"]) if message and message.get("renew") else None
        if message and message["op"] == "done":
            return Outcome("done", location=message["output_location"], result=message["result_data"])
        if message and message.get("outage"):
            return Outcome("unserved", why=message["message"])
        status = child.end() if message is None else message.get("status")
        if message is None:
            self._note_end(held, "failed")
        printed, kills_now = log.since(log_from) if log else "", exits.oom_kills(self._config.system_root)
        fresh_kills = None if kills is None or kills_now is None else kills_now - kills
        if message is None or "status" in message:
            exit_class, code, text = exits.of_process(status, fresh_kills, printed)
        else:
            exit_class, code, text = exits.of_exception(message["type"], message["message"], fresh_kills, printed)
        if exit_class in {"oom", "vram_oom"}:
            child.end()  # to free the memory that it still holds
        if exit_class == "vram_oom":
            self._state.vram_oom_s = time.monotonic()
        failure = message or {}
        return failed(
            failure.get("code") or code, text, exit_class,
            point=failure.get("point", "Processing"), retryable=failure.get("retryable", True),
            type=failure.get("type"), traceback=failure.get("traceback"), log=printed[-DETAIL_CHARS:], status=status,
        )  # fmt: skip

    def _attend(
        self, child: HandlerHost, held: HeldTask, waits: ServiceWaits, signs: SignsOfLife, timeout_s: float
    ) -> tuple[dict[str, Any] | None, Outcome | None]:
        """Serve the child until its last message (None: it died), or until the attempt must end (the outcome).

        The time for which it waits for a service outside the pod does not count towards `timeout_s`.
        """
        began = time.monotonic()
        while True:
            left_s = began + timeout_s + waits.paused_s() - time.monotonic()
            outcome = self._must_end(held)
            if left_s <= 0 and outcome is None:
                outcome = failed("TIMEOUT", f"no end within {timeout_s:g} s", "timeout")
            if outcome is not None:
                return None, outcome
            signs.look()
            for message in child.receive(min(POLL_S, left_s, self._send_due()), self._state):
                if (message.get("task"), message.get("attempt")) != (held.id, held.attempt):
                    self._journal.log("message_of_another_task", pid=child.pid, op=message["op"])
                    child.end()
                    why = "its process sent a message of another task, so it was ended"
                    return None, failed("LOST", why, "lost")
                if message["op"] in {"progress", "service", "stored"}:
                    self._take_report(message, held, waits)
                elif message["op"] == "imported":
                    child.keep_processes()
                    child.reply(message)
                elif message["op"] == "grants":
                    _note_upload(message["items"], held)
                    child.reply(message, **self._grants(message["items"]))
                else:
                    return message, None
            if child.closed:
                return None, None

    def _must_end(self, held: HeldTask) -> Outcome | None:
        """Return the outcome of the attempt if it must end now."""
        if held.fenced:
            return Outcome("dropped")
        if self._state.ending:
            return Outcome("stopped")
        if held.cancelled:
            return exits.cancelled("on request")
        return exits.stuck(self._state.still_s) if held.stuck else None

    def _take_report(self, message: dict[str, Any], held: HeldTask, waits: ServiceWaits) -> None:
        """Take a message of the host about its progress or its transfers."""
        self._state.still_s = 0.0  # a repeated value is a report too
        if message["op"] == "service":
            waits.note_transfer(message)
        elif message["op"] == "stored":  # the byte ledger
            ledger = {name: message[name] for name in ("key", "files", "bytes", "sent")}
            self._journal.log("output_stored", task=held.id, attempt=held.attempt, **ledger)
            self._files.append((message["files"], message["bytes"]))
            if held.upload_started_s is not None:
                held.upload_ended_s = time.monotonic() - held.claimed_at
        else:
            waits.note_progress(self._progress(message))

    def _judge_files(self) -> None:
        """Warn about a task with many small files, until a task stores fewer or larger ones."""
        files, size = sum(count for count, _ in self._files), sum(size for _, size in self._files)
        self._files.clear()
        if files:
            found = many_small_files(files, size, time.monotonic())
            self._findings.update("files", [found] if found else [])

    def _progress(self, message: dict[str, Any]) -> dict[str, Any]:
        text = message["message"]
        clean = None if text is None else self._journal.clean(str(text), limit=PROGRESS_CHARS)
        fraction = message["fraction"]
        known = fraction is not None and 0 <= fraction <= 1  # NaN is not
        return {"fraction": float(fraction) if known else None, "message": clean}

    def _grants(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Ask once, so that a cancellation never waits long. The host repeats its question."""
        try:
            answer = self._rpc.call(protocol.GRANTS, {"p_items": items}, unless=self._state.must_interrupt)
        except NotYet:
            return {"error": "the orchestrator has not answered yet", "final": False, "again_s": AGAIN_S}
        except (Unreachable, Interrupted) as error:
            return {"error": f"{type(error).__name__}: {error}", "final": False}
        except Refused as error:
            return {"error": str(error), "final": True}
        return {name: answer.get(name) or [] for name in ("items", "refused", "replaced")}

    def _note_dropped(self, held: HeldTask, message: dict[str, Any]) -> None:
        """Declare output that was dropped because of a full disk: in the log, and in each later heartbeat."""
        dropped = (message.get("dropped_bytes") or 0) + (self.hosts.log.take_dropped() if self.hosts.log else 0)
        if dropped:
            self._state.health["output_dropped_bytes"] = self._state.health.get("output_dropped_bytes", 0) + dropped
            self._journal.log("output_dropped", task=held.id, attempt=held.attempt, bytes=dropped)

    def _note_end(self, held: HeldTask, how: str) -> None:
        """Mark the end of an attempt in the log, because its host ended first: readers look for the mark."""
        self.hosts.note(f"task {held.id} attempt {held.attempt} ends: {how}")


def _note_upload(items: list[Any], held: HeldTask) -> None:
    """Note when the task first asks where to store an output."""
    prefix = held.task["output_prefix"]
    if held.upload_started_s is None and any(
        isinstance(one, dict) and one.get("method") == "PUT" and str(one.get("key")).startswith(prefix) for one in items
    ):
        held.upload_started_s = time.monotonic() - held.claimed_at
