"""Rows and arguments between the database and the model: what its JSON means, and what its columns can hold."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Demand, EndedBringUp, HeldBack, OfferState, Worker
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.ports import LogRange
from worker.protocol import DISK

Row = Mapping[str, Any]
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)  # a day is left to reckon with


def worker_of(row: Row) -> Worker:
    """A live `workers` row, decoded."""
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
        exit_cause=None if row["exit_cause"] is None else ExitCause(row["exit_cause"]),
        failure_code=_code_of(row["failure_code"]),
        tasks_running=int(row["tasks_running"]),
        own_program=row["own_program"],
        release=row["release"],
        progress_at=maybe_moment(row.get("progress_at")),
        slowest_task=row.get("slowest_task"),
        empty_since=maybe_moment(row.get("empty_since")),
        reserved_usd_per_hour=float(row["reserved_usd_per_hour"]),
        metadata=row["metadata"],
        log_bytes=row["log_bytes"] or {},
        machine_id=row["machine_id"],
        held_back=_held_back_of(row),
        disk_full_since=_disk_full_since(row.get("health")),
        waits_for_store=isinstance(row.get("health"), dict) and bool(row["health"].get("store")),
    )


def demand_of(row: Row) -> Demand:
    """One pool's queue, decoded."""
    return Demand(
        pool=row["pool"],
        claimable=int(row["claimable"]),
        running=int(row["running"]),
        blocked={cause: int(n) for cause, n in row["blocked"].items()},
        oldest_claimable_at=maybe_moment(row["oldest_claimable_at"]),
    )


def offer_of(row: Row) -> OfferState:
    """How an offer has fared, decoded."""
    return OfferState(
        key=row["key"],
        cooldown_until=maybe_moment(row["cooldown_until"]),
        refusals=row["refusals"],
        last_refusal=maybe_moment(row["last_refusal"]),
        last_success=maybe_moment(row["last_success"]),
        probe_budget=row["probe_budget"],
    )


def climb_of(row: Row) -> EndedBringUp:
    """A bring-up that ended, and what became of its worker, decoded."""
    return EndedBringUp(
        worker_id=row["worker_id"],
        pool=row["pool"],
        at=moment(row["at"]),
        promoted=row["promoted"],
        exit_cause=None if row["exit_cause"] is None else ExitCause(row["exit_cause"]),
        failure_code=row["failure_code"],
        release=row["release"],
        ending_since=maybe_moment(row["ending_since"]),
        worked=row["worked"],
        boot_s=None if row.get("boot_s") is None else float(row["boot_s"]),
    )


def arguments_of(piece: LogRange) -> dict[str, Any]:
    """A piece of a log as the ledger's functions take it."""
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


def moment(text: str) -> datetime:
    """A time of the database, with its zone; the first or last one that there is for what lies beyond Python's years.

    A row with such a time (a task that is to go before all others: `-infinity`) must not end every look at the fleet.
    """
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST
    return said if said.tzinfo else said.replace(tzinfo=UTC)  # an older project's column without a zone


def maybe_moment(text: str | None) -> datetime | None:
    """The same for a column that may be null."""
    return None if text is None else moment(text)


def _held_back_of(row: Row) -> HeldBack | None:
    held = row.get("held_back")
    if held is None:
        return None
    return HeldBack(
        since=moment(held["since"]),
        failures=int(held["failures"]),
        types=frozenset(held["types"]),
        codes=tuple(held["codes"]),
        done_elsewhere_at=maybe_moment(row.get("done_elsewhere_at")),
    )


def _disk_full_since(health: Any) -> datetime | None:
    """Return since when the agent has had too little room; None for anything that a pod may send instead of a time."""
    told = health.get(DISK) if isinstance(health, Mapping) else None
    since = told.get("since") if isinstance(told, Mapping) else None
    try:
        return datetime.fromtimestamp(float(since), UTC) if isinstance(since, int | float) else None
    except (OverflowError, OSError, ValueError):
        return None


def _code_of(text: str | None) -> FailureCode | None:
    """None too for a code of a later version, whose rows an earlier one must look after once it was rolled back."""
    try:
        return None if text is None else FailureCode(text)
    except ValueError:
        return None


def storable(value: Any) -> Any:
    """What a pod or a provider said, as text and jsonb can hold it: no NUL, no half of a character, no endless number.

    Without it a tool that prints one NUL byte keeps its attempt's row open, and its worker from its end.
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
