"""The emulated provider's catalogue: GPU types, data centres, volumes, with prices like RunPod's in late 2026."""

from dataclasses import dataclass

FABRIC_SINCE = 9.0  # compute capability


@dataclass(frozen=True, slots=True)
class GpuType:
    """One GPU type and its machine."""

    id: str
    display_name: str
    memory_mib: int  # as nvidia-smi reports memory.total
    secure_usd_per_hour: float
    community_usd_per_hour: float
    vcpu_per_gpu: int
    ram_gb_per_gpu: int
    power_limit_w: int
    compute_capability: str
    nvlinks: int = 0  # active between the GPUs of one pod
    has_ecc: bool = False  # data-centre cards count ECC errors, and can be cut up

    @property
    def has_fabric(self) -> bool:
        """Whether it registers with its NVSwitches' fabric, as cards do from the generation of the H100 on."""
        return self.nvlinks > 0 and float(self.compute_capability) >= FABRIC_SINCE

    def usd_per_hour(self, cloud: str) -> float:
        """The list price of one GPU in one cloud."""
        return self.secure_usd_per_hour if cloud == "SECURE" else self.community_usd_per_hour


@dataclass(frozen=True, slots=True)
class DataCenter:
    """One data centre."""

    id: str
    name: str
    region: str
    global_network: bool = True  # whether its pods can have a private address


@dataclass(frozen=True, slots=True)
class NetworkVolume:
    """A disk that pods of one data centre can mount."""

    id: str
    name: str
    size_gb: int
    data_center: str


GPU_TYPES = {
    gpu.id: gpu
    for gpu in (
        GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24_564, 0.69, 0.34, 16, 62, 450, "8.9"),
        GpuType("NVIDIA GeForce RTX 5090", "RTX 5090", 32_607, 0.94, 0.69, 16, 92, 575, "12.0"),
        GpuType("NVIDIA GeForce RTX 3090", "RTX 3090", 24_576, 0.46, 0.22, 16, 62, 350, "8.6"),
        GpuType("NVIDIA RTX A6000", "RTX A6000", 49_140, 0.49, 0.33, 9, 50, 300, "8.6"),
        GpuType("NVIDIA L4", "L4", 23_034, 0.43, 0.43, 12, 50, 72, "8.9"),
        GpuType("NVIDIA L40S", "L40S", 46_068, 0.86, 0.79, 16, 94, 350, "8.9"),
        GpuType("NVIDIA A40", "A40", 46_068, 0.40, 0.35, 9, 48, 300, "8.6", has_ecc=True),
        GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", 81_920, 1.64, 1.19, 12, 117, 300, "8.0", has_ecc=True),
        GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 81_920, 1.74, 1.39, 16, 125, 400, "8.0", 12, has_ecc=True),
        GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 81_559, 2.69, 2.69, 20, 188, 700, "9.0", 18, has_ecc=True),
        GpuType("NVIDIA H200", "H200 SXM", 143_771, 3.59, 3.59, 24, 276, 700, "9.0", 18, has_ecc=True),
    )
}

DATA_CENTERS = {
    center.id: center
    for center in (
        DataCenter("EU-RO-1", "EU-RO-1", "EUROPE"),
        DataCenter("EU-CZ-1", "EU-CZ-1", "EUROPE"),
        DataCenter("US-KS-2", "US-KS-2", "NORTH_AMERICA"),
        DataCenter("US-TX-3", "US-TX-3", "NORTH_AMERICA"),
        DataCenter("CA-MTL-1", "CA-MTL-1", "NORTH_AMERICA", global_network=False),
    )
}


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """What a pod needs to pull a private image. The user name and the password are never shown."""

    id: str
    name: str


NETWORK_VOLUMES = (NetworkVolume("vol1emulated", "models", 100, "EU-RO-1"),)

REGISTRIES = (RegistryCredentials("reg1emulated", "dockerhub"),)

CLOUDS = ("SECURE", "COMMUNITY")
