"""The rules of the report: for each problem of the guide, the facts that show it and what is said then."""

# ruff: noqa: E501  a case is a line of the table

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.cli.main import COMMANDS
from orchestrator.core.stages import BRING_UP
from orchestrator.diagnostics.advice import is_healthy, recommendations
from orchestrator.diagnostics.change import changes
from orchestrator.diagnostics.environment import environment
from tests.unit.core.build import NOW, ago

Facts = dict[str, Any]
GIVEN = {
    "RUNPOD_API_KEY": "rpa_0123456789",
    "SUPABASE_URL": "https://x.supabase.co",
    "SUPABASE_SERVICE_ROLE_KEY": "sb_secret_0123456789",
    "RUNPOD_SSH_PUBLIC_KEY": "ssh-ed25519 AAAA",
    "RUNPOD_SSH_PRIVATE_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----",
}


def when(seconds: float) -> str:
    return ago(seconds).isoformat()


def worker(**row: Any) -> Facts:
    """An active worker that runs a task."""
    told = row.pop("told", {})
    ssh = row.pop("ssh", {})
    record = {
        "id": "gpu-1", "status": "active", "stage": "promoted", "pool": "default", "state_since": when(200),
        "last_heartbeat": when(5), "tasks_running": 1, "busy_share": 0.9, "cost_usd": 0.5, "pod_id": "pod-1",
    }  # fmt: skip
    explanation = {"who": "worker", "what": "to finish", "code": None, "subcause": None, "fix": "none needed"}
    explanation |= {"then": "given up"}
    analysis = {"connection_status": "✅ Connected", "processes": {"exit_class": "running"}}
    return {"database_record": record | row, "explanation": explanation | told, "ssh_analysis": analysis | ssh}


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
            "task_counts": {"In Progress": 1}, "queue": [queue()], "expired_leases": 0, "failed_climbs": [],
            "failed_tasks": [], "spent": {"last_day_usd": 5, "usual_day_usd": 4},
            "rpc_function_tests": {"worker_claim": {"status": "ok"}, "fleet_lead": {"status": "ok"}},
        },
        "runpod_state": {"total_hourly_cost": 0.4, "mismatches": {"orphans": [], "bereft": [], "strangers": []}},
        "workers": {"gpu-1": worker()},
        "orchestrator_analysis": {"scaling_decisions": []},
        "network_tests": {"supabase": {"accessible": True}},
        "deployment_verification": {"code_consistency": {"workers_with_other_code": []}},
    }  # fmt: skip


def setting(path: str, value: Any) -> Callable[[Facts], None]:
    """Put a value where a dotted path leads."""

    def put(report: Facts) -> None:
        *way, last = path.split(".")
        for name in way:
            report = report[name]
        report[last] = value

    return put


def key_trouble(cause: str) -> Callable[[Facts], None]:
    return setting("environment.ssh_keys", {"usable": False, "cause": cause, "error": "as seen"})


def bringups(code: str, cause: str | None = None, ok_at: str | None = None) -> Callable[[Facts], None]:
    row = {"code": code, "cause": cause, "stage": "ssh_auth", "n": 3, "workers": 3, "last_at": when(60)}
    row |= {"pool": "default", "ok_at": ok_at}
    return setting("database_state.failed_climbs", [row])


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
    return setting("workers.gpu-1", worker(status="spawning", stage=stage, state_since=when(301), told=told))


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
    "blocked": [{"text": "3 more wanted, MAX_ACTIVE_GPUS=2", "fix": "raise MAX_ACTIVE_GPUS"}],
}
ORPHANS = {"orphans": [{"pod_id": "p9", "usd_per_hour": 0.44}], "bereft": [], "strangers": []}
BEREFT = {"orphans": [], "bereft": [{"worker_id": "gpu-1", "pod_status": None}], "strangers": []}
THEIRS = {"database_id": "d2", "fleet_id": "default", "pods": ("p7", "p8"), "usd_per_hour": 0.88}
ENDED = {"processes": {"exit_class": "killed"}}
FAILING = {"held_back": {"failures": 5, "codes": ["HANDLER_ERROR"]}, "tasks_running": 0}
MUTE = {"connection_status": "❌ no answer within 12 s", "processes": None}
REFUSED = {"connection_status": "❌ Authentication failed: refused", "processes": None}

# What is wrong -> the priority, the category, words of the issue, words of the action, words of the detail.
CASES: dict[str, tuple[Callable[[Facts], None], str, str, str, str, str]] = {
    "missing keys": (setting("environment", environment(MISSING) | {"ssh_keys": {"cause": "no_private_key"}}), "HIGH", "Environment", "Missing critical environment variables", "Add missing environment variables to Railway deployment", "RUNPOD_SSH_PRIVATE_KEY"),
    "a setting that cannot be used": (setting("environment.problems", [{"what": "PORT cannot be used", "why": "'x'", "fix": "set PORT"}]), "HIGH", "Environment", "PORT cannot be used", "set PORT", "'x'"),
    "mangled private key": (key_trouble("bad_private_key"), "HIGH", "SSH", "RUNPOD_SSH_PRIVATE_KEY is mangled", "RUNPOD_SSH_PRIVATE_KEY", "as seen"),
    "mangled public key": (key_trouble("bad_public_key"), "HIGH", "SSH", "RUNPOD_SSH_PUBLIC_KEY is mangled", "RUNPOD_SSH_PUBLIC_KEY", "as seen"),
    "keys of two kinds": (key_trouble("key_type_mix"), "HIGH", "SSH", "RSA and Ed25519", "RUNPOD_SSH", "as seen"),
    "wrong key pair": (key_trouble("pair_mismatch"), "HIGH", "SSH", "does not match", "RUNPOD_SSH", "as seen"),
    "no schema": (setting("database_state", {"error": "SchemaMismatch: fleet_workers: it does not exist"}), "HIGH", "Database", "The database's schema is not this version's", "python -m orchestrator migrate", "fleet_workers"),
    "database unreachable": (setting("database_state", {"error": "Unavailable: no route"}), "HIGH", "Database", "The database is unreachable", 'curl -i "$SUPABASE_URL/rest/v1/"', "no route"),
    "claim function missing": (setting("database_state.rpc_function_tests.worker_claim", {"status": "missing"}), "HIGH", "Tasks", "worker_claim does not work", "migrate", "missing"),
    "claim function fails": (setting("database_state.rpc_function_tests.worker_claim", {"status": "fails", "probe": "permission denied"}), "HIGH", "Tasks", "worker_claim does not work", "migrate", "permission denied"),
    "an older schema": (setting("database_state.rpc_function_tests.fleet_lead", {"status": "missing"}), "HIGH", "Database", "lacks functions", "migrate", "fleet_lead"),
    "RunPod refuses the key": (setting("runpod_state", {"error": "ApiAuth: 401"}), "HIGH", "RunPod", "Authentication failed: RunPod refuses the API key", "RUNPOD_API_KEY", "401"),
    "RunPod is away": (setting("runpod_state", {"error": "Unavailable: timeout"}), "HIGH", "RunPod", "RunPod does not answer", "status", "timeout"),
    "process not started": (setting("database_state.leader", None), "HIGH", "Orchestrator", "The orchestrator process is not running", "python -m orchestrator run", "1 live worker"),
    "spawning paused": (setting("database_state.paused", {"*": {"reason": "maintenance", "until": None}}), "MEDIUM", "Orchestrator", "paused in every pool", "resume", "maintenance"),
    "worker's end does not come": (setting("workers.gpu-1", worker(status="terminating", stage="deleting", state_since=when(601))), "HIGH", "Workers", "stuck in terminating, stage deleting", "none needed", "gpu-1"),
    "stuck by an operator's key": (setting("workers.gpu-1", worker(status="spawning", stage="ssh_auth", state_since=when(20), told={"who": "operator", "what": "the pod to accept our key", "code": "AUTH_FAILED", "subcause": "REFUSED"})), "HIGH", "Workers", "waiting on operator: the pod to accept our key (AUTH_FAILED/REFUSED)", "none needed", "gpu-1"),
    "process died": (setting("workers.gpu-1", worker(ssh=ENDED)), "HIGH", "Workers", "SSH works, but its process is not running (killed)", "terminate gpu-1", "logs"),
    "held back": (lambda r: (waits({"Queued": 4}, claimable=4)(r), setting("workers.gpu-1", worker(**FAILING))(r))[0], "MEDIUM", "Workers", "gpu-1 claims no more: 5 different tasks failed in a row (HANDLER_ERROR)", "logs gpu-1", "by itself: given up"),
    "a full disk": (setting("workers.gpu-1", worker(health={"disk": {"since": 1, "why": "3 of 90 MiB are free"}})), "MEDIUM", "Workers", "gpu-1 claims no more: its disk is full: 3 of 90 MiB are free", "logs gpu-1", "by itself: given up"),
    "no heartbeat": (setting("workers.gpu-1", worker(last_heartbeat=when(700), ssh=MUTE)), "HIGH", "Workers", "no heartbeat for 12 minutes", "explain gpu-1", "no answer within 12 s"),
    "SSH that does not answer": (setting("workers.gpu-1", worker(ssh=MUTE)), "MEDIUM", "SSH", "1 worker(s) work, but cannot be reached over SSH", "explain gpu-1", "gpu-1: no answer within 12 s"),
    "a worker that could not be asked": (setting("workers.gpu-1", {"error": "not asked: the report's 27 s were over"}), "MEDIUM", "Workers", "Of 1 worker(s) nothing is known", "diagnose gpu-1", "gpu-1: not asked"),
    "SSH authentication now": (setting("workers.gpu-1", worker(ssh=REFUSED)), "HIGH", "SSH", "SSH authentication fails", "RUNPOD_SSH", "now: gpu-1"),
    "SSH authentication before": (bringups("AUTH_FAILED", "PAIR_MISMATCH"), "HIGH", "SSH", "SSH authentication fails", "RUNPOD_SSH", "3 attempt(s)"),
    "SSH unreachable": (bringups("TCP_TIMEOUT"), "MEDIUM", "SSH", "SSH connections failed within a day: TCP_TIMEOUT", "explain TCP_TIMEOUT", "3 attempt(s)"),
    "SSH authentication before, and mended": (bringups("AUTH_FAILED", "PAIR_MISMATCH", when(30)), "LOW", "SSH", "SSH authentication failed within a day, and works again", "none needed", "3 attempt(s) within a day, the last 1 min ago; a later one succeeded"),
    "SSH authentication again": (bringups("AUTH_FAILED", "PAIR_MISMATCH", when(90)), "HIGH", "SSH", "SSH authentication fails", "RUNPOD_SSH", "3 attempt(s)"),
    "SSH unreachable, and mended": (bringups("TCP_TIMEOUT", None, when(30)), "LOW", "SSH", "SSH connections failed within a day, and work again: TCP_TIMEOUT", "none needed", "3 attempt(s)"),
    "all tasks blocked": (waits({"Queued": 4}, dependencies=3, scheduled=1, running=0), "HIGH", "Tasks", "All 4 queued tasks are blocked", "tasks list", "3 by dependencies, 1 by scheduled"),
    "only retries that are not due": (waits({"Queued": 4}, dependencies=1, scheduled=3, running=0, next_due_at=when(-28)), "LOW", "Tasks", "3 queued task(s) wait for their time: a retry's pause, or submitted for later", "tasks list", "1 by dependencies, 3 by scheduled; the next is due in 28 s"),
    "active but not claiming": (lambda r: (waits({"Queued": 4}, claimable=4)(r), setting("workers.gpu-1", worker(tasks_running=0))(r))[0], "HIGH", "Tasks", "gpu-1 is active but does not claim tasks", "logs gpu-1", "Connected"),
    "stitch without segments": (failed(task_type="travel_stitch", no_segments=2, message="No valid segment videos found"), "HIGH", "Tasks", "2 travel_stitch task(s) failed: No valid segment videos found", "depends_on", "HANDLER"),
    "another stitch failure": (failed(task_type="travel_stitch"), "HIGH", "Tasks", "2 travel_stitch task(s) failed: boom", "explain t-1", "HANDLER"),
    "failed tasks": (failed(), "MEDIUM", "Tasks", "2 travel_segment task(s) failed within a day: HANDLER", "explain t-1", "boom"),
    "orphan pods": (setting("runpod_state.mismatches", ORPHANS), "HIGH", "RunPod", "1 orphaned pod(s) cost $0.44/h", "sync terminate_orphaned", "p9"),
    "stale rows": (setting("runpod_state.mismatches", BEREFT), "HIGH", "Database", "1 stale worker row(s)", "sync update_database", "gpu-1 (not listed)"),
    "pods of another database": (setting("runpod_state.mismatches.strangers", [THEIRS]), "MEDIUM", "RunPod", "2 pod(s) of fleet default belong to another database ($0.88/h)", "FLEET_ID of its own; if that database is gone: python -m orchestrator sync terminate_orphaned --database d2", "p7, p8: made for database d2"),
    "leases over": (setting("database_state.expired_leases", 2), "MEDIUM", "Tasks", "2 task(s) In Progress are held by nobody", "once", ""),
    "a dear day": (setting("database_state.spent", {"last_day_usd": 20, "usual_day_usd": 4}), "MEDIUM", "Cost", "$20.00 in the last 24 hours, usually $4.00", "cost --since 24h", ""),
    "a worker paid for nothing": (setting("workers.gpu-1", worker(busy_share=0.05, cost_usd=3)), "MEDIUM", "Cost", "cost $3.00 and worked for 5%", "explain gpu-1", ""),
    "backlog held by a limit": (lambda r: (waits({"Queued": 30}, claimable=30, running=2, oldest_claimable_at=when(1200))(r), setting("orchestrator_analysis.scaling_decisions", [BLOCKED])(r))[0], "MEDIUM", "Scaling", "30 tasks wait, the oldest for 20 minutes", "raise MAX_ACTIVE_GPUS", "limited by: 3 more wanted, MAX_ACTIVE_GPUS=2; ETA 15 minutes"),
    "backlog of slow tasks": (waits({"Queued": 9}, claimable=9, mean_task_s=None, oldest_claimable_at=when(901)), "MEDIUM", "Scaling", "9 tasks wait", "MAX_ACTIVE_GPUS", "no ETA"),
    "a place that cannot be reached": (setting("network_tests.supabase", {"accessible": False, "url": "https://x", "error": "ConnectError"}), "LOW", "Network", "supabase cannot be reached", "curl -i https://x", "ConnectError"),
    "old code": (setting("deployment_verification.code_consistency", {"workers_with_other_code": ["gpu-1"]}), "LOW", "Deployment", "1 worker(s) run other code", "new workers", "gpu-1"),
    **{f"stuck in {rung.stage}": (stuck(rung.stage), "HIGH", "Workers", f"stuck in spawning, stage {rung.stage}: waiting on provider: an answer", UNSTUCK.get(rung.stage, "terminate gpu-1"), "gpu-1; by itself: given up") for rung in BRING_UP},
}  # fmt: skip


def test_nothing_is_said_of_a_fleet_that_is_well() -> None:
    """And it is healthy."""
    assert recommendations(facts()) == []
    assert is_healthy([])


def test_a_worker_that_passes_through_is_not_stuck() -> None:
    """Logging in, an operator is waited for; that is news only once something has failed."""
    report = facts()
    young = {"status": "spawning", "stage": "ssh_auth", "state_since": when(20)}
    report["workers"]["gpu-1"] = worker(**young, told={"who": "operator"})
    assert recommendations(report) == []


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_named_with_its_fix(name: str) -> None:
    """Exactly one thing is said, with its priority, category, issue, action and the facts behind it."""
    wrong, priority, category, issue, action, detail = CASES[name]
    report = facts()
    wrong(report)
    [said] = recommendations(report)
    assert (said.priority, said.category) == (priority, category)
    assert issue in said.issue
    assert action in said.action
    assert detail in said.detail
    assert is_healthy([said]) is (priority != "HIGH")


def test_each_fix_names_a_command_that_there_is() -> None:
    """What an operator pastes must not be a dead end."""
    known = {name for section in COMMANDS.values() for name in section}
    for wrong, *_ in CASES.values():
        report = facts()
        wrong(report)
        for said in recommendations(report):
            assert set(re.findall(r"python -m orchestrator (\w+)", said.action)) <= known, said


def test_the_urgent_comes_first() -> None:
    """Whatever the order of the rules."""
    report = facts()
    for name in ("a place that cannot be reached", "a dear day", "orphan pods"):
        CASES[name][0](report)
    assert [one.priority for one in recommendations(report)] == ["HIGH", "MEDIUM", "LOW"]


def test_parts_that_could_not_be_had_make_no_noise() -> None:
    """One recommendation each, and no guesses from what is not known."""
    report = facts()
    for part in ("database_state", "runpod_state", "orchestrator_analysis"):
        report[part] = {"error": "Unavailable: x"}
    report["workers"] = {"gpu-1": {"error": "no answer within 25 s"}}
    assert [one.issue for one in recommendations(report)] == ["The database is unreachable", "RunPod does not answer"]


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


def test_secrets_are_only_said_to_be_there() -> None:
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
