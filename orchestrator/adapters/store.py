"""The Store port over any Db: names the SQL functions and their arguments, decodes their rows.

Rows for people (`SqlStore` from `workers` on) stay as the JSON that the database made, times as ISO 8601.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from orchestrator.core.hosts import Strike
from orchestrator.core.model import Demand, EndedClimb, OfferState, Pause, Spent, TaskType, Worker
from orchestrator.core.states import ExitCause, FailureCode, Stage, State, WaitingOn
from orchestrator.ports import (
    Attempt,
    BadArgument,
    BadToken,
    DatabaseAuth,
    DatabaseHalf,
    Db,
    Lease,
    LogRange,
    LostRace,
    NotLeader,
    OverBudget,
    PortError,
    SchemaMismatch,
    Unavailable,
    UnknownWorker,
)
from orchestrator.redaction import redact

Row = Mapping[str, Any]

# How a refusal is named by the database (SQLSTATE; PostgREST's `code`) and by the ports. The longest prefix that fits
# holds; what is not here gave no clear answer.
REFUSALS: Mapping[str, type[PortError]] = MappingProxyType(
    {
        "OR001": NotLeader,
        "OR002": LostRace,
        "OR003": OverBudget,
        "OR005": UnknownWorker,
        "OR006": BadToken,
        "OR007": BadArgument,
        "42501": DatabaseAuth,  # insufficient_privilege: this role may not call this
        "42883": SchemaMismatch,  # undefined_function
        "42P01": SchemaMismatch,  # undefined_table
        "42703": SchemaMismatch,  # undefined_column
        "PGRST202": SchemaMismatch,  # PostgREST: no function with these arguments
        "PGRST205": SchemaMismatch,  # … no table of this name
        "22": BadArgument,  # data exceptions: a value that cannot be what its argument is
        "23": BadArgument,  # integrity constraints
    }
)

# What this version calls: function -> its arguments without `p_now`. Compared with fleet_describe() at start.
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task_submit": ("p_tasks",),
        "task_cancel": ("p_id",),
        "task_retry": ("p_id",),
        "task_get": ("p_id",),
        "task_list": ("p_status", "p_task_type", "p_limit"),
        "worker_register": ("p_worker_id", "p_nonce", "p_agent"),
        "worker_claim": ("p_worker_id", "p_nonce", "p_claim_no", "p_batch", "p_wait_s"),
        "worker_heartbeat": ("p_worker_id", "p_nonce", "p_tasks", "p_health", "p_logs"),
        "worker_complete": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_output_location", "p_result_data"),
        "worker_fail": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_failure"),
        "worker_release": ("p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_reason"),
        "worker_grants": ("p_worker_id", "p_nonce", "p_items"),
        "fleet_lead": ("p_fleet", "p_holder", "p_ttl_s"),
        "fleet_resign": ("p_fleet", "p_holder", "p_term"),
        "fleet_snapshot": ("p_fleet",),
        "fleet_spawn": ("p_fleet", "p_term", "p_worker"),
        "fleet_move": ("p_fleet", "p_term", "p_worker_id", "p_from", "p_to", "p_stage", "p_reason", "p_fields"),
        "fleet_rescue": ("p_fleet", "p_term", "p_worker_id"),
        "fleet_attempt_open": ("p_fleet", "p_term", "p_worker_id", "p_stage"),
        "fleet_attempt_close": (
            "p_fleet",
            "p_term",
            "p_id",
            "p_outcome",
            "p_failure_code",
            "p_exception_type",
            "p_evidence",
        ),
        "fleet_attempt_note": ("p_fleet", "p_term", "p_id", "p_failure_code", "p_evidence"),
        "fleet_note_offer": ("p_fleet", "p_term", "p_key", "p_refused", "p_code"),
        "fleet_strike": (
            "p_fleet",
            "p_term",
            "p_key",
            "p_code",
            "p_evidence",
            "p_avoid_s",
            "p_after",
            "p_memory_s",
        ),
        "fleet_hosts": ("p_fleet", "p_avoided"),
        "fleet_record_decision": ("p_fleet", "p_term", "p_decision"),
        "fleet_log_begin": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_seq",
            "p_first",
            "p_last",
            "p_sha256",
            "p_key",
        ),
        "fleet_log_shipped": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_seq",
            "p_first",
            "p_last",
            "p_sha256",
            "p_key",
        ),
        "fleet_log_pieces": ("p_fleet", "p_worker_id"),
        "fleet_log_lost": (
            "p_fleet",
            "p_term",
            "p_worker_id",
            "p_boot_id",
            "p_stream",
            "p_first",
            "p_last",
            "p_reason",
        ),
        "fleet_asks": ("p_fleet", "p_limit"),
        "fleet_answer": ("p_fleet", "p_term", "p_answers"),
        "fleet_retention": ("p_fleet", "p_term"),
        "fleet_workers": ("p_fleet", "p_all", "p_limit"),
        "fleet_worker": ("p_fleet", "p_worker_id"),
        "fleet_request_termination": ("p_fleet", "p_worker_id", "p_reason", "p_now_not_drain"),
        "fleet_decisions": ("p_fleet", "p_limit"),
        "fleet_declare_pools": ("p_fleet", "p_term", "p_pools"),
        "fleet_pause": ("p_fleet", "p_pool", "p_reason", "p_for_s"),
        "fleet_explain": ("p_fleet", "p_worker_id"),
        "fleet_task_explain": ("p_fleet", "p_task_id"),
        "fleet_scaling_explain": ("p_fleet",),
        "fleet_usual": ("p_fleet", "p_gpu_type"),
        "fleet_cost": ("p_fleet", "p_since", "p_until"),
        "fleet_report": ("p_fleet",),
        "fleet_efficiency": ("p_fleet", "p_since", "p_until"),
        "fleet_metrics": ("p_fleet", "p_since"),
        "fleet_describe": (),
        "fleet_changes": ("p_digest",),
    }
)


def refusal(code: str | None, what: str, why: str | None = None, fix: str | None = None) -> PortError:
    """The port error that a SQLSTATE stands for; Unavailable where it stands for none."""
    text = what + (f": {why}" if why else "") + (f"; fix: {fix}" if fix else "")
    for length in range(len(code or ""), 1, -1):
        kind = REFUSALS.get((code or "")[:length])
        if kind is not None:
            return kind(text)
    return Unavailable(f"{code}: {text}" if code else text)


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


class SqlStore:
    """The rows of one fleet."""

    def __init__(self, db: Db, fleet_id: str) -> None:
        self._db = db
        self._fleet = fleet_id

    async def _call(self, function: str, /, **args: Any) -> Any:
        # Evidence, reasons and last looks quote what pods, commands and libraries said.
        said = {name: storable(_without_secrets(value)) for name, value in args.items()}
        return await self._db.call(function, p_fleet=self._fleet, **said)

    async def lead(self, holder: str, ttl_s: float) -> Lease:
        """Take or renew the lead of the fleet, or learn who has it."""
        row = await self._call("fleet_lead", p_holder=holder, p_ttl_s=ttl_s)
        return Lease(row["leader"], row["term"], row["holder"], _time(row["expires_at"]), _time(row["since"]))

    async def resign(self, holder: str, term: int) -> None:
        """Give the lead up at once, if it is still ours."""
        await self._call("fleet_resign", p_holder=holder, p_term=term)

    async def snapshot(self) -> DatabaseHalf:
        """One statement's view of the fleet and its queue."""
        row = await self._call("fleet_snapshot")
        return DatabaseHalf(
            now=_time(row["now"]),
            workers=tuple(worker_of(worker) for worker in row["workers"]),
            demand=tuple(_demand(demand) for demand in row["demand"]),
            expired_leases=int(row["expired_leases"]),
            offers={offer["key"]: _offer(offer) for offer in row["offers"]},
            last_spawn_at={pool: _time(at) for pool, at in row["last_spawn_at"].items()},
            paused={pool: Pause(pause["reason"], _maybe_time(pause["until"])) for pool, pause in row["paused"].items()},
            ended=tuple(_climb(climb) for climb in row["ended"]),
            proven=frozenset(row["proven"]),
            spent=Spent(**{name: float(usd) for name, usd in row["spent"].items()}),
            avoid={key: _time(until) for key, until in row["avoid"].items()},
        )

    async def spawn(self, term: int, worker: Row) -> bool:
        """Insert an intent with its reservation; False if the id exists already. OverBudget with the arithmetic."""
        return bool((await self._call("fleet_spawn", p_term=term, p_worker=worker))["created"])

    async def move(
        self,
        term: int,
        worker_id: str,
        *,
        from_states: Sequence[State],
        to_state: State | None = None,
        stage: Stage | None = None,
        reason: str,
        fields: Row | None = None,
    ) -> Worker:
        """Compare-and-set on one worker. LostRace if its state is not among `from_states`."""
        row = await self._call(
            "fleet_move",
            p_term=term,
            p_worker_id=worker_id,
            p_from=[str(state) for state in from_states],
            p_to=to_state,
            p_stage=stage,
            p_reason=reason,
            p_fields=fields or {},
        )
        return worker_of(row["worker"])

    async def open_attempt(self, term: int, worker_id: str, stage: Stage) -> int:
        """Write down that a stage of bring-up is being tried; the attempt's id."""
        row = await self._call("fleet_attempt_open", p_term=term, p_worker_id=worker_id, p_stage=stage)
        return int(row["id"])

    async def note_attempt(self, term: int, attempt_id: int, code: FailureCode | None, evidence: Row) -> None:
        """Write down what is suspected and seen while it goes on."""
        await self._call(
            "fleet_attempt_note", p_term=term, p_id=attempt_id, p_failure_code=code, p_evidence=dict(evidence)
        )

    async def close_attempt(self, term: int, attempt_id: int, result: Attempt) -> None:
        """Write down how it ended."""
        await self._call(
            "fleet_attempt_close",
            p_term=term,
            p_id=attempt_id,
            p_outcome=result.outcome,
            p_failure_code=result.failure_code,
            p_exception_type=result.exception_type,
            p_evidence=result.evidence,
        )

    async def rescue(self, term: int, *, worker_id: str | None = None) -> Sequence[Row]:
        """Requeue (or fail, at the last attempt) tasks whose lease ran out; all of one worker's when it is named."""
        return list((await self._call("fleet_rescue", p_term=term, p_worker_id=worker_id))["tasks"])

    async def note_offer(self, term: int, key: str, *, refused: bool, code: str | None) -> None:
        """Remember that an offer was refused or granted."""
        await self._call("fleet_note_offer", p_term=term, p_key=key, p_refused=refused, p_code=code)

    async def strike(self, term: int, strike: Strike, *, code: str, evidence: Row) -> Row:
        """Hold a failure against a machine or a place: its strikes that count, and until when it is avoided."""
        return dict(
            await self._call(
                "fleet_strike",
                p_term=term,
                p_key=strike.key,
                p_code=code,
                p_evidence=evidence,
                p_avoid_s=strike.avoid_s,
                p_after=strike.after,
                p_memory_s=strike.memory_s,
            )
        )

    async def hosts(self, *, avoided: bool = False) -> Sequence[Row]:
        """Machines and places that failed, newest first: key, strikes, evidence, avoid_until, avoided."""
        return list((await self._call("fleet_hosts", p_avoided=avoided))["hosts"])

    async def record_decision(self, term: int, decision: Row) -> None:
        """Keep a decision, unless it is the same as the pool's last one."""
        await self._call("fleet_record_decision", p_term=term, p_decision=decision)

    async def declare_pools(self, term: int, task_types: Sequence[TaskType]) -> None:
        """Let submitted tasks go to the pool of their type, with its limits; what was declared before is forgotten."""
        rows = [
            {"task_type": t.name, "pool": t.pool, "timeout_s": t.timeout_s, "max_attempts": t.max_attempts}
            for t in task_types
        ]
        await self._call("fleet_declare_pools", p_term=term, p_pools=rows)

    async def log_begin(self, term: int, piece: LogRange) -> None:
        """Ledger row before the upload. LostRace if the range does not follow the one before."""
        await self._call("fleet_log_begin", p_term=term, **_piece(piece))

    async def log_shipped(self, term: int, piece: LogRange) -> None:
        """The begun piece lies in S3."""
        await self._call("fleet_log_shipped", p_term=term, **_piece(piece))

    async def log_pieces(self, worker_id: str) -> Sequence[Row]:
        """The ledger of one worker, in the order of boot, stream and seq."""
        return list((await self._call("fleet_log_pieces", p_worker_id=worker_id))["pieces"])

    async def log_lost(
        self, term: int, worker_id: str, boot_id: str, stream: str, first: int, last: int | None, reason: str
    ) -> None:
        """Declare bytes from `first` on lost. LostRace unless everything before has arrived and nothing after."""
        await self._call(
            "fleet_log_lost",
            p_term=term,
            p_worker_id=worker_id,
            p_boot_id=boot_id,
            p_stream=stream,
            p_first=first,
            p_last=last,
            p_reason=reason,
        )

    async def asks(self, limit: int) -> Sequence[Row]:
        """What pods ask of the bucket through PostgREST: {id, worker_id, method, subject}, the oldest first."""
        return list((await self._call("fleet_asks", p_limit=limit))["asks"])

    async def answer(self, term: int, answers: Sequence[Row]) -> int:
        """Answer some of them, {id, answer} each; how many were still open."""
        # Past the redaction: a signed URL is what the pod asked for, and the row goes soon after it was read.
        given = {"p_fleet": self._fleet, "p_term": term, "p_answers": list(answers)}
        return int((await self._db.call("fleet_answer", **given))["answered"])

    async def retention(self, term: int) -> Mapping[str, int]:
        """Delete a bounded number of rows past their age; table -> rows."""
        return dict(await self._call("fleet_retention", p_term=term))

    async def metrics(self, since: datetime | None) -> Row:
        """What tasks have been through since a moment, counted up to "until", and the log bytes not shipped yet."""
        row = dict(await self._call("fleet_metrics", p_since=since))
        return row | {"until": _time(row["until"])}

    async def workers(self, *, all: bool = False, limit: int = 1000) -> Sequence[Row]:  # noqa: A002 - the operator's word
        """Live workers, newest first, with tasks and costs; with `all`, ended ones too."""
        return list((await self._call("fleet_workers", p_all=all, p_limit=limit))["workers"])

    async def worker(self, worker_id: str) -> Row:
        """One worker with its events, bring-up attempts and tasks; its "worker" is None if there is none."""
        return dict(await self._call("fleet_worker", p_worker_id=worker_id))

    async def request_spawn(self, worker: Row) -> bool:
        """An operator's intent: the leader's next tick asks the provider for its pod."""
        return bool((await self._call("fleet_spawn", p_term=None, p_worker=worker))["created"])

    async def request_termination(self, worker_id: str, reason: str, *, now_not_drain: bool = False) -> Row:
        """Ask for a worker to be drained, or stopped at once: {outcome: requested, already or not_found}."""
        return dict(
            await self._call(
                "fleet_request_termination", p_worker_id=worker_id, p_reason=reason, p_now_not_drain=now_not_drain
            )
        )

    async def decisions(self, limit: int = 100) -> Sequence[Row]:
        """The newest decisions first."""
        return list((await self._call("fleet_decisions", p_limit=limit))["decisions"])

    async def pause(self, reason: str | None, *, pool: str | None = None, for_s: float | None = None) -> Row:
        """Stop spawning for a reason (None: go on), in one pool or all, for a time or for good; what holds then."""
        answer = await self._call("fleet_pause", p_pool=pool, p_reason=reason, p_for_s=for_s)
        return dict(answer["paused"])

    async def explain(self, worker_id: str) -> Row:
        """All that an explanation of one worker needs; its "worker" is None if there is none."""
        return dict(await self._call("fleet_explain", p_worker_id=worker_id))

    async def explain_task(self, task_id: UUID | str) -> Row:
        """All that an explanation of one task needs; its "task" is None if there is none."""
        return dict(await self._call("fleet_task_explain", p_task_id=str(task_id)))

    async def explain_scaling(self) -> Row:
        """The last decision of each pool, the offers, and who waits for capacity, budget or an operator."""
        return dict(await self._call("fleet_scaling_explain"))

    async def usual(self, gpu_type: str | None) -> Row:
        """How long earlier bring-ups took: {n, p50_s, p95_s}; of every GPU type without one."""
        return dict(await self._call("fleet_usual", p_gpu_type=gpu_type))

    async def cost(self, since: datetime, until: datetime | None = None) -> Row:
        """Dollars between two moments, by worker, kind of state, task type and task. BadArgument if there are none."""
        return dict(await self._call("fleet_cost", p_since=since, p_until=until))

    async def report(self) -> Row:
        """The database's half of the diagnostic report: queue, workers, failures, decisions and spending; read-only."""
        return dict(await self._call("fleet_report"))

    async def efficiency(self, since: datetime, until: datetime | None = None) -> Row:
        """Throughput, utilisation, queue depth and dollars a task between two moments. BadArgument if none."""
        return dict(await self._call("fleet_efficiency", p_since=since, p_until=until))

    async def claim_as(self, worker_id: str) -> None:
        """Ask for no task in the name of a worker that does not exist: UnknownWorker is the answer that all is well."""
        nobody = {"p_worker_id": worker_id, "p_nonce": "nobody", "p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
        await self._db.call("worker_claim", **nobody)

    async def describe(self) -> Row:
        """The schema's version, and the argument names of every function that can be called."""
        return dict(await self._db.call("fleet_describe"))

    async def submit(self, tasks: Sequence[Row]) -> Sequence[Row]:
        """Queue tasks, at most 2000 at once; {id, created} of each. BadArgument names the first that is not valid."""
        return list((await self._db.call("task_submit", p_tasks=list(tasks)))["tasks"])

    async def task(self, task_id: UUID | str) -> Row:
        """One task ("task" is None if there is none) with its attempts."""
        return dict(await self._db.call("task_get", p_id=str(task_id)))

    async def tasks(self, status: str | None = None, task_type: str | None = None, limit: int = 100) -> Row:
        """Tasks, newest first, and the counts of all by status."""
        return dict(await self._db.call("task_list", p_status=status, p_task_type=task_type, p_limit=limit))

    async def cancel(self, task_id: UUID | str) -> Row:
        """Cancel a queued task now, a running one with its agent's next heartbeat: {outcome, status}."""
        return dict(await self._db.call("task_cancel", p_id=str(task_id)))

    async def retry(self, task_id: UUID | str) -> Row:
        """Queue a failed or cancelled task again, and what failed only because of it: {outcome, tasks}."""
        return dict(await self._db.call("task_retry", p_id=str(task_id)))

    async def check_functions(self) -> str:
        """The schema's version. SchemaMismatch names what this version calls and the database does not have.

        A later schema may have more functions, and more arguments with defaults: a roll-back must start.
        """
        described = await self.describe()
        there: Mapping[str, Sequence[str]] = described["functions"] or {}
        missing = [
            f"{name}({', '.join(args)})"
            for name, args in FUNCTIONS.items()
            if name not in there or not set(args) <= set(there[name])
        ]
        if missing:
            raise SchemaMismatch(
                f"the database (schema {described['schema_version']}) lacks {', '.join(missing)}; "
                "fix: orchestrator migrate"
            )
        return str(described["schema_version"])


def worker_of(row: Row) -> Worker:
    """A live `workers` row, decoded."""
    return Worker(
        id=row["id"],
        pool=row["pool"],
        state=State(row["status"]),
        stage=Stage(row["stage"]),
        state_since=_time(row["state_since"]),
        stage_since=_time(row["stage_since"]),
        created_at=_time(row["created_at"]),
        deadline_at=_time(row["deadline_at"]),
        next_attempt_at=_time(row["next_attempt_at"]),
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
        last_heartbeat=_maybe_time(row["last_heartbeat"]),
        drain_requested_at=_maybe_time(row["drain_requested_at"]),
        stop_requested_at=_maybe_time(row["stop_requested_at"]),
        exit_cause=None if row["exit_cause"] is None else ExitCause(row["exit_cause"]),
        failure_code=None if row["failure_code"] is None else FailureCode(row["failure_code"]),
        tasks_running=int(row["tasks_running"]),
        own_program=row["own_program"],
        release=row["release"],
        progress_at=_maybe_time(row.get("progress_at")),
        slowest_task=row.get("slowest_task"),
        reserved_usd_per_hour=float(row["reserved_usd_per_hour"]),
        metadata=row["metadata"],
        log_bytes=row["log_bytes"] or {},
        machine_id=row["machine_id"],
    )


def _demand(row: Row) -> Demand:
    return Demand(
        pool=row["pool"],
        claimable=int(row["claimable"]),
        running=int(row["running"]),
        blocked={cause: int(n) for cause, n in row["blocked"].items()},
        oldest_claimable_at=_maybe_time(row["oldest_claimable_at"]),
    )


def _offer(row: Row) -> OfferState:
    return OfferState(
        key=row["key"],
        cooldown_until=_maybe_time(row["cooldown_until"]),
        refusals=row["refusals"],
        last_refusal=_maybe_time(row["last_refusal"]),
        last_success=_maybe_time(row["last_success"]),
        probe_budget=row["probe_budget"],
    )


def _climb(row: Row) -> EndedClimb:
    return EndedClimb(
        worker_id=row["worker_id"],
        pool=row["pool"],
        at=_time(row["at"]),
        promoted=row["promoted"],
        exit_cause=None if row["exit_cause"] is None else ExitCause(row["exit_cause"]),
        failure_code=row["failure_code"],
        release=row["release"],
    )


def _without_secrets(value: Any) -> Any:
    return redact(value) if isinstance(value, (str, Mapping, list, tuple)) else value


def _piece(piece: LogRange) -> dict[str, Any]:
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


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # an older project's column without a zone


def _maybe_time(text: str | None) -> datetime | None:
    return None if text is None else _time(text)
