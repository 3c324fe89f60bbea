"""The memory and NVLinks of each GPU type.

Keys are RunPod's GPU ids, which are the names that nvidia-smi prints. Memory is `memory.total` as nvidia-smi reports it
on a healthy card, in MiB. Drivers differ by a few MiB, so it is compared with a tolerance. Link counts are those of
NVIDIA's datasheets, per GPU. PCIe and NVL cards have links only if the owner installed a bridge: no links are correct,
some but not all links are a fault. A type that is not listed here is unknown: its facts are recorded, not checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Profile:
    """One GPU type."""

    memory_mib: int
    nvlinks: int = 0  # active links per GPU; 0: the type has none
    bridged: bool = False  # the links need a bridge between cards, which may be missing


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "NVIDIA B200": Profile(183_359, nvlinks=18),
        "NVIDIA H200": Profile(143_771, nvlinks=18),
        "NVIDIA H200 NVL": Profile(143_771, nvlinks=18, bridged=True),
        "NVIDIA H100 80GB HBM3": Profile(81_559, nvlinks=18),
        "NVIDIA H100 NVL": Profile(95_830, nvlinks=12, bridged=True),
        "NVIDIA H100 PCIe": Profile(81_559, nvlinks=12, bridged=True),
        "NVIDIA A100-SXM4-80GB": Profile(81_920, nvlinks=12),
        "NVIDIA A100-SXM4-40GB": Profile(40_960, nvlinks=12),
        "NVIDIA A100 80GB PCIe": Profile(81_920, nvlinks=12, bridged=True),
        "NVIDIA A100-PCIE-40GB": Profile(40_960, nvlinks=12, bridged=True),
        "NVIDIA A40": Profile(46_068, nvlinks=4, bridged=True),
        "NVIDIA A30": Profile(24_576, nvlinks=4, bridged=True),
        "NVIDIA L40S": Profile(46_068),
        "NVIDIA L40": Profile(46_068),
        "NVIDIA L4": Profile(23_034),
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": Profile(97_887),
        "NVIDIA RTX 6000 Ada Generation": Profile(49_140),
        "NVIDIA RTX 4000 Ada Generation": Profile(20_475),
        "NVIDIA RTX A6000": Profile(49_140, nvlinks=4, bridged=True),
        "NVIDIA RTX A5000": Profile(24_564, nvlinks=4, bridged=True),
        "NVIDIA RTX A4000": Profile(16_376),
        "NVIDIA GeForce RTX 5090": Profile(32_607),
        "NVIDIA GeForce RTX 4090": Profile(24_564),
        "NVIDIA GeForce RTX 3090": Profile(24_576, nvlinks=4, bridged=True),
    }
)
