"""The end of a log as a page shows it: lines without control characters and secrets, and those that contain a text."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orchestrator.ports import PortError
from orchestrator.web.dashboard.render import clean
from orchestrator.web.dashboard.views import Reads
from orchestrator.web.log_tails import MAX_LINE_CHARS, LogTail, TailLine

BUCKET_S = 2.0  # how long a page waits for the bucket; the reading goes on, and a later look shows it
MAX_FIND_CHARS = 200

Stream = Mapping[str, Any]


async def streams(
    reads: Reads, name: str, ask: Callable[[], Awaitable[Sequence[LogTail]]], find: str
) -> tuple[list[Stream], str | None]:
    """The streams of a log, and why they cannot be read now. `name` says what is asked for, the same for everybody."""
    try:
        async with asyncio.timeout(BUCKET_S):
            tails = await reads.once_a_second(name, ask)
    except TimeoutError:
        return [], f"the bucket has not answered within {BUCKET_S:g} s; it is being read"
    except PortError as error:
        return [], f"it cannot be read from the bucket now ({type(error).__name__})"
    return [stream(one, find[:MAX_FIND_CHARS]) for one in tails], None


def stream(tail: LogTail, find: str) -> Stream:
    """One stream; with `find`, only the lines that contain it."""
    lines = [(line, clean(line.text.expandtabs(), MAX_LINE_CHARS)) for line in tail.lines]
    shown = [(line, text) for line, text in lines if find.lower() in text.lower()]
    return {
        "stream": tail.stream,
        "lines": [_shown(tail.stream, line, text, find) for line, text in shown],
        "of": len(lines),
        "stored_bytes": tail.stored_bytes,
        "is_whole": tail.is_whole,
    }


def _shown(name: str, line: TailLine, text: str, find: str) -> Mapping[str, Any]:
    return {"id": f"{name}-{line.place}", "parts": parted(text, find), "is_gap": line.is_gap}


def parted(text: str, find: str) -> list[tuple[str, bool]]:
    """A text as (part, whether it is what was looked for)."""
    low, looked = text.lower(), find.lower()
    if not looked or len(low) != len(text):  # some letters change their length: then nothing is marked
        return [(text, False)]
    parts, at = [], 0
    while (hit := low.find(looked, at)) >= 0:
        parts += [(text[at:hit], False), (text[hit : hit + len(looked)], True)]
        at = hit + len(looked)
    return [(part, is_hit) for part, is_hit in [*parts, (text[at:], False)] if part]
