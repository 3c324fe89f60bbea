"""`what-if` over the database: the user's own queue, with the settings in force and with others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

from rich.table import Table

from orchestrator.cli import options
from orchestrator.cli.known_names import require_known
from orchestrator.cli.output import Output
from orchestrator.cli.program import suggestion
from orchestrator.cli.session import opened_store, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.scaling_settings import ScalingSettings, settings_of
from orchestrator.core.economics.scenarios import RecordedTime, ReplayedScenario, Settings, with_changes
from orchestrator.core.economics.what_if import FleetFigures, error
from orchestrator.core.plurals import counted
from orchestrator.core.policy import PoolKind
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.what_if import Judged, advice, change, percent, trust
from orchestrator.errors import BAD_ARGUMENT, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.economics_store import RecordedWindow

MAX_RUNS = 200_000  # the newest ones
MAX_CHANGES = 32
PRICED = 3  # pools whose boot time and price are named
YOURS, SET = "your settings", "with --set"


@dataclass(frozen=True, slots=True)
class HistoryAsked:
    """What the options ask for."""

    since: str
    changes: Sequence[str]
    pool: str | None
    longer_than_s: float
    html: str | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The records, a replay of the settings in force, and one of others."""

    time: RecordedTime
    recorded: FleetFigures
    present: ReplayedScenario
    other: ReplayedScenario
    changes: Mapping[str, str]  # names and values of --set
    notes: Sequence[str]  # what was left out


async def replay_history(output: Output, asked: HistoryAsked) -> None:
    """Replay what the database has recorded, and show it. Raises Failure, PortError."""
    given, changed = changes_of(asked.changes)
    begin = options.since(asked.since, utcnow())
    settings = settings_for("database")
    policy = settings.policy()
    in_force = {one.name: settings_of(one, policy) for one in policy.pools if one.kind is PoolKind.QUEUE}
    async with opened_store() as store:
        if asked.pool is not None:
            await require_known(store, pool=asked.pool)
        with output.waiting("reading what was recorded"):
            window = await store.economics.window(begin, pool=asked.pool, most=MAX_RUNS)
    time, notes = _replayable(window, in_force, asked)
    chosen = {one.pool: in_force[one.pool] for one in time.histories}
    count = sum(len(one.tasks) for one in time.histories)
    if not count:
        _show_nothing(output, window, notes)
        return
    name, others = (SET, with_changes(chosen, changed)) if changed else _other_policy(chosen)
    with output.waiting(f"replaying {counted(count, 'task')} twice"):
        present, other = time.replayed(YOURS, chosen), time.replayed(name, others)
    found = Compared(time, time.recorded(), present, other, given, notes)
    if output.json:
        output.document(**document(found))
    else:
        _show(output, found)
    if asked.html is not None:
        from orchestrator.cli.what_if_file import write_page

        with output.waiting("replaying wait prices from 0.1 to 10"):
            write_page(asked.html, found)
        output.say(f"The picture is in {asked.html}.")


def changes_of(texts: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """Return the names and values of --set as given, and as fields of ScalingSettings. Raises Failure."""
    from orchestrator.config.what_if_settings import known_settings, value_of

    names = ", ".join(known_settings())
    given = options.labels(texts, "--set", MAX_CHANGES)
    changed = {}
    for name, text in given.items():
        if name not in known_settings():
            why = f"a replay knows no setting {name!r}.{suggestion(name, known_settings())}"
            raise Failure(BAD_ARGUMENT, what="--set cannot be used", why=why, fix=f"set one of {names}")
        try:
            field, value = value_of(name, text)
        except ValueError as refused:
            what = f"--set {name} has no value that it may have"
            raise Failure(BAD_ARGUMENT, what=what, why=str(refused), fix="see docs/settings.md") from None
        changed[field] = value
    return given, changed


def _replayable(
    window: "RecordedWindow", in_force: Settings, asked: HistoryAsked
) -> tuple[RecordedTime, Sequence[str]]:
    """Return the pools that can be replayed, and what is left out."""
    known = [one for one in window.pools if one.pool in in_force]
    foreign = {one.pool: counted(len(one.tasks), "task") for one in window.pools if one.pool not in in_force}
    notes = [f"Pool {name} is no queue pool of these settings: {tasks} left out." for name, tasks in foreign.items()]
    if left_out := sum(one.left_out for one in known):
        notes.append(
            f"{counted(left_out, 'attempt')} left out: the task arrived before this time, or its times cannot be true."
        )
    if window.is_cut:
        notes.append(f"Only the newest {MAX_RUNS:,} attempts are replayed.")
    return RecordedTime(known, window.since, window.until, asked.longer_than_s), notes


def _other_policy(settings: Settings) -> tuple[str, Settings]:
    """Return the other policy than the one in force, with which the settings in force are compared."""
    is_learned = all(one.scaling_policy is ScalingPolicy.LEARNED for one in settings.values())
    other = ScalingPolicy.FIXED if is_learned else ScalingPolicy.LEARNED
    return other.value, with_changes(settings, {"scaling_policy": other})


def _show_nothing(output: Output, window: "RecordedWindow", notes: Sequence[str]) -> None:
    begin = _moment(window.since)
    if output.json:
        output.document(since=begin, until=_moment(window.until), tasks=0, rows=[], recommendation=None, notes=notes)
        return
    output.show(f"No task that arrived since {begin:%Y-%m-%d %H:%M} UTC has ended: there is nothing to replay.", *notes)


def _show(output: Output, found: Compared) -> None:
    before, after = found.present, found.other
    output.show(trust(before.figures, found.recorded))
    if found.changes:
        output.show(f"{SET}: {', '.join(f'{name}={value}' for name, value in found.changes.items())}")
    output.show("", _table(found), "", _scope(found), *found.notes)
    output.show(advice(Judged.of_figures(before.name, before.figures), Judged.of_figures(_name(found), after.figures)))


def _name(found: Compared) -> str:
    """Return the name of the other settings, as a recommendation has it."""
    return " ".join(f"{name}={value}" for name, value in found.changes.items()) or found.other.name


def _table(found: Compared) -> Table:
    """A column for the records, for each replay, and for the change between these two."""
    before, after = found.present, found.other
    shown = table("", "recorded", before.name, after.name, "change")
    columns = [_cells(one, found.time.longer_than_s) for one in (found.recorded, before.figures, after.figures)]
    for name in columns[0]:
        (_, was), (old, is_now), (new, would_be) = (column[name] for column in columns)
        changed = None if old is None or new is None else change(new, old)
        shown.add_row(name, was, is_now, would_be, percent(changed))
    return shown


def _cells(one: FleetFigures, longer_than_s: float) -> dict[str, tuple[float | None, str]]:
    """Return each figure with its text."""
    waits = one.waits
    return {
        "cost": (one.usd, usd(one.usd)),
        "most expensive day": (one.most_on_a_day_usd, usd(one.most_on_a_day_usd)),
        "boots": (one.boots, f"{one.boots:,}"),
        "wait p50": (waits.p50_s, span(waits.p50_s)),
        "wait p95": (waits.p95_s, span(waits.p95_s)),
        "wait max": (waits.max_s, span(waits.max_s)),
        f"waited more than {span(longer_than_s)}": (waits.longer, f"{waits.longer:,}"),
        "not run": (one.unrun, f"{one.unrun:,}"),
    }


def _scope(found: Compared) -> str:
    """Say what was replayed, and what the replay assumes of each pool."""
    count = sum(len(one.tasks) for one in found.time.histories)
    times = f"{_moment(found.time.since):%Y-%m-%d %H:%M} to {_moment(found.time.until):%Y-%m-%d %H:%M} UTC"
    pools = "; ".join(
        f"pool {one.history.pool}: a boot takes {span(one.history.boot_s)}"
        + ("" if one.history.costs.boot_s is not None else " (none was recorded)")
        + (f", a worker costs {usd(one.usd_per_hour)}/h" if one.usd_per_hour else ", no price was recorded")
        for one in found.present.pools[:PRICED]
    )
    more = len(found.present.pools) - PRICED
    rest = f"; {counted(more, 'more pool')}" if more > 0 else ""
    return f"{counted(count, 'task')} from {times}; {pools}{rest}."


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, 0.0), 1e11), UTC) if seconds < inf else datetime.now(UTC)


def document(found: Compared) -> dict[str, Any]:
    """Return the answer of --json; docs/schemas/what-if.json describes it."""
    before, recorded = found.present.figures, found.recorded
    rows = {
        "recorded": (recorded, None),
        "present": (before, found.present),
        "other": (found.other.figures, found.other),
    }
    return {
        "since": _moment(found.time.since),
        "until": _moment(found.time.until),
        "tasks": sum(len(one.tasks) for one in found.time.histories),
        "longer_than_s": found.time.longer_than_s,
        "changes": dict(found.changes),
        "error": {
            "usd_share": error(before.usd, recorded.usd),
            "boots_share": error(before.boots, recorded.boots),
            "wait_p95_share": error(before.waits.p95_s, recorded.waits.p95_s),
        },
        "rows": [_row(name, figures, scenario) for name, (figures, scenario) in rows.items()],
        "recommendation": advice(
            Judged.of_figures(found.present.name, before), Judged.of_figures(_name(found), found.other.figures)
        ),
        "notes": list(found.notes),
    }


def _row(name: str, one: FleetFigures, scenario: ReplayedScenario | None) -> dict[str, Any]:
    return {
        "name": name,
        "settings": None if scenario is None else {pool: _written(each) for pool, each in scenario.settings.items()},
        "usd": one.usd,
        "boots": one.boots,
        "wait_p50_s": one.waits.p50_s,
        "wait_p95_s": one.waits.p95_s,
        "wait_max_s": one.waits.max_s,
        "waited_s": one.waited_s,
        "waited_longer": one.waits.longer,
        "most_on_a_day_usd": one.most_on_a_day_usd,
        "not_run": one.unrun,
    }


def _written(one: ScalingSettings) -> dict[str, Any]:
    """Return the values by the names of the settings."""
    from orchestrator.config.what_if_settings import known_settings

    values = asdict(one)
    return {name: values[field] for name, (field, _) in known_settings().items()}
