"""Server-sent events of a task: its states and its progress, in order, until it ends."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.process.web.api_rig import ADMIN, ApiRig, until
from tests.process.web.builders import DEADLINE_S, done

Event = tuple[str, str, dict[str, Any]]  # name, id, content


async def events(answer: httpx.Response) -> AsyncGenerator[Event]:
    """The events of a stream; comments and settings are left out."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


def stream(rig: ApiRig, task_id: str, token: str = ADMIN, last: str | None = None) -> Any:
    """A stream of a task's events."""
    headers = {"Authorization": f"Bearer {token}", **({"Last-Event-ID": last} if last else {})}
    return rig.client.stream("GET", f"/api/v1/tasks/{task_id}/events", headers=headers)


@pytest.mark.parametrize("column", ["tenant", "pool"])
async def test_a_stream_ends_when_its_task_leaves_what_the_token_sees(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any], column: str
) -> None:
    """An operator may give a task to another tenant or pool. What happens to it then is not for this token."""
    restriction = {"tenant": "a"} if column == "tenant" else {"pools": [rig.pool]}
    moved = SQL("update tasks set {} = 'others', progress = '1' where id = %s").format(Identifier(column))
    task_id, token = await rig.submit(tenant="a"), await rig.token("read", **restriction)
    async with asyncio.timeout(DEADLINE_S), stream(rig, task_id, token) as answer, aclosing(events(answer)) as received:
        name, _, content = await anext(received)
        assert (name, {*content}) == ("state", {"id", "status", "progress", "progress_at", "version", "attempt"})
        await hand.execute(moved, (task_id,))
        rest = [one async for one in received]
    assert [(name, content) for name, _, content in rest] == [("deleted", {"id": task_id})]


async def test_a_task_is_followed_to_its_end(rig: ApiRig) -> None:
    """With its progress. Then the stream ends by itself, and a later one begins with the end."""
    worker, task_id = await rig.worker(), await rig.submit()
    seen: list[Event] = []
    async with asyncio.timeout(DEADLINE_S), stream(rig, task_id) as answer, aclosing(events(answer)) as received:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen.append(await anext(received))
        await worker.claim()
        seen.append(await anext(received))
        beat = {"id": task_id, "attempt": 1, "progress": {"done": 0.5}}
        reply = await worker.call("worker_heartbeat", p_tasks=[beat], p_health=None, p_logs=None)
        assert reply.status_code == 200, reply.text
        seen.append(await anext(received))
        await worker.call("worker_complete", **done(task_id))
        seen += [one async for one in received]
    assert [(name, content["status"]) for name, _, content in seen] == [
        ("state", "Queued"),
        ("state", "In Progress"),
        ("state", "In Progress"),
        ("ended", "Complete"),
    ]
    assert seen[2][2]["progress"] == {"done": 0.5}
    assert len({event_id for _, event_id, _ in seen}) == 4
    async with stream(rig, task_id) as answer:
        assert [name async for name, _, _ in events(answer)] == ["ended"]
    async with stream(rig, task_id, last=seen[-1][1]) as answer:
        assert [name async for name, _, _ in events(answer)] == []


async def test_a_stream_ends_with_its_token(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoked token sees nothing more."""
    monkeypatch.setattr("orchestrator.web.api.authentication.CACHE_S", 0.0)
    monkeypatch.setattr("orchestrator.web.api.task_events.KEEP_ALIVE_S", 0.2)
    token = await rig.token("read", name="webapp")
    task_id = await rig.submit()
    async with asyncio.timeout(DEADLINE_S), stream(rig, task_id, token) as answer, aclosing(events(answer)) as received:
        await anext(received)
        await rig.rows.revoke_token("webapp", "test")
        assert [one async for one in received] == []


async def test_a_task_that_is_deleted_ends_its_stream(rig: ApiRig, hand: Any) -> None:
    """By its owner, in SQL."""
    task_id = await rig.submit()
    async with asyncio.timeout(DEADLINE_S), stream(rig, task_id) as answer, aclosing(events(answer)) as received:
        await anext(received)
        await hand.execute("delete from tasks where id = %s", (task_id,))
        assert [name async for name, _, _ in received] == ["deleted"]


async def test_a_caller_that_disconnects_frees_its_place(rig: ApiRig) -> None:
    """Within the second, whether the task changes or not. A caller that does not read is cut off by the connection."""
    task_id = await rig.submit()
    _, writer = await asyncio.open_connection(*rig.address)
    head = f"GET /api/v1/tasks/{task_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
    writer.write(head.encode())
    await until(lambda: rig.api.watch._by_token.total() == 1)
    writer.transport.abort()
    await until(lambda: rig.api.watch._by_token.total() == 0)
