"""`completion`: a script for the shell that completes commands and flags."""

import click
from click.shell_completion import get_completion_class

from orchestrator.cli.options import Choice

PROGRAM = "orchestrator"
LINES = {  # where each shell reads it
    "bash": 'eval "$(orchestrator completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(orchestrator completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "orchestrator completion fish > ~/.config/fish/completions/orchestrator.fish",
}


@click.command(epilog="\b\n" + "\n".join(LINES.values()))
@click.argument("shell", type=Choice(tuple(LINES)), metavar="SHELL")
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    It completes the command `orchestrator`, which `pip install -e .` installs.
    """
    from orchestrator.cli.main import Commands

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101  click knows all of LINES
    click.echo(made(Commands(), {}, PROGRAM, "_ORCHESTRATOR_COMPLETE").source())
