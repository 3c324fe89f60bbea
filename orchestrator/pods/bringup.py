"""Bring-up: one worker's climb from a created pod to promotion, each stage proven and each attempt a row.

Level-triggered: a climb begins at pod_running whatever stage the row shows, and proves the cheap stages again; that is
how it goes on after a restart of the orchestrator. An agent that runs already under the row's nonce is found, not
started twice.

    move(stage, deadline) -> open the attempt -> I/O under the deadline -> close the attempt, whatever happened

A "no" ends the worker with its code. No answer (a lost connection, an unknown exit status) proves nothing: the attempt
is closed as lost and the climb begins again, until the deadline of the stage that was lost.
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
from orchestrator.observability import log_phrases
from orchestrator.pods.agent_commands import LaunchConfig
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.boot_stages import Boot
from orchestrator.pods.bringup_context import BringupContext, Evidence, StageCheck
from orchestrator.pods.bringup_stages import BringupStages, pauses
from orchestrator.pods.bundle import Bundle
from orchestrator.pods.host_strikes import remember
from orchestrator.pods.latest import Latest
from orchestrator.ports import Attempt, LostRace, PortError, SessionPool, Shell, Store, Unavailable

__all__ = ["BringUp", "Credentials", "LaunchConfig"]
EXTENDED = "image_pull_extended"  # in the row's metadata: its image was given a second deadline
log = structlog.get_logger()


class Lost(Exception):
    """The connection went in the middle of a stage: nothing is known."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(f"the connection went during {stage}")
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets that bring-up gives to a worker."""

    token_for: Callable[[Worker, str], str]  # worker, jti
    nonce_for: Callable[[str], str]  # worker id: proves the pod's identity at first contact


class BringUp:
    """Climbs workers, each on its own."""

    def __init__(
        self,
        store: Store,
        lines: SessionPool,
        shell: Shell,
        bundle: Bundle,
        latest: Latest,
        config: LaunchConfig,
        credentials: Credentials,
        pod_log: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`pod_log` returns a pod's own log by its id; it shows whether the image is still being pulled."""
        self._store, self._config = store, config
        boot = Boot(latest.pods, pod_log or _no_log)
        self._proofs = BringupStages(
            lines, shell, bundle, boot, latest.workers, config, credentials.token_for, credentials.nonce_for
        )

    async def bring_up(self, term: int, worker: Worker) -> None:
        """Promote the worker, or end it with a code. Raises what the store raises; LostRace if others moved it."""
        began = time.monotonic()
        context = BringupContext(term, worker, worker.stage_since)
        clock = _Clock(self._config.spawning_timeout_s)
        try:
            for pause_s in pauses():
                try:
                    await self._ascend(context, clock)
                    break
                except Lost as lost:
                    clock.lost(lost.stage)
                    await asyncio.sleep(max(0.0, min(pause_s, clock.left_s(None))))
            await self._promote(context, time.monotonic() - began)
        except StageFailed as no:
            await self._give_up(context, no)

    async def _ascend(self, context: BringupContext, clock: "_Clock") -> None:
        for rung, check in self._proofs.ladder(context.worker):
            try:
                await self._stage(context, clock, rung, check)
            except StageFailed as no:
                spent = EXTENDED in context.worker.metadata or clock.left_s(None) <= 0
                if no.code is not FailureCode.IMAGE_PULL_SLOW or spent:
                    raise
                context.facts = {"metadata": {EXTENDED: True}}  # once: it is coming, only slowly
                await self._stage(context, clock, rung, check)
            clock.passed(rung.stage)

    async def _stage(self, context: BringupContext, clock: "_Clock", rung: StageSpec, check: StageCheck) -> None:
        stage = rung.stage
        setting_up = stage is Stage.PROCESS and self._config.setup_command is not None
        own_s = None if setting_up else self._config.deadline_s(rung)  # setting up has only the hard cap
        limit_s = clock.left_s(own_s)
        if limit_s <= 0:
            why = f"no time is left for {stage}"
            raise StageFailed(clock.overdue(rung), why, {"after_s": round(clock.bringup_s())})
        facts, context.facts = context.facts, {}
        context.suspect, context.evidence, context.limit_s = None, {}, limit_s
        waiting = {"waiting_on": rung.waiting_on, "waiting_for": str(stage), "deadline_s": limit_s, "next_attempt_s": 0}
        context.worker = await self._move(context, stage=stage, reason=f"climbing: {stage}", fields=facts | waiting)
        context.entered_at = context.worker.deadline_at - timedelta(seconds=limit_s)
        clock.entered(stage, (context.entered_at - context.worker.created_at).total_seconds(), limit_s)
        attempt_id = await self._store.open_attempt(context.term, context.worker.id, stage)
        context.note = partial(self._store.note_attempt, context.term, attempt_id)
        result = Attempt("lost")
        try:
            result = Attempt("ok", evidence=await _timed(check, context, rung, limit_s, clock.overdue(rung)))
        except asyncio.CancelledError:
            result = Attempt("cancelled")
            raise
        except StageFailed as no:
            late = isinstance(no.__cause__, TimeoutError)
            kind = type(no.__cause__ or no).__name__
            result = Attempt("timeout" if late else "failed", no.code, kind, {"error": str(no), **no.evidence})
            raise
        except PortError as error:
            kind, evidence = type(error).__name__, {"error": str(error)[:500], **context.evidence}
            result = Attempt("lost", FailureCode.CONNECTION_LOST, kind, evidence)
            raise Lost(stage) from error
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

    async def _give_up(self, context: BringupContext, no: StageFailed) -> None:
        fields = {
            "exit_cause": ExitCause.SPAWN_FAILED,
            "failure_code": no.code,
            "waiting_on": WaitingOn.ORCHESTRATOR,
            "waiting_for": "its logs and its pod's end",
            "deadline_s": STAGE_SPECS[Stage.DEPLOY].deadline_s,
            "next_attempt_s": 0,
        }
        reason = f"{no.code}: {no}"[:500]
        try:
            ended = await self._move(
                context, stage=Stage.DRAINING, to_state=State.TERMINATING, reason=reason, fields=context.facts | fields
            )
        except LostRace:
            return  # somebody else ended it first, with a reason of their own
        await remember(self._store, context.term, ended, no.code, {"why": str(no)[:500]})
        said = {"worker": context.worker.id, "code": no.code, "reason": reason, **_brief(no.evidence)}
        log.warning("worker_terminating", message=f"{log_phrases.of_failure(no.code, 'worker ends')}: {reason}", **said)

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
    """How long this climb may still take: the rung, the hard cap, and the deadline of a stage that was lost."""

    def __init__(self, cap_s: float) -> None:
        self._cap_s = cap_s
        self._born: float | None = None  # the row's creation, on this process's monotonic clock
        self._until: dict[Stage, float] = {}  # when a stage that was entered is over
        self._lost: tuple[Stage, float] | None = None  # and when its second chances end

    def entered(self, stage: Stage, after_creation_s: float, limit_s: float) -> None:
        """Note a stage's begin; the database's clock said how old the row was."""
        self._born = time.monotonic() - after_creation_s
        self._until[stage] = time.monotonic() + limit_s

    def lost(self, stage: Stage) -> None:
        """Give the whole way back to this stage no more time than the stage had."""
        if self._lost is None:
            self._lost = (stage, self._until[stage])

    def passed(self, stage: Stage) -> None:
        """Forget a loss once its stage is proven."""
        if self._lost is not None and self._lost[0] is stage:
            self._lost = None

    def overdue(self, rung: StageSpec) -> FailureCode:
        """What running out of time is called: on the way back after a loss, it was the loss."""
        return FailureCode.CONNECTION_LOST if self._lost is not None else rung.overdue

    def bringup_s(self) -> float:
        """Seconds since the row was written, as far as known."""
        return 0.0 if self._born is None else time.monotonic() - self._born

    def left_s(self, deadline_s: float | None) -> float:
        """Seconds for a stage that begins now and has this deadline of its own."""
        left = [self._cap_s - self.bringup_s()]
        if deadline_s is not None:
            left.append(deadline_s)
        if self._lost is not None:
            left.append(self._lost[1] - time.monotonic())
        return min(left)


async def _no_log(pod_id: str) -> str:
    raise Unavailable(f"nobody can read the log of pod {pod_id} here")


async def _timed(
    check: StageCheck, context: BringupContext, rung: StageSpec, limit_s: float, overdue: FailureCode
) -> Evidence:
    """The stage's proof; its deadline becomes Unproven with the best code there is."""
    try:
        async with asyncio.timeout(limit_s):
            return await check(context)
    except TimeoutError as error:
        late = f"{rung.stage} passed its {limit_s:.3g} s"
        raise StageFailed(context.suspect or overdue, late, context.evidence) from error


def _brief(evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {name: evidence[name] for name in ("error", "cause", "exit_status", "stderr", "log") if name in evidence}
