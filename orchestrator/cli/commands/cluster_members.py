"""`cluster members`, `operations`, `reconcile`, `bootstrap-ssh`, `drain` and `submit`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from orchestrator.cli import cluster_view as view
from orchestrator.cli import options
from orchestrator.cli.cluster_session import member_named, opened_clusters, read, submit_type
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, runs, settings_for, utcnow
from orchestrator.cli.task_follow import follow
from orchestrator.core.cluster_states import ClusterStatus, MemberRole
from orchestrator.core.clusters.operations import CONTROLLER_STAYS
from orchestrator.core.clusters.view import MAX_NODES
from orchestrator.core.plurals import counted
from orchestrator.diagnostics import clusters as facts
from orchestrator.errors import BAD_ARGUMENT, WRONG_STATE, Failure

NODES = click.IntRange(1, MAX_NODES)
MAX_SCRIPT_BYTES = 256 << 10
MAX_GPUS = 8  # of one node
MAX_VARIABLES = 256
MAX_TIME_S = 30 * 86_400
MARGIN_S = 3_600  # of an attempt beyond the job's time limit: for its wait for nodes, and the upload


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
@runs
async def members(output: Output, name: str) -> None:
    """List the members: role, state, what Slurm says, addresses."""
    seen = await read(name)
    row = seen.clusters[0]
    rows = (*facts.live_members(row), *facts.ended_members(row))
    if output.json:
        made = [{**facts.member_document(one), "adapter_detail": facts.detail(one)} for one in rows]
        output.document(now=seen.now, id=row.id, members=made)
        return
    output.show(view.members(rows, output, seen.now) if rows else "No members yet.")


@click.command()
@click.argument("name")
@json_option
@click.pass_obj
@runs
async def operations(output: Output, name: str) -> None:
    """List operations on members and tasks on pods, newest first."""
    seen = await read(name)
    row = seen.clusters[0]
    if output.json:
        made, tasks = ([asdict(one) for one in rows] for rows in (row.operations, row.node_tasks))
        output.document(now=seen.now, id=row.id, operations=made, node_tasks=tasks)
        return
    output.show(view.operations(row.operations, output, seen.now) if row.operations else "No operations yet.")
    if row.node_tasks:
        output.show("", view.node_tasks(row.node_tasks, output, seen.now))


@click.command()
@click.argument("name")
@click.option("--worker", metavar="MEMBER", help="Only this member; by default all.")
@json_option
@click.pass_obj
@runs
async def reconcile(output: Output, name: str, worker: str | None) -> None:
    """Configure the members again. Their Slurm daemons start again with it, and their jobs go on."""
    (row,) = (await read(name)).clusters
    chosen = None if worker is None else member_named(row, worker).worker_id
    async with opened_clusters() as (rows, _):
        _accepted(output, name, await rows.reconcile(name, chosen, actor=actor()))


@click.command("bootstrap-ssh")
@click.argument("name")
@click.option("--worker", metavar="MEMBER", help="Only this member; by default all.")
@json_option
@click.pass_obj
@runs
async def bootstrap_ssh(output: Output, name: str, worker: str | None) -> None:
    """Write the orchestrator's SSH key to the members again. Their agents do it, or the leader over SSH."""
    (row,) = (await read(name)).clusters
    chosen = None if worker is None else member_named(row, worker).worker_id
    async with opened_clusters() as (rows, _):
        _accepted(output, name, await rows.bootstrap_ssh(name, chosen, actor=actor()))


@click.command()
@click.argument("name")
@click.argument("member")
@json_option
@click.pass_obj
@runs
async def drain(output: Output, name: str, member: str) -> None:
    """Replace a member when its jobs have ended. They have a day."""
    (row,) = (await read(name)).clusters
    chosen = member_named(row, member)
    if chosen.role is MemberRole.CONTROLLER:
        fix = f"python -m orchestrator terminate {chosen.worker_id}"
        raise Failure(WRONG_STATE, what=f"{chosen.worker_id} cannot be drained", why=CONTROLLER_STAYS, fix=fix)
    async with opened_clusters() as (rows, _):
        _accepted(output, name, await rows.drain(name, chosen.worker_id, actor=actor()))


@click.command()
@click.argument("name")
@click.option("--script", metavar="FILE", required=True, help="The batch script; - for stdin.")
@click.option("--nodes", type=NODES, default=1, show_default=True, help="Nodes that it needs at once.")
@click.option("--gpus-per-node", type=click.IntRange(0, MAX_GPUS), help="GPUs of each node; by default all of them.")
@click.option("--time-limit", metavar="SPAN", help="The job may run for so long: 30m, 12h, 2d.")
@click.option("--env", "variables", multiple=True, metavar="KEY=VALUE", help="For the script; may be repeated.")
@click.option("--output", "outputs", multiple=True, metavar="GLOB", help="Files to store at the end; may be repeated.")
@click.option("--type", "task_type", help="The task type, if the pool has several.")
@click.option("--max-attempts", type=click.IntRange(1, 100), help="Attempts before it counts as Failed.")
@click.option("--wait", is_flag=True, help="Follow it to its end and print its result; exit 1 unless it is Complete.")
@json_option
@click.pass_obj
@runs
async def submit(
    output: Output, name: str, *, script: str, task_type: str | None, max_attempts: int | None, wait: bool, **given: Any
) -> None:
    """Submit a script for sbatch as a task, and print its id. `tasks` has the other commands."""
    (row,) = (await read(name)).clusters
    if row.status in facts.ENDED or row.status is ClusterStatus.DELETING:
        fix = f"python -m orchestrator cluster create NAME --pool {row.pool} --nodes {given['nodes']}"
        raise Failure(WRONG_STATE, what=f"cluster {name} is {row.status}", why=facts.standing(row).what, fix=fix)
    if given["nodes"] > row.max_nodes:
        why = f"it has at most {counted(row.max_nodes, 'node')}, and --nodes is {given['nodes']}: the task would fail"
        fix = f"python -m orchestrator cluster scale {name} {given['nodes']} --max-nodes {given['nodes']}"
        raise Failure(BAD_ARGUMENT, what=f"cluster {name} is too small", why=why, fix=fix)
    task: dict[str, Any] = {"task_type": submit_type(settings_for("database"), row.pool, task_type), "pool": row.pool}
    task["params"] = _params(script, **given)
    if limit_s := task["params"].get("time_limit_s"):
        task["timeout_s"] = min(limit_s + MARGIN_S, MAX_TIME_S)
    if max_attempts is not None:
        task["max_attempts"] = max_attempts
    async with opened_clusters() as (_, store):
        (made,) = await store.submit([task], actor=actor())
        if not output.json:
            output.show(str(made["id"]))
        elif not wait:
            output.document(tasks=[made])
        if wait:
            await follow(store, output, str(made["id"]))


def _params(
    script: str, *, nodes: int, gpus_per_node: int | None, time_limit: str | None, variables: Sequence[str],
    outputs: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the params of the handler `slurm`. Raises Failure."""
    made: dict[str, Any] = {"script": _script(script), "nodes": nodes}
    if gpus_per_node is not None:
        made["gpus_per_node"] = gpus_per_node
    if time_limit is not None:
        now = utcnow()
        limit_s = int((options.later(time_limit, now, "--time-limit") - now).total_seconds())
        if not 1 <= limit_s <= MAX_TIME_S:
            raise Failure(BAD_ARGUMENT, why=f"--time-limit {time_limit!r} is not between 1 s and 30 days")
        made["time_limit_s"] = limit_s
    if variables:
        made["env"] = options.labels(variables, "--env", MAX_VARIABLES)
    if outputs:
        made["outputs"] = list(outputs)
    return made


def _script(path: str) -> str:
    """Return the text of a batch script. Raises Failure."""
    fix = "put the program into the image or WORKER_CODE_DIR, and call it from the script"
    text = options.file_text(path, "the script", MAX_SCRIPT_BYTES, fix)
    if not text.strip() or "\0" in text:
        why = f"{'stdin' if path == '-' else path} is empty, or has a NUL character"
        raise Failure(BAD_ARGUMENT, what="this is no script", why=why)
    return text


def _accepted(output: Output, name: str, answer: Mapping[str, Any]) -> None:
    """Show the operations that were recorded, or that were open already. Raises Failure if there is no member."""
    made = answer.get("operations", ())
    if not made:
        why = "it has no live member: a worker becomes a member when it is promoted"
        fix = f"python -m orchestrator cluster status {name}"
        raise Failure(WRONG_STATE, what=f"nothing can be done on cluster {name}", why=why, fix=fix)
    if output.json:
        output.document(outcome=answer["outcome"], operations=made)
        return
    for one in made:
        output.show(f"operation {one['id']}: {one['kind']} of {one['worker_id']} is {one['status']}")
    output.say(f"To follow it: python -m orchestrator cluster operations {name}")
