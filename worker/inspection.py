"""One round of the runtime monitor: read the pod, apply the rules, publish the findings and what is unknown."""

from __future__ import annotations

import os
import time

from . import protocol
from .disk import crowded_directories
from .findings import of_disk
from .gpu_findings import is_suspicious, of_gpus
from .host_findings import of_host
from .kernel_log import KernelLog
from .limited import kill_running
from .nvidia_smi import NvidiaSmi, unattributed_mib
from .readings import Readings, has_gpu_device
from .texts import in_short
from .window import ReadingWindow, SmiSample
from .xids import XID_SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .agent_state import AgentState
    from .config import Config, RunDir
    from .finding_list import FindingList
    from .journal import Journal
    from .readings import MachineReading

SMI_EVERY = 4  # rounds between two questions to nvidia-smi
UNKNOWN_AFTER = 3  # failures of a signal in a row, after which it is shown as unknown
WHY_CHARS = 100
HELD_FROM_MIB = 1024.0  # MiB in use from which nvidia-smi is asked for the programs that use them
INODE_CODES = {"INODES_FULL", "INODES_TIGHT"}


class Inspection:
    """Belongs to the monitor's thread."""

    def __init__(
        self, config: Config, run: RunDir, state: AgentState, journal: Journal, findings: FindingList,
        gpu_users: Callable[[], int],
    ) -> None:  # fmt: skip
        """Set up the inspection. `gpu_users` returns how many live processes of handlers use a GPU."""
        self._run_dir, self._state, self._journal, self._gpu_users = run, state, journal, gpu_users
        self._findings = findings
        self._readings, self._kernel_log = Readings(config.system_root, run.path), KernelLog(config.system_root)
        self._smi, self._window = NvidiaSmi(), ReadingWindow(has_device=has_gpu_device(config.system_root))
        self._rounds = 0
        self._failures: dict[str, int] = {}  # failures of each signal in a row
        self.program_errors = 0  # Xids so far that name a program's error

    @property
    def gpus(self) -> int | None:
        """Return how many GPUs nvidia-smi shows; None without an answer."""
        newest = self._window.smi[-1].gpus if self._window.smi else None
        return None if newest is None else len(newest)

    def close(self) -> None:
        self._kernel_log.close()

    @staticmethod
    def interrupt() -> None:
        """End what the running round waits for. Another thread calls it."""
        kill_running()

    def run(self) -> None:
        """Read once. nvidia-smi is asked every fourth time, and earlier to confirm a fault."""
        reading = self._read()
        self._window.add(reading)
        must_check = "GPU_UNCHECKED" in self._findings.codes() and reading.task is None
        is_smi_due = self._rounds % SMI_EVERY == 0 or is_suspicious(self._window) or must_check
        self._rounds += 1
        if is_smi_due:
            self._ask_smi(reading, is_check=must_check)
        if is_smi_due or self._kernel_log.is_cheap:  # dmesg is a program: it runs as rarely as nvidia-smi
            self._read_kernel_log(reading.at_s)
        self._window.vram_oom_s = self._state.vram_oom_s
        before = self._findings.codes()
        self._findings.update("disk", of_disk(reading.disk, reading.at_s))
        self._findings.update("window", [*of_host(self._window), *of_gpus(self._window)])
        for code in INODE_CODES & self._findings.codes() - before:
            self._name_directories(code)
        self._show_unknown(reading)

    def _read(self) -> MachineReading:
        reading, running = self._readings.read(), self._state.running
        reading.gpu_users = self._gpu_users()
        try:
            reading.log_bytes = os.stat(self._run_dir.log("handler")).st_size
        except OSError:  # the handler removed it
            reading.log_bytes = None
        if running is not None:
            reading.task, reading.progress = f"{running.id} {running.attempt}", running.progress
        return reading

    def _ask_smi(self, reading: MachineReading, *, is_check: bool) -> None:
        answer = self._smi.read(is_check=is_check)
        used_mib = max((gpu.used_mib or 0.0 for gpu in answer.gpus or ()), default=0.0)
        if answer.gpus and reading.task is None and used_mib > HELD_FROM_MIB:
            answer.unattributed_mib, answer.lists_programs = unattributed_mib(answer.gpus)
        if reading.task is not None and any(gpu.util for gpu in answer.gpus or ()):
            self._state.still_s = 0.0  # GPU time is a sign of life
        self._window.add_smi(SmiSample(time.monotonic(), answer, reading.task, reading.gpu_users))
        self._count("nvidia_smi", is_known=answer.gpus is not None or bool(answer.lost))
        for name, field in (("gpu_ecc", "ecc"), ("gpu_recovery", "recovery"), ("gpu_throttling", "thermal")):
            if answer.gpus:
                self._count(name, is_known=any(getattr(gpu, field) is not None for gpu in answer.gpus))

    def _read_kernel_log(self, at_s: float) -> None:
        lines = self._kernel_log.lines()
        self._count("kernel_log", is_known=lines is not None)
        self._count("xid_owner", is_known=not self._window.xids.unclaimed)
        for line in lines or ():
            self._window.xids.add(line, at_s, self._window.buses)
        ours = self._window.xids.ours.items()
        self.program_errors = sum(xid.events for number, xid in ours if XID_SEVERITIES[number] == "M")

    def _name_directories(self, code: str) -> None:
        directories = crowded_directories([self._run_dir.path, os.path.expanduser("~")])
        if directories:
            self._findings.add_evidence(code, directories)

    def _count(self, signal: str, *, is_known: bool) -> None:
        self._failures[signal] = 0 if is_known else self._failures.get(signal, 0) + 1

    def _show_unknown(self, reading: MachineReading) -> None:
        """Show the signals that could not be read several times in a row. An unknown value is not a finding."""
        for signal, value in reading.signals().items():
            self._count(signal, is_known=value is not None)
        whys = {"kernel_log": self._kernel_log.why, "nvidia_smi": self._window.smi[-1].why if self._window.smi else ""}
        whys["xid_owner"] = next((line for line, _ in self._window.xids.unclaimed), "")
        shown = {
            signal: in_short(self._journal.clean(whys.get(signal) or "cannot be read"), WHY_CHARS)
            for signal, failures in sorted(self._failures.items())
            if failures >= UNKNOWN_AFTER
        }
        if shown:
            self._state.health[protocol.UNKNOWN] = shown
        else:
            self._state.health.pop(protocol.UNKNOWN, None)
