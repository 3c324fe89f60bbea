"""Correct and faulty answers, and an HTTP protocol that can cut its own connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from testbed.runpod.faults import KINDS, Fault

HANG_S = 600  # a reply that never comes; longer than any client waits
HTML = (
    "<html>\r\n<head><title>{status} {phrase}</title></head>\r\n<body><center>cloudflare</center></body>\r\n</html>\r\n"
)
Transports = dict[tuple[str, int], asyncio.Transport]


@dataclass(slots=True)
class ApiReply:
    """An answer before it is put on the wire; `body` None is an empty one."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = "application/json"

    def content(self) -> bytes:
        """The body's bytes."""
        if self.body is None:
            return b""
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()

    def response(self) -> Response:
        """Return the correct response."""
        return Response(self.content(), self.status, self.headers, self.media_type)


def problem(
    status: int, detail: str, errors: list[str] | None = None, headers: Mapping[str, str] | None = None
) -> ApiReply:
    """An `application/problem+json` answer."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, "errors": errors or []}
    return ApiReply(status, body, dict(headers or {}), "application/problem+json")


def html(status: int) -> ApiReply:
    """Return the answer of a proxy in front of the API."""
    return ApiReply(status, HTML.format(status=status, phrase=HTTPStatus(status).phrase), {}, "text/html")


def of_fault(fault: Fault) -> ApiReply | None:
    """The answer a fault gives instead of the operation's; None when the connection itself misbehaves."""
    kind = KINDS[fault.kind]
    if kind.status is None:
        return None
    if kind.detail == "html":
        return html(kind.status)
    if fault.kind == "cloudflare":
        return ApiReply(kind.status, kind.detail, {}, "text/plain")
    if kind.status == HTTPStatus.NO_CONTENT:
        return ApiReply(kind.status)
    headers = {}
    if kind.status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = str(int(fault.retry_after_s if fault.retry_after_s is not None else 1))
    return problem(kind.status, fault.detail or kind.detail, headers=headers)


def spoilt(fault: Fault, reply: ApiReply, request: Request, transports: Transports) -> Response:
    """Return the answer after a commit, changed by the fault."""
    content = reply.content()
    instead = of_fault(fault) or reply
    bodies = {
        "truncated_json": content[: len(content) * 2 // 3],
        "null_reply": b"null",
        "empty_reply": b"",
        "odd_reply": b'{"data": null}',
    }
    match fault.kind:
        case "commit_then_cut" | "cut_before_commit":
            return Cut(request, transports)
        case "commit_then_hang" | "hang_before_commit":
            return Hang(request, transports)
        case "short_body":
            return Cut(request, transports, declared=content)
        case "slow_drip":
            return StreamingResponse(_drip(content, fault.seconds), reply.status, reply.headers, reply.media_type)
        case kind if kind in bodies:
            return Response(bodies[kind], reply.status, reply.headers, reply.media_type)
        case _:
            return instead.response()


async def _drip(content: bytes, pause_s: float) -> AsyncIterator[bytes]:
    for at in range(len(content)):
        yield content[at : at + 1]
        await asyncio.sleep(pause_s)


class Cut(Response):
    """No answer, or the first half of one: the connection is cut."""

    def __init__(self, request: Request, transports: Transports, declared: bytes = b"") -> None:
        super().__init__()
        self._request = request
        self._transports = transports
        self._declared = declared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send half of what was declared, then cut."""
        del scope, receive
        if self._declared:
            length = str(len(self._declared)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            half = self._declared[: len(self._declared) // 2]
            await send({"type": "http.response.body", "body": half, "more_body": True})
        client = self._request.client
        transport = self._transports.get((client.host, client.port)) if client else None
        if transport is not None and self._declared:
            transport.close()  # what was written goes out first
        elif transport is not None:
            transport.abort()


class Hang(Cut):
    """No answer until the client gives up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for the client to go."""
        try:
            async with asyncio.timeout(HANG_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            await super().__call__(scope, receive, send)


def cuttable(transports: Transports) -> type[H11Protocol]:
    """Make uvicorn's HTTP protocol note its transports by the client's address, so that an answer can cut its own."""

    class CuttableProtocol(H11Protocol):
        """HTTP/1.1 with its transport within reach."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._peer: tuple[str, int] = transport.get_extra_info("peername")[:2]
            transports[self._peer] = transport
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            transports.pop(self._peer, None)
            super().connection_lost(exc)

    return CuttableProtocol
