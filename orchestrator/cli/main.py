"""The one command line: `python -m orchestrator <command>`.

Data goes to stdout, narration and errors to stderr; `--json` everywhere. A command's module is imported when it is
called, so that `--help` is quick and works without a database driver. Exit codes: 0 ok, 1 unhealthy or failed, 2 the
plan has changes (or usage), 3 not found, 4 configuration or authentication, 130 interrupted.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from orchestrator.cli.examples import PROGRAM, added

if TYPE_CHECKING:
    from orchestrator.cli.output import Output

INTERRUPTED = 130

# Section -> command -> (where it is, what it does). The short help stands here so that listing imports nothing.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "The loop": {
        "run": ("orchestrator.cli.commands.loop:run", "Run the orchestrator until SIGTERM or Ctrl-C."),
        "once": ("orchestrator.cli.commands.loop:once", "Run one tick and stop; as leader, or not at all."),
        "plan": (
            "orchestrator.cli.commands.loop:plan",
            "Show what the next tick would do; write nothing. Exit 2 if it would act.",
        ),
        "pause": ("orchestrator.cli.commands.loop:pause", "Stop spawning, for a reason; what runs goes on."),
        "resume": ("orchestrator.cli.commands.loop:resume", "Spawn again."),
    },
    "Why": {
        "explain": (
            "orchestrator.cli.commands.explain:explain",
            "Why a worker, a task or the scaling is where it is; what a code means.",
        ),
        "health": (
            "orchestrator.cli.commands.health:health",
            "The daily check: verdict, what to do, the numbers. Exit 1 if unhealthy.",
        ),
        "diagnose": (
            "orchestrator.cli.commands.diagnose:diagnose",
            "The whole report: settings, database, RunPod, every worker, network, and what to do.",
        ),
        "verify": (
            "orchestrator.cli.commands.verify:verify",
            "What is proven of a worker; with --now, of its pod as it is.",
        ),
        "timeline": ("orchestrator.cli.commands.timeline:timeline", "Everything that happened to a worker, in order."),
        "cost": (
            "orchestrator.cli.commands.cost:cost",
            "Dollars by worker, pool, kind or task, and RunPod's bill beside them.",
        ),
        "efficiency": (
            "orchestrator.cli.commands.efficiency:efficiency",
            "Tasks per hour, utilisation, queue depth and dollars per task, by window.",
        ),
    },
    "Workers": {
        "list": ("orchestrator.cli.commands.workers:list_workers", "The workers, one line each."),
        "top": (
            "orchestrator.cli.commands.top:top",
            "The queue, the workers, cost and decisions, live on the whole screen.",
        ),
        "status": ("orchestrator.cli.commands.workers:status", "Everything known about one worker."),
        "logs": ("orchestrator.cli.commands.logs:logs", "A worker's logs, from S3; also after its end."),
        "shutdown": (
            "orchestrator.cli.commands.shutdown:shutdown",
            "End every worker at once, and see with RunPod that nothing is left.",
        ),
        "sync": ("orchestrator.cli.commands.sync:sync", "Pods without rows, rows without pods; and have them mended."),
        "spawn": ("orchestrator.cli.commands.requests:spawn", "Ask for one more worker."),
        "terminate": (
            "orchestrator.cli.commands.requests:terminate",
            "Ask for a worker's end: drained, logs kept, pod deleted.",
        ),
    },
    "Tasks": {
        "tasks": ("orchestrator.cli.commands.tasks:tasks", "Submit, list, show, cancel and retry tasks."),
    },
    "Setting up": {
        "doctor": (
            "orchestrator.cli.commands.doctor:doctor",
            "Check every part: settings, database, RunPod, SSH, S3, clock.",
        ),
        "migrate": ("orchestrator.cli.commands.loop:migrate", "Bring the database's schema up to this version."),
        "completion": (
            "orchestrator.cli.commands.completion:completion",
            "The script that completes commands in your shell.",
        ),
    },
}

EXAMPLES = (
    ("python -m orchestrator migrate", "prepare DATABASE_URL"),
    ("python -m orchestrator run", "the daemon"),
    ("python -m orchestrator list --watch", "the workers, as they change"),
    ("python -m orchestrator top", "queue, workers and cost, live"),
    ("python -m orchestrator explain <worker>", "why it is where it is"),
    ("python -m orchestrator explain scaling", "why there are so many"),
    ("python -m orchestrator logs <worker> -f", "what it says"),
    ("python -m orchestrator tasks submit --type T", "put work in the queue"),
)


class Commands(click.Group):
    """The commands of COMMANDS, imported one at a time; examples come first in the help."""

    def __init__(self, only: Sequence[str] = (), script: str | None = None) -> None:
        """`only` these commands, of a script of this name; a single one is called without its name."""
        super().__init__(
            name="orchestrator",
            help="Turn the depth of a task queue into exactly as many GPU pods as it needs.",
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
            params=[] if only else [_version_option()],
        )
        self._only, self._script = frozenset(only), script

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Every command's name, in the order of the help."""
        return [name for section in COMMANDS.values() for name in section if not self._only or name in self._only]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, from its module."""
        if cmd_name not in self.list_commands(ctx):
            return None
        where = next(section[cmd_name][0] for section in COMMANDS.values() if cmd_name in section)
        module, _, attribute = where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  a wrong COMMANDS entry is a bug
        line = f"python {self._script}" if self._script else None
        return added(command, cmd_name, f"{line} {cmd_name}" if line and len(self._only) > 1 else line)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, then the commands by section, then the options."""
        if not self._only:
            with formatter.section("Examples"):
                formatter.write_dl(EXAMPLES, col_max=60)
        for title, section in COMMANDS.items():
            rows = [(name, text) for name, (_, text) in section.items() if not self._only or name in self._only]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        click.Command.format_options(self, ctx, formatter)


def main(argv: Sequence[str] | None = None, *, prog_name: str | None = None, only: Sequence[str] = ()) -> None:
    """Run a command line (sys.argv by default) and exit with its code.

    `only` limits the commands; a single one is the program itself, without its name on the command line.
    """
    from orchestrator.cli.output import Output
    from orchestrator.observability.redaction import guard_last_words

    guard_last_words()
    output, commands = Output(), Commands(only, prog_name if only else None)
    output.owns_process = True
    command = commands.get_command(click.Context(commands), only[0]) if len(only) == 1 else commands
    assert command is not None  # noqa: S101  a door to a command that is not there is a bug
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    sys.exit(_exit_code(command, list(sys.argv[1:] if argv is None else argv), prog_name, output))


def _exit_code(commands: click.Command, argv: list[str], prog_name: str | None, output: "Output") -> int:
    from orchestrator.errors import Failure, Failures, from_port_error
    from orchestrator.ports import PortError

    try:
        code = commands.main(argv, prog_name or "orchestrator", standalone_mode=False, obj=output)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return _misused(error, prog_name, output)
    except (Failure, Failures, PortError) as error:
        failures = error.failures if isinstance(error, Failures) else [error]
        return output.fail(*(from_port_error(one) if isinstance(one, PortError) else one for one in failures))
    return code if isinstance(code, int) else 0


def _misused(error: click.ClickException, prog_name: str | None, output: "Output") -> int:
    """What click has to say of how it was called, in our three lines."""
    from orchestrator.errors import BAD_ARGUMENT, Failure

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None or isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    line = f"python {ctx.command_path}" if prog_name else ctx.command_path.replace("orchestrator", PROGRAM, 1)
    return output.fail(Failure(BAD_ARGUMENT, why=error.format_message(), fix=f"{line} --help"))


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            from orchestrator import __version__

            click.echo(__version__)
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version."
    )
