"""Waiting for tasks: one query every half second for all tasks for which a caller waits, and none without callers."""

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol

import structlog

from orchestrator.ports import PortError
from orchestrator.web.api.problems import too_fast
from orchestrator.web.wakeups import WakeupHub

POLL_S = 0.5
MAX_WAITS_PER_TOKEN = 256
MAX_WAITS = 1_000  # of all tokens
FULL_RETRY_S = "10"
ENDED = frozenset({"Complete", "Failed", "Cancelled"})
POLLER = "*api*"  # no worker's id: the hub wakes it when the server stops

TaskState = Mapping[str, Any]
CLOSING: TaskState = {}  # the server is stopping
log = structlog.get_logger()


class StateRows(Protocol):
    """The states of tasks."""

    async def task_states(self, task_ids: Sequence[str]) -> Sequence[TaskState]: ...


def mark_of(state: TaskState | None) -> str | None:
    """What must differ before a waiter is woken; None if there is no such task."""
    if state is None:
        return None
    progress = json.dumps(state["progress"], sort_keys=True).encode()
    return f"{state['version']}-{hashlib.sha256(progress).hexdigest()[:16]}"


class TaskWatch:
    """The waiting callers of one process. All methods run on one event loop."""

    def __init__(self, rows: StateRows, wakeups: WakeupHub) -> None:
        self._rows, self._wakeups = rows, wakeups
        # task id -> who waits for it, and the mark of what each has seen
        self._waiters: dict[str, dict[asyncio.Future[TaskState | None], str | None]] = defaultdict(dict)
        self._by_token: Counter[str] = Counter()
        self._polling: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether the server is stopping, so that no caller waits any longer."""
        return self._wakeups.closed

    @contextmanager
    def place(self, token: str) -> Iterator[None]:
        """A place to wait in. Raises Problem if the token, or the process, has no place left."""
        if self._by_token[token] >= MAX_WAITS_PER_TOKEN or self._by_token.total() >= MAX_WAITS:
            most = f"{MAX_WAITS_PER_TOKEN} calls of one token, or {MAX_WAITS} of all, may wait"
            raise too_fast(most, FULL_RETRY_S)
        self._by_token[token] += 1
        try:
            yield
        finally:
            self._by_token[token] -= 1
            if not self._by_token[token]:
                del self._by_token[token]

    async def changed(self, task_id: str, seen: TaskState, timeout_s: float) -> TaskState | None:
        """The state of a task once it differs from `seen`; `seen` when the time is up; None if the task is gone."""
        if self.closed or timeout_s <= 0:
            return seen
        waiter: asyncio.Future[TaskState | None] = asyncio.get_running_loop().create_future()
        self._waiters[task_id][waiter] = mark_of(seen)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="api_task_watch", context=Context())
        try:
            async with asyncio.timeout(timeout_s):
                changed = await waiter
        except TimeoutError:
            return seen
        else:
            return seen if changed is CLOSING else changed
        finally:
            del self._waiters[task_id][waiter]
            if not self._waiters[task_id]:
                del self._waiters[task_id]

    async def _poll(self) -> None:
        while self._waiters:
            await self._wakeups.wait(None, POLL_S, worker_id=POLLER)
            if self.closed:
                break
            asked = {task_id: tuple(waiters.items()) for task_id, waiters in self._waiters.items()}
            try:
                found = {state["id"]: state for state in await self._rows.task_states(list(asked))}
            except PortError as error:
                log.info("api_watch_failed", why=f"{type(error).__name__}: {error}"[:300])
                continue
            for task_id, waiters in asked.items():
                state = found.get(task_id)
                for waiter, mark in waiters:
                    if mark_of(state) != mark and not waiter.done():
                        waiter.set_result(state)
        for waiter in [one for waiters in self._waiters.values() for one in waiters]:
            if not waiter.done():
                waiter.set_result(CLOSING)
