"""The end of a failed attempt's log, for `explain <task>`: a bounded part, within a bounded time."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.ports import NotFound, PortError
from orchestrator.worker_logs.attempt_log import AttemptLines, OwnBytes
from orchestrator.worker_logs.generations import launch_of

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.ports import Blobs

TAIL_BYTES = 64 * 1024
PIECES = 4  # objects that are read at most
TIMEOUT_S = 5.0
STREAM = "handler"  # whose offsets attempts keep
UNPACKED_BYTES = 8 * 1024 * 1024  # of one object; the shipper's are half as large


async def tail(store: "SqlStore", blobs: "Blobs", attempt: Mapping[str, Any]) -> str:
    """Return the last lines of an attempt, as far as S3 has them. An unreadable log is an empty one."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _read(store, blobs, attempt)
    except (PortError, NotFound, TimeoutError, zlib.error):
        return ""


async def _read(store: "SqlStore", blobs: "Blobs", attempt: Mapping[str, Any]) -> str:
    # Offsets come with heartbeats, so the attempt's last lines may stand after `log_last`; its marks limit them.
    first, last = attempt["log_first"] or 0, attempt["log_last"]
    mine = [
        piece
        for piece in await store.log_pieces(attempt["worker_id"])
        if piece["stream"] == STREAM and launch_of(piece["boot_id"]) == attempt["nonce"] and piece["shipped_at"]
        if piece["last"] > first
    ]
    before = [piece for piece in mine if last is not None and piece["last"] <= last]
    content = b""
    for piece in [*before[-1:], *mine[len(before) :]][:PIECES]:
        unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(await blobs.get(piece["key"]), UNPACKED_BYTES)
        content += unpacked[max(0, first - piece["first"]) :]
    name = f"task {attempt['task_id']} attempt {attempt['attempt']}"
    lines = AttemptLines(name, keeps_before=False)
    lines.begun = f"--- {name} begins".encode() not in content  # then it stands before these objects
    own = OwnBytes(lines).of(content + b"\n").splitlines(keepends=True)
    text = b"".join(line for line in own if not line.startswith(f"--- {name}".encode()))
    return text[-TAIL_BYTES:].decode("utf-8", "replace")
