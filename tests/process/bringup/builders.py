"""Builders that show only what matters."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.core.model import Worker
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.core.states import Stage, State, WaitingOn


def a_worker(worker_id: str = "gpu-20261121_080000-0badcafe", **given: Any) -> Worker:
    """A worker whose pod was just created."""
    now = datetime.now(UTC)
    plain = Worker(
        id=worker_id,
        pool="default",
        state=State.SPAWNING,
        stage=Stage.POD_CREATED,
        state_since=now,
        stage_since=now,
        created_at=now,
        deadline_at=now + timedelta(seconds=60),
        next_attempt_at=now,
        waiting_on=WaitingOn.PROVIDER,
        waiting_for=None,
        pod_id="pod-1",
        ssh_host=None,
        ssh_port=None,
        host_key=None,
        gpu_type="NVIDIA GeForce RTX 4090",
        gpu_count=1,
        data_center=None,
        price_usd_per_hour=0.5,
        reserved_usd=0.0,
        nonce=None,
        code_sha=None,
        token_jti=None,
        last_heartbeat=None,
        drain_requested_at=None,
        stop_requested_at=None,
        exit_cause=None,
        failure_code=None,
        tasks_running=0,
        own_program=False,
    )
    return replace(plain, **given)


def a_pod(pod_id: str, worker_id: str, port: int | None, **given: Any) -> Pod:
    """A pod that runs."""
    plain = Pod(
        id=pod_id,
        name=worker_id,
        status=PodStatus.RUNNING,
        fleet_id="default",
        worker_id=worker_id,
        has_runtime=True,
        ssh_host="127.0.0.1" if port else None,
        ssh_port=port,
        gpu_type="NVIDIA GeForce RTX 4090",
        gpu_count=1,
        data_center="EU-RO-1",
        machine_id="m1",
        price_usd_per_hour=0.69,
        created_at=datetime.now(UTC),
    )
    return replace(plain, **given)
