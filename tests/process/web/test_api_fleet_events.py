"""Events of the fleet, read page by page or followed: each once, also with late commits and slow readers."""

import asyncio
import socket
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.api_tokens import TokenHolder
from testbed.shared_services import Database
from tests.process.web.api_rig import ADMIN, VIEWER, ApiRig, api_rig
from tests.process.web.builders import DEADLINE_S
from tests.process.web.test_api_events import Event, events

MANY, REASON = 8_000, "x" * 2_000
INSERT = """insert into worker_events (worker_id, fleet, to_state, reason, actor, at)
            select %s, %s, 'active', %s, 'a test', now() from generate_series(1, %s) returning id"""


def stream(rig: ApiRig, token: str = ADMIN, last: int | None = None) -> Any:
    """The stream."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    headers |= {"Last-Event-ID": str(last)} if last is not None else {}
    return rig.client.stream("GET", "/api/v1/events", headers=headers)


async def page(rig: ApiRig, token: str = VIEWER, **query: int) -> tuple[list[dict[str, Any]], int]:
    """A page, and where the next one begins."""
    answer = await rig.call("GET", "/events", token, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["events"], answer.json()["next"]


async def test_a_list_is_read_on_from_its_end(rig: ApiRig) -> None:
    """Each event once. Without `after`, it has the newest ones."""
    _, begin = await page(rig)
    worker = await rig.worker()
    seen: list[dict[str, Any]] = []
    after = begin
    while True:
        found, following = await page(rig, after=after, limit=1)
        seen += found
        if not found:
            assert following == after
            break
        after = following
    assert {one["worker_id"] for one in seen} == {worker.id}
    assert [one["id"] for one in seen] == sorted({one["id"] for one in seen})
    assert (seen[0]["to_state"], seen[-1]["to_state"], seen[0]["pool"]) == ("spawning", "active", rig.pool)
    assert (await page(rig, limit=2))[0] == seen[-2:]
    assert (await page(rig, after=2**62))[0] == []
    for wrong in ({"after": -1}, {"after": 2**63}, {"after": "x"}, {"limit": 0}):
        assert (await rig.call("GET", "/events", params=wrong)).status_code == 400


async def test_a_stream_continues_after_the_last_event(rig: ApiRig) -> None:
    """A stream that begins has nothing of before."""
    seen: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        async with stream(rig) as answer, aclosing(events(answer)) as received:
            first = await rig.worker()
            while not seen or seen[-1][2]["to_state"] != "active":
                seen.append(await anext(received))
        second = await rig.worker()
        async with stream(rig, last=int(seen[-1][1])) as answer, aclosing(events(answer)) as received:
            while seen[-1][2]["worker_id"] != second.id or seen[-1][2]["to_state"] != "active":
                seen.append(await anext(received))
    ids = [int(event_id) for _, event_id, _ in seen]
    assert ids == sorted(set(ids))
    assert Counter(one["worker_id"] for _, _, one in seen).keys() == {first.id, second.id}


async def test_a_stream_that_cannot_begin_is_refused(postgres: Database, blobs: S3Blobs) -> None:
    """The caller waits as long as the answer says."""
    db = await PostgresDb.open(postgres.url, pool_size=1)
    async with api_rig(db, blobs) as away:
        await db.close()
        async with stream(away) as answer:
            await answer.aread()
        assert (answer.status_code, answer.json()["id"], answer.headers["retry-after"]) == (503, "E010", "2")


async def test_a_token_sees_its_own_pools(rig: ApiRig) -> None:
    """In both forms; a token of a tenant sees nothing."""
    mine = await rig.worker()
    _, begin = await page(rig)
    others = await rig.token("read", pools=[f"{rig.pool}-2"])
    tenants = await rig.token("read", tenant="acme")
    assert (await page(rig, others))[0] == []
    assert (await rig.call("GET", "/events", tenants)).status_code == 403
    async with stream(rig, tenants, last=0) as answer:
        assert answer.status_code == 403
    found, _ = await page(rig, await rig.token("read", pools=[rig.pool]))
    assert {one["worker_id"] for one in found} == {mine.id}
    assert found[-1]["id"] == begin


async def test_an_event_that_is_committed_late_is_not_missed(rig: ApiRig, hand: Any, api_db: Any) -> None:
    """Its id is smaller than that of an event that was committed before."""
    worker = await rig.worker()
    _, begin = await page(rig)
    fleet = rig.rows._fleet
    async with await psycopg.AsyncConnection.connect(hand.info.dsn) as slow:
        await slow.execute(INSERT, (worker.id, fleet, "late", 1))
        await hand.execute(INSERT, (worker.id, fleet, "early", 1))
        found, following = await page(rig, after=begin)
        assert (found, following) == ([], begin)
        await slow.commit()
    assert [one["reason"] for one in (await page(rig, after=begin))[0]] == ["late", "early"]


async def test_a_caller_that_reads_nothing_costs_little(
    rig: ApiRig, hand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads no more than the connection takes; another caller gets everything."""
    worker, asked = await rig.worker(), Counter[str]()
    _, begin = await page(rig)
    await hand.execute(INSERT, (worker.id, rig.rows._fleet, REASON, MANY))
    read = rig.rows.events

    async def counted(holder: TokenHolder, *, after: int | None, limit: int) -> Any:
        asked[holder.name] += 1
        return await read(holder, after=after, limit=limit)

    monkeypatch.setattr(rig.rows, "events", counted)
    slow, fast = await rig.token("read", name="slow", pools=[rig.pool]), await rig.token("read", name="fast")
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect(rig.address)
    reader, writer = await asyncio.open_connection(sock=small, limit=1024)
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {slow}\r\nAccept: text/event-stream\r\n"
    writer.write(f"{head}Last-Event-ID: {begin}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(120), stream(rig, fast, last=begin) as answer, aclosing(events(answer)) as received:
        for _ in range(MANY):
            await anext(received)
    assert asked["fast"] >= MANY // 200
    assert asked["slow"] < asked["fast"] / 2  # what it has not read fills the buffers of the connection
    writer.close()


async def test_a_stream_ends_when_its_token_expires(rig: ApiRig) -> None:
    """Nobody has to revoke it."""
    token = await rig.token("read", expires_at=(datetime.now(UTC) + timedelta(seconds=1.5)).isoformat())
    async with asyncio.timeout(DEADLINE_S), stream(rig, token) as answer:
        assert [one async for one in events(answer)] == []
