"""Complete means that the output is there: the bucket is asked before the database is."""

import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest

from orchestrator import outputs
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.states import State
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from testbed.shared_services import Database
from tests.process.web.builders import Caller, ServerUnderTest, done, serving
from worker import protocol

NOWHERE = S3Blobs("http://127.0.0.1:9", "nobody", "nothing", "tests", "fleet", "us-east-1")


@pytest.fixture
async def owner(postgres: Database) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """The owner's connection: a user's own SQL."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        yield connection


async def _claimed(gateway: ServerUnderTest) -> tuple[Caller, str]:
    """A worker that holds a task, and the key under which it would store."""
    worker = await gateway.worker()
    await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    return worker, f"{task['output_prefix']}x"


async def test_a_grant_is_short() -> None:
    """Only the start of a transfer needs it: a URL that got out can replace an output for minutes, and not an hour."""
    signed = await outputs.grant(NOWHERE, "PUT", "outputs/1/1/x", {})
    (seconds,) = parse_qs(urlsplit(signed["url"]).query)["X-Amz-Expires"]
    assert int(seconds) <= 300


async def test_an_output_that_is_not_there_completes_nothing(gateway: ServerUnderTest) -> None:
    """Said as data, with a code; once it is there, the same completion is taken."""
    worker, key = await _claimed(gateway)
    task_id, location = key.split("/")[1], gateway.blobs.location(key)
    reply = await worker.call(protocol.COMPLETE, **done(task_id, location))
    assert reply.json() == {"outcome": protocol.UNVERIFIED, "code": protocol.OUTPUT_MISSING}
    assert (await gateway.store.task(task_id))["task"]["status"] == "In Progress"
    await gateway.blobs.put(key, b"x", content_type="text/plain")
    assert (await worker.call(protocol.COMPLETE, **done(task_id, location))).json() == {"outcome": "ok"}
    assert (await gateway.store.task(task_id))["task"]["output_location"] == location


async def test_a_completion_that_a_trigger_refuses_counts(
    gateway: ServerUnderTest, owner: psycopg.AsyncConnection[Any]
) -> None:
    """The agent is done with it, and the API shows it; the user's row follows when the trigger lets it."""
    worker, key = await _claimed(gateway)
    task_id = key.split("/")[1]
    body = f"if new.id = '{task_id}' and new.status = 'Complete' then raise exception 'not now'; end if; return new;"
    await owner.execute(
        f"create function users_own() returns trigger language plpgsql as $$ begin {body} end $$".encode()
    )
    await owner.execute("create trigger users_own before update on tasks for each row execute function users_own()")
    shown = """
        select t.status, p.reason from tasks t
          left join orchestrator.publications p on p.task_id = t.id where t.id = %s"""
    try:
        reply = await worker.call(protocol.COMPLETE, **done(task_id))
        assert (reply.status_code, reply.json()["outcome"]) == (200, "ok")
        assert (await gateway.store.task(task_id))["task"]["status"] == "Complete"
        row = await (await owner.execute(shown, (task_id,))).fetchone()
        assert row == ("In Progress", "not now (P0001)")
    finally:
        await owner.execute("drop function users_own() cascade")
    await owner.execute("update orchestrator.publications set retry_at = now()")
    await owner.execute("select orchestrator.maintain(clock_timestamp())")
    assert await (await owner.execute(shown, (task_id,))).fetchone() == ("Complete", None)


@pytest.mark.parametrize("location", [None, "s3://elsewhere/x", "s3://tests/other-prefix/x", "https://example.org/x"])
async def test_what_is_not_in_our_bucket_is_not_looked_for(gateway: ServerUnderTest, location: str | None) -> None:
    """No output, or one that only its maker can see."""
    worker, key = await _claimed(gateway)
    assert (await worker.call(protocol.COMPLETE, **done(key.split("/")[1], location))).json() == {"outcome": "ok"}


async def test_an_unavailable_bucket_gives_no_answer(
    gateway: ServerUnderTest, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent keeps its result and asks again: 503 within the bound, and nothing has changed."""
    monkeypatch.setattr(outputs, "LOOK_TIMEOUT_S", 0.5)
    worker, key = await _claimed(gateway)
    task_id = key.split("/")[1]
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with serving(db, NOWHERE, WakeupHub(), Health(time.monotonic())) as url, httpx.AsyncClient() as client:
        reply = await client.post(
            f"{url}/rest/v1/rpc/{protocol.COMPLETE}",
            json={"p_worker_id": worker.id, "p_nonce": worker.nonce, **done(task_id, gateway.blobs.location(key))},
            headers={"Authorization": f"Bearer {worker.token}"},
            timeout=10,
        )
    await db.close()
    assert (reply.status_code, reply.json()["code"]) == (503, "OUTPUT_UNKNOWN")
    assert (await gateway.store.task(task_id))["task"]["status"] == "In Progress"


async def test_no_claim_gets_the_keys_of_an_earlier_one(
    gateway: ServerUnderTest, owner: psycopg.AsyncConnection[Any]
) -> None:
    """A task that was deleted with its history and inserted again has the same id and attempt, and another prefix."""
    worker, key = await _claimed(gateway)
    task_id = key.split("/")[1]
    await gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="pod_lost")
    await gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    await owner.execute(b"delete from tasks where id = %s", (task_id,))
    await owner.execute(b"delete from orchestrator.attempts where task_id = %s", (task_id,))
    other = await gateway.worker()
    await owner.execute(b"insert into tasks (id, task_type, pool) values (%s, 't', %s)", (task_id, other.pool))
    (task,) = (await other.claim())["tasks"]
    assert (task["id"], task["attempt"]) == (task_id, 1)
    assert task["output_prefix"] != key.removesuffix("x")
    reply = await other.call(protocol.GRANTS, p_items=[{"method": "PUT", "key": key}])
    assert reply.json()["refused"] == [key]


async def test_a_worker_that_does_not_hold_the_task_learns_nothing_of_the_bucket(gateway: ServerUnderTest) -> None:
    """Whether an object is there is said to the holder only: the database is asked before the bucket."""
    _, key = await _claimed(gateway)
    task_id, location = key.split("/")[1], gateway.blobs.location(key)
    outsider = await gateway.worker()
    assert (await outsider.call(protocol.COMPLETE, **done(task_id, location))).json() == {"outcome": "fenced"}
    await gateway.blobs.put(key, b"x", content_type="text/plain")
    assert (await outsider.call(protocol.COMPLETE, **done(task_id, location))).json() == {"outcome": "fenced"}


async def test_a_completion_records_what_the_bucket_shows(gateway: ServerUnderTest) -> None:
    """ETag, size and the hash that the agent gave stay in the task's row; a worker cannot say them itself."""
    worker, key = await _claimed(gateway)
    task_id, location = key.split("/")[1], gateway.blobs.location(key)
    await _upload_once(worker, key, b"film")
    lie = await worker.call(protocol.COMPLETE, **done(task_id, location), p_output={"etag": "lie"})
    assert lie.status_code == 404
    assert (await worker.call(protocol.COMPLETE, **done(task_id, location))).json() == {"outcome": "ok"}
    assert (await gateway.store.task(task_id))["task"]["output_object"] == {
        "location": location, "bytes": 4, "etag": hashlib.md5(b"film", usedforsecurity=False).hexdigest(),
        "sha256": hashlib.sha256(b"film").hexdigest(),
    }  # fmt: skip


@pytest.mark.parametrize("said", [{"started_s": 0, "ended_s": 0}, {"started_s": 0, "ended_s": 1e9}, "x", None], ids=str)
async def test_a_completion_says_when_it_uploaded_and_nothing_else(
    gateway: ServerUnderTest, owner: psycopg.AsyncConnection[Any], said: Any
) -> None:
    """Of p_output only that: the rest is what the bucket shows. What cannot have been is unknown."""
    worker, key = await _claimed(gateway)
    task_id, location = key.split("/")[1], gateway.blobs.location(key)
    completion = done(task_id, location) | {"p_output": {"etag": "lie", "found": True, "upload": said}}
    assert (await worker.call(protocol.COMPLETE_OUTPUT, **completion)).json()["outcome"] == protocol.UNVERIFIED
    await gateway.blobs.put(key, b"film", content_type="text/plain")
    assert (await worker.call(protocol.COMPLETE_OUTPUT, **completion)).json() == {"outcome": "ok"}
    assert (await worker.call(protocol.COMPLETE_OUTPUT, **completion)).json() == {"outcome": "already"}
    assert (await gateway.store.task(task_id))["task"]["output_object"] == {
        "location": location, "bytes": 4, "etag": hashlib.md5(b"film", usedforsecurity=False).hexdigest(),
    }  # fmt: skip
    stored = await owner.execute(
        "select upload_started_at = started_at, upload_ended_at = started_at from task_attempts where task_id = %s",
        (task_id,),
    )
    assert await stored.fetchone() == ((True, True) if said == {"started_s": 0, "ended_s": 0} else (None, None))


@pytest.mark.parametrize("said", [False, True, 7, "x", [], {}, None], ids=str)
async def test_a_completion_with_invalid_facts_of_its_output_completes(gateway: ServerUnderTest, said: Any) -> None:
    """Nor does it learn by it what only the gateway may ask."""
    worker, key = await _claimed(gateway)
    task_id = key.split("/")[1]
    completion = done(task_id, "https://elsewhere/x") | {"p_output": said}
    assert (await worker.call(protocol.COMPLETE_OUTPUT, **completion)).json() == {"outcome": "ok"}
    assert (await gateway.store.task(task_id))["task"]["output_object"] is None


async def test_an_output_that_was_replaced_is_not_handed_on(gateway: ServerUnderTest) -> None:
    """An agent of an earlier version may write its key again while its URL lives: nobody gets those bytes."""
    worker = await gateway.worker()
    (first,) = await gateway.submit(worker.pool)
    await gateway.submit(worker.pool, depends_on=[first])
    (task,) = (await worker.claim(1))["tasks"]
    key = f"{task['output_prefix']}x"
    (put,) = (await worker.call(protocol.GRANTS, p_items=[{"method": "PUT", "key": key}])).json()["items"]
    wanted = [{"method": "GET", "key": key}]
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(put["url"], content=b"good")).status_code == 200
        assert (await worker.call(protocol.COMPLETE, **done(first, put["location"]))).json() == {"outcome": "ok"}
        await worker.claim(2)
        (item,) = (await worker.call(protocol.GRANTS, p_items=wanted)).json()["items"]
        assert (await pod.get(item["url"])).content == b"good"
        assert (await pod.put(put["url"], content=b"evil")).status_code == 200
    answer = (await worker.call(protocol.GRANTS, p_items=wanted)).json()
    assert (answer["items"], answer["refused"], answer["replaced"]) == ([], [key], [key])


async def test_a_grant_of_one_write_is_for_one_write_of_one_file(gateway: ServerUnderTest) -> None:
    """The bucket refuses a second write, another size, other bytes, and a request without the condition."""
    worker, key = await _claimed(gateway)
    item = await _once(worker, key, b"film")
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(item["url"], content=b"longer", headers=item["headers"])).status_code == 403
        assert (await pod.put(item["url"], content=b"film")).status_code == 403
        assert (await pod.put(item["url"], content=b"fism", headers=item["headers"])).status_code == 400
        unchecked = {name: value for name, value in item["headers"].items() if name != "x-amz-checksum-sha256"}
        assert (await pod.put(item["url"], content=b"fism", headers=unchecked)).status_code == 403
        assert (await pod.put(item["url"], content=b"film", headers=item["headers"])).status_code == 200
        assert (await pod.put(item["url"], content=b"evil", headers=item["headers"])).status_code == 412
        shown = await pod.head(item["head"])
    assert shown.headers["etag"].strip('"') == hashlib.md5(b"film", usedforsecurity=False).hexdigest()
    assert await gateway.blobs.get(key) == b"film"


@pytest.mark.parametrize("said", [{"bytes": -1}, {"bytes": "4"}, {"bytes": 10**16}, {"sha256": "x"}, {"sha256": None}])
async def test_a_grant_of_one_write_names_its_size_and_hash(gateway: ServerUnderTest, said: dict[str, Any]) -> None:
    """What is signed is bounded."""
    worker, key = await _claimed(gateway)
    item = {"method": "PUT", "key": key, "once": True, "bytes": 4, "sha256": "0" * 64}
    reply = await worker.call(protocol.GRANTS, p_items=[item | said])
    assert (reply.status_code, reply.json()["code"]) == (400, protocol.BAD_ARGUMENT)


async def test_a_grant_has_a_largest_size(gateway: ServerUnderTest) -> None:
    """S3 takes no larger object in one write."""
    worker, key = await _claimed(gateway)
    items = [{"method": "PUT", "key": key, "once": True, "bytes": protocol.MAX_UPLOAD_BYTES + 1, "sha256": "0" * 64}]
    answer = (await worker.call(protocol.GRANTS, p_items=items)).json()
    assert (answer["items"], answer["refused"]) == ([], [key])
    items[0]["bytes"] = protocol.MAX_UPLOAD_BYTES
    assert (await worker.call(protocol.GRANTS, p_items=items)).json()["refused"] == []


async def _once(worker: Caller, key: str, content: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    wanted = {"method": "PUT", "key": key, "once": True, "bytes": len(content), "sha256": sha256}
    (item,) = (await worker.call(protocol.GRANTS, p_items=[wanted])).json()["items"]
    return dict(item)


async def _upload_once(worker: Caller, key: str, content: bytes) -> None:
    item = await _once(worker, key, content)
    async with httpx.AsyncClient() as pod:
        assert (await pod.put(item["url"], content=content, headers=item["headers"])).status_code == 200
