"""The three kinds of address of a cluster's member. They are different types, so none can stand in for another.

    Transport       what SSH connects to: the public host and port of a pod
    FabricAddress   the private address that Slurm's daemons use among themselves: an IP literal, never a name
    NodeName        what Slurm calls the node; it identifies, and nothing connects to it

What a pod calls itself (`hostname`) is none of them. It is shown to people only.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

CLUSTER_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")  # also Slurm's name of the cluster, and a directory on the pods
NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
MAX_PORT = 65_535
ROOT = "root"


@dataclass(frozen=True, slots=True)
class Transport:
    """Where SSH reaches a pod. Raises ValueError if a part is not an address."""

    host: str
    port: int
    user: str = ROOT

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host) or not 1 <= self.port <= MAX_PORT or not USER.fullmatch(self.user):
            raise ValueError(f"{self.user!r}@{self.host!r}:{self.port} is no address for SSH")

    @classmethod
    def of(cls, host: str | None, port: int | None, user: str | None = None) -> Self | None:
        """Return the address, or None while a part of it is not known or is not usable."""
        if host is None or port is None:
            return None
        try:
            return cls(host, port, user or ROOT)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class FabricAddress:
    """The private address of a pod in its cluster's network. Raises ValueError for anything but an IP literal."""

    ip: str

    def __post_init__(self) -> None:
        address = ipaddress.ip_address(self.ip)
        if address.is_unspecified or address.is_multicast or "%" in self.ip:
            raise ValueError(f"{self.ip!r} is not the address of one machine")

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return the address, or None for anything that is not an IP literal of one machine."""
        try:
            return cls(text) if text is not None else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class NodeName:
    """Slurm's name of a node. Raises ValueError if Slurm could read it as something else."""

    text: str

    def __post_init__(self) -> None:
        if not NODE_NAME.fullmatch(self.text):
            raise ValueError(f"{self.text!r} is no name of a node")

    @classmethod
    def of(cls, text: str | None) -> Self | None:
        """Return the name, or None for anything that is none."""
        return cls(text) if text is not None and NODE_NAME.fullmatch(text) else None

    @classmethod
    def of_worker(cls, worker_id: str) -> Self:
        """Return the node name of a worker: its id in lower case, with `-` for `_`."""
        return cls(worker_id.lower().replace("_", "-"))
