"""The Store port over any Db: names the SQL functions and their arguments, and decodes their rows."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from orchestrator.adapters.operator_rows import OperatorRows
from orchestrator.adapters.rows import (
    Row,
    arguments_of,
    demand_of,
    ended_bringup_of,
    fault_of,
    need_of,
    offer_of,
    pod_price_of,
    pool_history_of,
    scale_limits_of,
    scaling_policies_of,
    worker_of,
)
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.stored import as_json
from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import Strike
from orchestrator.core.model import Pause, Spent, StoreOutage, Worker
from orchestrator.core.moments import maybe_moment, moment
from orchestrator.core.policy import TaskType
from orchestrator.core.states import Stage, State
from orchestrator.ports import DatabaseHalf, Lease, LogRange, PoolHistory, SchemaMismatch, StageAttempt

RETENTION_EVERY_S = 3600.0


class SqlStore(OperatorRows):
    """The rows of one fleet, for its leader. The database refuses a write with an old term."""

    async def lead(self, holder: str, ttl_s: float) -> Lease:
        """Take or renew the lease of the fleet, or learn who has it."""
        row = await self._call("fleet_lead", p_holder=holder, p_ttl_s=ttl_s)
        return Lease(row["leader"], row["term"], row["holder"], moment(row["expires_at"]), moment(row["since"]))

    async def resign(self, holder: str, term: int) -> None:
        """End the lease at once, if this process still holds it."""
        await self._call("fleet_resign", p_holder=holder, p_term=term)

    async def maintain(self, term: int) -> None:
        """Do what the queue needs each second: due tasks, limits, pending publications, a part of the audit."""
        await self._call("fleet_maintain", p_term=term)

    async def snapshot(self) -> DatabaseHalf:
        """Return one consistent view of the fleet and its queue. SchemaMismatch if the schema is older."""
        row = await self._call("fleet_observe")
        try:
            return _half(row)
        except KeyError as missing:  # an older schema, before `migrate`
            raise SchemaMismatch(f"fleet_observe() of this database answers without {missing}") from None

    async def histories(self, since: Mapping[str, float | None]) -> Mapping[str, PoolHistory]:
        """Return what has happened in pools since these moments, in seconds since 1970; None: since what is stored."""
        row = await self._call("fleet_scaling_facts", p_pools=dict(since))
        return {pool: pool_history_of(one, float(row["now"])) for pool, one in row["pools"].items()}

    async def learn(self, term: int, pools: Mapping[str, tuple[Statistics, float]]) -> None:
        """Store the statistics of pools, each with the moment until which they know what has happened."""
        rows = [{"pool": name, "statistics": as_json(known), "until": until} for name, (known, until) in pools.items()]
        await self._call("fleet_learn", p_term=term, p_rows=rows)

    async def spawn(self, term: int, worker: Row) -> bool:
        """Insert an intent with its reservation; False if the id exists already. OverBudget names the amounts."""
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
        """Compare-and-set on one worker. LostRace if its state is not one of `from_states`."""
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
        """Record the begin of an attempt at a bring-up stage. Return the attempt's id."""
        row = await self._call("fleet_attempt_open", p_term=term, p_worker_id=worker_id, p_stage=stage)
        return int(row["id"])

    async def note_attempt(self, term: int, attempt_id: int, code: FailureCode | None, evidence: Row) -> None:
        """Record the suspected cause and the evidence of an open attempt."""
        await self._call(
            "fleet_attempt_note", p_term=term, p_id=attempt_id, p_failure_code=code, p_evidence=dict(evidence)
        )

    async def close_attempt(self, term: int, attempt_id: int, result: StageAttempt) -> None:
        """Record the end of an attempt."""
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
        """Requeue or fail tasks whose lease ended at least `over_s` ago, or all tasks of the named worker."""
        if worker_id is not None:
            return list((await self._call("fleet_rescue", p_term=term, p_worker_id=worker_id))["tasks"])
        return list((await self._call("fleet_rescue_overdue", p_term=term, p_over_s=over_s))["tasks"])

    async def keep_tasks(self, term: int, worker_id: str) -> None:
        """Renew the leases of the tasks of a worker whose agent gets no answer."""
        await self._call("fleet_keep_tasks", p_term=term, p_worker_id=worker_id)

    async def note_offer(self, term: int, key: str, *, refused: bool, code: str | None) -> None:
        """Record that an offer was refused or granted."""
        await self._call("fleet_note_offer", p_term=term, p_key=key, p_refused=refused, p_code=code)

    async def strike(self, term: int, strike: Strike, *, code: str, evidence: Row) -> Row:
        """Record a strike against a machine or a place. Return its valid strikes, and until when it is avoided."""
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
        """Return machines and places that failed, newest first: key, strikes, evidence, avoid_until, avoided."""
        return list((await self._call("fleet_hosts", p_avoided=avoided))["hosts"])

    async def record_decision(self, term: int, decision: Row) -> None:
        """Record a decision, unless it equals the pool's last one."""
        await self._call("fleet_record_decision", p_term=term, p_decision=decision)

    async def declare_pools(self, term: int, task_types: Sequence[TaskType]) -> None:
        """Declare the pool and the limits of each task type. Replaces the earlier declaration."""
        rows = [
            {"task_type": t.name, "pool": t.pool, "timeout_s": t.timeout_s, "max_attempts": t.max_attempts}
            for t in task_types
        ]
        await self._call("fleet_declare_pools", p_term=term, p_pools=rows)

    async def declare_programs(self, term: int, pools: Sequence[str], stuck_s: float) -> None:
        """Declare the pools whose programs take tasks.

        In other pools, a task without a holder is requeued after `stuck_s`.
        """
        await self._call("fleet_declare_programs", p_term=term, p_pools=list(pools), p_stuck_s=stuck_s)

    async def declare_release(self, term: int, releases: Mapping[str, str], task_types: Sequence[str]) -> None:
        """Declare for this term the release of new workers in each pool, and the task types that it handles."""
        await self._call("fleet_declare_release", p_term=term, p_releases=releases, p_task_types=list(task_types))

    async def log_begin(self, term: int, piece: LogRange) -> None:
        """Write the ledger row before the upload. LostRace if the range does not follow the previous one."""
        await self._call("fleet_log_begin", p_term=term, **arguments_of(piece))

    async def log_shipped(self, term: int, piece: LogRange) -> None:
        """Record that S3 has the begun piece."""
        await self._call("fleet_log_shipped", p_term=term, **arguments_of(piece))

    async def log_ends(self, worker_id: str) -> Sequence[Row]:
        """Return the last piece of each stream of a worker, and the last one that S3 has."""
        return list((await self._call("fleet_log_ends", p_worker_id=worker_id))["pieces"])

    async def log_pieces(self, worker_id: str) -> Sequence[Row]:
        """Return the ledger of one worker, ordered by boot, stream and seq."""
        return list((await self._call("fleet_log_pieces", p_worker_id=worker_id))["pieces"])

    async def log_lost(
        self, term: int, worker_id: str, boot_id: str, stream: str, first: int, last: int | None, reason: str
    ) -> None:
        """Declare bytes from `first` on lost. LostRace unless S3 has all bytes before them and none after."""
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
        """Return the questions of pods that use PostgREST: {id, worker_id, method, subject}, the oldest first."""
        return list((await self._call("fleet_asks", p_limit=limit))["asks"])

    async def answer(self, term: int, answers: Sequence[Row]) -> int:
        """Answer some of them, {id, answer} each. Return how many were still open."""
        # Not redacted: the pod asked for a signed URL, and the row is deleted soon after it was read.
        given = {"p_fleet": self._fleet, "p_term": term, "p_answers": list(answers)}
        return int((await self._db.call("fleet_answer", **given))["answered"])

    async def alerts(self) -> Row:
        """Return the alerts and the state of their messages: {now, alerts, sent_1h, unsent, last_failure}."""
        return dict(await self._call("fleet_alerts"))

    async def note_alerts(self, term: int, alerts: Sequence[Row], messages: Sequence[Row]) -> int:
        """Replace the alerts and write messages to the outbox, each key once. Return the number of written messages."""
        answer = await self._call("fleet_note_alerts", p_term=term, p_alerts=alerts, p_messages=messages)
        return int(answer["written"])

    async def retention(self, term: int, days: Mapping[str, float]) -> Mapping[str, int] | None:
        """Delete a bounded number of expired rows, once an hour. Return table -> rows, or None if it is not due.

        `days`: how long each kind of row is kept; SQL's fleet_retention() lists them.
        """
        answer = await self._call("fleet_retain", p_term=term, p_every_s=RETENTION_EVERY_S, p_days=dict(days))
        return None if answer["deleted"] is None else dict(answer["deleted"])

    async def record(self, term: int) -> None:
        """Write the history of a minute that has begun, once, and some of the roll-ups that are due."""
        await self._call("fleet_record", p_term=term)

    async def metrics(self, since: datetime | None) -> Row:
        """Return the attempts since a moment, counted up to "until", and the log bytes that are not shipped yet."""
        row = dict(await self._call("fleet_metrics", p_since=since))
        return row | {"until": moment(row["until"])}

    async def hold_claims(self, term: int, away: StoreOutage | None, *, for_s: float) -> None:
        """Stop the fleet's claims while the object store is unavailable. None: it works again; waiting claims try."""
        await self._call(
            "fleet_store_away",
            p_term=term,
            p_reason=away.why if away else None,
            p_since=away.since.isoformat() if away else None,
            p_for_s=for_s if away else None,
        )

    async def note_tick(self, term: int, error: str | None, *, for_s: float) -> None:
        """Record that ticks fail. None: a tick has succeeded again."""
        await self._call("fleet_note_tick", p_term=term, p_error=error, p_for_s=for_s)

    async def note_bill(self, term: int, bill: Row) -> None:
        """Record a comparison of our records with RunPod's bill (leader_jobs/bill.py), for two days.

        {"error": text} is recorded beside the last comparison.
        """
        await self._call("fleet_note_bill", p_term=term, p_bill=bill)

    async def bill(self) -> Row | None:
        """Return what note_bill() recorded last, or None."""
        found: Row | None = (await self._call("fleet_bill"))["bill"]
        return found

    async def note_conditions(self, term: int, conditions: Sequence[Row], *, for_s: float) -> None:
        """Record for `for_s` seconds what is wrong with the fleet, so that every command shows the same."""
        await self._call("fleet_note_conditions", p_term=term, p_conditions=list(conditions), p_for_s=for_s)


def _half(row: Row) -> DatabaseHalf:
    """Decode an answer of fleet_observe(). KeyError if it lacks a part."""
    return DatabaseHalf(
        now=moment(row["now"]),
        workers=tuple(worker_of(worker) for worker in row["workers"]),
        demand=tuple(demand_of(demand) for demand in row["demand"]),
        expired_leases=int(row["expired_leases"]),
        offers={offer["key"]: offer_of(offer) for offer in row["offers"]},
        last_spawn_at={pool: moment(at) for pool, at in row["last_spawn_at"].items()},
        scale_limits=scale_limits_of(row.get("scale_limits") or {}),
        scaling_policies=scaling_policies_of(row.get("scaling_policies") or {}),
        paused={pool: Pause(pause["reason"], maybe_moment(pause["until"])) for pool, pause in row["paused"].items()},
        ended=tuple(ended_bringup_of(bring_up) for bring_up in row["ended"]),
        pod_prices=tuple(map(pod_price_of, row.get("pod_prices", ()))),
        promoted_releases=frozenset(row["promoted_releases"]),
        faults=tuple(fault_of(fault) for fault in row.get("faults", ())),
        clusters=tuple(need_of(cluster) for cluster in row.get("clusters") or ()),
        spent=Spent(**{name: float(usd) for name, usd in row["spent"].items()}),
        avoid={key: moment(until) for key, until in row["avoid"].items()},
        database_id=row.get("database_id"),
    )
