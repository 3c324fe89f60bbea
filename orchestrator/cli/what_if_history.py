"""`what-if` over the database: the user's own queue, with the settings in force and with others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli import options
from orchestrator.cli.known_names import require_known
from orchestrator.cli.output import Output
from orchestrator.cli.program import suggestion
from orchestrator.cli.session import opened_store, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.cli.what_if_view import SET, YOURS, Compared, document, moment_of, scope, written
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.scenarios import RecordedTime, Settings, with_changes
from orchestrator.core.plurals import counted
from orchestrator.core.replay_settings import queue_pools, with_choices
from orchestrator.diagnostics.what_if import trust
from orchestrator.errors import BAD_ARGUMENT, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.economics_store import RecordedWindow

MAX_RUNS = 200_000  # the newest ones
MAX_CHANGES = 32


@dataclass(frozen=True, slots=True)
class HistoryAsked:
    """What the options ask for."""

    since: str
    changes: Sequence[str]
    pool: str | None
    longer_than_s: float
    html: str | None


async def replay_history(output: Output, asked: HistoryAsked) -> None:
    """Replay what the database has recorded, and show it. Raises Failure, PortError."""
    given, changed = changes_of(asked.changes)
    begin = options.since(asked.since, utcnow())
    settings = settings_for("database")
    async with opened_store() as store:
        if asked.pool is not None:
            await require_known(store, pool=asked.pool)
        with output.waiting("reading what was recorded"):
            window = await store.economics.window(begin, pool=asked.pool, most=MAX_RUNS)
            pools = queue_pools(settings.policy(), moment_of(window.since), moment_of(window.until))
            in_force = with_choices(pools, await store.economics.chosen_policies())
    time, notes = _replayable(window, in_force, asked)
    chosen = {one.pool: in_force[one.pool] for one in time.histories}
    count = sum(len(one.tasks) for one in time.histories)
    if not count:
        _show_nothing(output, asked, window, notes)
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


def _show_nothing(output: Output, asked: HistoryAsked, window: "RecordedWindow", notes: Sequence[str]) -> None:
    begin = moment_of(window.since)
    if output.json:
        times = {"since": begin, "until": moment_of(window.until), "longer_than_s": asked.longer_than_s}
        output.document(**times, tasks=0, changes={}, error=None, rows=[], recommendation=None, notes=notes)
        return
    output.show(f"No task that arrived since {begin:%Y-%m-%d %H:%M} UTC has ended: there is nothing to replay.", *notes)


def _show(output: Output, found: Compared) -> None:
    output.show(trust(found.present.figures, found.recorded))
    if found.changes:
        output.show(f"{SET}: {written(found.changes, ', ')}")
    shown = table(*found.columns)
    for name, texts in found.rows():
        shown.add_row(name, *texts)
    output.show("", shown, "", scope(found), *found.notes, found.advice)
