"""`what-if`: a trace under both rules of scaling. It needs no database."""

import asyncio
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.cli.main import Commands
from orchestrator.cli.output import Output
from tests.process.cli.builders import Cli, Ran

HEADER = "arrival_s,duration_s,pool\n"
NO_DATABASE = Cli({})


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A task every half hour, with some at once."""
    path = tmp_path / "tasks.csv"
    lines = [f"{number // 3 * 1_800},{20 + number % 7},p{number % 2}\n" for number in range(150)]
    path.write_text(HEADER + "".join(lines))
    return str(path)


async def asked(path: str, *options: str) -> Ran:
    return await NO_DATABASE("what-if", "--trace", path, *options)


@pytest.mark.parametrize("width", [80, 200])
async def test_the_table_fits_the_terminal(trace: str, width: int) -> None:
    """With every column, and what follows from it in words."""
    output, screen = Output(), StringIO()
    plain = {"highlight": False, "markup": False, "emoji": False}
    output.out = Console(file=screen, width=width, force_terminal=True, color_system=None, **plain)  # type: ignore[arg-type]
    command = ("what-if", "--trace", trace, "--boot", "60", "--usd-per-hour", "0.44")
    await asyncio.to_thread(Commands().main, [*command], "orchestrator", standalone_mode=False, obj=output)
    text = screen.getvalue()
    assert [line for line in text.splitlines() if len(line.rstrip()) > width] == []
    assert "…" not in text
    words = " ".join(text.split())
    names = ("fixed learned change", "cost $", "most expensive day", "boots", "wait p50", "wait p95", "wait max")
    assert [name for name in (*names, "cost + waiting $") if name not in words] == []
    assert "150 tasks in 1.0 days; a boot takes 60 s, at most 20 workers per pool." in words
    assert "learned costs " in words


async def test_anyone_can_recompute_the_result_from_its_json(trace: str) -> None:
    """The tasks are in the order of the trace."""
    for policy in ("fixed", "learned"):
        ran = await asked(trace, "--boot", "60", "--policy", policy, "--json")
        assert ran.code == 0, ran.err
        answer = ran.json()
        pods, tasks = answer["pods"], answer["tasks"]
        assert answer["policy"] == policy
        assert answer["outcome"]["gpu_s"] == pytest.approx(sum(pod["ended"] - pod["asked"] for pod in pods))
        waits = [task["start"] - number // 3 * 1_800 for number, task in enumerate(tasks)]
        assert answer["outcome"]["waited_s"] == pytest.approx(sum(waits))
        assert all(pods[task["pod"]]["pool"] == f"p{number % 2}" for number, task in enumerate(tasks))


async def test_a_budget_is_kept_and_what_it_cannot_pay_is_named(trace: str) -> None:
    ran = await asked(trace, "--usd-per-hour", "1", "--daily-usd", "0.001")
    assert "No recommendation: the budget leaves tasks undone (fixed 150, learned 150)." in ran.out
    ran = await asked(trace, "--usd-per-hour", "1", "--daily-usd", "5", "--json")
    assert ran.json()["outcome"]["most_on_a_day_gpu_s"] / 3_600 <= 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: it names no column arrival_s and no column duration_s"),
        (HEADER, "line 1: it has no tasks"),
        (HEADER + "1,2\n", "line 2: it has 2 columns, fewer than the first line"),
        (HEADER + "nan,2,a\n", "line 2: arrival_s 'nan' is not a number from 0 to 1e+10"),
        (HEADER + "1,inf,a\n", "line 2: duration_s 'inf' is not a number from 0 to 2.592e+06"),
        (HEADER + "-1,2,a\n", "line 2: arrival_s '-1' is not a number"),
        (HEADER + "1e300,2,a\n", "line 2: arrival_s '1e300' is not a number"),
        (HEADER + "1," + "9" * 90_000 + ",a\n", "line 2: duration_s '" + "9" * 40 + "…' is not a number"),
        (HEADER + "5,2,a\n4,2,a\n", "line 3: the task arrives before the one in the line above"),
        (HEADER + "0,2,a\n400000000,2,a\n", "line 3: the task arrives more than ten years after the first one"),
        (HEADER + "1,2,\n", "line 2: pool '' is not a name of 1 to 63 characters"),
        (HEADER + "1,2,\x1b[31m\n", "line 2: pool "),
        (HEADER + "1,2," + "a" * 200_000 + "\n", "line 2: it is not CSV: field larger than field limit"),
        (HEADER + "".join(f"1,2,{name}\n" for name in range(1_001)), "line 1002: a trace has at most 1,000 pools"),
    ],
)
async def test_a_trace_that_cannot_be_used_is_refused_with_the_line(tmp_path: Path, text: str, why: str) -> None:
    """And with what to do; nothing of it reaches the terminal as a control sequence."""
    path = tmp_path / "tasks.csv"
    path.write_text(text)
    ran = await asked(str(path))
    assert ran.code == 2
    assert "error[E052]: the trace cannot be used" in ran.err
    assert f"why: {why}" in ran.err
    assert "\nfix: " in ran.err
    assert "\x1b" not in ran.err
    assert len(ran.err) < 500


async def test_a_file_of_a_spreadsheet_is_read(trace: str) -> None:
    """It begins with a byte order mark, and its lines end with two characters."""
    text = await asyncio.to_thread(Path(trace).read_text)
    plain = (await asked(trace)).out
    await asyncio.to_thread(Path(trace).write_bytes, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert (await asked(trace)).out == plain


async def test_a_file_that_is_no_text_or_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    for name in ("x", "missing"):
        ran = await asked(str(tmp_path / name))
        assert (ran.code, "error[E052]: the trace cannot be read" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    "options",
    [("--boot", "nan"), ("--boot", "-1"), ("--wait-price", "inf"), ("--max", "0"), ("--daily-usd", "3"),
     ("--policy", "x")],
)  # fmt: skip
async def test_an_option_beyond_its_bounds_is_refused(trace: str, options: tuple[str, str]) -> None:
    ran = await asked(trace, *options, "--json")
    assert ran.code == 2
    assert json.loads(ran.out)["errors"][0]["id"] == "E052"
