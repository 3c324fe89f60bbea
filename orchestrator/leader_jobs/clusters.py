"""Clusters: reads the rows and the members of each cluster, plans, and carries the plan out.

A step never waits for a pod: probes and calls run in the background, one at a time for each member. What a leader
remembers (readings, running calls, pauses after failures) is lost when another process leads, and derived again.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import median

import structlog

from orchestrator.clusters import configuration
from orchestrator.clusters.execute import ROWS_ONLY, Calls, ClusterExecutor
from orchestrator.clusters.node import NodeFailed
from orchestrator.clusters.operations import OperationStep, begun, outcomes
from orchestrator.clusters.probing import Prober
from orchestrator.core.cluster_states import LIVE_MEMBER, MemberStatus, OperationStatus
from orchestrator.core.clusters import plan
from orchestrator.core.clusters.actions import ClusterAction, Configure, Reconfigure, Smoke
from orchestrator.core.clusters.details import own_detail
from orchestrator.core.clusters.rows import ClusterReport, ClusterRow, MemberOperation
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView
from orchestrator.ports import LostRace, NotLeader, PortError
from orchestrator.ports.clusters import ClusterRows

TICK_S = 1.0  # of the timer
STEADY_S, MOVING_S = 3.0, 1.0  # between two steps, and while a cluster changes; one comes also after each probe
REST_S = 60.0  # without a cluster pool and without a cluster
PROBE_S, MOVING_PROBE_S = 6.0, 2.0  # between two probes of a member: a cause is to be explained within 15 s
QUEUED_S = 15.0  # between two looks at a smoke job that waits in Slurm's queue
CANCEL_S = 2.0  # for cancelled calls to end
ENDING = ClusterPolicy(configuration.conf_sha)  # of clusters without a pool
log = structlog.get_logger()


class Clusters:
    """The clusters of one leader."""

    def __init__(
        self,
        rows: ClusterRows,
        prober: Prober,
        executor: ClusterExecutor,
        policies: Mapping[str, ClusterPolicy],
    ) -> None:
        """`policies`: by pool. A cluster of a pool that is not configured as one fails soon."""
        self._rows, self._prober, self._executor, self._policies = rows, prober, executor, policies
        self._running: dict[str, asyncio.Task[None]] = {}  # by worker id, for a smoke job also by the cluster's id
        self._failures: Counter[str] = Counter()  # in a row, by worker or cluster id, or of a cluster's plan
        self._retry_at: dict[str, datetime] = {}
        self._without_pool: dict[str, datetime] = {}  # cluster id -> since when this leader sees it without its pool
        self._next_s = 0.0  # on the loop's clock
        self._term: int | None = None  # of the running step; None once this process no longer leads

    async def step(self, term: int) -> None:
        """Continue every cluster. Raises PortError if the rows cannot be read."""
        if not self._prober.take_news() and asyncio.get_running_loop().time() < self._next_s:
            return
        self._term = term
        report = await self._rows.report()
        self._prober.set_clock(report.now)
        if report.clusters:
            await self._rows.sweep(term)
        self._forget_others(report)
        moving = [await self._advance(term, row, report.now) for row in report.clusters]
        steady_s = STEADY_S if self._policies or report.clusters else REST_S
        self._next_s = asyncio.get_running_loop().time() + (MOVING_S if any(moving) else steady_s)

    async def stop(self) -> None:
        """Cancel everything, and forget it: this process no longer leads. A running step begins nothing more."""
        self._term = None
        tasks = list(set(self._running.values()))
        for task in tasks:
            task.cancel()
        self._running.clear()
        self._failures.clear()
        self._retry_at.clear()
        self._without_pool.clear()
        await self._prober.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)

    async def _advance(self, term: int, row: ClusterRow, now: datetime) -> bool:
        """Carry out the plan of one cluster. Return whether it changes. Whatever is wrong with it harms only itself."""
        paused_until = self._retry_at.get(_plan_of(row))
        if self._term != term or (paused_until is not None and now < paused_until):
            return False
        try:
            is_moving = await self._carry_out(term, row, now)
        except (NotLeader, LostRace):
            raise
        except PortError as error:
            log.warning("cluster_delayed", cluster=row.id, error=f"{type(error).__name__}: {error}")
            return True
        except Exception:  # a row that a user changed, or a bug: the other clusters continue
            pause_s = self._pause(_plan_of(row))
            log.exception("cluster_plan_failed", cluster=row.id, retry_s=pause_s)
            return False
        self._succeeded(_plan_of(row))
        return is_moving

    async def _carry_out(self, term: int, row: ClusterRow, now: datetime) -> bool:
        in_flight = frozenset(self._running)
        view = ClusterView(row, now, self._prober.observed, in_flight, self._retry_at, _usual_price(row))
        is_moving = plan.is_moving(view)
        self._prober.begin(row, in_flight, MOVING_PROBE_S if is_moving else PROBE_S)
        for step in begun(row):
            await self._move_operation(term, step.operation, OperationStatus.RUNNING, step)
        for step in outcomes(row):
            result = OperationStatus.SUCCEEDED if step.error is None else OperationStatus.FAILED
            await self._move_operation(term, step.operation, result, step)
        for action in self._plan(view):
            await self._start(term, row, action)
        return is_moving

    def _plan(self, view: ClusterView) -> tuple[ClusterAction, ...]:
        row, policy = view.row, self._policies.get(view.row.pool)
        if policy is not None:
            return plan.plan(view, policy)
        since = self._without_pool.setdefault(row.id, view.now)
        return plan.plan_without_pool(view, since, ENDING)

    async def _start(self, term: int, row: ClusterRow, action: ClusterAction) -> None:
        if isinstance(action, ROWS_ONLY):
            await self._executor.write(term, row, action)
            return
        operation_id = getattr(action, "operation_id", None)
        waiting = [OperationStatus.ACCEPTED, OperationStatus.DISPATCHED]  # the second: by a leader that is gone
        if operation_id is not None and not await self._rows.move_operation(
            term, operation_id, waiting, OperationStatus.DISPATCHED
        ):
            return
        if self._term != term:  # stopped meanwhile
            return
        self._prober.forget(action.worker_id)
        kind = type(action).__name__
        task = asyncio.create_task(self._call(term, row, action), name=f"{kind}:{action.worker_id}")
        keys = [action.worker_id, *([row.id] if isinstance(action, Smoke) else [])]
        self._running |= dict.fromkeys(keys, task)
        task.add_done_callback(lambda done: self._ended(keys, done))

    def _ended(self, keys: list[str], done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (crashed := done.exception()) is not None:  # a bug: it stays in the log, and pauses
            pause_s = self._pause(keys[-1])
            log.error("cluster_action_crashed", exc_info=crashed, action=done.get_name(), retry_s=pause_s)
        for key in keys:
            if self._running.get(key) is done:
                del self._running[key]
        self._next_s = 0.0  # the next step looks at the result

    async def _call(self, term: int, row: ClusterRow, action: Calls) -> None:
        """Carry out one call. After a failure, its member pauses, and the cluster's own smoke job too."""
        key = row.id if isinstance(action, Smoke) else action.worker_id
        error: str | None = None
        try:
            is_done = await self._executor.call(term, row, action)
            self._succeeded(key)
            if not is_done:
                self._retry_at[key] = self._prober.now() + timedelta(seconds=QUEUED_S)
        except (NotLeader, LostRace) as superseded:
            log.info("cluster_action_superseded", cluster=row.id, worker=action.worker_id, error=str(superseded))
            return
        except (PortError, NodeFailed) as failed:
            error = f"{type(failed).__name__}: {failed}" if isinstance(failed, PortError) else str(failed)
            pause_s = self._pause(key)
            facts = {"cluster": row.id, "worker": action.worker_id, "action": type(action).__name__, "error": error}
            log.warning("cluster_action_failed", message=f"cluster {row.id}: {error}", retry_s=pause_s, **facts)
        try:
            await self._tell(term, row, action, error)
        except PortError as unwritten:
            log.warning("cluster_delayed", cluster=row.id, error=f"{type(unwritten).__name__}: {unwritten}")

    def _pause(self, key: str) -> float:
        """Begin the pause after one more failure in a row. Return its length in seconds."""
        self._failures[key] += 1
        pause_s = plan.backoff_s(self._failures[key])
        self._retry_at[key] = self._prober.now() + timedelta(seconds=pause_s)
        return pause_s

    def _succeeded(self, key: str) -> None:
        self._failures.pop(key, None)
        self._retry_at.pop(key, None)

    async def _tell(self, term: int, row: ClusterRow, action: Calls, error: str | None) -> None:
        """Record how an operation's call ended, and what a member or the smoke job says is wrong."""
        operation_id = getattr(action, "operation_id", None)
        if operation_id is not None and (error is not None or isinstance(action, Configure | Reconfigure)):
            taken = [OperationStatus.DISPATCHED]
            evidence: dict[str, str] | None = None
            if error is None and isinstance(action, Configure | Reconfigure):
                evidence = {"conf_sha": self._policies.get(row.pool, ENDING).conf_sha(action.configuration)}
            result = OperationStatus.SUCCEEDED if error is None else OperationStatus.FAILED
            await self._rows.move_operation(term, operation_id, taken, result, error=error, evidence=evidence)
        if error is None:
            return
        if isinstance(action, Smoke):
            await self._rows.wait(term, row.id, waiting_for=f"the smoke job, which failed: {error}"[:1000])
            return
        member = next((one for one in row.members if one.worker_id == action.worker_id), None)
        if member is not None and member.status in LIVE_MEMBER - {MemberStatus.DRAINING}:
            detail = own_detail(member) | {"error": error[:1000]}
            await self._rows.move_member(
                term, row.id, member.worker_id, [member.status], None, "its call failed", adapter_detail=detail
            )

    async def _move_operation(
        self, term: int, operation: MemberOperation, to_status: OperationStatus, step: OperationStep
    ) -> None:
        """Record that an operation runs, or its end. One that nobody had taken yet is taken first."""
        status, move = operation.status, self._rows.move_operation
        if status is OperationStatus.ACCEPTED and step.error is None:
            await move(term, operation.id, [status], OperationStatus.DISPATCHED)
            status = OperationStatus.DISPATCHED
        await move(term, operation.id, [status], to_status, error=step.error, evidence=step.evidence)

    def _forget_others(self, report: ClusterReport) -> None:
        live = [m.worker_id for row in report.clusters for m in row.members if m.status in LIVE_MEMBER]
        known = frozenset(live) | {key for row in report.clusters for key in (row.id, _plan_of(row))}
        self._prober.keep(frozenset(live))
        for key in self._failures.keys() - known:
            del self._failures[key]
        self._without_pool = {key: at for key, at in self._without_pool.items() if key in known}
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in known}


def _plan_of(row: ClusterRow) -> str:
    """Return the key of the pause after a plan that failed. No worker and no cluster has such an id."""
    return f"plan of {row.id}"


def _usual_price(row: ClusterRow) -> float | None:
    """Return the median price of the cluster's nodes, in USD per hour."""
    workers = [member.worker for member in row.members if member.worker]
    prices = [one.price_usd_per_hour for one in (*workers, *row.unjoined) if one.price_usd_per_hour is not None]
    return median(prices) if prices else None
