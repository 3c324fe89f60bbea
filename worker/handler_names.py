"""Which handlers can be meant: one rule for the orchestrator's settings, `handlers test`, and the agent on the pod."""

from __future__ import annotations

import shlex

from .protocol import SLURM_HANDLER

COMMAND = "cmd:"


def handler_problem(handler: str) -> str | None:
    """Return why this names no handler; None if it is module:function, cmd:command or slurm."""
    if handler == SLURM_HANDLER:
        return None
    if handler.startswith(COMMAND):
        try:
            words = shlex.split(handler[len(COMMAND) :])
        except ValueError as error:
            return f"the command cannot be split into words: {error}"
        return None if words else "the command is empty"
    module, _, function = handler.partition(":")
    names = [*module.split("."), *function.split(".")]
    return None if all(name.isidentifier() for name in names) else "this is not module:function"
