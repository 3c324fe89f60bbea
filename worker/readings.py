"""Cheap readings of the pod: disks, memory, processors. Each value is a number or None (unknown).

All files except statvfs are read below a root directory that tests can set. No reading starts a program.
"""

from __future__ import annotations

import os
import re
import time

from .cgroup import Cgroup, pairs, read_text, whole
from .disk import read_disk
from .network_volumes import NetworkVolumes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .disk import Disk

UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63
MEMORY_STAT_FROM = 0.5  # share of the limit from which memory.stat is read too
PROCESSES_FROM = 0.85  # share of the limit from which the processes are read too
MAX_PROCESSES = 1_000
MAX_MOUNTS = 2_000
MAX_VOLUMES = 8
LOCAL_TYPES = {"ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs"}  # statvfs of a network file system may never return
SYSTEM_PLACES = ("/proc", "/sys", "/dev", "/etc", "/usr", "/run", "/boot", "/lib", "/bin", "/sbin", "/opt/nvidia")
RESIDENT = re.compile(r"\d{1,15} (\d{1,15}) ")  # the second number of /proc/<pid>/statm, in pages
PRESSURE = re.compile(r"some avg10=\d{1,3}\.\d\d avg60=(\d{1,3}\.\d\d)")


class MachineReading:
    """The state of the pod at one time (monotonic seconds). The monitor adds the agent's own state."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.disk: Disk | None = None  # the file system on which tasks run
        self.volumes: list[Disk] = []  # other local file systems, and network volumes
        self.memory_share: float | None = None  # share of the limit: memory that cannot be reclaimed
        self.processes: tuple[int, int] | None = None  # if memory is tight: their number, bytes of the largest
        self.oom_kills: int | None = None
        self.cpu_s: float | None = None  # processor seconds that this cgroup has used
        self.cpus: float | None = None  # processors of the pod's slice; without a quota, of the host
        self.host_cpus: int | None = None
        self.periods: int | None = None
        self.throttled: int | None = None
        self.pressure: float | None = None  # percent of the last minute in which some task waited for a processor
        self.load: float | None = None  # of the whole host
        self.task: str | None = None  # "<id> <attempt>" of the running task
        self.progress: dict[str, Any] | None = None  # its latest report; each report is a new object
        self.log_bytes: int | None = None  # bytes of the handlers' log
        self.gpu_users = 0  # live processes of handlers that use a GPU: the memory in use may be theirs

    def signals(self) -> dict[str, Any]:
        """Return the signals by name; the value is None if a signal cannot be read here."""
        return {
            "disk": self.disk, "memory": self.memory_share, "oom_kills": self.oom_kills, "cpu": self.cpu_s,
            "cpu_throttling": self.throttled, "cpu_pressure": self.pressure, "load": self.load,
        }  # fmt: skip


class Readings:
    """Reads one pod."""

    def __init__(self, root: str, run_dir: str) -> None:
        self._root, self._run_dir = root, run_dir
        self._cgroup, self._network = Cgroup(root), NetworkVolumes(root)

    def read(self) -> MachineReading:
        found = MachineReading(time.monotonic())
        found.disk = read_disk(self._run_dir)
        found.volumes = [*self._volumes(), *self._network.latest()]
        found.memory_share = self._memory_share()
        if (found.memory_share or 0.0) > PROCESSES_FROM:
            found.processes = self._processes()
        found.oom_kills = self._cgroup.oom_kills()
        self._read_cpu(found)
        return found

    def _memory_share(self) -> float | None:
        """Return memory use without the page cache: the kernel frees it before it kills a process."""
        text = self._cgroup.read("memory.max", "memory", "memory.limit_in_bytes") or ""
        limit = UNLIMITED if text.strip() == "max" else whole(text)
        used = whole(self._cgroup.read("memory.current", "memory", "memory.usage_in_bytes"))
        if limit is None or used is None or used < 0:
            return None
        if limit <= 0 or limit >= UNLIMITED:
            return 0.0
        if used / limit > MEMORY_STAT_FROM:
            stat = pairs(self._cgroup.read("memory.stat", "memory", "memory.stat"))
            cache = [stat.get(f"total_{name}", stat.get(name)) for name in ("inactive_file", "active_file")]
            if cache[0] is None or cache[1] is None:
                return None
            used -= cache[0] + cache[1]
        return used / limit

    def _processes(self) -> tuple[int, int] | None:
        """Return the number of processes in the cgroup, and the resident bytes of the largest."""
        pids = (self._cgroup.read("cgroup.procs", "memory", "cgroup.procs") or "").split()[:MAX_PROCESSES]
        statm = [read_text(os.path.join(self._root, "proc", pid, "statm")) for pid in pids if pid.isdecimal()]
        pages = [int(found[1]) for text in statm if (found := RESIDENT.match(text or ""))]
        return (len(pages), max(pages) * os.sysconf("SC_PAGE_SIZE")) if pages else None

    def _read_cpu(self, found: MachineReading) -> None:
        stat = pairs(self._cgroup.read("cpu.stat", "cpu", "cpu.stat"))
        found.periods, found.throttled = stat.get("nr_periods"), stat.get("nr_throttled")
        if "usage_usec" in stat:
            found.cpu_s = stat["usage_usec"] / 1e6
        else:
            nanoseconds = whole(self._cgroup.read("cpuacct.usage", "cpuacct", "cpuacct.usage"))
            found.cpu_s = None if nanoseconds is None or nanoseconds < 0 else nanoseconds / 1e9
        found.host_cpus = _count(read_text(os.path.join(self._root, "sys/devices/system/cpu/online")))
        found.cpus = self._cgroup.cpus() or found.host_cpus
        some = PRESSURE.match(self._cgroup.read("cpu.pressure", "cpu", "cpu.pressure") or "")
        found.pressure = float(some[1]) if some else None
        words = (read_text(os.path.join(self._root, "proc/loadavg")) or "").split()
        found.load = float(words[0]) if words and re.fullmatch(r"\d{1,7}\.\d{1,3}", words[0]) else None

    def _volumes(self) -> list[Disk]:
        """Return the local file systems except that of the run directory."""
        try:
            seen = {os.stat(self._run_dir).st_dev}
        except OSError:
            return []
        found: list[Disk] = []
        text = read_text(os.path.join(self._root, "proc/self/mountinfo")) or ""
        for line in text.splitlines()[:MAX_MOUNTS]:
            before, _, after = line.partition(" - ")
            words, kind = before.split(), after.partition(" ")[0]
            if kind not in LOCAL_TYPES or len(words) <= 5 or "ro" in words[5].split(","):  # noqa: PLR2004
                continue
            place = words[4].replace("\\040", " ")
            if place == "/" or place.startswith(SYSTEM_PLACES):
                continue
            try:
                device = os.stat(place).st_dev
                is_new = device not in seen and os.path.isdir(place)
            except OSError:
                continue
            volume = read_disk(place) if is_new else None
            seen.add(device)
            if volume and len(found) < MAX_VOLUMES:
                found.append(volume)
        return found


def has_gpu_device(root: str) -> bool:
    """Whether the pod has a GPU's device file. It keeps its number on the host: one GPU may be nvidia5."""
    try:
        return any(re.fullmatch(r"nvidia\d{1,3}", name) for name in os.listdir(os.path.join(root, "dev")))
    except OSError:
        return False


def _count(text: str | None) -> int | None:
    """Return how many processors a list such as `0-3,8` names."""
    ranges = [re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part) for part in (text or "").strip().split(",")]
    counts = [int(one[2] or one[1]) - int(one[1]) + 1 for one in ranges if one]
    return sum(counts) if counts and len(counts) == len(ranges) else None
