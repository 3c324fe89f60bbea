"""The commands for the loop and its database: run, once, plan, pause, resume, migrate."""

import asyncio
import dataclasses
import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from orchestrator.cli.known_names import require_known
from orchestrator.cli.options import verbose_option
from orchestrator.cli.output import Output, json_option, numbers, one_line
from orchestrator.cli.session import actor, opened_store, runs, settings_for, settings_to_run
from orchestrator.cli.tables import table
from orchestrator.core import decision_text
from orchestrator.core.actions import kind_of
from orchestrator.core.blocked import line, text
from orchestrator.core.plurals import counted
from orchestrator.core.provider import place_of
from orchestrator.diagnostics.amounts import clock
from orchestrator.errors import NO_PROVIDER, Failure

if TYPE_CHECKING:
    from orchestrator.core.actions import Plan
    from orchestrator.core.model import Snapshot

OBJECTS_OF_A_SERVICE = 700  # Python's default: small collections, and short pauses
HAS_CHANGES = 2  # exit code of a plan that would act
BOOKKEEPING = ("ContinueBringUp", "Wait")  # actions that change neither the fleet nor a task


@click.command()
def run() -> int:
    """Run the orchestrator until SIGTERM or Ctrl-C.

    Several orchestrators may use one database: one leads, the others stand by. Pods keep running when it stops.
    """
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: os._exit(0)
    )  # until the service installs its own handler: nothing has begun
    settings = settings_to_run()
    from orchestrator import service

    gc.set_threshold(OBJECTS_OF_A_SERVICE, *gc.get_threshold()[1:])
    return asyncio.run(service.run(settings))


@click.command()
@verbose_option
@json_option
@click.pass_obj
def once(output: Output, verbose: bool) -> int:
    """Run one tick, wait for its actions, and stop. Exit 1 if another orchestrator leads."""
    settings = settings_to_run()
    from orchestrator import service

    made = asyncio.run(service.once(settings))
    if output.json:
        output.document(led=made is not None, **({} if made is None else _plan_json(made)))
    elif made is None:
        output.say("Another orchestrator leads; nothing was done.")
    else:
        _show_plan(output, made, verbose=verbose)
    return 1 if made is None else 0


@click.command()
@verbose_option
@json_option
@click.pass_obj
def plan(output: Output, verbose: bool) -> int:
    """Show what the next tick would do; write nothing. Exit 2 if it would act."""
    settings = settings_for("database", "cloud")
    import structlog

    from orchestrator import wiring

    # The command itself shows what the loop would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seen, made = asyncio.run(wiring.dry_run(settings))
    if seen.pods is None:
        why = f"{seen.unlisted or 'its pod list is unavailable'}; without the list, the plan would be wrong"
        raise Failure(NO_PROVIDER, why=why)
    would_act = any(type(action).__name__ not in BOOKKEEPING for action in made.actions)
    if output.json:
        output.document(would_act=would_act, observed=_seen_json(seen), **_plan_json(made))
    else:
        _show_seen(output, seen)
        _show_plan(output, made, verbose=verbose)
        if not would_act:
            output.say("The next tick would change nothing.")
    return HAS_CHANGES if would_act else 0


@click.command()
@click.option(
    "--reason",
    default="paused by the operator",
    show_default=True,
    help="Shown with each action that the pause blocks.",
)
@click.option("--pool", help="This pool only.")
@click.option(
    "--for", "minutes", type=click.FloatRange(min=0, min_open=True), help="Minutes until the pause ends by itself."
)
@json_option
@click.pass_obj
@runs
async def pause(output: Output, reason: str, pool: str | None, minutes: float | None) -> None:
    """Stop spawning. Running workers continue, and idle ones still end."""
    async with opened_store() as store:
        await require_known(store, pool=pool)
        for_s = None if minutes is None else minutes * 60
        paused = await store.pause(reason, pool=pool, for_s=for_s, actor=actor())
    _show_paused(output, reason, paused)


@click.command()
@click.option("--pool", help="This pool only; otherwise every pause ends.")
@json_option
@click.pass_obj
@runs
async def resume(output: Output, pool: str | None) -> None:
    """Spawn again."""
    async with opened_store() as store:
        await require_known(store, pool=pool)
        paused = await store.pause(None, pool=pool, actor=actor())
    _show_paused(output, None, paused)


def _plan_json(made: "Plan") -> dict[str, Any]:
    return {
        "decisions": [
            dataclasses.asdict(decision)
            | {
                "sentence": decision_text.sentence(decision.inputs, decision.target),
                "blocked": [b.as_json() | {"text": text(b)} for b in decision.blocked],
            }
            for decision in made.decisions
        ],
        "actions": [{"kind": kind_of(type(action)), **dataclasses.asdict(action)} for action in made.actions],
    }


def _seen_json(seen: "Snapshot") -> dict[str, Any]:
    return {
        "at": seen.now,
        "pods": len(seen.pods or ()),
        "pods_of_other_databases": len(seen.foreign_pods),
        "pods_missing": sorted(seen.absent),
        "workers": dict(Counter(worker.state.value for worker in seen.workers)),
        "demand": [dataclasses.asdict(demand) for demand in seen.demand],
        "paused": {pool: dataclasses.asdict(pause) for pool, pause in seen.paused.items()},
        "scale_limits": {pool: dataclasses.asdict(limit) for pool, limit in seen.scale_limits.items()},
        "spent": dataclasses.asdict(seen.spent),
    }


def _show_seen(output: Output, seen: "Snapshot") -> None:
    states = numbers(Counter(worker.state.value for worker in seen.workers)) or "none"
    output.say(f"observed: pods in the account: {len(seen.pods or ())}; workers: {states}")
    if seen.foreign_pods:
        fix = "python -m orchestrator sync"
        output.say(f"{len(seen.foreign_pods)} more of this FLEET_ID belong to another database; fix: {fix}", "yellow")
    if seen.absent:
        missing = ", ".join(sorted(seen.absent))
        output.say(f"missing from RunPod's list, and lost if lists lack them for ten seconds: {missing}", "yellow")
    for demand in seen.demand:
        blocked = numbers({why: count for why, count in demand.blocked.items() if count})
        blocked = f"; blocked: {blocked}" if blocked else ""
        output.say(f"queue {one_line(demand.pool)}: {demand.claimable} ready, {demand.running} running{blocked}")
    for pool, pause in seen.paused.items():
        until = f", until {clock(pause.until)}" if pause.until else ""
        where = "every pool" if pool == "*" else one_line(pool)
        output.say(f"spawning is paused in {where}: {one_line(pause.reason)}{until}", "yellow")
    for limit in seen.scale_limits.values():
        most = f"{counted(limit.most, 'worker')} at most in {one_line(limit.where)}, until {clock(limit.until)}"
        output.say(f"{most}: {one_line(limit.reason)}", "yellow")


def _show_plan(output: Output, made: "Plan", *, verbose: bool) -> None:
    decided: list[Text] = []
    for decision in made.decisions:
        words = decision_text.sentence(decision.inputs, decision.target)
        decided.append(Text.assemble("pool ", (one_line(decision.pool), "bold"), f": {one_line(words)}"))
        decided.append(Text(f"  workers now: {decision_text.workers(decision.inputs)}"))
        decided += [Text(f"  target: {one_line(decision.rule)}")] if verbose else []
        decided += [Text(f"  {one_line(line(reason), 400)}", style="yellow") for reason in decision.blocked]
    actions = table("action", "what", "why")
    for action in made.actions:
        facts = dataclasses.asdict(action)
        what = " ".join(str(facts[name]) for name in ("worker_id", "pod_id") if facts.get(name))
        if offer := getattr(action, "offer", None):
            what += f" on {place_of(offer.key)}"
        actions.add_row(kind_of(type(action)), what, one_line(facts.get("reason") or facts.get("waiting_for") or ""))
    output.show(*decided)
    if made.actions:
        output.show("", actions)


def _show_paused(output: Output, reason: str | None, paused: Mapping[str, Any]) -> None:
    if output.json:
        output.document(paused=reason, pools=paused)
    elif reason is None:
        still = f" Still paused: {', '.join(sorted(paused))}." if paused else ""
        output.show(f"Spawning is resumed.{still}")
    else:
        output.show(f"Spawning is paused: {one_line(reason)}")
        output.say("python -m orchestrator resume ends it.")
