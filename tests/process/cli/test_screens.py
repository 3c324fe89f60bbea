"""docs/screens.md shows what the commands print."""

from testbed.shared_services import SharedServices
from tests.process.cli import screens


async def test_the_page_of_screens_is_what_the_commands_print(shared: SharedServices) -> None:
    """Except for times, amounts and ids."""
    made, there = screens.compared(await screens.page(shared)), screens.compared(screens.PAGE.read_text())
    assert made == there, "regenerate: .venv/bin/python -m tests.process.cli.screens"
