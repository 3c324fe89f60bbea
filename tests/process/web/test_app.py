"""The probes over HTTP, and the gateway while the database is away."""

import asyncio
import time
from pathlib import Path

import httpx
import psycopg

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.migrate import migrate
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint
from testbed.services.postgres import EmbeddedPostgres
from testbed.shared_services import Database
from tests.process.web.builders import DEADLINE_S, SECRET, serving
from worker import protocol

CANCEL_WHO_WAITS = """
    select pg_cancel_backend(pid) from pg_stat_activity
     where application_name = 'blocked' and wait_event_type = 'Lock'
"""
BEAT = {"p_worker_id": "gpu-1", "p_nonce": "n", "p_tasks": [], "p_health": {}, "p_logs": {}}


async def test_the_probes_follow_the_daemons_record(postgres: Database, blobs: S3Blobs) -> None:
    """Starting: alive, not ready. Leading or standing by: both. A dead loop: neither."""
    db = await PostgresDb.open(postgres.url, pool_size=1)
    health = Health(started_at_s=time.monotonic(), dead_after_s=60)
    async with serving(db, blobs, WakeupHub(), health) as url, httpx.AsyncClient(base_url=url) as outsider:
        client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {SECRET}"})
        assert [(await client.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        health.stands_by(3, "another:1")
        health.ticked(time.monotonic())
        reply = await client.get("/readyz")
        assert reply.status_code == 200
        assert (reply.json()["role"], reply.json()["leader"], reply.json()["term"]) == ("standby", "another:1", 3)
        health.leads(4, "us:1")
        assert (await client.get("/readyz")).json()["role"] == "leader"
        health.failed("Unavailable: nobody answers")
        reply = await client.get("/healthz")
        assert (reply.status_code, reply.json()["reason"]) == (200, "Unavailable: nobody answers")
        for path in ("/healthz", "/readyz"):  # an outsider learns nothing about hosts, versions and errors
            assert (await outsider.get(path)).json() == {"status": "degraded"}
        page = await outsider.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<strong>degraded</strong>" in page.text
        assert "us:1" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        health.ticked(time.monotonic() - 61)
        assert [(await client.get(path)).status_code for path in ("/healthz", "/readyz")] == [503, 503]
        assert (await client.head("/healthz")).status_code == 503
        await client.aclose()
    await db.close()


async def test_the_gateway_reports_an_outage_of_the_database_and_recovers(tmp_path: Path, blobs: S3Blobs) -> None:
    """503 in PostgREST's form, with nothing of ours in it; then, by itself, an answer again."""
    async with EmbeddedPostgres(tmp_path / "postgres", durable=False, keep=False) as server:
        await migrate(server.url)
        db = await PostgresDb.open(server.url, pool_size=2, call_timeout_s=2)
        headers = {"Authorization": f"Bearer {mint(SECRET, 'gpu-1', 'j', time.time(), 60)}"}
        path = f"/rest/v1/rpc/{protocol.HEARTBEAT}"
        async with (
            serving(db, blobs, WakeupHub(), Health(started_at_s=time.monotonic())) as url,
            httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client,
        ):
            await server.stop("immediate")
            reply = await client.post(path, json=BEAT)
            assert reply.status_code == 503, reply.text
            assert list(reply.json()) == ["code", "message", "details", "hint"]
            assert "127.0.0.1" not in reply.text
            assert "postgres" not in reply.text
            await server.start()
            async with asyncio.timeout(DEADLINE_S):
                while reply.status_code >= 500:  # an agent asks again after each of these
                    reply = await client.post(path, json=BEAT)
            assert (reply.status_code, reply.json()["code"]) == (400, protocol.UNKNOWN_WORKER)
        await db.close()


async def test_a_call_that_takes_too_long_is_a_statement_timeout(postgres: Database, blobs: S3Blobs) -> None:
    """500 with 57014, as PostgREST gives it; the agent tries again."""
    db = await PostgresDb.open(postgres.url, pool_size=1, application_name="blocked")
    headers = {"Authorization": f"Bearer {mint(SECRET, 'gpu-1', 'j', time.time(), 60)}"}
    path = f"/rest/v1/rpc/{protocol.HEARTBEAT}"
    async with (
        serving(db, blobs, WakeupHub(), Health(started_at_s=time.monotonic())) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client,
        await psycopg.AsyncConnection.connect(postgres.url) as blocker,
    ):
        await blocker.execute("lock table workers")
        blocked = asyncio.create_task(client.post(path, json=BEAT))
        async with asyncio.timeout(DEADLINE_S):
            while True:  # what the server does itself when statement_timeout runs out
                cancelled = await blocker.execute(CANCEL_WHO_WAITS)
                if cancelled.rowcount:
                    break
                await asyncio.sleep(0.02)
        reply = await blocked
        assert (reply.status_code, reply.json()["code"]) == (500, "57014"), reply.text
    await db.close()
