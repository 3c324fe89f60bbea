"""A worker that was heard and got no answer: the loop is told that it is not silent."""

import asyncio
import time
from typing import Any

import httpx

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from testbed.tasks import ended
from tests.process.web.builders import Caller, ServerUnderTest, serving
from worker import protocol

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"  # nothing listens on this port
BEAT: dict[str, Any] = {"p_tasks": [], "p_health": {}, "p_logs": {}}


async def test_a_call_shows_that_a_worker_is_alive_although_the_database_does_not_answer(blobs: S3Blobs) -> None:
    """503 for the agent, its id for the loop; a token that is not ours counts for nobody."""
    heard: list[str] = []
    db = await PostgresDb.open(NOWHERE, pool_size=1, call_timeout_s=0.3)
    try:
        health = Health(started_at_s=time.monotonic())
        async with (
            serving(db, blobs, WakeupHub(), health, heard.append) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            worker = Caller("gpu-heard", "p", "jti", "nonce", client)
            assert (await worker.call(protocol.HEARTBEAT, **BEAT)).status_code == 503
            assert (await worker.call(protocol.HEARTBEAT, token="x.y.z", **BEAT)).status_code == 401
    finally:
        await db.close()
    assert heard == ["gpu-heard"]


async def test_a_call_that_a_worker_gave_up_shows_that_it_lives(gateway: ServerUnderTest) -> None:
    """A claim that its caller leaves; one that was answered, or refused by the database, needs no such note."""
    worker = await gateway.worker()
    await worker.claim()
    await worker.call(protocol.CLAIM, p_claim_no=0, p_batch=1, p_wait_s=0)
    assert worker.id not in gateway.unanswered
    given_up = asyncio.create_task(worker.claim(2, wait_s=20))
    await gateway.until(lambda: gateway.signal.waiting > 0)
    await ended(given_up)
    await gateway.until(lambda: worker.id in gateway.unanswered)
