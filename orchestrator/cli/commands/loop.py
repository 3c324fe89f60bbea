"""The commands about the loop itself and its database: run, once, plan, pause, resume, migrate."""

import asyncio
import dataclasses
import os
import signal
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from orchestrator.cli.output import Output, clock, json_option, numbers, one_line
from orchestrator.cli.session import opened_store, runs, settings_for
from orchestrator.core.actions import kind_of
from orchestrator.core.blocked import line, text
from orchestrator.errors import BAD_ARGUMENT, NO_PROVIDER, OLD_SCHEMA, Failure
from orchestrator.ports import SchemaMismatch

if TYPE_CHECKING:
    from orchestrator.core.actions import Plan
    from orchestrator.core.model import Snapshot
    from orchestrator.migrate import MigrationReport

HAS_CHANGES = 2  # exit code of a plan that would act
BOOKKEEPING = ("ContinueBringUp", "Wait")  # actions that change neither the fleet nor a task
PUSH = (
    "repeat this command with DATABASE_URL set to the project's session pooler (Supabase: Connect, port 5432), or "
    "apply what it prints with --sql (`supabase db push`)"
)


@click.command()
def run() -> int:
    """Run the orchestrator until SIGTERM or Ctrl-C.

    Several may run on one database: one leads, the others stand by. Stopping it leaves the pods alone.
    """
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: os._exit(0)
    )  # until the service has its own: nothing has begun
    settings = settings_for("database", "cloud", "shell", "blobs", "gateway")
    from orchestrator import service

    return asyncio.run(service.run(settings))


@click.command()
@json_option
@click.pass_obj
def once(output: Output) -> int:
    """Run one tick, wait for its effects, stop. Exit 1 if another orchestrator leads."""
    settings = settings_for("database", "cloud", "shell", "blobs", "gateway")
    from orchestrator import service

    made = asyncio.run(service.once(settings))
    if output.json:
        output.document(led=made is not None, **({} if made is None else _plan_json(made)))
    elif made is None:
        output.say("Another orchestrator leads; nothing was done.")
    else:
        _show_plan(output, made)
    return 1 if made is None else 0


@click.command()
@json_option
@click.pass_obj
def plan(output: Output) -> int:
    """Show what the next tick would do; write nothing. Exit 2 if it would act."""
    settings = settings_for("database", "cloud")
    from orchestrator import wiring

    seen, made = asyncio.run(wiring.dry_run(settings))
    if seen.pods is None:
        raise Failure(NO_PROVIDER, why="RunPod gave no complete list of pods, so a plan would be a guess")
    would_act = any(type(action).__name__ not in BOOKKEEPING for action in made.actions)
    if output.json:
        output.document(would_act=would_act, observed=_seen_json(seen), **_plan_json(made))
    else:
        _show_seen(output, seen)
        _show_plan(output, made)
        if not would_act:
            output.say("The next tick would change nothing.")
    return HAS_CHANGES if would_act else 0


@click.command()
@click.option("--reason", default="paused by the operator", show_default=True, help="Shown wherever it is felt.")
@click.option("--pool", help="This pool only.")
@click.option("--for", "minutes", type=click.FloatRange(min=0, min_open=True), help="Minutes until it ends by itself.")
@json_option
@click.pass_obj
@runs
async def pause(output: Output, reason: str, pool: str | None, minutes: float | None) -> None:
    """Stop spawning; running workers go on, idle ones still end."""
    async with opened_store() as store:
        paused = await store.pause(reason, pool=pool, for_s=None if minutes is None else minutes * 60)
    _show_paused(output, reason, paused)


@click.command()
@click.option("--pool", help="This pool only; otherwise every pause ends.")
@json_option
@click.pass_obj
@runs
async def resume(output: Output, pool: str | None) -> None:
    """Spawn again."""
    async with opened_store() as store:
        paused = await store.pause(None, pool=pool)
    _show_paused(output, None, paused)


@click.command()
@click.option("--requeue-held", is_flag=True, help="Queue tasks again that are In Progress and that no worker holds.")
@click.option("--sql", is_flag=True, help="Change nothing: print the SQL that the database lacks, as one file.")
@json_option
@click.pass_obj
def migrate(output: Output, requeue_held: bool, sql: bool) -> None:
    """Bring the database's schema up to this version; safe to repeat, and safe beside a running orchestrator.

    Tasks In Progress that no worker holds are listed. --requeue-held queues them again: use it if no program of yours
    works on them.

    --sql prints one file for `supabase db push` or the SQL editor: what the database at DATABASE_URL lacks or, without
    DATABASE_URL, the whole schema.

    Without DATABASE_URL and --sql, the schema behind SUPABASE_URL is looked at: exit 4 if it is missing or older.
    """
    if sql:
        click.echo(asyncio.run(_missing_sql()), nl=False)  # as it is: no markup, no redaction
        return
    url = settings_for("database").database_url
    from orchestrator.migrate import migrate as bring_up

    if requeue_held and not url:
        raise Failure(BAD_ARGUMENT, why="--requeue-held needs a connection to the database", fix="set DATABASE_URL")
    report = asyncio.run(bring_up(url.get_secret_value(), requeue_held=requeue_held) if url else _look_at_schema())
    if output.json:
        output.document(applied=report.applied, notes=report.notes)
        return
    for version in report.applied:
        output.show(f"applied {version}")
    for note in report.notes:
        output.say(note)
    if not report.applied:
        output.show("The schema is up to date.")


async def _missing_sql() -> str:
    """The SQL file for the database at DATABASE_URL, or for a new one."""
    from orchestrator.migrate import missing_sql

    url = settings_for().database_url
    return await missing_sql(url.get_secret_value() if url else None, datetime.now(UTC))


async def _look_at_schema() -> "MigrationReport":
    """What is behind SUPABASE_URL, whose API makes no tables. Raises Failure where it will not do for this version."""
    from orchestrator.migrate import looked_at

    try:
        async with opened_store() as store:
            return looked_at(await store.check_functions())
    except SchemaMismatch as error:
        raise Failure(OLD_SCHEMA, why=str(error).partition("; fix: ")[0], fix=PUSH) from None


def _plan_json(made: "Plan") -> dict[str, Any]:
    return {
        "decisions": [
            dataclasses.asdict(decision) | {"blocked": [b.as_json() | {"text": text(b)} for b in decision.blocked]}
            for decision in made.decisions
        ],
        "actions": [{"kind": kind_of(type(action)), **dataclasses.asdict(action)} for action in made.actions],
    }


def _seen_json(seen: "Snapshot") -> dict[str, Any]:
    return {
        "at": seen.now,
        "pods": len(seen.pods or ()),
        "pods_of_other_databases": len(seen.strangers),
        "pods_missing": sorted(seen.absent),
        "workers": dict(Counter(worker.state.value for worker in seen.workers)),
        "demand": [dataclasses.asdict(demand) for demand in seen.demand],
        "paused": {pool: dataclasses.asdict(pause) for pool, pause in seen.paused.items()},
        "spent": dataclasses.asdict(seen.spent),
    }


def _show_seen(output: Output, seen: "Snapshot") -> None:
    states = numbers(Counter(worker.state.value for worker in seen.workers)) or "none"
    output.say(f"observed: {len(seen.pods or ())} pods in the account; workers: {states}")
    if seen.strangers:
        fix = "python -m orchestrator sync"
        output.say(f"{len(seen.strangers)} more of this FLEET_ID belong to another database; fix: {fix}", "yellow")
    if seen.absent:
        missing = ", ".join(sorted(seen.absent))
        output.say(f"not on RunPod's list, and lost once ten seconds of lists are without them: {missing}", "yellow")
    for demand in seen.demand:
        blocked = f"; blocked: {numbers(demand.blocked)}" if any(demand.blocked.values()) else ""
        output.say(f"queue {demand.pool}: {demand.claimable} claimable, {demand.running} running{blocked}")
    for pool, pause in seen.paused.items():
        until = f", until {clock(pause.until)}" if pause.until else ""
        output.say(f"spawning is paused in {'every pool' if pool == '*' else pool}: {pause.reason}{until}", "yellow")


def _show_plan(output: Output, made: "Plan") -> None:
    decisions = Table("pool", "target", "because", "blocked", box=None, header_style="bold", pad_edge=False)
    for decision in made.decisions:
        decisions.add_row(
            decision.pool,
            str(decision.target),
            one_line(decision.rule),
            one_line("; ".join(map(line, decision.blocked))),
        )
    actions = Table("action", "what", "why", box=None, header_style="bold", pad_edge=False)
    for action in made.actions:
        facts = dataclasses.asdict(action)
        what = " ".join(str(facts[name]) for name in ("worker_id", "pod_id") if facts.get(name))
        if offer := getattr(action, "offer", None):
            what += f" on {offer.key}"
        actions.add_row(kind_of(type(action)), what, one_line(facts.get("reason") or facts.get("waiting_for") or ""))
    output.show(decisions)
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
