"""Workers in trouble, by the functions that the loop calls; and what `explain` says of them, as a terminal shows it."""

import io
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from rich.console import Console, RenderableType

from orchestrator.cli import explain_view
from orchestrator.config.settings import Settings
from orchestrator.core.failures import FailureCode
from orchestrator.core.policy import Policy
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics import tasks, workers
from tests.db.conformance.builders import FLEET, Fleet

GPU = "NVIDIA GeForce RTX 4090"
POD: Mapping[str, Any] = {"pod_id": "pod-1", "price_usd_per_hour": 0.72}


@cache
def policy(**settings: Any) -> Policy:
    """What the environment would give."""
    return Settings(**settings).policy()


async def bring_up(fleet: Fleet, stage: Stage, **fields: Any) -> str:
    """A worker that stands at this stage of its bring-up, its pod two minutes old."""
    worker = await fleet.spawn(gpu_type=GPU)
    if stage is not Stage.INTENT:
        await fleet.move(worker, State.SPAWNING, stage=Stage.POD_RUNNING, waiting_on="provider", **POD)
        await attempt(fleet, worker, Stage.POD_RUNNING, "ok", took_s=120, pod_id="pod-1")
    spec = STAGE_SPECS[stage]
    told: dict[str, Any] = {
        "waiting_on": spec.waiting_on,
        "waiting_for": str(stage),
        "deadline_s": spec.deadline_s,
        "next_attempt_s": 0,
    }
    await fleet.move(worker, State.SPAWNING, stage=stage, **(told | fields))
    return worker


async def attempt(
    fleet: Fleet,
    worker: str,
    stage: Stage,
    outcome: str = "failed",
    code: str | None = None,
    *,
    took_s: float = 2,
    kind: str | None = None,
    **evidence: Any,
) -> None:
    """One attempt at a stage, ended."""
    opened = await fleet.fleet("attempt_open", p_worker_id=worker, p_stage=stage)
    fleet.wait(took_s)
    await fleet.fleet(
        "attempt_close",
        p_id=opened["id"],
        p_outcome=outcome,
        p_failure_code=code,
        p_exception_type=kind,
        p_evidence=evidence,
    )


async def give_up(fleet: Fleet, worker: str, code: FailureCode | str) -> None:
    """The end of a bring-up, as bring-up ends it."""
    fields = {"exit_cause": "spawn_failed", "failure_code": code, "waiting_on": "orchestrator"}
    reason = f"{code}: it did not work"
    await fleet.move(worker, State.SPAWNING, State.TERMINATING, stage=Stage.DRAINING, reason=reason, **fields)


async def promoted(fleet: Fleet, seconds: float) -> str:
    """A worker whose bring-up took so long."""
    worker = await fleet.spawn(gpu_type=GPU)
    fleet.wait(seconds)
    await fleet.move(worker, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED, waiting_on="worker", **POD)
    return worker


async def explained(fleet: Fleet, worker: str, **settings: Any) -> workers.WorkerExplanation:
    """What is said of a worker now."""
    found = await fleet.call("fleet_explain", p_fleet=FLEET, p_worker_id=worker)
    return workers.explained(found, policy(**settings))


async def shown(fleet: Fleet, worker: str, *, width: int = 400, **settings: Any) -> list[str]:
    """The same as lines on a terminal."""
    return lines(*explain_view.worker(await explained(fleet, worker, **settings), fleet.now), width=width)


async def told(fleet: Fleet, task: str, **settings: Any) -> tasks.TaskExplanation:
    """What is said of a task now."""
    return tasks.explained(await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task), policy(**settings))


def lines(*parts: RenderableType, width: int = 400) -> list[str]:
    """What a terminal of that width shows."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def times(found: Iterable[str]) -> list[datetime]:
    """Timestamps, read."""
    return [datetime.fromisoformat(text) for text in found]
