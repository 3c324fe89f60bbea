"""`sync`: compare RunPod's list with the rows, and let the loop repair the difference."""

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from orchestrator.cli.maintenance import LOOK_EVERY_S, PATIENCE_S, carried_out, opened_cloud
from orchestrator.cli.options import Choice, force_option
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.diagnostics.drift import Drift, drift
from orchestrator.errors import BAD_ARGUMENT, NOT_IN_TIME, Failure
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.runpod import RunPodCloud
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

ANALYZE, TERMINATE, UPDATE = "analyze", "terminate_orphaned", "update_database"
MOVED, COPIED = "database_moved", "database_copied"


@click.command()
@click.argument("action", type=Choice([ANALYZE, TERMINATE, UPDATE, MOVED, COPIED]), default=ANALYZE, metavar="[ACTION]")
@click.option("--database", metavar="ID", help="With terminate_orphaned: end the pods of this other database.")
@force_option
@json_option
@click.pass_obj
@runs
async def sync(output: Output, action: str, database: str | None, force: bool) -> int:
    """Compare RunPod with the database. Only this fleet's pods are looked at.

    analyze: show pods without rows, with what they cost, and rows without pods; exit 1 if there are any.
    terminate_orphaned: delete the pods that no live worker names. update_database: end the rows whose pods are gone.
    The leader does both; if nobody leads, this command does. Pods of a fleet of this name in another database are
    shown, and deleted only with --database. If another orchestrator still uses that database, it loses these pods.

    Nobody leads in a restored or copied database until you confirm what it is. database_moved: it replaces the
    original, and its orchestrator takes over the pods. database_copied: it is a second one, and leaves the original's
    pods alone.
    """
    if database is not None and action != TERMINATE:
        raise Failure(BAD_ARGUMENT, why=f"--database goes with {TERMINATE}")
    settings = settings_for("database", "cloud")
    async with opened_store() as store, opened_cloud(settings) as cloud:
        if action in (MOVED, COPIED):
            await _confirm(store, output, action, force=force)
        seen = await _compared(store, cloud, settings)
        if database is not None:
            await _end_foreign_pods(cloud, output, _of_database(seen, database), force=force)
            seen = await _compared(store, cloud, settings)
        elif action in (TERMINATE, UPDATE):
            seen = await _repaired(store, cloud, settings, output, action, seen, force=force)
    if output.json:
        found = dataclasses.asdict(seen)
        differs = {"pods_without_rows": found["orphans"], "rows_without_pods": found["bereft"]}
        differs["pods_of_other_databases"] = found["foreign_pods"]
        output.document(action=action, consistent=not seen, pods=seen.pods, usd_per_hour=seen.usd_per_hour, **differs)
    else:
        _show(output, seen)
    return 1 if seen else 0


async def _confirm(store: "SqlStore", output: Output, action: str, *, force: bool) -> None:
    """Record what a copied database is."""
    if action == MOVED:
        output.confirm("Is the original database no longer used by any orchestrator?", force=force)
    if not await store.confirm_database(is_copy=action == COPIED, actor=actor()):
        output.say("Nothing to confirm: this is no copy of the database in which the fleet was led.")
    elif action == MOVED:
        output.say("Confirmed: this database replaces the original. The next tick takes over its pods.")
    else:
        output.say("Confirmed: this is another database. The pods of the original are left alone.")


async def _compared(store: "SqlStore", cloud: "RunPodCloud", settings: "Settings") -> Drift:
    """Read the list first, so that a newer worker does not seem to lack its pod (see observe.py)."""
    pods = await cloud.list_pods()
    rows, database_id = await store.workers(), (await store.snapshot()).database_id
    return drift(pods, rows, settings.fleet_id, database_id, utcnow())


async def _repaired(
    store: "SqlStore",
    cloud: "RunPodCloud",
    settings: "Settings",
    output: Output,
    action: str,
    seen: Drift,
    *,
    force: bool,
) -> Drift:
    """Repair the difference, and return the state afterwards. Raises Failure if it takes too long."""
    wrong = _wrong(action, seen)
    if not wrong:
        return seen
    question = {
        TERMINATE: f"Delete {counted(len(wrong), 'pod')} that no live worker names, {seen.cost}",
        UPDATE: f"End {counted(len(wrong), 'worker')} whose pods are gone, and queue their tasks again",
    }[action]
    output.confirm(f"{question}: {', '.join(wrong)}?", force=force)

    async def left() -> Sequence[str]:
        nonlocal seen
        try:
            seen = await _compared(store, cloud, settings)
        except PortError as error:  # an unavailable list does not show that the pods are gone
            return [f"RunPod's list ({type(error).__name__}: {error})"]
        return _wrong(action, seen)

    job = {TERMINATE: MaintenanceJob.DELETE_ORPHANS, UPDATE: MaintenanceJob.END_WORKERS_WITHOUT_POD}[action]
    rest = await carried_out(store, settings, output, job, left)
    if rest:
        why = f"after {span(PATIENCE_S)} there is still: {', '.join(rest)}"
        raise Failure(
            NOT_IN_TIME, what="RunPod and the database do not agree yet", why=why, fix="python -m orchestrator plan"
        )
    output.say(f"Done: {', '.join(wrong)}.")
    return seen


def _of_database(seen: Drift, database_id: str) -> Sequence[str]:
    """Return the pods of another database's fleet of this name."""
    found = next((theirs.pods for theirs in seen.foreign_pods if theirs.database_id == database_id), None)
    if found is None:
        known = ", ".join(theirs.database_id for theirs in seen.foreign_pods) or "none"
        why = f"no pod of this FLEET_ID belongs to another database {database_id}; the databases are: {known}"
        raise Failure(BAD_ARGUMENT, why=why, fix="python -m orchestrator sync")
    return found


async def _end_foreign_pods(cloud: "RunPodCloud", output: Output, theirs: Sequence[str], *, force: bool) -> None:
    """Delete exactly these pods, and verify that they are gone. This database's loop would never delete them."""
    question = f"Delete {counted(len(theirs), 'pod')} of another database, which no orchestrator may use any more"
    output.confirm(f"{question}: {', '.join(theirs)}?", force=force)
    until_s, rest = time.monotonic() + PATIENCE_S, set(theirs)
    while rest:
        for pod_id in sorted(rest):
            await cloud.delete_pod(pod_id)
        rest &= {pod.id for pod in await cloud.list_pods()}
        if rest and time.monotonic() > until_s:
            why = f"after {span(PATIENCE_S)} RunPod still lists {', '.join(sorted(rest))}"
            fix = "python -m orchestrator sync"
            raise Failure(NOT_IN_TIME, what="not all of those pods are gone", why=why, fix=fix)
        await asyncio.sleep(LOOK_EVERY_S if rest else 0)
    output.say(f"Done: {', '.join(theirs)}.")


def _wrong(action: str, seen: Drift) -> list[str]:
    if action == TERMINATE:
        return [orphan.pod_id for orphan in seen.orphans]
    return [worker.worker_id for worker in seen.bereft]


def _show(output: Output, seen: Drift) -> None:
    if not seen:
        pods = counted(seen.pods, "pod")
        output.show(f"RunPod and the database agree: {pods} of this fleet, each named by its worker.")
    if seen.orphans:
        output.show(f"Pods without rows: {len(seen.orphans)}, {seen.cost}", _orphans(seen))
        output.say("fix: python -m orchestrator sync terminate_orphaned")
    if seen.bereft:
        rows = table("worker", "state", "pod", "RunPod says")
        for row in seen.bereft:
            rows.add_row(row.worker_id, row.status, row.pod_id, row.pod_status or "not listed")
        output.show(f"Rows without pods: {len(seen.bereft)}", rows)
        output.say("fix: python -m orchestrator sync update_database")
    for theirs in seen.foreign_pods:
        output.show(f"{theirs.what}: {', '.join(theirs.pods)}")
        output.say(f"fix: {theirs.fix}")
    if seen.foreign:
        output.say(f"{counted(seen.foreign, 'other pod')} in the account: not of this fleet, left alone.")


def _orphans(seen: Drift) -> Table:
    rows = table("pod", "status", "$/h", "its environment names")
    for orphan in seen.orphans:
        rows.add_row(orphan.pod_id, orphan.status, usd(orphan.usd_per_hour), orphan.worker_id or "–")
    return rows
