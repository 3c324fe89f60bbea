"""`top`, driven as a person drives it, on a real database."""

import asyncio
import os
import pty
import re
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Static

from orchestrator.cli.top.detail import ConfirmScreen, DetailScreen
from orchestrator.cli.top.rows import Rows
from orchestrator.cli.top.screen import Top
from orchestrator.core.states import State
from tests.process.cli.builders import INHERITED, PROGRAM, ROOT, TIMEOUT_S, Cli, Fleet, run
from tests.unit.core.build import policy

ESCAPES = re.compile(
    r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[@-Z\\-_])", re.DOTALL
)
WAIT_S = 60.0
POLICY = policy()
BREAKS = """
import runpy, sys
from orchestrator.cli.top.screen import Top
Top.compose = lambda self: 1 / 0
sys.argv = ["orchestrator", "top"]
runpy.run_module("orchestrator", run_name="__main__")
"""


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Let the screen go on until this holds."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await pilot.pause(0.05)


def text_of(app: Top, where: str) -> str:
    """The text of one part of the screen; nothing before it is there: a new screen is empty at first."""
    return "".join(str(part.render()) for part in app.screen.query(where).results(Static))


async def quits(pilot: Pilot[None], app: Top, key: str = "q") -> None:
    """Press a key that ends the program with 0. While it ends there may be no screen that the pilot could wait for."""
    await pilot.press(key)
    async with asyncio.timeout(WAIT_S):
        while app.return_code is None:
            await asyncio.sleep(0.05)
    assert app.return_code == 0


async def test_the_screen_shows_the_fleet_and_explains_a_worker(fleet: Fleet) -> None:
    """Queue, cost and workers; enter explains the one under the cursor, escape goes back, q quits."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)
        await until(pilot, lambda: " ready, " in text_of(app, "#queue"))  # how many, the tests before this one say too
        assert "$0.44/h" in text_of(app, "#queue")
        await until(pilot, lambda: "leader the test" in text_of(app, "#age"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen) and "WAITING ON" in text_of(app, "#told"))
        assert worker_id in text_of(app, "#told")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DetailScreen))
        await quits(pilot, app)


async def test_ctrl_c_quits_as_it_ends_other_commands(fleet: Fleet) -> None:
    """A narrow terminal has no room for the key that the footer names."""
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(40, 20)) as pilot:
        await quits(pilot, app, "ctrl+c")


@pytest.mark.parametrize("width", [80, 160])
async def test_the_screen_fits_and_says_what_enter_does(fleet: Fleet, width: int) -> None:
    """The note is there at either width, whole in the table, and the footer names the keys."""
    await fleet.worker()
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)
        table = app.query_one("#workers", Rows)
        [column] = [one for one in table.columns.values() if one.label.plain == "waiting on / note"]
        await until(pilot, lambda: column.content_width > len("waits for operator"))
        assert sum(one.get_render_width(table) for one in table.columns.values()) <= width
        shown = {active.binding.description for active in app.active_bindings.values() if active.binding.show}
        assert {"Explain", "Logs", "Quit"} <= shown


async def test_the_screen_survives_a_database_that_is_gone(fleet: Fleet) -> None:
    """What was seen stays, and its age is said."""
    await fleet.worker()
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "  seen " in text_of(app, "#age"))
        assert app.query_one("#workers", Rows).row_count == 1
        await fleet.db.close()
        await until(pilot, lambda: "the database does not answer" in text_of(app, "#age"))
        assert "  seen " in text_of(app, "#age")
        assert app.query_one("#workers", Rows).row_count == 1


async def test_t_and_y_end_the_worker_as_the_command_does(
    fleet: Fleet, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen runs `terminate` and shows what it says."""
    for name in ("DATABASE_URL", "FLEET_ID"):
        monkeypatch.setenv(name, str(cli.environment[name]))
    worker_id = await fleet.worker(upto=State.ACTIVE)
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert (await fleet.row(worker_id))["drain_requested_at"] is None
        await pilot.press("y")
        await until(
            pilot, lambda: isinstance(app.screen, DetailScreen) and "its end is requested" in text_of(app, "#told")
        )
    assert (await fleet.row(worker_id))["drain_requested_at"] is not None


async def _in_a_terminal(cli: Cli, size: tuple[int, int], *program: str) -> tuple[asyncio.subprocess.Process, int]:
    """Start a program in a terminal of its own. Return it, and the other side of the terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | {"TERM": "xterm-256color"}
    environment |= {name: value for name, value in cli.environment.items() if value is not None}
    process = await asyncio.create_subprocess_exec(
        *program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT, start_new_session=True
    )
    os.close(theirs)
    return process, ours


async def test_a_screen_that_breaks_ends_with_an_error(cli: Cli) -> None:
    """A script that starts it, or a person after it, must not take that for a good end."""
    process, ours = await _in_a_terminal(cli, (24, 80), sys.executable, "-c", BREAKS)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.to_thread(_rest, ours)
            assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)


@pytest.mark.parametrize("size", [(24, 80), (50, 200)])
async def test_it_runs_in_a_terminal_of_any_size_and_leaves_it_as_it_was(
    cli: Cli, fleet: Fleet, size: tuple[int, int]
) -> None:
    """As a program of its own: everything is there within its first screen, q ends it with 0."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    process, ours = await _in_a_terminal(cli, size, *PROGRAM, "top")
    wanted, seen = {worker_id, "tasks ready to run", "last decisions", "Quit", "leader the test"}, ""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not all(words in seen for words in wanted):
                seen += ESCAPES.sub("", (await asyncio.to_thread(os.read, ours, 65_536)).decode(errors="replace"))
            os.write(ours, b"q")
            ending = asyncio.create_task(asyncio.to_thread(_rest, ours))
            assert await process.wait() == 0
            assert await ending
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)


def _rest(terminal: int) -> bool:
    """Read until the other side is closed. Return whether the alternate screen was left."""
    seen = b""
    with suppress(OSError):  # Linux's way of saying that the other side has closed
        while chunk := os.read(terminal, 65_536):
            seen += chunk
    return b"\x1b[?1049l" in seen


async def test_top_without_a_terminal_names_what_to_type(cli: Cli) -> None:
    """Off a terminal it is three lines, not a broken screen."""
    ran = await cli("top")
    assert ran.code == 2
    assert "top needs a terminal" in ran.err
    assert "fix: python -m orchestrator list" in ran.err


async def test_completion_is_a_script_for_each_shell(cli: Cli) -> None:
    """Printed without a database, and it knows the program's name."""
    for shell in ("bash", "zsh", "fish"):
        ran = await cli("completion", shell, DATABASE_URL=None)
        assert ran.code == 0, ran.err
        assert "_ORCHESTRATOR_COMPLETE" in ran.out


async def test_l_shows_what_the_worker_left_in_the_database(
    fleet: Fleet, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `logs` itself, which says which place it used."""
    for name in ("DATABASE_URL", "FLEET_ID"):
        monkeypatch.setenv(name, str(cli.environment[name]))
    worker_id = await fleet.worker(upto=State.ACTIVE)
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)
        await pilot.press("l")
        await until(
            pilot, lambda: isinstance(app.screen, DetailScreen) and "from the database" in text_of(app, "#told")
        )
        assert worker_id in text_of(app, "#told")


async def test_an_answer_that_comes_when_the_screen_is_being_taken_down_is_not_shown(fleet: Fleet) -> None:
    """`q` ends it without a traceback, whatever was under way."""
    app = Top(fleet.store, POLICY, every_s=0.01)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "leader" in text_of(app, "#age"))
        await app.screen.remove_children()
        await pilot.pause(0.2)  # several rounds of questions
        await quits(pilot, app)


async def test_a_text_that_comes_after_its_screen_was_closed_is_not_shown(fleet: Fleet) -> None:
    """Logs take seconds; escape goes back at once, and the screen goes on."""
    app = Top(fleet.store, POLICY, every_s=3_600)
    async with app.run_test() as pilot:
        told = DetailScreen("logs")
        await app.push_screen(told)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DetailScreen))
        told.tell(Text("too late"))
        await quits(pilot, app)


async def test_without_textual_top_says_what_to_install() -> None:
    """The extra is named, and what does without it."""
    absent = "import sys; sys.modules['textual'] = None; from orchestrator.cli.main import main; main(['top'])"
    ran = await run(sys.executable, "-c", absent)
    assert ran.code == 4
    assert "textual, which is not installed" in ran.err
    assert "pip install 'textual" in ran.err
