"""What to do, from the facts of the report: rules that are pure functions, tried in this order, each tested by a table.

A fact that could not be had ({"error": …}) gives no advice beyond the one about itself.
"""

from collections.abc import Callable, Iterable, Iterator

from orchestrator.core.states import READY
from orchestrator.diagnostics import causes, worker_advice
from orchestrator.diagnostics.early_warnings import unfit
from orchestrator.diagnostics.facts import HIGH, LOW, MEDIUM, Recommendation, Report, ago_s, known, minutes, workers
from orchestrator.diagnostics.foreign_pods import ForeignPods

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
        if state["error"].startswith("SchemaMismatch"):
            issue = "The database's schema is not this version's"
            yield Recommendation(HIGH, "Database", issue, "python -m orchestrator migrate", state["error"])
            return
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
    state = known(report, "database_state")
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


def _tasks(report: Report) -> Iterator[Recommendation]:
    """Tasks that nobody takes, although somebody leads."""
    state = known(report, "database_state")
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
            said += f"; the next is due in {max(0, -ago_s(due, report)):.0f} s"
            issue = f"{held['scheduled']} queued task(s) wait for their time: a retry's pause, or submitted for later"
            yield Recommendation(LOW, "Tasks", issue, action, said)
        else:
            yield Recommendation(HIGH, "Tasks", f"All {queued} queued tasks are blocked", action, said)
    pools = {pool["pool"] for pool in state["queue"] if pool["claimable"]}
    for name, worker in workers(report):
        row = worker["database_record"]
        free = row["status"] in READY and not row["tasks_running"] and row["pool"] in pools and not unfit(row)
        if free and ago_s(row["state_since"], report) > UNCLAIMED_S:
            issue = f"Worker {name} is {row['status']} but does not claim tasks"
            action = f"python -m orchestrator logs {name}"
            yield Recommendation(HIGH, "Tasks", issue, action, f"SSH: {worker['ssh_analysis']['connection_status']}")


def _stitch(report: Report) -> Iterator[Recommendation]:
    state = known(report, "database_state") or {"failed_tasks": ()}
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
    found = (known(report, "runpod_state") or {}).get("mismatches")
    if found and found["orphans"]:
        usd = sum(orphan["usd_per_hour"] or 0 for orphan in found["orphans"])
        issue = f"{len(found['orphans'])} orphaned pod(s) cost ${usd:.2f}/h and no worker names them"
        detail = ", ".join(orphan["pod_id"] for orphan in found["orphans"])
        yield Recommendation(HIGH, "RunPod", issue, "python -m orchestrator sync terminate_orphaned", detail)
    for one in found["strangers"] if found else ():
        theirs = ForeignPods(**one)
        yield Recommendation(MEDIUM, "RunPod", theirs.what, theirs.fix, theirs.why)
    if found and found["bereft"]:
        issue = f"{len(found['bereft'])} stale worker row(s): their pods are gone"
        detail = ", ".join(f"{row['worker_id']} ({row['pod_status'] or 'not listed'})" for row in found["bereft"])
        yield Recommendation(HIGH, "Database", issue, "python -m orchestrator sync update_database", detail)
    state = known(report, "database_state")
    if state and state["expired_leases"]:
        issue = f"{state['expired_leases']} task(s) In Progress are held by nobody"
        yield Recommendation(
            MEDIUM, "Tasks", issue, "They are queued again by the next tick: python -m orchestrator once"
        )


def _cost(report: Report) -> Iterator[Recommendation]:
    state = known(report, "database_state")
    if not state:
        return
    spent, usual = float(state["spent"]["last_day_usd"]), state["spent"]["usual_day_usd"]
    if usual is not None and spent > DEAR_USD and spent > DEAR * float(usual):
        issue = f"Cost anomaly: ${spent:.2f} in the last 24 hours, usually ${float(usual):.2f} a day"
        yield Recommendation(MEDIUM, "Cost", issue, "python -m orchestrator cost --since 24h --by worker")
    for name, worker in workers(report):
        row = worker["database_record"]
        share = row["busy_share"]
        if share is not None and share < LAZY_SHARE and float(row["cost_usd"]) > LAZY_USD:
            issue = f"Cost anomaly: worker {name} cost ${float(row['cost_usd']):.2f} and worked for {share:.0%} of it"
            yield Recommendation(MEDIUM, "Cost", issue, f"python -m orchestrator explain {name}")


def _backlog(report: Report) -> Iterator[Recommendation]:
    """A queue that does not drain: what limits the fleet, and when it would be done."""
    state = known(report, "database_state")
    decisions = {one["pool"]: one for one in known(report, "orchestrator_analysis", {}).get("scaling_decisions", ())}
    for pool in state["queue"] if state else ():
        waited_s = ago_s(pool["oldest_claimable_at"], report) if pool["oldest_claimable_at"] else 0
        decision = decisions.get(pool["pool"], {"blocked": (), "target": None})
        if not pool["claimable"] or (waited_s < BACKLOG_S and not decision["blocked"]):
            continue
        ready = max(1, pool["running"])
        eta_s = pool["claimable"] * float(pool["mean_task_s"]) / ready if pool["mean_task_s"] else None
        eta = "no ETA: no task of this pool was completed within a day" if eta_s is None else f"ETA {minutes(eta_s)}"
        first = decision["blocked"][0] if decision["blocked"] else None
        limit = first["text"] if first else f"target {decision['target']}: the workers it has"
        oldest = f"the oldest for {minutes(waited_s)}"
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
    *worker_advice.RULES,
    _tasks,
    _stitch,
    _drift,
    _cost,
    _backlog,
    _unreachable,
    _old_code,
)


def _live(state: Report) -> int:
    return sum(count for status, count in state["workers_by_status"].items() if status != "terminated")
