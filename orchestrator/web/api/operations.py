"""One operation of the API, and the way of a request to it: token, size, rate and scope before anything else."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.core.policy import Policy
from orchestrator.errors import BAD_ARGUMENT, BAD_REQUEST, NOT_ALLOWED
from orchestrator.ports import Blobs, PortError
from orchestrator.ports.clusters import ClusterRows
from orchestrator.web.api.authentication import Authentication
from orchestrator.web.api.event_feed import EventFeed
from orchestrator.web.api.list_rows import ListRows, TaskChangeRows
from orchestrator.web.api.models import Nothing, QueryModel
from orchestrator.web.api.problems import Problem, of_port_error, of_refusal, too_fast
from orchestrator.web.api.waiting import TaskWatch
from orchestrator.web.errors import NO_STORE, Refusal
from orchestrator.web.fair_turns import CALLER, FairTurns
from orchestrator.web.log_tails import LogTails
from orchestrator.web.request_bodies import MAX_TASKS_BYTES, apart_if_large, parsed, read_body
from orchestrator.web.token_buckets import API_BYTES, API_REQUESTS, Buckets
from orchestrator.web.wakeups import WakeupHub

MAX_QUERY_CHARS = 4_096
MAX_DIGITS = 12  # of a Content-Length that is read as a number
UNAUTHORIZED = 401  # HTTP status
LOG_READERS = 4  # pieces of logs that are read from the bucket at once: half of its connections are left for others
LOG_PARTS, LOG_PARTS_EACH = 32, 8  # pieces in memory, in all and of one token: its clients may be slow to take them
SMALL_BODY_BYTES = 16 << 10  # of operations that take no tasks

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call that is allowed and well-formed."""

    request: Request
    holder: TokenHolder
    path: Mapping[str, str]
    query: Any  # an instance of the operation's query model
    body: Any  # … and of its body model; None without one


class ApiTasks(ListRows, Protocol):
    """The database as the API uses it; adapters/api_rows.py says what each method does."""

    @property
    def fleet(self) -> str: ...
    @property
    def clusters(self) -> ClusterRows: ...
    @property
    def task_changes(self) -> TaskChangeRows: ...
    async def use_token(self, token_hash: str) -> Mapping[str, Any]: ...
    async def open_session(self, session: Mapping[str, Any], actor: str) -> None: ...
    async def session(self, session_hash: str) -> Mapping[str, Any] | None: ...
    async def follow_link(self, link_hash: str, session_hash: str, expires_at: str) -> bool: ...
    async def end_session(self, session_hash: str) -> None: ...
    async def observe(self) -> Mapping[str, Any]: ...
    async def submit(self, holder: TokenHolder, tasks: Any, *, key: str | None, sha256: str) -> Mapping[str, Any]: ...
    async def task(self, holder: TokenHolder, task_id: str) -> Mapping[str, Any]: ...
    async def act(self, holder: TokenHolder, task_id: str, action: str, version: str | None) -> Mapping[str, Any]: ...
    async def task_states(self, task_ids: Any) -> Any: ...
    async def match_tasks(self, holder: TokenHolder, prefix: str) -> Any: ...
    async def tasks(self, holder: TokenHolder, wanted: Any, after: Any, limit: int) -> Mapping[str, Any]: ...
    async def workers(self, holder: TokenHolder, *, ended: bool, after: Any, limit: int) -> Any: ...
    async def worker(self, worker_id: str) -> Mapping[str, Any] | None: ...
    async def worker_history(self, worker_id: str) -> Mapping[str, Any]: ...
    async def spawn(self, actor: str, worker: Mapping[str, Any]) -> bool: ...
    async def terminate(self, actor: str, worker_id: str, reason: str, *, at_once: bool) -> Mapping[str, Any]: ...
    async def events(self, holder: TokenHolder, *, after: int | None, limit: int) -> Mapping[str, Any]: ...
    async def pause(
        self, actor: str, reason: str | None, *, pool: str | None, for_s: float | None = None
    ) -> Mapping[str, Any]: ...
    async def limit_workers(
        self, actor: str, most: int | None, reason: str = "", *, pool: str | None, for_s: float = 0
    ) -> Mapping[str, Any]: ...
    async def resend(self, actor: str, message_id: str | None) -> int: ...


class StoredPieces:
    """The pieces of logs in the bucket, of which few are read at once."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs, self._turns = blobs, FairTurns(LOG_READERS)

    async def get(self, key: str) -> bytes:
        """See ports.Blobs."""
        async with self._turns.turn():
            return await self._blobs.get(key)


class Api:
    """What the operations share: the database, the bucket, the tokens and the limits."""

    def __init__(
        self,
        rows: ApiTasks,
        blobs: Blobs,
        wakeups: WakeupHub,
        *,
        admin_token: str | None = None,
        viewer_token: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.rows, self.blobs, self.wakeups = rows, blobs, wakeups
        self.policy = policy
        self.authentication = Authentication(rows, admin_token=admin_token, viewer_token=viewer_token)
        self.watch, self.feed = TaskWatch(rows, wakeups), EventFeed(rows)
        self.log_parts, self.pieces = FairTurns(LOG_PARTS, LOG_PARTS_EACH), StoredPieces(blobs)
        self.log_tails = LogTails(rows, self.pieces)
        self.requests, self.bytes = Buckets(API_REQUESTS), Buckets(API_BYTES)

    async def require_pool(self, holder: TokenHolder, name: str | None) -> None:
        """Raise Problem if neither the settings nor the database have a pool of this name. None: every pool.

        A process that does not know the settings refuses no name.
        """
        known = [one.name for one in (self.policy.pools if self.policy else ())]
        if name is None or not known or name in known:
            return
        found = await self.rows.observe()
        if name not in {one["pool"] for one in (*found["demand"], *found["workers"])}:
            seen = ", ".join(filter(holder.sees, known))
            fix = f"name one of the pools: {seen}" if seen else "ask the operator for the names of your pools"
            raise Problem(404, BAD_ARGUMENT, f"there is no pool {name!r}", fix=fix)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table in routes.py."""

    method: str
    path: str  # below /api/v1
    name: str  # the operationId
    summary: str
    scopes: frozenset[TokenScope]  # one of these is needed
    answer: Callable[[Api, ApiCall], Awaitable[Response]]
    result: type[BaseModel] | None = None
    query: type[QueryModel] = Nothing
    body: type[BaseModel] | None = None
    status: int = 200
    is_tenants: bool = False  # open to a token that is restricted to a tenant
    has_version: bool = False  # the answer has an ETag
    takes_version: bool = False  # If-Match
    is_idempotent_by_key: bool = False
    takes_trace: bool = False  # the header traceparent
    also: Mapping[int, str] = field(default_factory=dict)  # other statuses than refusals
    problems: tuple[int, ...] = ()  # beyond those of every operation
    media_types: tuple[str, ...] = ("application/json",)

    @property
    def max_body_bytes(self) -> int:
        """The largest body that is read."""
        return MAX_TASKS_BYTES if self.is_tenants else SMALL_BODY_BYTES


def endpoint(api: Api, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """The operation as Starlette calls it."""

    async def answered(request: Request) -> Response:
        try:
            return await operation.answer(api, await _admitted(api, operation, request))
        except Problem as problem:
            return _refused(request, operation, problem)
        except PortError as error:
            log.info("api_call_failed", operation=operation.name, why=f"{type(error).__name__}: {error}"[:500])
            return of_port_error(error).response()
        except ClientDisconnect:
            return Response(status_code=400)  # the caller has gone

    return answered


def _refused(request: Request, operation: Operation, problem: Problem) -> Response:
    if problem.status == UNAUTHORIZED and (response := too_many_refusals(request)):
        return response
    log.debug("api_call_refused", operation=operation.name, status=problem.status, why=str(problem)[:200])
    return problem.response()


def too_many_refusals(request: Request) -> Response | None:
    """Count a refusal of a caller without a token. From an address with too many of them: 429, and the end."""
    if request.app.state.connections.allows(request, time.monotonic()):
        return None
    response = too_fast("too many requests without a valid token").response()
    response.headers["Connection"] = "close"
    return response


async def _admitted(api: Api, operation: Operation, request: Request) -> ApiCall:
    """Check token, size, rate and scope, in this order; then read what the caller sent. Raises Problem or PortError."""
    holder = await api.authentication.holder(request)
    CALLER.set(holder.name)
    request.app.state.connections.known(request.client, f"api:{holder.name}")
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() and len(declared) <= MAX_DIGITS else operation.max_body_bytes
    size = size if operation.body or declared else 0
    if size > operation.max_body_bytes:
        raise Problem(413, BAD_REQUEST, f"the body is larger than {operation.max_body_bytes} bytes")
    now_s = asyncio.get_running_loop().time()
    if not api.requests.take(holder.name, 1, now_s) or not api.bytes.take(holder.name, size, now_s):
        raise too_fast("too many requests or bytes from this token")
    if not holder.may(operation.scopes):
        needed = " or ".join(sorted(operation.scopes))
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} needs the scope {needed}")
    if holder.tenant is not None and not operation.is_tenants:
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} is restricted to a tenant: it may use /tasks only")
    query = _query(operation, request)
    return ApiCall(request, holder, request.path_params, query, await _body(operation, request))


def _query(operation: Operation, request: Request) -> BaseModel:
    if len(request.url.query) > MAX_QUERY_CHARS:
        raise Problem(400, BAD_REQUEST, f"the query is longer than {MAX_QUERY_CHARS} characters")
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in operation.query.repeated and "\0" not in value:
            given.setdefault(name, []).append(value)
            continue
        if name in given:
            raise Problem(400, BAD_REQUEST, f"the parameter {name[:80]!r} is given twice")
        if "\0" in value:
            raise Problem(400, BAD_REQUEST, f"the parameter {name[:80]!r} contains a NUL character")
        given[name] = value
    return _valid(operation.query, given, status=400)


async def _body(operation: Operation, request: Request) -> BaseModel | None:
    if operation.body is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        content = await read_body(request, operation.max_body_bytes)
        if not content and all(not one.is_required() for one in operation.body.model_fields.values()):
            return operation.body()
        if kind != "application/json":
            raise Problem(415, BAD_REQUEST, "the body must be application/json")
        model = operation.body
        return await apart_if_large(lambda body: _valid(model, parsed(body), status=422), content)
    except Refusal as refusal:
        raise of_refusal(refusal) from None


def _valid(model: type[BaseModel], given: Mapping[str, Any], *, status: int) -> BaseModel:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise Problem(status, BAD_ARGUMENT, f"{where or 'the request'}: {first['msg']}"[:500]) from None


def shown(content: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer."""
    return JSONResponse(content.model_dump(mode="json"), status_code=status, headers=NO_STORE | dict(headers or {}))
