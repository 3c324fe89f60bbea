"""Fixes without the command that shows them: it does not help a person to run again what has just run."""

import re

PROGRAM = "python -m orchestrator"


def without(fix: str, *commands: str, instead: str) -> str:
    """Return a fix without the parts that recommend one of these commands, for example `doctor s3`.

    Return `instead` if nothing is left. A command with further arguments is another one, and stays.
    """
    left = fix
    for command in commands:
        left = re.sub(rf"(?:^|[;:,] *){_named(command)}(?=$|[;,.])", "", left)
    return left.strip(" ;:,") or instead


def recommends(fix: str, command: str) -> bool:
    """Whether a fix names this command, with exactly its arguments."""
    return re.search(rf"{_named(command)}(?=$|[;:,.\s])(?! [-<\w\"'])", fix) is not None


def _named(command: str) -> str:
    return re.escape(f"{PROGRAM} {command}")
