"""How a pod's GPUs are linked: what nvidia-smi says of links, topology and fabric, judged by their type's profile.

Where the links come with a bridge, its owner chose which cards it joins: then only the links of each GPU are judged. On
boards without bridges every GPU reaches every other one by NVLink, and through switches only once it has joined their
fabric: NVML's states are Not Started, In Progress and Completed, whose status says how that went (NVML API reference,
nvmlGpuFabricInfo_t). What cannot be read, and a state that says nothing of either, is unknown.
"""

import itertools
import re

from orchestrator.core.failures import FailureCode
from orchestrator.core.gpu_profiles import PROFILES, Profile
from orchestrator.core.gpus import NO_ANSWER, column
from orchestrator.core.machine_checks import NOTHING, Section, Sections, Verdict

LINK = re.compile(r"\s+Link \d+: (?P<state>.+)")
UNDERLINED = re.compile(r"\x1b\[\d*m")  # the head of the topology, also where nobody looks on
GPU = re.compile(r"GPU\d+")
NVLINKS = re.compile(r"NV(\d{1,3})")
OVER_PCIE = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})  # from one switch to the link between processors
BOARD_PEERS = 3  # HGX boards of four have no switches: each GPU's links are shared out among the other three
JOINING, JOINED, WELL = "In Progress", "Completed", "Success"


def judge(found: Sections, gpu_type: str | None) -> Verdict:
    """Judge the fabric, the links of each GPU and the way between each two."""
    verdict, profile = Verdict(), PROFILES.get(gpu_type or "")
    verdict.facts["links_per_gpu"] = profile.nvlinks if profile else None
    verdict.facts["fabric_state"] = column(found.get("fabric", NOTHING), 1)
    verdict.facts["fabric_status"] = column(found.get("fabric", NOTHING), 2)
    verdict.facts["topology"] = UNDERLINED.sub("", found.get("topology", NOTHING).text).splitlines()[:20]
    if profile is None:
        verdict.unknown.append("profile")
    elif _all_to_all(profile):
        _registration(verdict)
    _links(found.get("nvlink", NOTHING), profile, verdict)
    if profile and _all_to_all(profile):
        _ways(found.get("topology", NOTHING), profile.nvlinks, verdict)
    return verdict


def is_joining(found: Sections, gpu_type: str | None) -> bool:
    """Whether a GPU is just being registered with the switches' fabric: its links may yet come up."""
    profile = PROFILES.get(gpu_type or "")
    return profile is not None and _all_to_all(profile) and JOINING in column(found.get("fabric", NOTHING), 1)


def _all_to_all(profile: Profile) -> bool:
    return profile.nvlinks > 0 and not profile.bridged


def _registration(verdict: Verdict) -> None:
    """A status means something only where the registration is completed."""
    states, statuses = verdict.facts["fabric_state"], verdict.facts["fabric_status"]
    for index, (state, status) in enumerate(itertools.zip_longest(states, statuses, fillvalue="")):
        if state == JOINING:
            why = f"GPU {index} has not joined the NVLink fabric yet ({state}): CUDA would not start"
            verdict.blame(FailureCode.NVLINK_INACTIVE, why)
        elif state == JOINED and status != WELL and not NO_ANSWER.fullmatch(status):
            verdict.blame(FailureCode.NVLINK_INACTIVE, f"GPU {index} could not join the NVLink fabric: {status}")
        elif state != JOINED or status != WELL:
            verdict.unknown.append(f"fabric of GPU {index}")
    if not states:
        verdict.unknown.append("fabric")


def _links(answer: Section, profile: Profile | None, verdict: Verdict) -> None:
    links: dict[str, list[bool | None]] = {}
    for line in answer.text.splitlines():
        link = LINK.fullmatch(line.rstrip())
        if line.startswith("GPU "):
            links[line.partition(":")[0].removeprefix("GPU ")] = []
        elif link and links:
            links[next(reversed(links))].append(_is_active(link["state"]))
    active = {index: sum(state is True for state in states) for index, states in links.items()}
    unsure = {index for index, states in links.items() if None in states}
    verdict.facts["active_links"] = active
    if profile is None:
        return
    if profile.nvlinks == 0 or (profile.bridged and not any(active.values())):
        verdict.facts["links"] = "none expected" if profile.nvlinks == 0 else "no bridge is plugged in"
    elif not active or len(unsure) == len(active):
        verdict.unknown.append("nvlink")
        verdict.facts["nvidia_smi"] = {"exit_status": answer.status, "said": answer.said}
    else:
        _compare({index: n for index, n in active.items() if index not in unsure}, profile.nvlinks, verdict)


def _compare(active: dict[str, int], wanted: int, verdict: Verdict) -> None:
    dead = [index for index, count in active.items() if count == 0]
    fewer = [f"GPU {index}: {count}" for index, count in active.items() if count < wanted]
    if dead:
        verdict.blame(FailureCode.NVLINK_INACTIVE, f"no link of GPU {', '.join(dead)} is active")
    elif fewer:
        verdict.blame(FailureCode.NVLINK_DEGRADED, f"fewer links than {wanted} are active: {', '.join(fewer)}")


def _ways(answer: Section, wanted: int, verdict: Verdict) -> None:
    """Each two GPUs reach each other by all their links, or on a board of four by that peer's share of them."""
    over_pcie, fewer = [], []
    ways = _matrix(answer) if answer.ok else {}
    for (one, other), way in ways.items():
        links = NVLINKS.fullmatch(way)
        if way in OVER_PCIE:
            over_pcie.append(f"{one} and {other}: {way}")
        elif links is None:
            verdict.unknown.append(f"way between {one} and {other}")
        elif int(links[1]) < wanted and int(links[1]) * BOARD_PEERS != wanted:
            fewer.append(f"{one} and {other}: {way}")
    if not ways:
        verdict.unknown.append("topology")
    if over_pcie:
        verdict.blame(FailureCode.NVLINK_INACTIVE, f"not by NVLink, but over PCIe: {', '.join(over_pcie)}")
    elif fewer:
        verdict.blame(FailureCode.NVLINK_DEGRADED, f"not by NV{wanted}: {', '.join(fewer)}")


def _matrix(answer: Section) -> dict[tuple[str, str], str]:
    """What the topology shows between each two GPUs; its head names the columns, network cards and CPUs come after."""
    rows = (line.split() for line in UNDERLINED.sub("", answer.text).splitlines())
    head, *others = [row for row in rows if row and GPU.fullmatch(row[0])] or [[]]
    names = list(itertools.takewhile(GPU.fullmatch, head))
    ways: dict[tuple[str, str], str] = {}
    for name, *cells in others:
        ways |= {(name, other): cell for other, cell in zip(names, cells, strict=False) if name < other}
    return ways


def _is_active(state: str) -> bool | None:
    """A link's speed means that it is active."""
    if "inactive" in state.lower():
        return False
    return True if re.match(r"[\d.]+ GB/s", state) else None
