"""The Model Context Protocol: the list of tools and their calls, over stdio and over streamable HTTP.

Each HTTP request carries its token and stands alone, so a revoked token ends at its next request.
"""

import asyncio
from contextvars import ContextVar
from typing import Any

import mcp_types as types
import structlog
import uvicorn
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from orchestrator import __version__
from orchestrator.cli.assistants.answers import NOTICE, answer
from orchestrator.cli.assistants.api import Caller
from orchestrator.cli.assistants.tools import BY_NAME, TOOLS, ApiRefused, FactSources, Tool, accepted, check_allowed
from orchestrator.errors import BAD_ARGUMENT, BAD_REQUEST, INTERNAL, NOT_SIGNED_IN, Failure, from_port_error
from orchestrator.ports import PortError
from orchestrator.web.api.problems import MEDIA_TYPE, Problem, of_refusal
from orchestrator.web.connections import Connections
from orchestrator.web.errors import NO_STORE, Refusal
from orchestrator.web.limits import bounded
from orchestrator.web.request_bodies import read_body

PATH = "/mcp"
MAX_REQUEST_BYTES = 64 << 10
CALLER: ContextVar[Caller] = ContextVar("caller")  # of the HTTP request
Context = ServerRequestContext[Any, Any]
log = structlog.get_logger()


class Assistant:
    """The handlers of the protocol. `local` is the caller over stdio."""

    def __init__(self, sources: FactSources, local: Caller | None = None) -> None:
        self._sources, self._local = sources, local

    def server(self) -> "Server[Any]":
        """A server of the protocol."""
        return Server(
            "gpu-orchestrator",
            version=__version__,
            instructions=NOTICE,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The tools that the caller's token allows."""
        who = (await self._sources.api.who(self._caller())).content
        return types.ListToolsResult(tools=[_described(tool) for tool in TOOLS if _is_allowed(tool, who)])

    async def _call(self, _: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            facts, failed = await self._answered(params.name, params.arguments or {}), False
        except ApiRefused as refused:
            facts, failed = refused.problem, True
        except (Failure, PortError) as error:
            failure = error if isinstance(error, Failure) else from_port_error(error)
            facts, failed = failure.as_json(), True
        except Exception as error:
            # The protocol would show the text of any exception to the assistant.
            log.exception("assistant_call_failed", tool=params.name[:80], error=type(error).__name__)
            facts, failed = {"id": INTERNAL.id, "what": INTERNAL.what, "fix": INTERNAL.fix}, True
        text = await asyncio.to_thread(answer, facts)
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed or "errors" in facts)

    async def _answered(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        tool, caller = BY_NAME.get(name), self._caller()
        if tool is None:
            raise Failure(BAD_ARGUMENT, why=f"there is no tool {name[:80]!r}", fix="list the tools")
        check_allowed(tool, accepted(await self._sources.api.who(caller)))
        try:
            arguments = tool.arguments.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part)[:80] for part in first["loc"])
            raise Failure(BAD_ARGUMENT, why=f"{where}: {first['msg']}"[:500], fix="read the schema") from None
        return await tool.answer(self._sources, caller, arguments)

    def _caller(self) -> Caller:
        caller = CALLER.get(self._local)
        assert caller is not None  # noqa: S101  one of both is always set
        return caller


def _is_allowed(tool: Tool, who: dict[str, Any]) -> bool:
    try:
        check_allowed(tool, who)
    except (Failure, KeyError):  # KeyError: the token is not valid
        return False
    return True


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not tool.acts, destructive_hint=tool.acts, open_world_hint=False)
    schema = tool.arguments.model_json_schema()
    return types.Tool(name=tool.name, description=tool.text, input_schema=schema, annotations=hints)


async def serve_stdio(sources: FactSources, token: str) -> None:
    """Serve the caller with this token until stdin ends."""
    server = Assistant(sources, Caller(token, ("stdio", 0))).server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(sources: FactSources, connections: Connections, host: str, port: int) -> None:
    """Serve at http://host:port/mcp until SIGTERM or Ctrl-C."""
    manager = StreamableHTTPSessionManager(
        Assistant(sources).server(), json_response=True, stateless=True, max_request_body_size=MAX_REQUEST_BYTES
    )
    app = Starlette(routes=[Route(PATH, _Endpoint(sources, manager))])
    app.state.connections = connections
    async with manager.run():
        await uvicorn.Server(bounded(app, host, port)).serve()


class _Endpoint:
    """Checks the token before it reads the body, and the body's size before the protocol sees it."""

    def __init__(self, sources: FactSources, manager: StreamableHTTPSessionManager) -> None:
        self._sources, self._manager = sources, manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            caller, body = await self._admitted(request)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        except ApiRefused as refused:
            await _refusal(refused)(scope, receive, send)
            return
        CALLER.set(caller)
        await self._manager.handle_request(scope, _Replay(body, receive), send)

    async def _admitted(self, request: Request) -> tuple[Caller, bytes]:
        """The caller and the body. Raises Problem or ApiRefused."""
        if request.method != "POST":
            raise Problem(405, BAD_REQUEST, "this address has POST only", headers={"Allow": "POST"})
        if "origin" in request.headers:
            raise Problem(403, BAD_REQUEST, "a web page may not call this address", fix="use a program")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = Caller(token.strip() if scheme.lower() == "bearer" else "", request.client or ("", 0))
        accepted(await self._sources.api.who(caller))
        try:
            return caller, await read_body(request, MAX_REQUEST_BYTES)
        except Refusal as refusal:
            raise of_refusal(refusal) from None


class _Replay:
    """Gives a body that has been read already, then what follows it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _refusal(refused: ApiRefused) -> Response:
    status = int(refused.problem.get("status", 500))
    headers = {"WWW-Authenticate": "Bearer"} if refused.problem.get("id") == NOT_SIGNED_IN.id else {}
    return JSONResponse(refused.problem, status, NO_STORE | headers, MEDIA_TYPE)
