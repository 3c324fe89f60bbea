"""`top`: the live screen, where a terminal and textual are there for it."""

import sys

import click

from orchestrator.cli.output import Output
from orchestrator.cli.session import opened_store, runs, settings_for
from orchestrator.errors import BAD_ARGUMENT, MISSING_PART, Failure


@click.command()
@click.pass_obj
@runs
async def top(output: Output) -> None:
    """The queue, the workers, what they cost and the last decisions, live. It changes nothing.

    enter explains the worker under the cursor, l shows its logs, q quits.
    """
    try:
        from orchestrator.cli.top_screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "textual":
            raise
        fix = "pip install 'textual>=8,<9'; or, without it: python -m orchestrator list --watch"
        raise Failure(MISSING_PART, why="top needs textual, which is not installed", fix=fix) from None
    if not (sys.stdin.isatty() and output.out.is_terminal):
        raise Failure(
            BAD_ARGUMENT, what="top needs a terminal", why="stdin or stdout is none", fix="python -m orchestrator list"
        )
    policy = settings_for("database").policy()
    async with opened_store() as store:
        await Top(store, policy).run_async()
