"""Free disk space is a precondition for a claim."""

import os
from pathlib import Path

import pytest

from worker import protocol
from worker.disk import has_room, shortage
from worker.journal import Journal
from worker.life import Life

BLOCK = 4096


def disk(total: int, free: int) -> os.statvfs_result:
    return os.statvfs_result((BLOCK, BLOCK, total // BLOCK, free // BLOCK, free // BLOCK, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("total", "free", "said"),
    [
        (50 << 30, 300 << 20, None),
        (50 << 30, 200 << 20, "200 of 51200 MiB are free"),
        (1 << 20, 64 << 10, None),  # a small file system needs less
        (1 << 20, 8 << 10, "0 of 1 MiB are free"),
        (0, 0, None),  # one that has no blocks says nothing
    ],
)
def test_a_task_needs_free_disk_space(total: int, free: int, said: str | None) -> None:
    """256 MiB, or a twentieth of a small file system."""
    assert shortage("/somewhere", lambda _: disk(total, free)) == said


def test_what_cannot_be_read_is_no_reason_not_to_claim(tmp_path: Path) -> None:
    """Unknown is not full."""
    assert shortage(str(tmp_path / "missing")) is None


def test_heartbeats_say_since_when_the_disk_is_full_and_that_it_no_longer_is(tmp_path: Path) -> None:
    """The orchestrator replaces a worker whose disk stays full."""
    (tmp_path / "logs").mkdir()
    life, journal = Life(900), Journal(str(tmp_path / "logs" / "agent.log"), ())
    full, empty = disk(1 << 30, 0), disk(1 << 30, 1 << 30)
    assert not has_room(str(tmp_path), life, journal, lambda _: full)
    said = dict(life.health[protocol.DISK])
    assert said["why"] == "0 of 1024 MiB are free"
    assert not has_room(str(tmp_path), life, journal, lambda _: full)
    assert life.health[protocol.DISK] == said
    assert has_room(str(tmp_path), life, journal, lambda _: empty)
    assert protocol.DISK not in life.health
