"""`health`: the guide's daily check. The quick part of the report, by the same rules."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from orchestrator.cli.commands.diagnose import advised, headline
from orchestrator.cli.output import Output, json_option, numbers, usd
from orchestrator.cli.progress import leave
from orchestrator.cli.report_builder import gathered
from orchestrator.cli.session import runs
from orchestrator.cli.tables import facts

NAMES = ("timestamp", "healthy", "missing_critical", "recommendations")


@click.command()
@json_option
@click.pass_obj
@runs
async def health(output: Output) -> int:
    """How the system is: verdict, what to do, the numbers; pods are not logged in to. Exit 1 if something is urgent."""
    report = await gathered(output, deep=False)
    found = dict(_numbers(report))
    if output.json:
        output.document(**{name: report[name] for name in NAMES}, numbers=found)
    else:
        known = {name: _text(value) for name, value in found.items() if value is not None}
        output.show(headline(report), *advised(report), "", facts(known))
    return leave(output, 0 if report["healthy"] else 1)


def _text(value: Any) -> str:
    """Return a number of the report as text: dollars, workers by state, or a count."""
    if isinstance(value, Mapping):
        return numbers(value) or "none"
    return usd(value) if isinstance(value, float) else str(value)


def _numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every number; None if its source does not answer."""
    database, runpod = report["database_state"], report["runpod_state"]
    known = "error" not in database
    counts, states = (database["task_counts"], database["workers_by_status"]) if known else ({}, {})
    yield "Tasks in progress", counts.get("In Progress", 0) if known else None
    yield "Tasks queued", counts.get("Queued", 0) if known else None
    yield "Workers", {name: n for name, n in states.items() if name != "terminated"} if known else None
    yield "Leader", (database["leader"]["holder"] if database["leader"] else "none") if known else None
    yield "Completed in the last hour", sum(pool["completed_1h"] for pool in database["queue"]) if known else None
    yield "Spent in 24 hours", float(database["spent"]["last_day_usd"]) if known else None
    known = "error" not in runpod
    yield "Pods", runpod["total_pods"] if known else None
    yield "Cost per hour", float(runpod["total_hourly_cost"]) if known else None
