"""`shutdown`: end every worker at once through the loop's own requests, and verify the result with RunPod."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import tables
from orchestrator.cli.maintenance import PATIENCE_S, carried_out, leader, opened_cloud
from orchestrator.cli.options import force_option
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, opened_store, runs, settings_for, utcnow
from orchestrator.cli.worker_rows import public
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.core.model import EVERY_POOL
from orchestrator.core.plurals import counted
from orchestrator.core.provider import Pod
from orchestrator.diagnostics.amounts import clock, span, usd
from orchestrator.diagnostics.foreign_pods import ForeignPods, of_other_databases
from orchestrator.errors import NOT_IN_TIME, Failure
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.runpod import RunPodCloud
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

REASON = "shutdown of all workers"
CLEAN = "Nothing is left: no live worker, and RunPod lists no pod of this fleet."


@dataclass(frozen=True, slots=True)
class Seen:
    """The workers and pods to end."""

    rows: Sequence[Mapping[str, Any]]
    pods: Sequence[Pod]  # of this fleet, by RunPod's complete list
    foreign_pods: Sequence[ForeignPods]  # of a fleet of this name in another database: they stay

    def __bool__(self) -> bool:
        return bool(self.rows or self.pods)


@click.command()
@click.option("--status", "only_status", is_flag=True, help="Show the workers and pods, and end nothing.")
@click.option("--dry-run", is_flag=True, help="Show what would be ended, and end nothing.")
@force_option
@json_option
@click.pass_obj
@runs
async def shutdown(output: Output, only_status: bool, dry_run: bool, force: bool) -> None:
    """End every worker of this fleet now, queue their tasks again, and verify with RunPod that no pod is left.

    Nothing is spawned meanwhile; afterwards the fleet scales with its queue again. If no orchestrator runs, this
    command holds the lease until it is done. Exit 1 if something is left after three minutes.
    """
    settings = settings_for("database", "cloud")
    async with opened_store() as store, opened_cloud(settings) as cloud:
        seen = await _look(store, cloud, settings)
        for theirs in seen.foreign_pods:
            output.say(f"{theirs.what}; left alone: {', '.join(theirs.pods)}", "yellow")
        if only_status or dry_run or not seen:
            await _show(store, output, seen, dry_run=dry_run)
            return
        running = sum(row.get("tasks_running") or 0 for row in seen.rows)
        what = f"{_counts(seen)}; {counted(running, 'running task is', 'running tasks are')} queued again"
        output.confirm(f"End all of fleet {settings.fleet_id}: {what}?", force=force)
        began_s = time.monotonic()
        before = await _pause(store)
        rest = await _ended(store, cloud, settings, output)
        if rest:
            why = f"after {span(PATIENCE_S)} there is still: {', '.join(rest)}"
            raise Failure(NOT_IN_TIME, what="not everything has ended", why=why, fix="python -m orchestrator list")
        await _resume(store, before)
        paused = sorted((await store.snapshot()).paused)
        queued = (await store.report())["task_counts"].get("Queued", 0)
    took_s = round(time.monotonic() - began_s, 1)
    if output.json:
        ended = {"workers": [row["id"] for row in seen.rows], "pods": [pod.id for pod in seen.pods]}
        output.document(outcome="ended", **ended, took_s=took_s, queued=queued, paused=paused)
        return
    output.show(f"{CLEAN} It took {span(took_s)}.")
    goes_on = f"still paused: {', '.join(paused)}" if paused else "the fleet scales with its queue again"
    output.say(f"{counted(queued, 'task')} queued; {goes_on}.")


async def _look(store: "SqlStore", cloud: "RunPodCloud", settings: "Settings") -> Seen:
    listed, fleet_id = await cloud.list_pods(), settings.fleet_id
    database_id = (await store.snapshot()).database_id
    pods = [pod for pod in listed if pod.is_of(fleet_id, database_id)]
    return Seen(await store.workers(), pods, of_other_databases(listed, fleet_id, database_id))


async def _ended(store: "SqlStore", cloud: "RunPodCloud", settings: "Settings", output: Output) -> Sequence[str]:
    """Request the end of each worker and wait. Return what is left after PATIENCE_S."""

    async def left() -> Sequence[str]:
        rows = await store.workers()
        for row in rows:
            if row.get("stop_requested_at") is None:  # also one that came up between the list and the pause
                await store.request_termination(row["id"], REASON, now_not_drain=True, actor=actor())
        if rows:
            return [f"{row['id']} ({row['status']} {row['stage']})" for row in rows]
        try:
            return [f"pod {pod.id}" for pod in (await _look(store, cloud, settings)).pods]
        except PortError as error:  # an unavailable list does not show that the pods are gone
            return [f"RunPod's list ({type(error).__name__}: {error})"]

    return await carried_out(store, settings, output, MaintenanceJob.END_ALL, left)


async def _pause(store: "SqlStore") -> Mapping[str, Any]:
    """Pause spawning until all workers have ended, for PATIENCE_S at most. Return the earlier pauses."""
    before = (await store.snapshot()).paused
    if EVERY_POOL not in before:
        await store.pause(REASON, for_s=PATIENCE_S, actor=actor())
    return before


async def _resume(store: "SqlStore", before: Mapping[str, Any]) -> None:
    """End the pause of this command, and no other: somebody may have paused everything meanwhile."""
    seen = await store.snapshot()
    ours = seen.paused.get(EVERY_POOL)
    if EVERY_POOL in before or ours is None or ours.reason != REASON:
        return
    await store.pause(None, actor=actor())
    for pool, pause in seen.paused.items():
        for_s = None if pause.until is None else (pause.until - seen.now).total_seconds()
        if pool != EVERY_POOL and (for_s is None or for_s > 0):
            await store.pause(pause.reason, pool=pool, for_s=for_s, actor=actor())


async def _show(store: "SqlStore", output: Output, seen: Seen, *, dry_run: bool) -> None:
    leads, now = await leader(store), utcnow()
    named = {row["pod_id"] for row in seen.rows}
    if output.json:
        pods = [
            {"id": pod.id, "status": pod.status, "worker_id": pod.worker_id, "orphan": pod.id not in named}
            for pod in seen.pods
        ]
        outcome, workers = "would_end" if dry_run else "status", [public(row, now) for row in seen.rows]
        theirs = [asdict(one) for one in seen.foreign_pods]
        output.document(outcome=outcome, workers=workers, pods=pods, pods_of_other_databases=theirs, leader=leads)
        return
    if not seen:
        output.show(CLEAN)
    if dry_run and seen:
        output.say("Would end at once, and queue their tasks again:")
    if seen.rows:
        output.show(tables.workers(seen.rows, output, now))
    for pod in seen.pods:
        if pod.id not in named:
            price = usd(pod.price_usd_per_hour)
            output.show(f"pod {pod.id} {pod.status} {price}/h: no live worker names it (its own says {pod.worker_id})")
    says = (
        f"{leads['holder']} leads since {clock(leads['since'])}"
        if leads
        else "nobody leads: shutdown would lead itself"
    )
    output.say(f"{_counts(seen)} of this fleet; {says}.")


def _counts(seen: Seen) -> str:
    return f"{counted(len(seen.rows), 'worker')} and {counted(len(seen.pods), 'pod')}"
