"""The params of a task whose handler is `slurm`, and its failure.

script           the text of a batch script, or
command          a list of words that runs once on each node (srun --ntasks-per-node=1)
nodes            1 to 64; default 1
gpus_per_node    default: all GPUs of a node
time_limit_s     seconds of running time; the job's wait for nodes does not count
env              variables of the job
outputs          patterns of files in the task's directory that are stored, besides everything below output/
"""

from __future__ import annotations

import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_NODES = 64
MAX_GPUS = 64
MAX_TIME_S = 30 * 86_400


class SlurmFailed(Exception):
    """The task failed. `outage`: Slurm does not answer, so the task is released, and the attempt does not count."""

    def __init__(self, code: str, message: str, *, retryable: bool = True, outage: bool = False) -> None:
        super().__init__(message)
        self.code, self.retryable, self.outage = code, retryable, outage


def checked(params: Any) -> dict[str, Any]:
    """Return the params with their defaults. Raises SlurmFailed."""
    given = params if isinstance(params, dict) else {}
    script, command, env, outputs = (given.get(name) for name in ("script", "command", "env", "outputs"))
    if (script is None) == (command is None):
        raise _refused("give params.script or params.command")
    if script is not None and not (isinstance(script, str) and script.strip() and "\0" not in script):
        raise _refused("params.script is the text of a batch script")
    if command is not None and not (_are_texts(command) and command):
        raise _refused("params.command is a list of words")
    if env is not None and not (isinstance(env, dict) and _are_texts([*env, *env.values()])):
        raise _refused("params.env is an object of texts")
    if any("=" in one or not one for one in env or ()):
        raise _refused("params.env has a name that no variable can have")
    if outputs is not None and not _are_texts(outputs):
        raise _refused("params.outputs is a list of file patterns")
    return {
        "script": script if script is not None else f"exec srun --ntasks-per-node=1 {shlex.join(command or [])}\n",
        "nodes": _number(given, "nodes", 1, MAX_NODES) or 1,
        "gpus_per_node": _number(given, "gpus_per_node", 0, MAX_GPUS),
        "time_limit_s": _number(given, "time_limit_s", 1, MAX_TIME_S),
        "env": env or {},
        "outputs": outputs or [],
    }


def _refused(why: str) -> SlurmFailed:
    return SlurmFailed("SLURM_PARAMS", why, retryable=False)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and "\0" not in one for one in value)


def _number(given: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most or value % 1:
        raise _refused(f"params.{name} is a whole number from {least} to {most}")
    return int(value)
