"""`cost`: dollars from the workers' states and the attempts on them, and the provider's bill beside them."""

import asyncio
import dataclasses
import re
from datetime import datetime, timedelta
from typing import Any

import click
from rich.table import Table

from orchestrator.cli.output import Output, clock, json_option, moment, one_line, span, usd
from orchestrator.cli.session import opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.diagnostics.cost import KINDS, Line, Reconciled, lines, reconciled
from orchestrator.errors import BAD_ARGUMENT, Failure
from orchestrator.ports import PortError

SPAN = re.compile(r"(\d{1,5})([mhdw])")
UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
HOUR = timedelta(hours=1)
PROVIDER_TIMEOUT_S = 20.0  # the rest is shown without it
ROWS = 20  # lines shown of each table; --all and --json have them all
BY = ("worker", "pool", "kind", "type", "task")


@click.command()
@click.option(
    "--since", default="24h", show_default=True, help="How far back (90m, 24h, 7d, 2w), or a time (ISO 8601)."
)
@click.option(
    "--by", type=click.Choice(BY), default="worker", show_default=True, help="What each line is; type is a task's."
)
@click.option("--all", "everything", is_flag=True, help=f"Every line, not only the {ROWS} dearest.")
@json_option
@click.pass_obj
@runs
async def cost(output: Output, since: str, by: str, everything: bool) -> None:
    """What the fleet cost, and what RunPod charged for the same hours.

    Counted from the begin of an hour, because RunPod's bill is kept by the hour. A task's share is the time of its
    attempts on a worker times that worker's price.
    """
    begin = _since(since, utcnow())
    async with opened_store() as store:
        report = await store.cost(begin)
    found = lines(report, by)
    with output.waiting("asking RunPod for its bill"):
        charged, why = await _charged(report)
    if output.json:
        content: dict[str, Any] = {name: report[name] for name in ("since", "until", "usd", "kinds", "types")}
        both = None if charged is None else _document(charged)
        output.document(**content, by=by, lines=[dataclasses.asdict(line) for line in found], bill=both, unbilled=why)
        return
    output.show(f"{usd(float(report['usd']))} from {clock(report['since'])} to {clock(report['until'])}")
    output.show(_listing(found if everything else found[:ROWS], by))
    if len(found) > ROWS and not everything:
        output.say(f"the {ROWS} dearest of {len(found)}; --all shows the rest")
    if charged is None:
        output.say(f"RunPod's bill: {why}")
        return
    output.show("", _bill(charged, everything=everything))
    if charged.foreign:
        foreign = sum(pod.theirs_usd for pod in charged.foreign)
        output.say(
            f"charged besides: {usd(foreign)} for {len(charged.foreign)} pod(s) that no worker in these books names"
        )


def _since(text: str, now: datetime) -> datetime:
    """The begin of the hour that this names. Raises Failure."""
    match = SPAN.fullmatch(text)
    try:
        begin = now - int(match[1]) * UNITS[match[2]] if match else moment(text)
    except (ValueError, OverflowError):
        begin = None
    if begin is None or begin > now:
        raise Failure(BAD_ARGUMENT, why=f"--since {text!r} is neither a span (90m, 24h, 7d, 2w) nor a time in the past")
    return begin.replace(minute=0, second=0, microsecond=0)


async def _charged(report: Any) -> tuple[Reconciled | None, str | None]:
    """The report against RunPod's bill, or why there is none."""
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


def _listing(found: tuple[Line, ...], by: str) -> Table:
    if by in {"worker", "pool"}:
        counted = ("workers",) if by == "pool" else ()
        shown = table(by, *counted, "took", "cost", *KINDS)
        for line in found:
            kinds = [usd(line.kinds.get(kind, 0.0)) for kind in KINDS]
            shown.add_row(line.name, *([str(line.count)] if counted else []), span(line.seconds), usd(line.usd), *kinds)
    elif by == "kind":
        shown = table("kind", "took", "cost")
        for line in found:
            shown.add_row(line.name, span(line.seconds), usd(line.usd, 4))
    else:
        shown = table(by, "tasks", "took", "cost", "per task", "of that wasted")
        for line in found:
            each, wasted = usd(line.usd / max(line.count, 1), 4), usd(line.wasted_usd, 4)
            shown.add_row(one_line(line.name, 80), str(line.count), span(line.seconds), usd(line.usd, 4), each, wasted)
    if not found:
        shown.add_row("nothing was spent", *[""] * (len(shown.columns) - 1))
    return shown


def _bill(charged: Reconciled, *, everything: bool) -> Table:
    shown = table("pod", "worker", "booked", "RunPod", "difference")
    for pod in charged.pods if everything else charged.pods[:ROWS]:
        both = usd(pod.ours_usd, 4), usd(pod.theirs_usd, 4)
        shown.add_row(pod.pod_id, pod.worker_id or "–", *both, _signed(pod.difference_usd))
    both = usd(charged.ours_usd, 4), usd(charged.theirs_usd, 4)
    shown.add_row("in all", "", *both, _signed(charged.theirs_usd - charged.ours_usd), style="bold")
    return shown


def _document(charged: Reconciled) -> dict[str, Any]:
    pods = [
        dataclasses.asdict(pod) | {"difference_usd": round(pod.difference_usd, 6)}
        for pod in (*charged.pods, *charged.foreign)
    ]
    sums = {"ours_usd": round(charged.ours_usd, 6), "theirs_usd": round(charged.theirs_usd, 6)}
    return {**sums, "difference_usd": round(charged.theirs_usd - charged.ours_usd, 6), "pods": pods}


def _signed(amount: float) -> str:
    return ("+" if amount >= 0 else "−") + usd(abs(amount), 4)
