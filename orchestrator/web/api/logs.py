"""The log of a task's attempt: a part of it, or a stream of all of it while it is written."""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from orchestrator.errors import NO_LOG
from orchestrator.ports import PortError
from orchestrator.web.api.models import LogQuery, LogShown
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.task_events import STREAM_S, EventStream, event, is_still_allowed
from orchestrator.web.api.tasks import found_task
from orchestrator.worker_logs.attempt_log import SETTLED_S, AttemptLog

LOOK_S = 2.0  # between two looks for more; bytes arrive a few seconds after they were written
MAX_SCAN_BYTES = 32 << 20  # of a log, for a part of it
MAX_EVENT_BYTES = 64 << 10
LONGEST_CHARACTER = 4  # bytes of UTF-8; …
CONTINUES = range(0x80, 0xC0)  # … all but the first are in this range
SO_FAR = ": that is all so far\n\n"

Row = Mapping[str, Any]


async def read(api: Api, call: ApiCall) -> Response:
    """A part of the log, or the stream of all of it."""
    query: LogQuery = call.query
    attempt = attempt_of(await found_task(api, call), query.attempt)
    log = AttemptLog(api.rows, api.pieces, attempt)
    if query.follow:
        return EventStream(_events(api, call, log, attempt), api.watch.place(call.holder.name))
    content, position = b"", 0
    async with api.log_parts.turn(), aclosing(log.more()) as parts:
        async for part in parts:
            content += part[max(0, query.offset - position) :][: query.limit + LONGEST_CHARACTER - len(content)]
            position += len(part)
            if position >= query.offset + query.limit + LONGEST_CHARACTER:
                break
            if position > MAX_SCAN_BYTES:
                why = f"a part begins within the first {MAX_SCAN_BYTES} bytes of a log"
                raise Problem(422, NO_LOG, why, fix="read the log as a stream: follow=true")
    content = _whole_characters(content, query.limit)
    following = query.offset + len(content)
    return shown(
        LogShown(
            attempt=attempt["attempt"],
            text=content.decode("utf-8", "replace"),
            offset=query.offset,
            next=following,
            complete=log.complete and following >= position,
            ended=log.ended and following >= position,
            missing_bytes=log.missing_bytes,
        )
    )


def _whole_characters(content: bytes, limit: int) -> bytes:
    """The first `limit` bytes, and the rest of a character that begins in them."""
    end = next((at for at in range(limit, len(content)) if content[at] not in CONTINUES), len(content))
    return content[:end]


async def _events(api: Api, call: ApiCall, log: AttemptLog, attempt: Row) -> AsyncGenerator[str]:
    """Events `lines` with the text, whose ids are offsets; then `ended`. Each look for more ends with a comment."""
    now = asyncio.get_running_loop().time
    until, position, skip, read_at = now() + STREAM_S, 0, _last_offset(call), now()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may stand in two pieces
    while now() < until and not api.watch.closed:
        try:
            async with api.log_parts.turn(), aclosing(log.more()) as parts:
                async for part in parts:
                    for begin in range(0, len(part), MAX_EVENT_BYTES):
                        piece = part[begin : begin + MAX_EVENT_BYTES]
                        position += len(piece)
                        if position > skip:
                            text = decoder.decode(piece[max(0, len(piece) - (position - skip)) :])
                            yield event("lines", str(position), {"text": text})
                            read_at = now()
        except PortError:
            yield ": the log cannot be read now\n\n"
        else:
            yield SO_FAR
        if log.ended or (attempt["ended_at"] and now() - read_at > SETTLED_S):
            yield event("ended", str(position), {"missing_bytes": log.missing_bytes, "complete": log.complete})
            return
        await api.wakeups.wait(None, LOOK_S, worker_id="*logs*")
        if not await is_still_allowed(api, call):
            return
        try:
            attempt = attempt_of(await found_task(api, call), attempt["attempt"])
        except Problem:  # it was deleted
            return
        except PortError:
            continue
        log.of(attempt)


def _last_offset(call: ApiCall) -> int:
    given = call.request.headers.get("last-event-id", "")
    return int(given) if given.isdecimal() and len(given) <= len(str(2**53)) else call.query.offset


def attempt_of(found: Row, number: int | None) -> Row:
    """An attempt, by default the last one. Raises Problem."""
    attempts = [one for one in found["attempts"] if number in (None, one["attempt"])]
    if not attempts:
        raise Problem(404, NO_LOG, "no worker has run it yet" if number is None else f"there is no attempt {number}")
    row: Row = attempts[-1]
    return row
