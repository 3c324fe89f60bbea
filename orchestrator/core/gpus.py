"""Checks of a pod's GPUs against the rented type: the output of nvidia-smi and the kernel log.

If nvidia-smi prints `[N/A]`, `[Not Supported]`, `[Unknown Error]` or `ERR!`, the value is unknown. A GPU that it calls
lost, or for which it prints only an error, is not attached.
"""

import itertools
import re
from dataclasses import dataclass

from orchestrator.core.failures import FailureCode
from orchestrator.core.gpu_profiles import PROFILES
from orchestrator.core.machine_checks import NOTHING, CheckResult, Sections, ToolOutput
from orchestrator.core.plurals import counted
from orchestrator.core.xids import XidClass, numbers

MEMORY_SHARE = 0.98  # of the type's memory, at least
BUSY_MIB = 1024  # in use, but not by a process of the pod
XID_AGE_S = 24 * 3_600.0  # older ones belong to an earlier tenant of the machine
REPEATED = 2  # times that make a repeatable Xid fatal
FATAL_XIDS, REPEATABLE_XIDS = numbers(XidClass.FATAL), numbers(XidClass.REPEATABLE)
WARNING_XIDS = numbers(XidClass.PROGRAM)
(RECOVERY_XID,) = numbers(XidClass.RECOVERY)
SHOWN_GPUS, COMPLAINT_CHARS = 8, 200  # that a reason names
ABSENT = re.compile(r"gpu is lost|requires reset", re.IGNORECASE)
UNREACHED = re.compile(rf"{ABSENT.pattern}|unable to determine the device handle", re.IGNORECASE)
NO_ANSWER = re.compile(r"\[.*\]|ERR!|N/A|", re.IGNORECASE)
XID = re.compile(
    r"(?:\[\s*(?P<at>\d+\.\d+)\])?.*NVRM: Xid "
    r"\((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{1,32})[^)]{0,32}\): (?P<number>\d{1,9})\b"
)
CUDA_LINE = re.compile(r"CUDA Version\s*:\s*(\d{1,4})\.(\d{1,4})\b")
# The newest CUDA of each driver branch, for an nvidia-smi that does not print it (CUDA Toolkit release notes, table 3).
DRIVER_CUDA = ((580, (13, 0)), (575, (12, 9)), (570, (12, 8)), (565, (12, 7)), (560, (12, 6)), (555, (12, 5)),
               (550, (12, 4)), (545, (12, 3)), (535, (12, 2)), (530, (12, 1)), (525, (12, 0)), (520, (11, 8)),
               (515, (11, 7)), (510, (11, 6)), (495, (11, 5)), (470, (11, 4)), (0, (11, 3)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of nvidia-smi; None is unknown."""

    index: str
    uuid: str
    bus: str | None  # PCI domain, bus and device, in hexadecimal without leading zeros
    name: str | None
    driver: str | None
    memory_mib: int | None
    used_mib: int | None
    mig: bool | None
    ecc: int | None  # uncorrected errors since the driver was loaded


def gpus(found: Sections) -> tuple[Gpu, ...]:
    """Return the GPUs that nvidia-smi reports without an error."""
    rows = (tuple(word.strip() for word in line.split(",")) for line in found.get("gpus", NOTHING).text.splitlines())
    return tuple(_gpu(row) for row in rows if len(row) == 9 and row[0].isdigit() and not ABSENT.search(" ".join(row)))  # noqa: PLR2004


def inventory(found: Sections, gpu_type: str | None, count: int) -> CheckResult:
    """Check count, type and memory."""
    result, seen, answer = CheckResult(), gpus(found), found.get("gpus", NOTHING)
    names = sorted({gpu.name for gpu in seen if gpu.name})
    result.facts |= {"gpus": len(seen), "expected": count, "names": names, "uuids": [gpu.uuid for gpu in seen]}
    if not answer.ok or len(seen) < count:
        result.facts["nvidia_smi"] = {"exit_status": answer.status, "output": _complaint(answer)}
    if not seen:
        result.blame(FailureCode.GPU_NOT_ATTACHED, f"nvidia-smi shows no GPU: {_complaint(answer)}")
        return result
    if len(seen) != count:
        result.blame(FailureCode.GPU_COUNT, f"{len(seen)} GPUs answer, {count} are rented{_which(seen, count, answer)}")
    profile = PROFILES.get(gpu_type or "")
    if len(names) > 1:
        result.blame(FailureCode.GPU_TYPE, f"they are not of one type: {', '.join(names)}")
    elif profile and names and names[0] != gpu_type:
        result.blame(FailureCode.GPU_TYPE, f"it is a {names[0]}, and a {gpu_type} is rented")
    if profile is None:
        result.unknown.append("profile")
    if not names:
        result.unknown.append("name")
    for gpu in seen:
        if gpu.mig:
            result.blame(FailureCode.GPU_MEMORY, f"GPU {gpu.index} is cut up by MIG: a part of it is no whole GPU")
        elif gpu.memory_mib is None:
            result.unknown.append(f"memory of GPU {gpu.index}")
        elif profile and gpu.memory_mib < profile.memory_mib * MEMORY_SHARE:
            why = f"GPU {gpu.index} has {gpu.memory_mib} MiB, a {gpu_type} has {profile.memory_mib}"
            result.blame(FailureCode.GPU_MEMORY, why)
    result.facts["memory_mib"] = [gpu.memory_mib for gpu in seen]
    return result


def _which(seen: tuple[Gpu, ...], count: int, answer: ToolOutput) -> str:
    """Name the GPUs that answer, those whose number is missing, and nvidia-smi's own words about the others."""
    named = ", ".join(f"GPU {gpu.index}" + (f" at {gpu.bus}" if gpu.bus else "") for gpu in seen[:SHOWN_GPUS])
    gaps = sorted(set(map(str, range(count))) - {str(gpu.index) for gpu in seen}, key=int)[:SHOWN_GPUS]
    missing = f"; missing: {', '.join(f'GPU {index}' for index in gaps)}" if gaps else ""
    said = [line.strip() for line in answer.text.splitlines() if UNREACHED.search(line)][:SHOWN_GPUS]
    words = f"; nvidia-smi says: {'; '.join(said)[:COMPLAINT_CHARS]}" if said else ""
    return f": {named}{missing}{words}"


def health(found: Sections, image_cuda: tuple[int, int] | None, *, in_use: bool = False) -> CheckResult:
    """Check Xids, ECC errors, row remapping, used memory, and the driver.

    `in_use`: handlers run there. nvidia-smi in a container often does not name them, so used memory is no fault.
    """
    result, seen = CheckResult(), gpus(found)
    _xids(found, seen, result)
    _recovery(found, result)
    _ecc(found, seen, result)
    if not in_use:
        _busy(found, seen, result)
    _driver(found, seen, image_cuda, result)
    return result


def column(section: ToolOutput, number: int) -> list[str]:
    """Return one column of a section's CSV."""
    rows = (line.split(",") for line in section.text.splitlines()) if section.ok else ()
    return [row[number].strip() for row in rows if len(row) > number]


def _xids(found: Sections, seen: tuple[Gpu, ...], result: CheckResult) -> None:
    log, uptime = found.get("xid", NOTHING), _number(found.get("uptime", NOTHING).text.partition(" ")[0])
    if not log.ok:  # most containers may not read the kernel log
        result.unknown.append("xid")
        return
    ours, counts = {gpu.bus for gpu in seen if gpu.bus}, dict[int, int]()
    for entry in map(XID.match, log.text.splitlines()):
        if entry is None or (ours and _bus(entry["pci"]) not in ours):
            continue
        age_s = uptime - float(entry["at"]) if uptime is not None and entry["at"] else 0.0
        if age_s <= XID_AGE_S:
            counts[int(entry["number"])] = counts.get(int(entry["number"]), 0) + 1
    result.facts["xids"] = {str(number): count for number, count in sorted(counts.items())}
    for number, count in sorted(counts.items()):
        times = counted(count, "time")
        if number in FATAL_XIDS or (number in REPEATABLE_XIDS and count >= REPEATED):
            result.blame(FailureCode.xid(number), f"the kernel log shows Xid {number} of this GPU, {times}")
        elif number in WARNING_XIDS | REPEATABLE_XIDS:
            result.warnings.append(f"Xid {number}, {times}")


def _recovery(found: Sections, result: CheckResult) -> None:
    """Check the recovery action that the driver requests (drivers of branch 565 and later)."""
    actions = column(found.get("recovery", NOTHING), 1)
    wanted = sorted({action for action in actions if not NO_ANSWER.fullmatch(action)} - {"None"})
    if wanted:
        why = f"the driver wants recovery: {', '.join(wanted)}"
        result.blame(FailureCode.xid(RECOVERY_XID), why)
    elif not actions or "None" not in actions:
        result.unknown.append("recovery")


def _ecc(found: Sections, seen: tuple[Gpu, ...], result: CheckResult) -> None:
    result.facts["ecc_uncorrected"] = [gpu.ecc for gpu in seen]
    for gpu in seen:
        if gpu.ecc is None:
            result.unknown.append(f"ecc of GPU {gpu.index}")
        elif gpu.ecc > 0:
            result.blame(FailureCode.ECC, f"GPU {gpu.index} has {gpu.ecc} uncorrected ECC errors")
    remapped = found.get("remapped", NOTHING)
    flags = [*zip(column(remapped, 1), column(remapped, 2), strict=False)]
    for what, state in itertools.chain.from_iterable((("pending", p), ("failed", f)) for p, f in flags):
        if state.lower() in {"1", "yes"}:
            result.blame(FailureCode.ECC, f"row remapping is {what}")
    if not any(state.lower() in {"0", "no", "1", "yes"} for pair in flags for state in pair):
        result.unknown.append("remapped rows")


def _busy(found: Sections, seen: tuple[Gpu, ...], result: CheckResult) -> None:
    apps = found.get("apps", NOTHING)
    held: dict[str, int | None] = {}
    for line in apps.text.splitlines() if apps.ok else ():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 3 and words[0].startswith("GPU-"):  # noqa: PLR2004
            before, more = held.get(words[0], 0), _whole(words[2])
            held[words[0]] = None if before is None or more is None else before + more
    result.facts["used_mib"] = [gpu.used_mib for gpu in seen]
    for gpu in seen:
        theirs = held.get(gpu.uuid, 0)
        if gpu.used_mib is None or theirs is None or not apps.ok:
            result.unknown.append(f"free memory of GPU {gpu.index}")
        elif gpu.used_mib - theirs > BUSY_MIB:
            why = f"{gpu.used_mib - theirs} MiB of GPU {gpu.index} are in use by no program of this pod"
            result.blame(FailureCode.GPU_BUSY, why)


def _driver(found: Sections, seen: tuple[Gpu, ...], image_cuda: tuple[int, int] | None, result: CheckResult) -> None:
    driver = next((gpu.driver for gpu in seen if gpu.driver), None)
    branch = _whole((driver or "").partition(".")[0])
    version = CUDA_LINE.search(found.get("cuda", NOTHING).text)
    cuda = (int(version[1]), int(version[2])) if version else None
    if cuda is None and branch is not None:
        cuda = next(version for first, version in DRIVER_CUDA if branch >= first)
    shown, needed = ("{}.{}".format(*version) if version else None for version in (cuda, image_cuda))
    result.facts |= {"driver": driver, "driver_cuda": shown, "image_cuda": needed}
    if cuda is None or image_cuda is None:
        result.unknown.append("driver against image")
    elif cuda < image_cuda:
        why = f"driver {driver} brings CUDA {shown}, the image needs {needed}"
        result.blame(FailureCode.DRIVER_TOO_OLD, why)


def _gpu(row: tuple[str, ...]) -> Gpu:
    index, uuid, bus, name, driver, memory, used, mig, ecc = row
    known = {text: None if NO_ANSWER.fullmatch(text) else text for text in row}
    split = {"Enabled": True, "Disabled": False}.get(mig)
    return Gpu(index, uuid, _bus(bus), known[name], known[driver], _whole(memory), _whole(used), split, _whole(ecc))


def _bus(text: str) -> str | None:
    """Normalize a bus id: nvidia-smi prints `00000000:41:00.0`, the kernel `0000:41:00`."""
    parts = re.fullmatch(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})(?:\.\d)?", text.strip())
    return ":".join(f"{int(part or '0', 16):x}" for part in parts.groups()) if parts else None


def _complaint(answer: ToolOutput) -> str:
    """Return the error that nvidia-smi printed instead of rows."""
    if "not found" in answer.text or "No such file" in answer.text:
        return "it is not there"
    return answer.summary


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,12}", text.strip()) else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
