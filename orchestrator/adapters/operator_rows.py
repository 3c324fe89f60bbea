"""What commands, health and reports ask of the database, and what operators request.

Rows stay as the JSON of the database, with times as ISO 8601.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from orchestrator.adapters.api_rows import ApiRows
from orchestrator.adapters.economics_store import EconomicsStore
from orchestrator.adapters.finder import Finder
from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.rows import OPERATOR, Row, scaling_policies_of, storable
from orchestrator.core.model import EVERY_POOL
from orchestrator.observability.redaction import redact
from orchestrator.ports import Db, SchemaMismatch


class OperatorRows:
    """The rows of one fleet."""

    def __init__(self, db: Db, fleet_id: str) -> None:
        self._db = db
        self._fleet = fleet_id
        self.find = Finder(db, fleet_id)

    @property
    def api(self) -> ApiRows:
        """The rows of the API: tokens and the audit log."""
        return ApiRows(self._db, self._fleet)

    @property
    def economics(self) -> EconomicsStore:
        """What a replay of the queue needs, and the reviews of the rules of scaling."""
        return EconomicsStore(self._db, self._fleet)

    async def _call(self, function: str, /, **args: Any) -> Any:
        # Evidence, reasons and final snapshots quote the output of pods, commands and libraries.
        arguments = {name: storable(_without_secrets(value)) for name, value in args.items()}
        return await self._db.call(function, p_fleet=self._fleet, **arguments)

    async def workers(self, *, all: bool = False, limit: int = 1000) -> Sequence[Row]:  # noqa: A002 - an option's name
        """Return live workers, newest first, with tasks and costs; with `all`, also ended ones."""
        return list((await self._call("fleet_workers", p_all=all, p_limit=limit))["workers"])

    async def worker(self, worker_id: str) -> Row:
        """Return one worker with its events, bring-up attempts and tasks. "worker" is None if it is unknown."""
        return dict(await self._call("fleet_worker", p_worker_id=worker_id))

    async def _act(self, actor: str, action: str, subject: str, args: Row) -> Any:
        """Do an action and note it in the audit log, in one transaction."""
        return await self._call("fleet_act", p_actor=actor, p_action=action, p_subject=subject, p_args=args)

    async def request_spawn(self, worker: Row, *, actor: str = OPERATOR) -> bool:
        """Record an operator's intent: the next tick of the leader requests the pod."""
        return bool((await self._act(actor, "worker.spawn", worker["id"], worker))["created"])

    async def request_termination(
        self, worker_id: str, reason: str, *, now_not_drain: bool = False, actor: str = OPERATOR
    ) -> Row:
        """Request the drain of a worker, or its immediate stop: {outcome: requested, already or not_found}."""
        return dict(await self._act(actor, "worker.terminate", worker_id, {"reason": reason, "at_once": now_not_drain}))

    async def decisions(self, limit: int = 100) -> Sequence[Row]:
        """Return the newest decisions first."""
        return list((await self._call("fleet_decisions", p_limit=limit))["decisions"])

    async def pause(
        self, reason: str | None, *, pool: str | None = None, for_s: float | None = None, actor: str = OPERATOR
    ) -> Row:
        """Stop spawning for a reason (None: resume) in one pool or all, for a time or without end.

        Return the pauses in force.
        """
        args = {} if reason is None else {"reason": reason, "for_s": for_s}
        answer = await self._act(actor, "pool.pause" if args else "pool.resume", pool or EVERY_POOL, args)
        return dict(answer["paused"])

    async def scale_limits(self) -> Row:
        """Return the limits of workers in force: {pool: {most, reason, until}}; `*` is the whole fleet."""
        return dict((await self._call("fleet_scale_limits"))["limits"])

    async def limit_workers(
        self, most: int | None, reason: str = "", *, pool: str | None = None, for_s: float = 0, actor: str = OPERATOR
    ) -> Row:
        """Allow at most so many workers (None: end the limit) in one pool or in the whole fleet, for a time.

        Return the limits in force.
        """
        args = {} if most is None else {"most": most, "reason": reason, "for_s": for_s}
        answer = await self._act(actor, "pool.limit" if args else "pool.unlimit", pool or EVERY_POOL, args)
        return dict(answer["limits"])

    async def scaling_policies(self) -> Row:
        """Return the operators' choices of a rule of scaling: {pool: fixed or learned}; `*` is every other pool."""
        return dict(scaling_policies_of((await self._call("fleet_scaling_policies"))["policies"]))

    async def choose_policy(self, policy: str | None, *, pool: str | None = None, actor: str = OPERATOR) -> Row:
        """Choose the rule of one pool, or of all others; None: as the settings say. Return the choices in force."""
        return dict((await self._act(actor, "pool.policy", pool or EVERY_POOL, {"policy": policy}))["policies"])

    async def leadership(self) -> Row:
        """Return the leader ({holder, since, term} or None), else the last one: {leader, last, now, conditions}.

        `conditions` is what the leader finds wrong, in the order in which it is shown; None without a recent record.
        """
        return dict(await self._call("fleet_leadership"))

    async def explain(self, worker_id: str) -> Row:
        """Return all facts that explain one worker. "worker" is None if it is unknown."""
        return dict(await self._call("fleet_explain", p_worker_id=worker_id))

    async def explain_workers(self) -> Mapping[str, Row]:
        """Return all facts that explain each live worker, by its id."""
        return dict((await self._call("fleet_explain_workers"))["workers"])

    async def explain_task(self, task_id: UUID | str) -> Row:
        """Return all facts that explain one task. "task" is None if it is unknown."""
        return dict(await self._call("fleet_task_explain", p_task_id=str(task_id)))

    async def explain_scaling(self) -> Row:
        """Return each pool's last decision, its offers, and workers that wait for capacity, budget or an operator."""
        return dict(await self._call("fleet_scaling_explain"))

    async def usual(self, gpu_type: str | None) -> Row:
        """Return the usual duration of bring-ups: {n, p50_s, p95_s}; of all GPU types without one."""
        return dict(await self._call("fleet_usual", p_gpu_type=gpu_type))

    async def cost(self, since: datetime, until: datetime | None = None) -> Row:
        """Return dollars between two moments, by worker, state, task type and task.

        BadArgument for an invalid window.
        """
        return dict(await self._call("fleet_cost", p_since=since, p_until=until))

    async def report(self) -> Row:
        """Return the database's part of the diagnostic report: queue, workers, failures, decisions and spending.

        Read-only.
        """
        return dict(await self._call("fleet_report"))

    async def task_troubles(self, handled: Sequence[str]) -> Row:
        """Return tasks without a handler (waiting_types), unpublished_tasks, and what failed of late.

        Within a quarter of an hour: lost_tasks (with their worker), failed_tasks (if most attempts fail) and
        failed_bringups.
        """
        return dict(await self._call("fleet_task_troubles", p_handled=list(handled)))

    async def efficiency(self, since: datetime, until: datetime | None = None) -> Row:
        """Return throughput, utilisation, queue depth and dollars per task. BadArgument for an invalid window."""
        return dict(await self._call("fleet_efficiency", p_since=since, p_until=until))

    async def history(self, since: datetime, *, step_s: int | None = None, pool: str | None = None) -> Row:
        """Return {now, since, step_s, pools: {pool: [{at, …}]}}: what each minute was like, in at most 360 steps."""
        return dict(await self._call("fleet_history", p_since=since, p_step_s=step_s, p_pool=pool))

    async def worker_history(self, worker_id: str) -> Row:
        """Return {now, points}: what a worker reported in each minute of its last day."""
        return dict(await self._call("fleet_worker_history", p_worker_id=worker_id))

    async def usage(self, dimension: str, span: str, since: datetime, until: datetime | None = None) -> Row:
        """Return {until, points}: what was done and spent in each "hour" or "day". BadArgument for another span."""
        window = {"p_since": since, "p_until": until}
        return dict(await self._call("fleet_usage", p_dimension=dimension, p_span=span, **window))

    async def claim_as(self, worker_id: str) -> None:
        """Claim for a worker that does not exist, to test the function. UnknownWorker shows that it works."""
        unknown = {"p_worker_id": worker_id, "p_nonce": "nobody", "p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
        await self._db.call("worker_claim", **unknown)

    async def describe(self) -> Row:
        """Return the schema's version, and the argument names of every function that can be called."""
        return dict(await self._db.call("fleet_describe"))

    async def trigger_problems(self) -> Sequence[Row]:
        """Return the user's triggers that make a write of ours fail: what, why, fix. The trial changes no row."""
        return list((await self._db.call("fleet_try_triggers"))["problems"])

    async def schema_problems(self) -> Sequence[Row]:
        """Return what in the database differs from what the functions need: what, why and fix, the worst first."""
        return list((await self._db.call("fleet_schema_problems"))["problems"])

    async def confirm_database(self, *, is_copy: bool, actor: str = OPERATOR) -> bool:
        """Say whether a copied database replaces the original (and has its pods) or is a new one. False: no copy."""
        action = "database.copied" if is_copy else "database.moved"
        return bool((await self._act(actor, action, self._fleet, {}))["outcome"] == "confirmed")

    async def submit(self, tasks: Sequence[Row], *, actor: str = OPERATOR) -> Sequence[Row]:
        """Submit at most 2000 tasks; {id, created} of each. BadArgument names the first invalid one."""
        args: Row = {"p_fleet": self._fleet, "p_actor": actor, "p_scope": {}, "p_key": None, "p_sha256": None}
        answer = await self._db.call("task_submit_for", p_tasks=list(tasks), **args)  # a user's params are not redacted
        return list(answer["tasks"])

    async def task(self, task_id: UUID | str) -> Row:
        """Return one task with its attempts. "task" is None if it is unknown."""
        return dict(await self._db.call("task_get", p_id=str(task_id)))

    async def tasks(self, status: str | None = None, task_type: str | None = None, limit: int = 100) -> Row:
        """Return tasks, newest first, and the number of all tasks by status."""
        return dict(await self._db.call("task_list", p_status=status, p_task_type=task_type, p_limit=limit))

    async def cancel(self, task_id: UUID | str, *, actor: str = OPERATOR) -> Row:
        """Cancel a queued task now, and a running one with its agent's next heartbeat: {outcome, status}."""
        return dict(await self._act(actor, "task.cancel", str(task_id), {}))

    async def retry(self, task_id: UUID | str, *, actor: str = OPERATOR) -> Row:
        """Requeue a failed or cancelled task, and the tasks that failed only because of it: {outcome, tasks}."""
        return dict(await self._act(actor, "task.retry", str(task_id), {}))

    async def check_functions(self) -> str:
        """Return the schema's version.

        SchemaMismatch names the functions that this version calls and the database lacks.

        A later schema may have more functions, and more arguments with defaults, so that a rollback can start.
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
