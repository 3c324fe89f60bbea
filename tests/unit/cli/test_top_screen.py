"""The screen of `top` in front of a database of any speed: a store whose answers come when the test says so."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from orchestrator.adapters.store import SqlStore
from orchestrator.cli.top import screen
from orchestrator.cli.top.detail import ConfirmScreen
from orchestrator.cli.top.rows import Rows
from orchestrator.cli.top.screen import Top
from orchestrator.core.model import Demand, Spent
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.ports import DatabaseHalf, Unavailable
from tests.unit.core.build import policy

Answer = TypeVar("Answer")
WAIT_S = 60.0
NOW = datetime.now(UTC)
WORKER = "gpu-20261123_065803-fdadd9df"
ENDED = "gpu-20261123_065801-00000000"
TASK = "6545cbb7-13ac-42cf-8f81-c2154cbc4659"


def worker(worker_id: str, **changes: Any) -> dict[str, Any]:
    """A worker's row that was created 90 s ago."""
    row: dict[str, Any] = dict.fromkeys(
        ("health", "metadata", "held_back", "exit_cause", "failure_code", "drain_requested_at", "deadline_at")
    )
    row |= {"id": worker_id, "status": "active", "pool": "default", "gpu_type": "NVIDIA GeForce RTX 4090"}
    row |= {"gpu_count": 1, "price_usd_per_hour": 0.69, "cost_usd": 0.01, "stage": "promoted", "pod_id": "p1"}
    row |= {"created_at": (NOW - timedelta(seconds=90)).isoformat(), "state_since": NOW.isoformat()}
    row |= {"last_heartbeat": NOW.isoformat(), "waiting_on": "worker", "waiting_for": "tasks", "tasks_running": 1}
    return row | changes


def task(status: str, **changes: Any) -> dict[str, Any]:
    """A task's row."""
    row: dict[str, Any] = {"id": TASK, "status": status, "task_type": "travel_segment", "attempts": 2, "uncounted": 1}
    row |= {"max_attempts": 3, "created_at": NOW.isoformat(), "worker_id": WORKER}
    return row | changes


HALTED = {"pool": "default", "code": "BALANCE", "means": "too little money", "fix": "add funds"}


class SlowStore:
    """Answers when `answers` is set. It counts the questions that are open at the same time, and those cancelled."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.open = self.most_open = self.cancelled = 0
        self.error: Exception | None = None

    async def _answer(self, answer: Answer) -> Answer:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.open -= 1
        if self.error:
            raise self.error
        return answer

    async def workers(self, *, all: bool, limit: int) -> list[dict[str, Any]]:  # noqa: A002
        ended = worker(ENDED, status="terminated", terminated_at=(NOW - timedelta(seconds=30)).isoformat())
        return await self._answer([worker(WORKER), *([ended] if all else [])])

    async def snapshot(self) -> DatabaseHalf:
        demand = (Demand("default", 7, 4, {"dependencies": 2}, None),)
        half = DatabaseHalf(NOW, (), demand, 0, {}, {}, {}, (), frozenset(), Spent(1.5, 0.1, 2.76), {}, None)
        return await self._answer(half)

    async def leadership(self) -> dict[str, Any]:
        gone = Condition(ConditionKind.HALTED, "default", HALTED, impact=Impact.WAIT, pools=("default",)).as_json()
        return await self._answer({"leader": {"holder": "host-1"}, "conditions": [gone]})

    @property
    def find(self) -> "SlowStore":
        return self

    async def tasks(self, wanted: Mapping[str, Any], limit: int) -> dict[str, Any]:
        running = task("In Progress", progress={"fraction": 0.61, "message": "frame 88"})
        done = task("Complete", id=TASK.replace("6", "7"), progress={"fraction": 0.9}, output_location="s3://b/k")
        return await self._answer({"tasks": [running] if wanted else [done], "counts": {"Complete": 1}})

    async def decisions(self, limit: int) -> list[dict[str, Any]]:
        rule = "9 tasks, 3 per GPU: 3 workers, " * 20
        return await self._answer([{"at": NOW.isoformat(), "pool": "default", "rule": rule}] * limit)


def top(store: SlowStore, every_s: float = 3_600) -> Top:
    """The screen on this store."""
    return Top(cast("SqlStore", store), policy(), every_s=every_s)


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Let the screen go on until this holds."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await pilot.pause(0.02)


def lines(app: Top) -> list[str]:
    """What the terminal shows, line by line."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def age(app: Top) -> str:
    """The first line."""
    return str(app.query_one("#age", Static).render())


async def test_one_question_at_a_time_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database slower than the refresh gets no second question, and the first one is not cancelled."""
    monkeypatch.setattr(screen, "SLOW_S", 0.1)
    store = SlowStore()
    app = top(store, every_s=0.05)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "asking the database for workers" in age(app))
        await pilot.pause(0.3)  # several times the refresh
        assert (store.most_open, store.cancelled) == (1, 0)
        store.answers.set()
        await until(pilot, lambda: "seen 0s ago" in age(app))
        assert app.query_one("#workers", Rows).row_count == 1
        assert (store.most_open, store.cancelled) == (1, 0)


async def test_what_was_seen_stays_while_the_database_is_away_and_it_comes_back_by_itself() -> None:
    """With the reason and the age of what is shown."""
    store = SlowStore()
    store.answers.set()
    app = top(store, every_s=0.05)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "seen 0s ago" in age(app))
        store.error = Unavailable("connection refused")
        await until(pilot, lambda: "the database does not answer (connection refused)" in age(app))
        assert "seen " in age(app)
        assert app.query_one("#workers", Rows).row_count == 1
        store.error = None
        await until(pilot, lambda: "does not answer" not in age(app))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
async def test_the_whole_screen_is_used_and_every_key_is_shown(width: int, height: int) -> None:
    """Workers, tasks with progress, the chart with its label, decisions in the last lines, the keys below them."""
    store = SlowStore()
    store.answers.set()
    app = top(store)
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, lambda: "last decisions" in "\n".join(lines(app)) and "seen" in age(app))
        await until(pilot, lambda: "Quit" in lines(app)[-1])  # the keys are drawn after the rest
        shown = lines(app)
        assert len(shown) == height
        assert all(len(line) <= width for line in shown)
        assert [key for key in ("Explain", "Table", "Logs", "Terminate", "Spawn", "Pause", "Ended", "Quit")
                if key not in shown[-1]] == []  # fmt: skip
        text = "\n".join(shown)
        assert "RunPod refuses" in age(app)  # the first cause of what is wrong
        assert "queue: 7 ready, 2 waiting, 4 running, 1 Complete" in text
        assert "tasks ready to run, in the last " in text
        assert "now 7, lowest 7, highest 7" in text
        assert (TASK if width == 200 else f" {TASK[:8]}  ") in text
        assert "61% frame 88" in text
        assert "90%" not in text  # of a task that is Complete
        decisions = [line for line in shown if "9 tasks" in line]
        assert len(decisions) == (6 if height == 50 else 2)
        assert shown[-2] == decisions[-1]


async def test_an_ended_worker_shows_its_life_and_nothing_of_a_live_one() -> None:
    """`e` shows ended workers too, and hides them again."""
    store = SlowStore()
    store.answers.set()
    app = top(store)
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)
        await pilot.press("e")
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 2)
        # The columns get the widths of the new row one refresh later.
        await until(pilot, lambda: any(ENDED in line and " terminated " in line for line in lines(app)))
        (row,) = [line for line in lines(app) if ENDED in line]
        assert row.split()[1:8] == ["terminated", "RTX", "4090", "1m00s", "–", "–", "$0.01"]
        await pilot.press("e")
        await until(pilot, lambda: app.query_one("#workers", Rows).row_count == 1)


async def test_a_change_is_asked_first_and_only_y_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys belong to the table that has the focus; the command is the one that a person would type."""
    ran: list[tuple[str, ...]] = []

    async def output_of(*arguments: str) -> str:
        ran.append(arguments)
        return "done"

    monkeypatch.setattr(screen, "output_of", output_of)
    store = SlowStore()
    store.answers.set()
    app = top(store)

    async def press(key: str, answer: str) -> str:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and bool(app.screen.query("#question")))
        question = str(app.screen.query_one("#question", Static).render())
        await pilot.press(answer)
        await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
        return question

    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.query_one("#tasks", Rows).row_count == 2)
        assert f"Terminate worker {WORKER}?" in await press("t", "n")
        await press("t", "enter")
        await press("t", "escape")
        await pilot.press("c")  # a task's key
        await pilot.pause(0.05)
        assert not isinstance(app.screen, ConfirmScreen)
        assert ran == []
        await press("t", "y")
        await until(pilot, lambda: len(ran) == 1)
        await pilot.press("escape", "tab")
        assert f"Cancel task {TASK}?" in await press("c", "y")
        await until(pilot, lambda: len(ran) == 2)
        await pilot.press("escape")
        await press("p", "y")
        await until(pilot, lambda: len(ran) == 3)
    assert [words[:2] for words in ran] == [("terminate", WORKER), ("tasks", "cancel"), ("pause", "--reason")]
