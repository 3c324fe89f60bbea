"""Opens clusters for the commands, and finds one by its name, with the errors that people see."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.cli.program import suggestion
from orchestrator.cli.session import settings_for
from orchestrator.core.clusters.rows import ClusterRow, MemberRow
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Pool, PoolKind
from orchestrator.diagnostics.clusters import live_members
from orchestrator.errors import BAD_ARGUMENT, NO_CLUSTER, NO_WORKER, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.cluster_store import ClusterStore
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings

SLURM = "slurm"  # the handler that runs a task with sbatch
CLUSTER_POOL = 'kind = "cluster"'
PAGE = "docs/clusters.md has an example"


@dataclass(frozen=True, slots=True)
class ClustersSeen:
    """The clusters that were asked for, at one time of the database."""

    clusters: Sequence[ClusterRow]
    now: datetime
    leadership: Any  # {leader, last, now}


@asynccontextmanager
async def opened_clusters() -> "AsyncIterator[tuple[ClusterStore, SqlStore]]":
    """Open the clusters, and the store of everything else."""
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_clusters(settings) as both:
        yield both


async def read(name: str | None = None) -> ClustersSeen:
    """Return all clusters, or the one of this name. Raises Failure if there is none."""
    async with opened_clusters() as (rows, store):
        found, leads = await asyncio.gather(rows.report(name), store.leadership())
        if name is not None and not found.clusters:
            known = [one.id for one in (await rows.report()).clusters]
            why = f"the database has none of this name.{suggestion(name, known)}"
            raise Failure(NO_CLUSTER, what=f"no cluster {name!r}", why=why)
    return ClustersSeen(found.clusters, found.now, leads)


def member_named(row: ClusterRow, name: str) -> MemberRow:
    """Return the live member with this worker id, node name, or unique end of one. Raises Failure."""
    live = live_members(row)
    exact = [one for one in live if name in (one.worker_id, one.node_name)]
    ends = [one for one in live if one.worker_id.endswith(name) or one.node_name.endswith(name)]
    found = exact or (ends if name else [])
    if len(found) == 1:
        return found[0]
    known = ", ".join(one.worker_id for one in live) or "none yet"
    what = f"{name!r} is a part of several members' ids" if found else f"cluster {row.id} has no member {name!r}"
    raise Failure(
        NO_WORKER, what=what, why=f"its members are {known}", fix=f"python -m orchestrator cluster members {row.id}"
    )


def cluster_pool(settings: "Settings", name: str) -> Pool:
    """Return the pool of this name, whose kind is cluster. Raises Failure."""
    pools = {one.name: one for one in settings.policy().pools}
    usable = [one.name for one in pools.values() if one.kind is PoolKind.CLUSTER]
    fix = f"add a pool with {CLUSTER_POOL} to POOLS_FILE; {PAGE}"
    if name not in pools:
        why = f"the cluster pools are {', '.join(usable)}.{suggestion(name, usable)}" if usable else "there is none yet"
        raise Failure(BAD_ARGUMENT, what=f"there is no pool {name!r}", why=why, fix=fix)
    if name not in usable:
        why = "its workers take tasks from the queue one by one: it is not a cluster pool"
        fix = f"set {CLUSTER_POOL} in [pools.{name}] of POOLS_FILE; {PAGE}"
        raise Failure(BAD_ARGUMENT, what=f"pool {name!r} cannot have a cluster", why=why, fix=fix)
    return pools[name]


def check_room(settings: "Settings", pool: str, *sizes: int | None) -> None:
    """Raise Failure if the pool may not have as many workers as a cluster of one of these sizes needs."""
    nodes, room = max((one for one in sizes if one is not None), default=0), cluster_pool(settings, pool).max_active
    if nodes > room:
        has = f"pool {pool} may have {counted(room, 'worker')}"
        why = f"{has}: of {counted(nodes, 'node')}, not every node could be rented"
        fix = f"give fewer nodes, or raise max_active_gpus in [pools.{pool}] of POOLS_FILE"
        raise Failure(BAD_ARGUMENT, why=why, fix=fix)


def submit_type(settings: "Settings", pool: str, wanted: str | None) -> str:
    """Return the task type whose tasks this pool's Slurm runs. Raises Failure if it is not exactly one."""
    handled = {name for name, handler in settings.worker_handlers if handler == SLURM}
    types = [one.name for one in settings.policy().task_types if one.pool == pool and one.name in handled]
    if wanted is not None and wanted in types:
        return wanted
    named = ", ".join(types)
    if wanted is not None or len(types) > 1:
        why = f"Slurm of pool {pool} runs {named or 'no task type'}"
        what = f"no task type {wanted!r} of this cluster" if wanted else "the task type is not clear"
        why = f"{why}.{suggestion(wanted or '', types)}"
        raise Failure(BAD_ARGUMENT, what=what, why=why, fix="name one of them with --type")
    if not types:
        why = f"no task type of pool {pool} has the handler {SLURM}"
        fix = f'set task_types = ["train"] in [pools.{pool}] of POOLS_FILE, and WORKER_HANDLERS=train={SLURM}; {PAGE}'
        raise Failure(BAD_ARGUMENT, what="the cluster has no task type", why=why, fix=fix)
    return types[0]
