"""What pages link to besides pages: whole logs as text, and the output of a task by a presigned URL.

Each request is checked like the page that has its link. The URL of an output is made for one request: a page that
contained it would differ from second to second, and from reader to reader.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.errors import NO_LOG, NOT_ALLOWED
from orchestrator.ports import PortError
from orchestrator.web.api.operations import Api, ApiCall
from orchestrator.web.api.outputs import output
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard.answers import Answer, route
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.dashboard.pages.task import absent, chosen, task_id_of
from orchestrator.web.dashboard.pages.worker import seen_worker
from orchestrator.web.dashboard.sign_in import sign_in_page
from orchestrator.web.dashboard.views import READ, Reads, View
from orchestrator.web.errors import NO_STORE
from orchestrator.web.fair_turns import CALLER
from orchestrator.web.log_tails import readable
from orchestrator.worker_logs.attempt_log import STREAM, AttemptLog, piece_content

MAX_DOWNLOAD_BYTES = 256 << 20  # of one log; the command line has all of it
CUT = "\n--- the download ends here: it is limited to {} bytes; `orchestrator logs` has all of it\n"
BROKEN = "\n--- the download ends here: the rest cannot be read from the bucket now\n"
Row = Mapping[str, Any]
HolderAnswer = Callable[[Request, TokenHolder], Awaitable[Response]]


def routes(dashboard: Dashboard) -> list[BaseRoute]:
    """The addresses of logs and outputs."""
    table: Sequence[tuple[str, HolderAnswer]] = (
        ("/workers/{worker_id}/log", _Logs(dashboard).of_worker),
        ("/tasks/{task_id}/log", _Logs(dashboard).of_attempt),
        ("/tasks/{task_id}/output", lambda request, holder: _output(dashboard.api, request, holder)),
    )
    return [route(dashboard, path, _checked(dashboard, answer), "GET", middleware=()) for path, answer in table]


def _checked(dashboard: Dashboard, answer: HolderAnswer) -> Answer:
    """The answer for somebody who is signed in, and may read."""

    async def checked(request: Request) -> Response:
        session = await dashboard.sessions.of(request)
        if session is None:
            return await sign_in_page(dashboard, request, 401)
        CALLER.set(f"page:{session.holder.name}")
        _check(session.holder)
        return await answer(request, session.holder)

    return checked


def _check(holder: TokenHolder) -> None:
    if holder.tenant is not None or not holder.may(READ):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may not look at the fleet: it needs the scope read")


async def _output(api: Api, request: Request, holder: TokenHolder) -> Response:
    """A redirect to the bucket, as the API answers it."""
    task_id_of(request.path_params["task_id"])
    return await output(api, ApiCall(request, holder, request.path_params, None, None))


class _Logs:
    """Logs as text."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def of_worker(self, request: Request, holder: TokenHolder) -> Response:
        """All that is stored of one stream of a worker."""
        view, api = View(holder, request.path_params, request.query_params), self._dashboard.api
        name, stream = request.path_params["worker_id"], request.query_params.get("stream", STREAM)
        await seen_worker(Reads(api, self._dashboard.shared, view), view, name)
        pieces = [one for one in readable(await api.rows.log_pieces(name)) if one["stream"] == stream]
        if not pieces:
            raise Problem(404, NO_LOG, "nothing of this log is stored")

        async def parts() -> AsyncGenerator[bytes]:
            for piece in pieces:
                async with api.log_parts.turn():
                    yield await _content(api, piece)

        return _text(parts(), f"{name}-{pieces[0]['stream']}.log")

    async def of_attempt(self, request: Request, holder: TokenHolder) -> Response:
        """All that is stored of the log of an attempt."""
        api, name = self._dashboard.api, task_id_of(request.path_params["task_id"])
        found = await api.rows.task(holder, name)
        if found["task"] is None:
            raise absent()
        attempt = chosen(found["attempts"], request.query_params.get("attempt"))
        if attempt is None:
            raise Problem(404, NO_LOG, "no worker has run it yet")

        async def parts() -> AsyncGenerator[bytes]:
            async with api.log_parts.turn(), aclosing(AttemptLog(api.rows, api.pieces, attempt).more()) as found:
                async for part in found:
                    yield part

        return _text(parts(), f"{name}-{attempt['attempt']}.log")


async def _content(api: Api, piece: Row) -> bytes:
    if piece["declared_lost"]:
        return f"\n--- bytes {piece['first']} to {piece['last']} were lost: {piece['reason']}\n".encode()
    return await piece_content(api.pieces, piece)


def _text(parts: AsyncGenerator[bytes], name: str) -> Response:
    """The parts as a file, up to a limit. What cannot be read is said in the text: the status is sent already."""

    async def bounded() -> AsyncGenerator[bytes]:
        size = 0
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part[: MAX_DOWNLOAD_BYTES - size]
                    size += len(part)
                    if size > MAX_DOWNLOAD_BYTES:
                        yield CUT.format(MAX_DOWNLOAD_BYTES).encode()
                        return
        except PortError:
            yield BROKEN.encode()

    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(bounded(), media_type="text/plain; charset=utf-8", headers=NO_STORE | headers)
