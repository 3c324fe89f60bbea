"""The part of a worker's stream that belongs to an attempt."""

import gzip
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.cli.log_lines import LogLine
from orchestrator.cli.log_reader import Reader
from orchestrator.cli.log_tail import tail
from orchestrator.worker_logs.attempt_log import SETTLED_S, AttemptLog

TASK, NEXT = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
BEGINS, ENDS = f"--- task {TASK} attempt 1 begins: f\n", f"--- task {TASK} attempt 1 ends: failed\n"
OTHER = f"--- task {NEXT} attempt 1 begins: f\nof another task\n"
LINES = "".join(f"line {number}\n" for number in range(30_000))  # many times what is read after the last offset


class Stored:
    """A worker's stream in pieces, as the ledger and the object store have it."""

    def __init__(self, text: str, size: int = 100_000) -> None:
        content = text.encode()
        self.objects = {str(at): gzip.compress(content[at : at + size]) for at in range(0, len(content), size)}
        self.pieces = [
            {
                "boot_id": "launch.1", "stream": "handler", "seq": at // size, "first": at,
                "last": min(at + size, len(content)), "key": str(at), "shipped_at": "2026-11-20T12:00:00+00:00",
                "declared_lost": False, "begun_at": "2026-11-20T12:00:00+00:00",
                "sha256": hashlib.sha256(content[at : at + size]).hexdigest(),
            }
            for at in range(0, len(content), size)
        ]  # fmt: skip

    async def log_pieces(self, _: str) -> list[dict[str, Any]]:
        return self.pieces

    async def get(self, key: str) -> bytes:
        return self.objects[key]


def attempt(last: int, ended_s: float | None = 0, outcome: str | None = "failed") -> dict[str, Any]:
    """An attempt whose last heartbeat came at this offset, and that ended so long ago."""
    ended = None if ended_s is None else (datetime.now(UTC) - timedelta(seconds=ended_s)).isoformat()
    return {
        "task_id": TASK, "attempt": 1, "worker_id": "gpu-1", "nonce": "launch", "log_first": 0, "log_last": last,
        "started_at": "2026-11-20T12:00:00+00:00", "ended_at": ended, "outcome": outcome,
    }  # fmt: skip


async def read(stored: Stored, row: dict[str, Any]) -> tuple[str, bool]:
    """What the API reads, and whether it is complete."""
    text, _, complete = await read_all(stored, row)
    return text, complete


async def read_all(stored: Stored, row: dict[str, Any]) -> tuple[str, bool, bool]:
    """What the API reads, whether more can follow, and whether it is complete."""
    log = AttemptLog(stored, stored, row)
    return b"".join([part async for part in log.more()]).decode(), log.ended, log.complete


async def test_what_is_written_after_the_last_heartbeat_belongs_to_the_log() -> None:
    """However much it is: a traceback stands at its end."""
    own = BEGINS + LINES + "Traceback\n" + ENDS
    stored = Stored(own + OTHER)
    assert await read(stored, attempt(last=500)) == (own, True)
    shown: list[LogLine] = []
    reader = Reader(stored, stored, "gpu-1", ["handler"])  # type: ignore[arg-type]
    assert await reader.cut(attempt(last=500), TASK, shown.append) == ""
    assert len(shown) == own.count("\n")
    assert (await tail(stored, stored, attempt(last=500))).endswith("line 29999\nTraceback\n")  # type: ignore[arg-type]


async def test_a_short_attempt_within_one_heartbeat_is_found() -> None:
    """Both of its offsets are those of the heartbeat before."""
    stored = Stored("earlier\n" + BEGINS + "hello\n" + ENDS + OTHER)
    row = attempt(last=8) | {"log_first": 8}
    assert await read(stored, row) == (BEGINS + "hello\n" + ENDS, True)
    shown: list[LogLine] = []
    reader = Reader(stored, stored, "gpu-1", ["handler"])  # type: ignore[arg-type]
    assert await reader.cut(row, TASK, shown.append) == ""
    assert len(shown) == 3


async def test_a_log_without_its_end_is_not_complete_before_its_lines_must_be_stored() -> None:
    """The worker may have been killed, and the next task then shows where it ended."""
    stored = Stored(BEGINS + "half of it\n")
    assert await read(stored, attempt(last=500)) == (BEGINS + "half of it\n", False)
    text, ended, complete = await read_all(stored, attempt(last=20, ended_s=SETTLED_S + 10, outcome="lost"))
    assert (text, ended, complete) == (BEGINS + "half of it\n", True, False)  # what came after the last heartbeat?
    assert await read(stored, attempt(last=20, ended_s=None, outcome=None)) == (text, False)
    shipping = Stored(BEGINS + "half of it\n" + "x" * 100_000)
    shipping.pieces[-1]["shipped_at"] = None
    assert not (await read(shipping, attempt(last=20, ended_s=SETTLED_S + 10)))[1]
    killed = Stored(BEGINS + "half of it\n" + OTHER + LINES)
    assert await read(killed, attempt(last=20)) == (text, True)
    assert await tail(killed, killed, attempt(last=20)) == "half of it\n"  # type: ignore[arg-type]


async def test_a_log_with_lost_bytes_is_not_complete() -> None:
    """Wherever they are missing, and also if their number is not known. It has an end all the same."""
    own = BEGINS + LINES + ENDS
    for number, last in ((1, 200_000), (2, 300_000), (1, None)):
        stored = Stored(own + OTHER)
        lost = stored.pieces[number]
        lost |= {"declared_lost": True, "shipped_at": None, "last": last}
        _, ended, complete = await read_all(stored, attempt(last=500))
        assert (ended, complete) == (True, False)
    stored = Stored(own)
    stored.pieces.append(stored.pieces[-1] | {"seq": 99, "first": len(own), "last": None, "declared_lost": True})
    assert (await read_all(stored, attempt(last=500)))[1:] == (True, True)  # it was lost after the end of this one


async def test_a_log_whose_begin_is_not_there_is_not_complete() -> None:
    """Its lines cannot be told from those of others."""
    stored = Stored("a\nb\n" + OTHER)
    assert await read_all(stored, attempt(last=4, ended_s=SETTLED_S + 10)) == ("", True, False)


async def test_the_lines_of_an_attempt_whose_begin_is_missing_are_those_up_to_its_last_offset() -> None:
    """The object with it may be gone."""
    stored = Stored("a\nb\n" + OTHER)
    shown: list[LogLine] = []
    await Reader(stored, stored, "gpu-1", ["handler"]).cut(attempt(last=4), TASK, shown.append)  # type: ignore[arg-type]
    assert len(shown) == 2
