"""The stream of an open page: server-sent events with what has changed, once a second at most.

`main` has the whole content, `parts` those parts that differ; the id of an event is the digest of the page, so a stream
that is opened again begins with what was missed, or with nothing. `same` each KEEP_ALIVE_S says that the page is as it
was, also between two looks; `trouble` says why there are no new figures.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache
from typing import Any

from orchestrator.ports import PortError
from orchestrator.web.api.problems import Problem, of_port_error
from orchestrator.web.dashboard.render import BADGE, CSRF, LEADER, Rendered, changes

KEEP_ALIVE_S = 2.0  # a page that hears nothing for more than twice as long says that it is old
STREAM_S = 3_600.0  # then the browser connects again
RETRY_MS = 2_000
STILL = "event: same\ndata: still\n\n"  # between two looks: without the moment of new figures
NOT_FOUND = 404
TOLD = 32  # events that are kept for other pages of the same kind


async def events(
    look: Callable[[], Awaitable[Rendered]],
    still: Callable[[], Awaitable[bool]],
    *,
    last: str | None,
    csrf: str,
    look_s: float,
    closed: Callable[[], bool],
) -> AsyncGenerator[str]:
    """`look` renders the page as it is now; `still` says whether the session is valid."""
    now = asyncio.get_running_loop().time
    until, said_at, before = now() + STREAM_S, now(), None
    yield f"retry: {RETRY_MS}\n\n"
    while now() < until and not closed():
        began = now()
        try:
            if not await still():
                yield signed_out()
                return
            after = await look()
        except (PortError, Problem) as error:
            problem = error if isinstance(error, Problem) else of_port_error(error)  # without what operators alone see
            yield _event("trouble", "", {"why": str(problem)[:300]})
            if problem.status == NOT_FOUND:  # what it shows has gone, and does not come back
                return
            said_at, is_well = now(), False
        else:
            is_well = True
            told = _told(before, after, last)
            before, last = after, None
            if told is not None:
                yield told.replace(CSRF, csrf)
                said_at = now()
            elif now() - said_at >= KEEP_ALIVE_S:
                yield f"event: same\ndata: {after.at.isoformat()}\n\n"
                said_at = now()
        while is_well and look_s - (now() - began) > KEEP_ALIVE_S and not closed():
            await asyncio.sleep(KEEP_ALIVE_S)
            yield STILL
        await asyncio.sleep(max(0.1, look_s - (now() - began)))


def signed_out() -> str:
    """The end of a page whose session has ended."""
    return _event("signed_out", "", {})


def _told(before: Rendered | None, after: Rendered, last: str | None) -> str | None:
    if before is None:
        return None if after.digest == last else _main(after)
    return None if before.digest == after.digest else _changed(before, after)


@lru_cache(TOLD)
def _main(after: Rendered) -> str:
    return _event("main", after.digest, _whole(after))


@lru_cache(TOLD)
def _changed(before: Rendered, after: Rendered) -> str:
    parts = changes(before, after)
    if parts is None:
        return _main(after)
    return _event("parts", after.digest, {"at": after.at.isoformat(), "parts": dict(parts)})


def _whole(content: Rendered) -> dict[str, Any]:
    return {
        "at": content.at.isoformat(),
        "title": content.title,
        "html": content.html,
        "around": {name: content.parts[name] for name in (BADGE, LEADER) if name in content.parts},
    }


def _event(name: str, event_id: str, content: dict[str, Any]) -> str:
    line = f"id: {event_id}\n" if event_id else ""
    return f"event: {name}\n{line}data: {json.dumps(content)}\n\n"
