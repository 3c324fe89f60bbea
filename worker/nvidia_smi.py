"""The state of the pod's GPUs, as nvidia-smi shows it. A value that it does not know is None.

A driver that does not know a field refuses the whole query and names the field. The next query leaves the field out.
"""

from __future__ import annotations

import re

from .limited import Answer, run_limited
from .xids import bus_of

LIMIT_S = 4.0
CHECK_S = 15.0  # of the check before the next claim: nothing waits for it
LIMIT_BYTES = 64 << 10  # bytes; the answer for 16 GPUs has 4 KiB
MAX_GPUS = 64
MAX_APPS = 1_000
TEXT_CHARS = 80  # characters of one value
THERMAL_BITS = 0x20 | 0x40  # software and hardware thermal slowdown; a power cap is another bit
FIELDS = (
    "index", "uuid", "pci.bus_id", "memory.total", "memory.used", "memory.free", "utilization.gpu", "temperature.gpu",
    "power.draw", "power.limit", "clocks.sm", "clocks.max.sm", "ecc.errors.uncorrected.volatile.total",
    "clocks_event_reasons.active", "gpu_recovery_action",
)  # fmt: skip
OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # before driver 535
REFUSED_FIELD = re.compile(r'Field "([A-Za-z0-9_.]{1,80})" is not a valid field to query')
# The GPU itself is gone. "Failed to initialize NVML" is not in the list: it may only mean that the container lost
# access.
LOST = re.compile(r"Unable to determine the device handle|GPU is lost|requires reset", re.IGNORECASE)
NO_DEVICES = re.compile(r"No devices were found", re.IGNORECASE)
NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,6})?")


class GpuState:
    """One row of nvidia-smi. Memory in MiB, power in W, clocks in MHz, temperature in °C, utilisation in percent."""

    def __init__(self, values: dict[str, str]) -> None:
        def number(field: str) -> float | None:
            text = values.get(field, "")
            return float(text) if NUMBER.fullmatch(text) else None

        self.index, self.uuid = values.get("index", "?"), values.get("uuid", "")
        self.bus = bus_of(values.get("pci.bus_id", ""))
        self.memory_mib, self.used_mib = number("memory.total"), number("memory.used")
        self.free_mib = number("memory.free")
        self.util = number("utilization.gpu")
        self.temperature = number("temperature.gpu")
        self.power_w, self.power_limit_w = number("power.draw"), number("power.limit")
        self.sm_mhz, self.sm_max_mhz = number("clocks.sm"), number("clocks.max.sm")
        self.ecc = number("ecc.errors.uncorrected.volatile.total")
        self.thermal = _thermal(values)
        action = values.get("gpu_recovery_action", "")
        self.recovery = action if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ]{0,40}", action) else None  # [N/A] is unknown


class SmiReading:
    """One answer. `gpus` is None if unknown; `lost` quotes nvidia-smi if it reports that a GPU is gone."""

    def __init__(self, gpus: list[GpuState] | None, *, lost: str = "", why: str = "") -> None:
        self.gpus, self.lost, self.why = gpus, lost, why
        self.unattributed_mib: dict[str, float] | None = None  # by GPU: memory that no listed program uses
        self.is_check = False  # whether it had time as at bring-up, and no task ran
        self.lists_programs = False  # it lists some: in a container it often lists none


class NvidiaSmi:
    """Queries nvidia-smi, and remembers which fields this driver knows."""

    def __init__(self) -> None:
        self._fields = list(FIELDS)

    def read(self, *, is_check: bool = False) -> SmiReading:
        """Ask for the state of all GPUs. A check has more time."""
        for _ in range(len(FIELDS)):
            answer = _ask(f"--query-gpu={','.join(self._fields)}", CHECK_S if is_check else LIMIT_S)
            refused = REFUSED_FIELD.search(answer.text[:LIMIT_BYTES])
            if not refused or refused[1] not in self._fields:
                break
            older = OLDER_NAMES.get(refused[1])
            place = self._fields.index(refused[1])
            self._fields[place : place + 1] = [older] if older else []
        reading = self._reading(answer)
        reading.is_check = is_check
        return reading

    def _reading(self, answer: Answer) -> SmiReading:
        lost = next((line for line in answer.text.splitlines()[:1_000] if LOST.search(line[:1_000])), "")
        if lost:
            return SmiReading(None, lost=" ".join(lost[:200].split()), why="a GPU does not answer")
        if NO_DEVICES.search(answer.text[:1_000]):
            return SmiReading([])
        if answer.status != 0:
            return SmiReading(None, why=answer.problem)
        rows = (line.split(",") for line in answer.text.splitlines()[:MAX_GPUS])
        gpus = [
            GpuState({field: word.strip()[:TEXT_CHARS] for field, word in zip(self._fields, row)})
            for row in rows
            if len(row) == len(self._fields) and row[0].strip().isdigit()
        ]
        return SmiReading(gpus) if gpus else SmiReading(None, why="its answer cannot be read")


def unattributed_mib(gpus: list[GpuState]) -> tuple[dict[str, float] | None, bool]:
    """Return the memory of each GPU that no listed program uses (None: not known), and whether one is listed."""
    answer = _ask("--query-compute-apps=gpu_uuid,pid,used_memory")
    if answer.status != 0:
        return None, False
    held: dict[str, float] = {}
    for line in answer.text.splitlines()[:MAX_APPS]:
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 or not NUMBER.fullmatch(words[2]):  # noqa: PLR2004
            return None, False
        held[words[0]] = held.get(words[0], 0.0) + float(words[2])
    unattributed = {gpu.uuid: gpu.used_mib - held.get(gpu.uuid, 0.0) for gpu in gpus if gpu.used_mib is not None}
    return unattributed, bool(held)


def _ask(query: str, limit_s: float = LIMIT_S) -> Answer:
    return run_limited(["nvidia-smi", query, "--format=csv,noheader,nounits"], limit_s, LIMIT_BYTES)


def _thermal(values: dict[str, str]) -> bool | None:
    """Return whether the driver slows the GPU down because of heat."""
    mask = values.get("clocks_event_reasons.active") or values.get("clocks_throttle_reasons.active") or ""
    return bool(int(mask, 16) & THERMAL_BITS) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", mask) else None
