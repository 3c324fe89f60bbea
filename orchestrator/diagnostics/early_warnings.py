"""What is amiss before anything has failed: attempts that find nothing, silence, odd lists, logs that do not come."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core.model import LOGS_LATE
from orchestrator.core.states import Stage, WaitingOn
from orchestrator.ports import LEAD_EVERY_S, LEASE_TTL_S
from worker.protocol import DISK

Row = Mapping[str, Any]
# What is said of an open attempt that has found nothing yet, once it has taken EARLY_S.
STALLED: Mapping[str, str] = {
    Stage.POD_CREATED: "RunPod has not answered the create call",
    Stage.POD_RUNNING: "it does not run",
    Stage.SSH_DETAILS: "RunPod shows no public address for its port 22",
    Stage.TCP: "nothing has answered",
    Stage.SSH_AUTH: "sshd has neither let us in nor refused",
    Stage.EXEC: "the command has not come back",
    Stage.IDENTITY: "it has not said",
    Stage.PLATFORM: "df and date have not answered",
    Stage.GPU_INVENTORY: "nvidia-smi has not answered",
    Stage.GPU_HEALTH: "nvidia-smi has not answered",
    Stage.GPU_FABRIC: "nvidia-smi has not answered",
    Stage.DEPLOY: "the files have not arrived",
    Stage.PROCESS: "its start has not come back",
    Stage.HEARTBEAT: "none has come",
}
EARLY_S = 4.0
LATE_LEASE_S = 1.5  # a lease is renewed a little late on a busy machine
BUSY_BEAT_S = 2.5  # between heartbeats while a task is held; the agent's own, a test compares
MISSED_BEATS = 3  # from then on a worker is called silent
WHY_CHARACTERS = 200  # of what an agent says about its disk


def stalled(row: Row, attempts: Sequence[Row], now: datetime) -> str:
    """What an attempt that goes on has seen instead of what is wanted, and for how long it has gone on."""
    attempt = attempts[-1] if attempts else None
    if attempt is None or attempt["outcome"] or attempt["stage"] != row["stage"] or row["stage"] not in STALLED:
        return ""
    going_s = (now - datetime.fromisoformat(attempt["started_at"])).total_seconds()
    shown = (attempt["evidence"] or {}).get("shown")
    if not shown and going_s < EARLY_S:
        return ""
    return f"; {shown or STALLED[row['stage']]}, for {going_s:.0f} s now"


def amiss(row: Row, now: datetime, *, busy: bool) -> list[str]:
    """What a ready worker fails to do: its heartbeat, its pod in the lists, its logs in S3."""
    silent_s = (now - datetime.fromisoformat(row["last_heartbeat"] or row["state_since"])).total_seconds()
    beat_s = min(BUSY_BEAT_S, float(row["heartbeat_s"])) if busy else float(row["heartbeat_s"])
    beats, odd = int(silent_s / beat_s), []
    if beats >= MISSED_BEATS:
        odd.append(f"its heartbeat: silent for {silent_s:.0f} s ({beats} beats missed)")
    if row["waiting_on"] == WaitingOn.PROVIDER:
        odd.append(row["waiting_for"])
    if row["metadata"].get(LOGS_LATE):
        odd.append(f"its logs, which are late: {row['metadata'][LOGS_LATE]}")
    return odd


def unfit(row: Row) -> str | None:
    """Why a ready worker claims no tasks although it could; None if nothing keeps it from claiming."""
    if held := row.get("held_back"):
        return f"{held['failures']} different tasks failed in a row ({', '.join(held['codes'])})"
    health = row.get("health")
    told = health.get(DISK) if isinstance(health, Mapping) else None
    if isinstance(told, Mapping):
        return f"its disk is full: {str(told.get('why'))[:WHY_CHARACTERS]}"
    return None


def silent_leader(leader: Row | None, now: datetime) -> str | None:
    """That the leader is late with its lease, while it still has it; None while there is nothing to say."""
    if leader is None:
        return None
    silent_s = LEASE_TTL_S - (datetime.fromisoformat(leader["expires_at"]) - now).total_seconds()
    if silent_s <= LEAD_EVERY_S + LATE_LEASE_S:
        return None
    return f"its leader {leader['holder']} is silent for {silent_s:.0f} s, and is replaced after {LEASE_TTL_S:.0f} s"
