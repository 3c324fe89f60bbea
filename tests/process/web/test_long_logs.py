"""A log that is longer than what is searched for one part: its end is told, in bounded memory."""

import asyncio
import gzip
import hashlib
from typing import Any

import pytest
from gpu_orchestrator_client import AsyncClient, Client, protocol

from orchestrator.cli.assistants import api as assistants
from orchestrator.ports import LogRange
from orchestrator.web.connections import Connections
from orchestrator.worker_logs import attempt_log
from tests.process.web.builders import done
from tests.process.web.test_api_logs import OTHER, Shipping, shipping

__all__ = ["shipping"]
LINES = "".join(f"line {number}\n" for number in range(2_000))


async def log_of(shipping: Shipping, name: str) -> str:
    """What `Task.log()` of a client returns."""

    def ordinary() -> str:
        with Client(shipping.rig.url, shipping.token) as client:
            return client.task(shipping.task).log()

    if name == "ordinary":
        return await asyncio.to_thread(ordinary)
    async with AsyncClient(shipping.rig.url, shipping.token) as client:
        return await client.task(shipping.task).log()


@pytest.mark.parametrize("name", ["ordinary", "awaited"])
@pytest.mark.parametrize("ended", [True, False])
async def test_the_clients_return_the_end_of_a_long_log(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch, name: str, ended: bool
) -> None:
    """With the number of bytes that are left out before it. A log that fits is complete."""
    monkeypatch.setattr("orchestrator.web.api.logs.MAX_SCAN_BYTES", 4_000)
    monkeypatch.setattr("orchestrator.web.api.logs.MAX_EVENT_BYTES", 500)
    monkeypatch.setattr(protocol, "CHUNK_BYTES", 1_000)
    begin, end = shipping.own.decode().split("line 1\n")
    own = begin + LINES + (end if ended else "")
    log = OTHER + own.encode() + (OTHER if ended else b"")
    for at in range(0, len(log), 900):
        await shipping.ship(log[at : at + 900])
    if ended:
        await shipping.worker.call("worker_complete", **done(shipping.task))
    assert await log_of(shipping, name) == own
    monkeypatch.setattr(protocol, "LOG_BYTES", 6_000)
    first, _, text = (await log_of(shipping, name)).partition("\n")
    left_out = int(first.removeprefix("--- the first ").removesuffix(" bytes of this log are left out"))
    assert text.encode() == own.encode()[left_out:]
    assert 5_000 < len(text) <= 6_000


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"ended": True, "complete": False, "missing_bytes": 7}, "--- 7 bytes of this log are missing: "),
        ({"ended": True, "complete": False, "missing_bytes": 0}, "--- the end of this log may be missing: "),
        ({"ended": True, "complete": True, "missing_bytes": 0}, ""),
        ({"ended": False, "complete": False, "missing_bytes": 7}, ""),
        ({"complete": False, "missing_bytes": 0}, ""),  # an earlier service
    ],
)  # fmt: skip
def test_a_client_says_that_bytes_of_a_log_are_missing(part: dict[str, Any], said: str) -> None:
    """In the first line, for a log that can have no more."""
    text = protocol.LogText()
    text.note(part)
    text.add("line\n", 5)
    assert str(text) == (f"{said}the pod was lost\nline\n" if said else "line\n")


async def test_an_assistant_gets_the_end_of_a_long_log(shipping: Shipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is; what is left out is said. If the time is up, it gets the part that was reached."""
    begin, end = shipping.own.split(b"line 1\n")
    piece = (b"x" * 8_191 + b"\n") * 1_024
    packed, sha = gzip.compress(piece), hashlib.sha256(piece).hexdigest()
    await shipping.ship(begin)
    for _ in range(17):
        seq, first = len(shipping.shipped) - 1, shipping.shipped[-1]
        key = f"logs/{shipping.worker.id}/{shipping.worker.nonce}/handler/{seq}.log.gz"
        row = LogRange(shipping.worker.id, shipping.worker.nonce, "handler", seq, first, first + len(piece), sha, key)
        await shipping.rig.store.log_begin(shipping.term, row)
        await shipping.rig.blobs.put(key, packed, content_type="application/gzip")
        await shipping.rig.store.log_shipped(shipping.term, row)
        shipping.shipped.append(row.last)
    await shipping.ship(end + OTHER)
    await shipping.worker.call("worker_complete", **done(shipping.task))
    api = assistants.LocalApi(shipping.rig.api, Connections(), has_bucket=True)
    caller, size = assistants.Caller(shipping.token, ("test", 1)), len(begin + end) + 17 * len(piece)
    answer = await api.call(caller, "GET", f"/tasks/{shipping.task}/log-end")
    assert answer.status == 200, answer.content
    shown = answer.content
    assert shown["text"].encode().endswith(end)
    assert (shown["next"], shown["ended"], shown["complete"]) == (size, True, False)  # its begin is left out
    assert shown["left_out"] == f"the first {size - assistants.END_BYTES} bytes"
    monkeypatch.setattr(assistants, "SCAN_S", 0.0)
    early = (await api.call(caller, "GET", f"/tasks/{shipping.task}/log-end")).content
    assert (early["text"].encode(), early["next"], early["complete"]) == (begin, len(begin), False)
    assert early["left_out"].startswith(f"what follows byte {len(begin)}: ")


async def test_a_line_without_end_takes_no_memory() -> None:
    """A progress bar that is never ended by a line break; nor does what stands before the begin of an attempt."""
    lines = attempt_log.AttemptLines("task t attempt 1", keeps_before=False)
    assert lines.of(b"of another") == b""
    assert lines.rest() == b""
    own = attempt_log.OwnBytes(lines)
    assert own.of(b"other\n--- task t attempt 1 begins: a:b\n" + b"\rbar" * 40_000).endswith(b"\rbar")
    assert own.of(b"\rbar" * 40_000 + b"\n--- task t attempt 1 ends: done\nother\n").endswith(b"ends: done\n")
    assert own.of(b"other\n" + b"\rother" * 40_000) == b""
