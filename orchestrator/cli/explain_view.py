"""The layout of explanations on a terminal: state, party that must act, times, evidence, fix."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli.fixes import GAP, whole, with_fix
from orchestrator.cli.output import PIPE_COLUMNS, numbers, one_line
from orchestrator.cli.tables import STYLES, Stacked, table
from orchestrator.core import decision_text
from orchestrator.core.meanings import NOBODY
from orchestrator.core.plurals import counted
from orchestrator.core.provider import place_of
from orchestrator.core.states import State
from orchestrator.diagnostics.amounts import aged, ago, clock, gpu_name, moment, relative, span, usd
from orchestrator.diagnostics.causes import named
from orchestrator.diagnostics.early_warnings import silent_leader
from orchestrator.diagnostics.knowledge import Gotcha
from orchestrator.diagnostics.scaling import OfferNow, PoolExplanation
from orchestrator.diagnostics.task_attempts import TaskAttempt
from orchestrator.diagnostics.tasks import TaskExplanation
from orchestrator.diagnostics.workers import WorkerExplanation
from orchestrator.observability.redaction import plain

WORDS = 1_000  # characters of a text that may come from a pod or a client


def worker(subject: WorkerExplanation, now: datetime, columns: int = PIPE_COLUMNS) -> Iterator[Text]:
    """Show a worker in five lines; if the last one is longer than `columns`, the fix has its own."""
    live = subject.state != State.TERMINATED
    head = Text.assemble((subject.worker_id, "bold"), "  ", (subject.state, STYLES.get(subject.state, "")))
    head.append(f" {span(ago(subject.state_since, now))}" + ("" if live else " ago"))
    if live:
        tries = f" (attempt {subject.attempt}{_of(subject.attempts_possible)})" if subject.attempt else ""
        head.append(f"  stage {subject.stage}{tries}")
    else:
        lived = (ago(subject.created_at, now) or 0) - (ago(subject.state_since, now) or 0)
        head.append(f"  lived {span(lived)}  last stage {subject.stage}")
    lines = [head]
    if live:
        code = f" ({named(subject.code, subject.subcause)})" if subject.code else ""
        lines.append(
            Text.assemble((f"WAITING ON {subject.who}", "bold yellow"), f": {one_line(subject.what, WORDS)}{code}")
        )
    lines += [
        Text.assemble(("ENDED" if not live else "ENDING", "bold"), f" {one_line(why, 400)}") for why in subject.ended
    ]
    parts = [f"since {_clock(subject.since, now)}"]
    if live and subject.deadline:
        parts.append(f"deadline {_clock(subject.deadline, now)}")
    parts.append(f"then: {subject.then}")
    if subject.holding_up:
        parts.append(f"holding up: {counted(subject.holding_up, 'queued task')}")
    parts.append(
        f"spent: {usd(subject.spent_usd)}{_kinds(subject.cost_by_kind) if subject.state != State.SPAWNING else ''}"
    )
    lines.append(Text(GAP.join(parts)))
    if subject.state != State.SPAWNING:
        lines.append(
            Text(f"tasks: {subject.tasks_done} done, {subject.tasks_failed} failed, {len(subject.running)} running")
        )
    lines += [Text(_held(row, now)) for row in subject.running]
    evidence = aged(one_line(subject.evidence, 400), now) if subject.evidence else "none yet: no attempt has ended"
    lines.append(Text(f"evidence: {evidence}"))
    usual = _usual(subject.usual, subject.stage if subject.state == State.SPAWNING else None)
    yield Text("\n").join(lines)
    yield from with_fix(usual, one_line(subject.fix, WORDS), columns)


def task(
    subject: TaskExplanation, now: datetime, columns: int = PIPE_COLUMNS, *, narrow: bool = False
) -> Iterator[RenderableType]:
    """Show a task and the table of its attempts. On a narrow terminal, texts are under each line."""
    head = Text.assemble(
        (subject.task_id, "bold"),
        f"  {one_line(subject.task_type)}  ",
        (subject.status, STYLES.get(subject.status, "")),
    )
    head.append(
        f" {span(ago(subject.since, now))}  pool {one_line(subject.pool)}"
        f"  attempts {subject.attempts_made} of {subject.max_attempts}"
    )
    over = subject.status in {"Complete", "Failed", "Cancelled"}
    label = subject.status.upper() if over else f"WAITING ON {subject.who}"
    if subject.who == NOBODY and subject.until:  # the clock alone
        label = f"{'RETRIES' if subject.code else 'STARTS'} {relative(subject.until, now)}"
    code = f" ({subject.code})" if subject.code else ""
    why = Text.assemble((label, "bold yellow"), f": {one_line(subject.what, 500)}{code}")
    parts = [f"since {_clock(subject.since, now)}", f"limits: {subject.limits}"]
    if subject.until:
        parts.append(f"until {_clock(subject.until, now)} ({relative(subject.until, now)})")
    parts.append(f"then: {subject.then}")
    if subject.holding_up:
        parts.append(f"holding up: {counted(subject.holding_up, 'dependent task')}")
    if subject.usd is not None:
        parts.append(f"spent: {usd(subject.usd)}")
    yield Text("\n").join([head, why, Text(GAP.join(parts))])
    fix = one_line(subject.fix, WORDS)
    if subject.usual:
        yield from with_fix(_spread(f"usual for {one_line(subject.task_type)}", subject.usual), fix, columns)
    else:
        yield whole(f"fix: {fix}")
    if subject.attempts:
        yield ""
        yield _tried([_attempt(attempt, now) for attempt in subject.attempts], narrow=narrow)


def known(one: Gotcha) -> Iterator[Text]:
    """Show a row of the knowledge base."""
    lines = [Text.assemble((f"{one.id}: {one.title}", "bold")), Text(f"cause: {one.cause}")]
    lines += [Text(f"reported by agents as: {', '.join(one.codes)}")] if one.codes else []
    yield Text("\n").join(lines)
    yield whole(f"fix: {one.fix}")


def quoted(found: Sequence[tuple[Gotcha, str]]) -> Iterator[Text]:
    """Show the rows of the knowledge base that a log matches, each with the line."""
    for one, line in found:
        yield Text.assemble("\n", (f"KNOWN {one.id}: {one.title}", "bold yellow"), f": {one_line(plain(line), 300)}")
        yield Text(f"cause: {one.cause}")
        yield whole(f"fix: {one.fix}")


def scaling(
    pools: Iterable[PoolExplanation],
    found: Mapping[str, Any],
    now: datetime,
    columns: int = PIPE_COLUMNS,
    *,
    verbose: bool = False,
) -> Iterator[RenderableType]:
    """Show the leader, and each pool's decision, blocked reasons and offers; with `verbose` also its formula."""
    leader = found["leader"]
    yield Text(f"leader: {leader['holder']} since {clock(leader['since'])} (term {leader['term']})" if leader else
               "leader: none, so nothing is decided   fix: python -m orchestrator run")  # fmt: skip
    if silence := silent_leader(leader, now):
        yield Text(f"WAITING ON orchestrator: {silence}", style="bold yellow")
    if found["paused"]:
        yield from with_fix(f"paused: {one_line(found['paused'], WORDS)}", "python -m orchestrator resume", columns)
    for pool in pools:
        yield ""
        yield from _pool(pool, now, columns, verbose=verbose)
        yield _offers(pool.offers, now)


def _pool(subject: PoolExplanation, now: datetime, columns: int, *, verbose: bool) -> Iterator[Text]:
    yield Text.assemble(("pool ", ""), (one_line(subject.pool), "bold"), f"  target {subject.target}")
    yield Text(f"now: {one_line(subject.sentence, WORDS)}")
    yield Text(f"     workers now: {decision_text.workers(subject.inputs)}")
    if verbose:
        yield Text(f"     target: {one_line(subject.rule, WORDS)}")
        yield Text(f"     {numbers({name: n for name, n in subject.inputs.items() if isinstance(n, int | float)})}")
    for blocked in subject.blocked:
        yield Text.assemble((f"BLOCKED, WAITING ON {blocked.who}", "bold yellow"), f": {one_line(blocked.text, WORDS)}")
        parts = [f"since {_clock(blocked.since, now)}"] if blocked.since else []
        parts += [f"until {_clock(blocked.until, now)} ({relative(blocked.until, now)})"] if blocked.until else []
        yield from with_fix("  " + GAP.join([*parts, f"then: {blocked.then}"]), one_line(blocked.fix, WORDS), columns)
    for row in subject.waiting:
        until = f", next try {_clock(row['next_attempt_at'], now)}, deadline {_clock(row['deadline_at'], now)}"
        yield Text(f"worker {row['id']} waits on {row['waiting_on']}: {one_line(row['waiting_for'] or '')}{until}")
    if subject.last:
        last = subject.last
        label = one_line(decision_text.row_sentence(last), WORDS)
        yield Text(f"last decision {clock(last['at'])} ({relative(last['at'], now)}): {label}")
        if verbose:
            yield Text(f"  target: {one_line(last['rule'], WORDS)}")
        for reason in last["blocked"]:
            yield Text(f"  blocked then: {one_line(reason['text'], 300)}")
    else:
        yield Text("last decision: none yet")


def _offers(offers: Sequence[OfferNow], now: datetime) -> RenderableType:
    shown = table("offer, in order", "state", "until", "refused", "last granted")
    for offer in offers:
        until = f"{_clock(offer.until, now)} ({relative(offer.until, now)})" if offer.until else "–"
        refused = f"{offer.refusals} in a row" if offer.refusals else "–"
        shown.add_row(place_of(offer.key), offer.state, until, refused, relative(offer.last_success, now))
    codes = {offer.last_code: offer.means for offer in offers if offer.last_code and offer.means}
    return Group(shown, *(Text(f"  {code}: {means}") for code, means in codes.items()))


def _tried(attempts: Sequence[tuple[str, ...]], *, narrow: bool) -> RenderableType:
    names = ("attempt", "started", "took", "outcome", "cost", "worker", "why, log and fix")
    made = table(*(names[:-2] if narrow else names))
    for cells in attempts:
        made.add_row(*(cells[:-2] if narrow else cells))
    if not narrow:
        return made
    return Stacked(made, ["worker, why, log and fix", *("\n".join(filter(None, cells[-2:])) for cells in attempts)])


def _attempt(subject: TaskAttempt, now: datetime) -> tuple[str, ...]:
    took = (ago(subject.started_at, now) or 0) - (ago(subject.ended_at, now) or 0 if subject.ended_at else 0)
    facts = [subject.code, subject.exit_class, subject.point and f"at {subject.point}"]
    why = [
        " ".join(fact for fact in facts if fact),
        subject.message or subject.means or "",
        subject.log or "",
        subject.fix or "",
    ]
    where = f"{subject.worker_id}  {subject.worker}"
    label = "\n".join(one_line(line, 300) for line in why if line)
    return (str(subject.number), clock(subject.started_at), span(took), subject.outcome, usd(subject.usd), where, label)


def _held(row: Mapping[str, Any], now: datetime) -> str:
    alive = f", last sign of life {relative(row['progress_at'], now)}" if row["progress_at"] else ""
    return f"runs {row['task_type']} {row['id']} for {span(ago(row['started_at'], now))}{alive}"


def _of(possible: int | None) -> str:
    return f" of {possible}" if possible else ""


def _kinds(by_kind: Mapping[str, float]) -> str:
    parts = ", ".join(f"{kind} {usd(amount)}" for kind, amount in sorted(by_kind.items()) if amount)
    return f" ({parts})" if parts else ""


def _usual(usual: Mapping[str, Any], stage: str | None) -> str:
    what = gpu_name(usual["gpu_type"]) if not usual["gpu_type"] else usual["gpu_type"]
    if not usual["n"]:
        return f"usual for {what}: no bring-up yet to compare with"
    whole = _spread(f"usual for {what}", usual)
    part = usual["stages"].get(stage)
    return f"{whole}, {_spread(f'of which {stage}', part)}" if part else whole


def _spread(what: str, usual: Mapping[str, Any]) -> str:
    return f"{what}: p50 {span(float(usual['p50_s']))}, p95 {span(float(usual['p95_s']))} (n={usual['n']})"


def _clock(value: Any, now: datetime) -> str:
    """Return the time of day, with the date if it is not today."""
    then = moment(value)
    if then is None:
        return "–"
    return f"{then:%H:%M:%S}" if then.date() == now.date() else clock(then)
