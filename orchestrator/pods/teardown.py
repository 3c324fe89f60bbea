"""Teardown: drain, flush, delete. In each step, the row names who must act, what the worker waits for, and until when.

A step is level-triggered: if it is cut off, a later tick begins it again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import structlog

from orchestrator.core import actions as act
from orchestrator.core.exit_causes import ABRUPT, ExitCause
from orchestrator.core.model import Worker
from orchestrator.core.plurals import counted
from orchestrator.core.pod_tracking import LISTING_LAG_S
from orchestrator.core.policy import Policy
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata, metadata
from orchestrator.pods import final_snapshot
from orchestrator.ports import Cloud, HostKeyChanged, PortError, StageAttempt, Store, Unavailable

RETRY_S = 5.0  # seconds before a failed flush or delete is tried again
MAX_RETRY_S = 300.0  # of a delete: the pause doubles with each failure
MAX_DOUBLINGS = 10
UNREACHED_RETRY_S = 2.0  # seconds before the next connection to a pod that did not answer
ABSENCE = "RunPod's confirmation that the pod is gone"
NAMED_TASKS = 5  # of a draining worker's tasks, in its row
log = structlog.get_logger()


class _Unreached(Unavailable):
    """The pod does not answer."""


class Teardown:
    """The executor's operations on a terminating worker."""

    def __init__(
        self,
        store: Store,
        cloud: Cloud,
        *,
        take_snapshot: Callable[[Worker], Awaitable[Mapping[str, Any]]],
        finish_logs: Callable[[int, Worker, bool], Awaitable[int]],
        policy: Policy,
    ) -> None:
        self._store, self._cloud, self._policy = store, cloud, policy
        self._take_snapshot, self._finish_logs = take_snapshot, finish_logs

    async def begin(self, term: int, action: act.Terminate) -> Worker:
        """Move the worker to terminating: from this statement on, it gets no new task.

        A worker that ends abruptly does not drain.
        """
        failed = action.cause in ABRUPT
        fields: dict[str, Any] = {"exit_cause": action.cause, "failure_code": action.code, "next_attempt_s": 0}
        if failed:
            fields |= {"waiting_on": WaitingOn.ORCHESTRATOR, "waiting_for": "the flush of its logs"}
        else:
            fields |= {"waiting_on": WaitingOn.WORKER, "waiting_for": "the tasks it may hold to end"}
        if action.listed_at is not None:
            fields["metadata"] = metadata(listed_at=action.listed_at.isoformat())
        elif action.cause is ExitCause.TASK_STUCK:  # the argument names the stuck task
            fields["metadata"] = metadata(stuck_s=self._policy.task_stuck_s)
        return await self._store.move(
            term,
            action.worker_id,
            from_states=[action.from_state],
            to_state=State.TERMINATING,
            stage=Stage.DRAINING,
            reason=action.reason,
            fields=fields | {"deadline_s": self._policy.flush_deadline_s if failed else self._policy.drain_grace_s},
        )

    async def name_tasks(self, term: int, action: act.Terminate) -> None:
        """Record the tasks for which a drain waits, or the cluster. After `begin`, no task is added."""
        found = await self._store.worker(action.worker_id)
        held, cluster = [row for row in found["tasks"] if row["ended_at"] is None], found["worker"]["cluster"]
        waits = f"the Slurm jobs on its node of cluster {cluster} to end" if cluster and not held else _tasks(held)
        await self._note(term, action.worker_id, action.reason, waiting_for=waits)

    async def flush(self, term: int, action: act.Flush, worker: Worker) -> None:
        """Take the final snapshot, stop the agent, ship the logs or declare them lost, then move to deleting.

        A pod without an agent gets one try for the snapshot, if SSH was ever reached.
        """
        fields: dict[str, Any] = {"waiting_on": WaitingOn.ORCHESTRATOR, "next_attempt_s": RETRY_S}
        if worker.stage is not Stage.FLUSHING:  # the deadline begins with the first try
            fields |= {"waiting_for": "the last log bytes", "deadline_s": self._policy.flush_deadline_s}
        await self._store.move(
            term,
            worker.id,
            from_states=[State.TERMINATING],
            stage=None if worker.stage is Stage.FLUSHING else Stage.FLUSHING,
            reason=action.reason,
            fields=fields,
        )
        reason = "no agent ever wrote a log there"
        if worker.nonce is not None:
            try:
                async with asyncio.timeout(self._policy.flush_deadline_s):
                    reason = await self._finish(term, action, worker)
            except (PortError, TimeoutError) as error:
                unflushed = await self._unflushed(term, action, worker.id, error)
                if not action.final:
                    raise unflushed from error
                log.warning("logs_given_up", worker=worker.id, why=str(unflushed))
                reason = f"its logs could be neither shipped nor declared lost, and the pod costs money: {unflushed}"
        elif action.reachable and worker.metadata.last_snapshot is None:
            await self._take_snapshot_once(term, action, worker)
        await self._store.move(
            term,
            worker.id,
            from_states=[State.TERMINATING],
            stage=Stage.DELETING,
            reason=reason,
            fields={
                "waiting_on": WaitingOn.ORCHESTRATOR,
                "waiting_for": "the delete call",
                "deadline_s": self._policy.drain_grace_s,
                "next_attempt_s": 0,
            },
        )

    async def delete(self, term: int, action: act.Delete) -> None:
        """Request the deletion of the pod. Its absence from the provider's lists confirms it."""
        attempt = await self._store.open_attempt(term, action.worker_id, Stage.DELETING)
        result = StageAttempt("cancelled")
        try:
            known = await self._cloud.delete_pod(action.pod_id)
            result = StageAttempt("ok", evidence={"pod_id": action.pod_id, "known": known})
        except PortError as error:
            result = StageAttempt("failed", None, type(error).__name__, {"error": str(error)[:300]})
        finally:
            await self._store.close_attempt(term, attempt, result)
        sent = result.outcome == "ok"
        rows = [
            row for row in (await self._store.worker(action.worker_id))["attempts"] if row["stage"] == Stage.DELETING
        ]
        begun = [row["started_at"] for row in rows]
        pause_s = self._policy.delete_retry_s if sent else _pause_s(rows)
        await self._note(
            term,
            action.worker_id,
            action.reason,
            pod_id=action.pod_id,
            waiting_on=WaitingOn.PROVIDER if sent else WaitingOn.ORCHESTRATOR,
            waiting_for=f"{ABSENCE if sent else 'the delete call to succeed'} ({_asked(begun)})",
            next_attempt_s=pause_s,
            metadata=metadata(deletes=len(begun)) if len(begun) > 1 or not action.listed else {},
            # A pod that was never listed may still appear during this time. Until then, its absence does not count.
            deadline_s=max(self._policy.drain_grace_s, LISTING_LAG_S, pause_s + RETRY_S),
        )
        facts = {"worker": action.worker_id, "pod": action.pod_id, "reason": action.reason, **(result.evidence or {})}
        (log.info if sent else log.warning)("pod_deleted" if sent else "pod_undeleted", **facts)

    async def _finish(self, term: int, action: act.Flush, worker: Worker) -> str:
        """Take the final snapshot, then ship the rest of the logs. Return a text about the logs.

        A machine with another host key is sent nothing: it never had these logs.
        """
        try:
            await self._keep_snapshot(term, action, worker)
            beyond_budget = await self._finish_logs(term, worker, action.reachable)
        except HostKeyChanged as error:
            await self._finish_logs(term, worker, False)
            return f"the rest of its logs is declared lost, HOST_KEY_CHANGED: {error}"[:500]
        if beyond_budget:
            return f"the last {beyond_budget} bytes of its logs, beyond what they may take an hour, are declared lost"
        if action.reachable:
            return "its logs are safe"
        return f"the rest of its logs is declared lost: {action.reason}"

    async def _unflushed(self, term: int, action: act.Flush, worker_id: str, error: Exception) -> Unavailable:
        """Record in the row why the logs are late, and return it as an error."""
        why = f"{type(error).__name__}: {error}" if str(error) else "they did not arrive in time"
        row = (await self._store.worker(worker_id))["worker"]
        waits, _, _ = str(row["waiting_for"]).partition(" (last try: ")
        fields: dict[str, Any] = {"waiting_for": f"{waits} (last try: {why[:300]})"}
        unreached = isinstance(error, _Unreached)
        fields["metadata"] = metadata(unreached=WorkerMetadata.of(row["metadata"]).unreached + 1 if unreached else 0)
        if unreached:
            fields["next_attempt_s"] = UNREACHED_RETRY_S
        await self._note(term, worker_id, action.reason, **fields)
        return Unavailable(f"the last log bytes: {why}")

    async def _keep_snapshot(self, term: int, action: act.Flush, worker: Worker) -> None:
        """Take the final snapshot. Keep the first one that reached the pod: after the agent's stop, less can be read.

        Each try begins with a snapshot, so that an unreachable pod is distinguished from an unavailable bucket.
        """
        kept = worker.metadata.last_snapshot
        if not action.reachable and kept is not None:
            return
        seen = await self._take_snapshot(worker) if action.reachable else final_snapshot.unknown(action.reason)
        if kept is not None and kept.get("reached"):  # its agent has been stopped since then
            seen = {**seen, "agent": None}
        if kept is None or (seen["known"] and not kept.get("known")):
            await self._note(term, worker.id, action.reason, metadata=metadata(last_snapshot=seen))
        if action.reachable and seen.get("reached") is False:
            raise _Unreached(str(seen["why"]))

    async def _take_snapshot_once(self, term: int, action: act.Flush, worker: Worker) -> None:
        """Store the snapshot, or why there is none."""
        try:
            seen = await self._take_snapshot(worker)
        except HostKeyChanged as error:
            seen = final_snapshot.unknown(f"HOST_KEY_CHANGED: {error}")
        await self._note(term, worker.id, action.reason, metadata=metadata(last_snapshot=seen))

    async def _note(self, term: int, worker_id: str, reason: str, **fields: Any) -> None:
        await self._store.move(term, worker_id, from_states=[State.TERMINATING], reason=reason, fields=fields)


def _pause_s(attempts: Sequence[Mapping[str, Any]]) -> float:
    """Return the pause after a delete that failed. It doubles with each failure since the last accepted delete."""
    failed = len(list(takewhile(lambda row: row["outcome"] != "ok", reversed(attempts))))
    return min(RETRY_S * 2.0 ** min(max(failed - 1, 0), MAX_DOUBLINGS), MAX_RETRY_S)


def _asked(times: list[str]) -> str:
    since = min(map(datetime.fromisoformat, times)).astimezone(UTC)
    return f"asked {counted(len(times), 'time')} since {since:%Y-%m-%d %H:%M:%SZ}"


def _tasks(held: list[Mapping[str, Any]]) -> str:
    if not held:
        return "nothing: it held no task when the drain began"
    named = ", ".join(f"{row['task_id']} attempt {row['attempt']}" for row in held[:NAMED_TASKS])
    more = f" and {len(held) - NAMED_TASKS} more" if len(held) > NAMED_TASKS else ""
    return f"the tasks it held when the drain began: {named}{more}"
