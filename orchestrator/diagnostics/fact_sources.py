"""Where facts come from: a diagnostic report (`of_report`), or a tick of the leader (`of_tick`).

A report gives all of them. A tick gives what it sees anyway, and what the leader asks once a minute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.core.actions import Plan, PoolDecision
from orchestrator.core.blocked import from_json
from orchestrator.core.cluster_states import WORKING, MemberStatus
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.findings import findings_of
from orchestrator.core.model import ClusterNeed, Demand, Pause, Snapshot, Worker
from orchestrator.core.moments import maybe_moment, moment
from orchestrator.core.states import State
from orchestrator.core.store_outage import waiting_since
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.diagnostics.drift import Drift, Orphan, WorkerWithoutPod
from orchestrator.diagnostics.early_warnings import silent_leader, unfit
from orchestrator.diagnostics.facts import NOT_ASKED, Asked, Facts, Outage, PoolFacts, Row, WorkerFacts
from orchestrator.diagnostics.foreign_pods import ForeignPods, of_other_databases
from orchestrator.ports import DatabaseHalf


def of_tick(snapshot: Snapshot, made: Plan, asked: Asked = NOT_ASKED) -> Facts:
    """What the leader saw in a tick, and what it asked within the last minutes."""
    decided = {one.pool: one for one in made.decisions}
    pods = {pod.id: pod for pod in snapshot.pods or ()}
    lost = [pods[pod_id] for pod_id in snapshot.orphan_since if pod_id in pods]
    orphans = tuple(Orphan(pod.id, pod.worker_id, pod.status.value, pod.price_usd_per_hour) for pod in lost)
    theirs = of_other_databases(
        snapshot.foreign_pods, next((pod.fleet_id or "" for pod in snapshot.foreign_pods), ""), None
    )
    return Facts(
        snapshot.now,
        database_s=snapshot.database_s,
        provider_error=snapshot.unlisted,
        balance_usd=asked.balance_usd,
        is_led=True,
        paused=snapshot.paused,
        queued=sum(demand.claimable + sum(demand.blocked.values()) for demand in snapshot.demand),
        pools=[PoolFacts(demand, decided.get(demand.pool)) for demand in snapshot.demand],
        workers=[_of_worker(worker) for worker in snapshot.workers],
        live=len(snapshot.workers),
        ended=snapshot.ended,
        offers=snapshot.offers,
        store_away=Outage(snapshot.store_outage.why, snapshot.store_outage.since) if snapshot.store_outage else None,
        store_s=asked.store_s,
        bucket_place=asked.bucket_place,
        handled=asked.handled,
        waiting_types=asked.waiting_types,
        unpublished_tasks=asked.unpublished_tasks,
        schema_problems=asked.schema_problems,
        webhooks=asked.webhooks,
        schedules=asked.schedules,
        clusters=asked.clusters,
        controllers=_controllers(snapshot.clusters),
        lost_tasks=asked.lost_tasks,
        failed_tasks=asked.failed_tasks,
        failed_within="15 minutes",
        failed_bringups=asked.failed_bringups,
        drift=Drift(orphans, (), len(pods), theirs, 0),
        expired_leases=snapshot.expired_leases,
    )


def of_report(
    report: Row,
    half: DatabaseHalf | None = None,
    handled: Sequence[str] = (),
    clusters: Sequence[ClusterRow] = (),
    *,
    about_one: bool = False,
) -> Facts:
    """What a diagnostic report says; `half` is what the database said to an observer at that time."""
    database = _known(report, "database_state")
    now = moment(database.get("now") or report["timestamp"])  # rows have the database's times
    provider, analysis = _known(report, "runpod_state"), _known(report, "orchestrator_analysis")
    given, spent = report["environment"], database.get("spent", {})
    decided = {one["pool"]: one for one in analysis.get("scaling_decisions", ())}
    store, away, leader = analysis.get("store", {}), _outage(database.get("store_away")), database.get("leader")
    error, alone = _provider_error(report, decided)
    unseen = None if away else store.get("error")  # a leader knows better than a machine that lacks a key or a route
    empty = {one.id: one.empty_since for one in half.workers} if half else {}
    code = report["deployment_verification"].get("code_consistency", {})
    usual = spent.get("usual_day_usd")
    return Facts(
        now,
        environment=given,
        database_error=report["database_state"].get("error"),
        database_s=database.get("response_time_ms", 0) / 1000,
        functions=database.get("rpc_function_tests", {}),
        provider_error=None if alone else error,
        provider_unseen=error if alone else None,
        balance_usd=provider.get("balance_usd"),
        is_led=leader is not None if database else None,
        leader_silent=silent_leader(leader, now) if leader and "expires_at" in leader else None,
        tick_failed=_outage(database.get("tick_failed")),
        store_away=Outage(unseen, None) if unseen and not leader else away,
        store_unseen=unseen if leader else None,
        store_s=store.get("response_time_ms", 0) / 1000,
        bucket_place=given.get("bucket_place"),
        paused=_paused(database.get("paused", {})),
        queued=database.get("task_counts", {}).get("Queued", 0),
        pools=[_of_queue(row, decided.get(row["pool"], {})) for row in database.get("queue", ())],
        workers=[
            *(
                replace(worker_of(one["database_record"], one), empty_since=empty.get(one["database_record"]["id"]))
                for one in _workers(report)
                if "error" not in one
            ),
            *(
                _of_worker(one)
                for one in (half.workers if half and about_one else ())
                if one.id not in report["workers"]
            ),
        ],
        live=sum(n for state, n in database.get("workers_by_status", {}).items() if state != State.TERMINATED),
        unknown_workers={
            name: one["error"] for name, one in sorted(report["workers"].items()) if database and "error" in one
        },
        ended=half.ended if half else (),
        offers=half.offers if half else {},
        handled=handled,
        waiting_types=database.get("waiting_types", ()),
        unpublished_tasks=database.get("unpublished_tasks", ()),
        schema_problems=database.get("schema_problems", ()),
        webhooks=database.get("webhooks", {}),
        schedules=database.get("schedules", ()),
        clusters=clusters,
        controllers=_controllers(half.clusters) if half else {},
        lost_tasks=database.get("lost_tasks", ()),
        drift=_drift(provider.get("mismatches") or {}),
        expired_leases=database.get("expired_leases", 0),
        failed_bringups=database.get("failed_bringups", ()),
        failed_tasks=database.get("failed_tasks", ()),
        last_day_usd=float(spent.get("last_day_usd") or 0),
        usual_day_usd=None if usual is None else float(usual),
        unreachable={name: one for name, one in report["network_tests"].items() if not one["accessible"]},
        other_code=code.get("workers_with_other_code") or (),
    )


def of_task(found: Row) -> Facts:
    """What fleet_task_explain() says of the task's pool, for a fleet whose leader has recorded nothing."""
    task, decision, now = found["task"], found["decision"], moment(found["now"])
    blocked = tuple(map(from_json, decision["blocked"])) if decision else ()
    demand = Demand(task["pool"], found["ahead"] + 1, 0, {}, moment(task["created_at"]))
    made = PoolDecision(task["pool"], "", decision["target"], {}, blocked) if decision else None
    return Facts(
        now, is_led=found["leader"] is not None, paused=_paused(found["paused"]), pools=[PoolFacts(demand, made)]
    )


def _paused(rows: Row) -> Mapping[str, Pause]:
    return {pool: Pause(one["reason"], maybe_moment(one["until"])) for pool, one in rows.items()}


def worker_of(row: Row, seen: Row | None = None) -> WorkerFacts:
    """A `workers` row, and what was seen of the worker."""
    ssh, since = (seen or {}).get("ssh_analysis", {}), moment(row["state_since"])
    return WorkerFacts(
        row["id"], row["pool"], row["status"], row["stage"], since, maybe_moment(row.get("last_heartbeat")) or since,
        row.get("tasks_running") or 0, unfit(row), findings_of(row.get("health")), row.get("busy_share"),
        float(row.get("cost_usd") or 0),
        row.get("waiting_on") or "", row.get("waiting_for") or "", row.get("heartbeat_s"),
        WorkerMetadata.of(row.get("metadata")), (seen or {}).get("explanation", {}), ssh.get("connection_status", ""),
        (ssh.get("processes") or {}).get("exit_class"), maybe_moment(row.get("stage_since")),
        maybe_moment(row.get("deadline_at")), row.get("data_center"), waiting_since(row.get("health"), since),
        cluster=row.get("cluster"),
    )  # fmt: skip


def _of_worker(worker: Worker) -> WorkerFacts:
    since, held = worker.state_since, worker.held_back
    why = "its disk is full" if worker.disk_full_since else None
    why = next((finding.text for finding in worker.findings if finding.severity.blocks), why)
    why = f"{held.failures} different tasks failed in a row" if held else why
    explanation = {"who": str(worker.waiting_on), "what": worker.waiting_for or "", "code": worker.failure_code}
    return WorkerFacts(
        worker.id, worker.pool, worker.state, worker.stage, since, worker.last_heartbeat or since,
        worker.tasks_running, why, worker.findings, waiting_on=worker.waiting_on, waiting_for=worker.waiting_for or "",
        metadata=worker.metadata, explanation=explanation | {"subcause": None, "then": "", "fix": ""},
        stage_since=worker.stage_since, deadline_at=worker.deadline_at, data_center=worker.data_center,
        store_wait_since=worker.store_wait_since, empty_since=worker.empty_since, cluster=worker.cluster,
    )  # fmt: skip


def _controllers(clusters: Sequence[ClusterNeed]) -> Mapping[str, str | None]:
    """Return the controller of each live cluster, if its agent runs tasks now."""
    return {one.id: one.controller if _works(one) else None for one in clusters}


def _works(cluster: ClusterNeed) -> bool:
    return cluster.status in WORKING and cluster.members.get(cluster.controller or "") is MemberStatus.READY


def _of_queue(row: Row, decided: Row) -> PoolFacts:
    blocked, pool = decided.get("blocked", ()), row["pool"]
    waits = {why: row.get(why, 0) for why in ("dependencies", "concurrency", "scheduled")}
    demand = Demand(pool, row["claimable"], row["running"], waits, maybe_moment(row["oldest_claimable_at"]))
    decision = PoolDecision(pool, "", decided["target"], {}, tuple(map(from_json, blocked))) if decided else None
    since = {one["kind"]: moment(one["since"]) for one in blocked if one.get("since")}
    mean_s = None if row["mean_task_s"] is None else float(row["mean_task_s"])
    return PoolFacts(demand, decision, maybe_moment(row.get("next_due_at")), mean_s, since)


def _drift(found: Row) -> Drift:
    return Drift(
        tuple(Orphan(**one) for one in found.get("orphans", ())),
        tuple(WorkerWithoutPod(**one) for one in found.get("bereft", ())),
        found.get("pods", 0),
        tuple(ForeignPods(**one) for one in found.get("foreign_pods", ())),
        found.get("foreign", 0),
    )


def _provider_error(report: Row, decided: Mapping[str, Row]) -> tuple[str | None, bool]:
    """Why RunPod does not answer this process, or else the leader; and whether a leader has no trouble with it.

    The last decision of each pool says what the leader knows.
    """
    error: str | None = report["runpod_state"].get("error")
    made = [one["last"] for one in decided.values() if one.get("last")]
    lists = [
        one["detail"].get("error", "")
        for last in made
        for one in last["blocked"]
        if one["kind"] in ("no_pod_list", "old_pod_list")
    ]
    if not error or error.startswith("not asked"):
        return next(iter(lists), None), False
    database = _known(report, "database_state")
    return error, bool(made and not lists and database.get("leader") and not database.get("tick_failed"))


def _outage(row: Row | None) -> Outage | None:
    return Outage(row["reason"], moment(row["since"])) if row else None


def _known(report: Row, name: str) -> Row:
    """A part of the report; empty if it could not be had."""
    part: Row = report.get(name) or {}
    return {} if "error" in part else part


def _workers(report: Row) -> Sequence[Row]:
    return [one for _, one in sorted(report["workers"].items())]
