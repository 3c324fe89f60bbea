"""The main screen: the queue, its chart, the workers, the tasks and the last decisions."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Sparkline, Static

from orchestrator.cli import explain_view
from orchestrator.cli.output import NARROW_COLUMNS, one_line
from orchestrator.cli.session import utcnow
from orchestrator.cli.task_rows import counted_by_status
from orchestrator.cli.top import actions, cells
from orchestrator.cli.top.detail import WAITING, ConfirmScreen, DetailScreen, output_of
from orchestrator.cli.top.questions import TopState
from orchestrator.cli.top.rows import Rows
from orchestrator.diagnostics import tasks, workers
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.observability.redaction import plain, redact
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.core.policy import Policy

EVERY_S = 2.0  # between two rounds of questions
SHOWN_EVERY_S = 0.5  # how often the age and the open question are shown
SLOW_S = 1.0  # a question that is open longer is named
CAUSE_CHARS = 200
DEPTHS = 300  # points of the chart
TALL = 35  # lines; a lower screen shows fewer decisions


class Top(App[None]):
    """Asks the store one question at a time, in rounds, and shows each answer when it comes."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("l", "logs", "Logs"),
        *actions.BINDINGS,
        ("p", "pause", "Pause"),
        ("e", "ended", "Ended"),
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False),
    ]
    CSS = """
    Static { height: auto; padding: 0 1; }
    Sparkline { height: 2; margin: 0 1; }
    DataTable { height: 1fr; min-height: 3; }
    #workers { height: 3fr; }
    #tasks { height: 2fr; }
    """

    def __init__(self, store: "SqlStore", policy: "Policy", *, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._store, self._policy, self._every_s = store, policy, every_s
        self._depths: deque[tuple[datetime, float]] = deque(maxlen=DEPTHS)
        self._answers, self._one_at_a_time, self._now = TopState(), asyncio.Lock(), asyncio.Event()
        self._main = Screen[object]()  # until the app has made its own

    def compose(self) -> ComposeResult:
        """The widgets from top to bottom."""
        yield Static(WAITING, id="age", markup=False)
        yield Static("", id="queue", markup=False)
        yield Static("", id="chart", markup=False)
        yield Sparkline([], id="depths")
        yield Rows(id="workers", cursor_type="row")
        yield Rows(id="tasks", cursor_type="row")
        yield Static("", id="decisions", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Start to ask."""
        self._main = self.screen
        self._main.query_one("#workers", Rows).focus()
        self.set_interval(SHOWN_EVERY_S, self._show_age)
        self._look()

    @work(group="look")
    async def _look(self) -> None:
        """Ask in rounds until the screen is closed. A question is never cancelled, however slow the database is."""
        while True:
            answered = True
            for name, question in self._answers.questions(self._store):
                async with self._one_at_a_time:
                    answered = await self._answers.ask(name, question) and answered
                with suppress(NoMatches):  # the screen is being closed
                    self._show(name)
                    self._show_age()
            if answered:
                self._answers.completed()
            self._now.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._now.wait()

    def _show_age(self) -> None:
        with suppress(NoMatches):
            self._main.query_one("#age", Static).update(self._age())

    def _age(self) -> Text:
        seen, now_s = self._answers, time.monotonic()
        text, style = f"at {utcnow():%H:%M:%S}Z", ""
        if seen.complete_at_s is not None or seen.leader:
            text += f"  leader {plain(seen.leader['holder'])}" if seen.leader else "  nobody leads"
            style = "" if seen.leader else "bold yellow"
        if seen.complete_at_s is not None:
            text += f"  seen {span(now_s - seen.complete_at_s)} ago"
        if seen.error is not None:
            why = redact(one_line(seen.error, 80))
            return Text(f"{text}: the database does not answer ({why})", style="bold red")
        if seen.asking is not None and now_s - seen.asked_at_s > SLOW_S:
            text += f"  asking the database for {seen.asking}, {span(now_s - seen.asked_at_s)}"
        if seen.first_cause is not None and seen.leader:
            text, style = f"{text}  {plain(one_line(seen.first_cause.text, CAUSE_CHARS))}", "bold yellow"
        return Text(text, style=style)

    def _show(self, name: str) -> None:
        {
            "workers": self._show_workers, "the queue": self._show_queue, "tasks": self._show_tasks,
            "decisions": self._show_decisions,
        }.get(name, lambda: None)()  # fmt: skip

    def _show_queue(self) -> None:
        queue = self._answers.queue
        if queue is None:
            return
        ready, running = sum(pool.claimable for pool in queue.demand), sum(pool.running for pool in queue.demand)
        waiting = sum(pool.queued - pool.claimable for pool in queue.demand)
        paused = f", paused: {', '.join(sorted(queue.paused))}" if queue.paused else ""
        known = self._answers.counts
        counts = {name: known[name] for name in ("Complete", "Failed") if name in known}
        ended = f", {counted_by_status(counts, self._answers.beyond)}" if counts else ""
        text = f"queue: {ready:,} ready, {waiting:,} waiting, {running:,} running{ended}{paused}"
        spent = queue.spent
        text += f"\ncost: {usd(spent.hourly_usd)}/h now, {usd(spent.today_usd)} today (UTC)"
        self._main.query_one("#queue", Static).update(Text(text))
        self._depths.append((utcnow(), float(ready)))
        self._show_chart()

    def _show_chart(self) -> None:
        points = [depth for _, depth in self._depths]
        lasted = max(timedelta(0), self._depths[-1][0] - self._depths[0][0])
        label = f"tasks ready to run, in the last {span(lasted.total_seconds())}: "
        label += f"now {points[-1]:.0f}, lowest {min(points):.0f}, highest {max(points):.0f}"
        self._main.query_one("#chart", Static).update(Text(label, style="bold"))
        self._main.query_one(Sparkline).data = points

    def _show_workers(self) -> None:
        rows, now, width = self._answers.workers, utcnow(), self.size.width
        names = cells.columns(cells.WORKER_COLUMNS, cells.WORKER_FEW, width)
        lines = cells.fitted(names, [cells.worker(row, now) for row in rows], width)
        self._main.query_one("#workers", Rows).replace(names, [row["id"] for row in rows], lines)

    def _show_tasks(self) -> None:
        rows, now, width = self._answers.tasks, utcnow(), self.size.width
        names = cells.columns(cells.TASK_COLUMNS, cells.TASK_FEW, width)
        lines = cells.fitted(names, [cells.task(row, now, width) for row in rows], width)
        self._main.query_one("#tasks", Rows).replace(names, [str(row["id"]) for row in rows], lines)

    def _show_decisions(self) -> None:
        shown = self._answers.decisions[: 6 if self.size.height >= TALL else 2]
        lines = [cells.decision(row, utcnow(), self.size.width - 2) for row in shown]
        self._main.query_one("#decisions", Static).update(
            Text("\n").join([Text("last decisions", style="bold"), *lines])
        )

    def on_resize(self) -> None:
        """Fit the tables to the new size."""
        with suppress(NoMatches):
            for show in (self._show_workers, self._show_tasks, self._show_decisions):
                show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Offer only the actions for the table that has the focus, and none behind another screen."""
        if isinstance(self.screen, DetailScreen | ConfirmScreen):
            return action in {"quit", "dismiss"}
        needs = actions.ACTIONS[str(parameters[0])].needs if action == "change" else ""
        return not needs or needs == self._kind

    @property
    def _kind(self) -> str:
        return "task" if self._main.query("#tasks:focus") else "worker"

    def action_other_table(self) -> None:
        """Select the other table."""
        self._main.query_one("#workers" if self._kind == "task" else "#tasks", Rows).focus()
        self.refresh_bindings()

    def action_ended(self) -> None:
        """Show ended workers too, or hide them again."""
        self._answers.with_ended = not self._answers.with_ended
        self._now.set()

    def selected(self) -> tuple[str, str] | None:
        """Return `worker` or `task`, and the id under the cursor of the table that has the focus."""
        table = self._main.query_one("#tasks" if self._kind == "task" else "#workers", Rows)
        return None if table.under is None else (self._kind, table.under)

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """A click."""
        self.action_explain()

    def action_explain(self) -> None:
        """Explain the row under the cursor."""
        if (chosen := self.selected()) is not None:
            self._explain(*chosen)

    def action_logs(self) -> None:
        """Show the last log lines of the worker or the task under the cursor."""
        if (chosen := self.selected()) is not None:
            self._run_command(f"logs of {chosen[1]}", actions.logs(*chosen))

    def action_pause(self) -> None:
        """Pause spawning, or end all pauses."""
        queue = self._answers.queue
        self.action_change("resume" if queue is not None and queue.paused else "pause")

    def action_change(self, name: str) -> None:
        """Run a command that changes something, after a confirmation."""
        action, chosen = actions.ACTIONS[name], self.selected()
        if action.needs and chosen is None:
            return
        row_id = chosen[1] if action.needs and chosen else ""

        def answered(yes: bool | None) -> None:
            if yes:
                self._run_command(f"{name} {row_id}".strip(), [word.format(id=row_id) for word in action.command])
                self._now.set()

        self.push_screen(ConfirmScreen(action.question.format(id=row_id)), answered)

    @work(exclusive=True, group="told")
    async def _explain(self, kind: str, row_id: str) -> None:
        told = DetailScreen(row_id)
        await self.push_screen(told)
        try:
            async with self._one_at_a_time:  # it waits for the open question, and comes before the next one
                parts = await self._explanation(kind, row_id)
        except PortError as error:
            told.tell(f"the database does not answer: {one_line(str(error))}")
            return
        told.tell(*parts)

    async def _explanation(self, kind: str, row_id: str) -> Sequence[RenderableType]:
        if kind == "worker":
            found = await self._store.explain(row_id)
            now = datetime.fromisoformat(found["now"])
            return list(explain_view.worker(workers.explained(found, self._policy), now))
        found = await self._store.explain_task(row_id)
        if not found["task"]:
            return ["The task does not exist any more."]
        now, narrow = datetime.fromisoformat(found["now"]), self.size.width < NARROW_COLUMNS
        return list(explain_view.task(tasks.explained(found, self._policy), now, narrow=narrow))

    @work(exclusive=True, group="told")
    async def _run_command(self, title: str, command: Sequence[str]) -> None:
        told = DetailScreen(title, f"runs: {' '.join(command)}")
        await self.push_screen(told)
        told.tell(Text(await output_of(*command)))
