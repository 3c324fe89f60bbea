"""The command itself: help, terminals, and the script under the name that operators know."""

import asyncio
import os
import pty
import re
import secrets
import select
import shlex
import signal
import sys
import termios
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click
import pytest

from orchestrator import errors
from orchestrator.cli.command_table import COMMANDS
from orchestrator.cli.command_table import EXAMPLES as FIRST
from orchestrator.cli.examples import EXAMPLES
from orchestrator.cli.main import Commands
from orchestrator.cli.output import Output
from orchestrator.cli.program import PROGRAM
from orchestrator.core.states import State
from orchestrator.errors import KINDS
from tests.process.cli.builders import INHERITED, ROOT, TIMEOUT_S, Cli, Fleet, run

ESCAPE = b"\x1b["
QUESTION = b"[y/N]:"


async def test_help_shows_examples_first_and_loads_no_driver() -> None:
    """So that it is quick, and works where hardly anything does."""
    look = (
        "import sys; from orchestrator.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print({'psycopg', 'boto3', 'runpod', 'pydantic'} & set(sys.modules), file=sys.stderr)"
    )
    ran = await run(sys.executable, "-c", look)
    assert ran.code == 0
    assert ran.err == "set()\n"
    positions = [ran.out.index(title) for title in ("Examples:", "The loop:", "Workers:", "Options:")]
    assert positions == sorted(positions)
    for section in COMMANDS.values():
        for name, (_, text) in section.items():
            assert f"  {name} " in ran.out, name
            assert text.split()[0] in ran.out


def test_every_command_can_be_loaded_and_explains_itself() -> None:
    """The table of commands names what is there."""
    commands = Commands()
    for section in COMMANDS.values():
        for name in section:
            command = commands.get_command(None, name)  # type: ignore[arg-type]  # not used for loading
            assert command is not None
            assert command.help


def _all(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command by its whole name, or every command of a group."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _all(child, f"{name} {child.name}")
    else:
        yield name, command


def test_every_command_shows_examples_that_can_be_typed() -> None:
    """At least one, each on a line of its own for pasting, and each is understood."""
    commands = Commands()
    named = [one for name in commands.list_commands(None) for one in _all(commands.get_command(None, name), name)]  # type: ignore[arg-type]
    assert {name for name, _ in named} == set(EXAMPLES)
    for name, command in named:
        help_text = command.get_help(click.Context(command, max_content_width=80, info_name=name))
        lines = [line.strip() for line in help_text.splitlines() if line.startswith(f"    {PROGRAM} {name}")]
        assert len(lines) == len(EXAMPLES[name]), help_text
        for line in lines:
            words = shlex.split(line.removeprefix(f"{PROGRAM} {name}"))
            command.make_context(name, words, obj=Output())  # raises what is wrong with them


async def test_every_script_shows_examples_under_its_own_name() -> None:
    """As the guide types them."""
    scripts = {
        "spawn_gpu.py list": "python spawn_gpu.py list --all",
        "comprehensive_diagnostics.py": "python comprehensive_diagnostics.py --save-report",
        "fetch_worker_logs.py": "python fetch_worker_logs.py 18865e9b --lines 500",
        "shutdown_all_workers.py": "python shutdown_all_workers.py --dry-run",
        "sync_runpod_database.py": "python sync_runpod_database.py analyze",
    }
    runs = (run(sys.executable, *f"scripts/{script} --help".split()) for script in scripts)
    for ran, example in zip(await asyncio.gather(*runs), scripts.values(), strict=True):
        assert f"{example}\n" in ran.out, ran.out + ran.err


def test_error_ids_are_unique_and_stable_in_form() -> None:
    """E, three digits; one of the five exit codes."""
    kinds = [one for one in vars(errors).values() if isinstance(one, errors.ErrorKind)]
    assert sorted(kind.id for kind in kinds) == sorted(KINDS)
    assert all(name == kind.id and len(name) == 4 and name[1:].isdigit() for name, kind in KINDS.items())
    assert {kind.exit_code for kind in KINDS.values()} <= {1, 2, 3, 4}


async def test_unknown_commands_and_options_are_usage(cli: Cli) -> None:
    """Exit 2, on stderr, in the three lines of every error; the fix can be pasted."""
    whose = {("no-such",): "", ("list", "--no-such"): " list", ("tasks", "no-such"): " tasks", ("status",): " status"}
    for arguments, path in whose.items():
        ran = await cli(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error[E052]: ")
        assert ran.err.endswith(f"\nfix: {PROGRAM}{path} --help\n")
        assert arguments[-1] in ran.err
    assert (await cli("--version")).out == "0.1.0\n"
    (error,) = (await cli("status", "--json")).json()["errors"]
    assert (error["id"], error["fix"]) == ("E052", f"{PROGRAM} status --help")
    wrong = await run(sys.executable, "scripts/spawn_gpu.py", "no-such")
    assert (wrong.code, wrong.err.splitlines()[-1]) == (2, "fix: python spawn_gpu.py --help")


async def test_what_the_database_driver_logs_is_no_line_of_a_command(cli: Cli) -> None:
    """An error has its three lines alone."""
    warns = (
        "import asyncio, logging; from orchestrator.cli.session import opened_store\n"
        "async def main():\n"
        "    async with opened_store(): logging.getLogger('psycopg.pool').warning('query cancellation interrupted')\n"
        "asyncio.run(main())"
    )
    ran = await run(sys.executable, "-c", warns, environment=cli.environment)
    assert (ran.code, ran.err) == (0, "")


async def test_a_report_in_a_pipe_loads_no_progress_bar(cli: Cli) -> None:
    """Its import takes a thirtieth of the processor time of `health`."""
    look = (
        "import sys; from orchestrator.cli.main import main\n"
        "try: main(['health'])\n"
        "finally: print('rich.progress' in sys.modules, file=sys.stderr)"
    )
    ran = await run(sys.executable, "-c", look, environment=cli.environment)
    assert ran.err == "False\n", ran.err


async def test_a_misspelt_word_is_answered_with_the_similar_one(cli: Cli) -> None:
    """Commands, options, choices, sections, codes and pools."""
    asked = {
        ("lst",): "list", ("tasks", "sumbit"): "submit", ("list", "--al"): "--all",
        ("doctor", "sttings"): "settings", ("explain", "AUTH_FAILD"): "AUTH_FAILED",
        ("spawn", "--pool", "defualt"): "default", ("tasks", "list", "--status", "complet"): "Complete",
        ("list", "--state", "actve"): "active", ("sync", "analyse"): "analyze",
        ("logs", "--stream", "sys"): "system", ("cost", "--by", "tenat"): "tenant",
    }  # fmt: skip
    for arguments, meant in asked.items():
        ran = await cli(*arguments)
        assert re.search(rf"Did you mean.* ['\"]{meant}['\"]", ran.err), ran.err


async def test_the_fix_of_an_argument_is_the_help_of_its_command(cli: Cli) -> None:
    """To be pasted, with the group of the command and the program as it was typed."""
    asked = {("tasks", "show", "zzz"): "./run tasks show", ("efficiency", "--window", "1x"): "./run efficiency"}
    for arguments, command in asked.items():
        ran = await cli(*arguments, ORCHESTRATOR_CALLED_AS="./run")
        assert (ran.code, ran.err.splitlines()[-1]) == (2, f"fix: {command} --help")


@pytest.mark.parametrize("called_as", ["./run", "/srv/gpu/run"])
async def test_help_and_fixes_name_the_program_as_it_was_typed(cli: Cli, called_as: str) -> None:
    """`./run` sets a variable. A value that cannot be shown is not used."""
    ran = await cli("list", "--help", ORCHESTRATOR_CALLED_AS=called_as)
    assert f"Usage: {called_as} list" in ran.out
    assert f"    {called_as} list --all\n" in ran.out
    assert PROGRAM not in ran.out
    for arguments in (("no-such",), ("explain", "E999"), ("doctor", "--repair")):
        ran = await cli(*arguments, ORCHESTRATOR_CALLED_AS=called_as)
        assert f"fix: {called_as} " in ran.err
    assert f"fix: {PROGRAM} " in (await cli("no-such", ORCHESTRATOR_CALLED_AS="\x1b[31m")).err


def test_yes_means_force_for_every_command_that_asks() -> None:
    """Both names, one parameter."""
    commands = Commands()
    named = [one for name in commands.list_commands(None) for one in _all(commands.get_command(None, name), name)]  # type: ignore[arg-type]
    asking = {
        name: option.opts
        for name, command in named
        for option in command.params
        if "--force" in option.opts or "--yes" in option.opts
    }
    assert {"shutdown", "sync", "terminate", "tasks cancel", "tasks retry", "init"} <= set(asking)
    assert all({"--force", "--yes"} <= set(opts) for opts in asking.values()), asking


async def test_help_is_whole_on_a_terminal_of_80_columns(cli: Cli) -> None:
    """Each example on one line with what it does, and no description that breaks off."""
    first, tasks = await asyncio.gather(cli("--help", COLUMNS="80"), cli("tasks", "--help", COLUMNS="80"))
    for line, what in FIRST:
        assert re.search(rf"^  {re.escape(f'{PROGRAM} {line}')} +{re.escape(what)}$", first.out, re.MULTILINE), line
    assert "..." not in first.out.partition("Examples:")[2] + tasks.out.partition("Commands:")[2]


def test_the_installed_command_is_there() -> None:
    """`orchestrator`, which completion is made for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["orchestrator"].partition(":")
    assert callable(getattr(import_module(module), name))


async def test_without_its_packages_the_program_says_so() -> None:
    """To a bare Python; not with a traceback."""
    ran = await run(sys.executable, "-S", "-m", "orchestrator", "list")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error[E002]: ")
    assert "fix: " in ran.err


async def _on_a_terminal(cli: Cli, *arguments: str, answer: bytes | None = b"", **changes: str) -> tuple[int, bytes]:
    """Exit code, and all that a terminal of 80 columns got to see; answer None is Ctrl-C."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | {"TERM": "xterm-256color"}
    env |= {name: value for name, value in cli.environment.items() if value is not None} | changes
    command = [sys.executable, "-m", "orchestrator", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=ROOT, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while (chunk := await asyncio.to_thread(_read, ours)) is not None:
                seen += chunk
                if not seen.rstrip().endswith(QUESTION):
                    continue
                if answer is None:
                    # As often as a person would: one that comes just before Python reads is seen only after the line.
                    with suppress(ProcessLookupError):
                        process.send_signal(signal.SIGINT)
                else:
                    os.write(ours, answer)
                    answer = b""
            return await process.wait(), seen
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)


def _read(terminal: int) -> bytes | None:
    """What came, nothing after a second of silence, None once the other side has closed."""
    if not select.select([terminal], [], [], 1.0)[0]:
        return b""
    try:
        return os.read(terminal, 65_536) or None
    except OSError:  # Linux's way of saying that it has
        return None


async def test_a_terminal_gets_colours_unless_it_declines(cli: Cli, fleet: Fleet) -> None:
    """And no line wider than it is."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    code, seen = await _on_a_terminal(cli, "list")
    assert code == 0
    assert ESCAPE in seen
    assert worker_id.encode() in seen
    code, seen = await _on_a_terminal(cli, "list", NO_COLOR="1")
    assert code == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", seen)
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", seen.decode())
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0), (None, 130)])
async def test_a_terminal_is_asked_before_anything_is_ended(
    cli: Cli, fleet: Fleet, answer: bytes | None, code: int
) -> None:
    """No is exit 1, Ctrl-C is 130; only yes does it."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    ended, seen = await _on_a_terminal(cli, "terminate", worker_id, answer=answer)
    assert ended == code, seen
    assert b"Terminate " + worker_id.encode() in seen
    assert ((await fleet.row(worker_id))["drain_requested_at"] is not None) is (code == 0)


@pytest.mark.parametrize("place", ["scripts", "elsewhere"])
async def test_the_script_runs_from_anywhere(cli: Cli, fleet: Fleet, tmp_path: Path, place: str) -> None:
    """`python spawn_gpu.py list` works in any directory."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    cwd = {"scripts": ROOT / "scripts", "elsewhere": tmp_path}[place]
    script = {"scripts": "spawn_gpu.py", "elsewhere": f"{ROOT}/scripts/spawn_gpu.py"}[place]
    ran = await run(sys.executable, script, "list", cwd=cwd, environment=cli.environment)
    assert ran.code == 0, ran.err
    assert worker_id in ran.out


async def test_the_script_has_its_four_commands_and_no_other(cli: Cli) -> None:
    """It runs the same commands and is not another program."""
    ran = await run(sys.executable, "scripts/spawn_gpu.py", "--help")
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in ("list", "status", "spawn", "terminate"))
    assert "migrate" not in ran.out
    assert (await run(sys.executable, "scripts/spawn_gpu.py", "migrate", environment=cli.environment)).code == 2


async def test_a_script_finds_the_env_file_of_its_repository(cli: Cli, tmp_path: Path) -> None:
    """From any directory without one; paths in it are relative to the repository."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "scripts").mkdir(parents=True)
    (home / "handlers").mkdir()
    elsewhere.mkdir()
    for name in ("spawn_gpu.py", "_entry.py"):
        (home / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    for package in ("orchestrator", "worker"):
        (home / package).symlink_to(ROOT / package)
    database = cli.environment["DATABASE_URL"]
    (home / ".env").write_text(f"DATABASE_URL='{database}'\nWORKER_CODE_DIR=handlers\n")
    others = {name: value for name, value in cli.environment.items() if name != "DATABASE_URL"}
    ran = await run(sys.executable, str(home / "scripts" / "spawn_gpu.py"), "list", cwd=elsewhere, environment=others)
    assert (ran.code, ran.out) == (0, "No active workers found.\n"), ran.err
    (elsewhere / ".env").write_text("DATABASE_URL=mysql://nobody\n")
    ran = await run(sys.executable, str(home / "scripts" / "spawn_gpu.py"), "list", cwd=elsewhere, environment=others)
    assert (ran.code, "DATABASE_URL cannot be used" in ran.err) == (4, True), ran.err


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "scripts").glob("*.py")))
async def test_importing_a_script_does_nothing(script: str) -> None:
    """Not even an import of the project."""
    look = f"import sys; sys.path.insert(0, 'scripts'); import {script}; print([m for m in sys.modules if 'orch' in m])"
    ran = await run(sys.executable, "-c", look)
    assert (ran.code, ran.out, ran.err) == (0, "[]\n", "")


async def test_the_script_finds_the_repositorys_own_interpreter(cli: Cli, tmp_path: Path) -> None:
    """With a bare Python it starts again in .venv; without one it says what to do."""
    copy = tmp_path / "scripts" / "spawn_gpu.py"
    copy.parent.mkdir()
    for name in ("spawn_gpu.py", "_entry.py"):
        copy.with_name(name).write_text((ROOT / "scripts" / name).read_text())
    (tmp_path / "orchestrator").symlink_to(ROOT / "orchestrator")
    (tmp_path / "worker").symlink_to(ROOT / "worker")
    bare = [sys.executable, "-S", str(copy), "list"]
    ran = await run(*bare, environment=cli.environment)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error[E002]")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    ran = await run(*bare, environment=cli.environment)
    assert (ran.code, ran.out) == (0, "No active workers found.\n"), ran.err


async def test_code_that_is_too_large_to_send_is_named_by_every_command_that_needs_it(cli: Cli, tmp_path: Path) -> None:
    """With the fix and without a traceback. `doctor` finds it before money is spent."""
    (tmp_path / "handler.py").write_text("def run(params, task): ...\n")
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate(51 << 20)
    code = {
        "WORKER_CODE_DIR": str(tmp_path),
        "WORKER_HANDLERS": "t=handler:run",
        "RUNPOD_API_KEY": f"rpa_{secrets.token_hex(8)}",
    }
    words = ("explain scaling", "plan", "handlers test t --params {}", "doctor settings")
    for word, ran in zip(words, await asyncio.gather(*(cli(*word.split(), **code) for word in words)), strict=True):
        said = ran.out + ran.err
        assert ran.code in {1, 4}, (word, said)
        assert "larger than 50 MB (counted up to model.bin)" in " ".join(said.split()), (word, said)
        assert "fix: keep models and data out of WORKER_CODE_DIR" in said, (word, said)
        assert "Traceback" not in said


@pytest.mark.parametrize(
    "proxies",
    [{"NO_PROXY": "localhost,::1/128", "HTTPS_PROXY": "proxy.corp:3128"}, {"ALL_PROXY": "socks5://127.0.0.1:9"}],
    ids=["network", "socks"],
)  # fmt: skip
async def test_no_command_ends_at_a_proxy_of_the_environment_with_a_traceback(
    cli: Cli, s3_environment: Mapping[str, str], proxies: dict[str, str]
) -> None:
    """It goes past the proxy, or names the variable."""
    given = {
        **s3_environment,
        **proxies,
        "RUNPOD_API_KEY": f"rpa_{secrets.token_hex(8)}",
        "SUPABASE_URL": "https://abc.supabase.co",
    }
    given |= {"SUPABASE_SERVICE_ROLE_KEY": "sb_secret_0123456789abcdef", "RUNPOD_API_BASE_URL": "https://127.0.0.1:1"}
    remote = {**given, "RUNPOD_API_BASE_URL": "https://runpod.invalid"}
    runs = await asyncio.gather(
        cli("health", **given), cli("gpus", **given), cli("gpus", **remote), cli("tasks", "output", "0" * 32, **given),
        cli("list", **{**given, "DATABASE_URL": ""}), cli("doctor", "runpod", "clock", **remote),
    )  # fmt: skip
    for ran in runs:
        assert "Traceback" not in ran.out + ran.err
    if "NO_PROXY" not in proxies:
        (name,) = proxies
        assert f"error[E001]: {name} cannot be used" in runs[2].err
        assert f"error[E001]: {name} cannot be used" in runs[4].err
