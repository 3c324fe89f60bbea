"""`top`, driven as a person drives it, on a real database."""

import asyncio
import sys
from collections.abc import Callable

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from orchestrator.cli.top_screen import Told, Top
from orchestrator.core.states import State
from tests.process.cli.builders import Cli, Fleet, run
from tests.unit.core.build import policy

WAIT_S = 10.0
POLICY = policy()


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Let the screen go on until this holds."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await pilot.pause(0.05)


def said(app: Top, where: str) -> str:
    """The text of one part of the screen."""
    return str(app.screen.query_one(where, Static).render())


async def test_the_screen_shows_the_fleet_and_explains_a_worker(fleet: Fleet) -> None:
    """Queue, cost and workers; enter explains the one under the cursor, escape goes back, q quits."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: app.query_one(DataTable).row_count == 1)
        assert " claimable" in said(app, "#queue")  # how many, the tests before this one say too
        assert "$0.44/h" in said(app, "#queue")
        assert "leader the test" in said(app, "#age")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Told) and "WAITING ON" in said(app, "#told"))
        assert worker_id in said(app, "#told")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Told))
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize("width", [80, 160])
async def test_the_screen_fits_and_says_what_enter_does(fleet: Fleet, width: int) -> None:
    """The note is there at either width, whole in the table, and the footer names the keys."""
    await fleet.worker()
    app = Top(fleet.store, POLICY, every_s=0.2)
    async with app.run_test(size=(width, 24)) as pilot:
        await until(pilot, lambda: app.query_one(DataTable).row_count == 1)
        table = app.query_one(DataTable)
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
        await until(pilot, lambda: app.query_one(DataTable).row_count == 1)
        await fleet.db.close()
        await until(pilot, lambda: "the database does not answer" in said(app, "#age"))
        assert said(app, "#age").startswith("seen ")
        assert app.query_one(DataTable).row_count == 1


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
        await until(pilot, lambda: app.query_one(DataTable).row_count == 1)
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, Told) and "from the database" in said(app, "#told"))
        assert worker_id in said(app, "#told")


async def test_an_answer_that_comes_when_the_screen_is_being_taken_down_is_not_shown(fleet: Fleet) -> None:
    """`q` ends it without a traceback, whatever was under way."""
    app = Top(fleet.store, POLICY, every_s=3_600)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "leader" in said(app, "#age"))
        await app.screen.remove_children()
        await app.workers.wait_for_complete([app._look()])


async def test_a_text_that_comes_when_nobody_waits_for_it_any_more_is_not_shown(fleet: Fleet) -> None:
    """Logs take seconds; escape goes back at once, and the screen goes on."""
    app = Top(fleet.store, POLICY, every_s=3_600)
    async with app.run_test() as pilot:
        told = Told("logs")
        await app.push_screen(told)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Told))
        told.tell(Text("too late"))
        await pilot.press("q")
    assert app.return_code == 0


async def test_without_textual_top_says_what_to_install() -> None:
    """The extra is named, and what does without it."""
    absent = "import sys; sys.modules['textual'] = None; from orchestrator.cli.main import main; main(['top'])"
    ran = await run(sys.executable, "-c", absent)
    assert ran.code == 4
    assert "textual, which is not installed" in ran.err
    assert "pip install 'textual" in ran.err
