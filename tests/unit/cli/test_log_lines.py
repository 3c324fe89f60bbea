"""Lines of logs: the time that a line has, several sources in one order, and how a line is shown."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest

from orchestrator.cli.log_lines import LogLine, LogPrinter, merged, readable, stamp
from orchestrator.cli.output import Output

DAY = datetime(2026, 11, 20, 22, 31, tzinfo=UTC)
ONE, TWO = "gpu-20261120_223104-18865e9b", "gpu-20261120_223105-28865e9c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"at": "2026-11-20T22:31:00.250Z", "event": "x"}', DAY.replace(microsecond=250_000)),
        ("2026-11-20 22:31:00,250 INFO frame 1", DAY.replace(microsecond=250_000)),
        ("[2026-11-20T23:31:00+01:00] frame 1", DAY),
        ("2026-11-20 22:31:00 frame 1", DAY),
        ("frame 1 at 2026-11-20 22:31:00", None),
        ("2026-13-20 22:31:00 no month", None),
        ("0001-01-01T00:00:00+14:00 before the first year", None),
        ("", None),
    ],
)
def test_a_line_may_begin_with_its_time(text: str, expected: datetime | None) -> None:
    """As the agent and most loggers write it."""
    assert stamp(text) == expected


async def source(worker_id: str, seconds: Sequence[int | None]) -> AsyncIterator[LogLine]:
    """Lines of these seconds."""
    for number, second in enumerate(seconds):
        at = None if second is None else DAY.replace(second=second)
        yield LogLine(at, True, worker_id, "handler", f"{worker_id} {number}")


async def test_sources_are_merged_in_the_order_of_time() -> None:
    """A line without a time stays behind the one before it; no source is reordered."""
    lines = [line.text async for line in merged([source("a", [1, None, 5, 3]), source("b", [2, 4]), source("c", [])])]
    assert lines == ["a 0", "a 1", "b 0", "b 1", "a 2", "a 3"]


def shown(capsys: pytest.CaptureFixture[str], line: LogLine, workers: Sequence[str], *, raw: bool = False) -> str:
    """A line as it is printed."""
    LogPrinter(Output(), workers, raw=raw).show(line)
    return capsys.readouterr().out


def test_a_line_has_clock_worker_and_stream(capsys: pytest.CaptureFixture[str]) -> None:
    """The worker only if there are several; nothing of this with `raw`; never a control character."""
    line = LogLine(DAY, False, ONE, "handler", "a\x1b[2J")
    assert shown(capsys, line, [ONE]) == "11-20 22:31:00~ handler | a·[2J\n"
    assert shown(capsys, line, [ONE, TWO]) == f"11-20 22:31:00~ {ONE} handler | a·[2J\n"
    assert shown(capsys, line, [ONE, TWO], raw=True) == "a·[2J\n"
    now = datetime.now(UTC)
    assert shown(capsys, LogLine(now, True, ONE, "system", "x"), [ONE]) == f"{now:%H:%M:%S}  system  | x\n"
    assert shown(capsys, LogLine(None, False, ONE, "system", "x"), [ONE]) == "--:--:--  system  | x\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"at": "2026-11-20T22:31:00Z", "event": "task_claimed", "task": "4", "n": [1]}', "task_claimed task=4 n=[1]"),
        ('{"at": "2026-11-20T22:31:00Z", "no": "event"}', None),
        ('{"at": "' + "[" * 5_000, None),
        ("not JSON", None),
    ],
)
def test_the_agents_json_is_shown_as_text(text: str, expected: str | None) -> None:
    """Any other line as it is."""
    assert readable(text) == (expected or text)
