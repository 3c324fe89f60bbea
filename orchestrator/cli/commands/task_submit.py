"""`tasks submit`: one task, from options."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import options
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, find_task_id, opened_store, runs, settings_for, utcnow
from orchestrator.cli.task_follow import follow

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.option("--type", "task_type", required=True, help="The task type, which selects the handler.")
@click.option("--params", default="{}", show_default=True, help="A JSON object, @FILE, or @- for stdin.")
@click.option("--depends", multiple=True, metavar="ID", help="A task that must be Complete first; may be repeated.")
@click.option("--dedupe-key", help="Submit nothing if a live task has this key.")
@click.option("--pool", help="The pool whose workers may run it.")
@click.option("--priority", type=int, help="A higher number runs first.")
@click.option("--run-after", help="Not ready before: a span from now (30s, 10m, 2h, 1d), or a time (ISO 8601).")
@click.option("--max-attempts", type=click.IntRange(1, 100), help="Attempts before it counts as Failed.")
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), help="Seconds one attempt may take.")
@click.option("--tenant", help="On whose behalf it runs.")
@click.option("--concurrency-key", help="Of the tasks with this key, one runs at a time, or as many as its limit says.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated.")
@click.option("--webhook-url", help="Gets a signed message when the task ends: https://host/path.")
@click.option("--traceparent", envvar="TRACEPARENT", help="The trace that it is a part of (W3C); or $TRACEPARENT.")
@click.option("--wait", is_flag=True, help="Follow it to its end and print its result; exit 1 unless it is Complete.")
@json_option
@click.pass_obj
@runs
async def submit(
    output: Output, task_type: str, params: str, *, depends: tuple[str, ...], wait: bool, **given: Any
) -> None:
    """Submit one task and print its id."""
    labels, run_after = options.labels(given.pop("labels")), given.pop("run_after")
    task = {
        "task_type": task_type,
        "params": options.params(params),
        **{k: v for k, v in given.items() if v is not None},
    }
    if labels:
        task["labels"] = labels
    if run_after:
        task["run_after"] = options.later(run_after, utcnow(), "--run-after").isoformat()
    for doubt in _doubts(settings_for("database"), task_type, given["pool"]):
        output.say(doubt, "yellow")
    async with opened_store() as store:
        if depends:
            task["depends_on"] = [await find_task_id(store, name) for name in depends]
        (made,) = await store.submit([task], actor=actor())
        if made.get("ignored"):
            output.say(f"ignored: {made['ignored']}", "yellow")
        if not output.json:
            output.show(str(made["id"]))
            output.say("queued" if made["created"] else f"already there, by its dedupe key {given['dedupe_key']!r}")
        elif not wait:
            output.document(tasks=[made])
        if wait:
            await follow(store, output, str(made["id"]))


def _doubts(settings: "Settings", task_type: str, pool: str | None) -> Iterator[str]:
    """Return why, by the settings here, no worker could run it."""
    handled, pools = [name for name, _ in settings.worker_handlers], [one.name for one in settings.policy().pools]
    if handled and task_type not in handled:
        yield f"WORKER_HANDLERS has none for {task_type!r}: it names {', '.join(handled)}"
    if pool and pool not in pools:
        yield f"there is no pool {pool!r}: the task waits until POOLS_FILE has it; the pools are {', '.join(pools)}"
