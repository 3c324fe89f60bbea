"""`health`: the guide's daily check. The quick part of the report, by the same rules."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from orchestrator.cli.commands.diagnose import advised, headline, hourly_cost
from orchestrator.cli.output import Output, json_option, numbers
from orchestrator.cli.progress import leave
from orchestrator.cli.report_builder import gathered
from orchestrator.cli.session import runs
from orchestrator.cli.tables import facts
from orchestrator.diagnostics.amounts import usd

COST = "Cost per hour"
NAMES = ("timestamp", "healthy", "first_cause", "missing_critical", "recommendations")
IN_DATABASE: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "Tasks in progress": lambda found: found["task_counts"].get("In Progress", 0),
    "Tasks queued": lambda found: found["task_counts"].get("Queued", 0),
    "Workers": lambda found: {name: n for name, n in found["workers_by_status"].items() if name != "terminated"},
    "Leader": lambda found: found["leader"]["holder"] if found["leader"] else "none",
    "Completed in the last hour": lambda found: sum(pool["completed_1h"] for pool in found["queue"]),
    "Spent in 24 hours": lambda found: float(found["spent"]["last_day_usd"]),
}
AT_RUNPOD: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "Pods": lambda found: found["total_pods"],
    COST: lambda found: float(found["total_hourly_cost"]),
}


@click.command()
@json_option
@click.pass_obj
@runs
async def health(output: Output) -> int:
    """Show the state of the system, what to do, and the numbers, without SSH to pods. Exit 1 if something is urgent."""
    report = await gathered(output, deep=False)
    found = dict(_numbers(report))
    if output.json:
        output.document(**{name: report[name] for name in NAMES}, numbers=found)
    else:
        known = {name: _text(value) for name, value in found.items() if value is not None}
        if COST in known:
            known[COST] = hourly_cost(report["runpod_state"])
        output.show(headline(report), *advised(report), "", facts(known))
    return leave(output, 0 if report["healthy"] else 1)


def _text(value: Any) -> str:
    """Return a number of the report as text: dollars, workers by state, or a count."""
    if isinstance(value, Mapping):
        return numbers(value) or "none"
    return usd(value) if isinstance(value, float) else str(value)


def _numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every number; None if its source does not answer."""
    for source, numbers_of in ((report["database_state"], IN_DATABASE), (report["runpod_state"], AT_RUNPOD)):
        for name, number in numbers_of.items():
            yield name, None if "error" in source else number(source)
