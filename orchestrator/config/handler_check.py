"""Whether the handlers of WORKER_HANDLERS exist, by the syntax tree: nothing of the user's code is imported or run.

A handler is looked for among the files of WORKER_CODE_DIR that are sent. Code that is installed on the pod cannot be
seen from here, so a module that is missing is certain only if nothing else can bring it: no set-up command, and an
image of RunPod.
"""

import ast
import os
import posixpath
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.config.code_files import BadCode, Code, code_files
from orchestrator.config.errors import PATH_CHARS, SettingProblem, shown
from worker.handler_names import COMMAND, handler_problem
from worker.protocol import SLURM_HANDLER

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

LITERALS = (ast.Constant, ast.List, ast.Dict, ast.Tuple, ast.Set, ast.JoinedStr)
MAX_SOURCE_BYTES = 2 << 20  # a larger module is not looked into
RUNPODS_OWN = "runpod/"  # images that contain no code of a user


class HandlerProblem(NamedTuple):
    """A handler that a worker could probably not run."""

    problem: SettingProblem
    is_certain: bool  # nothing on the pod can bring it: the orchestrator does not start


def handler_problems(settings: "Settings") -> list[HandlerProblem]:
    """Return what is wrong with the handlers, one entry for each. A WORKER_CODE_DIR that is missing is not repeated."""
    folder = settings.worker_code_dir
    if settings.worker_start_command or (folder is not None and not os.path.isdir(folder)):  # noqa: PTH112  Path raises for long names
        return []
    try:
        code = code_files(folder, settings.secrets()) if folder is not None else None
    except BadCode as error:
        return [HandlerProblem(problem, is_certain=True) for problem in error.problems]
    if code is not None and not code.files:
        why = f"{shown(str(folder), PATH_CHARS)} has no file that is sent, so workers would get no code"
        fix = "write a handler there: python -m orchestrator handlers new hello"
        return [HandlerProblem(SettingProblem("WORKER_CODE_DIR has no file", why, fix), is_certain=True)]
    return list(_each(settings, folder, code))


def _each(settings: "Settings", folder: Path | None, code: Code | None) -> Iterator[HandlerProblem]:
    images = [pool.image for pool in settings.policy().pools]
    may_be_installed = settings.worker_setup_command or not all(name.startswith(RUNPODS_OWN) for name in images)
    for task_type, target in settings.worker_handlers:
        if target == SLURM_HANDLER:  # built in
            continue
        if folder is None or code is None:
            found = _without_code(target)
        elif why := handler_problem(target):
            found = why, False
        elif target.startswith(COMMAND):
            found = _command(folder, code, target.removeprefix(COMMAND))
        else:
            found = _function(folder, code, *target.split(":", 1))
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


def _command(folder: Path, code: Code, command: str) -> Why | None:
    """A word `./NAME` is a file of WORKER_CODE_DIR. Other words are programs of the pod."""
    words = shlex.split(command)
    name = posixpath.normpath(words[0])
    if not words[0].startswith("./"):
        return None
    if name in code.files:
        is_started = code.files[name].is_executable
        return None if is_started else (f"{folder / name} is not executable: chmod +x {words[0]}", True)
    return code.why_not(name) or f"{folder} has no file {words[0]}", False


def _function(folder: Path, code: Code, module: str, function: str) -> Why | None:
    parts = module.split(".")
    path = "/".join(parts)
    for name in (f"{path}/__init__.py", f"{path}.py"):
        if name in code.files:
            return _in_file(folder / name, code.files[name].content, function.partition(".")[0])
    if parts[0] in sys.stdlib_module_names:
        return None
    if any(
        name.startswith(f"{path}.") and name.endswith(".so") and "/" not in name[len(path) :] for name in code.files
    ):
        return None
    for name in (f"{path}/__init__.py", f"{path}.py"):
        if why := code.why_not(name):
            return why, False
    own = f"{parts[0]}.py" in code.files or any(name.startswith(f"{parts[0]}/") for name in code.files)
    return f"{folder} has no {path}.py", not own


def _in_file(file: Path, text: bytes, name: str) -> Why | None:
    if len(text) > MAX_SOURCE_BYTES:
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError as error:  # the pod's Python may be newer
        return f"{file} line {error.lineno}: {error.msg} (Python {sys.version_info[0]}.{sys.version_info[1]})", True
    except (ValueError, RecursionError, MemoryError):
        return None
    names = set(_defined(tree.body))
    if name in _values(tree.body):
        return f"{name} in {file} is no function", False
    if name in names or names & {"*", "__getattr__"}:
        return None
    functions = sorted(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_")
    has = f"it has {', '.join(functions[:5])}" if functions else "it has no function"
    return f"{file} has no {name}; {has}", False


def _values(body: list[ast.stmt]) -> set[str]:
    """Return the names whose last binding, at the top level, is a literal."""
    found: set[str] = set()
    for statement in body:
        found -= set(_defined([statement]))
        if isinstance(statement, ast.Assign) and isinstance(statement.value, LITERALS):
            found |= {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return found


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
