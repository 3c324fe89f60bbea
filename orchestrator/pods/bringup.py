"""Bring-up: the stages of one worker from a created pod to promotion, with a stage check each. Each attempt is a row.

Level-triggered: a bring-up always begins at pod_running, even if the row shows a later stage, and repeats the cheap
stages. So it continues after a restart of the orchestrator. An agent that runs already under the row's nonce is found,
not started twice.

    move(stage, deadline) -> open the attempt -> I/O under the deadline -> close the attempt, also after an error

A failed check ends the worker with its code. Without an answer (a lost connection, an unknown exit status), the result
is unknown: the attempt is closed as lost, and the bring-up begins again, until the deadline of the lost stage.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.stages import STAGE_SPECS, StageSpec
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import metadata
from orchestrator.observability import log_phrases
from orchestrator.pods.agent_commands import LaunchConfig
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.boot_stages import BootStages
from orchestrator.pods.bringup_context import BringupContext, Evidence, StageCheck
from orchestrator.pods.bringup_stages import BringupStages, pauses
from orchestrator.pods.bundle import Bundle
from orchestrator.pods.host_strikes import remember
from orchestrator.pods.latest import Latest
from orchestrator.ports import LostRace, PortError, SessionPool, Shell, StageAttempt, Store, Unavailable

__all__ = ["BringUp", "Credentials", "LaunchConfig"]
log = structlog.get_logger()


class BringUpLost(Exception):
    """The connection was lost during a stage: its result is unknown."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(f"the connection was lost during {stage}")
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Credentials:
    """Functions that make the secrets for a worker."""

    token_for: Callable[[Worker, str], str]  # worker, jti
    nonce_for: Callable[[str], str]  # worker id -> the nonce that shows the pod's identity at first contact


class BringUp:
    """Brings up workers, each independently."""

    def __init__(
        self,
        store: Store,
        ssh_pool: SessionPool,
        shell: Shell,
        bundle: Bundle,
        latest: Latest,
        config: LaunchConfig,
        credentials: Credentials,
        pod_log: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`pod_log` returns a pod's own log by its id. It shows whether the image is still being pulled."""
        self._store, self._config = store, config
        boot = BootStages(latest.pods, pod_log or _no_log)
        self._stages = BringupStages(
            ssh_pool, shell, bundle, boot, latest.workers, config, credentials.token_for, credentials.nonce_for
        )

    async def bring_up(self, term: int, worker: Worker) -> None:
        """Promote the worker, or end it with a code.

        Raises the store's errors, and LostRace if another process moved it.
        """
        began = time.monotonic()
        context = BringupContext(term, worker, worker.stage_since)
        clock = _Clock(self._config.spawning_timeout_s)
        try:
            for pause_s in pauses():
                try:
                    await self._run_stages(context, clock)
                    break
                except BringUpLost as lost:
                    clock.lost(lost.stage)
                    await asyncio.sleep(max(0.0, min(pause_s, clock.left_s(None))))
            await self._promote(context, time.monotonic() - began)
        except StageFailed as failure:
            await self._give_up(context, failure)

    async def _run_stages(self, context: BringupContext, clock: "_Clock") -> None:
        for stage_spec, check in self._stages.stage_checks(context.worker):
            try:
                await self._stage(context, clock, stage_spec, check)
            except StageFailed as failure:
                spent = context.worker.metadata.image_pull_extended or clock.left_s(None) <= 0
                if failure.code is not FailureCode.IMAGE_PULL_SLOW or spent:
                    raise
                # once: the pull is slow, but makes progress
                context.facts = {"metadata": metadata(image_pull_extended=True)}
                await self._stage(context, clock, stage_spec, check)
            clock.passed(stage_spec.stage)

    async def _stage(self, context: BringupContext, clock: "_Clock", stage_spec: StageSpec, check: StageCheck) -> None:
        stage = stage_spec.stage
        setting_up = stage is Stage.PROCESS and self._config.setup_command is not None
        # the set-up command has only the limit of the whole bring-up
        own_s = None if setting_up else self._config.deadline_s(stage_spec)
        limit_s = clock.left_s(own_s)
        if limit_s <= 0:
            why = f"no time is left for {stage}"
            raise StageFailed(clock.overdue(stage_spec), why, {"after_s": round(clock.bringup_s())})
        facts, context.facts = context.facts, {}
        context.suspect, context.evidence, context.limit_s = None, {}, limit_s
        waiting = {
            "waiting_on": stage_spec.waiting_on,
            "waiting_for": str(stage),
            "deadline_s": limit_s,
            "next_attempt_s": 0,
        }
        asked_s = time.time()
        context.worker = await self._move(context, stage=stage, reason=f"bring-up: {stage}", fields=facts | waiting)
        context.entered_at = context.worker.deadline_at - timedelta(seconds=limit_s)
        context.clock_ahead_s = (asked_s + time.time()) / 2 - context.entered_at.timestamp()
        clock.entered(stage, (context.entered_at - context.worker.created_at).total_seconds(), limit_s)
        attempt_id = await self._store.open_attempt(context.term, context.worker.id, stage)
        context.note = partial(self._store.note_attempt, context.term, attempt_id)
        result = StageAttempt("lost")
        try:
            result = StageAttempt(
                "ok", evidence=await _timed(check, context, stage_spec, limit_s, clock.overdue(stage_spec))
            )
        except asyncio.CancelledError:
            result = StageAttempt("cancelled")
            raise
        except StageFailed as failure:
            late = isinstance(failure.__cause__, TimeoutError)
            kind = type(failure.__cause__ or failure).__name__
            result = StageAttempt(
                "timeout" if late else "failed", failure.code, kind, {"error": str(failure), **failure.evidence}
            )
            raise
        except PortError as error:
            kind, evidence = type(error).__name__, {"error": str(error)[:500], **context.evidence}
            result = StageAttempt("lost", FailureCode.CONNECTION_LOST, kind, evidence)
            raise BringUpLost(stage) from error
        finally:
            await self._store.close_attempt(context.term, attempt_id, result)

    async def _promote(self, context: BringupContext, took_s: float) -> None:
        fields = {"waiting_on": WaitingOn.WORKER, "waiting_for": "tasks", "deadline_s": self._config.lease_s}
        await self._move(context, stage=Stage.PROMOTED, to_state=State.ACTIVE, reason="verified", fields=fields)
        log.info(
            "worker_promoted",
            message=log_phrases.STARTED,
            worker=context.worker.id,
            pod=context.worker.pod_id,
            took_s=round(took_s, 3),
        )

    async def _give_up(self, context: BringupContext, failure: StageFailed) -> None:
        fields = {
            "exit_cause": ExitCause.SPAWN_FAILED,
            "failure_code": failure.code,
            "waiting_on": WaitingOn.ORCHESTRATOR,
            "waiting_for": "its logs and its pod's end",
            "deadline_s": STAGE_SPECS[Stage.DEPLOY].deadline_s,
            "next_attempt_s": 0,
        }
        reason = f"{failure.code}: {failure}"[:500]
        try:
            ended = await self._move(
                context, stage=Stage.DRAINING, to_state=State.TERMINATING, reason=reason, fields=context.facts | fields
            )
        except LostRace:
            return  # it is already ending, for another reason
        await remember(self._store, context.term, ended, failure.code, {"why": str(failure)[:500]})
        facts = {"worker": context.worker.id, "code": failure.code, "reason": reason, **_brief(failure.evidence)}
        log.warning(
            "worker_terminating", message=f"{log_phrases.of_failure(failure.code, 'worker ends')}: {reason}", **facts
        )

    async def _move(
        self,
        context: BringupContext,
        *,
        stage: Stage,
        to_state: State | None = None,
        reason: str,
        fields: Mapping[str, Any],
    ) -> Worker:
        if context.unassigned_at_s is not None:  # RunPod's bill starts with the machine
            fields = {**fields, "unbilled_s": round(time.monotonic() - context.unassigned_at_s, 3)}
            context.unassigned_at_s = None
        return await self._store.move(
            context.term,
            context.worker.id,
            from_states=[State.SPAWNING],
            to_state=to_state,
            stage=stage,
            reason=reason,
            fields=fields,
        )


class _Clock:
    """The remaining time of the present stage, of the whole bring-up, and of a stage whose connection was lost."""

    def __init__(self, cap_s: float) -> None:
        self._cap_s = cap_s  # for the whole bring-up
        self._born: float | None = None  # the row's creation, on this process's monotonic clock
        self._until: dict[Stage, float] = {}  # the deadline of each entered stage
        self._lost: tuple[Stage, float] | None = None  # the lost stage, and the end of its retries

    def entered(self, stage: Stage, after_creation_s: float, limit_s: float) -> None:
        """Note the begin of a stage. The database's clock gives the row's age."""
        self._born = time.monotonic() - after_creation_s
        self._until[stage] = time.monotonic() + limit_s

    def lost(self, stage: Stage) -> None:
        """Limit the retries until this stage to the time that the stage had left."""
        if self._lost is None:
            self._lost = (stage, self._until[stage])

    def passed(self, stage: Stage) -> None:
        """Forget a loss once its stage succeeds."""
        if self._lost is not None and self._lost[0] is stage:
            self._lost = None

    def overdue(self, stage_spec: StageSpec) -> FailureCode:
        """Return the code of a passed deadline. After a loss, it is the code of the loss."""
        return FailureCode.CONNECTION_LOST if self._lost is not None else stage_spec.overdue

    def bringup_s(self) -> float:
        """Return the seconds since the row was created."""
        return 0.0 if self._born is None else time.monotonic() - self._born

    def left_s(self, deadline_s: float | None) -> float:
        """Return the seconds for a stage that begins now and has this deadline."""
        left = [self._cap_s - self.bringup_s()]
        if deadline_s is not None:
            left.append(deadline_s)
        if self._lost is not None:
            left.append(self._lost[1] - time.monotonic())
        return min(left)


async def _no_log(pod_id: str) -> str:
    raise Unavailable(f"the log of pod {pod_id} cannot be read here")


async def _timed(
    check: StageCheck, context: BringupContext, stage_spec: StageSpec, limit_s: float, overdue: FailureCode
) -> Evidence:
    """Run the stage check. A passed deadline becomes StageFailed with the most precise code."""
    try:
        async with asyncio.timeout(limit_s):
            return await check(context)
    except TimeoutError as error:
        late = f"{stage_spec.stage} passed its {limit_s:.3g} s"
        raise StageFailed(context.suspect or overdue, late, context.evidence) from error


def _brief(evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {name: evidence[name] for name in ("error", "cause", "exit_status", "stderr", "log") if name in evidence}
