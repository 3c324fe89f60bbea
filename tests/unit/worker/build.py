"""A pod whose readings a test writes down minute by minute."""

import os
from typing import Any

from worker.disk import Disk
from worker.findings import Found, of_disk
from worker.gpu_findings import of_gpus
from worker.host_findings import of_host
from worker.nvidia_smi import GpuState, SmiReading
from worker.readings import MachineReading
from worker.window import ReadingWindow, SmiSample

READ_S, SMI_S = 15.0, 60.0
GIB = 1 << 30
BLOCK = 4096
H100 = {
    "index": "0", "uuid": "GPU-0", "pci.bus_id": "00000000:41:00.0", "memory.total": "81559", "memory.used": "4",
    "memory.free": "81000", "utilization.gpu": "97", "temperature.gpu": "70", "power.draw": "600.00",
    "power.limit": "700.00", "clocks.sm": "1900", "clocks.max.sm": "1980",
    "ecc.errors.uncorrected.volatile.total": "0", "clocks_event_reasons.active": "0x0000000000000000",
    "gpu_recovery_action": "None",
}  # fmt: skip
SMI_FIELDS = {
    "used": "memory.used", "free": "memory.free", "util": "utilization.gpu", "temperature": "temperature.gpu",
    "power": "power.draw", "sm": "clocks.sm", "ecc": "ecc.errors.uncorrected.volatile.total",
    "reasons": "clocks_event_reasons.active", "recovery": "gpu_recovery_action",
}  # fmt: skip


def statvfs(total: int, free: int, inodes: int = 1000, inodes_free: int = 900) -> os.statvfs_result:
    numbers = (BLOCK, BLOCK, total // BLOCK, free // BLOCK, free // BLOCK, inodes, inodes_free, inodes_free, 0, 255)
    return os.statvfs_result(numbers)


def disk(total: int, free: int, inodes: int = 1000, inodes_free: int = 900, path: str = "/root") -> Disk:
    return Disk(path, statvfs(total, free, inodes, inodes_free))


def gpu(**changed: str) -> GpuState:
    """An H100 at work, except for what is given."""
    return GpuState({**H100, **{SMI_FIELDS.get(name, name): value for name, value in changed.items()}})


class Pod:
    """Time passes here only when a test says so."""

    def __init__(self, *, has_device: bool = False) -> None:
        self.window = ReadingWindow(has_device=has_device)
        self.now_s = 10_000.0
        self.task: str | None = "task-1 1"
        self.gpu_users = 1
        self.fields: dict[str, Any] = {
            "disk": disk(100 * GIB, 50 * GIB), "memory_share": 0.4, "oom_kills": 0, "cpus": 12.0, "host_cpus": 128,
            "pressure": 0.0, "load": 20.0, "log_bytes": 1000,
        }  # fmt: skip
        self.cores = 4.0  # in use
        self.throttled_share = 0.0  # of the scheduler's periods
        self.reports = True  # the task reports progress with each reading
        self._counters = {"cpu_s": 0.0, "periods": 0.0, "throttled": 0.0}
        self.fraction = 0.0
        self.progress: dict[str, Any] | None = {"fraction": 0.0}

    def passes(self, seconds: float, smi: SmiReading | None = None, rate: float = 0.0001, **fields: Any) -> "Pod":
        """So many seconds of readings; nvidia-smi gives the same answer each minute."""
        self.fields |= fields
        for _ in range(int(seconds / READ_S)):
            self.now_s += READ_S
            self._counters["cpu_s"] += self.cores * READ_S
            self._counters["periods"] += 10 * READ_S
            self._counters["throttled"] += 10 * READ_S * self.throttled_share
            if self.reports:
                self.fraction += rate * READ_S
                self.progress = {"fraction": self.fraction}
            self.window.add(self._reading())
            if smi is not None and self.now_s % SMI_S < READ_S:
                self.window.add_smi(SmiSample(self.now_s, smi, self.task, self.gpu_users))
        return self

    def asks(self, *answers: SmiReading) -> "Pod":
        """One minute for each of these answers of nvidia-smi."""
        for answer in answers:
            self.passes(SMI_S, answer)
        return self

    def logs(self, line: str) -> "Pod":
        """A line of the kernel log."""
        self.window.xids.add(line, self.now_s, self.window.buses)
        return self

    def _reading(self) -> MachineReading:
        reading = MachineReading(self.now_s)
        counters = {name: int(value) if name != "cpu_s" else value for name, value in self._counters.items()}
        for name, value in {**counters, **self.fields}.items():
            setattr(reading, name, value)
        reading.task, reading.progress = self.task, self.progress if self.task else None
        reading.gpu_users = self.gpu_users
        return reading

    @property
    def found(self) -> dict[str, Found]:
        newest = self.window.readings[-1]
        found = [*of_disk(newest.disk, newest.at_s), *of_host(self.window), *of_gpus(self.window)]
        return {one.code: one for one in found}

    @property
    def codes(self) -> set[str]:
        return set(self.found)


def smi(*gpus: GpuState) -> SmiReading:
    return SmiReading(list(gpus or (gpu(),)))
