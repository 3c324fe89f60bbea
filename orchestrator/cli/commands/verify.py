"""`verify <worker>`: each stage of its bring-up; with --now, what its pod shows at this moment."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from orchestrator.cli.fixes import with_fix
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.progress import leave
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for
from orchestrator.cli.tables import STYLES, table
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import findings_of
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State
from orchestrator.diagnostics.amounts import ago, clock, span
from orchestrator.observability.redaction import plain

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "dim")}


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    """One thing that must be true of a working worker."""

    what: str
    holds: bool | None  # None: unknown; not asked, or not reached yet
    evidence: str
    fix: str = ""  # if it does not hold


@click.command()
@click.argument("worker")
@click.option(
    "--now",
    "at_once",
    is_flag=True,
    help="Repeat the checks on its pod over SSH: key, disk, GPUs, code, process; and its agent's findings.",
)
@json_option
@click.pass_obj
@runs
async def verify(output: Output, worker: str, *, at_once: bool) -> int:
    """Check whether a worker is ready: each stage of its bring-up, its heartbeat, and with --now its pod as it is.

    Nothing is changed. Exit 1 if something does not hold, 3 if there is no such worker.
    """
    settings = settings_for("database", "shell") if at_once else settings_for("database")
    async with opened_store() as store:
        name = (await find_worker(store, worker))["worker"]["id"]
        found, history = await asyncio.gather(store.explain(name), store.worker(name))
        row, now = found["worker"], datetime.fromisoformat(found["now"])
        checks = [
            *_bring_up(history["worker"], history["attempts"]),
            _heartbeat(row, now, settings.heartbeat_timeout_sec),
        ]
        if at_once:
            checks += [*_findings(row, now, settings.heartbeat_timeout_sec), *await _looked_at(settings, row)]
    is_ready = all(check.holds is not False for check in checks) and checks[-1].holds is True
    if output.json:
        output.document(worker_id=name, status=row["status"], ready=is_ready, checks=[asdict(one) for one in checks])
        return leave(output, 0 if is_ready else 1)
    head = Text.assemble((name, "bold"), "  ", (row["status"], STYLES.get(row["status"], "")))
    shown = table("", "what", "evidence")
    for check in checks:
        mark, style = MARKS[check.holds]
        shown.add_row(Text(mark, style=style), check.what, one_line(plain(check.evidence), 300))
    fixes = [check.fix for check in checks if check.holds is False and check.fix]
    fix = "none needed" if is_ready else (fixes or [f"python -m orchestrator explain {name}"])[0]
    output.show(head, shown, *with_fix("ready" if is_ready else "not ready", fix, output.out.width))
    return leave(output, 0 if is_ready else 1)


def _bring_up(row: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> Iterator[ReadinessCheck]:
    """The last attempt at each stage."""
    last = {attempt["stage"]: attempt for attempt in attempts}
    for stage in STAGE_SPECS:
        if stage == Stage.INTENT:
            yield ReadinessCheck(stage, True, f"recorded at {clock(row['created_at'])}")
            continue
        if (attempt := last.get(stage)) is None:
            alone = stage == Stage.GPU_FABRIC and row["gpu_count"] == 1
            yield ReadinessCheck(stage, None, "not needed: one GPU" if alone else "not reached yet")
            continue
        ended = attempt["ended_at"]
        took_s = ago(attempt["started_at"], datetime.fromisoformat(ended)) if ended else None
        at = clock(ended or attempt["started_at"])
        why = " ".join(str(attempt[name]) for name in ("failure_code", "exception_type") if attempt[name])
        outcome = attempt["outcome"] or "under way"
        evidence = (
            f"{outcome} at {at}"
            + (f", took {span(took_s)}" if took_s is not None else "")
            + (f": {why}" if why else "")
        )
        yield ReadinessCheck(stage, {"ok": True, "failed": False}.get(outcome), evidence)


def _heartbeat(row: Mapping[str, Any], now: datetime, patience_s: float) -> ReadinessCheck:
    if row["last_heartbeat"] is None:
        return ReadinessCheck("heartbeat now", None, "none yet")
    quiet_s = ago(row["last_heartbeat"], now) or 0.0
    if row["status"] == State.TERMINATED:
        return ReadinessCheck("heartbeat now", False, f"it has ended; the last was {span(quiet_s)} ago")
    evidence = f"{span(quiet_s)} ago, HEARTBEAT_TIMEOUT_SEC={patience_s:g}"
    return ReadinessCheck("heartbeat now", quiet_s <= patience_s, evidence)


async def _looked_at(settings: Any, row: Mapping[str, Any]) -> list[ReadinessCheck]:
    """What its pod shows: the machine, then SSH, the code and the process."""
    from orchestrator import wiring
    from orchestrator.diagnostics.collect import LIMITS, ssh_analysis
    from orchestrator.diagnostics.facts import CONNECTED
    from orchestrator.diagnostics.live_machine import machine_checks

    _, ssh_pool = wiring.open_ssh_pool(settings)
    try:
        seen = await ssh_analysis(row, ssh_pool, LIMITS)
        machine = await machine_checks(row, ssh_pool) if seen["connection_status"] == CONNECTED else []
    finally:
        await ssh_pool.close()
    checks = [ReadinessCheck(f"{one.stage} now", one.holds, one.evidence, _fix(one.code, row["id"])) for one in machine]
    return [*checks, *_pod(seen)]


def _findings(row: Mapping[str, Any], now: datetime, patience_s: float) -> Iterator[ReadinessCheck]:
    """What its agent reports of the machine. What a silent agent reported last counts as unknown."""
    quiet_s = ago(row["last_heartbeat"], now)
    if quiet_s is None or quiet_s > patience_s:
        yield ReadinessCheck("findings now", None, "not known: no recent heartbeat")
        return
    found = findings_of(row.get("health"))
    if not found:
        yield ReadinessCheck("findings now", True, "its agent reports none")
    for one in found:
        meaning = one.guard.meaning if one.guard else None
        holds = None if one.guard is None else not one.severity.blocks
        evidence = f"{one.text}; since {clock(one.since.isoformat())}" if one.since else one.text
        yield ReadinessCheck(
            "findings now", holds, evidence, meaning.fix.replace("<worker>", row["id"]) if meaning else ""
        )


def _fix(code: FailureCode | None, worker: str) -> str:
    return code.row.fix.replace("<worker>", worker) if code else ""


def _pod(seen: Mapping[str, Any]) -> Iterator[ReadinessCheck]:
    """SSH, the code, and last the process, without which nothing else counts."""
    from orchestrator.diagnostics.facts import CONNECTED

    connected = seen["connection_status"] == CONNECTED
    tried = not seen["connection_status"].startswith("not tried")
    evidence = f"{seen['ssh_details']}, its host key is the pinned one" if connected else seen["connection_status"]
    yield ReadinessCheck("ssh now", connected if tried else None, evidence)
    code, agent = seen["worker_script"], seen["processes"]
    yield ReadinessCheck("code now", code and code["present"], f"{code['expected']} on the pod" if code else "not seen")
    if not agent:
        yield ReadinessCheck("process now", None, "not seen")
        return
    pid = f", process {agent['pid']}" if agent["pid"] else ""
    yield ReadinessCheck("process now", agent["exit_class"] == "running", f"{agent['exit_class']}{pid}")
