"""Complete means that the output is there: the bucket is asked before the database is."""

import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from orchestrator import grants
from orchestrator.adapters.blobs import S3Blobs
from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.emulator.postgres import EmbeddedPostgres
from orchestrator.web.health import Health
from orchestrator.web.signal import TaskSignal
from tests.web.builders import Caller, Door, done, serving
from worker import protocol

NOWHERE = S3Blobs("http://127.0.0.1:9", "nobody", "nothing", "tests", "fleet", "us-east-1")


async def _claimed(door: Door) -> tuple[Caller, str]:
    """A worker that holds a task, and the key under which it would store."""
    worker = await door.worker()
    await door.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    return worker, f"{task['output_prefix']}x"


def test_a_grant_is_short() -> None:
    """Only the start of a transfer needs it: a URL that got out can replace an output for minutes, and not an hour."""
    signed = grants.sign(NOWHERE, "PUT", "outputs/1/1/x")
    assert signed is not None
    (seconds,) = parse_qs(urlsplit(signed["url"]).query)["X-Amz-Expires"]
    assert int(seconds) <= 300


async def test_an_output_that_is_not_there_completes_nothing(door: Door) -> None:
    """Said as data, with a code; once it is there, the same completion is taken."""
    worker, key = await _claimed(door)
    task_id, location = key.split("/")[1], door.blobs.location(key)
    reply = await worker.call(protocol.COMPLETE, **done(task_id, location))
    assert reply.json() == {"outcome": protocol.UNVERIFIED, "code": protocol.OUTPUT_MISSING}
    assert (await door.store.task(task_id))["task"]["status"] == "In Progress"
    await door.blobs.put(key, b"x", content_type="text/plain")
    assert (await worker.call(protocol.COMPLETE, **done(task_id, location))).json() == {"outcome": "ok"}
    assert (await door.store.task(task_id))["task"]["output_location"] == location


@pytest.mark.parametrize("location", [None, "s3://elsewhere/x", "s3://tests/other-prefix/x", "https://example.org/x"])
async def test_what_is_not_in_our_bucket_is_not_looked_for(door: Door, location: str | None) -> None:
    """No output, or one that only its maker can see."""
    worker, key = await _claimed(door)
    assert (await worker.call(protocol.COMPLETE, **done(key.split("/")[1], location))).json() == {"outcome": "ok"}


async def test_a_bucket_that_is_away_is_no_answer(
    door: Door, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent keeps its result and asks again: 503 within the bound, and nothing has changed."""
    monkeypatch.setattr(grants, "LOOK_TIMEOUT_S", 0.5)
    worker, key = await _claimed(door)
    task_id = key.split("/")[1]
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with serving(db, NOWHERE, TaskSignal(), Health(time.monotonic())) as url, httpx.AsyncClient() as client:
        reply = await client.post(
            f"{url}/rest/v1/rpc/{protocol.COMPLETE}",
            json={"p_worker_id": worker.id, "p_nonce": worker.nonce, **done(task_id, door.blobs.location(key))},
            headers={"Authorization": f"Bearer {worker.token}"},
            timeout=10,
        )
    await db.close()
    assert (reply.status_code, reply.json()["code"]) == (503, "OUTPUT_UNKNOWN")
    assert (await door.store.task(task_id))["task"]["status"] == "In Progress"
