"""For each kind of condition the facts that show it, what is said then, and when it makes the fleet UNHEALTHY."""

# ruff: noqa: E501  a case is a line of the table

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.command_table import COMMANDS
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.meanings import OPERATOR
from orchestrator.core.model import ClusterNeed, Demand, EndedBringUp, Spent, Worker
from orchestrator.core.plan import plan
from orchestrator.core.provider import OfferState
from orchestrator.core.stages import BRING_UP
from orchestrator.diagnostics.change import changes
from orchestrator.diagnostics.condition_kinds import ONCE_CORRECTED, ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition, is_healthy
from orchestrator.diagnostics.environment import environment
from orchestrator.diagnostics.fact_sources import of_report, of_tick
from orchestrator.diagnostics.rules import conditions
from orchestrator.ports import DatabaseHalf
from tests.unit.core.build import NOW, ago, busy, policy, snapshot
from tests.unit.core.clusters.rows import DETAIL, cluster, member

Facts = dict[str, Any]
GIVEN = {
    "RUNPOD_API_KEY": "rpa_0123456789",
    "SUPABASE_URL": "https://x.supabase.co",
    "SUPABASE_SERVICE_ROLE_KEY": "sb_secret_0123456789",
    "RUNPOD_SSH_PUBLIC_KEY": "ssh-ed25519 AAAA",
    "RUNPOD_SSH_PRIVATE_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----",
}


DELETED = {  # a worker that finished a long task, and whose pod RunPod has listed since then
    "status": "terminating", "stage": "deleting", "metadata": {"deletes": 40}, "waiting_on": "provider",
    "waiting_for": "it is still listed", "state_since": ago(4_000).isoformat(),
}  # fmt: skip


def found_in(report: Facts) -> list[Condition]:
    """What the rules find in a report, and in what an observer saw then."""
    half, clusters = report.pop("half", None), report.pop("clusters", ())
    return conditions(of_report(report, half, ("travel_segment", "work"), clusters))


def when(seconds: float) -> str:
    return ago(seconds).isoformat()


def worker(**row: Any) -> Facts:
    """An active worker that runs a task."""
    explained = row.pop("explanation", {})
    ssh = row.pop("ssh", {})
    record = {
        "id": "gpu-1", "status": "active", "stage": "promoted", "pool": "default", "state_since": when(200),
        "last_heartbeat": when(5), "tasks_running": 1, "busy_share": 0.9, "cost_usd": 0.5, "pod_id": "pod-1",
    }  # fmt: skip
    explanation = {"who": "worker", "what": "to finish", "code": None, "subcause": None, "fix": "none needed"}
    explanation |= {"then": "given up"}
    analysis = {"connection_status": "✅ Connected", "processes": {"exit_class": "running"}}
    return {"database_record": record | row, "explanation": explanation | explained, "ssh_analysis": analysis | ssh}


def queue(**changes: Any) -> Facts:
    """A pool's tasks: one runs, none waits."""
    base = {"pool": "default", "claimable": 0, "dependencies": 0, "scheduled": 0, "running": 1, "completed_1h": 3}
    return base | {"oldest_claimable_at": None, "mean_task_s": 60.0} | changes


def facts() -> Facts:
    """A report on which nothing is to be said."""
    return {
        "timestamp": NOW.isoformat(),
        "environment": environment(GIVEN) | {"ssh_keys": {"usable": True}},
        "database_state": {
            "leader": {"holder": "us"}, "paused": {}, "workers_by_status": {"active": 1},
            "task_counts": {"In Progress": 1}, "queue": [queue()], "expired_leases": 0, "failed_bringups": [],
            "failed_tasks": [], "spent": {"last_day_usd": 5, "usual_day_usd": 4},
            "rpc_function_tests": {"worker_claim": {"status": "ok"}, "fleet_lead": {"status": "ok"}},
        },
        "runpod_state": {"total_hourly_cost": 0.4, "mismatches": {"orphans": [], "bereft": [], "foreign_pods": []}},
        "workers": {"gpu-1": worker()},
        "orchestrator_analysis": {"scaling_decisions": []},
        "network_tests": {"supabase": {"accessible": True}},
        "deployment_verification": {"code_consistency": {"workers_with_other_code": []}},
    }  # fmt: skip


def seen(
    *ended: EndedBringUp, offers: dict[str, OfferState] | None = None, workers: tuple[Worker, ...] = ()
) -> Callable[[Facts], None]:
    """What an observer saw of ended bring-ups, offers and workers."""
    half = DatabaseHalf(NOW, workers, (), 0, offers or {}, {}, {}, ended, frozenset(), Spent(0, 0, 0), {}, None)
    return setting("half", half)


def clustered(row: ClusterRow, controller: str | None = None) -> Callable[[Facts], None]:
    """A cluster in the report, whose ready controller an observer saw."""

    def put(report: Facts) -> None:
        members = {controller: MemberStatus.READY} if controller else {}
        seen()(report)
        need = ClusterNeed(row.id, row.pool, row.status, row.nodes, members, controller)
        report["half"] = replace(report["half"], clusters=(need,))
        report["clusters"] = (row,)

    return put


def failed_bringup(code: str, seconds: float = 60, **changes: Any) -> EndedBringUp:
    """A bring-up that failed."""
    base = EndedBringUp("gpu-9", "default", ago(seconds), False, ExitCause.SPAWN_FAILED, code, "r")
    return replace(base, **changes)


def lost(**changes: Any) -> Callable[[Facts], None]:
    base = {"task_id": "t-1", "task_type": "work", "status": "Queued", "workers": 1, "last_at": when(300)}
    base |= {"worker_id": "gpu-9", "exit_cause": "heartbeat_lost", "code": "NO_HEARTBEAT"}
    look = {"at": when(290), "known": True, "agent": {"exit_class": "killed"}}
    return setting("database_state.lost_tasks", [base | {"look": look} | changes])


UNPUBLISHED = {"pool": "default", "n": 3, "task_id": "t-1", "reason": "boom (P0001)", "since": when(70)}


def held(kind: str, *, claimable: int = 4, **reason: Any) -> Callable[[Facts], None]:
    """A pool with waiting tasks, no worker, and a reason in its last decision."""

    def put(report: Facts) -> None:
        waits({"Queued": claimable}, claimable=claimable, running=0, oldest_claimable_at=when(60))(report)
        block = {"kind": kind, "count": 2, "unit": "spawn", "detail": {}, "since": when(120)} | reason
        limit = {"kind": "max_active", "count": 3, "unit": "worker", "detail": {"limit": 2}}
        report["orchestrator_analysis"]["scaling_decisions"] = [
            {"pool": "default", "target": 2, "blocked": [limit, block]}
        ]
        report["workers"] = {}

    return put


def setting(path: str, value: Any) -> Callable[[Facts], None]:
    """Put a value where a dotted path leads."""

    def put(report: Facts) -> None:
        *way, last = path.split(".")
        for name in way:
            report = report[name]
        report[last] = value

    return put


def finding(code: str, severity: str) -> Facts:
    """The health of an agent that reports it."""
    return {"findings": [{"u": 22, "code": code, "severity": severity, "since": 1, "evidence": "seen"}]}


def key_trouble(cause: str) -> Callable[[Facts], None]:
    return setting("environment.ssh_keys", {"usable": False, "cause": cause, "error": "as seen"})


def bringups(
    code: str, cause: str | None = None, ok_at: str | None = None, last_s: float = 60
) -> Callable[[Facts], None]:
    row = {"code": code, "cause": cause, "stage": "ssh_auth", "n": 3, "workers": 3, "last_at": when(last_s)}
    row |= {"pool": "default", "ok_at": ok_at}
    return setting("database_state.failed_bringups", [row])


def waits(counts: dict[str, int], **pool: Any) -> Callable[[Facts], None]:
    def put(report: Facts) -> None:
        report["database_state"]["task_counts"] = counts
        report["database_state"]["queue"] = [queue(**pool)]

    return put


def failed(**changes: Any) -> Callable[[Facts], None]:
    base = {"task_type": "travel_segment", "code": "HANDLER", "n": 2, "last_at": when(60), "last_task": "t-1"}
    return setting("database_state.failed_tasks", [base | {"message": "boom", "no_segments": 0} | changes])


def stuck(stage: str, **told: Any) -> Callable[[Facts], None]:
    told = {"who": "provider", "what": "an answer", "fix": "python -m orchestrator explain gpu-1"} | told
    return setting("workers.gpu-1", worker(status="spawning", stage=stage, state_since=when(301), explanation=told))


def unlisted(error: str, *leaders: str, **database: Any) -> Callable[[Facts], None]:
    """RunPod does not serve this process. `leaders`: what the leader's last decision says of the list."""

    def put(report: Facts) -> None:
        blocked = [{"kind": "no_pod_list", "detail": {"error": one}} for one in leaders]
        made = {"pool": "default", "target": 2, "blocked": [], "last": {"blocked": blocked}}
        report["orchestrator_analysis"]["scaling_decisions"] = [made]
        report["runpod_state"] = {"error": error}
        report["database_state"] |= database

    return put


UNSTUCK = {
    "intent": "python -m orchestrator run",
    "pod_running": "SPAWNING_TIMEOUT_SEC",
    "ssh_details": "RUNPOD_CLOUD",
    "ssh_auth": "RUNPOD_SSH_PUBLIC_KEY",
    "exec": "WORKER_PYTHON",
    "platform": "WORKER_PYTHON",
    "process": "logs gpu-1",
    "heartbeat": "WORKER_API_URL",
}
MISSING = {name: value for name, value in GIVEN.items() if name != "RUNPOD_SSH_PRIVATE_KEY"}
BLOCKED = {
    "pool": "default",
    "target": 2,
    "blocked": [{"kind": "max_active", "count": 3, "unit": "worker", "detail": {"limit": 2}}],
}
ORPHANS = {
    "orphans": [{"pod_id": "p9", "worker_id": None, "status": "RUNNING", "usd_per_hour": 0.44}],
    "bereft": [],
    "foreign_pods": [],
}
UNPRICED = ORPHANS | {"orphans": [{"pod_id": "p9", "worker_id": None, "status": "RUNNING", "usd_per_hour": None}]}
BEREFT = {
    "orphans": [],
    "bereft": [{"worker_id": "gpu-1", "status": "active", "pod_id": "p1", "pod_status": None}],
    "foreign_pods": [],
}
THEIRS = {"database_id": "d2", "fleet_id": "default", "pods": ("p7", "p8"), "usd_per_hour": 0.88}
ENDED = {"processes": {"exit_class": "killed"}}
FAILING = {"held_back": {"failures": 5, "codes": ["HANDLER_ERROR"]}, "tasks_running": 0}
MUTE = {"connection_status": "❌ no answer within 12 s", "processes": None}
REFUSED = {"connection_status": "❌ Authentication failed: refused", "processes": None}

MEMBER = member(1).worker_id
DOWN = member(1, adapter_detail=DETAIL | {"slurmd_state": "down"})
LATE = cluster(pool="default", status=ClusterStatus.FAILED, failure_code="ALLOCATION_TIMEOUT", status_since=ago(60))
TORN = cluster(pool="default", status=ClusterStatus.DEGRADED, nodes=1, members=(DOWN,), status_since=ago(60))
GOING = cluster(pool="default", status=ClusterStatus.DELETING, members=(member(1),), status_since=ago(60))
UNSET = cluster(status=ClusterStatus.DEPLOYING, reason="x", status_since=ago(130))

# What is wrong -> the priority, the category, words of the issue, words of the action, words of the detail.
CASES: dict[str, tuple[Callable[[Facts], None], str, str, str, str, str]] = {
    "missing keys": (setting("environment", environment(MISSING) | {"ssh_keys": {"cause": "no_private_key"}}), "HIGH", "Environment", "Missing critical environment variables", "Add missing environment variables to Railway deployment", "RUNPOD_SSH_PRIVATE_KEY"),
    "a setting that cannot be used": (setting("environment.problems", [{"what": "PORT cannot be used", "why": "'x'", "fix": "set PORT"}]), "HIGH", "Environment", "PORT cannot be used", "set PORT", "'x'"),
    "a failed cluster": (clustered(LATE), "MEDIUM", "Clusters", "Cluster train of pool default has failed: ", "explain scaling; create it again", "ALLOCATION_TIMEOUT"),
    "a node that is down": (clustered(TORN, MEMBER), "MEDIUM", "Clusters", "Cluster train of pool default is degraded: A node's slurmd does not run", f"cluster reconcile train --worker {MEMBER}", "NODE_DOWN: "),
    "a cluster that is not set up": (clustered(UNSET), "MEDIUM", "Clusters", "is deploying: No slurmctld runs", "cluster reconcile train", "NODES_MISSING: 0 of 4"),
    "mangled private key": (key_trouble("bad_private_key"), "HIGH", "SSH", "RUNPOD_SSH_PRIVATE_KEY is mangled", "RUNPOD_SSH_PRIVATE_KEY", "as seen"),
    "mangled public key": (key_trouble("bad_public_key"), "HIGH", "SSH", "RUNPOD_SSH_PUBLIC_KEY is mangled", "RUNPOD_SSH_PUBLIC_KEY", "as seen"),
    "keys of two kinds": (key_trouble("key_type_mix"), "HIGH", "SSH", "RSA and Ed25519", "RUNPOD_SSH", "as seen"),
    "wrong key pair": (key_trouble("pair_mismatch"), "HIGH", "SSH", "does not match", "RUNPOD_SSH", "as seen"),
    "no schema": (setting("database_state", {"error": "SchemaMismatch: fleet_workers: it does not exist"}), "HIGH", "Database", "The database's schema is not this version's", "python -m orchestrator migrate", "fleet_workers"),
    "login refused": (setting("database_state", {"error": "DatabaseAuth: password authentication failed"}), "HIGH", "Database", "refuses the login", "doctor database", "password"),
    "read-only": (setting("database_state", {"error": "Unavailable: 25006: cannot execute UPDATE in a read-only transaction"}), "HIGH", "Database", "allows no writes", "primary server", "25006"),
    "locks": (setting("database_state", {"error": "Unavailable: 55P03: canceling statement due to lock timeout"}), "HIGH", "Database", "answers too late", "pg_stat_activity", "55P03"),
    "a call that hangs": (setting("database_state", {"error": "Unavailable: fleet_report: no answer within 8 s"}), "HIGH", "Database", "answers too late", "pg_stat_activity", "fleet_report"),
    "no connection left": (setting("database_state", {"error": "Unavailable: FATAL: too many connections for role"}), "HIGH", "Database", "no free connection", "max_connections", "too many"),
    "a function that fails": (setting("database_state", {"error": "Unavailable: 42702: column reference x is ambiguous"}), "HIGH", "Database", "fails in a function", "migrate", "42702"),
    "database restarts": (setting("database_state", {"error": "Unavailable: 57P03: the database system is starting up"}), "HIGH", "Database", "unreachable", "curl", "57P03"),
    "database not named": (setting("database_state", {"error": "Unavailable: no database is given"}), "HIGH", "Database", "The database is not named in the settings", "python -m orchestrator init; or set DATABASE_URL", "no database is given"),
    "database unreachable": (setting("database_state", {"error": "Unavailable: no route"}), "HIGH", "Database", "The database is unreachable", 'curl -i "$SUPABASE_URL/rest/v1/"', "no route"),
    "claim function missing": (setting("database_state.rpc_function_tests.worker_claim", {"status": "missing"}), "MEDIUM", "Tasks", "worker_claim does not work", "migrate", "missing"),
    "claim function fails": (setting("database_state.rpc_function_tests.worker_claim", {"status": "fails", "probe": "permission denied"}), "MEDIUM", "Tasks", "worker_claim does not work", "migrate", "permission denied"),
    "an older schema": (setting("database_state.rpc_function_tests.fleet_lead", {"status": "missing"}), "MEDIUM", "Database", "lacks functions", "migrate", "fleet_lead"),
    "RunPod refuses the key": (setting("runpod_state", {"error": "ApiAuth: 401"}), "HIGH", "RunPod", "Authentication failed: RunPod refuses the API key", "RUNPOD_API_KEY", "401"),
    "RunPod is away": (setting("runpod_state", {"error": "Unavailable: timeout"}), "MEDIUM", "RunPod", "RunPod does not answer", "status", "timeout"),
    "RunPod does not answer here": (unlisted("Unavailable: timeout"), "MEDIUM", "RunPod", "RunPod refuses or does not answer this process, but works for the orchestrator", "doctor runpod", "timeout"),
    "process not started": (setting("database_state.leader", None), "HIGH", "Orchestrator", "The orchestrator process is not running", "python -m orchestrator run", "live workers: 1"),
    "spawning paused": (setting("database_state.paused", {"*": {"reason": "maintenance", "until": None}}), "MEDIUM", "Orchestrator", "paused in every pool", "resume", "maintenance"),
    "worker's end does not come": (setting("workers.gpu-1", worker(status="terminating", stage="deleting", state_since=when(601))), "HIGH", "Workers", "stuck in terminating, stage deleting", "none needed", "gpu-1"),
    "stuck by an operator's key": (setting("workers.gpu-1", worker(status="spawning", stage="ssh_auth", state_since=when(20), explanation={"who": "operator", "what": "the pod to accept our key", "code": "AUTH_FAILED", "subcause": "REFUSED"})), "MEDIUM", "Workers", "waiting on operator: the pod to accept our key (AUTH_FAILED/REFUSED)", "none needed", "gpu-1"),
    "process died": (setting("workers.gpu-1", worker(ssh=ENDED)), "HIGH", "Workers", "SSH works, but its process is not running (killed)", "terminate gpu-1", "logs"),
    "held back": (lambda r: (waits({"Queued": 4}, claimable=4)(r), setting("workers.gpu-1", worker(**FAILING))(r))[0], "HIGH", "Workers", "gpu-1 claims no more: 5 different tasks failed in a row (HANDLER_ERROR)", "logs gpu-1", "by itself: given up"),
    "a full disk": (setting("workers.gpu-1", worker(health={"disk": {"since": 1, "why": "3 of 90 MiB are free"}})), "MEDIUM", "Workers", "gpu-1 claims no more: its disk is full: 3 of 90 MiB are free", "logs gpu-1", "by itself: given up"),
    "a faulty machine": (setting("workers.gpu-1", worker(health=finding("XID_79", "C"))), "HIGH", "Workers", "gpu-1 is on a faulty machine: The GPU's driver reported Xid 79: the GPU has fallen off the bus (XID_79)", "timeline gpu-1", "seen; by itself: terminate, respawn elsewhere"),
    "a faulty machine without a task": (setting("workers.gpu-1", worker(health=finding("GPU_LOST", "C"), tasks_running=0)), "MEDIUM", "Workers", "gpu-1 is on a faulty machine", "timeline gpu-1", "seen"),
    "a machine that is not fit, alone": (lambda r: (waits({"Queued": 4}, claimable=4)(r), setting("workers.gpu-1", worker(health=finding("INODES_FULL", "H")))(r))[0], "HIGH", "Workers", "gpu-1 claims no tasks: The file system on which tasks run", "RUNPOD_CONTAINER_DISK_GB", "seen; by itself: it claims no tasks; an idle worker"),
    "a warning of an agent": (setting("workers.gpu-1", worker(health=finding("CPU_THROTTLED", "M"))), "MEDIUM", "Workers", "gpu-1: The pod's CPU quota stops the task while the GPU waits (CPU_THROTTLED)", "RUNPOD_MIN_VCPU", "seen"),
    "GPUs whose state is unknown": (setting("workers.gpu-1", worker(health={"unknown": {"nvidia_smi": "no answer within 4 s"}})), "MEDIUM", "Workers", "gpu-1: The state of the GPUs is unknown: the agent gets no answer about them (SIGNAL_LOST)", "timeline gpu-1", "nvidia_smi: no answer within 4 s"),
    "a note of an agent": (setting("workers.gpu-1", worker(health=finding("CPU_BOUND", "I"))), "LOW", "Workers", "gpu-1: The task works on the CPU", "logs gpu-1", "seen"),
    "a finding of another version": (setting("workers.gpu-1", worker(health=finding("GPU_SINGS", "C"))), "LOW", "Workers", "does not know (GPU_SINGS)", "timeline gpu-1", "seen"),
    "no heartbeat": (setting("workers.gpu-1", worker(last_heartbeat=when(700), ssh=MUTE)), "HIGH", "Workers", "no heartbeat for 12 minutes", "explain gpu-1", "no answer within 12 s"),
    "SSH that does not answer": (setting("workers.gpu-1", worker(ssh=MUTE)), "MEDIUM", "SSH", "1 worker works, but cannot be reached over SSH", "explain gpu-1", "gpu-1: no answer within 12 s"),
    "a worker that could not be asked": (setting("workers.gpu-1", {"error": "not asked: the report's 27 s were over"}), "MEDIUM", "Workers", "No facts are available about 1 worker", "status gpu-1", "gpu-1: not asked"),
    "SSH authentication now": (setting("workers.gpu-1", worker(ssh=REFUSED)), "MEDIUM", "SSH", "SSH authentication fails", "RUNPOD_SSH", "now: gpu-1"),
    "SSH authentication before": (bringups("AUTH_FAILED", "PAIR_MISMATCH"), "MEDIUM", "SSH", "SSH authentication fails", "RUNPOD_SSH", "3 attempts"),
    "SSH unreachable": (bringups("TCP_TIMEOUT"), "MEDIUM", "SSH", "SSH connections failed within a day: TCP_TIMEOUT", "explain TCP_TIMEOUT", "3 attempts"),
    "SSH authentication before, and corrected": (bringups("AUTH_FAILED", "PAIR_MISMATCH", when(30)), "LOW", "SSH", "SSH authentication failed within a day, and works again", "none needed", "3 attempts within a day, the last 1 min ago; a later one succeeded"),
    "SSH authentication again": (bringups("AUTH_FAILED", "PAIR_MISMATCH", when(90)), "MEDIUM", "SSH", "SSH authentication fails", "RUNPOD_SSH", "3 attempts"),
    "SSH unreachable, and works again": (bringups("TCP_TIMEOUT", None, when(30)), "LOW", "SSH", "SSH connections failed within a day, and work again: TCP_TIMEOUT", "none needed", "3 attempts"),
    "all tasks blocked": (waits({"Queued": 4}, dependencies=4, running=0), "MEDIUM", "Tasks", "All 4 queued tasks are blocked", "tasks list", "4 by dependencies, 0 by scheduled"),
    "all tasks wait for a limit": (waits({"Queued": 4}, concurrency=4, running=0), "MEDIUM", "Tasks", "All 4 queued tasks are blocked", "tasks list", "0 by dependencies, 4 by concurrency, 0 by scheduled"),
    "only retries that are not due": (waits({"Queued": 4}, dependencies=1, scheduled=3, running=0, next_due_at=when(-28)), "LOW", "Tasks", "3 queued tasks wait for their time: a retry's pause, or submitted for later", "tasks list", "1 by dependencies, 3 by scheduled; the next is due 20"),
    "active but not claiming": (lambda r: (waits({"Queued": 4}, claimable=4, oldest_claimable_at=when(90))(r), setting("workers.gpu-1", worker(tasks_running=0))(r))[0], "HIGH", "Tasks", "gpu-1 is active but does not claim tasks", "logs gpu-1", "Connected"),
    "stitch without segments": (failed(task_type="travel_stitch", no_segments=2, message="No valid segment videos found"), "MEDIUM", "Tasks", "2 tasks of type travel_stitch failed: No valid segment videos found", "depends_on", "HANDLER"),
    "another stitch failure": (failed(task_type="travel_stitch"), "MEDIUM", "Tasks", "2 tasks of type travel_stitch failed within a day: HANDLER", "explain t-1", "boom"),
    "failed tasks": (failed(), "MEDIUM", "Tasks", "2 tasks of type travel_segment failed within a day: HANDLER", "explain t-1", "boom"),
    "orphan pods": (setting("runpod_state.mismatches", ORPHANS), "HIGH", "RunPod", "1 orphaned pod costs $0.44/h", "sync terminate_orphaned", "p9"),
    "an orphan pod without a price": (setting("runpod_state.mismatches", UNPRICED), "HIGH", "RunPod", "1 orphaned pod costs at least $0.00/h", "sync terminate_orphaned", "p9"),
    "stale rows": (setting("runpod_state.mismatches", BEREFT), "HIGH", "Database", "1 stale worker row", "sync update_database", "gpu-1 (not listed)"),
    "pods of another database": (setting("runpod_state.mismatches.foreign_pods", [THEIRS]), "MEDIUM", "RunPod", "2 pods of fleet default belong to another database ($0.88/h)", "FLEET_ID of its own; if that database is gone: python -m orchestrator sync terminate_orphaned --database d2", "p7, p8: made for database d2"),
    "leases over": (setting("database_state.expired_leases", 2), "MEDIUM", "Tasks", "No worker holds 2 tasks that are In Progress", "once", ""),
    "an expensive day": (setting("database_state.spent", {"last_day_usd": 20, "usual_day_usd": 4}), "MEDIUM", "Cost", "$20.00 in the last 24 hours, usually $4.00", "cost --since 24h", ""),
    "a worker paid for nothing": (setting("workers.gpu-1", worker(busy_share=0.05, cost_usd=3)), "MEDIUM", "Cost", "cost $3.00 and worked for 5%", "explain gpu-1", ""),
    "backlog held by a limit": (lambda r: (waits({"Queued": 30}, claimable=30, running=2, oldest_claimable_at=when(1200))(r), setting("orchestrator_analysis.scaling_decisions", [BLOCKED])(r))[0], "MEDIUM", "Scaling", "30 tasks wait, the oldest for 20 minutes", "raise MAX_ACTIVE_GPUS", "MAX_ACTIVE_GPUS=2. ETA 16 minutes"),
    "backlog of slow tasks": (waits({"Queued": 9}, claimable=9, mean_task_s=None, oldest_claimable_at=when(901)), "MEDIUM", "Scaling", "9 tasks wait", "TASKS_PER_GPU_THRESHOLD", "the 1 worker that it has. No ETA"),
    "a place that cannot be reached": (setting("network_tests.supabase", {"accessible": False, "url": "https://x", "error": "ConnectError"}), "LOW", "Network", "supabase cannot be reached", "curl -i https://x", "ConnectError"),
    "old code": (setting("deployment_verification.code_consistency", {"workers_with_other_code": ["gpu-1"]}), "LOW", "Deployment", "1 worker runs other code", "new workers", "gpu-1"),
    "a slow database": (setting("database_state.response_time_ms", 3200), "MEDIUM", "Database", "an answer took 3.2 s", "doctor database", ""),
    "ticks that fail": (setting("database_state.tick_failed", {"reason": "BadArgument: no", "since": when(60)}), "HIGH", "Orchestrator", "its ticks fail", "tick_aborted", "BadArgument: no"),
    "a leader that is late": (setting("database_state.leader", {"holder": "us", "expires_at": when(-2)}), "LOW", "Orchestrator", "its leader us is silent for 13 s", "process hangs", ""),
    "S3 is away": (setting("database_state.store_away", {"reason": "S3 does not answer (x)", "since": when(60)}), "MEDIUM", "S3", "S3 cannot be used", "doctor s3", "S3 does not answer (x)"),
    "S3 cannot be reached from here": (setting("orchestrator_analysis.store", {"error": "Unavailable: S3: no"}), "MEDIUM", "S3", "S3 refuses or does not answer this process; the orchestrator reports no outage", "doctor s3", "Unavailable: S3: no"),
    "S3 takes nothing from one worker": (setting("workers.gpu-1", worker(state_since=when(4_000), health={"store": {"since": when(700), "why": "no route"}})), "HIGH", "S3", "Worker gpu-1 cannot store its result in S3, for 12 minutes now", "terminate gpu-1", ""),
    "S3 is slow": (setting("orchestrator_analysis.store", {"response_time_ms": 4000}), "MEDIUM", "S3", "one request took 4.0 s", "doctor s3", ""),
    "pods far from the bucket": (lambda r: (setting("environment.bucket_place", "eu-west-1")(r), setting("workers.gpu-1", worker(data_center="US-TX-3"))(r))[0], "MEDIUM", "S3", "1 worker runs in US-TX-3, on another continent than the bucket (eu-west-1)", "RUNPOD_DATA_CENTERS", ""),
    "no money": (setting("runpod_state.balance_usd", 0.0), "HIGH", "RunPod", "no money: $0.00", "add funds", ""),
    "a debt": (setting("runpod_state.balance_usd", -0.03), "HIGH", "RunPod", "no money: -$0.03", "add funds", ""),
    "no handler": (setting("database_state.waiting_types", [{"pool": "default", "task_type": "stitch", "n": 3}]), "HIGH", "Tasks", "3 tasks of type stitch cannot run: WORKER_HANDLERS", "type=module:function", "pool default"),
    "webhooks that were given up": (setting("database_state.webhooks", {"undeliverable": 3, "late": 0, "host": "hooks.example.com", "failure": "it answered 500"}), "MEDIUM", "Tasks", "3 webhook messages were given up within a day, the last one to hooks.example.com", "webhooks list", "it answered 500"),
    "webhooks that nobody sends": (setting("database_state.webhooks", {"undeliverable": 0, "late": 7, "host": None, "failure": None}), "MEDIUM", "Tasks", "7 webhook messages have been due for more than 5 minutes", "WEBHOOK_SECRET", ""),
    "a schedule that is never due": (setting("database_state.schedules", [{"name": "nightly", "why": "no time zone 'Mars'"}]), "MEDIUM", "Tasks", "Schedule nightly submits no task", "schedules list", "no time zone 'Mars'"),
    "tasks whose status a trigger hides": (setting("database_state.unpublished_tasks", [UNPUBLISHED]), "MEDIUM", "Tasks", "The table tasks shows an earlier status of 3 tasks of pool default", "change that trigger or constraint, or end the transaction that locks the row; python -m orchestrator explain t-1", "boom (P0001)"),
    "a schema that was changed": (setting("database_state.schema_problems", [{"what": "the column tasks.progress is missing", "why": "needed", "fix": "add it"}]), "HIGH", "Database", "The database was changed: the column tasks.progress is missing", "add it", "needed"),
    "rows that policies hide": (setting("database_state", {"error": 'DatabaseAuth: fleet_report: query would be affected by row-level security policy for table "tasks"'}), "HIGH", "Database", "hides rows from the functions", "doctor database", "tasks"),
    "bring-ups that fail": (seen(failed_bringup("GPU_TYPE", 90), failed_bringup("GPU_TYPE")), "MEDIUM", "Workers", "Bring-ups fail in pool default: the last 2 bring-ups failed (GPU_TYPE): The pod's GPU is of another type", "timeline gpu-9", "gpu-9"),
    "bring-ups that have failed for long": (seen(failed_bringup("GPU_TYPE", 7_200), failed_bringup("GPU_TYPE")), "MEDIUM", "Workers", "Bring-ups fail in pool default: the last 2 bring-ups failed (GPU_TYPE)", "timeline gpu-9", "gpu-9"),
    "a refusal to rent": (seen(failed_bringup("BALANCE")), "MEDIUM", "RunPod", "RunPod refuses to rent for pool default (BALANCE): The balance of the RunPod account is too low", "add funds", ""),
    "a bring-up that has met a failure": (setting("workers.gpu-1", worker(status="spawning", stage="tcp", explanation={"who": "provider", "code": "TCP_TIMEOUT"})), "LOW", "Workers", "1 worker in bring-up at stage tcp, waiting on provider: to finish (TCP_TIMEOUT)", "explain gpu-1", "gpu-1"),
    "deletes without effect": (setting("workers.gpu-1", worker(status="terminating", stage="deleting", state_since=when(60), metadata={"deletes": 5}, waiting_for="it is still listed")), "HIGH", "RunPod", "has not deleted the pod of worker gpu-1 after 5 requests", "RunPod console", "still listed"),
    "deleted, and still listed": (setting("workers.gpu-1", worker(**DELETED, stage_since=when(590))), "LOW", "RunPod", "has not deleted the pod of worker gpu-1 yet", "none needed", "still listed"),
    "a task lost with its worker, and queued again": (lost(), "MEDIUM", "Tasks", "1 running task was lost with its worker (NO_HEARTBEAT/KILLED): Its agent was killed", "RUNPOD_MIN_MEMORY_GB", "worker gpu-9; t-1 Queued"),
    "a task lost, and running again": (lost(status="In Progress"), "MEDIUM", "Tasks", "1 running task was lost", "RUNPOD_MIN_MEMORY_GB", "t-1 In Progress"),
    "a task lost a moment ago, and running again": (lost(status="In Progress", last_at=when(50)), "MEDIUM", "Tasks", "1 running task was lost", "RUNPOD_MIN_MEMORY_GB", "t-1 In Progress"),
    "a poison task": (lost(workers=2, last_at=when(2000), code="POD_EXITED", exit_cause="pod_lost"), "HIGH", "Tasks", "Task t-1 (work) has ended 2 workers (POD_EXITED)", "tasks cancel t-1", "The pod's container ended"),
    "agents that get no answer and finish their tasks": (setting("workers.gpu-1", worker(status="terminating", stage="draining", deadline_at=when(-60), waiting_on="operator", waiting_for="the gateway: no answer")), "HIGH", "Orchestrator", "1 worker is silent and may be well; waiting for the gateway: no answer", "WORKER_API_URL", "or their drain"),
    "a worker that failed in service": (seen(failed_bringup("DISK_FULL", promoted=True, exit_cause=ExitCause.WORKER_SICK, ending_since=ago(50))), "MEDIUM", "Workers", "1 worker in service failed (DISK_FULL): The pod has too little free disk", "RUNPOD_CONTAINER_DISK_GB", "gpu-9"),
    "a worker that an outage of the gateway ended": (seen(failed_bringup("GATEWAY_UNREACHED", promoted=True, exit_cause=ExitCause.HEARTBEAT_LOST, ending_since=ago(50))), "MEDIUM", "Workers", "1 worker in service failed (GATEWAY_UNREACHED): The worker's agent called and got no answer", "WORKER_API_URL", "gpu-9"),
    "a task lost by outages of the gateway": (lost(code="GATEWAY_UNREACHED", look=None), "MEDIUM", "Tasks", "1 running task was lost with its worker (GATEWAY_UNREACHED): The worker's agent called", "WORKER_API_URL", "t-1 Queued"),
    "heartbeats that are missing": (setting("workers.gpu-1", worker(last_heartbeat=when(9), heartbeat_s=20, ssh=MUTE | {"connection_status": ""})), "MEDIUM", "Workers", "no heartbeat for 9 s", "explain gpu-1", ""),
    "agents that get no answer": (setting("workers.gpu-1", worker(waiting_on="operator", waiting_for="the gateway: no answer", last_heartbeat=when(700))), "HIGH", "Orchestrator", "1 worker is silent and may be well; waiting for the gateway: no answer", "WORKER_API_URL", "DEADMAN_TIMEOUT_SEC"),
    "a pod that RunPod does not list": (setting("workers.gpu-1", worker(waiting_on="provider", waiting_for="its pod")), "MEDIUM", "RunPod", "RunPod's list differs: its pod", "explain gpu-1", ""),
    "logs that are late": (setting("workers.gpu-1", worker(metadata={"logs_late": "Refused: no"})), "MEDIUM", "Workers", "The logs of worker gpu-1 do not reach S3: no", "explain gpu-1", ""),
    **{f"stuck in {spec.stage}": (stuck(spec.stage), "MEDIUM", "Workers", f"stuck in spawning, stage {spec.stage}: waiting on provider: an answer", UNSTUCK.get(spec.stage, "terminate gpu-1"), "gpu-1; by itself: given up") for spec in BRING_UP},
}  # fmt: skip


# What keeps a pool from having workers while tasks wait -> the kind, words of its text, words of its fix.
CAUSES: dict[str, tuple[Callable[[Facts], None], ConditionKind, str, str]] = {
    "breaker": (held("breaker_open", detail={"failed": 5, "ended": 5, "window_min": 5, "code": "NO_PROCESS"}), ConditionKind.BREAKER_OPEN, "breaker of pool default is open", "orchestrator spawn"),
    "no money": (held("halted", detail={"code": "BALANCE"}), ConditionKind.HALTED, "(BALANCE): The balance of the RunPod account is too low", "add funds"),
    "quota": (held("halted", detail={"tried_after": "QUOTA"}), ConditionKind.HALTED, "(QUOTA): The account may not rent more", "raise it in the RunPod console"),
    "key": (held("halted", detail={"code": "API_AUTH"}), ConditionKind.HALTED, "(API_AUTH): RunPod refuses our API key", "RUNPOD_API_KEY"),
    "limit": (held("scale_limit", detail={"limit": 2, "where": "pool default", "reason": "x"}), ConditionKind.SCALE_LIMITED, "fewer workers in pool default", "scale unlimit"),
    "day's budget": (held("daily_budget"), ConditionKind.BUDGET_SPENT, "budget does not allow", "DAILY_BUDGET_USD"),
    "a node's money": (held("cluster_budget"), ConditionKind.BUDGET_SPENT, "budget does not allow", "DAILY_BUDGET_USD"),
    "no cluster": (held("no_cluster", unit="task"), ConditionKind.NO_CLUSTER, "2 tasks wait in pool default, which has no cluster", "cluster create NAME --pool default --nodes N"),
    "a failed cluster": (lambda r: (held("no_cluster", unit="task")(r), clustered(LATE)(r))[0], ConditionKind.CLUSTER_FAILED, "Cluster train of pool default has failed", "explain scaling; create it again"),
    "a cluster without a controller": (lambda r: (held("max_active", unit="worker", detail={"limit": 1})(r), clustered(TORN)(r))[0], ConditionKind.CLUSTER_DEGRADED, "is degraded: A node's slurmd does not run", "cluster reconcile train"),
    "a cluster that is deleted": (lambda r: (held("max_active", unit="worker", detail={"limit": 1})(r), clustered(GOING)(r))[0], ConditionKind.CLUSTER_DEGRADED, "is deleting: it waits for the end of 1 node, and claims no task", "python -m orchestrator list"),
    "dear pods": (held("dear_pods", detail={"offer": "L4|*|SECURE", "rate_usd": 5.9, "listed_usd": 0.59}), ConditionKind.DEAR_PODS, "cost more than RunPod's catalogue says", "MAX_HOURLY_COST_USD"),
    "price": (held("price_unknown", detail={"gpu_type": "L4", "cloud": "SECURE"}), ConditionKind.PRICE_UNKNOWN, "no price for a GPU of pool default", "RUNPOD_GPU_TYPE"),
    "sold out": (held("offers_refused", until=when(-30)), ConditionKind.SOLD_OUT, "sold out", "add to RUNPOD_GPU_TYPE"),
    "volume": (held("volume_unusable", detail={"error": "gone"}), ConditionKind.OFFERS_UNUSABLE, "no offer that can be used", "RUNPOD_STORAGE_NAME"),
    "registry": (held("registry_unusable", detail={"error": "gone"}), ConditionKind.OFFERS_UNUSABLE, "no offer that can be used", "RUNPOD_REGISTRY_AUTH"),
    "a pool that is off": (held("max_active", unit="worker", detail={"limit": 0}), ConditionKind.POOL_OFF, "Pool default may have no workers", "raise MAX_ACTIVE_GPUS"),
    "unknown pool": (held("pool_unknown", unit="task", detail={"pool": "default"}), ConditionKind.POOL_UNKNOWN, "which is not configured", "POOLS_FILE"),
    "bring-ups": (lambda r: (held("paced")(r), seen(*[failed_bringup("AUTH_FAILED")] * 10)(r))[0], ConditionKind.BRINGUPS_FAIL, "No worker comes up in pool default: the last 10 bring-ups failed (AUTH_FAILED)", "RUNPOD_SSH_PUBLIC_KEY"),
    "pause": (lambda r: (held("paused", detail={"reason": "x"})(r), setting("database_state.paused", {"*": {"reason": "x", "until": None}})(r))[0], ConditionKind.PAUSED, "paused in every pool", "resume"),
    "S3": (lambda r: (held("store_away")(r), setting("database_state.store_away", {"reason": "no", "since": when(60)})(r))[0], ConditionKind.STORE_DOWN, "S3 cannot be used", "doctor s3 clock"),
    "no gateway": (lambda r: (held("max_active", unit="worker", detail={"limit": 1})(r), setting("workers.gpu-1", worker(waiting_on="operator", waiting_for="the gateway: no answer", last_heartbeat=when(70)))(r))[0], ConditionKind.GATEWAY_UNREACHED, "1 worker is silent and may be well; waiting for the gateway", "WORKER_API_URL"),
    "no leader": (lambda r: (held("paced")(r), setting("database_state.leader", None)(r))[0], ConditionKind.NO_LEADER, "is not running", "orchestrator run"),
}  # fmt: skip
# Cases that are a warning while no task waits, and make the fleet UNHEALTHY while tasks do.
WHILE_TASKS_WAIT = {
    *("claim function missing", "claim function fails", "an older schema", "stuck by an operator's key"),
    "stuck in tcp",
}


def test_a_healthy_fleet_has_no_condition() -> None:
    """And it is healthy."""
    assert found_in(facts()) == []
    assert is_healthy([])


@pytest.mark.parametrize("since", [when(50), None])
def test_prices_that_a_new_leader_does_not_have_yet_are_no_condition(since: str | None) -> None:
    """They come with its first lists. No recorded decision names them, if it has made none yet."""
    report = facts()
    held("price_unknown", detail={"gpu_type": "L4", "cloud": "SECURE"}, since=since)(report)
    assert is_healthy(found_in(report))


def test_a_deleted_pod_that_is_listed_for_long_costs_money() -> None:
    """After ten minutes it is no lag of the list any more (guard U19)."""
    report = facts()
    report["workers"]["gpu-1"] = worker(**DELETED, stage_since=when(601))
    assert {(one.kind, one.severity) for one in found_in(report)} == {
        (ConditionKind.DELETES_FAIL, "HIGH"), (ConditionKind.WORKERS_STUCK, "HIGH"),
    }  # fmt: skip


@pytest.mark.parametrize(("left_s", "found"), [(60, []), (-601, [ConditionKind.WORKERS_STUCK])])
def test_a_worker_may_finish_its_task_within_its_time(left_s: float, found: list[ConditionKind]) -> None:
    """GRACEFUL_SHUTDOWN_TIMEOUT_SEC may be an hour."""
    report = facts()
    times = {"state_since": when(3_000), "stage_since": when(3_000), "deadline_at": when(-left_s)}
    report["workers"]["gpu-1"] = worker(status="terminating", stage="draining", **times)
    assert [one.kind for one in found_in(report)] == found


def test_a_worker_that_makes_progress_is_not_stuck() -> None:
    """Logging in, an operator is waited for; that is news only once something has failed."""
    report = facts()
    young = {"status": "spawning", "stage": "ssh_auth", "state_since": when(20)}
    report["workers"]["gpu-1"] = worker(**young, explanation={"who": "operator"})
    assert found_in(report) == []


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_named_with_its_fix(name: str) -> None:
    """Exactly one thing is said, with its priority, category, issue, action and the facts behind it."""
    wrong, priority, category, issue, action, detail = CASES[name]
    report = facts()
    wrong(report)
    [one] = found_in(report)
    said = one.as_json()
    assert (said["priority"], said["category"]) == (priority, category)
    assert issue in said["issue"]
    assert action in said["action"]
    assert detail in said["detail"]
    assert is_healthy([one]) is (priority != "HIGH")


@pytest.mark.parametrize("name", sorted(WHILE_TASKS_WAIT))
def test_what_tasks_wait_for_makes_the_fleet_unhealthy(name: str) -> None:
    """The same facts are a warning while nothing waits."""
    report = facts()
    waits({"Queued": 4}, claimable=4)(report)
    CASES[name][0](report)
    assert [one.severity for one in found_in(report)] == ["HIGH"]


@pytest.mark.parametrize("name", CAUSES)
def test_the_true_cause_comes_first_and_a_backlog_names_it(name: str) -> None:
    """However far the queue is beyond MAX_ACTIVE_GPUS: raising it would start no worker."""
    wrong, kind, words, fix = CAUSES[name]
    report = facts()
    wrong(report)
    first, *_, backlog = found_in(report)
    assert (first.kind, first.severity, backlog.kind, backlog.severity) == (kind, "HIGH", ConditionKind.BACKLOG, "HIGH")
    assert words in first.text
    assert fix in first.fix
    assert backlog.fix == first.fix
    assert "The queue does not move until this is fixed." in backlog.evidence
    assert ("raise MAX_ACTIVE_GPUS" in backlog.fix) is (kind is ConditionKind.POOL_OFF)


@pytest.mark.parametrize(
    ("ready", "unhandled", "named"),
    [
        (3, {"n": 3}, "cannot run"),
        (80, {"n": 3}, "the 2 workers that it has"),
        (637, {"n": 500, "ready": 500}, "cannot run"),  # the first 500 are looked at
        (637, {"n": 499, "ready": 499}, "the 2 workers that it has"),
        (80, {"n": 200, "ready": 0}, "the 2 workers that it has"),  # they wait for another attempt
    ],
)
def test_a_missing_handler_is_the_cause_of_a_backlog_only_if_all_of_it_needs_the_handler(
    ready: int, unhandled: dict[str, int], named: str
) -> None:
    """The other tasks wait for workers."""
    report = facts()
    waits({"Queued": ready}, claimable=ready, running=1, oldest_claimable_at=when(1_000))(report)
    setting("database_state.waiting_types", [{"pool": "default", "task_type": "stitch", **unhandled}])(report)
    report["workers"] = {name: worker(id=name) for name in ("gpu-1", "gpu-2")}
    missing, backlog = found_in(report)
    assert (missing.kind, backlog.kind) == (ConditionKind.NO_HANDLER, ConditionKind.BACKLOG)
    assert named in backlog.evidence


def test_a_count_that_stops_at_a_bound_is_said_to_be_one() -> None:
    """The queue counts 10,000 tasks of a kind, and the first 500 tasks of a pool are looked at for a handler."""
    report = facts()
    waits({"Queued": 10_000}, claimable=10_000, running=1, oldest_claimable_at=when(1_000))(report)
    setting("database_state.waiting_types", [{"pool": "default", "task_type": "stitch", "n": 351}])(report)
    missing, backlog = found_in(report)
    assert missing.text.startswith("At least 351 tasks of type stitch cannot run")
    assert "pool default: at least 10,000 tasks wait, the oldest" in backlog.text
    assert "ETA at least " in backlog.evidence
    report = facts()
    held("pool_unknown", count=10_000, unit="task", detail={"pool": "default"})(report)
    assert any(one.text.startswith("At least 10,000 tasks wait in pool default") for one in found_in(report))
    report = facts()
    waits({"Queued": 10_000}, scheduled=10_000, running=0)(report)
    assert next(one.text for one in found_in(report)).startswith("At least 10,000 ")


def test_a_queue_whose_workers_claim_nothing_is_never_finished() -> None:
    """While the store is away, ready workers are of no use. One task is called a task."""
    report = facts()
    waits({"Queued": 1}, claimable=1, running=0, oldest_claimable_at=when(60))(report)
    setting("database_state.store_away", {"reason": "no", "since": when(60)})(report)
    assert report["workers"]
    store, backlog = found_in(report)
    assert (store.kind, store.severity, backlog.severity) == (ConditionKind.STORE_DOWN, "HIGH", "MEDIUM")
    assert "1 task waits, the oldest" in backlog.text
    assert "The queue does not move until this is fixed." in backlog.evidence


def test_a_cluster_has_one_worker_that_claims() -> None:
    """Its other nodes take no tasks, so a queue of one task for each of them takes longer."""
    report = facts()
    waits({"Queued": 9}, claimable=9, running=1, oldest_claimable_at=when(1_000))(report)
    report["workers"] = {name: worker(id=name, cluster="train") for name in ("gpu-1", "gpu-2")}
    whole = member(1, worker_id="gpu-1", role=MemberRole.CONTROLLER, adapter_detail=DETAIL | {"slurmctld_pid": 7})
    clustered(cluster(pool="default", nodes=1, members=(whole,)), "gpu-1")(report)
    [backlog] = found_in(report)
    assert "limited by: the 1 worker that it has. ETA 10 minutes." in backlog.evidence


@pytest.mark.parametrize(("status", "since_s"), [(ClusterStatus.ALLOCATING, 600), (ClusterStatus.DEPLOYING, 60)])
def test_a_cluster_that_is_made_is_no_condition(status: ClusterStatus, since_s: float) -> None:
    """Its pods are the planner's, and Slurm's daemons need a while."""
    report = facts()
    waits({"Queued": 4}, claimable=4, running=1, oldest_claimable_at=when(60))(report)
    clustered(cluster(status=status, status_since=ago(since_s)))(report)
    assert found_in(report) == []


def test_an_agent_that_reaches_no_gateway_makes_the_tasks_of_its_cluster_wait() -> None:
    """Slurm runs, and nobody submits a job."""
    report = facts()
    waits({"Queued": 4}, claimable=4, running=1, oldest_claimable_at=when(60))(report)
    lonely = member(1, adapter_detail=DETAIL | {"api_reachable": False, "slurmctld_pid": 7})
    clustered(cluster(pool="default", nodes=1, members=(lonely,)), MEMBER)(report)
    assert [(one.kind, one.severity) for one in found_in(report)] == [
        (ConditionKind.CLUSTER_DEGRADED, "HIGH"), (ConditionKind.BACKLOG, "MEDIUM"),
    ]  # fmt: skip


def test_a_silent_worker_is_not_blamed_for_its_claims() -> None:
    """Its agent claims, and its claims reach no gateway."""
    report = facts()
    waits({"Queued": 4}, claimable=4, running=0, oldest_claimable_at=when(90))(report)
    waiting = {"waiting_on": "operator", "waiting_for": "the gateway: no answer"}
    report["workers"] = {"gpu-1": worker(**waiting, last_heartbeat=when(70), tasks_running=0)}
    assert [one.kind for one in found_in(report)] == [ConditionKind.GATEWAY_UNREACHED, ConditionKind.BACKLOG]


def test_a_poison_task_comes_before_the_losses_that_it_caused() -> None:
    """It is the cause: without it, the next worker is lost too."""
    report = facts()
    lost(workers=2, last_at=when(30), code="POD_EXITED", exit_cause="pod_lost")(report)
    assert [one.kind for one in found_in(report)] == [ConditionKind.POISON_TASK, ConditionKind.TASKS_LOST]


def test_the_limit_is_raised_only_if_it_is_the_cause() -> None:
    """Workers that are not ready yet are waited for; MAX_ACTIVE_GPUS=0 never ends a queue."""
    report = facts()
    held("unproven")(report)
    [backlog] = found_in(report)
    assert "its workers are not ready yet" in backlog.evidence
    assert (backlog.fix, backlog.severity) == ("none needed; python -m orchestrator list", "MEDIUM")
    off = {"kind": "max_active", "count": 3, "unit": "worker", "detail": {"limit": 0}}
    report["orchestrator_analysis"]["scaling_decisions"] = [{"pool": "default", "target": 0, "blocked": [off]}]
    [stopped, backlog] = found_in(report)
    assert (stopped.kind, stopped.fix, stopped.severity) == (ConditionKind.POOL_OFF, "raise MAX_ACTIVE_GPUS", "HIGH")
    assert (backlog.fix, backlog.severity) == ("raise MAX_ACTIVE_GPUS", "HIGH")


def test_a_configured_limit_has_no_impact_while_workers_continue() -> None:
    """A pause, or a budget per hour, with a queue that drains."""
    report = facts()
    held("hourly_budget")(report)
    report["workers"] = {"gpu-1": worker()}
    assert [(one.kind, one.severity) for one in found_in(report)] == [
        (ConditionKind.BUDGET_SPENT, "MEDIUM"),
        (ConditionKind.BACKLOG, "MEDIUM"),
    ]


def test_pods_that_are_too_dear_are_trouble_also_while_workers_continue() -> None:
    """The limit was set for the catalogue's price; the sentence has both prices."""
    report = facts()
    detail = {"offer": "L4|*|SECURE", "rate_usd": 5.9, "listed_usd": 0.59, "running_usd": 0.59, "limit_usd": 2.5}
    held("dear_pods", detail=detail | {"gpu_type": "L4"})(report)
    report["workers"] = {"gpu-1": worker()}
    first = found_in(report)[0]
    assert (first.kind, first.severity) == (ConditionKind.DEAR_PODS, "HIGH")
    assert "The last pod cost $5.90/h, and RunPod's catalogue says $0.59/h: L4, any data centre" in first.evidence
    assert "more than MAX_HOURLY_COST_USD=2.5" in first.evidence


def test_a_refusal_is_over_once_an_offer_was_granted() -> None:
    """Money was added, and a pod was rented."""
    report = facts()
    offer = OfferState("L4", None, 0, ago(60), ago(30))
    seen(failed_bringup("BALANCE"), offers={"L4": offer})(report)
    assert found_in(report) == []


def test_a_success_ends_a_row_of_failed_bringups() -> None:
    """What failed before it says nothing about the present."""
    report = facts()
    seen(failed_bringup("GPU_TYPE"), failed_bringup("", 30, promoted=True, exit_cause=None, failure_code=None))(report)
    assert found_in(report) == []


def test_a_tick_separates_delayed_tasks_from_blocked_ones() -> None:
    """It does not know when they are due."""
    for blocked, kind in (
        ({"scheduled": 3}, ConditionKind.RETRIES_WAIT),
        ({"dependencies": 3}, ConditionKind.TASKS_BLOCKED),
    ):
        seen = snapshot(demand=(Demand("default", 0, 0, blocked, None),))
        assert [one.kind for one in conditions(of_tick(seen, plan(seen, policy())))] == [kind]


def test_a_tick_finds_what_a_report_finds() -> None:
    """The metrics go by the same rules."""
    limits = policy(daily_budget_usd=1)
    prices = {f"{offer.gpu_type}|{offer.cloud}": 0.69 for pool in limits.pools for offer in pool.offers}
    waiting = Demand("default", 9, 0, {}, ago(60))
    broke = snapshot(demand=(waiting,), spent=Spent(1, 0, 0), prices=prices, ended=[failed_bringup("NO_PROCESS")] * 3)
    found = conditions(of_tick(broke, plan(broke, limits)))
    assert [(one.kind, one.severity) for one in found] == [
        (ConditionKind.BUDGET_SPENT, "HIGH"), (ConditionKind.BRINGUPS_FAIL, "HIGH"), (ConditionKind.BACKLOG, "HIGH"),
    ]  # fmt: skip


def test_every_kind_has_a_case() -> None:
    """A kind that no facts show will never be seen."""
    shown = set()
    for wrong in [*(case[0] for case in CASES.values()), *(case[0] for case in CAUSES.values())]:
        report = facts()
        wrong(report)
        shown |= {one.kind for one in found_in(report)}
    assert shown == set(ConditionKind)


def test_only_kinds_that_make_tasks_wait_say_that_tasks_wait() -> None:
    """Of the others, some tasks have failed, and some go on. What needs no fix needs nobody to act."""
    for kind in ConditionKind:
        assert kind.row.then != ONCE_CORRECTED or Impact.WAIT in kind.row.unhealthy, kind
        assert not kind.row.fix.lower().startswith("none needed") or kind.row.who != OPERATOR, kind
    failing = ConditionKind.NO_HANDLER, ConditionKind.TASKS_FAILED
    assert all("Failed" in kind.row.then or "failed" in kind.row.then for kind in failing)


def test_a_backlog_whose_workers_are_not_ready_needs_nobody() -> None:
    """It says what happens by itself."""
    report = facts()
    waits({"Queued": 3}, claimable=3, running=0, oldest_claimable_at=when(1_000))(report)
    report["workers"] = {}
    (backlog,) = [one.as_json() for one in found_in(report) if one.kind is ConditionKind.BACKLOG]
    assert "its workers are not ready yet" in backlog["detail"]
    assert (backlog["who"], backlog["action"][:11]) == ("nobody", "none needed")
    assert backlog["then"] == "the tasks are claimed as soon as its workers are ready"


def test_each_fix_names_a_command_that_there_is() -> None:
    """What an operator pastes must not be a dead end."""
    known = {name for section in COMMANDS.values() for name in section}
    for wrong in [*(case[0] for case in CASES.values()), *(case[0] for case in CAUSES.values())]:
        report = facts()
        wrong(report)
        for one in found_in(report):
            assert set(re.findall(r"python -m orchestrator (\w+)", one.fix)) <= known, one


@pytest.mark.parametrize(
    ("free_s", "oldest_s", "named"),
    [(90, 90, True), (90, 1, False), (1, 90, False)],
    ids=["for long", "a task that came just now", "between two short tasks"],
)
def test_a_worker_that_had_no_time_to_claim_is_no_condition(free_s: float, oldest_s: float, *, named: bool) -> None:
    """Its claim takes a moment, in a queue of short tasks as well. A report and a tick agree."""
    report, free = facts(), replace(busy("gpu-1"), tasks_running=0, empty_since=ago(free_s))
    waits({"Queued": 4}, claimable=4, oldest_claimable_at=when(oldest_s))(report)
    seen(workers=(free,))(report)
    report["workers"] = {"gpu-1": worker(tasks_running=0)}
    tick = snapshot(free, demand=(Demand("default", 4, 0, {}, ago(oldest_s)),))
    for found in (found_in(report), conditions(of_tick(tick, plan(tick, policy())))):
        assert [one.kind for one in found] == [ConditionKind.NOT_CLAIMING] * named


@pytest.mark.parametrize(("waits_s", "severity"), [(500, "MEDIUM"), (700, "HIGH")])
def test_a_store_outage_costs_money_while_results_wait_for_it(waits_s: float, severity: str) -> None:
    """As with the result of one worker: after ten minutes, also if no task waits."""
    report = facts()
    setting("database_state.store_away", {"reason": "no", "since": when(waits_s)})(report)
    waiting = {"store": {"since": when(waits_s), "why": "no"}}
    report["workers"] = {"gpu-1": worker(state_since=when(4_000), health=waiting)}
    assert [(one.kind, one.severity) for one in found_in(report)] == [(ConditionKind.STORE_DOWN, severity)]


def test_a_store_outage_is_one_condition_however_many_workers_wait_for_its_end() -> None:
    """They claim nothing because of it; each of them would be another HIGH line."""
    report = facts()
    waits({"Queued": 4}, claimable=4, oldest_claimable_at=when(90))(report)
    report["workers"] = {"gpu-1": worker(tasks_running=0)}
    setting("database_state.store_away", {"reason": "no", "since": when(60)})(report)
    assert [one.kind for one in found_in(report) if one.severity == "HIGH"] == [ConditionKind.STORE_DOWN]


@pytest.mark.parametrize(
    ("ready_in", "last_s", "has_worker", "severity"),
    [
        ("default", 60, False, "HIGH"),
        ("default", 60, True, "MEDIUM"),
        ("other", 60, False, "MEDIUM"),
        ("default", 3_600, False, "MEDIUM"),
    ],
    ids=["its tasks wait", "its worker goes on", "another pool's tasks wait", "an hour ago"],
)
def test_a_refused_key_makes_only_the_tasks_of_its_pool_wait(
    ready_in: str, last_s: float, severity: str, *, has_worker: bool
) -> None:
    """Its pool has no worker, and its last bring-up was refused a moment ago."""
    report = facts()
    report["database_state"]["queue"] = [queue(), queue(pool="other", running=0)]
    for one in report["database_state"]["queue"]:
        one["claimable"] = 4 * (one["pool"] == ready_in)
    bringups("AUTH_FAILED", "PAIR_MISMATCH", last_s=last_s)(report)
    report["workers"] = {"gpu-1": worker()} if has_worker else {}
    assert [(one.kind, one.severity) for one in found_in(report)] == [(ConditionKind.AUTH_FAILS, severity)]


def test_a_slow_spawn_makes_no_task_wait_while_other_workers_of_its_pool_work() -> None:
    """It is a warning then: the tasks wait for their turn."""
    report = facts()
    waits({"Queued": 4}, claimable=4)(report)
    late = worker(
        id="gpu-2", status="spawning", stage="pod_running", state_since=when(400), explanation={"who": "provider"}
    )
    report["workers"]["gpu-2"] = late
    assert [(one.kind, one.severity) for one in found_in(report)] == [(ConditionKind.WORKERS_STUCK, "MEDIUM")]
    del report["workers"]["gpu-1"]
    assert [(one.kind, one.severity) for one in found_in(report)] == [(ConditionKind.WORKERS_STUCK, "HIGH")]


@pytest.mark.parametrize("ahead_s", [-5, 0, 5])
def test_the_clock_of_this_machine_makes_no_condition(ahead_s: float) -> None:
    """Times of rows are the database's: they are compared with its clock."""
    report = facts()
    report["timestamp"], report["database_state"]["now"] = when(-ahead_s), NOW.isoformat()
    report["database_state"]["leader"] = {"holder": "us", "expires_at": when(-12)}
    report["workers"]["gpu-1"] = worker(last_heartbeat=when(4), heartbeat_s=20)
    assert found_in(report) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (unlisted("ApiAuth: 401"), "provider_unseen"),
        (unlisted("ApiAuth: 401", "ApiAuth: 401"), "api_key_refused"),
        (unlisted("ApiAuth: 401", leader=None), "api_key_refused"),
        (unlisted("ApiAuth: 401", tick_failed={"reason": "x", "since": when(60)}), "api_key_refused"),
    ],
    ids=["a leader has no trouble", "a leader has it too", "nobody leads", "its ticks fail"],
)
def test_a_key_of_this_machine_that_runpod_refuses_is_no_trouble_of_the_fleet(
    wrong: Callable[[Facts], None], kind: str
) -> None:
    """The leader uses its own key, and would say so in its decisions."""
    report = facts()
    wrong(report)
    about = {"api_key_refused", "provider_unseen"}
    assert {str(one.kind) for one in found_in(report)} & about == {kind}


def test_a_leader_makes_no_statement_about_the_end_of_a_queue() -> None:
    """No tick reads how long tasks take; `health` does."""
    queue_of_long = snapshot(busy("gpu-1"), demand=(Demand("default", 9, 1, {}, ago(3_600)),))
    [backlog] = conditions(of_tick(queue_of_long, plan(queue_of_long, policy())))
    assert (backlog.kind, "no task of this pool" in backlog.evidence) == (ConditionKind.BACKLOG, False)
    assert "orchestrator health says when it will be finished" in backlog.evidence


def test_urgent_actions_come_first() -> None:
    """Whatever the order of the rules."""
    report = facts()
    for name in ("a place that cannot be reached", "an expensive day", "orphan pods"):
        CASES[name][0](report)
    assert [one.severity for one in found_in(report)] == ["HIGH", "MEDIUM", "LOW"]


def test_unavailable_parts_show_no_change() -> None:
    """One condition each, and no guesses from what is not known."""
    report = facts()
    for part in ("database_state", "runpod_state", "orchestrator_analysis"):
        report[part] = {"error": "Unavailable: x"}
    report["workers"] = {"gpu-1": {"error": "no answer within 25 s"}}
    assert [one.text for one in found_in(report)] == ["The database is unreachable", "RunPod does not answer"]


def test_changes_are_problems_workers_tasks_and_dollars() -> None:
    """Between two reports; none between equal ones. A problem whose numbers differ is the same problem."""
    before = facts() | {"recommendations": [{"issue": "old"}, {"issue": "4 tasks wait, gpu-1"}]}
    assert not any(value for name, value in changes(before, before).items() if name != "since")
    after = copy.deepcopy(before) | {"recommendations": [{"issue": "5 tasks wait, gpu-1"}, {"issue": "new"}]}
    after["workers"] = {"gpu-1": worker(status="idle"), "gpu-2": worker()}
    after["database_state"]["task_counts"] = {"Complete": 1}
    after["runpod_state"]["total_hourly_cost"] = 0.8
    assert changes(before, after) == {
        "since": NOW.isoformat(),
        "new_issues": ["new"],
        "solved_issues": ["old"],
        "workers_come": ["gpu-2"],
        "workers_gone": [],
        "workers_moved": {"gpu-1": ["active", "idle"]},
        "tasks": {"Complete": 1, "In Progress": -1},
        "usd_per_hour": 0.4,
    }


def test_secrets_are_shown_only_as_set() -> None:
    """With include-sensitive they are shown, and a private key still is not."""
    plain, open_ = environment(GIVEN), environment(GIVEN, sensitive=True)
    assert plain["critical"]["RUNPOD_API_KEY"] == "set (14 characters)"
    assert plain["critical"]["RUNPOD_SSH_PUBLIC_KEY"] == GIVEN["RUNPOD_SSH_PUBLIC_KEY"]
    assert open_["critical"]["RUNPOD_API_KEY"] == GIVEN["RUNPOD_API_KEY"]
    assert open_["all_runpod"]["RUNPOD_SSH_PRIVATE_KEY"] == "set (35 characters)"
    assert plain["missing_critical"] == []
    assert environment({"DATABASE_URL": "x"})["missing_critical"] == [
        "RUNPOD_API_KEY", "RUNPOD_SSH_PUBLIC_KEY", "RUNPOD_SSH_PRIVATE_KEY",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"DATABASE_URL": "x"}, []),
        ({"DATABASE_URL": "x", "SUPABASE_URL": "y"}, []),  # then pods alone use Supabase's API
        ({"SUPABASE_URL": "y", "SUPABASE_SERVICE_ROLE_KEY": "z"}, []),
        ({"SUPABASE_URL": "y"}, ["SUPABASE_SERVICE_ROLE_KEY"]),
        ({"SUPABASE_SERVICE_ROLE_KEY": "z"}, ["SUPABASE_URL"]),
        ({}, ["DATABASE_URL"]),
    ],
)
def test_one_of_two_databases_is_enough(given: dict[str, str], missing: list[str]) -> None:
    """The report names what the start would name."""
    found = environment(given)
    named = {"DATABASE_URL", "SUPABASE_URL", "SUPABASE_SERVICE_ROLE_KEY"}
    assert [name for name in found["missing_critical"] if name in named] == missing
    assert given.get("DATABASE_URL") is None or "DATABASE_URL" in found["critical"]
