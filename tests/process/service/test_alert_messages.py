"""Messages about alerts reach a real receiver: one that is slow, lies or dies, and from a leader that dies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from demo.scenario import submit
from orchestrator.adapters.alert_sender import AlertSender
from orchestrator.adapters.posting import WebhookRefused
from orchestrator.ports import Unavailable
from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
BODY = {"event": "test", "fleet": "f", "severity": "LOW", "text": "a text"}
OPENED_EARLIER = """update alerts set state = state || jsonb_build_object('since', now() - interval '10 minutes')
                     where kind = 'pool_unknown' returning 1"""
DUE = "update webhook_messages set next_at = now() where sent_at is null returning 1"
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """A server that keeps what it gets and answers as told; no answer: it hangs."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answer: bytes | Write | None = OK
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length:")[2].split("\r\n")[0])
            self.got.append(json.loads(await reader.readexactly(size)))
            if callable(self.answer):
                await self.answer(writer)
            elif self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
            else:
                await reader.read()  # until the client leaves
        writer.close()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Receiver"]:
        """Listen on this machine."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks/a-secret-path"
            yield self

    async def until(self, count: int) -> None:
        """Wait for so many requests."""
        async with asyncio.timeout(60):
            while len(self.got) < count:
                await asyncio.sleep(0.05)


async def endless(writer: asyncio.StreamWriter) -> None:
    """An answer without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (OK, None),
        (endless, None),
        (None, Unavailable),
        (b"", Unavailable),
        (b"not http at all\r\n\r\n", Unavailable),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate", Unavailable),
        (b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n", Unavailable),
        (b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n", WebhookRefused),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", WebhookRefused),
    ],
)
async def test_every_receiver_is_bounded(answer: bytes | Write | None, error: type[Exception] | None) -> None:
    """Redirects are not followed, answers are not read to the end, and no error contains the URL."""
    async with Receiver().open() as receiver:
        receiver.answer = answer
        patience_s = 10 if answer is None else 30  # only one that never answers is waited for so long
        sending = AlertSender(receiver.url, timeout_s=patience_s).send("1", BODY)
        if error is None:
            assert await sending in {200, 204}
        else:
            with pytest.raises(error) as failed:
                await sending
            assert "a-secret-path" not in str(failed.value)
        assert receiver.got == [{"schema_version": 1, "id": "1", **BODY}]


@pytest.mark.full  # `test_killed_leaders_lose_no_message` of the webhooks is its like in the ordinary run
async def test_a_message_survives_the_leader_that_wrote_it(shared: SharedServices, tmp_path: Path) -> None:
    """Tasks wait in a pool that nobody has. The first leader is killed while it sends; the next one sends again."""
    servers = await shared.servers("alert_messages")
    async with (
        Stack(tmp_path / "stack", servers=servers, light=True, start=forked.start) as stack,
        Receiver().open() as receiver,
    ):
        receiver.answer = None
        where = {"ALERT_WEBHOOK_URL": receiver.url, "ORCHESTRATOR_POLL_SEC": "2"}
        first = await stack.start_orchestrator(where)
        await submit(stack, [{"task_type": "t", "pool": "nowhere", "params": {}}])
        await until(stack, OPENED_EARLIER)
        await receiver.until(1)
        first.process.kill()
        await first.process.wait()
        receiver.answer = OK
        await until(stack, DUE)
        second = await stack.start_orchestrator(where)
        await until(stack, "select 1 from webhook_messages where sent_at is not null and attempts = 2")
        sent = [one for one in receiver.got if one["kind"] == "pool_unknown"]
        assert {(one["id"], one["event"], one["severity"]) for one in sent} == {(sent[0]["id"], "opened", "HIGH")}
        assert len(sent) == 2
        second.process.terminate()
        await second.process.wait()
        assert "a-secret-path" not in (stack.directory / "orchestrator.log").read_text()


async def until(stack: Stack, query: str) -> None:
    """Repeat a statement until it returns a row."""
    async with await stack.connect() as sql, asyncio.timeout(60):
        while not await (await sql.execute(query)).fetchone():
            await asyncio.sleep(0.2)
