"""The state that the main thread, the heartbeat and the signal handlers share.

A signal handler only sets an attribute and writes one byte to a pipe. It takes no lock. Every wait of the main thread
includes that pipe, so the agent reacts to a message at once and not after a timeout.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import RunDir

MIN_FAILURES = 3  # failed calls in a row before the dead-man's switch may act: a pod that was frozen must first try


class HeldTask:
    """One claimed task. The main thread runs it; the heartbeat may mark it as fenced, cancelled or stuck."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.id: str = task["id"]
        self.attempt: int = task["attempt"]
        self.claimed_at = time.monotonic()
        self.upload_started_s: float | None = None  # since then; when its first output began to be uploaded
        self.upload_ended_s: float | None = None  # when its last output was stored
        self.progress: dict[str, Any] | None = None
        self.cancelled = False
        self.fenced = False
        self.stuck = False
        self.store_unavailable = False  # the result is undelivered because the store does not answer the orchestrator

    @property
    def unwanted(self) -> bool:
        return self.cancelled or self.fenced


class AgentState:
    """Held tasks, requests to end, and the times of the last contact."""

    def __init__(self, deadman_s: float, run: RunDir) -> None:
        self.wake_fd, self._wake_end = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_end, False)
        self.ending: str | None = None  # why the agent must end and release its tasks
        self.unreachable = False  # no call would be accepted, so the agent ends without releasing its tasks
        self.must_stop_pod = False  # the dead-man's switch has acted: ask RunPod to stop the pod
        self.draining = False
        self.running: HeldTask | None = None
        self.still_s = 0.0  # seconds without a sign of life of the running task; the heartbeat counts them
        self.health: dict[str, Any] = {}  # values are replaced, never changed in place: the heartbeat compares them
        self.vram_oom_s: float | None = None  # when an attempt last ended with "CUDA out of memory"
        self._lock = threading.Lock()
        self._held: dict[str, HeldTask] = {}
        self._deadman_s, self._run = deadman_s, run
        self._answered_at = time.monotonic()
        self._failures = 0
        self._led_at = time.monotonic()
        self._unled = 0  # answers in a row which say that there is no leader
        run.record_unanswered(0)  # the file exists before the disk can be full

    def hold(self, task: dict[str, Any]) -> HeldTask:
        self.still_s = 0.0
        with self._lock:
            return self._held.setdefault(task["id"], HeldTask(task))

    def drop(self, held: HeldTask) -> None:
        with self._lock:
            self._held.pop(held.id, None)

    def held(self) -> list[HeldTask]:
        with self._lock:
            return list(self._held.values())

    def end(self, reason: str, *, unreachable: bool = False) -> None:
        """Make the agent release its tasks and exit. The first reason is kept. Safe in a signal handler."""
        self.unreachable = self.unreachable or unreachable
        if self.ending is None:
            self.ending = reason
        self.wake()

    def follow_answer(self, answer: dict[str, Any]) -> None:
        """Act on `outcome` and `wanted` of an answer to register, claim or heartbeat."""
        if answer.get("outcome") == protocol.FENCED:
            self.end("superseded by another launch", unreachable=True)
        elif answer.get("wanted") == protocol.STOP:
            self.end("told to stop")
        elif answer.get("wanted") == protocol.DRAIN:
            self.draining = True
            self.wake()

    def note_answer(self) -> None:
        self._answered_at = time.monotonic()
        self._failures = 0

    def note_no_answer(self) -> None:
        """Count and record a call without an answer. After `deadman_s` without any answer the agent ends.

        The first call counts too: it may have arrived, so the worker may be promoted, and its silence be asked about.
        """
        self._run.record_unanswered(time.time())
        self._failures += 1
        silent_s = time.monotonic() - self._answered_at
        if silent_s >= self._deadman_s and self._failures >= MIN_FAILURES:
            self.must_stop_pod = True
            self.end(
                f"dead-man's switch: no answer for {silent_s:.0f} s (limit {self._deadman_s:.0f} s)",
                unreachable=True,
            )

    def note_leader(self, is_led: bool) -> bool:
        """Note whether the fleet has a leader. Return True once there was none for `deadman_s`.

        Without a leader, no process would end this pod. The database still answers, so the running task is finished
        first. A call that only a leader can answer is given up after another `deadman_s`.
        """
        self._unled = 0 if is_led else self._unled + 1
        if is_led:
            self._led_at = time.monotonic()
        unled_s = time.monotonic() - self._led_at
        if self._unled < MIN_FAILURES or unled_s < self._deadman_s:
            return False
        is_first, self.must_stop_pod, self.draining = not self.must_stop_pod, True, True
        if self.running is None and unled_s >= 2 * self._deadman_s:
            self.end(f"dead-man's switch: the fleet has had no leader for {unled_s:.0f} s")
        self.wake()
        return is_first

    def is_leaving(self) -> bool:
        """Whether the agent claims no more tasks."""
        return self.ending is not None or self.draining

    def must_interrupt(self) -> bool:
        """Whether the running task must be interrupted."""
        return self.ending is not None or (self.running is not None and self.running.unwanted)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread is awake already
            os.write(self._wake_end, b"x")

    def drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def pause(self, seconds: float) -> None:
        """Sleep until `seconds` have passed or the thread is woken."""
        if select.select([self.wake_fd], [], [], max(0.0, seconds))[0]:
            self.drain_wake()
