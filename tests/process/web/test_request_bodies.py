"""A request costs little, whatever it contains: it is refused by its size and shape before it is parsed."""

import asyncio
import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from decimal import Context, Decimal

import pytest

from orchestrator.core.states import State
from orchestrator.web import gateway as gateway_module
from orchestrator.web import request_bodies
from orchestrator.web.errors import Refusal
from orchestrator.web.request_bodies import MAX_BODY_BYTES, MAX_BYTES, MAX_DEPTH, MAX_NODES, check_size, parsed
from orchestrator.web.token_buckets import WORKER_BYTES, Buckets, Rate
from orchestrator.worker_tokens import mint
from tests.process.web.builders import SECRET, Caller, ServerUnderTest, done
from worker import protocol

SLACK = 4.0  # times linear growth
FLOOR_S = 0.0002  # below it a measurement is noise


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2, {"b": None}], "c": "x"},
        {'"': '\\"[[[[', "\\": '{{{"\\'},
        ["[", "{", ",", ":", '\\\\"', '"""'],
        {"text": '{"quoted": ["json", 1]}' * 100},
    ],
)
def test_nodes_are_counted_outside_of_strings_alone(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text full of brackets and commas is one node."""
    monkeypatch.setattr(request_bodies, "MAX_NODES", 12)
    monkeypatch.setattr(request_bodies, "MAX_DEPTH", 4)
    check_size(json.dumps(value).encode())


@pytest.mark.parametrize("opening", [b"[" * (MAX_DEPTH + 1), b'{"a":' * (MAX_DEPTH + 1), b'["\\"]",' * (MAX_DEPTH + 1)])
def test_a_nesting_is_refused_before_the_parse(opening: bytes) -> None:
    """Without a closing bracket it is no JSON, and it is refused for its depth: nobody has parsed it."""
    with pytest.raises(Refusal, match="nested deeper"):
        check_size(opening)


@pytest.mark.parametrize("many", [b"[]", b'""', b"0", b'{"a":1}', b'"\\""'])
def test_too_many_nodes_are_refused_before_the_parse(many: bytes) -> None:
    """However small each of them is."""
    with pytest.raises(Refusal, match="JSON values"):
        parsed(b"[" + b",".join([many] * (MAX_NODES + 1)))


HALF = str(Context(prec=1_000).multiply(Decimal(sys.float_info.min), Decimal("1.5") / 2**52))  # of the least float


@pytest.mark.parametrize(
    ("number", "most", "why"),
    [
        ("9" * 4_299, 1, "more than 1000 characters"),
        ("0." + "1" * 1_000, 1, "more than 1000 characters"),
        (HALF, 65, "64 numbers of more than 25 characters"),
        ("1." + "7" * 49, 65, "64 numbers of more than 25 characters"),
        ("-" + "7" * 40, 65, "64 numbers of more than 25 characters"),
        ("1.2345678901234567e-300", 4_001, "4000 numbers with exponents of three digits"),
        ("1E300", 4_001, "4000 numbers with exponents of three digits"),
    ],
)
def test_numbers_that_cost_more_than_their_bytes_are_refused_before_the_parse(number: str, most: int, why: str) -> None:
    """The refusal says what to do; one number less, or the same as texts, is accepted."""
    with pytest.raises(Refusal, match=why) as refused:
        parsed(f'{{"p_result_data":[{",".join([number] * most)}]}}'.encode())
    assert (refused.value.status, refused.value.hint) == (
        413,
        "write such numbers as texts, or put them into an output file",
    )
    parsed(f'{{"p_result_data":[{",".join([number] * (most - 1))}]}}'.encode())
    texts = [number + "9" * 1_000] * 100 + ["1e300"] * 5_000
    assert parsed(json.dumps({"p_result_data": texts}).encode()) == {"p_result_data": texts}


@pytest.mark.parametrize(
    "least", [5e-324, 1.7976931348623157e308, -2.2250738585072014e-308, 0.1, 1e22, 2**64, -(10**23)]
)
def test_every_float_and_every_long_integer_of_a_usual_size_is_accepted(least: float) -> None:
    """What Python's json writes of a float has 24 characters at most."""
    values = [least] * 4_000
    assert parsed(json.dumps({"p_result_data": values}).encode()) == {"p_result_data": values}


async def test_a_refusal_names_the_numbers_that_are_too_long(gateway: ServerUnderTest) -> None:
    """What, why and how to change it; a number of 600 digits arrives."""
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    await worker.claim()
    refused = await worker.call(protocol.COMPLETE, **done(task_id) | {"p_result_data": [9 * 10**1_100]})
    assert refused.status_code == 413
    assert refused.json()["message"] == "A number has more than 1000 characters"
    assert refused.json()["hint"]
    done_so = await worker.call(protocol.COMPLETE, **done(task_id) | {"p_result_data": [9 * 10**600]})
    assert done_so.json()["outcome"] == "ok", done_so.text


@pytest.mark.parametrize(
    "attack",
    [
        lambda size: b"1" * size,
        lambda size: b"[" + b"e-100," * (size // 6),
        lambda size: b"[" + (b"1" * 25 + b",") * (size // 26),
        lambda size: b"[" * size,
        lambda size: b'"' * size,
        lambda size: b"\\" * size,
        lambda size: b'\\"' * (size // 2),
        lambda size: b'["' + b"\\u0041" * (size // 6) + b'"]',
        lambda size: b"[" + b"1" * size + b"]",
        lambda size: b"[0." + b"1" * size + b"]",
        lambda size: b"[" + b"1e5," * (size // 4) + b"1]",
        lambda size: b'{"' + b"x" * size + b'":1}',
        lambda size: b'{"a":"' + "\N{SNOWMAN}".encode() * (size // 3) + b'"}',
        lambda size: b"[" + b" " * size + b"]",
    ],
)
def test_a_body_costs_in_proportion_to_its_size(attack: Callable[[int], bytes]) -> None:
    """Counted in processor time, from 64 KiB to 1 MiB: also a body that is refused."""

    def cost_s(size: int) -> float:
        began = time.thread_time()
        with contextlib.suppress(Refusal):
            parsed(attack(size))
        return time.thread_time() - began

    growth = min(cost_s(MAX_BODY_BYTES) / max(FLOOR_S, cost_s(64 << 10)) for _ in range(3))
    assert growth < SLACK * MAX_BODY_BYTES / (64 << 10)


@pytest.mark.parametrize("function", sorted(set(MAX_BYTES) - {protocol.COMPLETE, protocol.COMPLETE_OUTPUT}))
async def test_a_function_has_its_own_limit_of_bytes(gateway: ServerUnderTest, function: str) -> None:
    """What a pod says of itself is smaller than a result; one byte too many is refused unread."""
    worker = await gateway.worker()
    headers = {"Authorization": f"Bearer {worker.token}"}
    body = b"x" * (MAX_BYTES[function] + 1)
    reply = await gateway.client.post(f"/rest/v1/rpc/{function}", content=body, headers=headers)
    assert reply.status_code == 413, reply.text


@pytest.mark.parametrize("ended", ["terminated", "revoked"])
async def test_a_large_body_of_a_revoked_token_is_not_parsed(
    gateway: ServerUnderTest, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """The database is asked first; a body that is not read cannot cost anything."""
    read: list[bytes] = []
    monkeypatch.setattr(gateway_module, "parsed", read.append)
    worker = await gateway.worker()
    token = mint(SECRET, worker.id, "an older one" if ended == "revoked" else worker.jti, time.time(), 60)
    if ended == "terminated":
        await gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
        await gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    failure = {"code": "X", "message": "eyJ" * 30_000}
    reply = await worker.call(protocol.FAIL, token=token, p_task_id=str(uuid.uuid4()), p_attempt=1, p_failure=failure)
    assert (reply.status_code, reply.json()["code"]) == (
        400,
        protocol.UNKNOWN_WORKER if ended == "terminated" else protocol.BAD_TOKEN,
    )
    assert read == []


async def test_a_large_body_does_not_hold_up_other_calls(gateway: ServerUnderTest) -> None:
    """It is read in a thread: whatever that takes, the event loop answers others meanwhile."""
    worker, other = await gateway.worker(), await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    await worker.claim()
    released, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        released.wait(30)

    request_bodies._apart.submit(wait)
    assert began.wait(30)
    result = {f"key-{number}": "x" * 30 for number in range(9_500)}
    large = asyncio.create_task(worker.call(protocol.COMPLETE, **{**done(task_id), "p_result_data": result}))
    try:
        for _ in range(3):
            beat = await other.call(protocol.HEARTBEAT, p_tasks=[], p_health={}, p_logs={})
            assert beat.status_code == 200
        assert not large.done()
    finally:
        released.set()
    assert (await large).json() == {"outcome": "ok"}
    assert (await gateway.store.task(task_id))["task"]["result_data"] == result


async def test_a_worker_that_sends_too_much_must_try_again(gateway: ServerUnderTest) -> None:
    """429, and another worker at the same address is served, however much it sends."""
    worker, other = await gateway.worker(), await gateway.worker()

    async def send(sender: Caller) -> int:
        headers = {"Authorization": f"Bearer {sender.token}"}
        path, body = f"/rest/v1/rpc/{protocol.COMPLETE}", b" " * MAX_BODY_BYTES
        return (await gateway.client.post(path, content=body, headers=headers)).status_code

    statuses = []
    for _ in range(int(WORKER_BYTES.burst) // MAX_BODY_BYTES * 4):
        statuses.append(await send(worker))
        if statuses[-1] == 429:
            break
    assert statuses[0] == 400
    assert statuses[-1] == 429
    assert worker.id in gateway.unanswered  # it is alive all the same
    assert [await send(other) for _ in range(4)] == [400] * 4
    beat = await other.call(protocol.HEARTBEAT, p_tasks=[], p_health={}, p_logs={})
    assert beat.status_code == 200


def test_an_allowance_comes_back_with_time() -> None:
    """What was taken beyond it is refused, and takes nothing."""
    buckets = Buckets(Rate(burst=2, per_s=1))
    assert [buckets.take("a", 1, 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.take("b", 2, 0.0)
    assert buckets.take("a", 1, 1.0)
    assert not buckets.take("a", 1, 1.5)
