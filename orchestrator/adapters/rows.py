"""Converts rows and arguments between the database's JSON and the model."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.cluster_states import LIVE_MEMBER, ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.economics.history import Run, can_be_true
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.stored import statistics_of
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import findings_of
from orchestrator.core.model import (
    ClusterNeed,
    Demand,
    EndedBringUp,
    FaultedWorker,
    HeldBack,
    PodPrice,
    ScaleLimit,
    Worker,
)
from orchestrator.core.moments import maybe_moment, moment
from orchestrator.core.provider import OfferState
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.store_outage import waiting_since
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.ports import LogRange, PoolHistory
from worker.protocol import DISK

Row = Mapping[str, Any]
OPERATOR = "operator"  # the actor, if the row names none


def worker_of(row: Row) -> Worker:
    """Decode a live `workers` row."""
    return Worker(
        id=row["id"],
        pool=row["pool"],
        state=State(row["status"]),
        stage=Stage(row["stage"]),
        state_since=moment(row["state_since"]),
        stage_since=moment(row["stage_since"]),
        created_at=moment(row["created_at"]),
        deadline_at=moment(row["deadline_at"]),
        next_attempt_at=moment(row["next_attempt_at"]),
        waiting_on=WaitingOn(row["waiting_on"]),
        waiting_for=row["waiting_for"],
        pod_id=row["pod_id"],
        ssh_host=row["ssh_host"],
        ssh_port=row["ssh_port"],
        host_key=row["host_key"],
        gpu_type=row["gpu_type"],
        gpu_count=row["gpu_count"],
        data_center=row["data_center"],
        price_usd_per_hour=None if row["price_usd_per_hour"] is None else float(row["price_usd_per_hour"]),
        reserved_usd=float(row["reserved_usd"]),
        nonce=row["nonce"],
        code_sha=row["code_sha"],
        token_jti=row["token_jti"],
        last_heartbeat=maybe_moment(row["last_heartbeat"]),
        drain_requested_at=maybe_moment(row["drain_requested_at"]),
        stop_requested_at=maybe_moment(row["stop_requested_at"]),
        exit_cause=_cause_of(row["exit_cause"]),
        failure_code=_code_of(row["failure_code"]),
        tasks_running=int(row["tasks_running"]),
        own_program=row["own_program"],
        release=row["release"],
        progress_at=maybe_moment(row.get("progress_at")),
        slowest_task=row.get("slowest_task"),
        empty_since=maybe_moment(row.get("empty_since")),
        reserved_usd_per_hour=float(row["reserved_usd_per_hour"]),
        metadata=WorkerMetadata.of(row["metadata"]),
        log_bytes=row["log_bytes"] or {},
        machine_id=row["machine_id"],
        held_back=_held_back_of(row),
        disk_full_since=_disk_full_since(row.get("health")),
        store_wait_since=waiting_since(row.get("health"), moment(row["state_since"])),
        findings=findings_of(row.get("health")),
        claim_no=int(row.get("claim_no") or 0),
        cluster=row.get("cluster"),
    )


def demand_of(row: Row) -> Demand:
    """Decode the queue of one pool."""
    return Demand(
        pool=row["pool"],
        claimable=int(row["claimable"]),
        running=int(row["running"]),
        blocked={cause: int(n) for cause, n in row["blocked"].items()},
        oldest_claimable_at=maybe_moment(row["oldest_claimable_at"]),
    )


def offer_of(row: Row) -> OfferState:
    """Decode the state of an offer."""
    return OfferState(
        key=row["key"],
        cooldown_until=maybe_moment(row["cooldown_until"]),
        refusals=row["refusals"],
        last_refusal=maybe_moment(row["last_refusal"]),
        last_success=maybe_moment(row["last_success"]),
        probe_budget=row["probe_budget"],
    )


def ended_bringup_of(row: Row) -> EndedBringUp:
    """Decode an ended bring-up, with the end of its worker."""
    return EndedBringUp(
        worker_id=row["worker_id"],
        pool=row["pool"],
        at=moment(row["at"]),
        promoted=row["promoted"],
        exit_cause=_cause_of(row["exit_cause"]),
        failure_code=row["failure_code"],
        release=row["release"],
        ending_since=maybe_moment(row["ending_since"]),
        worked=row["worked"],
        boot_s=None if row.get("boot_s") is None else float(row["boot_s"]),
        offer=row.get("offer"),
    )


def pod_price_of(row: Row) -> PodPrice:
    """Decode the price of an offer's newest pod."""
    return PodPrice(
        offer=row["offer"],
        usd_per_gpu_hour=float(row["usd_per_gpu_hour"]),
        created_at=moment(row["created_at"]),
        ended_at=maybe_moment(row["ended_at"]),
        ended_for_budget=int(row["ended_for_budget"]),
    )


def fault_of(row: Row) -> FaultedWorker:
    """Decode a worker that ended because of its machine."""
    return FaultedWorker(row["worker_id"], _code_of(row["failure_code"]), moment(row["at"]))


def scale_limits_of(rows: Row) -> Mapping[str, ScaleLimit]:
    """Decode the operators' limits by pool."""
    return {pool: ScaleLimit(pool, int(one["most"]), one["reason"], moment(one["until"])) for pool, one in rows.items()}


def scaling_policies_of(rows: Row) -> Mapping[str, ScalingPolicy]:
    """Decode the operators' choices of a rule by pool. One that another version knows does not count."""
    known = {one.value: one for one in ScalingPolicy}
    return {pool: known[name] for pool, name in rows.items() if isinstance(name, str) and name in known}


def pool_history_of(row: Row, now: float) -> PoolHistory:
    """Decode what has happened in a pool."""
    stored = statistics_of(row["stored"], now) if row["is_stored"] else None
    runs = ((Run(float(one[0]), float(one[1]), float(one[2])), str(one[3])) for one in row["runs"])
    return PoolHistory(
        now=now,
        since=float(row["since"]),
        runs=tuple((run, worker) for run, worker in runs if can_be_true(*run)),
        opened=tuple(_past_s(at, now) for at in row["opened"]),
        open_tasks=int(row["open"]),
        waiting=tuple(_past_s(at, now) for at in row["waiting"]),
        busy_since={worker: _past_s(at, now) for worker, at in row["busy"].items()},
        stored=stored,
        is_lost=row["is_stored"] and stored is None,
        reviewed=next((one for one in ReviewCandidate if one.value == row.get("reviewed")), None),
    )


def _past_s(value: Any, now: float) -> float:
    """Return seconds since 1970, until now: a user's row may have any time, also an infinite one."""
    return min(max(float(value), 0.0), now)


def need_of(row: Row) -> ClusterNeed:
    """Decode what a live cluster wants."""
    members = {member["worker_id"]: MemberStatus(member["status"]) for member in row["members"]}
    heads = (one["worker_id"] for one in row["members"] if one["role"] == MemberRole.CONTROLLER)
    controller = next((name for name in heads if members[name] in LIVE_MEMBER), None)
    return ClusterNeed(row["id"], row["pool"], ClusterStatus(row["status"]), int(row["nodes"]), members, controller)


def arguments_of(piece: LogRange) -> dict[str, Any]:
    """Return a piece of a log as arguments of the ledger's functions."""
    return {
        "p_worker_id": piece.worker_id,
        "p_boot_id": piece.boot_id,
        "p_stream": piece.stream,
        "p_seq": piece.seq,
        "p_first": piece.first,
        "p_last": piece.last,
        "p_sha256": piece.sha256,
        "p_key": piece.key,
    }


def _held_back_of(row: Row) -> HeldBack | None:
    held = row.get("held_back")
    if held is None:
        return None
    opinion = row.get("second_opinion") or {}
    try:
        return HeldBack(
            since=moment(held["since"]),
            failures=int(held["failures"]),
            types=frozenset(held["types"]),
            codes=tuple(held["codes"]),
            suspect=held.get("suspect") is not False,
            until=maybe_moment(held.get("until")),
            trials=int(held.get("trials") or 0),
            done_elsewhere=int(opinion.get("done", 0)),
            failed_elsewhere=int(opinion.get("shared", 0)),
            meanwhile=opinion.get("meanwhile") is True,
            alike=opinion.get("alike") is True,
            unlike=opinion.get("unlike") is True,
            release_works=opinion.get("works") is not False,
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        # A person wrote the value. The worker claims nothing in any case, and one bad row must not stop every tick.
        return HeldBack(moment(row["state_since"]), 0, frozenset(), ())


def _disk_full_since(health: Any) -> datetime | None:
    """Return since when the agent has had too little room; None for anything that a pod may send instead of a time."""
    disk = health.get(DISK) if isinstance(health, Mapping) else None
    since = disk.get("since") if isinstance(disk, Mapping) else None
    try:
        return datetime.fromtimestamp(float(since), UTC) if isinstance(since, int | float) else None
    except (OverflowError, OSError, ValueError):
        return None


def _cause_of(text: str | None) -> ExitCause | None:
    """Return None also for an exit cause of another version."""
    try:
        return None if text is None else ExitCause(text)
    except ValueError:
        return None


def _code_of(text: str | None) -> FailureCode | None:
    """Return None also for a code of a later version; such rows remain after a rollback."""
    try:
        return None if text is None else FailureCode(text)
    except ValueError:
        return None


def storable(value: Any) -> Any:
    """Return the value of a pod or provider as storable text or jsonb: no NUL, no lone surrogate, no infinite number.

    Otherwise a tool that prints a NUL byte would keep its attempt's row open, and prevent the end of its worker.
    """
    if isinstance(value, str):
        return value if value.isascii() and "\0" not in value else _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [storable(item) for item in value]
    return value


def _text(value: str) -> str:
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
