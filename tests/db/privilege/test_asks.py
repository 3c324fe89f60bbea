"""Pods that speak to PostgREST alone: what only the owner of the bucket can do, the leader does for them."""

import asyncio
import base64
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.states import State
from orchestrator.leader_jobs.pod_requests import PodRequests
from testbed.tasks import ended
from tests.db.privilege.rig import Endpoints
from tests.process.web.agents import Agents
from tests.process.web.builders import RENEWALS, Caller, done
from worker import protocol
from worker.renewal import unseal

NOWHERE = S3Blobs("http://127.0.0.1:9", "nobody", "nothing", "tests", "fleet", "us-east-1")
POLL_S = 1.0  # of the leader, where nothing tells it that somebody asks
PATIENCE_S = 60.0
PENDING = {"outcome": protocol.PENDING}


@pytest.fixture
def requests(endpoints: Endpoints) -> PodRequests:
    """The leader's side."""
    return PodRequests(endpoints.gateway.store, endpoints.gateway.blobs)


@pytest.fixture
async def agents(endpoints: Endpoints, tmp_path: Path) -> AsyncIterator[Agents]:
    """Agents that know PostgREST and a publishable key, and end with the test."""
    agents = Agents(endpoints.gateway, tmp_path, url=endpoints.rest.project_url, api_key=endpoints.rest.publishable_key)
    yield agents
    await agents.close()


async def _holding(endpoints: Endpoints) -> tuple[Caller, Mapping[str, Any]]:
    """A worker that calls PostgREST and holds a task."""
    worker = endpoints.through("postgrest", await endpoints.gateway.worker())
    await endpoints.gateway.submit(worker.pool)
    return worker, (await worker.claim())["tasks"][0]


async def _grant(worker: Caller, method: str, key: str) -> httpx.Response:
    return await worker.call(protocol.GRANTS, p_items=[{"method": method, "key": key}])


async def test_a_url_is_asked_for_signed_and_works(endpoints: Endpoints, requests: PodRequests) -> None:
    """202 until the leader has looked, the same however often it is asked; then a URL that takes the bytes."""
    worker, task = await _holding(endpoints)
    key = f"{task['output_prefix']}x.txt"
    for _ in range(3):
        reply = await _grant(worker, "PUT", key)
        assert reply.status_code == 202
        assert reply.json().items() >= {**PENDING, "items": [], "pending": [key]}.items()
    assert await requests.step(endpoints.gateway.term) == 1
    (item,) = (await _grant(worker, "PUT", key)).json()["items"]
    assert item["location"] == endpoints.gateway.blobs.location(key)
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(item["url"], content=b"bytes")).status_code == 200
    assert await endpoints.gateway.blobs.get(key) == b"bytes"


async def test_a_completion_counts_once_the_leader_has_seen_the_output(
    endpoints: Endpoints, requests: PodRequests
) -> None:
    """Pending, then ok; repeated, already."""
    worker, task = await _holding(endpoints)
    key = f"{task['output_prefix']}x.txt"
    await endpoints.gateway.blobs.put(key, b"x", content_type="text/plain")
    completion = done(task["id"], endpoints.gateway.blobs.location(key))
    first = await worker.call(protocol.COMPLETE, **completion)
    assert (first.status_code, first.json()) == (202, PENDING)
    assert (await endpoints.gateway.store.task(task["id"]))["task"]["status"] == "In Progress"
    await requests.step(endpoints.gateway.term)
    assert (await worker.call(protocol.COMPLETE, **completion)).json() == {"outcome": "ok"}
    assert (await worker.call(protocol.COMPLETE, **completion)).json() == {"outcome": "already"}


async def test_an_output_that_is_not_there_completes_nothing(endpoints: Endpoints, requests: PodRequests) -> None:
    """Said as through the gateway."""
    worker, task = await _holding(endpoints)
    completion = done(task["id"], endpoints.gateway.blobs.location(f"{task['output_prefix']}x.txt"))
    await worker.call(protocol.COMPLETE, **completion)
    await requests.step(endpoints.gateway.term)
    said = {"outcome": protocol.UNVERIFIED, "code": protocol.OUTPUT_MISSING}
    assert (await worker.call(protocol.COMPLETE, **completion)).json() == said


@pytest.mark.parametrize("location", [None, "https://example.org/x"])
async def test_what_is_in_no_bucket_needs_no_look(endpoints: Endpoints, location: str | None) -> None:
    """Accepted at once; `s3://` of another bucket is for the leader to tell."""
    worker, task = await _holding(endpoints)
    assert (await worker.call(protocol.COMPLETE, **done(task["id"], location))).json() == {"outcome": "ok"}


async def test_another_bucket_is_not_looked_for(endpoints: Endpoints, requests: PodRequests) -> None:
    """Its maker alone can see it."""
    worker, task = await _holding(endpoints)
    completion = done(task["id"], "s3://elsewhere/x")
    assert (await worker.call(protocol.COMPLETE, **completion)).status_code == 202
    await requests.step(endpoints.gateway.term)
    assert (await worker.call(protocol.COMPLETE, **completion)).json() == {"outcome": "ok"}


async def test_an_unavailable_bucket_gives_no_answer(endpoints: Endpoints, requests: PodRequests) -> None:
    """The question stays open, and nobody spins on it."""
    worker, task = await _holding(endpoints)
    location = endpoints.gateway.blobs.location(f"{task['output_prefix']}x.txt")
    await worker.call(protocol.COMPLETE, **done(task["id"], location))
    async with asyncio.timeout(30):
        assert await PodRequests(endpoints.gateway.store, NOWHERE).step(endpoints.gateway.term) == 0
    assert (await worker.call(protocol.COMPLETE, **done(task["id"], location))).status_code == 202
    await requests.step(endpoints.gateway.term)


async def test_an_answer_grows_old(
    endpoints: Endpoints, requests: PodRequests, owner: psycopg.AsyncConnection[Any]
) -> None:
    """After five minutes, it is asked again. A row that is not asked again is deleted, so that no signed URL stays."""
    worker, task = await _holding(endpoints)
    key = f"{task['output_prefix']}x.txt"
    await _grant(worker, "PUT", key)
    await requests.step(endpoints.gateway.term)
    age = "update worker_asks set answered_at = answered_at - interval '6 minutes' where worker_id = %s"
    await owner.execute(age.encode(), (worker.id,))
    assert (await _grant(worker, "PUT", key)).status_code == 202
    await requests.step(endpoints.gateway.term)
    await owner.execute(age.encode(), (worker.id,))
    other, others = await _holding(endpoints)
    await _grant(other, "PUT", f"{others['output_prefix']}x.txt")
    await requests.step(endpoints.gateway.term)
    left = await owner.execute("select count(*) from worker_asks where worker_id = %s", (worker.id,))
    assert await left.fetchone() == (0,)


async def test_a_replaced_output_is_not_handed_on_and_a_write_is_bound(
    endpoints: Endpoints, requests: PodRequests
) -> None:
    """As through the gateway: the leader compares what the completion recorded, and signs what the worker named."""
    worker, task = await _holding(endpoints)
    (second,) = await endpoints.gateway.submit(worker.pool, depends_on=[task["id"]])
    key = f"{task['output_prefix']}x.txt"
    sha256 = hashlib.sha256(b"good").hexdigest()
    once = [{"method": "PUT", "key": key, "once": True, "bytes": 4, "sha256": sha256}]
    for _ in range(2):
        reply = await worker.call(protocol.GRANTS, p_items=once)
        await requests.step(endpoints.gateway.term)
    (item,) = reply.json()["items"]
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(item["url"], content=b"good", headers=item["headers"])).status_code == 200
        assert (await pod.put(item["url"], content=b"evil", headers=item["headers"])).status_code == 412
    lie = {"etag": "lie", "upload": {"started_s": 0, "ended_s": 9e9}}
    completion = done(task["id"], item["location"]) | {"p_output": lie}
    await worker.call("worker_complete_output", **completion)
    await requests.step(endpoints.gateway.term)
    assert (await worker.call("worker_complete_output", **completion)).json() == {"outcome": "ok"}
    seen = (await endpoints.gateway.store.task(task["id"]))["task"]["output_object"]
    assert (seen["sha256"], "upload" in seen) == (sha256, False)
    assert [held["id"] for held in (await worker.claim(2))["tasks"]] == [second]
    await endpoints.gateway.blobs.put(key, b"evil", content_type="text/plain")
    await _grant(worker, "GET", key)
    await requests.step(endpoints.gateway.term)
    answer = (await _grant(worker, "GET", key)).json()
    assert (answer["items"], answer["refused"], answer["replaced"]) == ([], [key], [key])


async def test_a_file_is_uploaded_in_parts(endpoints: Endpoints, requests: PodRequests) -> None:
    """As through the gateway: each step is asked for, signed by the leader, and bound to what the worker named."""
    worker, task = await _holding(endpoints)
    film, key = os.urandom(5 << 20) + b"end", f"{task['output_prefix']}film"
    pieces = [film[: 5 << 20], film[5 << 20 :]]
    item = {"method": "PUT", "key": key, "verify": True, "once": True, "bytes": len(film)}
    item["sha256"] = hashlib.sha256(film).hexdigest()

    async def granted(**more: Any) -> dict[str, Any]:
        for _ in range(2):
            reply = await worker.call(protocol.GRANTS, p_items=[item | more])
            await requests.step(endpoints.gateway.term)
        (answer,) = reply.json()["items"]
        return dict(answer)

    begin = await granted(multipart=True)
    async with httpx.AsyncClient() as pod:
        begun = await pod.post(begin["create"]["url"], headers=begin["create"]["headers"])
        upload_id = re.findall("<UploadId>(.*)</UploadId>", begun.text)[0]
        parts = [
            {"n": number, "bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()}
            for number, piece in enumerate(pieces, 1)
        ]
        rest = await granted(upload_id=upload_id, parts=parts)
        first = rest["parts"][0]
        assert (await pod.put(first["url"], content=pieces[1], headers=first["headers"])).status_code == 403
        evil = await pod.put(first["url"], content=bytes(5 << 20), headers=first["headers"])
        assert evil.status_code == 400
        body = "<CompleteMultipartUpload>"
        for number, (one, piece) in enumerate(zip(rest["parts"], pieces, strict=True), 1):
            sent = await pod.put(one["url"], content=piece, headers=one["headers"])
            checksum = base64.b64encode(hashlib.sha256(piece).digest()).decode()
            tags = f"<PartNumber>{number}</PartNumber><ETag>{sent.headers['etag']}</ETag>"
            body += f"<Part>{tags}<ChecksumSHA256>{checksum}</ChecksumSHA256></Part>"
        end = rest["complete"]
        ended = await pod.post(end["url"], headers=end["headers"], content=f"{body}</CompleteMultipartUpload>")
        assert ended.status_code == 200, ended.text
        look = rest["check"]
        assert (await pod.head(look["url"], headers=look["headers"])).headers["content-length"] == str(len(film))
    assert await endpoints.gateway.blobs.get(key) == film
    assert (await endpoints.gateway.blobs.look(key))["sha256"] == item["sha256"]


@pytest.mark.parametrize(
    "said",
    [
        {"upload_id": ""}, {"upload_id": "a b"}, {"upload_id": "x" * 1025}, {"parts": None}, {"parts": [{}] * 65},
        {"parts": [{"n": 0, "bytes": 1, "sha256": "0" * 64}]}, {"parts": [{"n": 1, "bytes": -1, "sha256": "0" * 64}]},
        {"parts": [{"n": 1, "bytes": (5 << 30) + 1, "sha256": "0" * 64}]}, {"parts": [{"n": 1, "bytes": 1}]},
        {"parts": [{"n": 1, "bytes": 1, "sha256": "x"}]}, {"parts": [1]}, {"parts": ["n"]},
    ],
)  # fmt: skip
async def test_what_is_signed_of_a_part_is_bounded(endpoints: Endpoints, said: dict[str, Any]) -> None:
    """A malformed request is refused as a whole."""
    worker, task = await _holding(endpoints)
    item = {"method": "PUT", "key": f"{task['output_prefix']}x", "once": True, "bytes": 1, "sha256": "0" * 64}
    reply = await worker.call(protocol.GRANTS, p_items=[item | {"upload_id": "u", "parts": []} | said])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.BAD_ARGUMENT)


async def test_what_was_answered_is_kept_from_who_may_no_longer_have_it(
    endpoints: Endpoints, requests: PodRequests
) -> None:
    """The task is given back between question and answer: the URL stays where it is."""
    worker, task = await _holding(endpoints)
    key = f"{task['output_prefix']}x.txt"
    await _grant(worker, "PUT", key)
    await requests.step(endpoints.gateway.term)
    given = {"p_task_id": task["id"], "p_attempt": 1, "p_reason": "test"}
    assert (await worker.call(protocol.RELEASE, **given)).json() == {"outcome": "ok"}
    assert (await _grant(worker, "PUT", key)).json()["refused"] == [key]


async def test_of_one_worker_only_so_many_questions_are_open(
    endpoints: Endpoints, requests: PodRequests, owner: psycopg.AsyncConnection[Any]
) -> None:
    """The rest is told to ask again, and another worker's question is answered in the first batch all the same."""
    greedy, task = await _holding(endpoints)
    for part in range(2):
        items = [{"method": "PUT", "key": f"{task['output_prefix']}{part}-{n}"} for n in range(900)]
        assert (await greedy.call(protocol.GRANTS, p_items=items)).status_code == 202
    count = await owner.execute("select count(*) from worker_asks where worker_id = %s", (greedy.id,))
    assert await count.fetchone() == (1000,)
    other, others = await _holding(endpoints)
    await _grant(other, "PUT", f"{others['output_prefix']}x")
    assert other.id in {ask["worker_id"] for ask in await endpoints.gateway.store.asks(100)}
    await requests.step(endpoints.gateway.term)


async def test_the_next_token_is_asked_for_sealed_and_works(
    endpoints: Endpoints, owner: psycopg.AsyncConnection[Any]
) -> None:
    """202 until the leader has answered. What lies in the database opens nothing, and goes when it is read."""
    worker = endpoints.through("postgrest", await endpoints.gateway.worker())
    requests = PodRequests(endpoints.gateway.store, NOWHERE, lambda name, jti: RENEWALS.sealed(name, jti, time.time()))
    for _ in range(2):  # an answer that got lost is asked for again
        reply = await worker.call(protocol.RENEW)
        assert (reply.status_code, reply.json()) == (202, PENDING)
        assert await requests.step(endpoints.gateway.term) == 1
        kept = await (
            await owner.execute("select answer::text from worker_asks where worker_id = %s", (worker.id,))
        ).fetchone()
        assert kept is not None
        assert b"eyJ" not in base64.urlsafe_b64decode(json.loads(kept[0])["sealed"][0])
        said = (await worker.call(protocol.RENEW)).json()
        left = await owner.execute("select count(*) from worker_asks where worker_id = %s", (worker.id,))
        assert await left.fetchone() == (0,)
    opened = unseal(RENEWALS.key_for(worker.id, worker.jti) or "", said["sealed"][0])
    assert opened is not None
    assert (
        await worker.call(protocol.HEARTBEAT, token=opened["token"], p_tasks=[], p_health={}, p_logs={})
    ).status_code == 200


async def test_a_revoked_worker_gets_no_next_token(endpoints: Endpoints) -> None:
    """Neither asks for one nor reads one that was answered before."""
    worker = endpoints.through("postgrest", await endpoints.gateway.worker())
    await worker.call(protocol.RENEW)
    sealing = PodRequests(endpoints.gateway.store, NOWHERE, lambda name, jti: RENEWALS.sealed(name, jti, time.time()))
    assert await sealing.step(endpoints.gateway.term) == 1
    await endpoints.gateway.move(worker, (State.ACTIVE,), State.ACTIVE, token_jti="another")
    for endpoint in (worker, Caller(worker.id, worker.pool, worker.jti, worker.nonce, endpoints.gateway.client)):
        reply = await endpoint.call(protocol.RENEW)
        assert (reply.status_code // 100, reply.json()["code"]) == (4, protocol.BAD_TOKEN)


async def test_no_row_is_left_by_a_pod_at_the_gateway(
    endpoints: Endpoints, owner: psycopg.AsyncConnection[Any]
) -> None:
    """It signs and looks itself, at once."""
    worker = await endpoints.gateway.worker()
    await endpoints.gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    reply = await _grant(worker, "PUT", f"{task['output_prefix']}x")
    assert reply.status_code == 200
    assert reply.json()["items"][0]["url"].startswith("http")
    left = await owner.execute("select count(*) from worker_asks where worker_id = %s", (worker.id,))
    assert await left.fetchone() == (0,)


async def test_agents_hand_over_files_through_postgrest_alone(
    agents: Agents, endpoints: Endpoints, requests: PodRequests, owner: psycopg.AsyncConnection[Any]
) -> None:
    """Two leaves and a join, with no gateway and a leader that looks once a second: as fast as that allows.

    It is known of each when its output was uploaded.
    """
    worker = await agents.create()
    leading = asyncio.create_task(_lead(requests, endpoints.gateway.term))
    try:
        pool = {"pool": worker.caller.pool}
        made = await endpoints.gateway.store.submit([
            {**pool, "task_type": "leaf", "params": {"says": "a"}},
            {**pool, "task_type": "leaf", "params": {"says": "b"}},
            {**pool, "task_type": "join", "depends_on": ["#1", "#0"]},
        ])  # fmt: skip
        row = await agents.ended(made[2]["id"], PATIENCE_S)
        assert row["status"] == "Complete", row["error_message"]
        key = endpoints.gateway.blobs.key_of(row["output_location"])
        assert key is not None
        assert await endpoints.gateway.blobs.get(key) == b"(b+a)"
        uploads = await owner.execute(
            "select a.started_at <= a.upload_started_at and a.upload_started_at < a.upload_ended_at"
            " and a.upload_ended_at <= a.ended_at from task_attempts a where a.task_id = any(%s)",
            ([one["id"] for one in made],),
        )
        assert await uploads.fetchall() == [(True,)] * 3
        (lied,) = await endpoints.gateway.submit(worker.caller.pool, task_type="liar", max_attempts=1)
        row = await agents.ended(lied, PATIENCE_S)
        assert (row["status"], row["failure_code"]) == ("Failed", protocol.OUTPUT_MISSING)
    finally:
        await ended(leading)


async def test_an_answer_comes_with_the_next_look_after_the_question(
    endpoints: Endpoints, requests: PodRequests
) -> None:
    """With the leader's poll alone, and a pod that asks as the agent does: within two seconds."""
    looks: list[int] = []
    leading = asyncio.create_task(_lead(requests, endpoints.gateway.term, looks))
    try:
        worker, task = await _holding(endpoints)
        under_way = len(looks)
        assert (await _grant(worker, "PUT", f"{task['output_prefix']}x")).status_code == 202
        asked = len(looks)  # this look began before the question, perhaps; the next one did not
        async with asyncio.timeout(PATIENCE_S):
            while (await _grant(worker, "PUT", f"{task['output_prefix']}x")).status_code == 202:
                await asyncio.sleep(0.25)
            while len(looks) < asked + 2:
                await asyncio.sleep(0.05)
        assert sum(looks[under_way : asked + 2]) > 0
    finally:
        await ended(leading)


async def _lead(requests: PodRequests, term: int, looks: list[int] | None = None) -> None:
    """Look as often as the leader does; note how many questions each look has answered."""
    looks = [] if looks is None else looks
    while True:
        looks.append(await requests.step(term))
        await asyncio.sleep(POLL_S)
