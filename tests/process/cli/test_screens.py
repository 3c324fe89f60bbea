"""docs/screens.md shows what the commands print."""

from testbed.shared_services import SharedServices
from tests.process.cli import screens


async def test_the_page_of_screens_is_what_the_commands_print(shared: SharedServices) -> None:
    """Except for times, amounts and ids."""
    made, there = screens.compared(await screens.page(shared)), screens.compared(screens.PAGE.read_text())
    differing = [f"{one}\nis on the page\n{other}" for one, other in zip(made, there, strict=False) if one != other]
    assert made == there, "\n".join(["regenerate: .venv/bin/python -m tests.process.cli.screens", *differing])
