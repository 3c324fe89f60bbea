"""A pod's machine as files: the output of its tools on a healthy machine, and the changes by each fault.

MACHINE_FAULTS is the list of these faults. The emulator, the tests of bring-up, the fault matrix and the simulator take
it from here: a fault that is added here and in `facts` is tested by them.
"""

import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.failures import FailureCode
from testbed.runpod.catalog import GPU_TYPES, GpuType

DRIVER, OLD_DRIVER = ("570.124.06", "12.8"), ("470.57.02", "11.4")  # and the CUDA version each brings
DISK_BLOCKS, INODES = 52_428_800, 3_276_800  # 50 GiB, in blocks of 1 KiB
BUSY_MIB = 9_000  # that nobody on the pod uses
DOWN_LINKS = 2  # of the one GPU whose NVLinks are degraded
SMI_MODES = {"smi_hangs": "hang", "smi_absent": "absent", "gpu_lost": "lost"}
TOOL = re.compile(r"^say (\S+) (.+)$", re.MULTILINE)  # a line of orchestrator/pods/probe_scripts.py
Answer = tuple[int, str]  # exit status and output
OTHER_GPU = "NVIDIA GeForce RTX 3090"  # for a pod that got the wrong one


@dataclass(frozen=True, slots=True)
class MachineFault:
    """What is wrong with a machine, and the failure code with which bring-up must end a worker on it."""

    description: str
    code: FailureCode


MACHINE_FAULTS: Mapping[str, MachineFault] = {
    "zero_gpus": MachineFault("RUNNING with no GPU", FailureCode.GPU_NOT_ATTACHED),
    "gpu_missing": MachineFault("one GPU fewer than rented", FailureCode.GPU_COUNT),
    "gpu_lost": MachineFault("nvidia-smi cannot reach a GPU", FailureCode.GPU_NOT_ATTACHED),
    # `detail` is the type that it is, or another one
    "gpu_wrong_type": MachineFault("another GPU than rented", FailureCode.GPU_TYPE),
    "gpu_small_memory": MachineFault("nine tenths of the type's memory", FailureCode.GPU_MEMORY),
    "gpu_busy": MachineFault("memory that nobody on the pod uses", FailureCode.GPU_BUSY),
    # `detail` is another number than 79; the kernel's log can be read and shows it
    "xid": MachineFault("an Xid 79 in the kernel's log", FailureCode.xid(79)),
    "ecc_errors": MachineFault("uncorrected memory errors", FailureCode.ECC),
    "remap_pending": MachineFault("memory rows that wait to be remapped", FailureCode.ECC),
    "smi_hangs": MachineFault("nvidia-smi never answers", FailureCode.GPU_NOT_ATTACHED),
    "smi_absent": MachineFault("no nvidia-smi", FailureCode.GPU_NOT_ATTACHED),
    "nvlink_inactive": MachineFault("no NVLink between two GPUs", FailureCode.NVLINK_INACTIVE),
    "nvlink_degraded": MachineFault("two NVLinks of a GPU are down", FailureCode.NVLINK_DEGRADED),
    "old_driver": MachineFault("a driver too old for the image", FailureCode.DRIVER_TOO_OLD),
    "disk_full": MachineFault("no room on the disk", FailureCode.DISK),
    "no_inodes": MachineFault("no inodes left", FailureCode.INODES),
}


def facts(gpu_type: str, count: int, faults: Mapping[str, str]) -> dict[str, str]:
    """File name -> content, for a pod with so many GPUs and these faults (kind -> detail), which happen now."""
    gpu = GPU_TYPES[gpu_type]
    shown = 0 if "zero_gpus" in faults else count - ("gpu_missing" in faults)
    driver, cuda = OLD_DRIVER if "old_driver" in faults else DRIVER
    uuids = [f"GPU-{index:08x}-0000-0000-0000-000000000000" for index in range(shown)]
    pending = 1 if "remap_pending" in faults else 0
    remaps = f"{pending}, 0" if gpu.has_ecc else "[N/A], [N/A]"
    number = faults.get("xid") or "79"
    xid = (
        f"[{time.monotonic():12.6f}] NVRM: Xid (PCI:0000:01:00): {number}, pid='<unknown>', name=<unknown>, it failed\n"
    )
    full, crowded = "disk_full" in faults, "no_inodes" in faults
    return {
        "smi": next((mode for kind, mode in SMI_MODES.items() if kind in faults), "ok") + "\n",
        "gpus.csv": _csv(gpu, shown, driver, uuids, faults),
        "apps": "",
        "remapped": "".join(f"{uuid}, {remaps}\n" for uuid in uuids),
        "details": f"\n==============NVSMI LOG==============\n\nDriver Version : {driver}\nCUDA Version : {cuda}\n"
        f"Attached GPUs : {shown}\n" + _details(gpu, shown),
        "nvlink": _nvlink(gpu, uuids, faults),
        "topo": _topology(gpu, shown, faults),
        "dmesg": xid if "xid" in faults else "",
        "root/sys/fs/cgroup/memory.events": f"oom 0\noom_kill {faults.get('oom_kills') or 0}\n",
        "blocks": _df("1024-blocks", DISK_BLOCKS, 0.999 if full else 0.02),
        "inodes": _df("Inodes", INODES, 0.995 if crowded else 0.01),
    }


def _csv(gpu: GpuType, count: int, driver: str, uuids: list[str], faults: Mapping[str, str]) -> str:
    """A line of field names, a line of units, then one line per GPU."""
    used = BUSY_MIB if "gpu_busy" in faults else 2
    memory = gpu.memory_mib * 9 // 10 if "gpu_small_memory" in faults else gpu.memory_mib
    name = (faults["gpu_wrong_type"] or OTHER_GPU) if "gpu_wrong_type" in faults else gpu.id
    ecc = ("2" if "ecc_errors" in faults else "0") if gpu.has_ecc or "ecc_errors" in faults else "[N/A]"
    columns: dict[str, tuple[str, str]] = {  # field -> (unit, value; "#" becomes the index)
        "index": ("", "#"),
        "count": ("", str(count)),
        "name": ("", name),
        "gpu_name": ("", name),
        "uuid": ("", "@"),
        "gpu_uuid": ("", "@"),
        "pci.bus_id": ("", "00000000:0%:00.0"),
        "driver_version": ("", driver),
        "compute_cap": ("", gpu.compute_capability),
        "pstate": ("", "P8"),
        "memory.total": ("MiB", str(memory)),
        "memory.used": ("MiB", str(used)),
        "memory.free": ("MiB", str(memory - used)),
        "utilization.gpu": ("%", "0"),
        "utilization.memory": ("%", "0"),
        "temperature.gpu": ("", "31"),
        "power.draw": ("W", "22.50"),
        "power.limit": ("W", f"{gpu.power_limit_w}.00"),
        "clocks.sm": ("MHz", "210"),
        "clocks.max.sm": ("MHz", "3105"),
        "ecc.mode.current": ("", "Enabled" if gpu.has_ecc else "[N/A]"),
        "ecc.errors.uncorrected.volatile.total": ("", ecc),
        "ecc.errors.uncorrected.aggregate.total": ("", ecc),
        "remapped_rows.pending": ("", "1" if "remap_pending" in faults else "[N/A]"),
        "remapped_rows.failure": ("", "[N/A]"),
        "mig.mode.current": ("", "Disabled" if gpu.has_ecc else "[N/A]"),
        "persistence_mode": ("", "Enabled"),
        "fabric.state": ("", "Completed" if gpu.has_fabric else "[N/A]"),
        "fabric.status": ("", "Success" if gpu.has_fabric else "[N/A]"),
        "clocks_event_reasons.active": ("", "0x0000000000000001"),
        "gpu_recovery_action": ("", "None"),
    }
    lines = [",".join(columns), ",".join(unit for unit, _ in columns.values())]
    for index, uuid in enumerate(uuids):
        values = (value.replace("#", str(index)).replace("%", str(index + 1)) for _, value in columns.values())
        lines.append(",".join(value.replace("@", uuid) for value in values))
    return "\n".join(lines) + "\n"


def _details(gpu: GpuType, count: int) -> str:
    """What `nvidia-smi -q` says of each GPU's fabric."""
    state, status = ("Completed", "Success") if gpu.has_fabric else ("N/A", "N/A")
    return "".join(
        f"\nGPU 00000000:0{index + 1}:00.0\n    Fabric\n        State : {state}\n        Status : {status}\n"
        for index in range(count)
    )


def _nvlink(gpu: GpuType, uuids: list[str], faults: Mapping[str, str]) -> str:
    lines = []
    for index, uuid in enumerate(uuids):
        lines.append(f"GPU {index}: {gpu.id} (UUID: {uuid})")
        active = _active(gpu, index, faults)
        lines += [f"\t Link {n}: " + ("26.562 GB/s" if n < active else "<inactive>") for n in range(gpu.nvlinks)]
    return "\n".join(lines) + "\n"


def _topology(gpu: GpuType, count: int, faults: Mapping[str, str]) -> str:
    """The matrix, its head underlined as nvidia-smi does it; what is not linked goes between the processors."""
    names = [f"GPU{index}" for index in range(count)]
    active = [_active(gpu, index, faults) for index in range(count)]
    rows = []
    for one, name in enumerate(names):
        links = [min(active[one], active[other]) for other in range(count)]
        ways = [" X " if one == other else f"NV{n}" if n else "SYS" for other, n in enumerate(links)]
        rows.append("\t".join([name, *ways, "0-15", "0", "N/A"]))
    head = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    legend = "\n\nLegend:\n\n  X    = Self\n  SYS  = PCIe and the link between NUMA nodes\n  NV#  = # bonded NVLinks"
    return "\n".join([head.replace("\t", "\t\x1b[4m", 1) + "\x1b[0m", *rows]) + legend + "\n"


def _active(gpu: GpuType, index: int, faults: Mapping[str, str]) -> int:
    """How many NVLinks of a GPU are up."""
    if "nvlink_inactive" in faults:
        return 0
    return gpu.nvlinks - DOWN_LINKS if gpu.nvlinks and "nvlink_degraded" in faults and index == 0 else gpu.nvlinks


def _df(unit: str, total: int, share: float) -> str:
    used = int(total * share)
    head = f"Filesystem {unit} Used Available Capacity Mounted on"
    return f"{head}\noverlay {total} {used} {total - used} {round(share * 100)}% /\n"


# --- the same tools where they are no programs: on light pods and in the simulator


def probe(script: str, machine: Mapping[str, str]) -> str:
    """What a probe script prints on a machine with these facts: a section for each tool."""
    parts = []
    for name, line in TOOL.findall(script):
        status, text = tool(machine, *shlex.split(line))
        parts.append(f"=== {name} {status}\n{text}\n")
    return "".join(parts)


def tool(machine: Mapping[str, str], program: str, *arguments: str) -> Answer:
    """What one tool answers."""
    first = arguments[0] if arguments else ""
    if program == "date":
        return 0, str(int(time.time()))
    if program == "df":
        return 0, machine["inodes" if "i" in first else "blocks"]
    if program != "nvidia-smi":
        refused = "dmesg: read kernel buffer failed: Operation not permitted"  # as in most containers
        return (0, machine["dmesg"]) if machine["dmesg"] else (1, refused)
    files = {"nvlink": "nvlink", "topo": "topo", "-q": "details"}
    tables = {"--query-compute-apps": "apps", "--query-remapped-rows": "remapped"}
    name, _, fields = first.partition("=")
    if name == "--query-gpu":
        return _query(machine["gpus.csv"], fields)
    return 0, machine[files.get(name) or tables[name]]


def _query(table: str, fields: str) -> Answer:
    """`nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits` over the pod's GPUs."""
    names, _, *gpus = (line.split(",") for line in table.splitlines())
    wanted = fields.split(",")
    if not set(wanted) <= set(names):
        return 2, f"Field {min(set(wanted) - set(names))!r} is not a valid field to query.\n"
    rows = [dict(zip(names, gpu, strict=True)) for gpu in gpus]
    said = "".join(", ".join(row[name] for name in wanted) + "\n" for row in rows)
    return (0, said) if rows else (6, "No devices were found\n")
