"""`spawn` and `terminate`: requests to whoever leads. Nothing here touches the provider; there is one way to a pod."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.output import Output, clock, json_option, span
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for, utcnow
from orchestrator.cli.worker_rows import leaderless, waits_for
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.states import READY, State
from orchestrator.errors import BAD_ARGUMENT, ENDED_BADLY, NOT_IN_TIME, WRONG_STATE, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

INTENT_DEADLINE_S = 600.0  # an operator may have to start an orchestrator first
FOLLOW_EVERY_S = 1.0
FOLLOW_FOR_S = 1_800.0


@click.command()
@click.option("--worker-id", help="Its id; made up when not given.")
@click.option("--pool", help="Which kind of worker.")
@click.option("--wait", is_flag=True, help="Follow it until it is active; exit 1 if it fails.")
@json_option
@click.pass_obj
@runs
async def spawn(output: Output, worker_id: str | None, pool: str | None, wait: bool) -> None:
    """Ask for one more worker, beyond what the queue asks for: an intent that the leader carries out."""
    settings = settings_for("database")
    policy = settings.policy()
    pools = {known.name: known for known in policy.pools}
    chosen = pools.get(pool or policy.pools[0].name)
    if chosen is None:
        raise Failure(BAD_ARGUMENT, what=f"there is no pool {pool!r}", why=f"the pools are {', '.join(pools)}")
    if worker_id is not None and not ID_PATTERN.fullmatch(worker_id):
        raise Failure(BAD_ARGUMENT, why=f"{worker_id!r} is not a worker id: letters, digits, '-' and '_', at most 63")
    name = worker_id or f"gpu-{utcnow():%Y%m%d_%H%M%S}-{secrets.token_hex(4)}"
    intent: dict[str, Any] = {
        "id": name,
        "pool": chosen.name,
        "gpu_type": None,  # the leader takes the first offer that has capacity
        "gpu_count": chosen.gpu_count,
        "data_center": None,
        "reserved_usd": 0,
        "heartbeat_s": policy.heartbeat_timeout_s / 3,
        "lease_s": policy.heartbeat_timeout_s,
        "own_program": settings.worker_start_command is not None,
        "deadline_s": INTENT_DEADLINE_S,
        "actor": "operator",
        "reason": "asked for by the operator",
        "metadata": {"asked_for": "operator"},  # not cancelled on its way up for want of work
    }
    async with opened_store() as store:
        if not await store.request_spawn(intent):
            fix = f"python -m orchestrator status {name}"
            raise Failure(WRONG_STATE, what=f"there is a worker {name} already", why="ids are used once", fix=fix)
        await _announce(store, output)
        row = await _follow(store, output, name, _until_ready) if wait else (await store.worker(name))["worker"]
    if output.json:
        output.document(outcome="requested", worker_id=name, status=row["status"], stage=row["stage"])
    else:
        output.show(name)


@click.command()
@click.argument("worker", required=False)
@click.option("--worker-id", help="The worker, by its id.")
@click.option("--pod-id", help="The worker, by its pod's id.")
@click.option("--now", "at_once", is_flag=True, help="Do not wait for the tasks it runs: they are queued again.")
@click.option("--reason", default="asked for by the operator", show_default=True)
@click.option("--wait", is_flag=True, help="Follow it until its pod is proven gone.")
@click.option("--force", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
@runs
async def terminate(
    output: Output, worker: str | None, *, at_once: bool, reason: str, wait: bool, force: bool, **others: str | None
) -> None:
    """Ask for a worker's end: it takes no new task, finishes what it runs, its logs are shipped, its pod deleted."""
    named = [name for name in (worker, *others.values()) if name]
    if len(named) != 1:
        raise click.UsageError("Name one worker: WORKER, --worker-id ID or --pod-id ID.")
    async with opened_store() as store:
        row = (await find_worker(store, named[0]))["worker"]
        running = row.get("tasks_running") or 0
        what = f"running tasks: {running}, to be {'queued again' if at_once else 'finished first'}"
        if row["status"] != State.TERMINATED:
            output.confirm(
                f"Terminate {row['id']} ({row['status']}, pod {row['pod_id'] or 'none'}; {what})?", force=force
            )
        outcome = (await store.request_termination(row["id"], reason, now_not_drain=at_once))["outcome"]
        if outcome == "requested":
            await _announce(store, output)
        if wait:
            row = await _follow(store, output, row["id"], _until_gone)
    if output.json:
        output.document(outcome=outcome, worker_id=row["id"], status=row["status"])
        return
    says = {"requested": "its end is requested", "already": f"it was {row['status']} or asked to end already"}
    output.show(f"{row['id']}: {row['status'] if wait else says[outcome]}")


def _until_ready(row: Mapping[str, Any]) -> bool:
    """Whether the climb is over. Raises Failure when it ended badly."""
    if row["status"] in {State.TERMINATING, State.TERMINATED}:
        why = (
            " ".join(str(row[name]) for name in ("exit_cause", "failure_code") if row.get(name))
            or "no cause is recorded"
        )
        fix = f"python -m orchestrator status {row['id']}"
        raise Failure(ENDED_BADLY, what=f"{row['id']} did not become active", why=why, fix=fix)
    return row["status"] in READY


def _until_gone(row: Mapping[str, Any]) -> bool:
    return bool(row["status"] == State.TERMINATED)


async def _follow(
    store: "SqlStore", output: Output, worker_id: str, is_over: Callable[[Mapping[str, Any]], bool]
) -> Mapping[str, Any]:
    """Tell each change of state and stage until it is over. Raises Failure."""
    began, said = utcnow(), ""
    while True:
        row: Mapping[str, Any] = (await store.worker(worker_id))["worker"]
        elapsed_s = (utcnow() - began).total_seconds()
        now_in = f"{row['status']} {row['stage']}"
        if now_in != said:
            waits = waits_for(row)
            output.say(f"{span(elapsed_s):>6}  {now_in}" + (f", waits for {waits}" if waits else ""))
            said = now_in
        if is_over(row):
            return row
        if elapsed_s > FOLLOW_FOR_S:
            why = f"after {span(elapsed_s)} it is {now_in}"
            raise Failure(NOT_IN_TIME, why=why, fix=f"python -m orchestrator status {worker_id}")
        await asyncio.sleep(FOLLOW_EVERY_S)


async def _announce(store: "SqlStore", output: Output) -> None:
    """Say who will carry the request out, or that nobody will."""
    told = await store.leadership()
    if missing := leaderless(told):
        output.say(missing, "yellow")
    else:
        holder, since, term = (told["leader"][name] for name in ("holder", "since", "term"))
        output.say(f"{holder} leads since {clock(since)} (term {term}) and will act on it.")
