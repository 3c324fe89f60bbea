"""While an answer is being gathered: what is waited for, and an end that waits for nothing more."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LEAVE_S = 1.0  # for threads that still wait for a name server or for S3, once the answer is there


class Progress:
    """What is still being asked, counted."""

    def __init__(self, bar: "Bar") -> None:
        self._bar, self._task = bar, bar.add_task("asking", total=0)
        self._waiting: dict[str, None] = {}

    def expect(self, name: str) -> None:
        """One part more."""
        self._waiting[name] = None
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + 1)

    def done(self, name: str) -> None:
        """It is there; what is waited for is named."""
        del self._waiting[name]
        self._bar.update(self._task, advance=1, description=f"asking {next(iter(self._waiting), '')}")


@contextmanager
def counting(output: Output, what: str | None, most_s: float) -> Iterator[Progress]:
    """On a terminal a bar on stderr that is gone afterwards; elsewhere one line that says how long `what` may take."""
    from rich import progress as rich

    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.BarColumn(20),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn(f"of at most {most_s:g} s"),
    )
    shown = output.err.is_terminal
    if what and not shown:
        output.say(f"{what}, for at most {most_s:g} s")
    with rich.Progress(*columns, console=output.err, transient=True, disable=not shown) as bar:
        yield Progress(bar)


def leave(output: Output, code: int) -> int:
    """The exit code; a process of our own does not outlive its answer by more than LEAVE_S, whatever threads do."""

    def cut_short() -> None:
        sys.stdout.flush()
        os._exit(code)

    if output.owns_process:
        late = threading.Timer(LEAVE_S, cut_short)
        late.daemon = True
        late.start()
    return code
