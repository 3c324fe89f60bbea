"""Builders that show only what a test is about; the rest is one ordinary fleet at one fixed instant."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.actions import Plan
from orchestrator.core.blocked import line
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Absence, Demand, EndedBringUp, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer, OfferState, Pod, PodStatus
from orchestrator.core.states import Stage, State, WaitingOn

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
A40, L4 = Offer("NVIDIA A40", None, "SECURE"), Offer("NVIDIA L4", "EU-RO-1", "SECURE")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def pool(**changes: Any) -> Pool:
    base = Pool(
        name="default",
        offers=(A40, L4),
        image="image",
        gpu_count=1,
        disk_gb=50,
        min_memory_gb=32,
        min_vcpu=8,
        volume_name=None,
        volume_mount_path="/workspace",
        min_active=0,
        max_active=4,
        tasks_per_gpu=3,
        keep_idle=0,
        idle_timeout_s=600,
        overcapacity_idle_timeout_s=30,
    )
    return replace(base, **changes)


def policy(**changes: Any) -> Policy:
    pools = (pool(**changes.pop("pool", {})),)
    base = Policy("test", pools, spawning_timeout_s=900, spawning_grace_s=180, scale_down_grace_s=60, drain_grace_s=600)
    return replace(base, **changes)


def worker(name: str = "gpu-1", **changes: Any) -> Worker:
    state = changes.get("state", State.ACTIVE)
    ready = state in (State.ACTIVE, State.IDLE)
    base = Worker(
        id=name,
        pool="default",
        state=state,
        stage=Stage.PROMOTED if ready else Stage.POD_RUNNING,
        state_since=ago(100),
        stage_since=ago(100),
        created_at=ago(300),
        deadline_at=NOW + timedelta(seconds=300),
        next_attempt_at=ago(1),
        waiting_on=WaitingOn.WORKER,
        waiting_for=None,
        pod_id=f"pod-{name}",
        ssh_host=None,
        ssh_port=None,
        host_key=None,
        gpu_type="NVIDIA A40",
        gpu_count=1,
        data_center=None,
        price_usd_per_hour=0.4,
        reserved_usd=0,
        nonce="nonce",
        code_sha=None,
        token_jti=None,
        last_heartbeat=ago(5),
        drain_requested_at=None,
        stop_requested_at=None,
        exit_cause=None,
        failure_code=None,
        tasks_running=0,
        own_program=False,
    )
    return replace(base, **changes)


def idle(name: str, seconds: float, **changes: Any) -> Worker:
    return worker(name, state=State.IDLE, state_since=ago(seconds), **changes)


def busy(name: str, **changes: Any) -> Worker:
    return worker(name, state=State.ACTIVE, tasks_running=1, **changes)


def spawning(name: str, stage: Stage = Stage.POD_RUNNING, **changes: Any) -> Worker:
    has_pod = stage not in (Stage.INTENT, Stage.POD_CREATED)
    changes.setdefault("pod_id", f"pod-{name}" if has_pod else None)
    changes.setdefault("last_heartbeat", None)
    return worker(name, state=State.SPAWNING, stage=stage, **changes)


def terminating(name: str, stage: Stage = Stage.DRAINING, **changes: Any) -> Worker:
    return worker(name, state=State.TERMINATING, stage=stage, **changes)


def pod_of(one: Worker, **changes: Any) -> Pod:
    base = Pod(
        id=one.pod_id or f"pod-{one.id}",
        name=one.id,
        status=PodStatus.RUNNING,
        fleet_id="test",
        worker_id=one.id,
        has_runtime=True,
        ssh_host="127.0.0.1",
        ssh_port=22,
        gpu_type="NVIDIA A40",
        gpu_count=1,
        data_center=None,
        machine_id=None,
        price_usd_per_hour=0.4,
        created_at=one.created_at,
    )
    return replace(base, **changes)


def absent(seconds: float, lists: int = 2) -> Absence:
    return Absence(lists, ago(seconds), NOW, seconds)


def cooling(offer: Offer, seconds: float, **changes: Any) -> OfferState:
    base = OfferState(offer.key, NOW + timedelta(seconds=seconds), 1, NOW, None, probe_budget=1)
    return replace(base, **changes)


def snapshot(*workers: Worker, claimable: int = 0, running: int = 0, **changes: Any) -> Snapshot:
    """A fleet whose every pod is listed, unless `pods` says otherwise."""
    base = Snapshot(
        now=NOW,
        window=ObservationWindow(ago(3600)),
        pods=tuple(pod_of(w) for w in workers if w.pod_id),
        workers=tuple(sorted(workers, key=lambda w: w.id)),
        demand=(Demand("default", claimable, running, changes.pop("blocked", {}), None),),
        expired_leases=0,
        offers={},
        absent={},
        orphan_since={},
        in_flight=frozenset(),
        bringing_up=frozenset(),
        last_spawn_at={},
        paused={},
        promoted_releases=frozenset({"image@"}),
    )
    return replace(base, **changes)


def said(made: Plan, pool: int = 0) -> list[str]:
    """What blocks a pool, in words."""
    return [line(reason) for reason in made.decisions[pool].blocked]


def brought_up(
    seconds_ago: float, *, promoted: bool = False, code: str | None = "NO_RUNTIME", **changes: Any
) -> EndedBringUp:
    """A bring-up that ended: failed, unless it is said to have been promoted."""
    cause = None if promoted else ExitCause.SPAWN_FAILED
    base = EndedBringUp(
        f"gpu-{seconds_ago:g}", "default", ago(seconds_ago), promoted, cause, None if promoted else code, "image@"
    )
    return replace(base, **changes)
