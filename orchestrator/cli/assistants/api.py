"""The API in this process: the same operations, tokens, scopes and limits as over HTTP, and the same audit log."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
from pydantic import Field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.core.api_tokens import TokenScope
from orchestrator.errors import NO_BUCKET
from orchestrator.web.api.fleet_operations import READ
from orchestrator.web.api.logs import attempt_of
from orchestrator.web.api.models import MAX_INT, QueryModel
from orchestrator.web.api.operations import Api, ApiCall, Operation, endpoint
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.routes import BASE, INSTANCES
from orchestrator.web.api.routes import routes as api_routes
from orchestrator.web.api.tasks import found_task
from orchestrator.web.connections import Connections
from orchestrator.worker_logs.attempt_log import AttemptLog

END_BYTES = 12 << 10  # of a log
SCAN_S = 40.0  # for the end of a log
Peer = tuple[str, int]


class LogEndQuery(QueryModel):
    """Whose log."""

    attempt: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a token, and the address that it came from."""

    token: str
    peer: Peer


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of the API."""

    status: int
    content: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def refused(self) -> bool:
        """Whether it is a problem."""
        return self.status >= 400  # noqa: PLR2004  HTTP


class LocalApi:
    """Calls the API of this process."""

    def __init__(self, api: Api, connections: Connections, *, has_bucket: bool) -> None:
        own = [
            Operation("GET", "/who", "who", "Who calls", frozenset(TokenScope), _who, is_tenants=True),
            Operation(
                "GET", "/tasks/{task_id}/log-end", "logEnd", "The end of a log", READ, _log_end, query=LogEndQuery,
                is_tenants=True,
            ),
        ]  # fmt: skip
        mine = [Route(f"/own{one.path}", endpoint(api, one), methods=[one.method]) for one in own]
        self._app = Starlette(routes=[*mine, *api_routes(api)])
        self._app.state.connections = connections
        self._has_bucket = has_bucket
        self.instances = INSTANCES.format(project=api.rows.fleet)

    async def call(self, caller: Caller, method: str, path: str, **options: Any) -> Answered:
        """Call an operation below /api/v1."""
        if path.endswith("/log-end"):
            if not self._has_bucket:
                problem = Problem(503, NO_BUCKET, "the settings of this process name no bucket")
                return Answered(problem.status, problem.document(), {})
            return await self._call(caller, method, f"/own{path}", options)
        return await self._call(caller, method, BASE + path, options)

    async def who(self, caller: Caller) -> Answered:
        """What the token may do: {name, reads, operates, everything}."""
        return await self._call(caller, "GET", "/own/who", {})

    async def _call(self, caller: Caller, method: str, path: str, options: Mapping[str, Any]) -> Answered:
        transport = httpx.ASGITransport(app=self._app, client=caller.peer)
        headers = {"Authorization": f"Bearer {caller.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://local", headers=headers) as client:
            answer = await client.request(method, path, **options)
        return Answered(answer.status_code, answer.json(), answer.headers)


async def _who(_: Api, call: ApiCall) -> Response:
    holder = call.holder
    return JSONResponse(
        {
            "name": holder.name,
            "reads": holder.may({TokenScope.READ}),
            "operates": holder.may({TokenScope.OPERATE}),
            "everything": holder.pools is None and holder.tenant is None,
        }
    )


async def _log_end(api: Api, call: ApiCall) -> Response:
    """The last bytes of an attempt's log, in the form of the API's parts."""
    attempt = attempt_of(await found_task(api, call), call.query.attempt)
    log, end, position = AttemptLog(api.rows, api.pieces, attempt), b"", 0
    until, left_out = asyncio.get_running_loop().time() + SCAN_S, ""
    async with api.log_parts.turn(), aclosing(log.more()) as parts:
        async for part in parts:
            end = (end + part)[-END_BYTES:]
            position += len(part)
            if asyncio.get_running_loop().time() > until and not log.ended:
                whole = f"python -m orchestrator logs --task {attempt['task_id']}"
                left_out = f"what follows byte {position}: it was not reached within {SCAN_S:g} s; {whole}"
                break
    if position > len(end):
        left_out = f"the first {position - len(end)} bytes" + (f", and {left_out}" if left_out else "")
    return JSONResponse(
        {
            **({"left_out": left_out} if left_out else {}),
            "attempt": attempt["attempt"],
            "text": end.decode("utf-8", "replace"),
            "offset": position - len(end),
            "next": position,
            "complete": log.complete and not left_out,
            "ended": log.ended,
            "missing_bytes": log.missing_bytes,
        }
    )
