"""The common part of all operations of RunPod's REST v2: count, key, limits, faults, problem answers."""

import asyncio
import hmac
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from testbed.runpod import request_schemas
from testbed.runpod.catalog import DATA_CENTERS
from testbed.runpod.faults import Call, Fault, FaultTable, Moment
from testbed.runpod.pods import PodHost
from testbed.runpod.replies import ApiReply, Transports, of_fault, problem, spoilt
from testbed.runpod.state import ApiProblem, PodRecord, World

RATE_LIMIT_TEXT = "rate limit exceeded for the {window} window"
Body = TypeVar("Body", bound=BaseModel)


@dataclass(slots=True)
class CallWindow:
    """Calls counted over a sliding window."""

    name: str
    length_s: int
    allowed: int
    made: deque[float] = field(default_factory=deque)

    def left(self, now: float) -> int:
        """Return how many calls are left."""
        while self.made and self.made[0] <= now - self.length_s:
            self.made.popleft()
        return self.allowed - len(self.made)


@dataclass(slots=True)
class CallLimits:
    """The limits of the account's calls."""

    minute: CallWindow = field(default_factory=lambda: CallWindow("minute", 60, 3_000))
    hour: CallWindow = field(default_factory=lambda: CallWindow("hour", 3_600, 100_000))

    def take(self, now: float) -> dict[str, str]:
        """Count a call and return the rate-limit headers; ApiProblem 429 when there were too many."""
        windows = (self.minute, self.hour)
        headers = {
            "RateLimit-Policy": ", ".join(f'"{one.name}";q={one.allowed};w={one.length_s}' for one in windows),
            "RateLimit": f'"minute";r={max(0, self.minute.left(now) - 1)};t={self.minute.length_s}',
        }
        for window in windows:
            if window.left(now) <= 0:
                oldest = window.made[0] if window.made else now
                wait_s = max(1, round(oldest + window.length_s - now))
                text = RATE_LIMIT_TEXT.format(window=window.name)
                raise ApiProblem(429, text, headers={**headers, "Retry-After": str(wait_s)})
        for window in windows:
            window.made.append(now)
        return headers


@dataclass(slots=True)
class Core:
    """The state that the API and the control API share."""

    world: World
    faults: FaultTable
    host: PodHost
    api_key: str
    limits: CallLimits = field(default_factory=CallLimits)
    page_size: int = 100
    create_s: float = 0.05  # how long a create call takes; RunPod needs 0.8-3 s
    clock_s: float = 0.0  # by how much the clock that it shows is ahead
    calls: Counter[str] = field(default_factory=Counter)
    creates: list[dict[str, Any]] = field(default_factory=list)
    transports: Transports = field(default_factory=dict)
    endings: set[asyncio.Task[None]] = field(default_factory=set)

    def end_pod(self, pod: PodRecord) -> None:
        """Delete a pod: it leaves the API and the bill at once; its processes end in the background."""
        self.world.end(pod)
        ending = asyncio.create_task(self.host.stop(pod))
        self.endings.add(ending)
        ending.add_done_callback(self.endings.discard)


@dataclass(slots=True)
class ApiRequest:
    """One request to one operation."""

    core: Core
    request: Request
    content: bytes
    call: Call = field(default_factory=lambda: Call("any"))

    def parse(self, model: type[Body]) -> Body:
        """Parse the body. Raises ApiProblem 400 or 422."""
        try:
            return model.model_validate(json.loads(self.content))
        except ValidationError as error:
            raise ApiProblem(422, "request body is invalid", request_schemas.describe(error)) from error
        except ValueError as error:
            raise ApiProblem(400, "request body is not valid JSON") from error

    def pod(self) -> PodRecord:
        """The pod of the path; ApiProblem 404."""
        return self.core.world.find(self.request.path_params["id"])

    def own_pod(self) -> PodRecord:
        """The pod of the path, to be changed; ApiProblem 404, or 409 for a member of one of RunPod's clusters."""
        pod = self.pod()
        if pod.cluster is not None:
            raise ApiProblem(409, f"the pod belongs to the cluster {pod.cluster['id']}; use /v2/clusters")
        return pod

    def flag(self, name: str) -> bool | None:
        """A boolean from the query string, None without one."""
        text = self.request.query_params.get(name)
        if text not in (None, "true", "false"):
            raise ApiProblem(400, f"{name} must be true or false")
        return None if text is None else text == "true"

    def number(self, name: str, default: int, most: int) -> int:
        """A positive whole number from the query string."""
        text = self.request.query_params.get(name, str(default))
        if not text.isdigit() or not 1 <= int(text) <= most:
            raise ApiProblem(400, f"{name} must be a whole number from 1 to {most}")
        return int(text)

    def faults_at(self, moment: Moment) -> list[Fault]:
        """The faults that hit this call at this moment."""
        return self.core.faults.applying(self.call, moment)


Operation = Callable[[ApiRequest], Awaitable[ApiReply | Response]]


def _call(asked: ApiRequest, operation: str) -> Call:
    """Describe the call to the fault table."""
    if operation == "create":
        try:
            body = json.loads(asked.content)
            gpu = body.get("gpu") or {}
            return Call(
                operation, str(body.get("name")), gpu.get("id"), tuple(body.get("dataCenterIds") or DATA_CENTERS)
            )
        except (ValueError, AttributeError, TypeError):
            return Call(operation)
    pod = asked.core.world.pods.get(asked.request.path_params.get("id", ""))
    return Call(operation, pod.name if pod else None)


def authorise(core: Core, request: Request) -> None:
    """Refuse calls without a valid key and, like Cloudflare, clients without a User-Agent.

    A pod's own key is valid only for that pod.
    """
    if not request.headers.get("user-agent"):
        raise ApiProblem(403, "error code: 1010")
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise ApiProblem(401, "missing bearer token")
    pod = core.world.pods.get(request.path_params.get("id", "")) if request.url.path.startswith("/v2/pods/") else None
    if not any(hmac.compare_digest(key.encode(), one.encode()) for one in (core.api_key, pod.api_key if pod else "")):
        raise ApiProblem(403, "access denied")


async def _read(request: Request) -> bytes:
    content = await request.body()
    if len(content) > request_schemas.MAX_BODY_BYTES:
        raise ApiProblem(413, f"request body is larger than {request_schemas.MAX_BODY_BYTES} bytes")
    return content


def endpoint(
    core: Core, method: str, path: str, name: str, operation: Operation
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an operation into the common part."""

    async def answer(request: Request) -> Response:
        core.calls[f"{method} {path}"] += 1
        asked = ApiRequest(core, request, b"")
        headers: dict[str, str] = {}
        reply: ApiReply | Response
        try:
            authorise(core, request)
            headers = core.limits.take(time.monotonic())
            asked.content = await _read(request)
            asked.call = _call(asked, name)
            for fault in asked.faults_at(Moment.BEFORE):
                instead = of_fault(fault)
                return (
                    _sign(instead.response(), headers)
                    if instead
                    else spoilt(fault, ApiReply(200), request, core.transports)
                )
            reply = await operation(asked)
        except ApiProblem as error:
            reply = problem(error.status, error.detail, error.errors, error.headers)
        if isinstance(reply, Response):
            return _sign(reply, headers)
        for fault in asked.faults_at(Moment.AFTER):
            return _sign(spoilt(fault, reply, request, core.transports), headers)
        return _sign(reply.response(), headers)

    return answer


def _sign(response: Response, headers: dict[str, str]) -> Response:
    for name, value in {**headers, "x-request-id": secrets.token_hex(8)}.items():
        response.headers.setdefault(name, value)
    return response
