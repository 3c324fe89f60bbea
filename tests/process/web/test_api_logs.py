"""The log of a task over the API: its own lines alone, in parts or as they are shipped."""

import asyncio
import gzip
import hashlib
import socket
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from orchestrator.ports import LogRange
from orchestrator.web.fair_turns import FairTurns
from tests.process.web.api_rig import ADMIN, ApiRig, until
from tests.process.web.builders import DEADLINE_S, Caller, done
from tests.process.web.test_api_access import refusal
from tests.process.web.test_api_events import events

OTHER = b"--- task x attempt 1 begins: a:b\nof another tenant\n--- task x attempt 1 ends: done\n"


@dataclass
class Shipping:
    """A worker whose agent has claimed a task, and the shipper of its handler's log."""

    rig: ApiRig
    worker: Caller
    task: str
    term: int
    token: str
    shipped: list[int] = field(default_factory=lambda: [0])

    @property
    def own(self) -> bytes:
        """The log of the task, as the agent writes it."""
        mark = f"--- task {self.task} attempt 1"
        return f"{mark} begins: a:b\nline 1\nline 2 äöü\n{mark} ends: done\n".encode()

    async def ship(self, content: bytes) -> None:
        """One more piece of the worker's stream."""
        seq, first = len(self.shipped) - 1, self.shipped[-1]
        last, sha = first + len(content), hashlib.sha256(content).hexdigest()
        key = f"logs/{self.worker.id}/{self.worker.nonce}/handler/{seq}.log.gz"
        piece = LogRange(self.worker.id, self.worker.nonce, "handler", seq, first, last, sha, key)
        await self.rig.store.log_begin(self.term, piece)
        await self.rig.blobs.put(key, gzip.compress(content), content_type="application/gzip")
        await self.rig.store.log_shipped(self.term, piece)
        self.shipped.append(last)

    async def read(self, **parameters: object) -> dict[str, object]:
        """A part of the log."""
        answer = await self.rig.call("GET", f"/tasks/{self.task}/logs", self.token, params=parameters)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
async def shipping(rig: ApiRig) -> Shipping:
    """A task of a tenant that runs."""
    token = await rig.token("submit", "read", tenant="acme")
    worker, task = await rig.worker(), await rig.submit(token)
    await worker.claim()
    return Shipping(rig, worker, task, (await rig.store.lead("tests", 3_600)).term, token)


async def test_a_log_is_read_in_parts_without_the_lines_of_others(shipping: Shipping) -> None:
    """Whose tasks ran on the same worker between the same two heartbeats, before and after it."""
    log = OTHER + shipping.own + OTHER
    for begin in range(0, len(log), 70):
        await shipping.ship(log[begin : begin + 70])
    await shipping.worker.call("worker_complete", **done(shipping.task))
    whole = await shipping.read()
    assert str(whole["text"]).encode() == shipping.own
    assert (whole["complete"], whole["next"], whole["missing_bytes"]) == (True, len(shipping.own), 0)
    parts, offset = b"", 0
    while offset < len(shipping.own):
        part = await shipping.read(offset=offset, limit=50)
        parts += str(part["text"]).encode() if "\ufffd" not in str(part["text"]) else shipping.own[offset : offset + 50]
        assert part["complete"] is (part["next"] == len(shipping.own))
        offset = int(str(part["next"]))
    assert parts == shipping.own
    assert (await shipping.read(offset=10_000))["text"] == ""


async def test_without_its_own_begin_nothing_is_shown(shipping: Shipping) -> None:
    """The offsets of heartbeats alone could show the lines of another tenant."""
    await shipping.ship(OTHER)
    assert (await shipping.read())["text"] == ""


async def test_what_has_no_log_says_so(rig: ApiRig, shipping: Shipping) -> None:
    """A task that was never claimed, and an attempt that there was not."""
    waiting = await rig.submit(shipping.token, priority=-1)
    assert refusal(await rig.call("GET", f"/tasks/{waiting}/logs", shipping.token)) == (404, "E080")
    path = f"/tasks/{shipping.task}/logs"
    assert refusal(await rig.call("GET", path, shipping.token, params={"attempt": 2})) == (404, "E080")
    assert (await shipping.read(attempt=1))["complete"] is False
    for wrong in ({"offset": -1}, {"limit": 0}, {"limit": 2 << 20}, {"attempt": "last"}):
        assert refusal(await rig.call("GET", path, shipping.token, params=wrong)) == (400, "E052")


async def test_a_log_is_followed_to_its_end(shipping: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line once. A client that comes back names the last offset that it has."""
    monkeypatch.setattr("orchestrator.web.api.logs.LOOK_S", 0.1)
    own, path = shipping.own, f"/api/v1/tasks/{shipping.task}/logs?follow=true"
    cut = own.index(b"line 2")
    await shipping.ship(OTHER + own[:cut])
    headers, seen, last = {"Authorization": f"Bearer {ADMIN}"}, "", ""
    async with asyncio.timeout(DEADLINE_S):
        async with (
            shipping.rig.client.stream("GET", path, headers=headers) as answer,
            aclosing(events(answer)) as received,
        ):
            _, last, content = await anext(received)
            seen += content["text"]
        await shipping.ship(own[cut:] + OTHER)
        headers["Last-Event-ID"] = last
        async with shipping.rig.client.stream("GET", path, headers=headers) as answer:
            found = [one async for one in events(answer)]
    assert [name for name, _, _ in found] == ["lines", "ended"]
    assert (seen + found[0][2]["text"]).encode() == own
    assert shipping.rig.api.watch._by_token.total() == 0


async def test_who_takes_a_log_slowly_holds_no_more_than_its_share(shipping: Shipping) -> None:
    """A piece of a log stays in memory until its client has taken it: a token has few, and another one has its own."""
    mark, rig = f"--- task {shipping.task} attempt 1".encode(), shipping.rig
    log = mark + b" begins: a:b\n" + b"x" * 62 + b"\n"
    log += (b"y" * 1_023 + b"\n") * 7_500 + mark + b" ends: done\n"  # more than what both sockets hold
    await shipping.ship(log)
    turns = rig.api.log_parts = FairTurns(8, 1)
    path = f"/api/v1/tasks/{shipping.task}/logs?follow=true"

    async def whole(token: str) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        async with rig.client.stream("GET", path, headers=headers) as answer:
            return "".join([content["text"] async for name, _, content in events(answer) if name == "lines"])

    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.to_thread(slow.connect, rig.address)
        head = f"GET {path} HTTP/1.1\r\nHost: slow\r\nAuthorization: Bearer {shipping.token}\r\n\r\n"
        await asyncio.to_thread(slow.sendall, head.encode())
        await until(lambda: turns._has)
        second = asyncio.create_task(whole(shipping.token))
        await until(lambda: turns._waiting)
        assert (await whole(ADMIN)).encode() == log
        assert [*turns._has.values()] == [1]
        assert turns._waiting.keys() == turns._has.keys()
    assert (await second).encode() == log
    await until(lambda: not turns._has)
