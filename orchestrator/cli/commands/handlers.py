"""`handlers new`: a small handler to start from. `handlers test`: one task on this machine, in the real agent."""

import json
import keyword
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from orchestrator.cli import options
from orchestrator.cli.fixes import whole
from orchestrator.cli.handler_lines import HandlerLines, fix_of
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.program import PROGRAM
from orchestrator.diagnostics.amounts import octets
from orchestrator.errors import BAD_ARGUMENT, SETTING, Failure, Failures
from orchestrator.observability.redaction import plain

if TYPE_CHECKING:
    from orchestrator.cli.local_run import Ended
    from orchestrator.config.settings import Settings

Explained = Callable[[str], tuple[str, str | None]]  # the text of a failure -> as it is shown, and its fix
CODE_DIR = Path("handlers")  # if WORKER_CODE_DIR is not set
FUNCTION = "run"  # the function in a file of `handlers new`
TASK_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
TEMPLATE = '''\
"""The handler of the task type {task_type}. docs/handlers.md describes params, task and results."""


def {function}(params, task):
    print("params:", params)  # goes to the log of the task
    task.progress(0.5, "half done")
    path = task.dir / "{module}.txt"
    path.write_text(f"hello {{params.get('name', 'world')}}\\n")
    return task.upload(path)  # stores the file in S3; the row's output_location names it
'''


@click.group()
def handlers() -> None:
    """Write handlers and try them on this machine."""


@handlers.command()
@click.argument("task_type")
@json_option
@click.pass_obj
def new(output: Output, task_type: str) -> int:
    """Write a small handler for TASK_TYPE into WORKER_CODE_DIR (default: handlers/), and show the settings to add."""
    module = _module(task_type)
    settings = _settings()
    folder = settings.worker_code_dir or CODE_DIR
    path = folder / f"{module}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(task_type=task_type, module=module, function=FUNCTION))
    except OSError as error:
        if isinstance(error, FileExistsError) and error.filename == str(path):
            raise Failure(BAD_ARGUMENT, why=f"{path} exists", fix="choose another name, or remove the file") from None
        why, fix = f"{path} cannot be written: {error.strerror}", f"make {folder} a folder that you can write to"
        raise Failure(BAD_ARGUMENT, why=why, fix=fix) from None
    known = [(name, what) for name, what in settings.worker_handlers if name != task_type]
    listed = ",".join(f"{name}={what}" for name, what in [*known, (task_type, f"{module}:{FUNCTION}")])
    lines = {"WORKER_CODE_DIR": str(folder), "WORKER_HANDLERS": listed}
    if output.json:
        output.document(file=str(path), settings=lines)
        return 0
    output.say(f"Wrote {path}. The orchestrator needs these settings:")
    output.show("\n".join(f"{name}={value}" for name, value in lines.items()))
    output.say(f'Try it here: {PROGRAM} handlers test {task_type} --params \'{{"name": "you"}}\'')
    return 0


@handlers.command()
@click.argument("task_type")
@click.option("--params", default="{}", help="The parameters of the task, as JSON; @FILE reads a file.")
@click.option(
    "-o", "--output", "target", type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the outputs.  [default: outputs/TASK_TYPE]",
)  # fmt: skip
@click.option("--timeout-s", default=3_600.0, show_default=True, type=click.FloatRange(0.001), help="Its timeout_s.")
@json_option
@click.pass_obj
def test(output: Output, task_type: str, params: str, target: Path | None, timeout_s: float) -> int:
    """Run one task of TASK_TYPE on this machine, in the agent's child process. Exit 1 if it fails.

    The handler comes from WORKER_HANDLERS, or from the file of `handlers new`. It gets the variables that WORKER_ENV
    names. WORKER_SETUP_COMMAND does not run: it would change this machine.
    """
    from orchestrator.cli.local_run import LocalTask, run_here
    from orchestrator.pods.bundle import build_bundle

    settings = _settings()
    folder, handler = _found(settings, task_type)
    bundle = build_bundle(folder, settings.secrets())
    given = options.params(params)
    task = LocalTask(task_type, handler, given, timeout_s, settings.worker_python, dict(settings.handler_env))

    lines = HandlerLines(folder)

    def show(kind: str, text: str) -> None:
        if (line := lines.shown(text) if kind == "log" else text) is not None:
            output.say(f"{kind:<8}  {line}", "" if kind == "log" else "cyan")

    output.say(f"Runs {handler} of {folder} in the agent, with {settings.worker_python}.")
    ended = run_here(task, bundle, target or Path("outputs") / task_type, show)
    return _report(output, ended, lambda text: (lines.named(text), fix_of(lines.named(text), handler, task.python)))


def _report(output: Output, ended: "Ended", explained: Explained) -> int:
    files: list[dict[str, Any]] = [{"path": str(path), "bytes": path.stat().st_size} for path in ended.outputs]
    if output.json:
        output.document(
            ok=ended.failure is None, seconds=round(ended.seconds, 2), output_location=ended.location,
            result_data=ended.result, failure=ended.failure, outputs=files,
        )  # fmt: skip
        return 0 if ended.failure is None else 1
    for file in files:
        output.say(f"output    {file['path']} ({octets(file['bytes'])})")
    if ended.failure is None:
        output.show(Text(f"Complete in {ended.seconds:.1f} s", style="green"))
        output.show(f"output_location: {ended.location}", f"result_data: {json.dumps(ended.result)}")
        return 0
    return _report_failure(output, ended.failure, ended.seconds, explained)


def _report_failure(output: Output, failure: Any, seconds: float, explained: Explained) -> int:
    from orchestrator.core.task_failures import TaskFailure

    code, retried = failure["code"], "is tried again" if failure.get("retryable", True) else "is not tried again"
    output.show(Text(f"Failed after {seconds:.1f} s: {code} ({failure.get('exit_class')})", style="bold red"))
    message, fix = explained(plain(str(failure["message"])))
    output.show(message)
    if code in set(TaskFailure):
        row = TaskFailure(code).row
        output.show(f"{row.means} On a worker, such a task {retried}.")
    if fix:
        output.show(whole(f"fix: {fix}"))
    return 1


def _settings() -> "Settings":
    """The settings of the worker programs. Problems with other settings do not matter here."""
    from orchestrator.config.environment import usable

    settings, problems = usable()
    ours = [Failure(SETTING, what=p.what, why=p.why, fix=p.fix) for p in problems if p.what.startswith("WORKER_")]
    if ours:
        raise Failures(ours)
    return settings


def _module(task_type: str) -> str:
    """The module for a task type. Raises Failure for a name that cannot be one."""
    module = task_type.replace("-", "_")
    if not TASK_TYPE.fullmatch(task_type) or keyword.iskeyword(module):
        raise Failure(BAD_ARGUMENT, why=f"{task_type!r} is no name: letters, digits, '-' and '_', at most 63")
    if module in sys.stdlib_module_names:
        raise Failure(BAD_ARGUMENT, why=f"a file {module}.py would hide Python's own module {module}")
    return module


def _found(settings: "Settings", task_type: str) -> tuple[Path, str]:
    """The folder and the handler of a task type. Raises Failure."""
    folder = settings.worker_code_dir or CODE_DIR
    handler = dict(settings.worker_handlers).get(task_type)
    if handler is None and (folder / f"{task_type.replace('-', '_')}.py").is_file():
        handler = f"{task_type.replace('-', '_')}:{FUNCTION}"
    if handler is None:
        known = ", ".join(name for name, _ in settings.worker_handlers) or "none"
        why = f"WORKER_HANDLERS names no handler for {task_type!r} (it names {known}), and {folder} has no such file"
        raise Failure(BAD_ARGUMENT, why=why, fix=f"{PROGRAM} handlers new {task_type}")
    return folder, handler
