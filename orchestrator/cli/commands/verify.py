"""`verify <worker>`: what its bring-up proved, rung by rung; with --now, what its pod shows at this moment."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from orchestrator.cli.output import Output, ago, clock, json_option, one_line, span
from orchestrator.cli.progress import leave
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for
from orchestrator.cli.tables import STYLES, table
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State
from orchestrator.observability.redaction import plain

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "dim")}


@dataclass(frozen=True, slots=True)
class StageCheck:
    """One thing that must be true of a working worker."""

    what: str
    holds: bool | None  # None: unknown; not asked, or not come so far
    said: str


@click.command()
@click.argument("worker")
@click.option("--now", "at_once", is_flag=True, help="Look over SSH too: our key, the host key, the code, the process.")
@json_option
@click.pass_obj
@runs
async def verify(output: Output, worker: str, *, at_once: bool) -> int:
    """Whether a worker is proven: each rung of its bring-up, its heartbeat, and with --now its pod as it is.

    Nothing is changed. Exit 1 if something does not hold, 3 if there is no such worker.
    """
    settings = settings_for("database", "shell") if at_once else settings_for("database")
    async with opened_store() as store:
        name = (await find_worker(store, worker))["worker"]["id"]
        found, history = await asyncio.gather(store.explain(name), store.worker(name))
        row, now = found["worker"], datetime.fromisoformat(found["now"])
        proofs = [
            *_bring_up(history["worker"], history["attempts"]),
            _heartbeat(row, now, settings.heartbeat_timeout_sec),
        ]
        if at_once:
            proofs += _pod(await _looked_at(settings, row))
    holds = all(proof.holds is not False for proof in proofs) and proofs[-1].holds is True
    if output.json:
        output.document(worker_id=name, status=row["status"], proven=holds, proofs=[asdict(one) for one in proofs])
        return leave(output, 0 if holds else 1)
    head = Text.assemble((name, "bold"), "  ", (row["status"], STYLES.get(row["status"], "")))
    shown = table("", "what", "proof")
    for proof in proofs:
        mark, style = MARKS[proof.holds]
        shown.add_row(Text(mark, style=style), proof.what, one_line(plain(proof.said), 300))
    fix = "none needed" if holds else f"python -m orchestrator explain {name}"
    output.show(head, shown, f"{'proven' if holds else 'not proven'}   fix: {fix}")
    return leave(output, 0 if holds else 1)


def _bring_up(row: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> Iterator[StageCheck]:
    """The last attempt at each rung."""
    last = {attempt["stage"]: attempt for attempt in attempts}
    for stage in STAGE_SPECS:
        if stage == Stage.INTENT:
            yield StageCheck(stage, True, f"recorded at {clock(row['created_at'])}")
            continue
        if (attempt := last.get(stage)) is None:
            alone = stage == Stage.GPU_FABRIC and row["gpu_count"] == 1
            yield StageCheck(stage, None, "not needed: one GPU" if alone else "not come so far")
            continue
        ended = attempt["ended_at"]
        took_s = ago(attempt["started_at"], datetime.fromisoformat(ended)) if ended else None
        at = clock(ended or attempt["started_at"])
        why = " ".join(str(attempt[name]) for name in ("failure_code", "exception_type") if attempt[name])
        outcome = attempt["outcome"] or "under way"
        said = (
            f"{outcome} at {at}"
            + (f", took {span(took_s)}" if took_s is not None else "")
            + (f": {why}" if why else "")
        )
        yield StageCheck(stage, {"ok": True, "failed": False}.get(outcome), said)


def _heartbeat(row: Mapping[str, Any], now: datetime, patience_s: float) -> StageCheck:
    if row["last_heartbeat"] is None:
        return StageCheck("heartbeat now", None, "none yet")
    quiet_s = ago(row["last_heartbeat"], now) or 0.0
    if row["status"] == State.TERMINATED:
        return StageCheck("heartbeat now", False, f"it has ended; the last was {span(quiet_s)} ago")
    said = f"{span(quiet_s)} ago, HEARTBEAT_TIMEOUT_SEC={patience_s:g}"
    return StageCheck("heartbeat now", quiet_s <= patience_s, said)


async def _looked_at(settings: Any, row: Mapping[str, Any]) -> Mapping[str, Any]:
    from orchestrator import wiring
    from orchestrator.diagnostics.collect import LIMITS, ssh_analysis

    _, lines = wiring.open_ssh_pool(settings)
    try:
        return await ssh_analysis(row, lines, LIMITS)
    finally:
        await lines.close()


def _pod(seen: Mapping[str, Any]) -> Iterator[StageCheck]:
    """SSH, the code, and last the process, without which nothing else counts."""
    from orchestrator.diagnostics.collect import CONNECTED

    connected = seen["connection_status"] == CONNECTED
    tried = not seen["connection_status"].startswith("not tried")
    said = f"{seen['ssh_details']}, its host key is the pinned one" if connected else seen["connection_status"]
    yield StageCheck("ssh now", connected if tried else None, said)
    code, agent = seen["worker_script"], seen["processes"]
    yield StageCheck("code now", code and code["present"], f"{code['expected']} on the pod" if code else "not seen")
    if not agent:
        yield StageCheck("process now", None, "not seen")
        return
    pid = f", process {agent['pid']}" if agent["pid"] else ""
    yield StageCheck("process now", agent["exit_class"] == "running", f"{agent['exit_class']}{pid}")
