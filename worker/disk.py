"""Free disk space is a precondition for a claim: a task that cannot write fails, and so does the next one."""

from __future__ import annotations

import os
import time

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .journal import Journal
    from .life import Life

NEEDED_BYTES = 256 << 20
NEEDED_SHARE = 0.05  # of a small file system; the smaller of the two counts
LOOK_AGAIN_S = 5.0


def shortage(path: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> str | None:
    """Return why a task should not begin in this directory; None if there is room, or if that cannot be read."""
    try:
        system = statvfs(path)
    except OSError:
        return None
    free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
    if free >= min(NEEDED_BYTES, total * NEEDED_SHARE):
        return None
    return f"{free >> 20} of {total >> 20} MiB are free"


def has_room(path: str, life: Life, journal: Journal, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> bool:
    """Whether a task may begin here. Heartbeats report since when it may not, and why."""
    why = shortage(path, statvfs)
    if why is None:
        if life.health.pop(protocol.DISK, None):
            journal.log("disk_has_room")
        return True
    if protocol.DISK not in life.health:
        journal.log("disk_full", why=why, message=f"no task is claimed: {why}")
        life.health[protocol.DISK] = {"since": time.time(), "why": why}
    return False
