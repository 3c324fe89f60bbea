"""Lines of logs with the time of each, several streams merged in the order of time, and how a line is shown."""

import heapq
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.cli.output import Output, one_line
from orchestrator.diagnostics.amounts import octets
from orchestrator.observability.redaction import plain

# The time with which a line begins, as the agent and most loggers write it. Without an offset it is UTC, as on pods.
STAMP = re.compile(
    r'(?:\{"at": "|\[)?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d*)?(Z|[+-]\d\d:?\d\d)?', re.ASCII
)
UNKNOWN = "--:--:--"
SHORT_NAME = 8  # characters at the end of a worker's id
WIDE_COLUMNS = 120  # a narrower terminal shows the end of each worker's id
VALUE_CHARACTERS = 300
EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a stream, or bytes that were lost."""

    at: datetime | None
    is_exact: bool  # whether the line itself has the time; otherwise it is that of a line near it, or of the upload
    worker_id: str
    stream: str
    text: str
    lost: Mapping[str, Any] | None = None


def stamp(text: str) -> datetime | None:
    """Return the time with which a line begins."""
    match = STAMP.match(text)
    if match is None:
        return None
    day, clock, fraction, offset = match.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0').ljust(6, '0')}{offset or 'Z'}")
    except ValueError:
        return None
    return at if at > EARLIEST.replace(year=1970) else None


async def merged(sources: Sequence[AsyncIterator[LogLine]]) -> AsyncIterator[LogLine]:
    """Yield the lines of all sources in the order of time. Each source keeps its own order."""
    heap: list[tuple[datetime, int, LogLine]] = []
    last = [EARLIEST] * len(sources)

    async def take(number: int) -> None:
        line = await anext(sources[number], None)
        if line is not None:
            last[number] = max(last[number], line.at or last[number])
            heapq.heappush(heap, (last[number], number, line))

    for number in range(len(sources)):
        await take(number)
    while heap:
        _, number, line = heapq.heappop(heap)
        yield line
        await take(number)


class LogPrinter:
    """Writes lines to stdout: clock time, the worker if there are several, the stream, and the text."""

    def __init__(self, output: Output, worker_ids: Sequence[str], *, raw: bool = False) -> None:
        """With `raw`, lines are written as they are, without control characters."""
        self._output, self._raw, self._is_several = output, raw, len(worker_ids) > 1
        ends = {worker_id[-SHORT_NAME:] for worker_id in worker_ids}
        is_narrow = output.out.is_terminal and output.out.width < WIDE_COLUMNS
        self._short = is_narrow and len(ends) == len(set(worker_ids))
        self._today = datetime.now(UTC).date()

    def show(self, line: LogLine) -> None:
        """Write one line."""
        if line.lost is not None:
            self._tell_lost(line, line.lost)
        elif self._output.json:
            self._output.document(**self._facts(line), line=line.text)
        elif self._raw:
            sys.stdout.write(f"{plain(line.text)}\n")
        else:
            name = f"{line.worker_id[-SHORT_NAME:] if self._short else line.worker_id} " if self._is_several else ""
            sys.stdout.write(f"{self._clock(line)} {name}{line.stream:<7} | {plain(readable(line.text))}\n")

    def end(self) -> None:
        """Hand on what was written."""
        sys.stdout.flush()

    def _clock(self, line: LogLine) -> str:
        """`14:03:11 `, with the day if it is another one; `14:03:11~` if it is not the line's own time."""
        if line.at is None:
            return f"{UNKNOWN} "
        at = line.at.astimezone(UTC)
        return at.strftime("%H:%M:%S" if at.date() == self._today else "%m-%d %H:%M:%S") + (
            " " if line.is_exact else "~"
        )

    def _facts(self, line: LogLine) -> dict[str, Any]:
        return {"at": line.at, "at_is_exact": line.is_exact, "worker_id": line.worker_id, "stream": line.stream}

    def _tell_lost(self, line: LogLine, lost: Mapping[str, Any]) -> None:
        first, last = lost["first"], lost["last"]
        size = "an unknown number of bytes" if last is None else octets(last - first)
        until = "on" if last is None else f"to {last}"
        name = f"{line.worker_id} " if self._is_several else ""
        message = f"{name}{line.stream}: {size} from byte {first} {until} are lost: {lost['reason']}"
        self.end()
        self._output.say(message, "yellow")
        if self._output.json:
            self._output.document(**self._facts(line), lost=dict(lost))


def readable(text: str) -> str:
    """Return a line for a person: the agent's JSON as `event key=value`, any other line as it is."""
    if not text.startswith('{"at": "'):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        return text
    rest = [
        f"{name}={one_line(value, VALUE_CHARACTERS)}" for name, value in found.items() if name not in ("at", "event")
    ]
    return " ".join((found["event"], *rest))
