"""What the database knows of one worker's log pieces, kept in memory so that it is read once and not in each round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.ports import LogRange
from orchestrator.worker_logs.generations import launch_of


@dataclass(slots=True)
class StreamEnd:
    """The end of one stream in the ledger. Offsets are in bytes."""

    seq: int = 0  # the number of the next piece
    last: int = 0  # the end of the last piece
    shipped: int = 0  # the end of the last piece that is in S3
    cut: int = 0  # the bytes before this offset were freed on the pod
    begun: LogRange | None = None  # a piece that is not confirmed in S3
    closed: bool = False  # the rest was declared lost
    tail: bytes = b""  # the content before `last`, as far as this process has read it


@dataclass(slots=True)
class PieceLedger:
    """The streams of one worker, as the leader of one term knows them."""

    term: int
    ends: dict[tuple[str, str], StreamEnd] = field(default_factory=dict)  # by boot id and stream
    launches: frozenset[str] = frozenset()  # seen on the pod

    @classmethod
    def of_rows(cls, term: int, worker_id: str, rows: Iterable[Mapping[str, Any]]) -> "PieceLedger":
        """Build the ledger from the last row of each stream and the rows that are not confirmed."""
        ledger = cls(term)
        for row in rows:
            end = ledger.end(row["boot_id"], row["stream"])
            end.seq = row["seq"] + 1
            end.closed = row["last"] is None
            end.last = end.last if row["last"] is None else row["last"]
            end.shipped = end.last if row["shipped_at"] else end.shipped
            if row["shipped_at"] is None and not row["declared_lost"]:
                names = ("boot_id", "stream", "seq", "first", "last", "sha256", "key")
                end.begun = LogRange(worker_id, *(row[name] for name in names))
        return ledger

    @property
    def unfinished(self) -> set[str]:
        """The launches with a piece that is not confirmed in S3, whether or not the pod still has their files."""
        return {launch_of(boot_id) for (boot_id, _), end in self.ends.items() if end.begun is not None}

    def end(self, boot_id: str, stream: str) -> StreamEnd:
        """Return the end of a stream, which may be new."""
        return self.ends.setdefault((boot_id, stream), StreamEnd())

    def generations(self, launch_id: str, stream: str) -> list[str]:
        """Return the names of a launch's stream, oldest first; at least the launch's own."""
        known = {name for name, its_stream in self.ends if its_stream == stream and launch_of(name) == launch_id}
        return sorted(known | {launch_id})

    def newest(self, launch_id: str, stream: str) -> tuple[str, StreamEnd]:
        """Return the name and the end of the newest generation of a launch's stream."""
        name = self.generations(launch_id, stream)[-1]
        return name, self.end(name, stream)
