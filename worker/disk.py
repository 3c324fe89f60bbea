"""Free disk space and free inodes are preconditions for a claim: on a full disk every task would fail (guards U6, U7).

A task needs 5 GiB for its checkpoints. On a disk smaller than 100 GiB a twentieth of the disk is enough, because an
owner cannot be expected to keep more free. Any file system that is 97 % full counts as full.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NEEDED_BYTES = 5 << 30
NEEDED_SHARE = 0.05  # of a small file system; the smaller of the two limits applies
FULL_SHARE, TIGHT_SHARE = 0.97, 0.90
MAX_ENTRIES, WALK_S = 50_000, 1.0  # seconds for a search for the directories that hold the inodes
SHOWN, MANY = 3, 100  # directories in the text; entries of a directory that is worth a mention
INODES_FULL_SHARE, INODES_TIGHT_SHARE = 0.98, 0.90


class Disk:
    """One file system. `inodes` is 0 if the file system does not count them."""

    def __init__(self, path: str, system: os.statvfs_result) -> None:
        self.path = path
        self.total, self.free = system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize
        used = (system.f_blocks - system.f_bfree) * system.f_frsize
        self.used_share = used / (used + self.free) if used + self.free else 0.0  # as df computes it
        self.inodes = system.f_files
        self.inodes_share = 1 - system.f_favail / system.f_files if system.f_files else 0.0

    @property
    def lacks_room(self) -> bool:
        return self.free < min(NEEDED_BYTES, self.total * NEEDED_SHARE)

    @property
    def is_full(self) -> bool:
        return self.lacks_room or self.used_share >= FULL_SHARE

    @property
    def is_tight(self) -> bool:
        return self.used_share >= TIGHT_SHARE

    @property
    def inodes_are_full(self) -> bool:
        return self.inodes_share >= INODES_FULL_SHARE

    @property
    def inodes_are_tight(self) -> bool:
        return self.inodes_share >= INODES_TIGHT_SHARE

    @property
    def space(self) -> str:
        """Return the free space as text."""
        return f"{self.free >> 20} of {self.total >> 20} MiB are free"

    @property
    def files(self) -> str:
        """Return the inodes in use as text."""
        return f"{self.inodes_share:.0%} of {self.inodes} inodes are in use"


def read_disk(
    path: str, statvfs: Callable[[str], os.statvfs_result] | None = None, kind: type[Disk] = Disk
) -> Disk | None:
    """Read the file system of a path. None (unknown) if it cannot be read or has no blocks."""
    try:
        system = (statvfs or os.statvfs)(path)
    except OSError:
        return None
    return kind(path, system) if system.f_blocks else None


def crowded_directories(roots: list[str]) -> str:
    """Return as text the directories below `roots` with the most entries, including links to directories.

    It reads at most MAX_ENTRIES entries, for at most WALK_S. Deeper directories may be missing.
    """
    until, left = time.monotonic() + WALK_S, MAX_ENTRIES
    counts: dict[str, int] = {}
    waiting = deque(os.path.realpath(root) for root in roots)
    while waiting and left > 0 and time.monotonic() < until:
        place = waiting.popleft()
        if place in counts:
            continue
        counts[place] = 0
        try:
            with os.scandir(place) as entries:
                for entry in itertools.islice(entries, left):
                    counts[place] += 1
                    if entry.is_dir():
                        waiting.append(os.path.realpath(entry.path) if entry.is_symlink() else entry.path)
        except OSError:  # removed in the meantime, or not readable for this user
            continue
        left -= counts[place]
    most = sorted(counts.items(), key=lambda pair: -pair[1])[:SHOWN]
    return ", ".join(f"{place} has {count}" for place, count in most if count >= MANY)
