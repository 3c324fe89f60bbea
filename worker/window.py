"""The recent readings of a pod, and the values that are kept for longer: baselines and Xids."""

from __future__ import annotations

from collections import deque

from .xids import XidLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .nvidia_smi import GpuState, SmiReading
    from .readings import MachineReading

MAX_READINGS = 64  # 15 s apart: 16 minutes
MAX_SMI = 32  # 60 s apart
MAX_NAMES = 64  # GPUs
# seconds. A longer gap means that the pod was frozen or the monitor was late: earlier readings say nothing about "now".
MAX_GAP_S, MAX_SMI_GAP_S = 120.0, 300.0
RATE_S = 300.0
MIN_REPORTS = 5  # readings in RATE_S: fewer say nothing about a rate


class SmiSample:
    """One answer of nvidia-smi, with its time and the agent's activity at that time."""

    def __init__(self, at_s: float, reading: SmiReading, task: str | None, gpu_users: int) -> None:
        self.at_s, self.task, self.gpu_users = at_s, task, gpu_users
        self.gpus: list[GpuState] | None = reading.gpus
        self.lost, self.why = reading.lost, reading.why
        self.is_check = reading.is_check
        self.unattributed_mib, self.lists_programs = reading.unattributed_mib, reading.lists_programs

    @property
    def is_known(self) -> bool:
        return bool(self.lost) or self.gpus is not None


class ReadingWindow:
    """Belongs to the monitor's thread."""

    def __init__(self, *, has_device: bool = False) -> None:
        """Make an empty window. `has_device`: the pod has the device file of a GPU."""
        self.has_device = has_device
        self.readings: deque[MachineReading] = deque(maxlen=MAX_READINGS)
        self.smi: deque[SmiSample] = deque(maxlen=MAX_SMI)
        self.xids = XidLog()
        self.gpu_count = 0  # the largest number of GPUs that nvidia-smi has shown
        self.buses: set[str] = set()
        self.names: dict[str, str] = {}  # of each GPU that nvidia-smi has shown, by its uuid
        self.first_ecc: dict[str, float] = {}  # uncorrected errors at the first answer, by GPU
        self.peak_mib: dict[str, float] = {}  # memory in use while a task ran, by GPU
        self.vram_oom_s: float | None = None  # when an attempt last ended with "CUDA out of memory"
        self.best_rate = 0.0  # progress of the running task per second
        self.rate: float | None = None

    def add(self, reading: MachineReading) -> None:
        if self.readings and reading.at_s - self.readings[-1].at_s > MAX_GAP_S:
            self.readings.clear()
        if not self.readings or self.readings[-1].task != reading.task:
            self.best_rate = 0.0
        self.readings.append(reading)
        self.rate = self._rate()
        self.best_rate = max(self.best_rate, self.rate or 0.0)

    def add_smi(self, sample: SmiSample) -> None:
        if self.smi and sample.at_s - self.smi[-1].at_s > MAX_SMI_GAP_S:
            self.smi.clear()
        self.smi.append(sample)
        for gpu in sample.gpus or ():
            if gpu.bus:
                self.buses.add(gpu.bus)
            if len(self.names) < MAX_NAMES:
                self.names.setdefault(gpu.uuid, f"GPU {gpu.index} at {gpu.bus}" if gpu.bus else f"GPU {gpu.index}")
            if gpu.ecc is not None:
                self.first_ecc.setdefault(gpu.uuid, gpu.ecc)
            if gpu.used_mib is not None and sample.task is not None:
                self.peak_mib[gpu.uuid] = max(self.peak_mib.get(gpu.uuid, 0.0), gpu.used_mib)
        self.gpu_count = max(self.gpu_count, len(sample.gpus or ()))
        if self.buses:
            self.xids.claim(self.buses)

    def _rate(self) -> float | None:
        """Return the progress per second of the running task over RATE_S; None with too few readings."""
        last = self.readings[-1]
        run = [one for one in self.readings if one.task == last.task and last.at_s - one.at_s <= RATE_S]
        first = run[0]
        reports = {id(one.progress) for one in run if one.progress is not None}
        if last.task is None or last.at_s - first.at_s < RATE_S * 0.9 or len(reports) < MIN_REPORTS:
            return None
        before, now = ((one.progress or {}).get("fraction") for one in (first, last))
        if before is None or now is None:
            return None
        return max(0.0, float(now) - float(before)) / (last.at_s - first.at_s)
