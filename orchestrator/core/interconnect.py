"""Checks of the links between a pod's GPUs: nvidia-smi's links, topology and fabric against the type's profile.

If the links need a bridge, its owner chose which cards it joins, so only the links of each GPU are checked. On boards
without bridges, every GPU reaches every other one by NVLink; on boards with switches, only after it has joined the
fabric. NVML's states are Not Started, In Progress and Completed; the status gives the result (NVML API reference,
nvmlGpuFabricInfo_t). An unreadable answer or another state is unknown.
"""

import itertools
import re

from orchestrator.core.failures import FailureCode
from orchestrator.core.gpu_profiles import PROFILES, Profile
from orchestrator.core.gpus import NO_ANSWER, column
from orchestrator.core.machine_checks import NOTHING, CheckResult, Sections, ToolOutput

LINK = re.compile(r"\s+Link \d+: (?P<state>.+)")
UNDERLINED = re.compile(r"\x1b\[\d*m")  # the topology's head is underlined, also without a terminal
GPU = re.compile(r"GPU\d+")
NVLINKS = re.compile(r"NV(\d{1,3})")
# all ways over PCIe, from one switch to the link between processors
OVER_PCIE = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
BOARD_PEERS = 3  # HGX boards of four have no switches: each GPU's links are divided among the other three
JOINING, JOINED, WELL = "In Progress", "Completed", "Success"


def check(found: Sections, gpu_type: str | None) -> CheckResult:
    """Check the fabric, the links of each GPU, and the connection between each two."""
    result, profile = CheckResult(), PROFILES.get(gpu_type or "")
    result.facts["links_per_gpu"] = profile.nvlinks if profile else None
    result.facts["fabric_state"] = column(found.get("fabric", NOTHING), 1)
    result.facts["fabric_status"] = column(found.get("fabric", NOTHING), 2)
    result.facts["topology"] = UNDERLINED.sub("", found.get("topology", NOTHING).text).splitlines()[:20]
    if profile is None:
        result.unknown.append("profile")
    elif _all_to_all(profile):
        _registration(result)
    _links(found.get("nvlink", NOTHING), profile, result)
    if profile and _all_to_all(profile):
        _ways(found.get("topology", NOTHING), profile.nvlinks, result)
    return result


def is_joining(found: Sections, gpu_type: str | None) -> bool:
    """Whether a GPU is still joining the fabric: its links may come up soon."""
    profile = PROFILES.get(gpu_type or "")
    return profile is not None and _all_to_all(profile) and JOINING in column(found.get("fabric", NOTHING), 1)


def _all_to_all(profile: Profile) -> bool:
    return profile.nvlinks > 0 and not profile.bridged


def _registration(result: CheckResult) -> None:
    """Check the registration. Its status is valid only in the state Completed."""
    states, statuses = result.facts["fabric_state"], result.facts["fabric_status"]
    for index, (state, status) in enumerate(itertools.zip_longest(states, statuses, fillvalue="")):
        if state == JOINING:
            why = f"GPU {index} has not joined the NVLink fabric yet ({state}): CUDA would not start"
            result.blame(FailureCode.NVLINK_INACTIVE, why)
        elif state == JOINED and status != WELL and not NO_ANSWER.fullmatch(status):
            result.blame(FailureCode.NVLINK_INACTIVE, f"GPU {index} could not join the NVLink fabric: {status}")
        elif state != JOINED or status != WELL:
            result.unknown.append(f"fabric of GPU {index}")
    if not states:
        result.unknown.append("fabric")


def _links(answer: ToolOutput, profile: Profile | None, result: CheckResult) -> None:
    links: dict[str, list[bool | None]] = {}
    for line in answer.text.splitlines():
        link = LINK.fullmatch(line.rstrip())
        if line.startswith("GPU "):
            links[line.partition(":")[0].removeprefix("GPU ")] = []
        elif link and links:
            links[next(reversed(links))].append(_is_active(link["state"]))
    active = {index: sum(state is True for state in states) for index, states in links.items()}
    unsure = {index for index, states in links.items() if None in states}
    result.facts["active_links"] = active
    if profile is None:
        return
    if profile.nvlinks == 0 or (profile.bridged and not any(active.values())):
        result.facts["links"] = "none expected" if profile.nvlinks == 0 else "no bridge is plugged in"
    elif not active or len(unsure) == len(active):
        result.unknown.append("nvlink")
        result.facts["nvidia_smi"] = {"exit_status": answer.status, "output": answer.summary}
    else:
        _compare({index: n for index, n in active.items() if index not in unsure}, profile.nvlinks, result)


def _compare(active: dict[str, int], wanted: int, result: CheckResult) -> None:
    dead = [index for index, count in active.items() if count == 0]
    fewer = [f"GPU {index}: {count}" for index, count in active.items() if count < wanted]
    if dead:
        result.blame(FailureCode.NVLINK_INACTIVE, f"no link of GPU {', '.join(dead)} is active")
    elif fewer:
        result.blame(FailureCode.NVLINK_DEGRADED, f"fewer links than {wanted} are active: {', '.join(fewer)}")


def _ways(answer: ToolOutput, wanted: int, result: CheckResult) -> None:
    """Check that each two GPUs use all their links, or on a board of four the peer's share of them."""
    over_pcie, fewer = [], []
    ways = _matrix(answer) if answer.ok else {}
    for (one, other), way in ways.items():
        links = NVLINKS.fullmatch(way)
        if way in OVER_PCIE:
            over_pcie.append(f"{one} and {other}: {way}")
        elif links is None:
            result.unknown.append(f"way between {one} and {other}")
        elif int(links[1]) < wanted and int(links[1]) * BOARD_PEERS != wanted:
            fewer.append(f"{one} and {other}: {way}")
    if not ways:
        result.unknown.append("topology")
    if over_pcie:
        result.blame(FailureCode.NVLINK_INACTIVE, f"not by NVLink, but over PCIe: {', '.join(over_pcie)}")
    elif fewer:
        result.blame(FailureCode.NVLINK_DEGRADED, f"not by NV{wanted}: {', '.join(fewer)}")


def _matrix(answer: ToolOutput) -> dict[tuple[str, str], str]:
    """Return the topology's entry for each two GPUs. The head names the columns; network cards and CPUs follow."""
    rows = (line.split() for line in UNDERLINED.sub("", answer.text).splitlines())
    head, *others = [row for row in rows if row and GPU.fullmatch(row[0])] or [[]]
    names = list(itertools.takewhile(GPU.fullmatch, head))
    ways: dict[tuple[str, str], str] = {}
    for name, *cells in others:
        ways |= {(name, other): cell for other, cell in zip(names, cells, strict=False) if name < other}
    return ways


def _is_active(state: str) -> bool | None:
    """Whether a link is active: nvidia-smi then prints its speed."""
    if "inactive" in state.lower():
        return False
    return True if re.match(r"[\d.]+ GB/s", state) else None
