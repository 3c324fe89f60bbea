"""`scale`: fewer workers for a time than MAX_ACTIVE_GPUS allows, and the rule that decides how many there are."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from orchestrator.cli import options
from orchestrator.cli.known_names import require_known
from orchestrator.cli.options import Choice
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import actor, opened_store, runs, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import clock
from orchestrator.errors import BAD_ARGUMENT, Failure

MAX_WORKERS = 100_000
POLICIES = [rule.value for rule in ScalingPolicy]
SETTINGS = "settings"  # no choice of an operator's


@click.group()
def scale() -> None:
    """Limit the number of workers for a time, and choose the rule that decides it."""


@scale.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the limits and the choices of a rule in force."""
    async with opened_store() as store:
        limits, policies = await store.scale_limits(), await store.scaling_policies()
    if output.json:
        output.document(limits=limits, policies=policies)
        return
    _show(output, limits, "" if limits else "No limit is in force.")
    _show_policies(output, policies)


@scale.command()
@click.option("--max", "most", type=click.IntRange(1, MAX_WORKERS), required=True, help="Live workers at most.")
@click.option("--pool", help="This pool only; otherwise all pools together.")
@click.option("--for", "lasts", metavar="SPAN", help="How long: 30m, 2h, 1d.")
@click.option("--until", metavar="TIME", help="The next such time (18:00, UTC), or ISO 8601.")
@click.option("--reason", default="limited by the operator", show_default=True, help="Shown with what it blocks.")
@json_option
@click.pass_obj
@runs
async def limit(output: Output, most: int, pool: str | None, lasts: str | None, until: str | None, reason: str) -> None:
    """Allow at most so many workers for a time. It ends by itself, and never allows more than MAX_ACTIVE_GPUS.

    Busy workers continue. Workers beyond the limit end when they are idle, and starting ones at once.
    """
    now = utcnow()
    for_s = (_end(lasts, until, now) - now).total_seconds()
    if for_s <= 0:
        raise Failure(BAD_ARGUMENT, why="the end of the limit has passed")
    async with opened_store() as store:
        await require_known(store, pool=pool)
        limits = await store.limit_workers(most, reason, pool=pool, for_s=for_s, actor=actor())
    _show(output, limits, f"{_where(pool or EVERY_POOL)} may have {counted(most, 'worker')} at most.")


@scale.command()
@click.option("--pool", help="This pool only; otherwise every limit ends.")
@json_option
@click.pass_obj
@runs
async def unlimit(output: Output, pool: str | None) -> None:
    """End a limit before its time."""
    async with opened_store() as store:
        await require_known(store, pool=pool)
        limits = await store.limit_workers(None, pool=pool, actor=actor())
    _show(output, limits, f"The limit of pool {one_line(pool)} is over." if pool else "No limit is in force.")


@scale.command()
@click.argument("rule", type=Choice([*POLICIES, SETTINGS]))
@click.option("--pool", help="This pool only; otherwise every pool without a choice of its own.")
@json_option
@click.pass_obj
@runs
async def policy(output: Output, rule: str, pool: str | None) -> None:
    """Choose the rule that decides how many workers a pool has: fixed or learned. The next tick follows it.

    It is in force until another choice; `settings` ends it, without --pool in every pool: then SCALING_POLICY decides.
    """
    async with opened_store() as store:
        await require_known(store, pool=pool)
        policies = await store.choose_policy(None if rule == SETTINGS else rule, pool=pool, actor=actor())
    if output.json:
        output.document(policies=policies)
        return
    _show_policies(output, policies)


def _show_policies(output: Output, policies: Mapping[str, Any]) -> None:
    if not policies:
        output.show("The settings decide the rule of every pool.")
        return
    for pool, rule in sorted(policies.items()):
        where = "Every pool without a choice of its own" if pool == EVERY_POOL else f"Pool {one_line(pool)}"
        output.show(f"{where} follows the rule {one_line(rule)}, chosen by an operator.")
    output.say("python -m orchestrator scale policy settings ends every choice.")


def _end(lasts: str | None, until: str | None, now: datetime) -> datetime:
    """Return when the limit ends. Raises Failure."""
    if (lasts is None) == (until is None):
        raise Failure(BAD_ARGUMENT, why="a limit ends by itself: give either --for or --until")
    if until is None:
        return options.later(lasts or "", now, "--for")
    try:
        clock_time = datetime.strptime(until, "%H:%M").replace(tzinfo=UTC).timetz()
    except ValueError:
        return options.later(until, now, "--until")
    today = datetime.combine(now, clock_time)
    return today if today > now else today + timedelta(days=1)


def _show(output: Output, limits: Mapping[str, Any], done: str) -> None:
    if output.json:
        output.document(limits=limits)
        return
    if done:
        output.show(done)
    if limits:
        shown = table("limit of", "workers at most", "until", "reason")
        for pool, one in sorted(limits.items()):
            shown.add_row(_where(pool), str(one["most"]), clock(one["until"]), one_line(one["reason"]))
        output.show(shown)
        output.say("python -m orchestrator scale unlimit ends them earlier.")


def _where(pool: str) -> str:
    return "The whole fleet" if pool == EVERY_POOL else f"Pool {one_line(pool)}"
