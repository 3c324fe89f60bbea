"""`health`: the guide's daily check. The quick part of the report, by the same rules."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from orchestrator.cli.commands.diagnose import advised, verdict
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
    told = dict(_numbers(report))
    if output.json:
        output.document(**{name: report[name] for name in NAMES}, numbers=told)
    else:
        output.show(verdict(report), *advised(report), "", facts(told))
    return leave(output, 0 if report["healthy"] else 1)


def _numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    database, runpod = report["database_state"], report["runpod_state"]
    if "error" not in database:
        counts = database["task_counts"]
        yield "Tasks in progress", str(counts.get("In Progress", 0))
        yield "Tasks queued", str(counts.get("Queued", 0))
        live = {name: count for name, count in database["workers_by_status"].items() if name != "terminated"}
        yield "Workers", numbers(live) or "none"
        yield "Leader", database["leader"]["holder"] if database["leader"] else "nobody leads"
        yield "Completed in the last hour", str(sum(pool["completed_1h"] for pool in database["queue"]))
        yield "Spent in 24 hours", usd(float(database["spent"]["last_day_usd"]))
    if "error" not in runpod:
        yield "Pods", f"{runpod['total_pods']}, {usd(runpod['total_hourly_cost'])}/h"
