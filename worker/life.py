"""What the main thread, the heartbeat and the signal handlers share: what is held, what is wanted, who was heard.

Signal handlers only set an attribute and write one byte to a pipe: no lock is taken there. Every wait of the main
thread includes that pipe, so that nothing said to the agent has to wait for a timeout.
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

MIN_FAILURES = 3  # in a row before the dead-man's switch may act: a pod frozen for an hour first asks


class Held:
    """One claimed task and what was said about it; fenced or cancelled by the heartbeat, run by the main thread."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.id: str = task["id"]
        self.attempt: int = task["attempt"]
        self.progress: dict[str, Any] | None = None
        self.cancelled = False
        self.fenced = False
        self.store_away = False  # its end could not be delivered, because the store does not answer the orchestrator

    @property
    def unwanted(self) -> bool:
        return self.cancelled or self.fenced


class Life:
    """The agent's situation."""

    def __init__(self, deadman_s: float) -> None:
        self.wake_fd, self._wake_end = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_end, False)
        self.ending: str | None = None  # why the agent must give up what it holds
        self.forsaken = False  # there is nobody who would listen to a farewell
        self.deserted = False  # the dead-man's switch has acted
        self.draining = False
        self.running: Held | None = None
        self.health: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._deadman_s = deadman_s
        self._heard_at = time.monotonic()
        self._failures = 0
        self._led_at = time.monotonic()
        self._unled = 0  # answers in a row that nobody leads

    def hold(self, task: dict[str, Any]) -> Held:
        with self._lock:
            return self._held.setdefault(task["id"], Held(task))

    def let_go(self, held: Held) -> None:
        with self._lock:
            self._held.pop(held.id, None)

    def held(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def end(self, reason: str, *, forsaken: bool = False) -> None:
        """Give up what is held and exit; the first reason stays. Safe in a signal handler."""
        self.forsaken = self.forsaken or forsaken
        if self.ending is None:
            self.ending = reason
        self.wake()

    def obey(self, answer: dict[str, Any]) -> None:
        """Take `outcome` and `wanted` of an answer to register, claim or heartbeat to heart."""
        if answer.get("outcome") == protocol.FENCED:
            self.end("superseded by another launch", forsaken=True)
        elif answer.get("wanted") == protocol.STOP:
            self.end("told to stop")
        elif answer.get("wanted") == protocol.DRAIN:
            self.draining = True
            self.wake()

    def heard(self) -> None:
        self._heard_at = time.monotonic()
        self._failures = 0

    def unheard(self) -> None:
        """One more call without an answer; after `deadman_s` of nothing else the agent ends itself."""
        self._failures += 1
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= self._deadman_s and self._failures >= MIN_FAILURES:
            self.deserted = True
            self.end(
                f"dead-man's switch: nobody answered for {silent_s:.0f} s (limit {self._deadman_s:.0f} s)",
                forsaken=True,
            )

    def led(self, is_led: bool) -> bool:
        """Take in whether anybody leads our fleet; True when nobody has for `deadman_s`: nobody would end this pod.

        The database still hears us, so what runs is finished first; what waits for a leader's answer is given up after
        another `deadman_s`.
        """
        self._unled = 0 if is_led else self._unled + 1
        if is_led:
            self._led_at = time.monotonic()
        unled_s = time.monotonic() - self._led_at
        if self._unled < MIN_FAILURES or unled_s < self._deadman_s:
            return False
        is_news, self.deserted, self.draining = not self.deserted, True, True
        if self.running is None and unled_s >= 2 * self._deadman_s:
            self.end(f"dead-man's switch: nobody has led the fleet for {unled_s:.0f} s")
        self.wake()
        return is_news

    def leaving(self) -> bool:
        """Whether no more work should be asked for."""
        return self.ending is not None or self.draining

    def interrupting(self) -> bool:
        """Whether the running task should be broken off."""
        return self.ending is not None or (self.running is not None and self.running.unwanted)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake_end, b"x")

    def drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def pause(self, seconds: float) -> None:
        """Sleep, unless there is news."""
        if select.select([self.wake_fd], [], [], max(0.0, seconds))[0]:
            self.drain_wake()
