"""A refused call makes at most one log line, and outsiders' calls one a minute: no caller can fill the log."""

import asyncio
import logging
import time
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from orchestrator import outputs
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from orchestrator.web.log_sampling import EVERY_S, SampledWarnings, Sampler
from orchestrator.web.wakeups import WakeupHub
from testbed.shared_services import Database
from tests.process.web.builders import DEADLINE_S, ServerUnderTest, done, serving
from tests.process.web.test_outputs import NOWHERE, _claimed
from worker import protocol

CALLS = 20  # fewer than make an outsider's address too fast
CLAIM = f"/rest/v1/rpc/{protocol.CLAIM}"


def test_the_first_line_comes_at_once_and_then_one_a_minute_with_the_count() -> None:
    """No call is left out of the counts."""
    sampler = Sampler()
    lines = [count for second in range(0, 200, 2) if (count := sampler.take(float(second)))]
    assert lines == [1, EVERY_S / 2, EVERY_S / 2, EVERY_S / 2]


async def test_refused_outsiders_make_one_line_together(postgres: Database, blobs: S3Blobs) -> None:
    """Without a token, with a wrong one, and with a body."""
    db = await PostgresDb.open(postgres.url, pool_size=1)
    headers: list[dict[str, str]] = [{}, {"Authorization": "Bearer x.y.z"}, {"Authorization": "Basic eDp5"}]
    async with serving(db, blobs, WakeupHub(), Health(time.monotonic())) as url, httpx.AsyncClient() as client:
        with capture_logs() as lines:
            for number in range(CALLS):
                reply = await client.post(f"{url}{CLAIM}", headers=headers[number % 3], json={"p_batch": number})
                assert reply.status_code == 401
    await db.close()
    assert [(line["event"], line["calls"]) for line in lines] == [("worker_call_refused", 1)]


@pytest.mark.parametrize(
    "request_",
    [b"no http at all\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"],
)
async def test_malformed_requests_make_one_line_together(
    postgres: Database, blobs: S3Blobs, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    """The HTTP server would write one or two for each."""
    server = logging.getLogger("uvicorn.error")
    for sampled in [known for known in server.filters if isinstance(known, SampledWarnings)]:
        server.removeFilter(sampled)  # of an earlier test: its minute has begun
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with serving(db, blobs, WakeupHub(), Health(time.monotonic())) as url:
        caplog.clear()
        parts = urlsplit(url)
        for _ in range(CALLS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(request_)
            async with asyncio.timeout(DEADLINE_S):
                await reader.read(100)
            writer.close()
        assert len([line for line in caplog.records if line.levelno >= logging.WARNING]) == 1
    await db.close()


async def test_a_refused_call_of_a_worker_makes_one_line(
    gateway: ServerUnderTest, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which says why, with the bucket's own words."""
    monkeypatch.setattr(outputs, "LOOK_TIMEOUT_S", 0.5)
    worker, key = await _claimed(gateway)
    location = gateway.blobs.location(key)
    result = {"p_worker_id": worker.id, "p_nonce": worker.nonce, **done(key.split("/")[1], location)}
    calls = [(protocol.COMPLETE, result), (protocol.COMPLETE, {"p_nothing": 1}), ("worker_nothing", {})]
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with serving(db, NOWHERE, WakeupHub(), Health(time.monotonic())) as url, httpx.AsyncClient() as client:
        for function, arguments in calls:
            with capture_logs() as lines:
                token = {"Authorization": f"Bearer {worker.token}"}
                await client.post(f"{url}/rest/v1/rpc/{function}", json=arguments, headers=token, timeout=10)
            assert [line["event"] for line in lines] == ["worker_call_refused"]
            assert function != protocol.COMPLETE or "p_nothing" in arguments or "Error" in lines[0]["why"]
    await db.close()
