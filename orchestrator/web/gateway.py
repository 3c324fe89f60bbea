"""The gateway between agents and the database: `POST /rest/v1/rpc/<function>`, compatible with PostgREST.

The gateway decides nothing. A call must be one of the worker functions, with a token that we signed. The database
checks the token's worker and its rights, under the role `gpu_worker`. The gateway adds five things that the database
cannot do: a claim without a task waits for a wake-up (long_poll.py), heartbeats of idle workers are combined
(heartbeat_batch.py), a grant becomes a presigned URL, a renewal returns the next token, and a completion with an object
of our bucket is checked in the bucket first.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from orchestrator.observability.redaction import redact
from orchestrator.outputs import grant_all, look
from orchestrator.ports import Blobs, EncodedJson, EncodedTasks, PortError, WorkerDb
from orchestrator.web.allowances import TOO_MANY, Allowances
from orchestrator.web.errors import (
    BAD_BODY,
    BAD_JWT,
    NO_BUCKET,
    NO_JWT,
    NO_STORE,
    Refusal,
    from_port_error,
    unknown_function,
)
from orchestrator.web.heartbeat_batch import HeartbeatBatch
from orchestrator.web.log_sampling import Sampler
from orchestrator.web.long_poll import LongPolls
from orchestrator.web.request_bodies import (
    CHEAP_BYTES,
    MAX_BODY_BYTES,
    MAX_BYTES,
    TOO_SLOW,
    apart_if_large,
    parsed,
    read_body,
)
from orchestrator.web.token_buckets import MAX_CALLERS
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import Claims, InvalidToken
from worker import protocol

MAX_DIGITS = 12  # of a Content-Length that is read as a number
UNAUTHORIZED = 401  # HTTP status
VALID_FOR_S = 30.0  # after the database accepted a token, its large bodies are read without another check
LOOK = "look"  # the worker holds the task: look for its output, and complete with what was seen
SERVER_ERROR = 500  # HTTP statuses from here on are our side's

_EVERY = frozenset({"p_worker_id", "p_nonce"})
SCALARS = _EVERY | {"p_claim_no", "p_batch", "p_wait_s", "p_attempt", "p_task_id", "p_output_location", "p_reason"}
SCALARS |= {"p_id", "p_ok", "p_error"}
_TASK = _EVERY | {"p_task_id", "p_attempt"}
# The open functions and the arguments they may be called with: the names are ours, no caller's text becomes SQL.
FUNCTIONS: Mapping[str, frozenset[str]] = {
    protocol.REGISTER: _EVERY | {"p_agent"},
    protocol.CLAIM: _EVERY | {"p_claim_no", "p_batch", "p_wait_s"},
    protocol.HEARTBEAT: _EVERY | {"p_tasks", "p_health", "p_logs"},
    protocol.COMPLETE: _TASK | {"p_output_location", "p_result_data"},
    protocol.COMPLETE_OUTPUT: _TASK | {"p_output_location", "p_result_data", "p_output"},
    protocol.COMPLETE_MANY: _EVERY | {"p_results"},
    protocol.COMPLETE_AND_CLAIM: _EVERY | {"p_results", "p_claim_no", "p_batch"},
    protocol.FAIL: _TASK | {"p_failure"},
    protocol.RELEASE: _TASK | {"p_reason"},
    protocol.GRANTS: _EVERY | {"p_items"},
    protocol.RENEW: _EVERY,
    protocol.NODE_TASK_DONE: _EVERY | {"p_id", "p_ok", "p_error"},
}

log = structlog.get_logger()


# Texts of a pod, which may quote secrets. A task's result is the user's data; only known secrets are removed from it.
ENDS = frozenset({*protocol.COMPLETIONS, protocol.COMPLETE_MANY, protocol.COMPLETE_AND_CLAIM, protocol.FAIL})
WORDS = frozenset({"p_agent", "p_tasks", "p_health", "p_failure", "p_reason", "p_error"})
RESULTS = frozenset({"p_result_data", "p_results"})


class Gateway:
    """The endpoint of the worker functions."""

    def __init__(
        self,
        db: WorkerDb,
        blobs: Blobs,
        verifier: Callable[[str], Claims],
        wakeups: WakeupHub,
        on_unanswered: Callable[[str], None] = lambda _: None,
        sealed: Callable[[str, str], Sequence[str]] = lambda *_: (),
    ) -> None:
        """`sealed`: worker id, jti -> its next token, sealed for it (token_renewal.py).

        `on_unanswered` gets the id of a worker whose call got no answer: the worker is alive.
        """
        self._db = db
        self._blobs = blobs
        self._verifier = verifier
        self._polls = LongPolls(self._call, wakeups)
        self._heartbeats = HeartbeatBatch(db)
        self._on_unanswered = on_unanswered
        self._sealed = sealed
        self._allowances = Allowances()
        self._anonymous = Sampler()
        self._valid_until: dict[str, float] = {}  # jti -> until when the database's last check of it counts

    async def rpc(self, request: Request) -> Response:
        """Answer or refuse one call."""
        function = request.path_params["function"]
        worker_id: str | None = None
        try:
            claims = self._claims(request)
            worker_id = claims["sub"]
            request.app.state.connections.known(request.client, claims["jti"])
            await self._admit(request, claims, function)
            arguments = await _arguments(request, function)
            answer = await self._answer(request, claims, function, arguments)
        except Refusal as refusal:
            if worker_id and (refusal.status >= SERVER_ERROR or refusal.status in {TOO_SLOW, TOO_MANY}):
                self._on_unanswered(worker_id)
            if refusal.status == UNAUTHORIZED:
                refused: Response = request.app.state.connections.refuse(request, refusal, time.monotonic())
                if refused.status_code == TOO_MANY:
                    return refused
            self._log_refusal(function, worker_id, refusal)
            return refusal.response()
        except ClientDisconnect:
            if worker_id:
                self._on_unanswered(worker_id)
            return Response(status_code=400)  # the caller has gone
        waits = function in protocol.COMPLETIONS and answer.get("outcome") == protocol.PENDING
        return _reply(answer, 202 if waits else 200)  # 202: the agent asks again

    def _log_refusal(self, function: str, worker_id: str | None, refusal: Refusal) -> None:
        """Log one line at most. Anonymous calls are sampled."""
        calls = 1 if worker_id else self._anonymous.take(time.monotonic())
        if calls:
            write = log.warning if refusal.status >= SERVER_ERROR else log.info
            why = str(refusal) if refusal.status < SERVER_ERROR else f"{refusal}: {refusal.details or ''}"
            facts = {"function": function[:80], "worker": worker_id, "code": refusal.code, "why": why[:500]}
            write("worker_call_refused", **facts, **({} if worker_id else {"calls": calls}))

    def _claims(self, request: Request) -> Claims:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refusal(401, NO_JWT, "Anonymous access is disabled", hint="send Authorization: Bearer <worker token>")
        try:
            return self._verifier(token.strip())
        except InvalidToken as error:
            raise Refusal(401, BAD_JWT, str(error)) from None

    async def _admit(self, request: Request, claims: Claims, function: str) -> None:
        """Check a call before its body is read: size, rate, then whether the token is still valid."""
        limit_bytes = MAX_BYTES.get(function, 0)
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) <= MAX_DIGITS else limit_bytes
        if function in MAX_BYTES and size > limit_bytes:
            raise Refusal(413, BAD_BODY, f"The body is larger than {limit_bytes} bytes")
        caller = claims["jti"]
        self._allowances.admit(caller, size)
        if size > CHEAP_BYTES and self._valid_until.get(caller, 0.0) < asyncio.get_running_loop().time():
            # A call without effect: it is refused if the worker has terminated or its token was revoked.
            who = {"p_worker_id": claims["sub"], "p_nonce": "", "p_items": []}
            await self._call(claims, protocol.GRANTS, who)

    async def _answer(self, request: Request, claims: Claims, function: str, arguments: dict[str, Any]) -> Any:
        if function == protocol.CLAIM:
            return await self._polls.claim(request, claims, arguments)
        if function == protocol.HEARTBEAT and (answer := await self._beat(request, claims, arguments)):
            return answer
        if function == protocol.COMPLETE_OUTPUT:
            arguments = {**arguments, "p_output": _upload(arguments.get("p_output"))}
        location = arguments.get("p_output_location") if function in protocol.COMPLETIONS else None
        if location and (key := self._blobs.key_of(location)):
            return await self._complete(claims, arguments, key)
        if function == protocol.GRANTS:
            self._allowances.admit_keys(claims["jti"], arguments.get("p_items"))
        answer = await self._call(claims, function, arguments)
        if function in ENDS:
            self._polls.note_end(claims["sub"], failed=function == protocol.FAIL)
        if function == protocol.COMPLETE_AND_CLAIM and answer.get("tasks"):
            self._allowances.give_back(claims["jti"])
        if function == protocol.RENEW and answer["outcome"] == protocol.OK:
            return {**answer, "sealed": list(self._sealed(claims["sub"], claims["jti"]))}
        if function == protocol.GRANTS:
            async with self._allowances.turn(claims["jti"]):
                return await self._with_urls(answer)
        return answer

    async def _call(self, claims: Claims, function: str, arguments: Mapping[str, Any]) -> Any:
        if function == protocol.HEARTBEAT:  # it must not wait for the worker's slow calls
            return await self._ask(claims, function, arguments)
        async with self._allowances.turn(claims["jti"]):
            return await self._ask(claims, function, arguments)

    async def _ask(self, claims: Claims, function: str, arguments: Mapping[str, Any]) -> Any:
        try:
            answer = await self._db.call_as_worker(claims, function, arguments)
        except PortError as error:
            self._valid_until.pop(claims["jti"], None)
            raise from_port_error(error, function) from None
        now_s = asyncio.get_running_loop().time()
        self._valid_until[claims["jti"]] = now_s + VALID_FOR_S
        if len(self._valid_until) > MAX_CALLERS:
            self._valid_until = {jti: until_s for jti, until_s in self._valid_until.items() if until_s > now_s}
        return answer

    async def _beat(self, request: Request, claims: Claims, arguments: dict[str, Any]) -> Any:
        """Return the answer to a combined heartbeat. None if the heartbeat must be sent alone."""
        if arguments.get("p_worker_id") != claims["sub"]:
            return None
        try:
            return await self._heartbeats.beat(
                claims, arguments, int(request.headers.get("content-length", MAX_BODY_BYTES))
            )
        except PortError as error:
            raise from_port_error(error, protocol.HEARTBEAT) from None

    async def _complete(self, claims: Claims, arguments: dict[str, Any], key: str) -> Any:
        """Complete with an object of our bucket. The database first checks whether the worker holds the task."""
        answer = await self._call(claims, protocol.COMPLETE_OUTPUT, {**arguments, "p_output": False})
        if answer["outcome"] != LOOK:
            return answer
        self._polls.note_end(claims["sub"], failed=False)
        try:
            seen = await look(self._blobs, key)
        except (PortError, TimeoutError) as error:
            raise _unknown(error) from None
        if seen is None:
            return {"outcome": protocol.UNVERIFIED, "code": protocol.OUTPUT_MISSING}
        shown = {**seen, **(arguments.get("p_output") or {})}
        return await self._call(claims, protocol.COMPLETE_OUTPUT, {**arguments, "p_output": shown})

    async def _with_urls(self, answer: Any) -> Any:
        """Presign the grants that the database authorised. Keys outside the outputs are always refused."""
        items, refused, replaced = [], list(answer.get("refused") or ()), []
        authorised = answer.get("items") or ()
        try:
            grants = await grant_all(self._blobs, [(item["method"], item["key"], item) for item in authorised])
        except (PortError, TimeoutError) as error:
            raise _unknown(error) from None
        for item, granted in zip(authorised, grants, strict=True):
            if "refused" in granted:
                refused.append(item["key"])
                replaced += [item["key"]] if "replaced" in granted else []
            else:
                items.append({**item, **granted})
        return {**answer, "items": items, "refused": refused, "replaced": replaced}


def _reply(answer: Mapping[str, Any], status: int) -> Response:
    """The answer as JSON, with claimed tasks as the database wrote them."""
    tasks = answer.get("tasks")
    if not isinstance(tasks, EncodedTasks):
        return JSONResponse(answer, status_code=status, headers=NO_STORE)
    rest = json.dumps({name: value for name, value in answer.items() if name != "tasks"}).encode()
    body = b"".join((rest[:-1], b', "tasks": ', tasks.json, b"}"))
    return Response(body, status, NO_STORE, "application/json")


def _upload(output: Any) -> dict[str, Any] | None:
    """Return what a worker may report of an output: when it uploaded. The content is checked in the bucket."""
    return {"upload": output["upload"]} if isinstance(output, dict) and "upload" in output else None


def _unknown(error: Exception) -> Refusal:
    why = f"{type(error).__name__}: {str(error)[:200]}"
    return Refusal(503, NO_BUCKET, "The bucket did not say whether the output is there", why, "try again")


def _without_secrets(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove secrets from the stored arguments of a call."""
    return {
        name: redact(value, by_shape=name in WORDS) if name in WORDS | RESULTS else value
        for name, value in arguments.items()
    }


async def _arguments(request: Request, function: str) -> dict[str, Any]:
    """The named arguments of a call to an open function, without secrets. Raises Refusal."""
    names = FUNCTIONS.get(function)
    if names is None:
        raise unknown_function(function)
    body = await read_body(request, MAX_BYTES[function])
    return await apart_if_large(lambda content: _named(content, function, names), body)


def _named(body: bytes, function: str, names: frozenset[str]) -> dict[str, Any]:
    """The arguments of a body. Results are encoded again, because nothing looks into them."""
    arguments = parsed(body)
    if unknown := sorted(set(arguments) - names):
        raise unknown_function(function, f"it has no argument {unknown[0][:80]!r}")
    arguments = {name: _as_text(value) if name in SCALARS else value for name, value in arguments.items()}
    return {
        name: EncodedJson(json.dumps(value, ensure_ascii=False)) if name in RESULTS and value is not None else value
        for name, value in _without_secrets(arguments).items()
    }


def _as_text(value: Any) -> str | None:
    """Return a scalar as text, like PostgREST. The database parses it as the argument's type, or refuses it."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
