"""Signs of trouble before anything has failed: stages without a result, silence, unusual lists, late logs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.findings import Severity, findings_of
from orchestrator.core.states import Stage, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.diagnostics.log_delay import delay_of
from orchestrator.ports import LEAD_EVERY_S, LEASE_TTL_S
from worker.protocol import DISK

Row = Mapping[str, Any]
# The text for an open attempt without a result, once it has taken EARLY_S.
STALLED: Mapping[str, str] = {
    Stage.POD_CREATED: "RunPod has not answered the create call",
    Stage.POD_RUNNING: "it does not run",
    Stage.SSH_DETAILS: "RunPod shows no public address for its port 22",
    Stage.TCP: "nothing has answered",
    Stage.SSH_AUTH: "sshd has neither accepted nor refused our key",
    Stage.EXEC: "the command has not ended",
    Stage.IDENTITY: "it has not answered",
    Stage.PLATFORM: "df and date have not answered",
    Stage.GPU_INVENTORY: "nvidia-smi has not answered",
    Stage.GPU_HEALTH: "nvidia-smi has not answered",
    Stage.GPU_FABRIC: "nvidia-smi has not answered",
    Stage.DEPLOY: "the files have not arrived",
    Stage.PROCESS: "the start command has not ended",
    Stage.HEARTBEAT: "none has come",
}
EARLY_S = 4.0
LATE_LEASE_S = 1.5  # a lease may be renewed a little late on a busy machine
BUSY_BEAT_S = 2.5  # between heartbeats while a task is held; the agent's own, a test compares
MISSED_HEARTBEATS = 3  # after this, a worker counts as silent
WHY_CHARACTERS = 200  # of the text that an agent sends about its disk


def stalled(row: Row, attempts: Sequence[Row], now: datetime) -> str:
    """Return what an open attempt has seen instead of the expected state, and for how long."""
    attempt = attempts[-1] if attempts else None
    if attempt is None or attempt["outcome"] or attempt["stage"] != row["stage"] or row["stage"] not in STALLED:
        return ""
    going_s = (now - moments.moment(attempt["started_at"])).total_seconds()
    shown = (attempt["evidence"] or {}).get("shown")
    if not shown and going_s < EARLY_S:
        return ""
    return f"; {shown or STALLED[row['stage']]}, for {going_s:.0f} s now"


def irregularities(row: Row, now: datetime, *, busy: bool) -> list[str]:
    """Return what is unusual about a ready worker: its heartbeat, its pod in the lists, its logs in S3."""
    silent_s = (now - moments.moment(row["last_heartbeat"] or row["state_since"])).total_seconds()
    beat_s = min(BUSY_BEAT_S, float(row["heartbeat_s"])) if busy else float(row["heartbeat_s"])
    missed, odd = int(silent_s / beat_s), []
    if missed >= MISSED_HEARTBEATS:
        odd.append(f"its heartbeat: silent for {silent_s:.0f} s ({missed} heartbeats missed)")
    if row["waiting_on"] in (WaitingOn.PROVIDER, WaitingOn.OPERATOR):
        odd.append(row["waiting_for"])
    if late := WorkerMetadata.of(row["metadata"]).logs_late:
        odd.append(f"its logs, which are late: {delay_of(late)}")
    shown = {Severity.WARN, *((Severity.REPLACE, Severity.BLOCK) if busy else ())}
    found = (one for one in findings_of(row.get("health")) if one.severity in shown)
    odd += [f"its machine: {finding.text}" for finding in found]
    return odd


def unfit(row: Row) -> str | None:
    """Return why a ready worker claims no tasks; None if nothing prevents it."""
    if held := row.get("held_back"):
        return f"{held['failures']} different tasks failed in a row ({', '.join(held['codes'])})"
    health = row.get("health")
    if finding := next((one for one in findings_of(health) if one.severity.blocks), None):
        return finding.text
    disk = health.get(DISK) if isinstance(health, Mapping) else None
    if isinstance(disk, Mapping):
        return f"its disk is full: {str(disk.get('why'))[:WHY_CHARACTERS]}"
    return None


def silent_leader(leader: Row | None, now: datetime) -> str | None:
    """Return that the leader is late with its lease, while it still has it; None otherwise."""
    if leader is None:
        return None
    silent_s = LEASE_TTL_S - (moments.moment(leader["expires_at"]) - now).total_seconds()
    if silent_s <= LEAD_EVERY_S + LATE_LEASE_S:
        return None
    return f"its leader {leader['holder']} is silent for {silent_s:.0f} s, and is replaced after {LEASE_TTL_S:.0f} s"
