"""The machine below a pod of these tests: files that nvidia-smi, dmesg, df, statvfs, /proc and /sys answer from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed.runpod.fake_tools import change_gpus, write_facts, write_programs

GPU = "NVIDIA A100-SXM4-80GB"
BUS = "0000:01:00"  # of its first GPU, as the kernel writes it


@dataclass
class Machine:
    """Change it while the agent runs."""

    path: Path
    gpus: int = 1
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.path / "root" / "dev").mkdir(parents=True)
        self.kmsg.touch()
        self.ails()

    @property
    def kmsg(self) -> Path:
        return self.path / "root" / "dev" / "kmsg"

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    def install(self, python: str) -> Mapping[str, str]:
        """Write its programs; returns the environment in which they are found."""
        write_programs(self.bin, python)
        return {"EMULATED_POD": str(self.path), "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def ails(self, **faults: str) -> None:
        """From now on it has these faults, and no others (machine_faults.py)."""
        write_facts(self.path, GPU, self.gpus, faults)

    def shows(self, **fields: str) -> None:
        """From now on nvidia-smi shows these values; a dot in a field's name is `__`."""
        change_gpus(self.path, {name.replace("__", "."): value for name, value in fields.items()})

    def says(self, mode: str) -> None:
        """How nvidia-smi behaves: ok, hang, absent, lost, flood."""
        (self.path / "smi").write_text(mode + "\n")

    def logs(self, text: str) -> None:
        """The kernel writes a line."""
        with self.kmsg.open("a") as log:
            log.write(f"4,1234,5678901,-;{text}\n")
