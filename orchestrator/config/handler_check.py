"""Whether the handlers of WORKER_HANDLERS exist, by the syntax tree: nothing of the user's code is imported or run.

A handler is looked for in WORKER_CODE_DIR. Code that is installed on the pod cannot be seen from here, so a module
that is missing is certain only if nothing else can bring it: no set-up command, and an image of RunPod.
"""

import ast
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.config.errors import PATH_CHARS, SettingProblem, shown
from worker.protocol import SLURM_HANDLER

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

COMMAND = "cmd:"
MAX_SOURCE_BYTES = 2 << 20  # a larger module is not looked into
MAX_ENTRIES = 100_000  # of WORKER_CODE_DIR that are looked at until a file is found
RUNPODS_OWN = "runpod/"  # images that contain no code of a user
SKIPPED = {"__pycache__", ".git"}  # as in pods/bundle.py


class HandlerProblem(NamedTuple):
    """A handler that a worker could probably not run."""

    problem: SettingProblem
    is_certain: bool  # nothing on the pod can bring it: the orchestrator does not start


def handler_problems(settings: "Settings") -> list[HandlerProblem]:
    """Return what is wrong with the handlers, one entry for each. A WORKER_CODE_DIR that is missing is not repeated."""
    folder = settings.worker_code_dir
    if settings.worker_start_command or (folder is not None and not os.path.isdir(folder)):  # noqa: PTH112  Path raises for long names
        return []
    if folder is not None and not _has_a_file(folder):
        why = f"{shown(str(folder), PATH_CHARS)} is empty, so workers would get no code"
        fix = "write a handler there: python -m orchestrator handlers new hello"
        return [HandlerProblem(SettingProblem("WORKER_CODE_DIR has no file", why, fix), is_certain=True)]
    return list(_each(settings, folder))


def _each(settings: "Settings", folder: Path | None) -> Iterator[HandlerProblem]:
    images = [pool.image for pool in settings.policy().pools]
    may_be_installed = settings.worker_setup_command or not all(name.startswith(RUNPODS_OWN) for name in images)
    for task_type, target in settings.worker_handlers:
        if target == SLURM_HANDLER:  # built in
            continue
        if folder is None:
            found = _without_code(target)
        elif target.startswith(COMMAND):
            found = _command(folder, target.removeprefix(COMMAND))
        else:
            found = _function(folder, *target.split(":", 1))
        if found is None:
            continue
        why, on_the_pod = found
        what = f"WORKER_HANDLERS {task_type}={shown(target)[1:-1]} does not exist"
        if on_the_pod and may_be_installed:
            why += "; the image or WORKER_SETUP_COMMAND may bring it"
        fix = f"correct WORKER_HANDLERS, or write it; try it with: python -m orchestrator handlers test {task_type}"
        yield HandlerProblem(SettingProblem(what, why, fix), is_certain=not (on_the_pod and may_be_installed))


Why = tuple[str, bool]  # the reason, and whether the pod itself may have what WORKER_CODE_DIR lacks


def _without_code(target: str) -> Why | None:
    module = target.partition(":")[0].partition(".")[0]
    if target.startswith(COMMAND) or module in sys.stdlib_module_names:
        return None
    return f"WORKER_CODE_DIR is not set, and Python has no module {module}", True


def _command(folder: Path, command: str) -> Why | None:
    """A word `./NAME` is a file of WORKER_CODE_DIR. Other words are programs of the pod."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"the command cannot be split into words: {error}", False
    if not words:
        return "the command is empty", False
    if not words[0].startswith("./") or (folder / words[0]).is_file():
        return None
    return f"{folder} has no file {words[0]}", False


def _function(folder: Path, module: str, function: str) -> Why | None:
    parts = module.split(".")
    if not all(part.isidentifier() for part in (*parts, *function.split("."))):
        return "this is not module:function", False
    path = folder.joinpath(*parts)
    for file in (path / "__init__.py", path.with_name(f"{parts[-1]}.py")):
        if file.is_file():
            return _in_file(file, function.partition(".")[0])
    if any(path.parent.glob(f"{parts[-1]}.*.so")) or parts[0] in sys.stdlib_module_names:
        return None
    own = (folder / parts[0]).is_dir() or (folder / f"{parts[0]}.py").is_file()
    return f"{folder} has no {'/'.join(parts)}.py", not own


def _in_file(file: Path, name: str) -> Why | None:
    try:
        with file.open("rb") as source:
            text = source.read(MAX_SOURCE_BYTES + 1)
        if len(text) > MAX_SOURCE_BYTES:
            return None
        tree = ast.parse(text)
    except SyntaxError as error:  # the pod's Python may be newer
        return f"{file} line {error.lineno}: {error.msg} (Python {sys.version_info[0]}.{sys.version_info[1]})", True
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    names = set(_defined(tree.body))
    if name in names or names & {"*", "__getattr__"}:
        return None
    functions = sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_")
    has = f"it has {', '.join(functions[:5])}" if functions else "it has no function"
    return f"{file} has no {name}; {has}", False


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements of a module define; "*" if they cannot all be known."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Name) and node.id in {"globals", "exec", "setattr", "vars"}:
                yield "*"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]


def _has_a_file(folder: Path) -> bool:
    seen = 0
    for _, names, leaves in os.walk(folder):
        names[:] = sorted(set(names) - SKIPPED)
        if any(not leaf.endswith(".pyc") for leaf in leaves):
            return True
        seen += len(names) + len(leaves)
        if seen > MAX_ENTRIES:
            return True
    return False
