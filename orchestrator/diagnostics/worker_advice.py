"""What to do about workers: those that stay where they are, fall silent, or cannot be reached. Rules of advice.py."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.core.meanings import MORE
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import READY, Stage, State, WaitingOn
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.collect import CONNECTED
from orchestrator.diagnostics.early_warnings import unfit
from orchestrator.diagnostics.facts import (
    HIGH,
    LOW,
    MEDIUM,
    Recommendation,
    Report,
    ago_s,
    heard_s,
    known,
    minutes,
    workers,
)
from orchestrator.diagnostics.workers import named

SLOW_SPAWN_S, SILENT_S, STUCK_S = 300.0, 600.0, 600.0  # the guide's flags
MENDED = "none needed; python -m orchestrator list --all shows which workers it was"
SSH_CODES = ("TCP_REFUSED", "TCP_TIMEOUT", "NOT_SSH", "SSH_DETAILS_MISSING", "HOST_KEY_CHANGED")


def _stuck(report: Report) -> Iterator[Recommendation]:
    """Workers that stay where they are, by stage and by what is in their way."""
    groups: defaultdict[tuple[str, str, str | None], list[str]] = defaultdict(list)
    for name, worker in workers(report):
        row, told = worker["database_record"], worker["explanation"]
        here_s, code = ago_s(row["state_since"], report), told["code"]
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
    rung = STAGE_SPECS.get(Stage(stage))
    late = causes.of(rung.overdue) if rung and told["who"] != WaitingOn.ORCHESTRATOR else None
    fix = late.fix if late and not told["code"] else told["fix"]
    if fix in (MORE, MORE.replace("<worker>", names[0])):  # nothing to set here: it is the provider's
        return f"python -m orchestrator terminate {names[0]}, for another pod at once"
    return fix.replace("<worker>", names[0])


def _unfit(report: Report) -> Iterator[Recommendation]:
    """Workers that claim nothing because their tasks fail, or because their disk is full."""
    for name, worker in workers(report):
        row = worker["database_record"]
        why = unfit(row) if row["status"] in READY else None
        if why:
            issue = f"Worker {name} claims no more: {why}"
            detail = f"by itself: {worker['explanation']['then']}"
            yield Recommendation(MEDIUM, "Workers", issue, f"python -m orchestrator logs {name}", detail)


def _unseen(report: Report) -> Iterator[Recommendation]:
    found = {name: worker["error"] for name, worker in sorted(report["workers"].items()) if "error" in worker}
    if found and known(report, "database_state"):
        issue = f"Of {len(found)} worker(s) nothing is known"
        detail = "; ".join(f"{name}: {why}" for name, why in found.items())
        yield Recommendation(MEDIUM, "Workers", issue, f"python -m orchestrator diagnose {min(found)}", detail)


def _silent(report: Report) -> Iterator[Recommendation]:
    for name, worker in workers(report):
        row, ssh = worker["database_record"], worker["ssh_analysis"]
        if row["status"] not in READY:
            continue
        quiet_s = heard_s(worker, report)
        agent = (ssh["processes"] or {}).get("exit_class")
        if ssh["connection_status"] == CONNECTED and agent in {"ended", "killed"}:
            issue = f"Worker {name}: SSH works, but its process is not running ({agent})"
            yield Recommendation(
                HIGH, "Workers", issue, f"python -m orchestrator terminate {name}", f"logs {name} says why"
            )
        elif quiet_s > SILENT_S:
            issue = f"Worker {name} has sent no heartbeat for {minutes(quiet_s)}"
            yield Recommendation(
                HIGH, "Workers", issue, f"python -m orchestrator explain {name}", ssh["connection_status"]
            )


def _ssh(report: Report) -> Iterator[Recommendation]:
    """What pods refuse, and what does not answer; urgent only until the same pool has got through again."""
    refused = [n for n, w in workers(report) if "Authentication failed" in w["ssh_analysis"]["connection_status"]]
    failed = (known(report, "database_state") or {"failed_climbs": ()})["failed_climbs"]
    denied = [bring_up for bring_up in failed if bring_up["code"] == "AUTH_FAILED"]
    standing = [bring_up for bring_up in denied if not _mended(bring_up)]
    if standing or refused:
        subcause = next((bring_up["cause"] for bring_up in standing if bring_up["cause"]), None)
        cause = causes.of("AUTH_FAILED", subcause)
        detail = _attempts(denied, report) + (f"; now: {', '.join(refused)}" if refused else "")
        means, action = (cause.means, cause.fix) if cause else ("", "python -m orchestrator doctor")
        yield Recommendation(HIGH, "SSH", f"SSH authentication fails: {means}", action, detail)
    elif denied:
        issue = "SSH authentication failed within a day, and works again"
        yield Recommendation(LOW, "SSH", issue, MENDED, _attempts(denied, report))
    mute = {
        name: worker["ssh_analysis"]["connection_status"].removeprefix("❌ ")
        for name, worker in workers(report)
        if worker["ssh_analysis"]["connection_status"].startswith("❌")
        and name not in refused
        and worker["database_record"]["status"] in READY
        and heard_s(worker, report) <= SILENT_S
    }
    if mute:
        issue = f"{len(mute)} worker(s) work, but cannot be reached over SSH: their logs wait on their pods"
        detail = "; ".join(f"{name}: {why}" for name, why in mute.items())
        yield Recommendation(MEDIUM, "SSH", issue, f"python -m orchestrator explain {min(mute)}", detail)
    unreachable = [bring_up for bring_up in failed if bring_up["code"] in SSH_CODES]
    codes = ", ".join(sorted({bring_up["code"] for bring_up in unreachable}))
    if standing := [bring_up for bring_up in unreachable if not _mended(bring_up)]:
        action = f"python -m orchestrator explain {standing[0]['code']}"
        issue = f"SSH connections failed within a day: {codes}"
        yield Recommendation(MEDIUM, "SSH", issue, action, _attempts(unreachable, report))
    elif unreachable:
        issue = f"SSH connections failed within a day, and work again: {codes}"
        yield Recommendation(LOW, "SSH", issue, MENDED, _attempts(unreachable, report))


def _mended(bring_up: Mapping[str, Any]) -> bool:
    """Whether the same stage was climbed in the same pool after its last failure."""
    return bring_up["ok_at"] is not None and datetime.fromisoformat(bring_up["ok_at"]) > datetime.fromisoformat(
        bring_up["last_at"]
    )


def _attempts(bringups: Sequence[Mapping[str, Any]], report: Report) -> str:
    if not bringups:
        return "no attempt within a day"
    last_s = min(ago_s(bring_up["last_at"], report) for bring_up in bringups)
    count = sum(bring_up["n"] for bring_up in bringups)
    since = "; a later one succeeded" if all(map(_mended, bringups)) else ""
    return f"{count} attempt(s) within a day, the last {last_s / 60:.0f} min ago{since}"


RULES: tuple[Callable[[Report], Iterator[Recommendation]], ...] = (_stuck, _silent, _unfit, _unseen, _ssh)
