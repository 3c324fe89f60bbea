"""The layout of clusters on a terminal: what each waits for, its members, operations, and what is wrong."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.fixes import GAP, with_fix
from orchestrator.cli.output import Output, one_line
from orchestrator.cli.tables import fit, stack, usd_column
from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.clusters.rows import ClusterRow, Event, MemberOperation, MemberRow, NodeTask
from orchestrator.core.meanings import NOBODY
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import clock, gpu_name, relative, span, usd
from orchestrator.diagnostics.clusters import (
    ENDED,
    ClusterProblem,
    ended_members,
    live_members,
    member_error,
    ready_nodes,
    slurm_state,
    standing,
    usd_per_hour,
)

Problems = Sequence[ClusterProblem]
WORDS = 1_000  # characters of a text that may come from a pod
STYLES = {
    "running": "green", "ready": "green", "succeeded": "green", "completed": "green",
    "degraded": "red", "failed": "red", "expired": "red",
    "deleted": "dim", "removed": "dim",
}  # fmt: skip
NOTHING_WRONG = "nothing is known to be wrong"
WHY, DETAILS = "waits for / why", "details / why"


def state(name: str) -> Text:
    """Return a state in its colour."""
    return Text(name, style=STYLES.get(name, "yellow"))


def clusters(rows: Sequence[ClusterRow], output: Output, now: datetime) -> RenderableType:
    """Return one line for each cluster; on a narrow terminal, what it waits for is under it."""
    cells: dict[str, list[str | Text]] = {name: [] for name in ("cluster", "state", "for", "pool", "nodes", "$/h")}
    notes = []
    for row in rows:
        cells["cluster"].append(row.id)
        cells["state"].append(state(row.status))
        cells["for"].append(span(_age_s(row.status_since, now)))
        cells["pool"].append(one_line(row.pool))
        cells["nodes"].append(f"{ready_nodes(row)}/{row.nodes}")
        notes.append(Text(_waits(row, now)))
    cells["$/h"] = [*usd_column([usd_per_hour(row) for row in rows])]
    made = fit(cells, notes, output, layouts=[tuple(cells)], title=WHY)
    return made or stack(cells, notes, output, below=(), title=WHY)


def ended(rows: Sequence[Mapping[str, Any]], output: Output, now: datetime) -> RenderableType:
    """Return one line for each ended cluster: when and why it ended."""
    cells: dict[str, list[str | Text]] = {name: [] for name in ("cluster", "state", "when", "pool", "nodes")}
    notes = []
    for row in rows:
        when, shown = relative(row["status_since"], now), state(row["status"])
        for name, cell in zip(cells, (row["id"], shown, when, one_line(row["pool"]), str(row["nodes"])), strict=True):
            cells[name].append(cell)
        notes.append(Text(one_line(": ".join(filter(None, (row["failure_code"], row["reason"]))), WORDS)))
    made = fit(cells, notes, output, layouts=[tuple(cells)], title="why")
    return made or stack(cells, notes, output, below=(), title="why")


def summary(row: ClusterRow, output: Output, now: datetime) -> Iterator[RenderableType]:
    """Show in a few lines what a cluster is, what it waits for, until when, what happens then, and the fix."""
    held = standing(row)
    head = Text.assemble((row.id, "bold"), "  ", state(row.status), f" {span(_age_s(row.status_since, now))}")
    head.append(" ago" if row.status in ENDED else "")
    head.append(f"  pool {one_line(row.pool)}  {ready_nodes(row)} of {counted(row.nodes, 'node')} ready{_range(row)}")
    yield head
    said = one_line(held.what, WORDS) + (f" ({held.code})" if held.code else "")
    style = "" if held.who == NOBODY else "bold yellow"
    who = ("ENDED", "bold") if row.status in ENDED else (f"WAITING ON {held.who}", style)
    yield Text.assemble(who, f": {said}")
    until = [f"until {clock(held.until)} ({relative(held.until, now)})"] if held.until else []
    yield from with_fix(GAP.join([*until, f"then: {held.then}"]), one_line(held.fix, WORDS), output.out.width)
    price = f", {usd(usd_per_hour(row))}/h now" if usd_per_hour(row) else ""
    yield Text(GAP.join([_demand(row), _smoke(row, now), f"spent: {usd(row.cost_usd)}{price}"]))


def cluster(
    row: ClusterRow, output: Output, now: datetime, found: Sequence[ClusterProblem]
) -> Iterator[RenderableType]:
    """Show a cluster: what it waits for and until when, its members, and what is wrong with the fix."""
    yield from summary(row, output, now)
    if rows := (*live_members(row), *ended_members(row)):
        yield ""
        yield members(rows, output, now)
    for one in row.unjoined:
        yield Text(f"{one.id}  {one.status}, stage {one.stage}: not a member yet")
    if found:
        yield ""
        yield from diagnoses(row, found, output.out.width)


def members(rows: Sequence[MemberRow], output: Output, now: datetime) -> RenderableType:
    """Return one line for each member; below it, if the terminal is narrow, its machine and its addresses."""
    names = ("node", "role", "status", "for", "slurm", "GPU", "place", "ssh", "fabric")
    cells: dict[str, list[str | Text]] = {name: [] for name in names}
    notes = []
    for row in rows:
        worker = row.worker
        ssh = f"{row.ssh_host}:{row.ssh_port}" if row.ssh_host else "–"
        said = (
            row.node_name, row.role, state(row.status), span(_age_s(row.status_since, now)), slurm_state(row),
            gpu_name(worker.gpu_type, worker.gpu_count) if worker else "–", (worker and worker.data_center) or "–",
            ssh, row.fabric_addr or "–",
        )  # fmt: skip
        for name, cell in zip(names, said, strict=True):
            cells[name].append(cell if isinstance(cell, Text) else one_line(cell))
        error = member_error(row) or row.reason or ""
        notes.append(Text(one_line(error, WORDS), style="bold red" if member_error(row) else ""))
    short = names[:5]
    made = fit(cells, notes, output, layouts=[names, (*names[:6], "ssh")], title="why")
    return made or stack(cells, notes, output, below=[name for name in names if name not in short], title="why")


def operations(rows: Sequence[MemberOperation], output: Output, now: datetime) -> RenderableType:
    """Return the operations on members, newest first."""
    names = ("operation", "kind", "status", "for", "until", "by", "worker")
    cells: dict[str, list[str | Text]] = {name: [] for name in names}
    for row in rows:
        said = (str(row.id), row.kind, state(row.status), *_times(row, now), row.actor, row.worker_id or "every member")
        for name, cell in zip(names, said, strict=True):
            cells[name].append(cell if isinstance(cell, Text) else one_line(cell))
    notes = [Text(one_line(row.error or _evidence(row), WORDS)) for row in rows]
    return fit(cells, notes, output, layouts=[names], title=DETAILS) or stack(
        cells, notes, output, below=("by", "worker"), title=DETAILS
    )


def node_tasks(rows: Sequence[NodeTask], output: Output, now: datetime) -> RenderableType:
    """Return what is done on pods, newest first."""
    names = ("node task", "operation", "via", "status", "for", "until", "worker", "kind")
    cells: dict[str, list[str | Text]] = {name: [] for name in names}
    for row in rows:
        of = str(row.operation_id) if row.operation_id is not None else "–"
        said = (str(row.id), of, row.via, state(row.status), *_times(row, now), row.worker_id, row.kind)
        for name, cell in zip(names, said, strict=True):
            cells[name].append(cell if isinstance(cell, Text) else one_line(cell))
    notes = [Text(one_line(row.error or "", WORDS)) for row in rows]
    return fit(cells, notes, output, layouts=[names], title=DETAILS) or stack(
        cells, notes, output, below=("worker", "kind"), title=DETAILS
    )


def history(rows: Sequence[Event], output: Output, now: datetime) -> RenderableType:
    """Return the last changes of state, newest first."""
    cells: dict[str, list[str | Text]] = {name: [] for name in ("changed", "what", "from", "to", "worker")}
    for one in rows:
        said = (relative(one.at, now), one.subject, one.from_state or "–", one.to_state, one.worker_id or "–")
        for name, cell in zip(cells, said, strict=True):
            cells[name].append(one_line(cell))
    notes = [Text(one_line(one.reason or "", WORDS)) for one in rows]
    made = fit(cells, notes, output, layouts=[tuple(cells)], title="why")
    return made or stack(cells, notes, output, below=("worker",), title="why")


def diagnoses(row: ClusterRow, found: Iterable[ClusterProblem], columns: int) -> Iterator[RenderableType]:
    """Show each diagnosis: its code, where, the cause, the observation, and the fix on a line to copy."""
    names = {one.worker_id: one.node_name for one in row.members}
    for one in found:
        where = f"  {names.get(one.worker_id, one.worker_id)}" if one.worker_id else ""
        yield Text.assemble((one.code, "bold red"), f"{where}: {one_line(one.cause, WORDS)}")
        yield from with_fix(f"evidence: {one_line(one.evidence, WORDS) or 'none'}", one_line(one.fix, WORDS), columns)


def explained(row: ClusterRow, output: Output, now: datetime, found: Problems) -> Iterator[RenderableType]:
    """Show what a cluster waits for, and each diagnosis."""
    yield from summary(row, output, now)
    yield ""
    yield from diagnoses(row, found, output.out.width) if found else [Text(NOTHING_WRONG)]


def _waits(row: ClusterRow, now: datetime) -> str:
    held = standing(row)
    until = f", deadline {relative(held.until, now)}" if held.until else ""
    code = f" ({held.code})" if held.code else ""
    return one_line(f"{held.what}{until}{code}", WORDS)


def _demand(row: ClusterRow) -> str:
    if not row.demand.tasks:
        return "tasks: none"
    return f"tasks: {row.demand.tasks}, for {counted(row.demand.nodes, 'node')} (the largest: {row.demand.largest})"


def _smoke(row: ClusterRow, now: datetime) -> str:
    return f"smoke job: {'succeeded ' + relative(row.smoke_at, now) if row.smoke_at else 'not yet'}"


def _range(row: ClusterRow) -> str:
    if row.min_nodes == row.max_nodes or row.status is ClusterStatus.DELETED:
        return ""
    return f" (at least {row.min_nodes}, at most {row.max_nodes})"


def _evidence(row: MemberOperation) -> str:
    """Return the plain texts of an operation's evidence: the node, and why it ended."""
    plain = ((name, value) for name, value in (row.evidence or {}).items() if isinstance(value, str))
    return ", ".join(f"{name} {value[:16] if name == 'conf_sha' else value}" for name, value in plain)


def _times(row: MemberOperation | NodeTask, now: datetime) -> tuple[str, str]:
    is_open = row.deadline_at > now and row.status in {"accepted", "dispatched", "running", "queued"}
    return span(_age_s(row.status_since, now)), relative(row.deadline_at, now) if is_open else "–"


def _age_s(since: datetime, now: datetime) -> float:
    return (now - since).total_seconds()
