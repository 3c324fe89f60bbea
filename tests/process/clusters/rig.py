"""Pods with real SSH and a real Slurm, all on this machine: each has its own home, munged and slurmd."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_session import AsyncSshSession
from orchestrator.clusters import munge, node
from orchestrator.core.clusters.addresses import FabricAddress, NodeName
from orchestrator.core.clusters.readings import Reading
from orchestrator.core.clusters.view import Configuration, Node
from testbed.runpod.sshd import PodSshd
from testbed.services import debian
from tests.process.clusters.operator import reserved_id
from worker.processes import alive

HOST = "127.0.0.1"
PACKAGE = "slurm-wlm"
DAEMONS = ("munged", "slurmctld", "slurmd")
WAIT_S = 60.0


@dataclass
class Member:
    """One pod. `session` is a real connection to its SSH server."""

    home: Path
    node: Node
    sshd: PodSshd
    session: AsyncSshSession
    cluster: str

    @property
    def name(self) -> NodeName:
        return self.node.name

    @property
    def root(self) -> Path:
        return self.home / ".gpu-cluster" / self.cluster

    def pid(self, daemon: str) -> int:
        return int((self.root / "run" / f"{daemon}.pid").read_text())

    def kill(self, daemon: str) -> None:
        """Kill a daemon as a crash would."""
        pid = self.pid(daemon)
        os.kill(pid, signal.SIGKILL)
        _wait_for(lambda: not alive(pid, None))

    async def shell(self, command: str, timeout_s: float = 30) -> str:
        """Run a command with the cluster's Slurm, and return its output."""
        done = await self.session.run(f"export SLURM_CONF={self.root}/etc/slurm.conf; {command}", timeout_s=timeout_s)
        return done.stdout.decode()


@dataclass
class Rig:
    """The pods of a test, and one cluster on them."""

    directory: Path
    key: asyncssh.SSHKey
    cluster: str
    members: list[Member] = field(default_factory=list)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def munge_key(self) -> bytes:
        return munge.munge_key(self.secret, self.cluster)

    async def add(self, name: str | None = None) -> Member:
        """Start one more pod."""
        index = len(self.members)
        home = self.directory / f"pod-{index}" / "home"
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh" / "authorized_keys").write_bytes(self.key.export_public_key())
        sshd = PodSshd(home, lambda: {**environment(), "HOME": str(home), **self.environment})
        await sshd.open()
        node_name = NodeName(name or f"gpu-20260101-12000{index}-0123abcd")
        added = Node(node_name.text, node_name, FabricAddress(HOST), index, 4, 1024, 1, 0)
        member = Member(home, added, sshd, await self._session(sshd), self.cluster)
        self.members.append(member)
        return member

    async def connect(self, member: Member) -> None:
        """Open another connection to a pod."""
        member.session = await self._session(member.sshd)

    async def _session(self, sshd: PodSshd) -> AsyncSshSession:
        shell = AsyncSshShell(self.key.export_private_key().decode())
        return await shell.connect(HOST, sshd.port, pinned=sshd.host_key, timeout_s=30)

    def configuration(self, *members: Member) -> Configuration:
        """Return the configuration with these members (default: all). The first one is the controller."""
        chosen = members or tuple(self.members)
        return Configuration(self.cluster, chosen[0].name, tuple(one.node for one in chosen))

    async def deploy(self, *members: Member) -> Configuration:
        """Bring Slurm up on these members, as the leader does, and wait until every node is idle."""
        chosen = members or tuple(self.members)
        conf = self.configuration(*chosen)
        await asyncio.gather(*(node.configure(one.session, conf, one.node, self.munge_key) for one in chosen))
        await node.start_controller(chosen[0].session, self.cluster)
        await asyncio.gather(*(node.start_node(one.session, self.cluster, one.name) for one in chosen))
        return conf

    def question(self, **changes: object) -> node.Question:
        return replace(node.Question(self.cluster, self.munge_key), **changes)  # type: ignore[arg-type]

    async def probe(self, member: Member, **changes: object) -> Reading:
        return await node.probe(member.session, self.question(**changes))

    async def until(self, member: Member, holds: Callable[[Reading], bool], timeout_s: float = WAIT_S) -> Reading:
        """Probe until something holds, and return that reading."""
        give_up = time.monotonic() + timeout_s
        while not holds(reading := await self.probe(member)):
            assert time.monotonic() < give_up, reading
            await asyncio.sleep(0.2)
        return reading


async def eventually(holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + timeout_s
    while not await holds():
        assert time.monotonic() < give_up, what
        await asyncio.sleep(0.1)


def environment() -> dict[str, str]:
    """Return the environment in which a pod finds Slurm, installed or unpacked."""
    program = debian.find("slurmctld", PACKAGE)
    assert program is not None
    places = [str(program.path.parent), str(program.path.parent.parent / "bin")]
    return {**os.environ, **program.environment, "PATH": os.pathsep.join([*places, os.environ["PATH"]])}


@asynccontextmanager
async def rigged(directory: Path) -> AsyncIterator[Rig]:
    """A rig whose processes and files are gone at the end."""
    with reserved_id() as name:
        rig = Rig(directory, asyncssh.generate_private_key("ssh-ed25519"), name)
        try:
            yield rig
        finally:
            for member in rig.members:
                await node.remove(member.session, rig.cluster)
                await member.session.close()
                member.sshd.close()
        assert processes_with(str(directory)) == []


def processes_with(text: str) -> list[str]:
    """Return the command lines that contain a text, of all live processes but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def _wait_for(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)
