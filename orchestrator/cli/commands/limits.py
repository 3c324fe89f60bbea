"""`limits`: how many tasks of a concurrency key or a type run at once (docs/fairness.md)."""

from collections.abc import Callable
from typing import Any

import click

from orchestrator.cli.commands.tenants import opened_sharing
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import runs
from orchestrator.cli.tables import table
from orchestrator.errors import BAD_ARGUMENT, Failure

MAX_LIMIT = 100_000
Command = Callable[..., Any]


@click.group()
def limits() -> None:
    """Limit how many tasks of a concurrency key or a task type run at once."""


def _of_one(command: Command) -> Command:
    """The options that name a limit."""
    key = click.option("--key", metavar="NAME", help="A concurrency key.")
    named: Command = key(click.option("--type", "task_type", metavar="NAME", help="A task type.")(command))
    return named


@limits.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the limits, and the keys of live tasks."""
    async with opened_sharing() as store:
        found = await store.limits()
    if output.json:
        output.document(limits=found)
        return
    shown = table("limit of", "name", "at once", "running", "ready", "waiting")
    for one in found:
        most = str(one["most"]) + ("" if one["is_set"] else " (default)")
        shown.add_row(
            one["scope"], one_line(one["name"]), most, *(str(one[key]) for key in ("running", "ready", "waiting"))
        )
    output.show(shown if found else "No limits found.")


@limits.command("set")
@_of_one
@click.argument("most", type=click.IntRange(0, MAX_LIMIT))
@click.pass_obj
@runs
async def put(output: Output, key: str | None, task_type: str | None, most: int) -> None:
    """Let at most MOST tasks of a key or a type run at once. 0 stops them; running tasks continue."""
    scope, name = _named(key, task_type)
    async with opened_sharing() as store:
        await store.set_limit(scope, name, most)
    output.show(f"{scope} {one_line(name)}: at most {most} at once")


@limits.command()
@_of_one
@click.pass_obj
@runs
async def remove(output: Output, key: str | None, task_type: str | None) -> None:
    """Remove a limit. A key then has the limit 1, and a type has none."""
    scope, name = _named(key, task_type)
    async with opened_sharing() as store:
        if not await store.set_limit(scope, name, None):
            raise Failure(
                BAD_ARGUMENT, what=f"no limit of the {scope} {name!r}", why="the database has none of this name"
            )
    output.show(f"{scope} {one_line(name)}: {'at most 1 at once' if scope == 'key' else 'no limit'}")


def _named(key: str | None, task_type: str | None) -> tuple[str, str]:
    if key is not None and task_type is None:
        return "key", key
    if task_type is not None and key is None:
        return "type", task_type
    raise Failure(BAD_ARGUMENT, why="a limit is of either --key or --type")
