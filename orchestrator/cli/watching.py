"""Refreshes a list on the terminal until Ctrl-C. If the database does not answer, it shows the age of the list."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli.output import Output, one_line
from orchestrator.cli.session import utcnow
from orchestrator.diagnostics.amounts import ago, clock, span
from orchestrator.ports import Unavailable

EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class WatchedView:
    """One answer of the database, for a person and for a program."""

    body: RenderableType
    document: Mapping[str, Any]
    warning: str | None = None


async def watch(output: Output, ask: Callable[[], Awaitable[WatchedView]]) -> NoReturn:
    """Show what `ask` returns, again every EVERY_S seconds. With --json, one document for each answer."""
    from rich.live import Live

    with Live(console=output.out, auto_refresh=False, transient=False) as live:
        body: RenderableType = Text("asking the database…", style="dim")
        seen_at: datetime | None = None
        while True:
            try:
                seen = await ask()
                seen_at = utcnow()
                body, line = seen.body, Text(f"at {clock(seen_at)}", style="dim")
                if seen.warning:
                    line = Text(seen.warning, style="bold yellow")
                if output.json:
                    output.document(**seen.document)
            except Unavailable as error:
                age = "never seen" if seen_at is None else f"seen {span(ago(seen_at, utcnow()))} ago"
                line = Text(f"{age}: the database does not answer ({one_line(str(error), 80)})", style="bold red")
            if not output.json:
                live.update(Group(body, line), refresh=True)
                if not output.out.is_terminal:
                    output.show(Group(body, line))
            await asyncio.sleep(EVERY_S)
