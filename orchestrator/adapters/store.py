"""The Store port over any Db: names the SQL functions and their arguments, decodes their rows.

Rows for people (`SqlStore` from `workers` on) stay as the JSON that the database made, times as ISO 8601.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.rows import (
    Row,
    arguments_of,
    climb_of,
    demand_of,
    maybe_moment,
    moment,
    offer_of,
    storable,
    worker_of,
)
from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import Strike
from orchestrator.core.model import Pause, Spent, StoreAway, TaskType, Worker
from orchestrator.core.states import Stage, State
from orchestrator.observability.redaction import redact
from orchestrator.ports import Attempt, DatabaseHalf, Db, Lease, LogRange, SchemaMismatch

RETENTION_EVERY_S = 3600.0


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
        return Lease(row["leader"], row["term"], row["holder"], moment(row["expires_at"]), moment(row["since"]))

    async def resign(self, holder: str, term: int) -> None:
        """Give the lead up at once, if it is still ours."""
        await self._call("fleet_resign", p_holder=holder, p_term=term)

    async def snapshot(self) -> DatabaseHalf:
        """One statement's view of the fleet and its queue."""
        row = await self._call("fleet_snapshot")
        return DatabaseHalf(
            now=moment(row["now"]),
            workers=tuple(worker_of(worker) for worker in row["workers"]),
            demand=tuple(demand_of(demand) for demand in row["demand"]),
            expired_leases=int(row["expired_leases"]),
            offers={offer["key"]: offer_of(offer) for offer in row["offers"]},
            last_spawn_at={pool: moment(at) for pool, at in row["last_spawn_at"].items()},
            paused={
                pool: Pause(pause["reason"], maybe_moment(pause["until"])) for pool, pause in row["paused"].items()
            },
            ended=tuple(climb_of(bring_up) for bring_up in row["ended"]),
            proven=frozenset(row["proven"]),
            spent=Spent(**{name: float(usd) for name, usd in row["spent"].items()}),
            avoid={key: moment(until) for key, until in row["avoid"].items()},
            database_id=row.get("database_id"),
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

    async def rescue(self, term: int, *, worker_id: str | None = None, over_s: float = 0) -> Sequence[Row]:
        """Requeue (or at last fail) tasks whose lease has been over for `over_s`; all of a worker that is named."""
        if worker_id is not None:
            return list((await self._call("fleet_rescue", p_term=term, p_worker_id=worker_id))["tasks"])
        return list((await self._call("fleet_rescue_overdue", p_term=term, p_over_s=over_s))["tasks"])

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

    async def declare_programs(self, term: int, pools: Sequence[str], stuck_s: float) -> None:
        """Name the pools whose programs take tasks; in others a task that nobody holds is requeued after `stuck_s`."""
        await self._call("fleet_declare_programs", p_term=term, p_pools=list(pools), p_stuck_s=stuck_s)

    async def declare_release(self, term: int, releases: Mapping[str, str], task_types: Sequence[str]) -> None:
        """Let be known, while this term lasts, what a worker of each pool would run now, and the types it handles."""
        await self._call("fleet_declare_release", p_term=term, p_releases=releases, p_task_types=list(task_types))

    async def log_begin(self, term: int, piece: LogRange) -> None:
        """Ledger row before the upload. LostRace if the range does not follow the one before."""
        await self._call("fleet_log_begin", p_term=term, **arguments_of(piece))

    async def log_shipped(self, term: int, piece: LogRange) -> None:
        """The begun piece lies in S3."""
        await self._call("fleet_log_shipped", p_term=term, **arguments_of(piece))

    async def log_ends(self, worker_id: str) -> Sequence[Row]:
        """Of each stream of a worker the ledger's last piece, and the last one that has arrived."""
        return list((await self._call("fleet_log_ends", p_worker_id=worker_id))["pieces"])

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

    async def retention(self, term: int) -> Mapping[str, int] | None:
        """Delete a bounded number of rows past their age, once an hour; table -> rows, or None if it is not due."""
        answer = await self._call("fleet_retain", p_term=term, p_every_s=RETENTION_EVERY_S)
        return None if answer["deleted"] is None else dict(answer["deleted"])

    async def metrics(self, since: datetime | None) -> Row:
        """What tasks have been through since a moment, counted up to "until", and the log bytes not shipped yet."""
        row = dict(await self._call("fleet_metrics", p_since=since))
        return row | {"until": moment(row["until"])}

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

    async def hold_claims(self, term: int, away: StoreAway | None, *, for_s: float) -> None:
        """While the object store is away no worker of the fleet claims; None: it is back, and waiting claims look."""
        await self._call(
            "fleet_store_away",
            p_term=term,
            p_reason=away.why if away else None,
            p_since=away.since.isoformat() if away else None,
            p_for_s=for_s if away else None,
        )

    async def leadership(self) -> Row:
        """Who leads ({holder, since, term}, or None), and where nobody does who led last: {leader, last, now}."""
        return dict(await self._call("fleet_leadership"))

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


def _without_secrets(value: Any) -> Any:
    return redact(value) if isinstance(value, (str, Mapping, list, tuple)) else value
