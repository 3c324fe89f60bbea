"""Network volumes: which ones are mounted, and how much room they have. A network file system may never answer."""

from __future__ import annotations

import os
import threading
import time

from .cgroup import read_text
from .disk import Disk, read_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MOUNTS, MAX_VOLUMES = 2_000, 8
KINDS = ("nfs", "cifs", "ceph", "lustre", "fuse")  # beginnings of the names of file systems
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/run")
EVERY_S, OLD_S = 60.0, 180.0  # seconds between two questions; an older answer says nothing about now


def network_volumes(root: str) -> list[tuple[str, str]]:
    """Return (mount point, type) of each network file system."""
    found = []
    for line in (read_text(os.path.join(root, "proc/self/mountinfo")) or "").splitlines()[:MAX_MOUNTS]:
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.partition(" ")[0]
        if len(words) > 4 and kind.startswith(KINDS) and not words[4].startswith(SYSTEM):  # noqa: PLR2004
            found.append((words[4].replace("\\040", " "), kind))
    return found


class NetworkDisk(Disk):
    """A network volume. Its file system is often shared by many pods: a share of it says nothing, free bytes do."""

    @property
    def is_full(self) -> bool:
        return self.lacks_room


class NetworkVolumes:
    """Reads the volumes in a thread of its own, one question at a time, so that a silent one delays nothing."""

    def __init__(self, root: str, statvfs: Callable[[str], os.statvfs_result] | None = None) -> None:
        self._root, self._statvfs = root, statvfs
        self._asking: threading.Thread | None = None
        self._asked_s = -EVERY_S
        self._found: tuple[float, list[Disk]] = (0.0, [])

    def latest(self) -> list[Disk]:
        """Return the last answers, and ask again if it is time."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= EVERY_S and not (self._asking and self._asking.is_alive()):
            self._asked_s = now_s
            if places := [place for place, _ in network_volumes(self._root)][:MAX_VOLUMES]:
                self._asking = threading.Thread(target=self._ask, args=(places,), name="volumes", daemon=True)
                self._asking.start()
        at_s, found = self._found
        return found if now_s - at_s < OLD_S else []

    def _ask(self, places: list[str]) -> None:
        disks = [read_disk(place, self._statvfs, NetworkDisk) for place in places]
        self._found = (time.monotonic(), [disk for disk in disks if disk])
