"""Executes actions concurrently and bounded. Each is a compare-and-set, or idempotent by the worker's name.

This module decides nothing about the fleet: a function records the answer of a port, and the next tick decides. A
worker or pod with a running action is `in_flight`, and the planner leaves it alone meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import assert_never

import structlog

from orchestrator.core import actions as act
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.policy import Policy
from orchestrator.loop.row_writer import RowWriter
from orchestrator.observability import log_phrases
from orchestrator.pods.create import PodCreator
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import Cloud, LostRace, NotLeader, PortError, Store

# How many actions run at once. Pods that do not answer must not delay a delete.
CONCURRENT_FLUSHES, CONCURRENT_QUESTIONS, CONCURRENT_OTHERS = 32, 100, 32
MAX_PAUSE_S = 300.0  # the longest pause between two refused deletes of an orphan, or two tries of a crashing action
MAX_DOUBLINGS = 10
CRASH_PAUSE_S = 2.0  # after a crashed action; doubles with each crash in a row
CANCEL_S = 0.5  # for a cancelled action to close its attempt row
ROWS_ONLY = (act.Adopt, act.UpdateAddress, act.Wait, act.SetActivity, act.Terminate, act.Rescue)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PodOperations:
    """The executor's operations on pods."""

    creator: PodCreator
    bring_up: Callable[[int, Worker], Awaitable[None]]  # term, worker
    ask: Callable[[int, Worker, bool], Awaitable[None]]  # term, a silent worker, whether most others are heard
    teardown: Teardown
    disconnect: Callable[[str], Awaitable[None]]  # worker id: close its SSH connection


@dataclass(frozen=True, slots=True)
class Crashes:
    """How often in a row an action on one worker or pod crashed, and until when it pauses."""

    count: int
    until_s: float  # on the loop's clock


def _nothing() -> None:
    """The default of `wake`."""


class Executor:
    """Executes the actions of one orchestrator."""

    def __init__(self, store: Store, cloud: Cloud, pods: PodOperations, policy: Policy) -> None:
        """`store` is for the rows for which a tick waits. Background actions have another connection."""
        self._cloud, self._pods = cloud, pods
        self._policy = policy
        self._rows = RowWriter(store, pods.teardown, policy, self._stop_bringup)
        self._pools = {pool.name: pool for pool in policy.pools}
        self.wake: Callable[[], None] = _nothing  # called at the end of an action; the daemon sets it
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._bringups: dict[str, asyncio.Task[bool]] = {}
        # pod id -> the time until which a list may still show it, on the loop's clock
        self._deleted_orphans: dict[str, float] = {}
        self._refused: dict[str, int] = {}  # orphan pod id -> how often in a row its delete failed
        self._crashes: dict[tuple[str, str], Crashes] = {}  # by worker or pod id and the action's name
        self._gates: dict[type[act.Action], asyncio.Semaphore] = {
            act.Flush: asyncio.Semaphore(CONCURRENT_FLUSHES),
            act.AskPod: asyncio.Semaphore(CONCURRENT_QUESTIONS),
        }
        self._other_gate = asyncio.Semaphore(CONCURRENT_OTHERS)

    @property
    def in_flight(self) -> frozenset[str]:
        """Return the worker and pod ids with a running action, or with one whose effect no list can show yet."""
        now_s = asyncio.get_running_loop().time()
        self._deleted_orphans = {
            pod_id: until_s for pod_id, until_s in self._deleted_orphans.items() if until_s > now_s
        }
        return frozenset(self._running) | frozenset(self._deleted_orphans) | self._paused_after_crash(bringups=False)

    @property
    def bringing_up(self) -> frozenset[str]:
        """Return the workers whose bring-up runs, or pauses after a crash."""
        return frozenset(self._bringups) | self._paused_after_crash(bringups=True)

    def _paused_after_crash(self, *, bringups: bool) -> frozenset[str]:
        """Return the worker and pod ids whose action pauses after a crash."""
        now_s = asyncio.get_running_loop().time()
        self._crashes = {key: one for key, one in self._crashes.items() if one.until_s + MAX_PAUSE_S > now_s}
        paused = (key for key, one in self._crashes.items() if one.until_s > now_s)
        return frozenset(subject for subject, name in paused if (name == act.ContinueBringUp.__name__) == bringups)

    async def start(self, term: int, snapshot: Snapshot, actions: tuple[act.Action, ...]) -> None:
        """Write the rows of all actions, then begin the calls to the outside world. Return when the rows are written.

        Intents and moves are rows before the next snapshot. Otherwise the next tick would decide them again.
        """
        self._pods.creator.database_id = snapshot.database_id
        workers = {worker.id: worker for worker in snapshot.workers}
        if snapshot.pods is not None:
            self._refused = {pod.id: self._refused[pod.id] for pod in snapshot.pods if pod.id in self._refused}
        written = await asyncio.gather(*(self._recorded(a, self._rows.write(term, a)) for a in actions))
        for action, is_written in zip(actions, written, strict=True):
            if not is_written or isinstance(action, ROWS_ONLY):
                continue
            if isinstance(action, act.ContinueBringUp):
                self._begin(
                    self._bringups, action.worker_id, action, self._pods.bring_up(term, workers[action.worker_id])
                )
            else:
                key = action.pod_id if isinstance(action, act.DeleteOrphan) else action.worker_id
                self._begin(self._running, key, action, self._gated(term, action, workers.get(key)))

    def stop_bringups(self) -> None:
        """Cancel every bring-up in this process. The leader's next tick begins it again."""
        for task in self._bringups.values():
            task.cancel()

    def _stop_bringup(self, worker_id: str) -> None:
        if worker_id in self._bringups:
            self._bringups[worker_id].cancel()

    async def settle(self, timeout_s: float) -> None:
        """Wait for running actions, at most `timeout_s`, then cancel the rest."""
        tasks = [*self._running.values(), *self._bringups.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:  # with a bound: before Python 3.12, a library's wait_for may swallow a cancel
            await asyncio.wait(late, timeout=CANCEL_S)

    def _begin(self, table: dict[str, asyncio.Task[bool]], key: str, action: act.Action, work: Awaitable[None]) -> None:
        if key in table:
            if isinstance(work, Coroutine):
                work.close()
            return
        name = type(action).__name__
        task = asyncio.create_task(self._recorded(action, work, (key, name)), name=f"{name}:{key}")
        table[key] = task
        task.add_done_callback(lambda _: (table.pop(key, None), self.wake()))

    async def _gated(self, term: int, action: act.Effect, worker: Worker | None) -> None:
        async with self._gates.get(type(action), self._other_gate):
            await self._carry_out(term, action, worker)

    async def _recorded(
        self, action: act.Action, work: Awaitable[None], crash_key: tuple[str, str] | None = None
    ) -> bool:
        """Run an action and log every error. This is the executor's only broad except; the next tick decides.

        After a crash, the next run of the same action is delayed: it would probably crash again.
        """
        crashes = self._crashes.pop(crash_key, None) if crash_key else None
        name, subject = act.kind_of(type(action)), getattr(action, "worker_id", getattr(action, "pod_id", None))
        try:
            await work
        except (LostRace, NotLeader) as error:
            log.info("action_superseded", action=name, worker=subject, error=str(error))
        except PortError as error:
            words = log_phrases.RESET if isinstance(action, act.Rescue) else f"{name} failed"
            facts = {"action": name, "worker": subject, "error": f"{type(error).__name__}: {error}"}
            log.warning("action_failed", message=f"{words}: {error}", **facts)
        except Exception:
            log.exception("action_crashed", action=name, worker=subject)
            if crash_key:
                count = min(crashes.count + 1 if crashes else 1, MAX_DOUBLINGS)
                pause_s = min(CRASH_PAUSE_S * 2 ** (count - 1), MAX_PAUSE_S)
                self._crashes[crash_key] = Crashes(count, asyncio.get_running_loop().time() + pause_s)
        else:
            return True
        return False

    async def _carry_out(self, term: int, action: act.Effect, worker: Worker | None) -> None:
        match action:
            case act.Spawn() | act.Create():
                await self._pods.creator.create(
                    term, action.worker_id, self._pools[action.pool], action.offer, action.usd_per_hour
                )
            case act.AskPod():
                await self._pods.ask(term, _known(worker, action.worker_id), action.others_are_heard)
            case act.Flush():
                await self._pods.teardown.flush(term, action, _known(worker, action.worker_id))
            case act.Delete():
                await self._pods.teardown.delete(term, action)
            case act.MarkTerminated():
                await self._pods.disconnect(action.worker_id)
            case act.DeleteOrphan():
                await self._delete_orphan(action)
            case _:
                assert_never(action)

    async def _delete_orphan(self, action: act.DeleteOrphan) -> None:
        """Delete an orphan. The pause before the next try grows with each refusal."""
        refusals = self._refused.pop(action.pod_id, 0)
        pause_s = min(self._policy.delete_retry_s * 2**refusals, MAX_PAUSE_S)
        try:
            deleted = await self._cloud.delete_pod(action.pod_id)
            log.warning("orphan_deleted", pod=action.pod_id, reason=action.reason, deleted=deleted)
        except PortError:
            self._refused[action.pod_id] = min(refusals + 1, MAX_DOUBLINGS)
            raise
        finally:
            self._deleted_orphans[action.pod_id] = asyncio.get_running_loop().time() + pause_s


def _known(worker: Worker | None, worker_id: str) -> Worker:
    if worker is None:
        raise LostRace(f"worker {worker_id} is no longer live")
    return worker
