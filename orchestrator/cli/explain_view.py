"""How explanations look on a terminal: a head line, whom it waits for, the clocks, the proof, the fix."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.output import aged, ago, clock, gpu_name, moment, numbers, one_line, relative, span, usd
from orchestrator.cli.tables import STYLES, Stacked, table
from orchestrator.core.states import State
from orchestrator.diagnostics.early_warnings import silent_leader
from orchestrator.diagnostics.scaling import OfferNow, PoolExplanation
from orchestrator.diagnostics.tasks import Attempt
from orchestrator.diagnostics.tasks import Explanation as TaskExplanation
from orchestrator.diagnostics.workers import Explanation as WorkerExplanation
from orchestrator.diagnostics.workers import named
from orchestrator.observability.redaction import plain

GAP = "   "


def worker(told: WorkerExplanation, now: datetime) -> Text:
    """A worker in five lines."""
    live = told.state != State.TERMINATED
    head = Text.assemble((told.worker_id, "bold"), "  ", (told.state, STYLES.get(told.state, "")))
    head.append(f" {span(ago(told.state_since, now))}" + ("" if live else " ago"))
    if live:
        tries = f" (attempt {told.attempt}{_of(told.attempts_possible)})" if told.attempt else ""
        head.append(f"  stage {told.stage}{tries}")
    else:
        lived = (ago(told.created_at, now) or 0) - (ago(told.state_since, now) or 0)
        head.append(f"  lived {span(lived)}  last stage {told.stage}")
    lines = [head]
    if live:
        code = f" ({named(told.code, told.subcause)})" if told.code else ""
        lines.append(Text.assemble((f"WAITING ON {told.who}", "bold yellow"), f": {plain(told.what)}{code}"))
    lines += [
        Text.assemble(("ENDED" if not live else "ENDING", "bold"), f" {one_line(why, 400)}") for why in told.ended
    ]
    parts = [f"since {_clock(told.since, now)}"]
    if live and told.deadline:
        parts.append(f"deadline {_clock(told.deadline, now)}")
    parts.append(f"then: {told.then}")
    if told.holding_up:
        parts.append(f"holding up: {told.holding_up} queued task{'s' if told.holding_up != 1 else ''}")
    parts.append(f"spent: {usd(told.spent_usd)}{_kinds(told.cost_by_kind) if told.state != State.SPAWNING else ''}")
    lines.append(Text(GAP.join(parts)))
    if told.state != State.SPAWNING:
        lines.append(Text(f"tasks: {told.tasks_done} done, {told.tasks_failed} failed, {len(told.running)} running"))
    lines += [Text(_held(row, now)) for row in told.running]
    proven = aged(one_line(told.proof, 400), now) if told.proof else "none yet: no attempt has ended"
    lines.append(Text(f"proof: {proven}"))
    usual = _usual(told.usual, told.stage if told.state == State.SPAWNING else None)
    lines.append(Text(f"{usual}{GAP}fix: {plain(told.fix)}"))
    return Text("\n").join(lines)


def task(told: TaskExplanation, now: datetime, *, narrow: bool = False) -> Iterator[RenderableType]:
    """A task, and a table of its attempts; a narrow one has the words under each line."""
    head = Text.assemble(
        (told.task_id, "bold"), f"  {plain(told.task_type)}  ", (told.status, STYLES.get(told.status, ""))
    )
    head.append(
        f" {span(ago(told.since, now))}  pool {told.pool}  attempts {told.attempts_made} of {told.max_attempts}"
    )
    over = told.status in {"Complete", "Failed", "Cancelled"}
    said = f"{told.status.upper()}" if over else f"WAITING ON {told.who}"
    code = f" ({told.code})" if told.code else ""
    why = Text.assemble((said, "bold yellow"), f": {one_line(told.what, 500)}{code}")
    parts = [f"since {_clock(told.since, now)}"]
    if told.until:
        parts.append(f"until {_clock(told.until, now)} ({relative(told.until, now)})")
    parts.append(f"then: {told.then}")
    if told.holding_up:
        parts.append(f"holding up: {told.holding_up} dependent task{'s' if told.holding_up != 1 else ''}")
    if told.usd is not None:
        parts.append(f"spent: {usd(told.usd)}")
    usual = [_spread(f"usual for {plain(told.task_type)}", told.usual)] if told.usual else []
    fix = GAP.join([*usual, f"fix: {plain(told.fix)}"])
    yield Text("\n").join([head, why, Text(GAP.join(parts)), Text(fix)])
    if told.attempts:
        yield ""
        yield _tried([_attempt(attempt, now) for attempt in told.attempts], narrow=narrow)


def scaling(pools: Iterable[PoolExplanation], found: Mapping[str, Any], now: datetime) -> Iterator[RenderableType]:
    """Who leads, and each pool's arithmetic, blocks and offers."""
    leader = found["leader"]
    yield Text(f"leader: {leader['holder']} since {clock(leader['since'])} (term {leader['term']})" if leader else
               "leader: none, so nothing is decided   fix: python -m orchestrator run")  # fmt: skip
    if silence := silent_leader(leader, now):
        yield Text(f"WAITING ON orchestrator: {silence}", style="bold yellow")
    if found["paused"]:
        yield Text(f"paused: {plain(found['paused'])}   fix: python -m orchestrator resume", style="yellow")
    for pool in pools:
        yield ""
        yield Text("\n").join(_pool(pool, now))
        yield _offers(pool.offers, now)


def _pool(told: PoolExplanation, now: datetime) -> Iterator[Text]:
    yield Text.assemble(("pool ", ""), (told.pool, "bold"), f"  target {told.target}")
    yield Text(f"now: {told.rule}")
    shown = {name: value for name, value in told.inputs.items() if isinstance(value, int | float)}
    yield Text(f"     {numbers(shown)}")
    for blocked in told.blocked:
        yield Text.assemble((f"BLOCKED, WAITING ON {blocked.who}", "bold yellow"), f": {plain(blocked.text)}")
        parts = [f"since {_clock(blocked.since, now)}"] if blocked.since else []
        parts += [f"until {_clock(blocked.until, now)} ({relative(blocked.until, now)})"] if blocked.until else []
        yield Text("  " + GAP.join([*parts, f"then: {blocked.then}", f"fix: {blocked.fix}"]))
    for row in told.waiting:
        until = f", next try {_clock(row['next_attempt_at'], now)}, deadline {_clock(row['deadline_at'], now)}"
        yield Text(f"worker {row['id']} waits on {row['waiting_on']}: {one_line(row['waiting_for'] or '')}{until}")
    if told.last:
        last = told.last
        yield Text(f"last decision {clock(last['at'])} ({relative(last['at'], now)}): {plain(last['rule'])}")
        for reason in last["blocked"]:
            yield Text(f"  blocked then: {one_line(reason['text'], 300)}")
    else:
        yield Text("last decision: none yet")


def _offers(offers: Sequence[OfferNow], now: datetime) -> RenderableType:
    shown = table("offer, in order", "state", "until", "refused", "last granted", "means")
    for offer in offers:
        until = f"{_clock(offer.until, now)} ({relative(offer.until, now)})" if offer.until else "–"
        refused = f"{offer.refusals} in a row" if offer.refusals else "–"
        code = f"{offer.last_code}: {offer.means or ''}" if offer.last_code else "–"
        shown.add_row(offer.key, offer.state, until, refused, relative(offer.last_success, now), code)
    return shown


def _tried(attempts: Sequence[tuple[str, ...]], *, narrow: bool) -> RenderableType:
    names = ("attempt", "started", "took", "outcome", "cost", "worker", "why, log and fix")
    made = table(*(names[:-2] if narrow else names))
    for cells in attempts:
        made.add_row(*(cells[:-2] if narrow else cells))
    if not narrow:
        return made
    return Stacked(made, ["worker, why, log and fix", *("\n".join(filter(None, cells[-2:])) for cells in attempts)])


def _attempt(told: Attempt, now: datetime) -> tuple[str, ...]:
    took = (ago(told.started_at, now) or 0) - (ago(told.ended_at, now) or 0 if told.ended_at else 0)
    facts = [told.code, told.exit_class, told.point and f"at {told.point}"]
    why = [" ".join(fact for fact in facts if fact), told.message or told.means or "", told.log or "", told.fix or ""]
    where = f"{told.worker_id}  {told.worker}"
    said = "\n".join(one_line(line, 300) for line in why if line)
    return (str(told.number), clock(told.started_at), span(took), told.outcome, usd(told.usd), where, said)


def _held(row: Mapping[str, Any], now: datetime) -> str:
    progress = f", progress {relative(row['progress_at'], now)}" if row["progress"] else ", no progress told yet"
    return f"runs {row['task_type']} {row['id']} for {span(ago(row['started_at'], now))}{progress}"


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
    """The time of day, with its date where that is another one."""
    then = moment(value)
    if then is None:
        return "–"
    return f"{then:%H:%M:%S}" if then.date() == now.date() else clock(then)
