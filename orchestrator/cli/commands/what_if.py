"""`what-if`: recorded tasks under each rule of scaling, replayed in virtual time. A trace is replayed here."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from orchestrator.cli.options import Choice
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import ends_if_cancelled
from orchestrator.cli.tables import table
from orchestrator.cli.trace_file import read
from orchestrator.core.economics.daily_budget import HOUR_S
from orchestrator.core.economics.outcome import ReplayOutcome, outcome
from orchestrator.core.economics.policies import ScalingPolicy, rule_for
from orchestrator.core.economics.replay import RecordedTask, Replayed, Terms, replay
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.what_if import change, percent, recommendation
from orchestrator.errors import BAD_ARGUMENT, Failure

MIN_BOOT_S, MAX_BOOT_S = 1.0, 86_400.0
MAX_WAIT_PRICE = 1_000.0
MAX_WORKERS = 1_000
MAX_USD = 1e6
DEFAULT_BOOT_S, DEFAULT_MOST = 120.0, 20
DEFAULT_SINCE = "7d"
POLICIES = [policy.value for policy in ScalingPolicy]
OF_TRACE = frozenset({"boot_s", "wait_price", "most", "usd_per_hour", "daily_usd", "policy"})
OF_HISTORY = frozenset({"since", "changes", "pool", "longer_than_s", "html"})


class Amount(click.FloatRange):
    """A number within bounds. NaN, which is within none and beyond none, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if number != number:  # noqa: PLR0124  only NaN differs from itself
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


@click.command("what-if")
@click.option("--since", default=DEFAULT_SINCE, show_default=True,
              help="From when on your queue is replayed (36h, 7d, 2w), or a time (ISO 8601).")  # fmt: skip
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE",
              help="Another value of a setting; may be repeated. Without it: the other policy.")  # fmt: skip
@click.option("--pool", metavar="P", help="Replay this pool only.")
@click.option("--longer-than", "longer_than_s", type=Amount(0, MAX_BOOT_S), default=300.0, show_default=True,
              metavar="S", help="Count the tasks that waited longer than so many seconds.")  # fmt: skip
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Also write a page with pictures.")
@click.option("--trace", metavar="CSV",
              help="Replay arrival_s,duration_s[,pool] for each task, without a database; - for stdin.")  # fmt: skip
@click.option("--boot", "boot_s", type=Amount(MIN_BOOT_S, MAX_BOOT_S), default=DEFAULT_BOOT_S, show_default=True,
              metavar="S", help="With --trace: seconds from the request for a pod until it is ready.")  # fmt: skip
@click.option("--wait-price", type=Amount(0, MAX_WAIT_PRICE), default=1.0, show_default=True, metavar="W",
              help="With --trace: what one second of a task's waiting is worth, in seconds of one GPU.")  # fmt: skip
@click.option("--max", "most", type=click.IntRange(1, MAX_WORKERS), default=DEFAULT_MOST, show_default=True,
              help="With --trace: workers that each pool may have.")  # fmt: skip
@click.option("--usd-per-hour", type=Amount(0, MAX_USD, min_open=True), metavar="P",
              help="With --trace: the price of one worker.")  # fmt: skip
@click.option("--daily-usd", type=Amount(0, MAX_USD, min_open=True), metavar="D",
              help="With --trace: spend at most so much in a day of 86,400 s; needs --usd-per-hour.")  # fmt: skip
@click.option("--policy", type=Choice(POLICIES), default=ScalingPolicy.LEARNED.value, show_default=True,
              help="With --trace: whose pods and tasks --json prints.")  # fmt: skip
@json_option
@click.pass_context
def what_if(ctx: click.Context, /, trace: str | None, **given: Any) -> None:
    """Replay recorded tasks under the present and other rules of scaling: what they cost, and how long the tasks wait.

    Without --trace, it reads your queue of the last days from the database, and compares a replay of your settings with
    what was recorded. Nothing is changed. docs/economics.md explains the rules.
    """
    others = OF_HISTORY if trace is not None else OF_TRACE
    output = ctx.ensure_object(Output)
    for param in ctx.command.params:
        if param.name in others and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            why = f"{param.opts[0]} is for a replay {'without' if trace is not None else 'with'} --trace"
            raise Failure(BAD_ARGUMENT, why=why, fix=f"leave {param.opts[0]} out")
    mine = {name: value for name, value in given.items() if name not in others}
    if trace is None:
        from orchestrator.cli.what_if_history import HistoryAsked, replay_history

        asyncio.run(ends_if_cancelled(replay_history(output, HistoryAsked(**mine))))
    else:
        _replay_trace(output, trace, **mine)


def _replay_trace(
    output: Output,
    trace: str,
    boot_s: float,
    wait_price: float,
    most: int,
    usd_per_hour: float | None,
    daily_usd: float | None,
    policy: str,
) -> None:
    """Replay a trace with the defaults of the settings, under both rules."""
    if daily_usd is not None and usd_per_hour is None:
        raise Failure(BAD_ARGUMENT, why="--daily-usd needs the price of a worker", fix="add --usd-per-hour 0.44")
    tasks = read(trace)
    terms = Terms(boot_s, most, usd_per_hour or 0.0, inf if daily_usd is None else daily_usd)
    asked = [ScalingPolicy(policy)] if output.json else [*ScalingPolicy]
    replays: dict[ScalingPolicy, Replayed] = {}
    with output.waiting(f"replaying {counted(len(tasks), 'task')}"):
        for one in asked:
            replays[one] = replay(tasks, rule_for(one, boot_s, wait_price), terms)
    outcomes = {one: outcome(tasks, done) for one, done in replays.items()}
    if output.json:
        _print_json(output, asked[0], replays[asked[0]], outcomes[asked[0]])
        return
    fixed, learned = outcomes[ScalingPolicy.FIXED], outcomes[ScalingPolicy.LEARNED]
    output.show(_table(outcomes, usd_per_hour, wait_price), _scope(tasks, terms))
    output.show(recommendation(fixed, learned, wait_price))


def _print_json(output: Output, policy: ScalingPolicy, replayed: Replayed, summed: ReplayOutcome) -> None:
    """Print what anyone needs to recompute the result: `tasks` are in the order of the trace."""
    output.document(
        policy=policy,
        outcome=asdict(summed),
        pods=[
            {"pool": one.pool, "asked": one.asked, "ready": one.ready, "ended": one.ended} for one in replayed.workers
        ],
        tasks=[{"start": one.at, "pod": one.worker} if one else {"start": None, "pod": None} for one in replayed.tasks],
    )


def _table(outcomes: Mapping[ScalingPolicy, ReplayOutcome], usd_per_hour: float | None, wait_price: float) -> Table:
    """A column for each policy, and how much more or less the second one is."""

    def amount(seconds: float) -> str:
        return span(seconds) if usd_per_hour is None else usd(seconds * usd_per_hour / HOUR_S)

    def values(one: ReplayOutcome) -> list[tuple[float | None, str]]:
        amounts = (one.gpu_s, one.most_on_a_day_gpu_s, one.cost_and_waiting_s(wait_price))
        paid, dearest, total = ((seconds, amount(seconds)) for seconds in amounts)
        waits = [(wait, span(wait)) for wait in (one.wait_p50_s, one.wait_p95_s, one.wait_max_s)]
        return [paid, dearest, (one.boots, f"{one.boots:,}"), *waits, total]

    shown = table("", *(policy.value for policy in outcomes), "change")
    names = ("GPU time" if usd_per_hour is None else "cost", "most expensive day", "boots", "wait p50", "wait p95",
             "wait max", "cost + waiting")  # fmt: skip
    for name, (before, *texts), (after, *others) in zip(names, *map(values, outcomes.values()), strict=True):
        changed = None if before is None or after is None else change(after, before)
        shown.add_row(name, *texts, *others, percent(changed))
    return shown


def _scope(tasks: Sequence[RecordedTask], terms: Terms) -> str:
    days = (tasks[-1].arrival_s - tasks[0].arrival_s) / 86_400
    budget = "" if terms.daily_usd == inf else f", at most {usd(terms.daily_usd)} a day"
    return (
        f"{counted(len(tasks), 'task')} in {days:.1f} days; a boot takes {terms.boot_s:g} s, "
        f"at most {counted(terms.most, 'worker')} per pool{budget}."
    )
