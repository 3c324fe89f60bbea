"""The workers' gateway over real HTTP: the calls that it accepts, and the text of its refusals."""

import asyncio
import base64
import json
import time
import uuid
from typing import Any

import pytest

from orchestrator.core.states import State
from orchestrator.observability.redaction import hide
from orchestrator.web.gateway import FUNCTIONS
from orchestrator.web.request_bodies import MAX_BODY_BYTES
from orchestrator.worker_tokens import mint
from tests.process.web.builders import SECRET, Caller, ServerUnderTest, done
from worker import protocol
from worker.redaction import HIDDEN

TASK = str(uuid.uuid4())
ARGS: dict[str, dict[str, Any]] = {
    protocol.REGISTER: {"p_agent": {}},
    protocol.CLAIM: {"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0},
    protocol.HEARTBEAT: {"p_tasks": [], "p_health": {}, "p_logs": {}},
    protocol.COMPLETE: {"p_task_id": TASK, "p_attempt": 1, "p_output_location": None, "p_result_data": None},
    protocol.COMPLETE_OUTPUT: {
        "p_task_id": TASK,
        "p_attempt": 1,
        "p_output_location": None,
        "p_result_data": None,
        "p_output": {"upload": {"started_s": 1, "ended_s": 2}},
    },
    protocol.COMPLETE_MANY: {"p_results": [{"task_id": TASK, "attempt": 1, "result_data": None}]},
    protocol.COMPLETE_AND_CLAIM: {
        "p_results": [{"task_id": TASK, "attempt": 1, "result_data": None}],
        "p_claim_no": 1,
        "p_batch": 1,
    },
    protocol.FAIL: {"p_task_id": TASK, "p_attempt": 1, "p_failure": {"code": "X"}},
    protocol.RELEASE: {"p_task_id": TASK, "p_attempt": 1, "p_reason": "test"},
    protocol.GRANTS: {"p_items": []},
    protocol.RENEW: {},
    protocol.NODE_TASK_DONE: {"p_id": 1, "p_ok": True, "p_error": None},
}


def _is_refusal(body: dict[str, Any]) -> bool:
    return list(body) == ["code", "message", "details", "hint"] and bool(body["code"]) and bool(body["message"])


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
async def test_every_open_function_answers(gateway: ServerUnderTest, function: str) -> None:
    """Called as the agent calls it, with its own token, each answers with an object that has an outcome."""
    worker = await gateway.worker()
    reply = await worker.call(function, **ARGS[function])
    assert reply.status_code == 200, reply.text
    assert reply.json()["outcome"] in {"ok", "fenced"}
    assert reply.headers["cache-control"] == "no-store"


async def test_a_task_is_claimed_and_completed_through_the_gateway(gateway: ServerUnderTest) -> None:
    """Claimed, kept alive, completed; and a repeated completion is told so."""
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    assert set(protocol.CLAIMED) <= set(task)
    assert task["id"] == task_id
    held = [{"id": task_id, "attempt": task["attempt"], "progress": 0.5}]
    beat = await worker.call(protocol.HEARTBEAT, p_tasks=held, p_health={}, p_logs={})
    assert beat.json()["fenced"] == []
    assert (await worker.call(protocol.COMPLETE, **done(task_id, "s3://x/y"))).json() == {"outcome": "ok"}
    assert (await worker.call(protocol.COMPLETE, **done(task_id, "s3://x/y"))).json() == {"outcome": "already"}


async def test_what_a_pod_quotes_of_our_secrets_is_not_stored(gateway: ServerUnderTest) -> None:
    """Whatever it says, and in a result what we know to be secret alone: the rest of that is the user's."""
    ours, theirs = f"rp+{uuid.uuid4().hex}/x", mint("x" * 32, "their-worker", "j", time.time())
    hide([ours])
    worker = await gateway.worker()
    await gateway.submit(worker.pool, 2)
    first, second = (await worker.claim(1, batch=2))["tasks"]
    said = f"env: A={ours}, Bearer {theirs}"
    held = {"id": first["id"], "attempt": 1, "progress": {"message": said}}
    await worker.call(protocol.REGISTER, p_agent={"python": said})
    await worker.call(protocol.HEARTBEAT, p_tasks=[held], p_health={"x": said}, p_logs={})
    detail = {"log": [base64.b64encode(ours.encode()).decode()]}
    failure = {"code": "X", "message": said, "point": "Processing", "detail": detail, "retryable": False}
    await worker.call(protocol.FAIL, p_task_id=first["id"], p_attempt=1, p_failure=failure)
    told = done(second["id"], None) | {"p_result_data": {"said": said}}
    assert (await worker.call(protocol.COMPLETE, **told)).json() == {"outcome": "ok"}
    failed, complete = [await gateway.store.task(task["id"]) for task in (first, second)]
    rows = json.dumps([failed, await gateway.store.worker(worker.id)], default=str)
    assert rows.count(HIDDEN) >= 4
    assert ours not in rows
    assert detail["log"][0] not in rows
    assert theirs not in rows
    assert complete["task"]["result_data"] == {"said": said.replace(ours, HIDDEN)}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
async def test_another_workers_token_opens_nothing(gateway: ServerUnderTest, function: str) -> None:
    """The subject must be the worker that is named."""
    worker, other = await gateway.worker(), await gateway.worker()
    reply = await worker.call(function, token=other.token, **ARGS[function])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.BAD_TOKEN), reply.text
    assert _is_refusal(reply.json())


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
async def test_a_revoked_token_opens_nothing(gateway: ServerUnderTest, function: str) -> None:
    """A jti that is no longer the row's."""
    worker = await gateway.worker()
    old = mint(SECRET, worker.id, "an older one", time.time(), 60)
    reply = await worker.call(function, token=old, **ARGS[function])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.BAD_TOKEN), reply.text


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
async def test_a_terminated_worker_gets_the_answer_stop(gateway: ServerUnderTest, function: str) -> None:
    """Its token ended with it."""
    worker = await gateway.worker()
    await gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    await gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    reply = await worker.call(function, **ARGS[function])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.UNKNOWN_WORKER), reply.text


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "PGRST302"),
        ("", "PGRST302"),
        ("Bearer", "PGRST302"),
        ("Basic YTpi", "PGRST302"),
        ("Bearer x", "PGRST301"),
        ("Bearer a.b.c", "PGRST301"),
        (f"Bearer {mint('not the secret, but as long as one', 'gpu-1', 'j', time.time(), 60)}", "PGRST301"),
        (f"Bearer {mint(SECRET, 'gpu-1', 'j', time.time() - 600, 60)}", "PGRST301"),
    ],
)
async def test_without_a_token_of_ours_nothing_opens(
    gateway: ServerUnderTest, authorization: str | None, code: str
) -> None:
    """401 before the function's name or the body are looked at."""
    headers = {} if authorization is None else {"Authorization": authorization}
    for function in (protocol.CLAIM, "fleet_spawn"):
        reply = await gateway.client.post(f"/rest/v1/rpc/{function}", headers=headers, content=b"{")
        assert (reply.status_code, reply.json()["code"]) == (401, code)
        assert reply.headers["www-authenticate"] == "Bearer"
        assert _is_refusal(reply.json())


@pytest.mark.parametrize(
    "function",
    [
        *("fleet_lead", "fleet_observe", "fleet_spawn", "fleet_move", "fleet_rescue", "fleet_workers", "fleet_pause"),
        *("fleet_request_termination", "fleet_retention", "task_submit", "task_cancel", "task_get", "task_list"),
        *("internal_caller", "internal_take", "worker_", "WORKER_CLAIM", "worker_claim;select 1", "pg_sleep", "%00"),
        *("worker_claim%27--", "..%2fworker_claim", "public.worker_claim", "\N{SNOWMAN}", "x" * 2_000),
    ],
)
async def test_the_gateway_has_no_other_function(gateway: ServerUnderTest, function: str) -> None:
    """A valid token makes no difference."""
    worker = await gateway.worker()
    reply = await worker.call(function)
    assert reply.status_code == 404, reply.text
    assert _is_refusal(reply.json())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/rest/v1/", 404),
        ("GET", "/rest/v1/tasks", 404),
        ("POST", "/rest/v1/workers", 404),
        ("PATCH", "/rest/v1/tasks?id=eq.1", 404),
        ("GET", "/rest/v1/rpc/worker_claim", 405),
        ("DELETE", "/rest/v1/rpc/worker_claim", 405),
        ("OPTIONS", "/rest/v1/rpc/worker_claim", 405),
        ("POST", "/healthz", 405),
        ("GET", "/metrics", 401),  # there, and closed to a worker
        ("GET", "/openapi.json", 404),
    ],
)
async def test_no_other_path_exists(gateway: ServerUnderTest, method: str, path: str, status: int) -> None:
    """Only the two probes and the calls are there, with their one method."""
    worker = await gateway.worker()
    reply = await gateway.client.request(method, path, headers={"Authorization": f"Bearer {worker.token}"})
    assert reply.status_code == status
    assert _is_refusal(reply.json())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "PGRST102"),
        (b"{", 400, "PGRST102"),
        (b"\xff\xfe", 400, "PGRST102"),
        (b"[]", 400, "PGRST102"),
        (b"null", 400, "PGRST102"),
        (b'"x"', 400, "PGRST102"),
        (b'[{"p_worker_id":"x"}]', 400, "PGRST102"),
        (b'{"p_agent":NaN}', 400, "PGRST102"),
        (b'{"p_agent":1e999}', 400, "PGRST102"),
        (b'{"p_agent":' + b"9" * 5_000 + b"}", 413, "PGRST102"),
        (b'{"p_agent":' + b"[" * 100 + b"]" * 100 + b"}", 400, "PGRST102"),
        (b'{"p_agent":' + b"[" * 10_000 + b"}", 400, "PGRST102"),
        (b'{"p_agent":"\\u0000"}', 400, "22P05"),
        (b'{"p_agent":{"\\u0000":1}}', 400, "22P05"),
        (b'{"p_agent":"\\ud800"}', 400, "22P05"),
        (b'{"p_now":"2020-01-01"}', 404, "PGRST202"),
        (b'{"p_worker_id":"x","p_fleet":"default"}', 404, "PGRST202"),
        (b'{"p_x) from pg_sleep(9)--":1}', 404, "PGRST202"),
        (b"{}", 404, "PGRST202"),
        (b'{"p_agent":"' + b"x" * MAX_BODY_BYTES + b'"}', 413, "PGRST102"),
    ],
)
async def test_a_body_that_is_no_object_of_known_arguments_is_refused(
    gateway: ServerUnderTest, body: bytes, status: int, code: str
) -> None:
    """Before the database sees any of it, or with the database's own word."""
    worker = await gateway.worker()
    headers = {"Authorization": f"Bearer {worker.token}"}
    reply = await gateway.client.post(f"/rest/v1/rpc/{protocol.REGISTER}", content=body, headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text
    assert _is_refusal(reply.json())


async def test_a_body_without_a_declared_length_is_cut_off_too(gateway: ServerUnderTest) -> None:
    """A chunked body is counted as it comes."""
    worker = await gateway.worker()
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        for _ in range(64):
            sent += 1 << 16
            yield b" " * (1 << 16)

    headers = {"Authorization": f"Bearer {worker.token}"}
    reply = await gateway.client.post(f"/rest/v1/rpc/{protocol.REGISTER}", content=endless(), headers=headers)
    assert reply.status_code == 413


@pytest.mark.parametrize(
    ("function", "changed", "status", "code"),
    [
        (protocol.COMPLETE, {"p_task_id": "not a uuid"}, 400, "22P02"),
        (protocol.CLAIM, {"p_claim_no": "x"}, 400, "22P02"),
        (protocol.CLAIM, {"p_claim_no": 10**30}, 400, None),
        (protocol.CLAIM, {"p_batch": 0}, 400, protocol.BAD_ARGUMENT),
        (protocol.CLAIM, {"p_batch": 10_000}, 400, protocol.BAD_ARGUMENT),
        (protocol.REGISTER, {"p_agent": [1]}, 400, protocol.BAD_ARGUMENT),
        (protocol.FAIL, {"p_failure": [1]}, 400, protocol.BAD_ARGUMENT),
        (protocol.FAIL, {"p_attempt": 1.5}, 400, "22P02"),
        (protocol.FAIL, {"p_task_id": ["a", {"b": 1}]}, 400, "22P02"),
        (protocol.GRANTS, {"p_items": {}}, 400, protocol.BAD_ARGUMENT),
        (protocol.HEARTBEAT, {"p_tasks": [{"id": "x", "attempt": 1}]}, 400, "22P02"),
    ],
)
async def test_a_wrong_argument_is_the_callers_fault(
    gateway: ServerUnderTest, function: str, changed: dict[str, Any], status: int, code: str | None
) -> None:
    """400 with the database's SQLSTATE and its words, never a 5xx that an agent would repeat."""
    worker = await gateway.worker()
    reply = await worker.call(function, **(ARGS[function] | changed))
    assert reply.status_code == status, reply.text
    assert code is None or reply.json()["code"] == code, reply.text
    assert _is_refusal(reply.json())


async def test_a_refusal_has_what_why_and_the_fix(gateway: ServerUnderTest) -> None:
    """PostgREST's `message`, `details` and `hint` carry the database's."""
    worker = await gateway.worker()
    body = (await worker.call(protocol.CLAIM, p_claim_no=0, p_batch=1, p_wait_s=0)).json()
    assert "p_claim_no" in body["message"]
    assert "got 0 and 1" in body["details"]


async def test_the_gateway_answers_many_simultaneous_callers(gateway: ServerUnderTest) -> None:
    """Fifty workers on a pool of four connections: every one is answered."""
    workers: list[Caller] = [await gateway.worker() for _ in range(10)]
    beats = [w.call(protocol.HEARTBEAT, **ARGS[protocol.HEARTBEAT]) for w in workers for _ in range(5)]
    replies = await asyncio.gather(*beats)
    assert {reply.status_code for reply in replies} == {200}


async def test_answers_are_json(gateway: ServerUnderTest) -> None:
    """With the content type that says so."""
    worker = await gateway.worker()
    reply = await worker.call(protocol.CLAIM, **ARGS[protocol.CLAIM])
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.content)["tasks"] == []


@pytest.mark.parametrize("code", ["\x1b[31mred", "x" * 200, "lower", "A B", ""])
async def test_an_unknown_failure_code_is_stored_as_invalid(gateway: ServerUnderTest, code: str) -> None:
    """The call succeeds: an agent that is refused reports the same failure again and again."""
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    await worker.claim()
    failure = {"code": code, "message": "m", "point": "Processing", "retryable": False}
    reply = await worker.call(protocol.FAIL, p_task_id=task_id, p_attempt=1, p_failure=failure)
    assert (reply.status_code, reply.json()["outcome"]) == (200, "failed"), reply.text
    found = await gateway.store.task(uuid.UUID(task_id))
    assert found["task"]["failure_code"] == found["attempts"][0]["failure_code"] == "INVALID_CODE"
