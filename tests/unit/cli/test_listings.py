"""The columns of lists: as many as fit the terminal, and nothing is wider than it."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli import tables, task_rows
from orchestrator.cli.commands import gpus
from orchestrator.cli.output import Output
from orchestrator.diagnostics.gpu_offers import GpuOffer, PoolUse

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
BORN = "2026-11-23T09:00:00+00:00"


def shown(part: Any, width: int | None) -> list[str]:
    """The lines on a terminal so wide; None: in a pipe."""
    screen = StringIO()
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(file=screen, width=width or 220, force_terminal=bool(width), color_system=None, **plain)
    console.print(part(console))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def output(console: Console) -> Output:
    """An output on that terminal."""
    made = Output()
    made.out = console
    return made


def worker(number: int, **fields: Any) -> dict[str, Any]:
    """A row of a worker."""
    row: dict[str, Any] = {
        "id": f"gpu-20261120_223104-1886500{number}",
        "status": "active",
        "pool": "default",
        "stage": "promoted",
    }
    row |= {"gpu_type": "NVIDIA GeForce RTX 4090", "gpu_count": 1, "pod_id": f"7h9k2m4n6p{number}", "tasks_running": 1}
    row |= {"created_at": BORN, "state_since": BORN, "stage_since": BORN, "last_heartbeat": NOW.isoformat()}
    return row | {"waiting_on": "worker", "waiting_for": "tasks", "price_usd_per_hour": 0.44, "cost_usd": 1.32} | fields


def task(number: int, **fields: Any) -> dict[str, Any]:
    """A row of a task."""
    row: dict[str, Any] = {
        "id": f"6545cbb{number}-13ac-42cf-8f81-c2154cbc4659",
        "status": "Queued",
        "task_type": "travel_segment",
    }
    row |= {"pool": "default", "attempts": 0, "uncounted": 0, "max_attempts": 3, "worker_id": None}
    return row | {"created_at": NOW - timedelta(minutes=5), "waits": {"kind": "worker"}} | fields


@pytest.mark.parametrize(
    ("width", "per_row", "columns"),
    [
        (80, 2, ("worker", "state", "spent")),
        (120, 1, ("worker", "GPU", "waiting on / note")),
        (200, 1, ("worker", "GPU", "pod", "waiting on / note")),
        (None, 1, ("worker", "GPU", "pod", "waiting on / note")),
    ],
)
def test_a_worker_takes_one_line_where_one_is_enough(width: int | None, per_row: int, columns: tuple[str, ...]) -> None:
    """The pool is a column only if there are several."""
    rows = [worker(1), worker(2)]
    lines = shown(lambda console: tables.workers(rows, output(console), NOW), width)
    assert len(lines) == per_row * 3 + 1
    assert all(name in lines[0] for name in columns)
    assert "pool" not in lines[0]
    assert max(map(len, lines)) <= (width or 220)
    lines = shown(lambda console: tables.workers([worker(1), worker(2, pool="big")], output(console), NOW), width)
    assert "pool" in lines[0] + lines[1]


@pytest.mark.parametrize(("width", "whole"), [(80, False), (120, True), (200, True), (None, True)])
def test_ids_of_tasks_are_shortened_only_where_they_do_not_fit(width: int | None, *, whole: bool) -> None:
    """A running task names its worker all the same."""
    running = task(2, status="In Progress", worker_id="gpu-20261120_223104-18865e9b", progress={"fraction": 0.5})
    rows = [task(1), running]
    lines = shown(lambda console: task_rows.listing(rows, output(console), NOW), width)
    assert len(lines) == 3
    assert [line.split()[0] for line in lines[1:]] == [row["id"] if whole else row["id"][:8] for row in rows]
    assert "18865e9b" in lines[2]
    assert max(map(len, lines)) <= (width or 220)


@pytest.mark.parametrize(("width", "note"), [(80, "…/travel.mp4"), (None, "s3://bucket/out/1-f10b0c26a42/travel.mp4")])
def test_a_done_task_takes_one_line_with_its_file(width: int | None, note: str) -> None:
    """The whole address is shown where it fits."""
    done = task(1, status="Complete", output_location="s3://bucket/out/1-f10b0c26a42/travel.mp4")
    lines = shown(lambda console: task_rows.listing([done], output(console), NOW), width)
    assert [line.endswith(note) for line in lines[1:]] == [True]


def test_shortened_ids_stay_different() -> None:
    """More digits are shown if eight do not tell tasks apart."""
    rows = [task(1), task(1, id="6545cbb1-13ac-53cf-8f81-c2154cbc4659")]
    lines = shown(lambda console: task_rows.listing(rows, output(console), NOW), 90)
    assert [line.split()[0] for line in lines[1:]] == ["6545cbb1-13ac-42", "6545cbb1-13ac-53"]


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        ({"kind": "worker"}, "waits for a worker"),
        ({"kind": "retry", "until": NOW + timedelta(seconds=30), "code": "NO_HANDLER"}, "retry in 30s: NO_HANDLER"),
        ({"kind": "scheduled", "until": NOW + timedelta(hours=2)}, "starts in 2h00m"),
        ({"kind": "dependencies", "of": 3, "unmet": 2}, "waits for 2 of 3 tasks"),
        ({"kind": "dependencies", "of": 300, "unmet": None}, "waits for some of 300 tasks"),
        ({"kind": "retry", "until": NOW + timedelta(seconds=5), "code": "no\x1b[31m"}, "retry in 5s: no·[31m"),
    ],
)
def test_a_queued_task_says_what_it_waits_for(waits: dict[str, Any], text: str) -> None:
    """In one line without control characters."""
    assert task_rows.note(task(1, waits=waits), NOW) == text


def test_attempts_given_back_do_not_count() -> None:
    """As in `explain`."""
    assert task_rows.attempts_made(task(1, attempts=3, uncounted=2)) == 1


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ([12.3456, 0.5, None, 0], ["$12.35", "$0.50", "–", "$0.00"]),
        ([0.5, 0.0048], ["$0.5000", "$0.0048"]),
        ([1_240.5, 0.0048], ["$1,240.50", "<0.01"]),
        ([0.00001, 0.02], ["<0.0001", "$0.0200"]),
        ([0.00004999999], ["<0.0001"]),
        ([], []),
    ],
)
def test_a_column_of_money_has_one_precision(amounts: list[float | None], shown: list[str]) -> None:
    """No amount above zero is shown as zero."""
    assert tables.usd_column(amounts) == shown


@pytest.mark.parametrize(("width", "lines", "is_cut"), [(40, 4, True), (80, 2, True), (200, 2, False)])
def test_a_long_failure_takes_two_lines_of_a_list_at_most(width: int, lines: int, is_cut: bool) -> None:
    """Below its row, if the terminal is too narrow for a column of notes."""
    said = "ValueError: " + "the handler did not find what it was told to read, " * 3
    failed = [task(number, status="Failed", failure_code="HANDLER_ERROR", error_message=said) for number in range(3)]
    found = shown(lambda console: task_rows.listing(failed, output(console), NOW), width)
    assert len(found) == lines // 2 + 3 * lines, found
    assert sum("HANDLER_ERROR: ValueError" in line for line in found) == 3
    assert sum(line.endswith("…") for line in found) == (3 if is_cut else 0)


def test_a_phone_shows_whole_ids_and_all_columns() -> None:
    """Columns for which 40 are too few are under their row, and so are their sums."""
    found = shown(lambda console: tables.workers([worker(1), worker(2)], output(console), NOW), 40)
    assert max(map(len, found)) <= 40
    assert found[0].split() == ["worker", "state"]
    assert found[1].split(", ")[:4] == ["  age", "heartbeat", "$/h", "spent"]
    assert any(line.split() == ["gpu-20261120_223104-18865001", "active"] for line in found)
    assert [line.split() for line in found[-2:]] == [["2", "workers"], ["$0.88", "$2.64"]]


@pytest.mark.parametrize(("width", "number", "lines"), [(80, 6, 1), (80, 5, 4), (200, 6, 1)])
def test_a_catalogue_has_one_line_for_each_type(width: int, number: int, lines: int) -> None:
    """A few types show all their places, also on a narrow terminal."""
    places = dict.fromkeys(("CA-MTL-1", "EU-CZ-1", "EU-RO-1", "US-KS-2", "US-TX-3"), "HIGH")
    offer = GpuOffer("NVIDIA GeForce RTX 4090", "SECURE", 0.69, "HIGH", places, (PoolUse("default", 1, True),))
    found = shown(lambda console: gpus.listing([offer] * number, output(console)), width)
    assert len(found) <= 1 + number * lines
    assert max(map(len, found)) <= width
    assert sum("…" in line for line in found) == (number if (width, lines) == (80, 1) else 0)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_cell_that_is_cut_ends_with_an_ellipsis(width: int) -> None:
    """Whatever is too long for the terminal; nothing is cut in a pipe."""
    made = tables.table("schedule", "task type", "url")
    made.add_row("n" * 60, "t" * 60, "u" * 10)
    lines = shown(lambda _: made, width)
    assert any("…" in line for line in lines[1:])
    assert not any("n" * width in line for line in lines)
    assert "n" * 60 in "".join(shown(lambda _: made, None))
