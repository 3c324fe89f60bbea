"""The screen of `orchestrator top`: the queue, the workers, what they cost and what was decided last; it only reads."""

import asyncio
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Sparkline, Static

from orchestrator.cli import explain_view, tables
from orchestrator.cli.output import NARROW_COLUMNS, ago, gpu_name, one_line, relative, span, usd
from orchestrator.cli.session import utcnow
from orchestrator.cli.worker_rows import flags, note, totals
from orchestrator.diagnostics import workers
from orchestrator.observability.redaction import plain, redact
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.core.model import Policy

EVERY_S = 2.0
ANSWER_S = 2.0  # a database slower than this counts as not answering, and what is shown grows old visibly
LOGS_S = 20.0  # S3, then SSH, then the database
LOG_LINES = 200
DEPTHS = 120  # points of the sparkline: four minutes
DECISIONS = 4
COLUMNS = ("worker", "state", "GPU", "age", "heartbeat", "$/h", "spent", "waiting on / note")
FEW = ("worker", "state", "age", "waiting on / note")  # on a narrow screen; enter shows the rest
CELL_PADDING = 2  # a blank on each side
NOTHING_YET = "asking the database…"


class Told(ModalScreen[None]):
    """A text over the screen, until escape or q."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Back")]
    DEFAULT_CSS = """
    Told { align: center middle; }
    Told VerticalScroll { width: 95%; height: 85%; border: solid; padding: 0 1; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """The text's place, scrollable."""
        with VerticalScroll() as place:
            place.border_title = self._title  # a worker's id: no markup can be in it
            place.border_subtitle = "escape: back"
            yield Static(NOTHING_YET, id="told", markup=False)

    def tell(self, text: Text) -> None:
        """Show this instead, if somebody still looks."""
        hidden = plain(redact(text.plain))
        with suppress(NoMatches):
            self.query_one("#told", Static).update(text if hidden == text.plain else Text(hidden))


class Workers(DataTable[Text]):
    """The table; its enter explains, and the footer says so."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "app.explain", "Explain")]


class Top(App[None]):
    """Asks the store every EVERY_S and shows the answer, or how old the last one is."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("l", "logs", "Logs"),
        ("q", "quit", "Quit"),
    ]
    CSS = """
    Static { height: auto; padding: 0 1; }
    Sparkline { height: 2; margin: 0 1; }
    DataTable { height: 1fr; }
    """

    def __init__(self, store: "SqlStore", policy: "Policy", *, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._store, self._policy, self._every_s = store, policy, every_s
        self._depths: deque[float] = deque(maxlen=DEPTHS)
        self._seen_at: datetime | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(NOTHING_YET, id="age", markup=False)
        yield Static("", id="queue", markup=False)
        yield Sparkline(self._depths, id="depths")
        yield Workers(id="workers", cursor_type="row", zebra_stripes=False)
        yield Static("", id="decisions", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask."""
        self.query_one(Workers).focus()
        self.set_interval(self._every_s, self._look)
        self._look()

    @work(exclusive=True, group="look")
    async def _look(self) -> None:
        """Ask once, within ANSWER_S."""
        try:
            async with asyncio.timeout(ANSWER_S):
                rows, report, decisions = await asyncio.gather(
                    self._store.workers(), self._store.report(), self._store.decisions(DECISIONS)
                )
        except (PortError, TimeoutError) as error:
            with suppress(NoMatches):  # the screen is being taken down: somebody has pressed q meanwhile
                self._say_old(error)
            return
        with suppress(NoMatches):
            self._show(rows, report, decisions)

    def _show(
        self, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
    ) -> None:
        now = self._seen_at = utcnow()
        self.query_one("#age", Static).update(_head(report, now))
        self._show_queue(report, rows)
        self._show_workers(rows, now)
        shown = [Text.assemble(("last decisions", "bold")), *(_decision(row, now) for row in decisions)]
        self.query_one("#decisions", Static).update(Text("\n").join(shown))

    def _say_old(self, error: Exception) -> None:
        age = "never seen" if self._seen_at is None else f"seen {span(ago(self._seen_at, utcnow()))} ago"
        why = redact(one_line(str(error), 80)) or f"no answer within {ANSWER_S:.0f} s"
        self.query_one("#age", Static).update(Text(f"{age}: the database does not answer ({why})", style="bold red"))

    def _show_queue(self, report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        waiting, running, done = (
            sum(p[name] for p in report["queue"]) for name in ("claimable", "running", "completed_1h")
        )
        held = sum(p["dependencies"] + p["scheduled"] for p in report["queue"])
        self._depths.append(float(waiting))
        self.query_one(Sparkline).data = list(self._depths)
        day = usd(float(report["spent"]["last_day_usd"]))
        text = f"queue: {waiting} claimable, {held} waiting, {running} running, {done} done in 1 h"
        cost = f"cost: {usd(totals(rows)['usd_per_hour'])}/h, {day} in 24 h"
        self.query_one("#queue", Static).update(Text(f"{text}\n{cost}"))

    def _show_workers(self, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
        """The rows in the list's order; the cursor stays on its worker."""
        table = self.query_one(Workers)
        under = self._under()
        names = FEW if self.size.width < NARROW_COLUMNS else COLUMNS
        anew = [column.value for column in table.columns] != list(names)
        table.clear(columns=anew)
        for name in names if anew else ():
            table.add_column(name, key=name)
        ids = [row["id"] for row in rows]
        for worker_id, cells in zip(ids, self._fitting(names, rows, now), strict=True):
            table.add_row(*cells, key=worker_id)
        if under in ids:
            table.move_cursor(row=ids.index(under))

    def _fitting(
        self, names: Sequence[str], rows: Sequence[Mapping[str, Any]], now: datetime
    ) -> Sequence[Sequence[Text]]:
        """A line for each worker; only the note, which is last, is cut, and enter shows the whole of it."""
        made = [dict(zip(COLUMNS, _cells(row, now), strict=True)) for row in rows]
        taken = sum(max(len(name), *(len(cells[name]) for cells in made), 0) for name in names[:-1]) if made else 0
        room = max(self.size.width - taken - CELL_PADDING * len(names), len(names[-1]))
        for cells in made:
            cells[names[-1]].truncate(room, overflow="ellipsis")
        return [[cells[name] for name in names] for cells in made]

    def _under(self) -> str | None:
        """The worker under the cursor."""
        table = self.query_one(Workers)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """A click."""
        self.action_explain()

    def action_explain(self) -> None:
        """Why the worker under the cursor is where it is."""
        if (name := self._under()) is not None:
            self._explain(name)

    def action_logs(self) -> None:
        """What the worker under the cursor said last."""
        if (name := self._under()) is not None and not isinstance(self.screen, Told):
            self._logs(name)

    @work(exclusive=True, group="told")
    async def _explain(self, name: str) -> None:
        told = Told(name)
        await self.push_screen(told)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._store.explain(name)
        except (PortError, TimeoutError) as error:
            told.tell(Text(f"the database does not answer: {one_line(str(error)) or 'too late'}", style="bold red"))
            return
        told.tell(explain_view.worker(workers.explained(found, self._policy), datetime.fromisoformat(found["now"])))

    @work(exclusive=True, group="told")
    async def _logs(self, name: str) -> None:
        """By the command itself, which knows the places and says which it used."""
        told = Told(f"logs of {name}")
        await self.push_screen(told)
        told.tell(Text(await _logged(name)))


async def _logged(name: str) -> str:
    command = (sys.executable, "-m", "orchestrator", "logs", name, "--lines", str(LOG_LINES))
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=both)
    try:
        async with asyncio.timeout(LOGS_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return f"the logs did not come within {LOGS_S:.0f} s   fix: orchestrator logs {name}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return plain(out.decode(errors="replace"))


def _head(report: Mapping[str, Any], now: datetime) -> Text:
    leader = f"leader {report['leader']['holder']}" if report["leader"] else "nobody leads"
    return Text(f"at {now:%H:%M:%S}Z  {plain(leader)}", style="" if report["leader"] else "bold yellow")


def _cells(row: Mapping[str, Any], now: datetime) -> list[Text]:
    gpu = gpu_name(row.get("gpu_type") or row.get("instance_type"), row.get("gpu_count"))
    ages = (span(ago(row["created_at"], now)), span(ago(row.get("last_heartbeat"), now)))
    money = (usd(row.get("price_usd_per_hour")), usd(row.get("cost_usd")))
    said = Text(redact(plain(note(row, now))), style="bold red" if flags(row, now) else "")
    return [Text(row["id"]), tables.state(row["status"]), Text(plain(gpu)), *map(Text, (*ages, *money)), said]


def _decision(row: Mapping[str, Any], now: datetime) -> Text:
    return Text(f"{relative(row['at'], now):>12}  {row['pool']}: {redact(one_line(row['rule'], 140))}")
