"""The metrics for Prometheus, in a given registry. No label contains the name of a worker or task.

Every label has a bounded set of values: enums of core, names of SQL functions, configured pools; any other value is
"other". Only the leader exports gauges of the fleet, so that a sum over replicas is correct.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

from orchestrator.core.actions import Plan, Terminate
from orchestrator.core.breaker import STATES, spawn_limit
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Snapshot
from orchestrator.core.policy import Policy
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import READY, Stage, State
from orchestrator.core.task_failures import TaskFailure
from orchestrator.ports import PortError

OTHER = "other"
CODES = frozenset[str](FailureCode) | frozenset[str](TaskFailure)
XID = "XID"  # all of NVIDIA's numbers
FAST_S = (0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2, 15)  # a database call
TICK_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, 30)
STAGE_S = (0.05, 0.25, 1, 2, 5, 15, 30, 60, 120, 300, 600, 900)
NO_SERVICE = frozenset({"401", "403", "429"})  # the provider answers, but refuses us
CAUSES = ("claimable", "running", "dependencies", "concurrency", "scheduled", "paused")
DEPENDENCIES = ("database", "provider", "s3")
ROLES = ("starting", "leader", "standby", "stopping")


def code_of(code: str | None) -> str:
    """Return a failure code as a label. An unknown code is `other`."""
    if code is None:
        return "none"
    return XID if code.startswith("XID_") else str(code) if code in CODES else OTHER


class Metrics:
    """The metrics of one process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self._answered: dict[str, bool] = {}  # dependency -> whether its last call was answered
        self._opened: dict[int, tuple[Stage, float]] = {}  # running attempts of bring-up: id -> stage, begin
        ProcessCollector(namespace="orchestrator", registry=registry)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"orchestrator_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"orchestrator_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"orchestrator_{name}", what, labels, buckets=tuple(buckets), registry=registry)

        self.build = gauge("build", "always 1; the labels say what runs here", "version", "commit", "schema")
        self.role = gauge("role", "1 for the role of this process, 0 for the others", "role")
        self.queue = gauge("queue_tasks", "tasks, by what they wait for", "pool", "cause")
        self.oldest = gauge("queue_oldest_seconds", "age of the oldest task that is ready to run", "pool")
        self.workers = gauge("workers", "live workers", "pool", "state")
        self.bringups = gauge("bringups", "workers in bring-up, by the stage that they are in", "pool", "stage")
        self.breaker = gauge("breaker", "1 for the present state of a pool's breaker", "pool", "state")
        self.condition = gauge("condition", "conditions found in the last tick; docs/health.md", "kind", "severity")
        self.findings = gauge("findings", "ready workers that report it; docs/gpu-guards.md", "code", "severity")
        self.usd_per_hour = gauge("dollars_per_hour", "dollars per hour of all live workers")
        self.usd_today = gauge("dollars_spent_today", "dollars spent since midnight UTC")
        self.usd_budget = gauge("dollars_budget", "the budget in dollars; absent without one", "per")
        self.log_pending = gauge("log_bytes_pending", "bytes of worker logs in heartbeats, not in S3 yet")
        self.unpublished = gauge("unpublished_tasks", "tasks whose row shows an earlier status, after a failed write")
        self.unpublished_s = gauge("unpublished_oldest_seconds", "age of the oldest of these statuses")
        self.tick_s = histogram("tick_seconds", "duration of one tick", TICK_S)
        self.ticks = counter("ticks", "ticks", "outcome")
        self.last_tick = gauge("last_tick_timestamp_seconds", "when the last tick began, as leader or standby")
        self.stage_s = histogram("stage_seconds", "duration of one stage of bring-up", STAGE_S, "stage", "outcome")
        self.stage_failures = counter("stage_failures", "stages of bring-up that failed", "stage", "code")
        self.ended = counter("workers_ended", "decisions to end a worker", "cause", "code")
        self.claims = counter("task_claims", "tasks handed to workers")
        self.completions = counter("task_completions", "tasks whose completion was accepted")
        self.failures = counter("task_failures", "attempts at tasks that failed or were lost", "code")
        self.provider = counter("provider_calls", "requests to RunPod", "operation", "status")
        self.log_shipped = counter("log_bytes_shipped", "bytes of worker logs that S3 has")
        self.db_s = histogram("database_call_seconds", "duration of one call of a SQL function", FAST_S, "function")
        self.db_errors = counter("database_errors", "database calls without a clear answer", "function", "error")
        self.gateway = counter("gateway_calls", "calls of agents to the gateway", "function", "status")
        self.spans = counter("trace_spans", "spans of tasks: exported, failed or dropped; docs/tracing.md", "result")
        self.up = gauge("dependency_up", "1 if it answered the last call, 0 if not", "dependency")

    def dependencies(self) -> dict[str, str]:
        """Return whether each dependency answered its last call: up, down, or not asked yet."""
        words = {None: "not asked yet", True: "up", False: "down"}
        return {name: words[self._answered.get(name)] for name in DEPENDENCIES}

    def set_role(self, role: str) -> None:
        """Set the role. A process that does not lead exports no metrics of the fleet."""
        for known in ROLES:
            self.role.labels(known).set(known == role)
        if role != "leader":
            for table in (
                self.queue,
                self.oldest,
                self.workers,
                self.bringups,
                self.breaker,
                self.usd_budget,
                self.condition,
                self.findings,
            ):
                table.clear()
            for number in (
                self.usd_per_hour, self.usd_today, self.log_pending, self.unpublished, self.unpublished_s,
            ):  # fmt: skip
                number.set(0)

    def note_tick(self, snapshot: Snapshot, made: Plan, policy: Policy, took_s: float) -> None:
        """Record a tick of the leader."""
        self.ticks.labels("ok").inc()
        self.tick_s.observe(took_s)
        pools = {pool.name for pool in policy.pools}
        self._count_queue(snapshot, pools)
        self._count_workers(snapshot, policy, pools)
        self._count_findings(snapshot)
        self.usd_per_hour.set(snapshot.spent.hourly_usd)
        self.usd_today.set(snapshot.spent.today_usd)
        for per, limit in (("hour", policy.hourly_budget_usd), ("day", policy.daily_budget_usd)):
            if limit is not None:
                self.usd_budget.labels(per).set(limit)
        for action in made.actions:
            if isinstance(action, Terminate):
                self.ended.labels(action.cause, code_of(action.code)).inc()

    def found(self, counts: Mapping[tuple[str, str], int]) -> None:
        """How many conditions of each kind and severity the last tick found."""
        _show(self.condition, counts)

    def _count_queue(self, snapshot: Snapshot, pools: set[str]) -> None:
        tasks = dict.fromkeys(((pool, cause) for pool in pools for cause in CAUSES), 0)
        ages_s = dict.fromkeys(pools, 0.0)
        for demand in snapshot.demand:
            pool = demand.pool if demand.pool in pools else OTHER
            counts = {"claimable": demand.claimable, "running": demand.running, **demand.blocked}
            for cause, count in counts.items():
                tasks[pool, cause] = tasks.get((pool, cause), 0) + count
            if demand.oldest_claimable_at is not None:
                age_s = (snapshot.now - demand.oldest_claimable_at).total_seconds()
                ages_s[pool] = max(ages_s.get(pool, 0.0), age_s)
        _show(self.queue, tasks)
        _show(self.oldest, {(pool,): age_s for pool, age_s in ages_s.items()})

    def _count_findings(self, snapshot: Snapshot) -> None:
        counts: dict[tuple[str, str], int] = {}
        for one in (one for worker in snapshot.workers if worker.state in READY for one in worker.findings):
            key = (one.code if one.guard else OTHER, str(one.severity))
            counts[key] = counts.get(key, 0) + 1
        _show(self.findings, counts)

    def _count_workers(self, snapshot: Snapshot, policy: Policy, pools: set[str]) -> None:
        states = [state for state in State if state is not State.TERMINATED]
        workers = dict.fromkeys(((pool, str(state)) for pool in pools for state in states), 0)
        for worker in snapshot.workers:
            key = (worker.pool if worker.pool in pools else OTHER, str(worker.state))
            workers[key] = workers.get(key, 0) + 1
        _show(self.workers, workers)
        stages: dict[tuple[str, str], int] = {}
        for worker in snapshot.workers:
            if worker.state is State.SPAWNING:
                place = (worker.pool if worker.pool in pools else OTHER, str(worker.stage))
                stages[place] = stages.get(place, 0) + 1
        _show(self.bringups, stages)
        for pool in policy.pools:
            limit = spawn_limit(pool, snapshot, policy, 0)
            for name, kind in STATES.items():
                self.breaker.labels(pool.name, name).set(kind is (limit.reason.kind if limit else None))

    def counted(self, row: Mapping[str, Any]) -> None:
        """Record the counts of `fleet_metrics`: finished tasks since the last call, and what is pending."""
        self.claims.inc(row["claimed"])
        for end in row["ended"]:
            if end["outcome"] == "complete":
                self.completions.inc(end["n"])
            elif end["outcome"] in {"failed", "lost"}:
                self.failures.labels(code_of(end["code"])).inc(end["n"])
        self.log_pending.set(row["log_bytes_pending"])
        self.unpublished.set(row["unpublished"]["n"])
        self.unpublished_s.set(row["unpublished"]["oldest_s"])

    def called(self, operation: str, status: str) -> None:
        """Record a request to the provider."""
        self.provider.labels(operation, status).inc()
        self._heard("provider", answered=status.startswith(("2", "4")) and status not in NO_SERVICE)

    def stored(self, answered: bool) -> None:
        """Record a call to the bucket."""
        self._heard("s3", answered=answered)

    def asked(self, function: str, args: Mapping[str, Any], answer: Any, took_s: float) -> None:
        """Record an answered call to the database. Calls of bring-up and shipping also give durations and bytes."""
        self.db_s.labels(function).observe(took_s)
        self._heard("database", answered=True)
        if function == "fleet_attempt_open":
            self._opened[int(answer["id"])] = (Stage(args["p_stage"]), time.monotonic())
        elif function == "fleet_attempt_close":
            stage, began_s = self._opened.pop(int(args["p_id"]), (None, 0.0))
            if stage is not None and stage in STAGE_SPECS:
                self.stage_s.labels(stage, args["p_outcome"]).observe(time.monotonic() - began_s)
                if args["p_failure_code"] is not None:
                    self.stage_failures.labels(stage, code_of(args["p_failure_code"])).inc()
        elif function == "fleet_log_shipped":
            self.log_shipped.inc(args["p_last"] - args["p_first"])

    def unanswered(self, function: str, error: PortError, *, away: bool) -> None:
        """Record a failed call to the database. `away`: it gave no clear answer."""
        self.db_errors.labels(function, type(error).__name__).inc()
        if away:
            self._heard("database", answered=False)

    def _heard(self, dependency: str, *, answered: bool) -> None:
        self._answered[dependency] = answered
        self.up.labels(dependency).set(answered)


def _show(gauge: Gauge, values: Mapping[Any, float]) -> None:
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
