"""Progress while a report is gathered, and an exit that does not wait for threads."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LEAVE_S = 1.0  # for threads that still wait for a name server or S3 after the answer is complete


class Progress:
    """Counts the parts that have not answered yet, and shows them if there is a bar."""

    def __init__(self, bar: "Bar | None" = None) -> None:
        self._bar = bar
        if bar is not None:
            self._task = bar.add_task("asking", total=0)
        self._waiting: dict[str, None] = {}

    def expect(self, name: str) -> None:
        """Add a part."""
        self._waiting[name] = None
        if self._bar is not None:
            self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + 1)

    def done(self, name: str) -> None:
        """Mark a part as done, and show the next one."""
        del self._waiting[name]
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"asking {next(iter(self._waiting), '')}")


@contextmanager
def amount(output: Output, what: str, total: int | None, *, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of `total` (things, or bytes) is done. Nothing without a terminal, or for JSON."""
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(20),
        rich.DownloadColumn() if unit == "bytes" else rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    shown = output.err.is_terminal and not output.json
    with rich.Progress(*columns, console=output.err, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


@contextmanager
def counting(output: Output, what: str | None, most_s: float) -> Iterator[Progress]:
    """Show a progress bar on stderr; without a terminal, one line with the longest duration of `what`."""
    if what and not output.err.is_terminal:
        output.say(f"{what}, for at most {most_s:g} s")
    if not output.err.is_terminal:
        yield Progress()
        return
    from rich import progress as rich  # a thirtieth of a short command's time

    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.BarColumn(20),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn(f"of at most {most_s:g} s"),
    )
    with rich.Progress(*columns, console=output.err, transient=True) as bar:
        yield Progress(bar)


def leave(output: Output, code: int) -> int:
    """Return the exit code, or exit after LEAVE_S if threads still run in a process of our own."""

    def cut_short() -> None:
        sys.stdout.flush()
        os._exit(code)

    if output.owns_process:
        late = threading.Timer(LEAVE_S, cut_short)
        late.daemon = True
        late.start()
    return code
