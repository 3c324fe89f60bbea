"""The screens on top of the main one: a text that arrives later, and a question before something is changed."""

import asyncio
import sys
from contextlib import suppress
from io import StringIO
from typing import ClassVar

from rich.console import Console, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import Static

from orchestrator.cli.program import as_typed
from orchestrator.observability.redaction import plain, redact

WAITING = "asking the database…"
COMMAND_S = 60.0  # the logs ask S3, then SSH, then the database


class DetailScreen(ModalScreen[None]):
    """A screen with one text. Escape or q closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Back")]
    DEFAULT_CSS = """
    DetailScreen { align: center middle; }
    DetailScreen VerticalScroll { width: 95%; height: 85%; border: solid; padding: 0 1; }
    """

    def __init__(self, title: str, waiting: str = WAITING) -> None:
        super().__init__()
        self._title, self._waiting = title, waiting

    def compose(self) -> ComposeResult:
        """The text, scrollable."""
        with VerticalScroll() as place:
            place.border_title = Text(self._title)
            place.border_subtitle = "escape: back"
            yield Static(self._waiting, id="told", markup=False)

    @property
    def text_width(self) -> int:
        """The columns for the text, without border, padding and scroll bar."""
        return max(40, int(self.app.size.width * 0.95) - 6)

    def tell(self, *parts: RenderableType) -> None:
        """Replace the text, unless the screen was closed. Secrets and control characters are removed."""
        with suppress(NoMatches):
            file = StringIO()
            console = Console(file=file, width=self.text_width, highlight=False, markup=False, emoji=False)
            console.print(*parts, sep="\n")
            text = "\n".join(plain(redact(line.rstrip())) for line in file.getvalue().splitlines())
            self.query_one("#told", Static).update(Text(as_typed(text)))


class ConfirmScreen(ModalScreen[bool]):
    """A question. Only y means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,escape,q,enter", "dismiss(False)", "No"),
    ]
    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen Static { width: 80%; max-width: 90; height: auto; border: solid; padding: 1 2; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and the two keys."""
        yield Static(Text(f"{self._question}\n\ny: yes   n: no"), id="question", markup=False)


async def output_of(*arguments: str) -> str:
    """Run a command of this program and return what it printed, errors included."""
    command = (sys.executable, "-m", "orchestrator", *arguments)
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=both)
    try:
        async with asyncio.timeout(COMMAND_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return f"no answer within {COMMAND_S:.0f} s   fix: python -m orchestrator {' '.join(arguments)}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(errors="replace")
