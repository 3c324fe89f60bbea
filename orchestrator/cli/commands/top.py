"""`top`: the live screen. It needs a terminal and textual."""

import sys

import click

from orchestrator.cli.output import Output
from orchestrator.cli.session import runs, settings_for
from orchestrator.errors import BAD_ARGUMENT, MISSING_PART, Failure

ANSWER_S = 120.0  # for one query: the screen waits for a slow database and shows for what


@click.command()
@click.pass_obj
@runs
async def top(output: Output) -> int | None:
    """Show the queue, the workers, the tasks, the cost and the last decisions on a live screen.

    Tab changes between workers and tasks. Enter explains the selected one, l shows its logs. Further keys are in the
    last line; what they change is asked first.
    """
    try:
        from orchestrator.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "textual":
            raise
        fix = "pip install 'textual>=8,<9'; or, without it: python -m orchestrator list --watch"
        raise Failure(MISSING_PART, why="top needs textual, which is not installed", fix=fix) from None
    if not (sys.stdin.isatty() and output.out.is_terminal):
        raise Failure(
            BAD_ARGUMENT,
            what="top needs a terminal",
            why="stdin or stdout is not a terminal",
            fix="python -m orchestrator list",
        )
    from orchestrator import wiring

    settings = settings_for("database")
    async with wiring.open_store(settings, call_timeout_s=ANSWER_S) as store:
        screen = Top(store, settings.policy())
        await screen.run_async()
    return screen.return_code
