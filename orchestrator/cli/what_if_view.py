"""A comparison of `what-if` in words and numbers, for the terminal, for --json and for its page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.cli.tables import usd_column
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.scenarios import RecordedTime, ReplayedScenario
from orchestrator.core.economics.what_if import FleetFigures, error
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.what_if import Judged, advice, change, percent

PRICED = 3  # pools whose boot time and price are named
YOURS, SET = "your settings", "with --set"


@dataclass(frozen=True, slots=True)
class Compared:
    """The records, a replay of the settings in force, and one of others."""

    time: RecordedTime
    recorded: FleetFigures
    present: ReplayedScenario
    other: ReplayedScenario
    changes: Mapping[str, str]  # names and values of --set
    notes: Sequence[str]  # what was left out

    @property
    def tasks(self) -> int:
        """Return how many tasks are replayed."""
        return sum(len(one.tasks) for one in self.time.histories)

    @property
    def advice(self) -> str:
        """Return the recommendation, or the trade-off."""
        before, after = self.present, self.other
        name = written(self.changes, " ") or after.name
        return advice(Judged.of_figures(before.name, before.figures), Judged.of_figures(name, after.figures))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the heads of the table."""
        return ("", "recorded", self.present.name, self.other.name, "change")

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return a line for each figure: the records, both replays, and the change between these."""
        all_figures = (self.recorded, self.present.figures, self.other.figures)
        found = []
        for name, numbers, texts in _lines(all_figures, self.time.longer_than_s):
            _, before, after = numbers
            changed = None if before is None or after is None else change(after, before)
            found.append((name, [*texts, percent(changed)]))
        return found


def written(changes: Mapping[str, str], between: str) -> str:
    """Return NAME=VALUE of each change."""
    return between.join(f"{name}={value}" for name, value in changes.items())


def _lines(columns: Sequence[FleetFigures], longer_than_s: float) -> list[tuple[str, list[float | None], list[str]]]:
    """Return each figure's name, its numbers, and its texts."""
    costs, days = [one.usd for one in columns], [one.most_on_a_day_usd for one in columns]
    counts = {
        "boots": [one.boots for one in columns],
        f"waited more than {span(longer_than_s)}": [one.waits.longer for one in columns],
        "not run": [one.unrun for one in columns],
    }
    waits = {
        "wait p50": [one.waits.p50_s for one in columns],
        "wait p95": [one.waits.p95_s for one in columns],
        "wait max": [one.waits.max_s for one in columns],
    }
    lines: list[tuple[str, list[float | None], list[str]]] = [
        ("cost", [*costs], usd_column(costs)),
        ("most expensive day", [*days], usd_column(days)),
    ]
    lines += [(name, [*values], [span(value) for value in values]) for name, values in waits.items()]
    of_counts: list[tuple[str, list[float | None], list[str]]] = [
        (name, [*map(float, values)], [f"{one:,}" for one in values]) for name, values in counts.items()
    ]
    lines += [one for one in of_counts if one[0] != "not run" or any(one[1])]
    return lines


def scope(found: Compared) -> str:
    """Say what was replayed, and what the replay assumes of each pool."""
    times = f"{moment_of(found.time.since):%Y-%m-%d %H:%M} to {moment_of(found.time.until):%Y-%m-%d %H:%M} UTC"
    pools = "; ".join(
        f"pool {one.history.pool}: a boot takes {span(one.history.boot_s)}"
        + ("" if one.history.costs.boot_s is not None else " (none was recorded)")
        + (f", a worker costs {usd(one.usd_per_hour)}/h" if one.usd_per_hour else ", no price was recorded")
        for one in found.present.pools[:PRICED]
    )
    more = len(found.present.pools) - PRICED
    rest = f"; {counted(more, 'more pool')}" if more > 0 else ""
    return f"{counted(found.tasks, 'task')} from {times}; {pools}{rest}."


def moment_of(seconds: float) -> datetime:
    """Return the time of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def document(found: Compared) -> dict[str, Any]:
    """Return the answer of --json; docs/schemas/what-if.json describes it."""
    before, recorded = found.present.figures, found.recorded
    rows = {
        "recorded": (recorded, None),
        "present": (before, found.present),
        "other": (found.other.figures, found.other),
    }
    return {
        "since": moment_of(found.time.since),
        "until": moment_of(found.time.until),
        "tasks": found.tasks,
        "longer_than_s": found.time.longer_than_s,
        "changes": dict(found.changes),
        "error": {
            "usd_share": error(before.usd, recorded.usd),
            "boots_share": error(before.boots, recorded.boots),
            "wait_p95_share": error(before.waits.p95_s, recorded.waits.p95_s),
        },
        "rows": [_row(name, figures, scenario) for name, (figures, scenario) in rows.items()],
        "recommendation": found.advice,
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
