"""Carry out actions: one short function each, concurrent and bounded, each a compare-and-set or idempotent by name.

Nothing about the fleet is decided here: a function branches on what a port answered and writes it down; the next tick
thinks about it. A worker or pod with an action under way is `in_flight`, and the planner leaves it alone meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_never

import structlog

from orchestrator.core import actions as act
from orchestrator.core import budget
from orchestrator.core.exit_causes import FAILURES
from orchestrator.core.model import UNREACHED, Policy, Snapshot, Worker
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State
from orchestrator.observability import log_phrases
from orchestrator.pods.create import PodCreator
from orchestrator.pods.host_strikes import remember
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import Cloud, LostRace, NotLeader, PortError, Store

CONCURRENT_ACTIONS = 32
MAX_PAUSE_S = 300.0  # between two deletes of an orphan that are refused, or two tries of an action that crashes
MAX_DOUBLINGS = 10
CRASH_PAUSE_S = 2.0  # after an action that crashed; doubles with each in a row
CANCEL_S = 0.5  # for a cancelled action to close its attempt row
ROWS_ONLY = (act.Adopt, act.UpdateAddress, act.Wait, act.SetActivity, act.Terminate, act.Rescue)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Terms:
    """What every new worker is told: how often to call, and how long its leases last."""

    heartbeat_s: float
    lease_s: float
    own_program: bool


@dataclass(frozen=True, slots=True)
class PodOperations:
    """What an executor does to pods."""

    creator: PodCreator
    bring_up: Callable[[int, Worker], Awaitable[None]]  # term, worker
    teardown: Teardown
    disconnect: Callable[[str], Awaitable[None]]  # worker id: close its SSH connection


@dataclass(frozen=True, slots=True)
class Crashes:
    """What an action on one worker or pod came to: how often in a row it crashed, and until when it rests."""

    count: int
    until_s: float  # on the loop's clock


def _nothing() -> None:
    """Nobody waits for the end of an action."""


class Executor:
    """The hands of one orchestrator."""

    def __init__(self, store: Store, cloud: Cloud, pods: PodOperations, policy: Policy, terms: Terms) -> None:
        """`store` is for the rows that a tick waits for; what goes on beside the tick has another connection."""
        self._store, self._cloud, self._pods = store, cloud, pods
        self._policy, self._terms = policy, terms
        self._pools = {pool.name: pool for pool in policy.pools}
        self.wake: Callable[[], None] = _nothing  # called when something has ended; the daemon sets it
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._bringups: dict[str, asyncio.Task[bool]] = {}
        self._reaped: dict[str, float] = {}  # pod id -> until when a list may still show it, on the loop's clock
        self._refused: dict[str, int] = {}  # orphan pod id -> how often in a row its delete failed
        self._crashes: dict[tuple[str, str], Crashes] = {}  # by worker or pod id and the action's name
        self._gate = asyncio.Semaphore(CONCURRENT_ACTIONS)

    @property
    def in_flight(self) -> frozenset[str]:
        """Worker and pod ids on which an action is under way, or was taken just now and cannot show yet."""
        now_s = asyncio.get_running_loop().time()
        self._reaped = {pod_id: until_s for pod_id, until_s in self._reaped.items() if until_s > now_s}
        return frozenset(self._running) | frozenset(self._reaped) | self._resting(bringups=False)

    @property
    def bringing_up(self) -> frozenset[str]:
        """Workers whose bring-up is under way, or rests after a crash."""
        return frozenset(self._bringups) | self._resting(bringups=True)

    def _resting(self, *, bringups: bool) -> frozenset[str]:
        """Worker and pod ids whose action crashed just now."""
        now_s = asyncio.get_running_loop().time()
        self._crashes = {key: one for key, one in self._crashes.items() if one.until_s + MAX_PAUSE_S > now_s}
        resting = (key for key, one in self._crashes.items() if one.until_s > now_s)
        return frozenset(subject for subject, name in resting if (name == act.ContinueBringUp.__name__) == bringups)

    async def start(self, term: int, snapshot: Snapshot, actions: tuple[act.Action, ...]) -> None:
        """Write down what was decided, then begin what takes the world; returns when all of it is written.

        Intents and moves are rows before the next snapshot is taken: a tick that came sooner would decide them again.
        """
        self._pods.creator.database_id = snapshot.database_id
        workers = {worker.id: worker for worker in snapshot.workers}
        if snapshot.pods is not None:
            self._refused = {pod.id: self._refused[pod.id] for pod in snapshot.pods if pod.id in self._refused}
        written = await asyncio.gather(*(self._recorded(a, self._write(term, a)) for a in actions))
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
        """Give up every bring-up here; the leader's next tick begins it again."""
        for task in self._bringups.values():
            task.cancel()

    async def settle(self, timeout_s: float) -> None:
        """Wait until nothing is under way, at most `timeout_s`; what is left is cancelled."""
        tasks = [*self._running.values(), *self._bringups.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:  # bounded again: before Python 3.12 a library's wait_for may swallow a cancel
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
        async with self._gate:
            await self._carry_out(term, action, worker)

    async def _recorded(
        self, action: act.Action, work: Awaitable[None], resting: tuple[str, str] | None = None
    ) -> bool:
        """The one broad except: an action that goes wrong is written down, and the next tick decides.

        One that crashed rests first: the same would happen again.
        """
        crashes = self._crashes.pop(resting, None) if resting else None
        name, subject = act.kind_of(type(action)), getattr(action, "worker_id", getattr(action, "pod_id", None))
        try:
            await work
        except (LostRace, NotLeader) as error:
            log.info("action_superseded", action=name, worker=subject, error=str(error))
        except PortError as error:
            words = log_phrases.RESET if isinstance(action, act.Rescue) else f"{name} failed"
            said = {"action": name, "worker": subject, "error": f"{type(error).__name__}: {error}"}
            log.warning("action_failed", message=f"{words}: {error}", **said)
        except Exception:
            log.exception("action_crashed", action=name, worker=subject)
            if resting:
                count = min(crashes.count + 1 if crashes else 1, MAX_DOUBLINGS)
                pause_s = min(CRASH_PAUSE_S * 2 ** (count - 1), MAX_PAUSE_S)
                self._crashes[resting] = Crashes(count, asyncio.get_running_loop().time() + pause_s)
        else:
            return True
        return False

    async def _write(self, term: int, action: act.Action) -> None:
        """The rows of an action: all of it, or what must stand before its effect."""
        match action:
            case act.Spawn():
                await self._intend(term, action)
            case act.Adopt():
                await self._adopt(term, action)
            case act.UpdateAddress():
                await self._readdress(term, action)
            case act.Wait():
                await self._wait(term, action)
            case act.SetActivity():
                await self._move(
                    term, action.worker_id, action.from_state, to_state=action.to_state, reason=action.reason
                )
            case act.Terminate():
                await self._terminate(term, action)
            case act.MarkTerminated():
                await self._bury(term, action)
            case act.Rescue():
                await self._rescue(term, None, action.reason, action.over_s)
            case act.Create() | act.ContinueBringUp() | act.Flush() | act.Delete() | act.DeleteOrphan():
                pass
            case _:
                assert_never(action)

    async def _carry_out(self, term: int, action: act.Effect, worker: Worker | None) -> None:
        match action:
            case act.Spawn() | act.Create():
                await self._pods.creator.create(
                    term, action.worker_id, self._pools[action.pool], action.offer, action.usd_per_hour
                )
            case act.Flush():
                await self._pods.teardown.flush(term, action, _known(worker, action.worker_id))
            case act.Delete():
                await self._pods.teardown.delete(term, action)
            case act.MarkTerminated():
                await self._pods.disconnect(action.worker_id)
            case act.DeleteOrphan():
                await self._reap(action)
            case _:
                assert_never(action)

    async def _reap(self, action: act.DeleteOrphan) -> None:
        """Delete an orphan; the more often that was refused, the longer the next try waits."""
        refusals = self._refused.pop(action.pod_id, 0)
        pause_s = min(self._policy.delete_retry_s * 2**refusals, MAX_PAUSE_S)
        try:
            deleted = await self._cloud.delete_pod(action.pod_id)
            log.warning("pod_reaped", pod=action.pod_id, reason=action.reason, deleted=deleted)
        except PortError:
            self._refused[action.pod_id] = min(refusals + 1, MAX_DOUBLINGS)
            raise
        finally:
            self._reaped[action.pod_id] = asyncio.get_running_loop().time() + pause_s

    async def _intend(self, term: int, action: act.Spawn) -> None:
        pool = self._pools[action.pool]
        intent: dict[str, Any] = {
            "id": action.worker_id,
            "pool": action.pool,
            "gpu_type": action.offer.gpu_type,
            "gpu_count": pool.gpu_count,
            "data_center": action.offer.data_center,
            "release": self._policy.release(pool),
            "heartbeat_s": self._terms.heartbeat_s,
            "lease_s": self._terms.lease_s,
            "own_program": self._terms.own_program,
            "deadline_s": STAGE_SPECS[Stage.INTENT].deadline_s,
            "actor": "orchestrator",
            "reason": action.reason,
            "metadata": {"offer": action.offer.key},
        } | budget.reservation(action.usd_per_hour, self._policy)
        if not await self._store.spawn(term, intent):
            raise LostRace(f"worker {action.worker_id} exists already")
        log.info("worker_intended", worker=action.worker_id, pool=action.pool, reason=action.reason)

    async def _adopt(self, term: int, action: act.Adopt) -> None:
        rung = STAGE_SPECS[Stage.POD_RUNNING]
        await self._move(
            term,
            action.worker_id,
            State.SPAWNING,
            stage=Stage.POD_RUNNING,
            reason=action.reason,
            pod_id=action.pod_id,
            billed_s=action.billed_s,
            waiting_on=rung.waiting_on,
            waiting_for="the pod to run",
            deadline_s=rung.deadline_s,
            next_attempt_s=0,
            **budget.rented(action.usd_per_hour, self._policy),
        )
        log.warning("pod_adopted", worker=action.worker_id, pod=action.pod_id, reason=action.reason)

    async def _readdress(self, term: int, action: act.UpdateAddress) -> None:
        """The pinned host key stays; what nobody answered at the old address says nothing of the new one."""
        where: dict[str, Any] = {"ssh_host": action.host, "ssh_port": action.port, "metadata": {UNREACHED: 0}}
        await self._move(term, action.worker_id, action.from_state, reason=action.reason, **where)
        log.warning("worker_readdressed", worker=action.worker_id, reason=action.reason)

    async def _wait(self, term: int, action: act.Wait) -> None:
        await self._move(
            term,
            action.worker_id,
            action.from_state,
            reason=action.waiting_for,
            waiting_on=action.waiting_on,
            waiting_for=action.waiting_for,
            next_attempt_s=action.until_s,
            deadline_s=action.deadline_s,
        )

    async def _terminate(self, term: int, action: act.Terminate) -> None:
        ended = await self._pods.teardown.begin(term, action)
        if action.worker_id in self._bringups:
            self._bringups[action.worker_id].cancel()
        said = {"worker": action.worker_id, "cause": action.cause, "code": action.code, "reason": action.reason}
        words = log_phrases.of_failure(action.code, "worker ends")
        tell = log.warning if action.cause in FAILURES else log.info
        tell("worker_terminating", message=f"{words}: {action.reason}", **said)
        if action.cause in FAILURES:
            await self._rescue(term, action.worker_id, action.reason)
            await remember(self._store, term, ended, action.code, {"why": action.reason})
        elif ended.tasks_running:
            await self._pods.teardown.name_tasks(term, action)

    async def _bury(self, term: int, action: act.MarkTerminated) -> None:
        await self._store.move(
            term,
            action.worker_id,
            from_states=[State.TERMINATING],
            to_state=State.TERMINATED,
            stage=Stage.GONE,
            reason=action.reason,
        )
        log.info("worker_terminated", worker=action.worker_id, reason=action.reason)

    async def _rescue(self, term: int, worker_id: str | None, reason: str, over_s: float = 0) -> None:
        for task in await self._store.rescue(term, worker_id=worker_id, over_s=over_s):
            event = "task_rescue_refused" if task["outcome"] == "refused" else "task_rescued"
            log.warning(event, task=task["id"], worker=task["worker_id"], outcome=task["outcome"], reason=reason)

    async def _move(
        self,
        term: int,
        worker_id: str,
        state: State,
        *,
        to_state: State | None = None,
        stage: Stage | None = None,
        reason: str,
        **fields: Any,
    ) -> None:
        await self._store.move(
            term, worker_id, from_states=[state], to_state=to_state, stage=stage, reason=reason, fields=fields
        )


def _known(worker: Worker | None, worker_id: str) -> Worker:
    if worker is None:
        raise LostRace(f"worker {worker_id} is not live any more")
    return worker
