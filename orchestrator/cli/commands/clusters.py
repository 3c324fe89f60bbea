"""`cluster`: Slurm on the workers of a pool (docs/clusters.md). cluster_members.py has the commands about members."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from orchestrator.cli import cluster_view as view
from orchestrator.cli.cluster_session import ClustersSeen, check_room, opened_clusters, read
from orchestrator.cli.commands.cluster_members import bootstrap_ssh, drain, members, operations, reconcile, submit
from orchestrator.cli.options import force_option
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, runs, settings_for
from orchestrator.cli.worker_rows import leaderless
from orchestrator.core.clusters.addresses import CLUSTER_ID
from orchestrator.core.clusters.view import MAX_NODES
from orchestrator.core.plurals import counted
from orchestrator.diagnostics import clusters as facts
from orchestrator.errors import BAD_ARGUMENT, Failure

MAX_LISTED = 200
NODES = click.IntRange(1, MAX_NODES)
FEWEST = click.IntRange(0, MAX_NODES)


@click.group()
def cluster() -> None:
    """Run jobs that need several pods at once: Slurm on the workers of a pool. NAME is the cluster's name."""


@cluster.command()
@click.argument("name")
@click.option("--pool", required=True, help='The pool whose workers become its nodes; its kind is "cluster".')
@click.option("--nodes", type=NODES, required=True, help="Nodes to rent: all of them, or none.")
@click.option("--min-nodes", type=FEWEST, help="Nodes to keep without tasks; by default --nodes.")
@click.option("--max-nodes", type=NODES, help="Nodes to grow to if the tasks need more; by default --nodes.")
@json_option
@click.pass_obj
@runs
async def create(
    output: Output, name: str, *, pool: str, nodes: int, min_nodes: int | None, max_nodes: int | None
) -> None:
    """Create a cluster, and rent its nodes. Without limits, it keeps them until it is deleted."""
    if not CLUSTER_ID.fullmatch(name):
        why = f"{name!r} is no name for a cluster: lower-case letters, digits and '-', at most 41"
        raise Failure(BAD_ARGUMENT, why=why)
    least, most = nodes if min_nodes is None else min_nodes, max_nodes or nodes
    if not least <= nodes <= most:
        why = f"--min-nodes {least}, --nodes {nodes} and --max-nodes {most} are not in this order"
        raise Failure(BAD_ARGUMENT, why=why)
    check_room(settings_for("database"), pool, most)
    async with opened_clusters() as (rows, store):
        await rows.create(name, pool, nodes=nodes, min_nodes=least, max_nodes=most, actor=actor())
        (row,) = (await rows.report(name)).clusters
        warning = leaderless(await store.leadership())
    if output.json:
        output.document(cluster=facts.cluster_document(row))
        return
    kept = "rented now, and kept until it is deleted"
    if least < most:
        kept = f"rented {'now' if least else 'with the first task'}, and then {least} to {most}, as the tasks need them"
    output.show(f"created {name}: {counted(nodes, 'node')} of pool {pool}, {kept}")
    output.say(f"To follow it: python -m orchestrator cluster status {name}")
    if warning:
        output.say(warning, "bold yellow")


@cluster.command("list")
@click.option("--all", "everyone", is_flag=True, help="Also ended ones, and why they ended.")
@json_option
@click.pass_obj
@runs
async def listed(output: Output, everyone: bool) -> None:
    """List the live clusters, and what each waits for."""
    seen = await read()
    ended = await _ended() if everyone else []
    if output.json:
        output.document(now=seen.now, clusters=[facts.cluster_document(row) for row in seen.clusters], ended=ended)
        return
    output.show(view.clusters(seen.clusters, output, seen.now) if seen.clusters else "No live clusters found.")
    if everyone:
        output.show("", view.ended(ended, output, seen.now) if ended else "No ended clusters found.")
    _warn(output, seen)


@cluster.command()
@click.argument("name")
@json_option
@click.pass_obj
@runs
async def status(output: Output, name: str) -> None:
    """Show what a cluster waits for, its members and problems. Each problem has its fix."""
    seen = await read(name)
    row, found = seen.clusters[0], facts.problems(seen.clusters[0], seen.now)
    if output.json:
        made = [facts.member_document(one) for one in row.members]
        workers = [facts.worker_document(one) for one in row.unjoined]
        output.document(
            now=seen.now, cluster=facts.cluster_document(row), members=made, unjoined=workers,
            diagnoses=[asdict(one) for one in found], leader=seen.leadership["leader"],
        )  # fmt: skip
        return
    output.show(*view.cluster(row, output, seen.now, found))
    _warn(output, seen)


@cluster.command()
@click.argument("name")
@click.option("--history", is_flag=True, help="Also the last 100 changes of state, each with its reason.")
@json_option
@click.pass_obj
@runs
async def explain(output: Output, name: str, history: bool) -> None:
    """Explain what is wrong with a cluster. Each cause has its evidence and its fix."""
    seen = await read(name)
    row, found = seen.clusters[0], facts.problems(seen.clusters[0], seen.now)
    if output.json:
        made = [asdict(one) for one in found]
        events = [asdict(one) for one in row.events]
        output.document(now=seen.now, cluster=facts.cluster_document(row), diagnoses=made, events=events)
        return
    output.show(*view.explained(row, output, seen.now, found))
    if history and row.events:
        output.show("", view.history(row.events, output, seen.now))
    _warn(output, seen)


@cluster.command()
@click.argument("name")
@click.argument("nodes", type=NODES, required=False)
@click.option("--min-nodes", type=FEWEST, help="Nodes to keep without tasks.")
@click.option("--max-nodes", type=NODES, help="Nodes to grow to if the tasks need more.")
@json_option
@click.pass_obj
@runs
async def scale(output: Output, name: str, nodes: int | None, **limits: int | None) -> None:
    """Set the number of nodes, or its limits. The limits of a cluster of a fixed size follow its number of nodes."""
    if nodes is None and not any(one is not None for one in limits.values()):
        raise Failure(BAD_ARGUMENT, why="give NODES, --min-nodes or --max-nodes")
    (row,) = (await read(name)).clusters
    check_room(settings_for("database"), row.pool, nodes, *limits.values())
    async with opened_clusters() as (rows, _):
        await rows.scale(name, nodes=nodes, **limits, actor=actor())
        (row,) = (await rows.report(name)).clusters
    if output.json:
        output.document(cluster=facts.cluster_document(row))
    else:
        output.show(f"{name}: {counted(row.nodes, 'node')} (at least {row.min_nodes}, at most {row.max_nodes})")


@cluster.command()
@click.argument("name")
@click.option("--reason", default="asked for by the operator", show_default=True)
@force_option
@json_option
@click.pass_obj
@runs
async def delete(output: Output, name: str, *, reason: str, force: bool) -> None:
    """Delete a cluster and its pods. Jobs that run have ten minutes to end."""
    (row,) = (await read(name)).clusters
    if row.status not in facts.ENDED:
        nodes = counted(len(facts.live_members(row)) + len(row.unjoined), "node")
        work = counted(row.demand.tasks, "task")
        output.confirm(f"Delete the cluster {name} ({row.status}, {nodes}, {work})?", force=force)
    async with opened_clusters() as (rows, _):
        outcome = (await rows.delete(name, reason=reason, actor=actor()))["outcome"]
    if output.json:
        output.document(id=name, outcome=outcome)
    else:
        output.show(f"{name}: {'its end is requested' if outcome == 'requested' else 'it ends or has ended already'}")


for command in (members, operations, reconcile, bootstrap_ssh, drain, submit):
    cluster.add_command(command)


async def _ended() -> Sequence[Mapping[str, Any]]:
    """Return the rows of the newest ended clusters. They are kept for 30 days."""
    async with opened_clusters() as (rows, _):
        found = (await rows.clusters(MAX_LISTED))["clusters"]
    return [row for row in found if row["status"] in facts.ENDED]


def _warn(output: Output, seen: ClustersSeen) -> None:
    if warning := leaderless(seen.leadership):
        output.say(warning, "bold yellow")
