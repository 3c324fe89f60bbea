"""`cost`: the cost of workers, pools, states or tasks, compared with RunPod's bill."""

import asyncio
import dataclasses
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from orchestrator.cli import options
from orchestrator.cli.output import PIPE_COLUMNS, Output, json_option, one_line
from orchestrator.cli.program import suggestion
from orchestrator.cli.session import opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import table, usd_column
from orchestrator.core.plurals import counted
from orchestrator.diagnostics import spending
from orchestrator.diagnostics.amounts import clock, moment, span, usd
from orchestrator.diagnostics.cost import KINDS, CostLine, Reconciled, lines, named_lines, reconciled
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

HOUR = timedelta(hours=1)
PROVIDER_TIMEOUT_S = 20.0  # the rest is shown without it
ROWS = 20  # lines shown of each table; --all and --json have them all
NAMED = 5  # pods in a sentence
MANY = 10_000  # lines by tenant or label, with --all or --json
BY = ("worker", "pool", "cluster", "gpu", "kind", "type", "task", "tenant")
LABEL = "label:"


def _subject(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return a word of BY, or label:KEY. Raises BadParameter."""
    if value not in BY and not (value.startswith(LABEL) and value != LABEL):
        raise click.BadParameter(f"{value!r} is none of {', '.join(BY)}, label:KEY.{suggestion(value, BY)}", ctx, param)
    return value


@click.command()
@click.option(
    "--since", default="24h", show_default=True, help="How far back (90m, 24h, 7d, 2w), or a time (ISO 8601)."
)
@click.option(
    "--by",
    callback=_subject,
    metavar=f"[{'|'.join((*BY, 'label:KEY'))}]",
    default="worker",
    show_default=True,
    help="The subject of each line; `type` is the task type.",
)
@click.option("--all", "everything", is_flag=True, help=f"Every line, not only the {ROWS} most expensive.")
@json_option
@click.pass_obj
@runs
async def cost(output: Output, since: str, by: str, everything: bool) -> None:
    """Show the cost of the fleet, and RunPod's bill for the same hours.

    The time begins at a full hour, because RunPod bills by the hour. The cost of a task is the time of its attempts
    times the price of their workers.
    """
    begin = options.since(since, utcnow()).replace(minute=0, second=0, microsecond=0)
    async with opened_store() as store:
        report = await store.cost(begin)
        found = await _lines(store, report, by, begin)
    with output.waiting("asking RunPod for its bill"):
        charged, why = await _charged(report)
    if output.json:
        content: dict[str, Any] = {name: report[name] for name in ("since", "until", "usd", "kinds", "types")}
        content["bought"] = report.get("bought")
        both = None if charged is None else _document(charged)
        output.document(**content, by=by, lines=[dataclasses.asdict(line) for line in found], bill=both, unbilled=why)
        return
    output.show(f"{usd(float(report['usd']))} from {clock(report['since'])} to {clock(report['until'])}")
    if not found:
        output.show("No task ran: workers started, waited or ended." if float(report["usd"]) else "Nothing was spent.")
    listed = _listing(found if everything else found[:ROWS], by.removeprefix(LABEL))
    natural = output.out.measure(listed, options=output.out.options.update_width(PIPE_COLUMNS)).maximum
    if output.out.is_terminal and natural > output.out.width:
        listed.padding = (0, 1, 0, 0)  # the columns are closer to each other
    if found:
        output.show(listed)
    if words := spending.bought(report):
        output.show(words)
    if len(found) > ROWS and not everything:
        output.say(f"the {ROWS} most expensive of {len(found)}; --all shows the rest")
    if charged is None:
        output.say(f"RunPod's bill: {why}")
        return
    output.show("", _bill(charged, everything=everything))
    if charged.unbooked:
        output.say(_unbooked(charged))


async def _lines(store: "SqlStore", report: Any, by: str, begin: datetime) -> tuple[CostLine, ...]:
    if by == "tenant" or by.startswith(LABEL):
        return named_lines((await store.find.cost_by(by, begin, MANY))["lines"], by)
    return lines(report, by)


async def _charged(report: Any) -> tuple[Reconciled | None, str | None]:
    """Compare the report with RunPod's bill, or return why there is none."""
    settings = settings_for("database")
    if settings.runpod_api_key is None:
        return None, "not asked: RUNPOD_API_KEY is not set"
    from orchestrator import wiring

    cloud = wiring.open_cloud(settings)
    since, until = moment(report["since"]), moment(report["until"])
    assert since is not None and until is not None  # noqa: S101, PT018  the database says both
    try:
        async with asyncio.timeout(PROVIDER_TIMEOUT_S):
            return reconciled(report, await cloud.billing(since, until + HOUR)), None
    except TimeoutError:
        return None, f"RunPod did not answer within {PROVIDER_TIMEOUT_S:.0f} s"
    except PortError as error:
        return None, f"{type(error).__name__}: {one_line(str(error))}"
    finally:
        await cloud.close()


def _listing(found: tuple[CostLine, ...], by: str) -> Table:
    """Return the lines, each column of money with one precision."""
    took, spent = [span(line.seconds) for line in found], usd_column([line.usd for line in found])
    names = [one_line(line.name, 80) for line in found]
    counts = [f"{line.count:,}" if line.count else "–" for line in found]
    if by in {"worker", "pool", "cluster", "gpu"}:
        of_kinds = [usd_column([line.kinds.get(kind, 0.0) for line in found]) for kind in KINDS]
        counted = {} if by == "worker" else {"workers": counts}
        columns = {by: names, **counted, "took": took, "cost": spent, **dict(zip(KINDS, of_kinds, strict=True))}
    elif by == "kind":
        columns = {"kind": names, "took": took, "cost": spent}
    else:
        each = usd_column([line.usd / max(line.count, 1) for line in found])
        each = [cell if line.count else "–" for cell, line in zip(each, found, strict=True)]
        wasted = usd_column([line.wasted_usd for line in found])
        columns = {by: names, "tasks": counts, "took": took, "cost": spent, "per task": each, "of that wasted": wasted}
    shown = table(*columns)
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*row)
    return shown


def _bill(charged: Reconciled, *, everything: bool) -> Table:
    shown = table("pod", "worker", "booked", "RunPod", "difference")
    pods = charged.pods if everything else charged.pods[:ROWS]
    ours = usd_column([*(pod.ours_usd for pod in pods), charged.ours_usd])
    theirs = usd_column([*(pod.theirs_usd for pod in pods), charged.theirs_usd])
    wider = [*(pod.difference_usd for pod in pods), charged.theirs_usd - charged.ours_usd]
    signs = [("+" if amount >= 0 else "−") for amount in wider]
    differ = [sign + text for sign, text in zip(signs, usd_column([abs(one) for one in wider]), strict=True)]
    for number, pod in enumerate(pods):
        shown.add_row(pod.pod_id, pod.worker_id or "–", ours[number], theirs[number], differ[number])
    shown.add_row("in all", "", ours[-1], theirs[-1], differ[-1], style="bold")
    return shown


def _unbooked(charged: Reconciled) -> str:
    """Say what RunPod charged for pods that have no cost in these hours: other programs' pods, or leaks."""
    sums = usd(sum(pod.theirs_usd for pod in charged.unbooked))
    named = [f"{one_line(pod.pod_id, 80)} {usd(pod.theirs_usd)}" for pod in charged.unbooked[:NAMED]]
    more = len(charged.unbooked) - len(named)
    return (
        f"RunPod also charged {sums} for {counted(len(charged.unbooked), 'pod')} without a cost in our records of "
        f"these hours: {', '.join(named)}{f' and {more} more' if more else ''}. If `orchestrator status <pod>` finds a "
        "worker that has ended, its pod is still charged"
    )


def _document(charged: Reconciled) -> dict[str, Any]:
    pods = [
        dataclasses.asdict(pod) | {"difference_usd": round(pod.difference_usd, 6)}
        for pod in (*charged.pods, *charged.unbooked)
    ]
    sums = {"ours_usd": round(charged.ours_usd, 6), "theirs_usd": round(charged.theirs_usd, 6)}
    return {**sums, "difference_usd": round(charged.theirs_usd - charged.ours_usd, 6), "pods": pods}
