"""Writes the rows of actions: all of them, or those that must exist before an effect on a pod."""

from collections.abc import Callable
from typing import Any, assert_never

import structlog

from orchestrator.core import actions as act
from orchestrator.core import budget
from orchestrator.core.exit_causes import ABRUPT, FAILURES
from orchestrator.core.policy import Policy
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State
from orchestrator.core.worker_metadata import metadata
from orchestrator.observability import log_phrases
from orchestrator.pods.host_strikes import remember
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import LostRace, Store

log = structlog.get_logger()


class RowWriter:
    """Writes rows as the leader of a term."""

    def __init__(self, store: Store, teardown: Teardown, policy: Policy, stop_bringup: Callable[[str], None]) -> None:
        """`stop_bringup` is called with the id of a worker that ends."""
        self._store, self._teardown, self._policy = store, teardown, policy
        self._stop_bringup = stop_bringup
        self._pools = {pool.name: pool for pool in policy.pools}

    async def write(self, term: int, action: act.Action) -> None:
        """Write the rows of an action: all of them, or those that must exist before its effect."""
        match action:
            case act.Spawn():
                await self._intend(term, action)
            case act.Adopt():
                await self._adopt(term, action)
            case act.UpdateAddress():
                await self._update_address(term, action)
            case act.Wait():
                await self._wait(term, action)
            case act.SetActivity():
                await self._move(
                    term, action.worker_id, action.from_state, to_state=action.to_state, reason=action.reason
                )
            case act.Terminate():
                await self._terminate(term, action)
            case act.MarkTerminated():
                await self._mark_terminated(term, action)
            case act.Rescue():
                await self._rescue(term, None, action.reason, action.over_s)
            case act.Create() | act.ContinueBringUp() | act.AskPod() | act.Flush() | act.Delete() | act.DeleteOrphan():
                pass
            case _:
                assert_never(action)

    async def _intend(self, term: int, action: act.Spawn) -> None:
        pool = self._pools[action.pool]
        intent: dict[str, Any] = {
            "id": action.worker_id,
            "pool": action.pool,
            "gpu_type": action.offer.gpu_type,
            "gpu_count": pool.gpu_count,
            "data_center": action.offer.data_center,
            "release": self._policy.release(pool),
            "heartbeat_s": self._policy.heartbeat_s,
            "lease_s": self._policy.heartbeat_timeout_s,
            "own_program": self._policy.own_program,
            "deadline_s": STAGE_SPECS[Stage.INTENT].deadline_s,
            "actor": "orchestrator",
            "reason": action.reason,
            "metadata": metadata(offer=action.offer.key),
            **({"cluster": action.cluster} if action.cluster else {}),
        } | budget.reservation(action.usd_per_hour, self._policy)
        if not await self._store.spawn(term, intent):
            raise LostRace(f"worker {action.worker_id} exists already")
        log.info("worker_intended", worker=action.worker_id, pool=action.pool, reason=action.reason)

    async def _adopt(self, term: int, action: act.Adopt) -> None:
        stage_spec = STAGE_SPECS[Stage.POD_RUNNING]
        await self._move(
            term,
            action.worker_id,
            State.SPAWNING,
            stage=Stage.POD_RUNNING,
            reason=action.reason,
            pod_id=action.pod_id,
            billed_s=action.billed_s,
            waiting_on=stage_spec.waiting_on,
            waiting_for="the pod to run",
            deadline_s=stage_spec.deadline_s,
            next_attempt_s=0,
            **budget.reservation_of_pod(action.usd_per_hour, self._policy),
        )
        log.warning("pod_adopted", worker=action.worker_id, pod=action.pod_id, reason=action.reason)

    async def _update_address(self, term: int, action: act.UpdateAddress) -> None:
        """Update the SSH address.

        The pinned host key stays; failures at the old address do not count for the new one.
        """
        where: dict[str, Any] = {"ssh_host": action.host, "ssh_port": action.port, "metadata": metadata(unreached=0)}
        await self._move(term, action.worker_id, action.from_state, reason=action.reason, **where)
        log.warning("worker_address_updated", worker=action.worker_id, reason=action.reason)

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
        ended = await self._teardown.begin(term, action)
        self._stop_bringup(action.worker_id)
        facts = {"worker": action.worker_id, "cause": action.cause, "code": action.code, "reason": action.reason}
        words = log_phrases.of_failure(action.code, "worker ends")
        write = log.warning if action.cause in FAILURES else log.info
        write("worker_terminating", message=f"{words}: {action.reason}", **facts)
        if action.cause in ABRUPT:
            await self._rescue(term, action.worker_id, action.reason)
        if action.cause in FAILURES and action.blames_host:
            await remember(self._store, term, ended, action.code, {"why": action.reason})
        if action.cause not in ABRUPT and (ended.tasks_running or ended.cluster is not None):
            await self._teardown.name_tasks(term, action)

    async def _mark_terminated(self, term: int, action: act.MarkTerminated) -> None:
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
