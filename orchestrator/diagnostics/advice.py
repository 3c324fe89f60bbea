"""What to do, from the facts of the report: rules that are pure functions, tried in this order, each tested by a table.

A fact that could not be had ({"error": …}) gives no advice beyond the one about itself.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.states import READY, RUNGS, Stage, State, WaitingOn
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.collect import CONNECTED
from orchestrator.diagnostics.sentences import MORE
from orchestrator.diagnostics.workers import named

Report = Mapping[str, Any]
HIGH, MEDIUM, LOW = "HIGH", "MEDIUM", "LOW"
SLOW_SPAWN_S, SILENT_S, STUCK_S = 300.0, 600.0, 600.0  # the guide's flags
UNCLAIMED_S = 60.0  # a worker that has been ready for so long would have claimed
BACKLOG_S = 900.0  # the oldest task has waited for longer, and it is a backlog
DEAR = 2.0  # times a usual day
DEAR_USD = 1.0  # below it nothing is an anomaly
LAZY_SHARE = 0.1  # of a worker's money that bought work …
LAZY_USD = 1.0  # … once it has cost this much
REACHED = {  # how to see for oneself, by the way that the settings choose
    "DATABASE_URL": 'psql "$DATABASE_URL" -c "select 1"',
    "SUPABASE_URL": 'curl -i "$SUPABASE_URL/rest/v1/" -H "apikey: $SUPABASE_SERVICE_ROLE_KEY"; is the project paused?',
}
MENDED = "none needed; python -m orchestrator list --all shows which workers it was"
SSH_CODES = ("TCP_REFUSED", "TCP_TIMEOUT", "NOT_SSH", "SSH_DETAILS_MISSING", "HOST_KEY_CHANGED")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One thing to do."""

    priority: str
    category: str
    issue: str
    action: str
    detail: str = ""


def recommendations(report: Report) -> list[Recommendation]:
    """Everything to do, the urgent first."""
    found = [advice for rule in RULES for advice in rule(report)]
    return sorted(found, key=lambda advice: (HIGH, MEDIUM, LOW).index(advice.priority))


def is_healthy(found: Iterable[Recommendation]) -> bool:
    """Whether nothing is urgent."""
    return all(advice.priority != HIGH for advice in found)


def _settings(report: Report) -> Iterator[Recommendation]:
    given = report["environment"]
    if missing := given["missing_critical"]:
        issue, action = (
            "Missing critical environment variables",
            "Add missing environment variables to Railway deployment",
        )
        yield Recommendation(HIGH, "Environment", issue, action, ", ".join(missing))
    for problem in given["problems"]:
        yield Recommendation(HIGH, "Environment", problem["what"], problem["fix"], problem["why"])


def _keys(report: Report) -> Iterator[Recommendation]:
    pair = report["environment"].get("ssh_keys") or {}
    code = pair.get("cause")
    if not code or code == "no_private_key":  # that one is missing, and said already
        return
    cause = causes.of("AUTH_FAILED", code)
    issue = {
        "bad_private_key": "RUNPOD_SSH_PRIVATE_KEY is mangled",
        "bad_public_key": "RUNPOD_SSH_PUBLIC_KEY is mangled",
        "key_type_mix": "SSH keys are of different types (RSA and Ed25519)",
        "pair_mismatch": "RUNPOD_SSH_PRIVATE_KEY does not match RUNPOD_SSH_PUBLIC_KEY",
    }.get(code, f"SSH keys cannot be used ({code})")
    action = pair.get("fix") or (cause.fix if cause else "python -m orchestrator doctor")
    yield Recommendation(HIGH, "SSH", issue, action, pair["error"])


def _database(report: Report) -> Iterator[Recommendation]:
    state = report["database_state"]
    if "error" in state:
        action = REACHED[report["environment"]["database"]]
        yield Recommendation(HIGH, "Database", "The database is unreachable", action, state["error"])
        return
    broken = {name: test["status"] for name, test in state["rpc_function_tests"].items() if test["status"] != "ok"}
    if "worker_claim" in broken:
        why = state["rpc_function_tests"]["worker_claim"].get("probe", broken["worker_claim"])
        issue = "Tasks cannot be claimed: worker_claim does not work"
        yield Recommendation(HIGH, "Tasks", issue, "python -m orchestrator migrate", why)
    if rest := sorted(set(broken) - {"worker_claim"}):
        issue = "The database lacks functions of this version"
        yield Recommendation(HIGH, "Database", issue, "python -m orchestrator migrate", ", ".join(rest))


def _provider(report: Report) -> Iterator[Recommendation]:
    error = report["runpod_state"].get("error")
    if error and error.startswith("ApiAuth"):
        action = "Set RUNPOD_API_KEY to a key that may manage pods"
        yield Recommendation(HIGH, "RunPod", "Authentication failed: RunPod refuses the API key", action, error)
    elif error and not report["environment"]["missing_critical"]:  # else it was not asked, and that is said
        yield Recommendation(HIGH, "RunPod", "RunPod does not answer", "See its status page; nothing is decided", error)


def _stopped(report: Report) -> Iterator[Recommendation]:
    state = _known(report, "database_state")
    if state and state["leader"] is None:
        waiting = state["task_counts"].get("Queued", 0)
        detail = f"{waiting} queued task(s), {_live(state)} live worker(s) and nobody who leads"
        action = "Start it: python -m orchestrator run (on Railway: restart the service)"
        yield Recommendation(HIGH, "Orchestrator", "The orchestrator process is not running", action, detail)
    for pool, pause in (state or {}).get("paused", {}).items():
        what = "every pool" if pool == "*" else f"pool {pool}"
        detail = f"{pause['reason']}; until {pause['until'] or 'it is resumed'}"
        yield Recommendation(
            MEDIUM, "Orchestrator", f"Spawning is paused in {what}", "python -m orchestrator resume", detail
        )


def _stuck(report: Report) -> Iterator[Recommendation]:
    """Workers that stay where they are, by stage and by what is in their way."""
    groups: defaultdict[tuple[str, str, str | None], list[str]] = defaultdict(list)
    for name, worker in _workers(report):
        row, told = worker["database_record"], worker["explanation"]
        here_s, code = _ago(row["state_since"], report), told["code"]
        spawning = row["status"] == State.SPAWNING
        if spawning and (here_s > SLOW_SPAWN_S or (code and told["who"] == WaitingOn.OPERATOR)):
            groups[row["status"], row["stage"], code and named(code, told["subcause"])].append(name)
        elif row["status"] == State.TERMINATING and here_s > STUCK_S:
            groups[row["status"], row["stage"], None].append(name)
    for (state, stage, code), names in sorted(groups.items(), key=str):
        told = report["workers"][names[0]]["explanation"]
        what = f"waiting on {told['who']}: {told['what']}" + (f" ({code})" if code else "")
        issue = f"{len(names)} worker(s) stuck in {state}, stage {stage}: {what}"
        detail = f"{', '.join(names)}; by itself: {told['then']}"
        yield Recommendation(HIGH, "Workers", issue, _unstick(stage, told, names), detail)


def _unstick(stage: str, told: Mapping[str, Any], names: Sequence[str]) -> str:
    """What to do about a stage that takes too long: what its deadline would say, or another pod."""
    rung = RUNGS.get(Stage(stage))
    late = causes.of(rung.overdue) if rung and told["who"] != WaitingOn.ORCHESTRATOR else None
    fix = late.fix if late and not told["code"] else told["fix"]
    if fix in (MORE, MORE.replace("<worker>", names[0])):  # nothing to set here: it is the provider's
        return f"python -m orchestrator terminate {names[0]}, for another pod at once"
    return fix.replace("<worker>", names[0])


def _unseen(report: Report) -> Iterator[Recommendation]:
    found = {name: worker["error"] for name, worker in sorted(report["workers"].items()) if "error" in worker}
    if found and _known(report, "database_state"):
        issue = f"Of {len(found)} worker(s) nothing is known"
        detail = "; ".join(f"{name}: {why}" for name, why in found.items())
        yield Recommendation(MEDIUM, "Workers", issue, f"python -m orchestrator diagnose {min(found)}", detail)


def _silent(report: Report) -> Iterator[Recommendation]:
    for name, worker in _workers(report):
        row, ssh = worker["database_record"], worker["ssh_analysis"]
        if row["status"] not in READY:
            continue
        heard_s = _heard_s(worker, report)
        agent = (ssh["processes"] or {}).get("exit_class")
        if ssh["connection_status"] == CONNECTED and agent in {"ended", "killed"}:
            issue = f"Worker {name}: SSH works, but its process is not running ({agent})"
            yield Recommendation(
                HIGH, "Workers", issue, f"python -m orchestrator terminate {name}", f"logs {name} says why"
            )
        elif heard_s > SILENT_S:
            issue = f"Worker {name} has sent no heartbeat for {heard_s / 60:.0f} minutes"
            yield Recommendation(
                HIGH, "Workers", issue, f"python -m orchestrator explain {name}", ssh["connection_status"]
            )


def _ssh(report: Report) -> Iterator[Recommendation]:
    """What pods refuse, and what does not answer; urgent only until the same pool has got through again."""
    refused = [n for n, w in _workers(report) if "Authentication failed" in w["ssh_analysis"]["connection_status"]]
    failed = (_known(report, "database_state") or {"failed_climbs": ()})["failed_climbs"]
    denied = [climb for climb in failed if climb["code"] == "AUTH_FAILED"]
    standing = [climb for climb in denied if not _mended(climb)]
    if standing or refused:
        subcause = next((climb["cause"] for climb in standing if climb["cause"]), None)
        cause = causes.of("AUTH_FAILED", subcause)
        detail = _attempts(denied, report) + (f"; now: {', '.join(refused)}" if refused else "")
        means, action = (cause.means, cause.fix) if cause else ("", "python -m orchestrator doctor")
        yield Recommendation(HIGH, "SSH", f"SSH authentication fails: {means}", action, detail)
    elif denied:
        issue = "SSH authentication failed within a day, and works again"
        yield Recommendation(LOW, "SSH", issue, MENDED, _attempts(denied, report))
    mute = {
        name: worker["ssh_analysis"]["connection_status"].removeprefix("❌ ")
        for name, worker in _workers(report)
        if worker["ssh_analysis"]["connection_status"].startswith("❌")
        and name not in refused
        and worker["database_record"]["status"] in READY
        and _heard_s(worker, report) <= SILENT_S
    }
    if mute:
        issue = f"{len(mute)} worker(s) work, but cannot be reached over SSH: their logs wait on their pods"
        detail = "; ".join(f"{name}: {why}" for name, why in mute.items())
        yield Recommendation(MEDIUM, "SSH", issue, f"python -m orchestrator explain {min(mute)}", detail)
    unreachable = [climb for climb in failed if climb["code"] in SSH_CODES]
    codes = ", ".join(sorted({climb["code"] for climb in unreachable}))
    if standing := [climb for climb in unreachable if not _mended(climb)]:
        action = f"python -m orchestrator explain {standing[0]['code']}"
        issue = f"SSH connections failed within a day: {codes}"
        yield Recommendation(MEDIUM, "SSH", issue, action, _attempts(unreachable, report))
    elif unreachable:
        issue = f"SSH connections failed within a day, and work again: {codes}"
        yield Recommendation(LOW, "SSH", issue, MENDED, _attempts(unreachable, report))


def _mended(climb: Mapping[str, Any]) -> bool:
    """Whether the same stage was climbed in the same pool after its last failure."""
    return climb["ok_at"] is not None and datetime.fromisoformat(climb["ok_at"]) > datetime.fromisoformat(
        climb["last_at"]
    )


def _attempts(climbs: Sequence[Mapping[str, Any]], report: Report) -> str:
    if not climbs:
        return "no attempt within a day"
    last_s = min(_ago(climb["last_at"], report) for climb in climbs)
    since = "; a later one succeeded" if all(map(_mended, climbs)) else ""
    return f"{sum(climb['n'] for climb in climbs)} attempt(s) within a day, the last {last_s / 60:.0f} min ago{since}"


def _tasks(report: Report) -> Iterator[Recommendation]:
    """Tasks that nobody takes, although somebody leads."""
    state = _known(report, "database_state")
    if not state or state["leader"] is None:
        return
    queued = state["task_counts"].get("Queued", 0)
    claimable = sum(pool["claimable"] for pool in state["queue"])
    if queued and not claimable and not any(pool["running"] for pool in state["queue"]):
        held = {why: sum(pool[why] for pool in state["queue"]) for why in ("dependencies", "scheduled")}
        due = min((pool["next_due_at"] for pool in state["queue"] if pool.get("next_due_at")), default=None)
        action = "python -m orchestrator tasks list --status Queued, then explain one of them"
        said = ", ".join(f"{count} by {why}" for why, count in held.items())
        if due:  # also what depends on them goes on from then
            said += f"; the next is due in {max(0, -_ago(due, report)):.0f} s"
            issue = f"{held['scheduled']} queued task(s) wait for their time: a retry's pause, or submitted for later"
            yield Recommendation(LOW, "Tasks", issue, action, said)
        else:
            yield Recommendation(HIGH, "Tasks", f"All {queued} queued tasks are blocked", action, said)
    pools = {pool["pool"] for pool in state["queue"] if pool["claimable"]}
    for name, worker in _workers(report):
        row = worker["database_record"]
        free = row["status"] in READY and not row["tasks_running"] and row["pool"] in pools
        if free and _ago(row["state_since"], report) > UNCLAIMED_S:
            issue = f"Worker {name} is {row['status']} but does not claim tasks"
            action = f"python -m orchestrator logs {name}"
            yield Recommendation(HIGH, "Tasks", issue, action, f"SSH: {worker['ssh_analysis']['connection_status']}")


def _stitch(report: Report) -> Iterator[Recommendation]:
    state = _known(report, "database_state") or {"failed_tasks": ()}
    for row in state["failed_tasks"]:
        if row["no_segments"] or "stitch" in row["task_type"]:
            issue = f"{row['n']} {row['task_type']} task(s) failed: {row['message'] or row['code']}"
            fix = f"python -m orchestrator explain {row['last_task']}"
            if row["no_segments"]:
                fix = f"Submit stitch tasks with depends_on: the claim hands over their outputs; {fix}"
            yield Recommendation(HIGH, "Tasks", issue, fix, f"code {row['code']}, last at {row['last_at']}")
        else:
            issue = f"{row['n']} {row['task_type']} task(s) failed within a day: {row['code']}"
            fix = f"python -m orchestrator explain {row['last_task']}"
            yield Recommendation(MEDIUM, "Tasks", issue, fix, row["message"] or "")


def _drift(report: Report) -> Iterator[Recommendation]:
    found = (_known(report, "runpod_state") or {}).get("mismatches")
    if found and found["orphans"]:
        usd = sum(orphan["usd_per_hour"] or 0 for orphan in found["orphans"])
        issue = f"{len(found['orphans'])} orphaned pod(s) cost ${usd:.2f}/h and no worker names them"
        detail = ", ".join(orphan["pod_id"] for orphan in found["orphans"])
        yield Recommendation(HIGH, "RunPod", issue, "python -m orchestrator sync terminate_orphaned", detail)
    if found and found["bereft"]:
        issue = f"{len(found['bereft'])} stale worker row(s): their pods are gone"
        detail = ", ".join(f"{row['worker_id']} ({row['pod_status'] or 'not listed'})" for row in found["bereft"])
        yield Recommendation(HIGH, "Database", issue, "python -m orchestrator sync update_database", detail)
    state = _known(report, "database_state")
    if state and state["expired_leases"]:
        issue = f"{state['expired_leases']} task(s) In Progress are held by nobody"
        yield Recommendation(
            MEDIUM, "Tasks", issue, "They are queued again by the next tick: python -m orchestrator once"
        )


def _cost(report: Report) -> Iterator[Recommendation]:
    state = _known(report, "database_state")
    if not state:
        return
    spent, usual = float(state["spent"]["last_day_usd"]), state["spent"]["usual_day_usd"]
    if usual is not None and spent > DEAR_USD and spent > DEAR * float(usual):
        issue = f"Cost anomaly: ${spent:.2f} in the last 24 hours, usually ${float(usual):.2f} a day"
        yield Recommendation(MEDIUM, "Cost", issue, "python -m orchestrator cost --since 24h --by worker")
    for name, worker in _workers(report):
        row = worker["database_record"]
        share = row["busy_share"]
        if share is not None and share < LAZY_SHARE and float(row["cost_usd"]) > LAZY_USD:
            issue = f"Cost anomaly: worker {name} cost ${float(row['cost_usd']):.2f} and worked for {share:.0%} of it"
            yield Recommendation(MEDIUM, "Cost", issue, f"python -m orchestrator explain {name}")


def _backlog(report: Report) -> Iterator[Recommendation]:
    """A queue that does not drain: what limits the fleet, and when it would be done."""
    state = _known(report, "database_state")
    decisions = {one["pool"]: one for one in _known(report, "orchestrator_analysis", {}).get("scaling_decisions", ())}
    for pool in state["queue"] if state else ():
        waited_s = _ago(pool["oldest_claimable_at"], report) if pool["oldest_claimable_at"] else 0
        decision = decisions.get(pool["pool"], {"blocked": (), "target": None})
        if not pool["claimable"] or (waited_s < BACKLOG_S and not decision["blocked"]):
            continue
        ready = max(1, pool["running"])
        eta_s = pool["claimable"] * float(pool["mean_task_s"]) / ready if pool["mean_task_s"] else None
        eta = (
            "no ETA: no task of this pool was completed within a day"
            if eta_s is None
            else f"ETA {eta_s / 60:.0f} minutes"
        )
        first = decision["blocked"][0] if decision["blocked"] else None
        limit = first["text"] if first else f"target {decision['target']}: the workers it has"
        oldest = f"the oldest for {waited_s / 60:.0f} minutes"
        issue = f"Backlog in pool {pool['pool']}: {pool['claimable']} tasks wait, {oldest}"
        action = first["fix"] if first else "raise MAX_ACTIVE_GPUS, lower TASKS_PER_GPU_THRESHOLD, or spawn one more"
        yield Recommendation(MEDIUM, "Scaling", issue, action, f"limited by: {limit}; {eta}")


def _unreachable(report: Report) -> Iterator[Recommendation]:
    for name, answer in report["network_tests"].items():
        if not answer["accessible"]:
            issue = f"{name} cannot be reached from here"
            yield Recommendation(LOW, "Network", issue, f"curl -i {answer['url']}", answer.get("error", ""))


def _old_code(report: Report) -> Iterator[Recommendation]:
    stale = report["deployment_verification"].get("code_consistency", {}).get("workers_with_other_code")
    if stale:
        issue = f"{len(stale)} worker(s) run other code than this"
        yield Recommendation(
            LOW, "Deployment", issue, "They finish with it; new workers get this one", ", ".join(stale)
        )


RULES: tuple[Callable[[Report], Iterator[Recommendation]], ...] = (
    _settings,
    _keys,
    _database,
    _provider,
    _stopped,
    _stuck,
    _silent,
    _unseen,
    _ssh,
    _tasks,
    _stitch,
    _drift,
    _cost,
    _backlog,
    _unreachable,
    _old_code,
)


def _known(report: Report, name: str, default: Any = None) -> Any:
    """A part of the report; the default where it could not be had."""
    part = report.get(name) or {}
    return default if not part or "error" in part else part


def _workers(report: Report) -> Iterator[tuple[str, Any]]:
    for name, worker in sorted(report["workers"].items()):
        if "error" not in worker:
            yield name, worker


def _heard_s(worker: Mapping[str, Any], report: Report) -> float:
    """How long ago a ready worker was last heard."""
    row = worker["database_record"]
    return _ago(row["last_heartbeat"] or row["state_since"], report)


def _live(state: Report) -> int:
    return sum(count for status, count in state["workers_by_status"].items() if status != "terminated")


def _ago(moment: str, report: Report) -> float:
    return (datetime.fromisoformat(report["timestamp"]) - datetime.fromisoformat(moment)).total_seconds()
