"""Outputs reach a real bucket without a key on the pod, and only where they belong."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.states import State
from orchestrator.observability.health import Health
from orchestrator.web.allowances import CALLS
from orchestrator.web.wakeups import WakeupHub
from testbed.shared_services import Database
from tests.process.web.builders import DEADLINE_S, Caller, ServerUnderTest, done, serving
from worker import protocol

CONTENT = b"frames \x00\xff" * 1_000


class Counting(PostgresDb):
    """Counts the calls that are with the database at once. With `together`, the first one waits until CALLS are."""

    now = most = 0
    together: asyncio.Event | None = None

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.together is not None:
                if self.now == CALLS:
                    self.together.set()
                await asyncio.wait_for(self.together.wait(), DEADLINE_S)
            return await super().call_as_worker(claims, function, args)
        finally:
            self.now -= 1


async def _grants(worker: Caller, *items: tuple[str, str]) -> dict[str, Any]:
    reply = await worker.call(protocol.GRANTS, p_items=[{"method": method, "key": key} for method, key in items])
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def test_an_output_is_uploaded_and_downloaded_by_a_dependent_task(gateway: ServerUnderTest) -> None:
    """Signed PUT, completion with the location, signed GET by the dependant: the bytes are the same."""
    worker = await gateway.worker()
    (first,) = await gateway.submit(worker.pool)
    (second,) = await gateway.submit(worker.pool, depends_on=[first])
    (task,) = (await worker.claim(1))["tasks"]
    key = f"{task['output_prefix']}segment 1 \N{SNOWMAN}.mp4"
    (put,) = (await _grants(worker, ("PUT", key)))["items"]
    assert put["location"] == f"s3://tests/fleet/{key}"
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(put["url"], content=CONTENT)).status_code == 200
    assert await gateway.blobs.size(key) == len(CONTENT)
    assert (await worker.call(protocol.COMPLETE, **done(first, put["location"]))).json() == {"outcome": "ok"}

    (task,) = (await worker.claim(2))["tasks"]
    assert task["id"] == second
    assert task["dependencies"][0]["output_location"] == put["location"]
    (get,) = (await _grants(worker, ("GET", key)))["items"]
    async with httpx.AsyncClient() as pod:
        assert (await pod.get(get["url"])).content == CONTENT


async def test_nothing_else_is_signed(gateway: ServerUnderTest) -> None:
    """Not another task's prefix, another attempt's, a log, a path with `..`, or a method beyond the two."""
    worker, other = await gateway.worker(), await gateway.worker()
    (mine,) = await gateway.submit(worker.pool)
    (theirs,) = await gateway.submit(other.pool)
    await worker.claim()
    await other.claim()
    items = [
        ("PUT", f"outputs/{theirs}/1/x"),
        ("PUT", f"outputs/{mine}/2/x"),
        ("PUT", f"outputs/{mine}/1/../../{theirs}/1/x"),
        ("PUT", f"outputs/{mine}/1/./x"),
        ("PUT", f"outputs/{mine}/1//x"),
        ("PUT", f"outputs/{mine}/1/"),
        ("PUT", f"/outputs/{mine}/1/x"),
        ("PUT", f"logs/{worker.id}/x"),
        ("PUT", ""),
        ("GET", f"outputs/{mine}/1/x"),
        ("GET", f"outputs/{theirs}/1/x"),
        ("GET", f"logs/{other.id}/x"),
        ("DELETE", f"outputs/{mine}/1/x"),
        ("put", f"outputs/{mine}/1/x"),
    ]
    answer = await _grants(worker, *items)
    assert answer["items"] == []
    assert answer["refused"] == [key for _, key in items]


async def test_a_signature_is_for_one_key_and_one_method(gateway: ServerUnderTest) -> None:
    """The bucket itself refuses anything else."""
    worker = await gateway.worker()
    await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    (put,) = (await _grants(worker, ("PUT", task["output_prefix"] + "a")))["items"]
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(put["url"].replace("/a?", "/b?"), content=b"x")).status_code == 403
        assert (await pod.get(put["url"])).status_code == 403
        assert (await pod.put(put["url"].partition("?")[0], content=b"x")).status_code == 403


@pytest.mark.parametrize("ended", ["completed", "worker gone"])
async def test_no_grant_outlives_the_attempt(gateway: ServerUnderTest, ended: str) -> None:
    """After the task has ended, or another worker has it, its prefix is closed."""
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    item = {"method": "PUT", "key": task["output_prefix"] + "late"}
    if ended == "completed":
        await worker.call(protocol.COMPLETE, **done(task_id))
        assert (await _grants(worker, ("PUT", item["key"])))["refused"] == [item["key"]]
        return
    await gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="pod_lost")
    await gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    reply = await worker.call(protocol.GRANTS, p_items=[item])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.UNKNOWN_WORKER)


async def test_one_worker_with_many_calls_leaves_connections_to_others(
    gateway: ServerUnderTest, postgres: Database, blobs: S3Blobs
) -> None:
    """Of eight calls for URLs at once, two use the database; the others wait, and all are answered."""
    db = await Counting.open(postgres.url)
    health = Health(started_at_s=time.monotonic())
    async with (
        serving(db, blobs, WakeupHub(), health) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as client,
    ):
        worker = replace(await gateway.worker(), client=client)
        await gateway.submit(worker.pool)
        (task,) = (await worker.claim())["tasks"]
        items = [("PUT", f"{task['output_prefix']}{n}") for n in range(100)]
        db.together = asyncio.Event()
        answers = await asyncio.gather(*(_grants(worker, *items) for _ in range(8)))
        assert [len(answer["items"]) for answer in answers] == [100] * 8
    await db.close()
    assert db.most == CALLS
