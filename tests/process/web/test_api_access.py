"""Who may call the API, how often, and with how much."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import structlog

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.api_tokens import TokenScope
from orchestrator.web import connections
from orchestrator.web.api.operations import Operation
from orchestrator.web.api.routes import BASE, OPERATIONS
from orchestrator.web.token_buckets import Buckets, Rate
from orchestrator.worker_tokens import mint
from tests.process.web.api_rig import ADMIN, VIEWER, ApiRig, api_rig
from tests.process.web.builders import DEADLINE_S, SECRET, done

PROBLEM = "application/problem+json"
NOBODY = "00000000-0000-0000-0000-000000000000"
PATH = {
    "task_id": NOBODY, "worker_id": "gpu-1", "project": "default", "app_instance_id": "train",
    "change_id": "1000000000",
}  # fmt: skip


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and id of a problem, which must be one."""
    assert answer.headers["content-type"] == PROBLEM, answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["type"].endswith(body["id"])
    assert body["fix"]
    return answer.status_code, body["id"]


async def test_without_any_token_the_api_is_off_and_says_so(api_db: PostgresDb, blobs: S3Blobs) -> None:
    """Whatever is asked, and whatever is sent with it. A token switches it on."""
    async with api_rig(api_db, blobs, admin=None, viewer=None) as rig:
        for path in ("/tasks", "/nothing", "/openapi.json"):
            for token in (None, ADMIN, "gpo_" + "a" * 43):
                assert refusal(await rig.call("GET", path, token)) == (404, "E070")
        token = await rig.token("read")
        assert (await rig.call("GET", "/tasks", token)).status_code == 200
        rig.api.authentication._any = (0.0, False)  # five seconds later
        assert refusal(await rig.call("GET", "/tasks", None)) == (401, "E071")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", f"Basic {ADMIN}", f"Bearer {ADMIN}x", f"Bearer {ADMIN[:-1]}", "Bearer gpo_" + "a" * 43,
     "Bearer " + "a" * 5_000, "Bearer \xff\xfe", f"Bearer {SECRET}", f"Bearer {mint(SECRET, 'gpu-1', 'j', 4e9, 60)}"],
    ids=range(10),
)  # fmt: skip
async def test_a_wrong_token_opens_nothing(rig: ApiRig, header: str) -> None:
    """Not the metrics' token, and not a worker's."""
    headers = {b"Authorization": header.encode("latin-1")}
    answer = await rig.client.get(f"{BASE}/tasks", headers=headers)
    assert refusal(answer) == (401, "E071")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_token_of_the_api_opens_nothing_else(rig: ApiRig) -> None:
    """Neither the worker's calls nor the metrics."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    assert (await rig.client.post("/rest/v1/rpc/worker_claim", json={}, headers=headers)).status_code == 401
    assert (await rig.client.get("/metrics", headers=headers)).status_code == 401


async def test_wrong_tokens_are_slowed_down_and_right_ones_are_not(rig: ApiRig) -> None:
    """From one address. Nobody finds a token by trying, and nobody keeps others out by trying."""
    rig.api.authentication._unknown = Buckets(Rate(40, 0))  # nothing comes back, however long the calls take
    token = await rig.token("read")
    assert (await rig.call("GET", "/tasks", token)).status_code == 200
    answers = [await rig.call("GET", "/tasks", f"gpo_{n:043d}") for n in range(100)]
    assert {answer.status_code for answer in answers} == {401, 429}
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
    rig.api.authentication._seen.clear()
    assert (await rig.call("GET", "/tasks", token)).status_code == 200
    assert (await rig.call("GET", "/tasks", VIEWER)).status_code == 200


async def test_outsiders_that_try_addresses_are_slowed_down(
    api_db: PostgresDb, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no token for a 404 or a 405. A caller with a token goes on."""
    monkeypatch.setattr(connections, "ANONYMOUS_REQUESTS", Rate(3, 0))
    async with api_rig(api_db, blobs) as rig:
        answers = [await rig.call("GET", "/nothing-here", None) for _ in range(3)]
        answers += [await rig.call("DELETE", "/tasks", None) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [404, 404, 404, 429, 429]
        assert answers[-1].headers["connection"] == "close"
        assert (await rig.call("GET", "/tasks")).status_code == 200


async def test_a_call_that_waits_for_a_task_ends_without_it_if_its_token_is_revoked(
    rig: ApiRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time is up, or the task has changed."""
    monkeypatch.setattr("orchestrator.web.api.authentication.CACHE_S", 0.0)
    task_id = await rig.submit()
    revoked = await rig.token("read", name="webapp")
    waiting = asyncio.create_task(rig.call("GET", f"/tasks/{task_id}/wait?timeout_s=2", revoked))
    async with asyncio.timeout(DEADLINE_S):
        while not rig.api.watch._by_token:
            await asyncio.sleep(0.01)
        await rig.rows.revoke_token("webapp", "test")
        assert refusal(await waiting) == (401, "E071")


async def test_a_revoked_and_an_expired_token_are_refused(rig: ApiRig) -> None:
    """The first one within the five seconds for which an answer of the database counts."""
    revoked, ends = await rig.token("read", name="webapp"), datetime.now(UTC) + timedelta(seconds=8)
    short = await rig.token("read", expires_at=ends.isoformat())
    for token in (short, revoked):
        assert (await rig.call("GET", "/tasks", token)).status_code == 200
    await rig.rows.revoke_token("webapp", "test")
    rig.api.authentication._seen.clear()
    assert refusal(await rig.call("GET", "/tasks", revoked)) == (401, "E071")
    async with asyncio.timeout(DEADLINE_S):
        while (await rig.call("GET", "/tasks", short)).status_code == 200:
            await asyncio.sleep(0.05)
    assert datetime.now(UTC) >= ends


async def test_calls_at_once_look_their_token_up_once(rig: ApiRig) -> None:
    """Also if the one that began has gone."""
    token, calls, use = await rig.token("read"), 0, rig.rows.use_token

    async def counted(token_hash: str) -> Mapping[str, Any]:
        nonlocal calls
        calls += 1
        return await use(token_hash)

    rig.api.authentication._rows = type("Counted", (), {"use_token": staticmethod(counted)})()
    asked = [asyncio.create_task(rig.call("GET", f"/tasks/{NOBODY}", token)) for _ in range(20)]
    while not calls:
        await asyncio.sleep(0)
    asked[0].cancel()
    assert {answer.status_code for answer in await asyncio.gather(*asked[1:])} == {404}
    assert calls == 1


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
async def test_each_operation_needs_one_of_its_scopes(rig: ApiRig, one: Operation) -> None:
    """A token with every other scope is refused, before the body is looked at; so is one of a tenant for the fleet."""
    path, allowed = one.path.format(**PATH), set(one.scopes) | {TokenScope.ADMIN}
    if TokenScope.READ in allowed:
        allowed.add(TokenScope.OPERATE)  # includes it
    if others := sorted(set(TokenScope) - allowed):
        token = await rig.token(*others)
        assert refusal(await rig.call(one.method, path, token, content=b"no json")) == (403, "E072")
    tenant = await rig.token("admin", tenant="acme")
    answer = await rig.call(one.method, path, tenant, content=b"no json" if one.body else b"")
    assert (answer.status_code == 403) is not one.is_tenants, answer.text


async def test_a_token_has_a_rate(rig: ApiRig) -> None:
    """Another one is not slowed down by it."""
    token, other = await rig.token("read"), await rig.token("read")
    rig.api.requests = Buckets(Rate(5, 0.001))
    answers = [await rig.call("GET", f"/tasks/{NOBODY}", token) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [404] * 5 + [429] * 2
    assert refusal(answers[-1])[1] == "E073"
    assert (await rig.call("GET", f"/tasks/{NOBODY}", other)).status_code == 404


DEEP = b'{"task_type": "t", "params": {"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}"
MANY = b'{"task_type": "t", "params": {"a": [' + b"1," * 30_000 + b"1]}}"
LARGE = b'{"task_type": "t", "params": {"a": "' + b"x" * (1 << 20) + b'"}}'


@pytest.mark.parametrize(
    ("body", "status"),
    [(DEEP, 400), (MANY, 413), (LARGE, 413), (b"", 415), (b"[]", 400), (b"{", 400), (b'{"task_type": "t"', 400),
     (b'{"task_type": "\\u0000"}', 400), (b'{"task_type": "\\ud800"}', 400), (b'{"task_type": 1}', 422),
     (b'{"task_type": "t", "priority": 1e400}', 400), (b'{"task_type": "t", "id": "x"}', 422), (b"\xff", 400),
     (b'{"task_type": "t", "priority": 1' + b"0" * 2_000 + b"}", 413), (b'{"task_type": ""}', 422),
     (b'{"task_type": "t", "run_after": "2026-01-01T00:00:00"}', 422),
     (b'{"task_type": "t", "run_after": "9999-12-31T23:59:59-23:59"}', 422),
     (b'{"task_type": "t", "labels": {"a=b": "c"}}', 422), (b'{"task_type": "t", "depends_on": ["#0"]}', 422)],
    ids=range(19),
)  # fmt: skip
async def test_a_body_that_cannot_be_a_task_is_refused(rig: ApiRig, body: bytes, status: int) -> None:
    """With what is wrong; nothing is submitted."""
    kind = {"Content-Type": "application/json"} if body else {}
    answer = await rig.call("POST", "/tasks", content=body, headers=kind)
    assert refusal(answer)[0] == status, answer.text
    assert (await rig.call("GET", "/audit")).json()["entries"] == []


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(rig: ApiRig) -> None:
    """By its declared size, and without one by what has come."""
    reader, writer = await asyncio.open_connection(*rig.address)
    head = f"POST {BASE}/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n"
    writer.write(f"{head}Content-Length: {1 << 30}\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        assert b" 413 " in await reader.readline()
    writer.close()

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(48):
            yield b"x" * 65_536

    answer = await rig.call("POST", "/tasks", content=unannounced(), headers={"Content-Type": "application/json"})
    assert refusal(answer)[0] == 413


async def test_no_token_is_logged(rig: ApiRig) -> None:
    """Whatever the call comes to."""
    token, wrong = await rig.token("read"), "gpo_" + "b" * 43
    with structlog.testing.capture_logs() as lines:
        for given in (token, wrong, ADMIN):
            await rig.call("GET", "/tasks", given)
            await rig.call("POST", "/tasks", given, content=b"{")
    assert not any(secret in str(lines) for secret in (token, wrong, ADMIN))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("PUT", "/tasks", 405), ("POST", f"/tasks/{NOBODY}", 405), ("HEAD", "/tasks", 405), ("TRACE", "/tasks", 405),
     ("PUT", "/tasks/", 405), ("GET", "/nothing", 404), ("GET", "/tasks//", 404), ("GET", "/", 404)],
)  # fmt: skip
async def test_other_addresses_answer_in_the_same_form(rig: ApiRig, method: str, path: str, status: int) -> None:
    """With the methods that there are."""
    answer = await rig.call(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    if status == 405:
        assert answer.headers["allow"]


async def test_an_address_with_a_slash_at_its_end_is_the_same_one(rig: ApiRig) -> None:
    """As frameworks write them. The method, the body and the token count as they do without it."""
    made = await rig.call("POST", "/tasks/", await rig.token("submit"), json={"task_type": "film", "params": {"n": 1}})
    assert made.status_code == 201, made.text
    assert (await rig.call("GET", f"/tasks/{made.json()['id']}/")).json()["params"] == {"n": 1}
    assert (await rig.call("GET", "/tasks/?limit=1")).json()["tasks"]
    assert (await rig.call("GET", "/openapi.json/")).status_code == 200
    assert refusal(await rig.call("GET", "/tasks/", None)) == (401, "E071")


async def test_an_output_is_one_of_a_task_that_the_token_sees(rig: ApiRig) -> None:
    """A pod says where an output lies. It must not lead any token to the file of a task that it does not depend on."""
    mine = await rig.token("submit", "read", tenant=f"acme-{rig.pool}")
    worker = await rig.worker()
    foreign, own, unnamed = await rig.submit(tenant="other"), await rig.submit(mine), await rig.submit(mine)
    passed_on, blobs = await rig.submit(mine, depends_on=[own]), rig.blobs
    merged = await rig.submit(tenant=f"acme-{rig.pool}", depends_on=[foreign])  # by an administrator
    keys = {foreign: f"outputs/{foreign}/1/f", own: f"outputs/{own}/1/f", unnamed: f"outputs/program-{rig.pool}/f"}
    for key in keys.values():
        await blobs.put(key, b"a file", content_type="text/plain")

    async def read(token: str, key: str, task: str) -> httpx.Response:
        claims = await worker.call("worker_claim", p_claim_no=next(numbers), p_batch=1, p_wait_s=0)
        (claimed,) = claims.json()["tasks"]
        reply = await worker.call("worker_complete", **done(claimed["id"], blobs.location(key)))
        assert reply.json()["outcome"] == "ok", reply.text
        assert claimed["id"] == task
        return await rig.call("GET", f"/tasks/{task}/output", token, headers={"Accept": "application/json"})

    numbers = itertools.count(1)
    assert (await read(ADMIN, keys[foreign], foreign)).status_code == 200
    assert refusal(await read(mine, keys[foreign], own)) == (404, "E077")
    assert refusal(await read(mine, keys[unnamed], unnamed)) == (404, "E077")
    assert refusal(await read(mine, keys[foreign], merged)) == (404, "E077")
    assert (await read(mine, keys[own], passed_on)).status_code == 200
    for task, status in ((own, 404), (unnamed, 404), (passed_on, 200), (merged, 200)):
        answer = await rig.call("GET", f"/tasks/{task}/output", headers={"Accept": "application/json"})
        assert answer.status_code == status
