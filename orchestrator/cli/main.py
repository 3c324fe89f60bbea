"""Runs a command line: `python -m orchestrator <command>`.

Data goes to stdout, progress and errors to stderr. Every command has `--json`. A command's module is imported when the
command runs, so `--help` is fast and works without a database driver. Exit codes: 0 ok, 1 unhealthy or failed, 2 the
plan has changes (or wrong usage), 3 not found, 4 configuration or authentication, 130 interrupted.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.command_table import COMMANDS, EXAMPLES
from orchestrator.cli.examples import added
from orchestrator.cli.program import quoted, suggestion, typed

if TYPE_CHECKING:
    from orchestrator.cli.output import Output
    from orchestrator.errors import Failure

INTERRUPTED = 130
OBJECTS_AT_START = 200_000  # before a garbage collection: those during imports take a quarter of a short command's time

UNKNOWN = re.compile(r"No command \"(.*?)\"\.|No such command '(.*?)'\.")  # ours, and click's in a group

NAMED = 12  # commands that an error names


class Commands(click.Group):
    """The commands of COMMANDS, each imported when needed. The help shows the examples first."""

    def __init__(self, only: Sequence[str] = (), script: str | None = None) -> None:
        """Limit the commands to `only`, for a script. A single command is called without its name."""
        super().__init__(
            name="orchestrator",
            help="Run the GPU pods that a task queue needs, and no more.",
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
            params=[] if only else [_version_option()],
        )
        self._only, self._script = frozenset(only), script

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return every command's name, in the order of the help."""
        return [name for section in COMMANDS.values() for name in section if not self._only or name in self._only]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        where = next(section[cmd_name][0] for section in COMMANDS.values() if cmd_name in section)
        module, _, attribute = where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  a wrong COMMANDS entry is a bug
        line = f"python {self._script}" if self._script else None
        return added(command, cmd_name, f"{line} {cmd_name}" if line and len(self._only) > 1 else line)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or refuse with the most similar name."""
        name = str(args[0]) if args else ""
        known = self.list_commands(ctx)
        if name and not name.startswith("-") and name not in known:
            raise click.UsageError(f"No command {quoted(name)}.{suggestion(name, known)}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then the commands by section, then the options."""
        if not self._only:
            with formatter.section("Examples"):
                formatter.write_dl([(f"{typed()} {line}", what) for line, what in EXAMPLES], col_max=60)
        for title, section in COMMANDS.items():
            rows = [(name, text) for name, (_, text) in section.items() if not self._only or name in self._only]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        click.Command.format_options(self, ctx, formatter)


def main(
    argv: Sequence[str] | None = None,
    *,
    prog_name: str | None = None,
    only: Sequence[str] = (),
    home: Path | None = None,
) -> None:
    """Run a command line (sys.argv by default) and exit with its code.

    `only` limits the commands; a single one is the program itself, without its name on the command line. `home` has the
    file `.env` that is read if the current directory has none.
    """
    from orchestrator.cli.output import Output
    from orchestrator.observability.redaction import redact_uncaught_errors

    redact_uncaught_errors()
    gc.set_threshold(OBJECTS_AT_START, *gc.get_threshold()[1:])
    output, commands = Output(), Commands(only, prog_name if only else None)
    output.owns_process = True
    command = commands.get_command(click.Context(commands), only[0]) if len(only) == 1 else commands
    assert command is not None  # noqa: S101  a script for a command that does not exist is a bug
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    sys.exit(exit_code(command, list(sys.argv[1:] if argv is None else argv), prog_name, output, home))


def exit_code(
    commands: click.Command, argv: list[str], prog_name: str | None, output: "Output", home: Path | None = None
) -> int:
    """Run a command line, show its errors, and return its exit code. `home`: see `main`."""
    from orchestrator.config.env_file import ENV_FILE, BadEnvFile, read_env_file
    from orchestrator.config.errors import SettingsError
    from orchestrator.errors import SETTING, Failure, Failures, from_port_error
    from orchestrator.ports import PortError

    try:
        read_env_file(home / ENV_FILE if home and not os.path.isfile(ENV_FILE) else ENV_FILE)  # noqa: PTH113  it never raises
    except BadEnvFile as error:
        fix = "correct or remove the file; docs/settings.md describes it"
        return output.fail(Failure(SETTING, what=".env cannot be used", why=str(error), fix=fix))
    try:
        code = commands.main(argv, f"python {prog_name}" if prog_name else typed(), standalone_mode=False, obj=output)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return _misused(error, output)
    except SettingsError as error:  # one that shows only in use, such as code that is too large to send
        return output.fail(*(Failure(SETTING, what=what, why=why, fix=fix) for what, why, fix in error.problems))
    except (Failure, Failures, PortError) as error:
        failures = error.failures if isinstance(error, Failures) else [error]
        shown = [from_port_error(one) if isinstance(one, PortError) else one for one in failures]
        return output.fail(*(_with_own_fix(one, commands, argv, prog_name) for one in shown))
    return code if isinstance(code, int) else 0


def _with_own_fix(failure: "Failure", commands: click.Command, argv: Sequence[str], prog_name: str | None) -> "Failure":
    """Replace a general fix: for an argument by the help of its command, for the database by what the settings use."""
    from orchestrator.errors import BAD_ARGUMENT, MIGRATE, NO_DATABASE, OLD_SCHEMA, REACHED

    transport = "DATABASE_URL" if os.environ.get("DATABASE_URL") else "SUPABASE_URL"
    for kind, fixes in ((NO_DATABASE, REACHED), (OLD_SCHEMA, MIGRATE)):
        if failure.kind is kind and failure.fix == kind.fix:
            failure.fix = fixes[transport]
    if failure.kind is not BAD_ARGUMENT or failure.fix != BAD_ARGUMENT.fix:
        return failure
    words, known = [f"python {prog_name}" if prog_name else typed()], commands
    for word in argv:
        found = known.get_command(click.Context(known), word) if isinstance(known, click.Group) else None
        if found is None:
            break
        words, known = [*words, word], found
    failure.fix = f"{' '.join(words)} --help"
    return failure


def _misused(error: click.ClickException, output: "Output") -> int:
    """Show click's usage error in our three lines."""
    from orchestrator.errors import BAD_ARGUMENT, Failure

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None or isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    said, fix = error.format_message(), f"{ctx.command_path} --help"
    if unknown := UNKNOWN.match(said):
        name = unknown[1] or unknown[2]
        known = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else ()
        what = f"No command {quoted(name)}.{suggestion(name, known)}"
        named = ", ".join(known) if len(known) <= NAMED else f"{len(known)} other commands"
        why = f"{ctx.command_path} has {named}"
        return output.fail(Failure(BAD_ARGUMENT, what=what, why=why, fix=fix))
    return output.fail(Failure(BAD_ARGUMENT, why=said, fix=fix))


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            from orchestrator import __version__

            click.echo(__version__)
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show the version."
    )
