"""Rules about workers: those that stay where they are, fall silent, claim nothing, or cannot be reached."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.findings import UNREADABLE, Severity
from orchestrator.core.meanings import MORE, NOBODY, Meaning
from orchestrator.core.plurals import counted
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.early_warnings import BUSY_BEAT_S, MISSED_HEARTBEATS
from orchestrator.diagnostics.facts import CONNECTED, RECENT_S, Facts, WorkerFacts, minutes
from orchestrator.diagnostics.log_delay import delay_of

SLOW_SPAWN_S, SILENT_S, STUCK_S = 300.0, 600.0, 600.0  # the flags that operators know
FUTILE_DELETES = 5  # requests to delete a pod that RunPod refuses, after which it costs money without control
STORE_WAIT_S = 600.0  # a result that waits for longer costs money without control
UNCLAIMED_S = 60.0  # a worker that has been without a task for so long, while one waits, would have claimed
SSH_CODES = ("TCP_REFUSED", "TCP_TIMEOUT", "NOT_SSH", "SSH_DETAILS_MISSING", "HOST_KEY_CHANGED")
DOCTOR = "python -m orchestrator doctor"
REFUSED = "Authentication failed"
MACHINE_KINDS = {
    Severity.REPLACE: ConditionKind.MACHINE_FAULT,
    Severity.BLOCK: ConditionKind.MACHINE_BLOCKED,
    Severity.WARN: ConditionKind.MACHINE_WARNING,
}
UNKNOWN_FINDING = Meaning(
    "its agent reports something that this version does not know", NOBODY, "nothing: it is only shown", MORE
)


def overdue(worker: WorkerFacts, now: datetime) -> tuple[ConditionKind, float] | None:
    """What has taken a live worker too long, and for how many seconds it has lasted."""
    here_s, silent_s = (now - worker.state_since).total_seconds(), (now - worker.last_heartbeat_at).total_seconds()
    if worker.state == State.TERMINATING:
        here_s = _ending_s(worker, now)
        return (ConditionKind.WORKERS_STUCK, here_s) if here_s > STUCK_S else None
    if worker.state == State.SPAWNING:
        return (ConditionKind.WORKERS_STUCK, here_s) if here_s > SLOW_SPAWN_S else None
    return (ConditionKind.WORKER_SILENT, silent_s) if worker.is_ready and silent_s > SILENT_S else None


def _ending_s(worker: WorkerFacts, now: datetime) -> float:
    """For how long a worker that ends is in its stage. While it may finish its tasks, it is as it should be."""
    if worker.stage == Stage.DRAINING and worker.deadline_at and now <= worker.deadline_at:
        return 0
    return (now - (worker.stage_since or worker.state_since)).total_seconds()


def _stuck(facts: Facts) -> Iterator[Condition]:
    """Workers that stay where they are, by stage and by what is in their way."""
    groups: defaultdict[tuple[str, str, str | None], list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        explanation, late = worker.explanation, overdue(worker, facts.now)
        code = explanation["code"] if worker.state == State.SPAWNING else None
        if (late and late[0] is ConditionKind.WORKERS_STUCK) or (code and explanation["who"] == WaitingOn.OPERATOR):
            groups[worker.state, worker.stage or "", code and causes.named(code, explanation["subcause"])].append(
                worker
            )
    for (state, stage, code), stuck in sorted(groups.items(), key=str):
        explanation, names = stuck[0].explanation, [worker.id for worker in stuck]
        detail: dict[str, Any] = {"count": len(stuck), "state": state, "stage": stage, "who": explanation["who"]}
        detail |= {
            "what": explanation["what"] + (f" ({code})" if code else ""),
            "fix": _unstick(stage, explanation, names),
            "then": explanation["then"],
        }
        lacking = {one.pool for one in stuck if state == State.SPAWNING and not facts.capacity(one.pool)}
        waiting = any(map(facts.lacks_workers, lacking))
        impact = Impact.MONEY if state == State.TERMINATING else Impact.WAIT if waiting else Impact.NONE
        evidence = "; ".join(filter(None, (", ".join(names), _then(stuck[0]))))
        since = min(one.state_since for one in stuck)
        yield Condition(ConditionKind.WORKERS_STUCK, stage, detail, evidence, impact, since, pools=lacking)


def _then(worker: WorkerFacts) -> str:
    """Return what happens by itself, which a tick of the leader does not know."""
    then = worker.explanation["then"]
    return f"by itself: {then}" if then else ""


def _unstick(stage: str, explanation: Mapping[str, Any], names: Sequence[str]) -> str:
    """What to do about a stage that takes too long: what its deadline would say, or another pod."""
    spec = STAGE_SPECS.get(Stage(stage))
    late = causes.of(spec.overdue) if spec and explanation["who"] != WaitingOn.ORCHESTRATOR else None
    fix = late.fix if late and not explanation["code"] else explanation["fix"]
    if fix in (MORE, MORE.replace("<worker>", names[0])):  # nothing to set here: it is the provider's
        return f"python -m orchestrator terminate {names[0]}, for another pod at once"
    return str(fix.replace("<worker>", names[0])) or f"python -m orchestrator explain {names[0]}"


def _slow(facts: Facts) -> Iterator[Condition]:
    """Bring-ups that have met a failure, and deletes that have no effect."""
    groups: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for worker in facts.workers:
        explanation, deletes = worker.explanation, worker.metadata.deletes
        if worker.state == State.SPAWNING and explanation["code"] and explanation["who"] != WaitingOn.OPERATOR:
            what = f"{explanation['what']} ({causes.named(explanation['code'], explanation['subcause'])})"
            groups[worker.stage or "", explanation["who"], what].append(worker.id)
        if worker.state == State.TERMINATING and deletes > 1:
            refused = deletes >= FUTILE_DELETES and worker.waiting_on != WaitingOn.PROVIDER
            lasts = refused or _ending_s(worker, facts.now) > STUCK_S
            detail, since = {"worker": worker.id, "count": deletes}, worker.stage_since or worker.state_since
            kind, impact = ConditionKind.DELETE_LATE, Impact.NONE  # a list may show a deleted pod for a while
            if lasts:
                kind, impact = ConditionKind.DELETES_FAIL, Impact.MONEY
            yield Condition(kind, worker.id, detail, worker.waiting_for, impact, since)
    for (stage, who, what), names in groups.items():
        about = {"count": len(names), "stage": stage, "who": who, "what": what, "worker": names[0]}
        yield Condition(ConditionKind.BRINGUP_SLOW, stage, about, ", ".join(names))


def _unheard(facts: Facts) -> Iterator[Condition]:
    """Silent workers that may be well: most workers are silent, and their agents get no answer."""
    groups: defaultdict[str, list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        if worker.is_unheard:
            groups[worker.waiting_for].append(worker)
    for what, workers in groups.items():
        impact = Impact.MONEY | (Impact.LOSS if any(one.tasks_running for one in workers) else Impact.NONE)
        lacking = {one.pool for one in workers if not facts.capacity(one.pool)}
        impact |= Impact.WAIT if any(map(facts.lacks_workers, lacking)) else Impact.NONE
        names = ", ".join(one.id for one in workers)
        evidence = f"{names}; by itself: they end after DEADMAN_TIMEOUT_SEC or their drain"
        since, detail = min(one.last_heartbeat_at for one in workers), {"count": len(workers), "what": what}
        yield Condition(ConditionKind.GATEWAY_UNREACHED, what, detail, evidence, impact, since, pools=lacking)


def _ready(facts: Facts) -> Iterator[Condition]:
    """Ready workers that do nothing, or of which nothing is heard."""
    for worker in facts.workers:
        if not worker.is_ready:
            continue
        impact = Impact.MONEY | (Impact.LOSS if worker.tasks_running else Impact.NONE)
        late = overdue(worker, facts.now)
        detail = {"worker": worker.id, "state": worker.state, "agent": worker.agent or "", "why": worker.unfit or ""}
        seen = f"SSH: {worker.connection}" if worker.connection else ""
        if worker.connection == CONNECTED and worker.agent in {"ended", "killed"}:
            yield Condition(ConditionKind.PROCESS_ENDED, worker.id, detail, f"logs {worker.id} says why", impact)
        elif worker.cluster is None and not worker.is_unheard and (late or _misses_heartbeats(worker, facts)):
            silent_s = facts.ago_s(worker.last_heartbeat_at)
            detail["silent"] = minutes(silent_s) if late else f"{silent_s:.0f} s"
            impact = impact if late else Impact.NONE
            last_at = worker.last_heartbeat_at
            yield Condition(ConditionKind.WORKER_SILENT, worker.id, detail, worker.connection, impact, last_at)
        if worker.waiting_on == WaitingOn.PROVIDER:
            yield Condition(ConditionKind.POD_UNSEEN, worker.id, detail | {"what": worker.waiting_for})
        since = worker.store_wait_since
        if since and not facts.store_away and facts.ago_s(since) > STORE_WAIT_S:
            lasts = {"lasts": minutes(facts.ago_s(since))}
            yield Condition(ConditionKind.STORE_UNREACHED, worker.id, detail | lasts, "", Impact.MONEY, since)
        if why := worker.metadata.logs_late:
            yield Condition(ConditionKind.LOGS_LATE, worker.id, detail | {"why": delay_of(why)})
        yield from _claims(worker, facts, detail, seen)
    if unknown := facts.unknown_workers:
        named = {"count": len(unknown), "worker": min(unknown)}
        evidence = "; ".join(f"{name}: {why}" for name, why in unknown.items())
        yield Condition(ConditionKind.WORKERS_UNKNOWN, detail=named, evidence=evidence)


def _claims(worker: WorkerFacts, facts: Facts, detail: Mapping[str, Any], seen: str) -> Iterator[Condition]:
    """A ready worker that claims nothing. If its machine is the cause, `_machines` shows it."""
    waiting = facts.ready_tasks(worker.pool)
    if worker.unfit and worker.unfit not in {finding.text for finding in worker.findings}:
        pools = () if _others(worker, facts) else (worker.pool,)
        impact = Impact.WAIT if waiting and pools else Impact.NONE
        said = {**detail, "then": worker.explanation["then"]}
        yield Condition(ConditionKind.WORKER_UNFIT, worker.id, said, _then(worker), impact, pools=pools)
    if worker.unfit or worker.is_unheard or worker.tasks_running or worker.cluster is not None:
        return  # of a cluster, only the controller claims
    if not waiting or not facts.is_led or facts.store_away:
        return
    since = max(worker.empty_since or worker.state_since, facts.oldest_ready_at(worker.pool) or worker.state_since)
    if facts.ago_s(since) > UNCLAIMED_S:
        kind, pools = ConditionKind.NOT_CLAIMING, (worker.pool,)
        yield Condition(kind, worker.id, detail, seen, Impact.WAIT, since, pools=pools)


def _machines(facts: Facts) -> Iterator[Condition]:
    """What agents report of their machines."""
    for worker in facts.workers:
        for finding in worker.findings if worker.is_ready else ():
            if finding.code == UNREADABLE:  # most containers hide the kernel log: that is no news about a worker
                continue
            meaning = finding.guard.meaning if finding.guard else UNKNOWN_FINDING
            detail = {"worker": worker.id, "code": finding.code, "means": meaning.means.rstrip(".")}
            detail |= {"fix": meaning.fix.replace("<worker>", worker.id), "then": meaning.then}
            evidence = f"{finding.evidence or 'no evidence'}; by itself: {meaning.then}"
            pools = (worker.pool,) if finding.severity.blocks and not _others(worker, facts) else ()
            impact = Impact.WAIT if pools and facts.ready_tasks(worker.pool) else Impact.NONE
            if finding.severity is Severity.REPLACE and worker.tasks_running:
                impact |= Impact.LOSS
            kind = MACHINE_KINDS.get(finding.severity, ConditionKind.MACHINE_NOTE)
            yield Condition(kind, worker.id, detail, evidence, impact, finding.since, pools=pools)


def _others(worker: WorkerFacts, facts: Facts) -> bool:
    """Whether another ready worker of the pool claims tasks."""
    return any(one.pool == worker.pool and one.is_ready and not one.unfit for one in facts.workers if one != worker)


def _misses_heartbeats(worker: WorkerFacts, facts: Facts) -> bool:
    """Whether heartbeats are missing, but not for so long that an operator must act."""
    if not worker.heartbeat_s:
        return False
    beat_s = min(BUSY_BEAT_S, float(worker.heartbeat_s)) if worker.tasks_running else float(worker.heartbeat_s)
    return facts.ago_s(worker.last_heartbeat_at) > MISSED_HEARTBEATS * beat_s


def _ssh(facts: Facts) -> Iterator[Condition]:
    """Pods that refuse our key or do not answer; a remark once a later worker of the same pool has got through."""
    refused = [worker.id for worker in facts.workers if REFUSED in worker.connection]
    denied = [row for row in facts.failed_bringups if row["code"] == "AUTH_FAILED"]
    standing = [row for row in denied if not _succeeded_later(row)]
    if standing or refused:
        cause = causes.of("AUTH_FAILED", next((row["cause"] for row in standing if row["cause"]), None))
        evidence = _attempts(denied, facts) + (f"; now: {', '.join(refused)}" if refused else "")
        detail: dict[str, Any] = {"means": cause.means, "fix": cause.fix} if cause else {"means": "", "fix": DOCTOR}
        affected = {row["pool"] for row in standing if facts.ago_s(moments.moment(row["last_at"])) < RECENT_S}
        affected |= {worker.pool for worker in facts.workers if worker.id in refused}
        lacking = {pool for pool in affected if not facts.capacity(pool)}
        impact = Impact.WAIT if any(map(facts.lacks_workers, lacking)) else Impact.NONE
        yield Condition(ConditionKind.AUTH_FAILS, detail=detail, evidence=evidence, impact=impact, pools=lacking)
    elif denied:
        yield Condition(ConditionKind.AUTH_RESOLVED, evidence=_attempts(denied, facts))
    mute = {
        worker.id: worker.connection.removeprefix("❌ ")
        for worker in facts.workers
        if worker.connection.startswith("❌") and worker.id not in refused and worker.is_ready
        if overdue(worker, facts.now) is None
    }
    if mute:
        evidence = "; ".join(f"{name}: {why}" for name, why in mute.items())
        detail = {"count": len(mute), "worker": min(mute)}
        yield Condition(ConditionKind.SSH_UNREACHABLE, detail=detail, evidence=evidence)
    if failed := [row for row in facts.failed_bringups if row["code"] in SSH_CODES]:
        standing = [row for row in failed if not _succeeded_later(row)]
        shown = standing or failed
        detail = {"codes": ", ".join(sorted({row["code"] for row in shown})), "code": shown[0]["code"]}
        kind = ConditionKind.SSH_FAILED if standing else ConditionKind.SSH_RESOLVED
        yield Condition(kind, detail=detail, evidence=_attempts(shown, facts))


def _succeeded_later(failed: Mapping[str, Any]) -> bool:
    """Whether the same stage succeeded in the same pool after its last failure."""
    return failed["ok_at"] is not None and moments.moment(failed["ok_at"]) > moments.moment(failed["last_at"])


def _attempts(failed: Sequence[Mapping[str, Any]], facts: Facts) -> str:
    if not failed:
        return "no attempt within a day"
    last_s = min(facts.ago_s(moments.moment(row["last_at"])) for row in failed)
    since = "; a later one succeeded" if all(map(_succeeded_later, failed)) else ""
    attempts = counted(sum(row["n"] for row in failed), "attempt")
    return f"{attempts} within a day, the last {last_s / 60:.0f} min ago{since}"


RULES: tuple[Callable[[Facts], Iterator[Condition]], ...] = (_stuck, _slow, _unheard, _ready, _machines, _ssh)
