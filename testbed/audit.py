"""Counts the results three ways: rows in the database, the provider's ledger, and bytes on disk against bytes in S3."""

import asyncio
import gzip
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection

from orchestrator.ports import Blobs, NotFound

CONCURRENT_READS = 8

TASKS = """
    select count(*) filter (where coalesce(p.status, t.status::text) = 'Complete') as done,
           count(*) filter (where coalesce(p.status, t.status::text) = 'Failed') as failed,
           count(*) filter (where coalesce(p.status, t.status::text) = 'Cancelled') as cancelled,
           extract(epoch from (select min(started_at) from task_attempts) - min(t.created_at))::float as first_claim_s
      from tasks t left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
"""
DOUBLED = """
    select count(*) as n from (
        select task_id from task_attempts where outcome = 'complete' group by task_id having count(*) > 1) doubled
"""
REQUEUED = "select count(*) as n from task_attempts where outcome in ('lost', 'failed', 'released')"
SECONDS = """
    select kind, sum(extract(epoch from to_at - from_at))::float as seconds, sum(usd)::float as usd
      from costs group by kind
"""
WORKERS = "select id, pod_id, status from workers"
PIECES = """
    select boot_id, stream, first_byte, last_byte, key, sha256, shipped_at, declared_lost from log_objects
     order by first_byte
"""


@dataclass(frozen=True, slots=True)
class LogCount:
    """Bytes of worker logs. `missing` bytes were written, and are neither in S3 nor declared lost."""

    produced: int = 0
    shipped: int = 0
    declared_lost: int = 0
    missing: int = 0

    def __add__(self, other: "LogCount") -> "LogCount":
        return LogCount(
            self.produced + other.produced,
            self.shipped + other.shipped,
            self.declared_lost + other.declared_lost,
            self.missing + other.missing,
        )


async def count(
    sql: AsyncConnection[dict[str, Any]], ledger: Mapping[str, Any], blobs: Blobs, submitted: int
) -> dict[str, Any]:
    """The closing summary, without the video."""
    tasks = await _one(sql, TASKS)
    doubled, requeued = await _one(sql, DOUBLED), await _one(sql, REQUEUED)
    costs = {row["kind"]: row for row in await (await sql.execute(SECONDS)).fetchall()}
    workers = await (await sql.execute(WORKERS)).fetchall()
    logs = await compare_logs(sql, [Path(pod["home"]) for pod in ledger["pods"]], blobs)
    ended = tasks["done"] + tasks["failed"] + tasks["cancelled"]
    kinds = ("busy", "booting", "idle", "draining")
    return {
        "tasks_submitted": submitted,
        "tasks_done": tasks["done"],
        "tasks_failed": tasks["failed"],
        "tasks_lost": submitted - ended,
        "tasks_doubled": doubled["n"],
        "tasks_requeued": requeued["n"],
        "first_claim_s": None if tasks["first_claim_s"] is None else round(tasks["first_claim_s"], 2),
        "pods_created": len(ledger["pods"]),
        "pods_leaked": _leaked(ledger, workers),
        "pod_seconds": {kind: round(costs[kind]["seconds"], 1) if kind in costs else 0.0 for kind in kinds},
        "dollars": round(float(ledger["usd_total"]), 4),
        "dollars_booked": round(sum(row["usd"] for row in costs.values()), 4),
        "log_bytes_produced": logs.produced,
        "log_bytes_shipped": logs.shipped,
        "log_bytes_declared_lost": logs.declared_lost,
        "log_bytes_missing": logs.missing,
    }


def faults(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of the faults: figures that should be zero and are not."""
    forbidden = ("tasks_failed", "tasks_lost", "tasks_doubled", "pods_leaked", "log_bytes_missing")
    return [name for name in forbidden if summary[name]]


async def compare_logs(sql: AsyncConnection[dict[str, Any]], homes: Iterable[Path], blobs: Blobs) -> LogCount:
    """Compare every log file of the pods with the pieces in S3, byte by byte; a hole is compared by the ledger."""
    pieces: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in await (await sql.execute(PIECES)).fetchall():
        pieces[row["boot_id"], row["stream"]].append(row)
    gate = asyncio.Semaphore(CONCURRENT_READS)
    total = LogCount()
    for home in homes:
        for file in sorted(home.glob(".orchestrator/run/*/logs/*.log")):
            total += await _compare(file.read_bytes(), pieces[file.parts[-3], file.stem], blobs, gate)
    return total


async def _compare(
    written: bytes, pieces: Sequence[Mapping[str, Any]], blobs: Blobs, gate: asyncio.Semaphore
) -> LogCount:
    async def arrived(piece: Mapping[str, Any]) -> bool:
        async with gate:
            try:
                content = gzip.decompress(await blobs.get(piece["key"]))
            except (NotFound, gzip.BadGzipFile, EOFError):
                return False
        there = written[piece["first_byte"] : piece["last_byte"]]
        if not there.startswith(b"\0"):  # no part of a hole
            return content == there
        same = len(content) == len(there) and content.endswith(there.lstrip(b"\0"))
        return same and hashlib.sha256(content).hexdigest() == piece["sha256"]

    kept = [piece for piece in pieces if piece["shipped_at"] is not None]
    good = await asyncio.gather(*(arrived(piece) for piece in kept))
    covered = bytearray(len(written))  # 0 nowhere, 1 in S3, 2 declared lost
    for piece, same in zip(kept, good, strict=True):
        if same:
            _mark(covered, piece["first_byte"], piece["last_byte"], 1)
    for piece in pieces:
        if piece["declared_lost"]:
            _mark(covered, piece["first_byte"], piece["last_byte"], 2)
    return LogCount(len(written), covered.count(1), covered.count(2), covered.count(0))


def _mark(covered: bytearray, first: int, last: int | None, value: int) -> None:
    end = len(covered) if last is None else min(last, len(covered))
    covered[first:end] = bytes(value if byte == 0 else byte for byte in covered[first:end])


def _leaked(ledger: Mapping[str, Any], workers: Sequence[Mapping[str, Any]]) -> int:
    """Return the pods that still run, or that never had a row."""
    known = {worker["id"] for worker in workers}
    # The members of RunPod's own clusters are not ours.
    ours = [pod for pod in ledger["pods"] if not pod.get("cluster")]
    return sum(pod["ended_at"] is None or pod["name"] not in known for pod in ours)


async def _one(sql: AsyncConnection[dict[str, Any]], query: str) -> dict[str, Any]:
    row = await (await sql.execute(query)).fetchone()
    assert row is not None  # noqa: S101  an aggregate always answers
    return row
