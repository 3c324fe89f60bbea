"""Pods with Slurm: an SSH session that understands the scripts of clusters/node.py.

A script is told by its text. What it prints is what the real one prints: lines `name=value`. The pods hear each other
as Slurm's daemons do: with the same key, over the fabric; slurmctld calls a node down that has been silent for long.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from orchestrator.clusters import node_scripts, probe_script, setup_scripts
from orchestrator.clusters.configuration import SLURMD_TIMEOUT_S
from orchestrator.ports import Completed

Words = tuple[str, ...]
NODE = re.compile(r"^NodeName=(\S+) .*Feature=(\S+) ", re.MULTILINE)
SCRIPTS: Mapping[str, str] = {
    probe_script.PROBE: "probe",
    setup_scripts.INSTALL: "install",
    setup_scripts.CONFIGURE: "configure",
    node_scripts.RESTART: "restart",
    node_scripts.START_CONTROLLER: "start_controller",
    node_scripts.START_NODE: "start_node",
    node_scripts.SMOKE: "smoke",
    node_scripts.DRAIN_NODE: "drain",
    node_scripts.REMOVE: "remove",
    node_scripts.AUTHORIZED_KEY: "authorized_key",
}
QUOTED = [(shlex.quote(script), name) for script, name in SCRIPTS.items()]
TAKES_S = {"probe": (0.1, 3.0), "install": (20.0, 90.0), "configure": (0.3, 3.0), "restart": (0.5, 8.0),
           "start_controller": (0.5, 5.0), "start_node": (0.5, 10.0), "smoke": (0.5, 4.0), "drain": (0.1, 1.0),
           "remove": (0.2, 6.0), "authorized_key": (0.1, 1.0)}  # fmt: skip
READS = frozenset({"probe"})
REGISTERS_S = 3.0  # for so long after its start, slurmctld does not know the jobs of nodes that drain


@dataclass
class Text:
    """A configuration, as a daemon has read it."""

    sha: str
    nodes: tuple[str, ...]
    controller: str


@dataclass
class Daemon:
    """A process."""

    pid: int
    began_s: float
    text: Text


@dataclass
class Slurm:
    """One pod with what Slurm has on it."""

    worker_id: str
    name: str  # of its node
    ip: str
    address: tuple[str, int]
    installed: bool = True
    lives: bool = True
    lone_s: tuple[float, float] = (0.0, 0.0)  # from when until when SSH does not reach it
    cut_s: tuple[float, float] = (0.0, 0.0)  # from when until when no other pod reaches it
    hangs_s: float = 0.0  # until then its scripts hang
    dumb_s: float = 0.0  # until then its agent is not heard
    ahead_s: float = 0.0  # its clock
    text: Text | None = None  # in its files
    key: str | None = None  # the fingerprint
    munged: bool = False
    slurmctld: Daemon | None = None
    slurmd: Daemon | None = None
    drained: set[str] = field(default_factory=set)  # slurmctld's state, which outlives the process
    heard_s: dict[str, float] = field(default_factory=dict)  # when slurmctld last heard each node
    busy_until_s: float = 0.0
    written_s: float | None = None  # when its configuration was last written
    smoked: bool = False  # whether a smoke job from here has succeeded
    well_since_s: float | None = None


class Rack:
    """All pods."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.pods: dict[str, Slurm] = {}  # by worker
        self.by_name: dict[str, Slurm] = {}
        self.by_address: dict[tuple[str, int], Slurm] = {}
        self.now: Callable[[], float] = lambda: 0.0
        self.epoch_s = ahead
        self._pid = 1_000

    def add(self, worker_id: str, *, installed: bool) -> Slurm:
        """A new pod."""
        number = len(self.pods) + 1
        name = worker_id.lower().replace("_", "-")
        ip = f"10.0.{number // 250}.{number % 250 + 1}"
        pod = Slurm(worker_id, name, ip, ("203.0.113.9", 10_000 + number), installed)
        self.pods[worker_id] = self.by_name[name] = self.by_address[pod.address] = pod
        return pod

    def reached(self, pod: Slurm) -> bool:
        """Whether SSH reaches it."""
        return pod.lives and not pod.lone_s[0] <= self.now() < pod.lone_s[1]

    def daemon(self, text: Text) -> Daemon:
        """A new process."""
        self._pid += 1
        return Daemon(self._pid, self.now(), text)

    def linked(self, one: Slurm, other: Slurm) -> bool:
        """Whether two pods understand each other."""
        apart = any(p.cut_s[0] <= self.now() < p.cut_s[1] for p in (one, other)) and one is not other
        keyed = one.munged and other.munged and one.key == other.key
        return one.lives and other.lives and keyed and not apart

    def head_of(self, pod: Slurm) -> Slurm | None:
        """The controller that this pod asks, if a slurmctld answers there."""
        if pod.text is None:
            return None
        head = self.by_name.get(pod.text.controller)
        return head if head is not None and head.slurmctld is not None and self.linked(pod, head) else None

    def states(self, head: Slurm) -> dict[str, str]:
        """What its slurmctld says of its nodes."""
        assert head.slurmctld is not None
        found = {}
        for name in head.slurmctld.text.nodes:
            pod = self.by_name[name]
            if pod.slurmd is not None and self.linked(head, pod):
                head.heard_s[name] = self.now()
            silent_s = self.now() - head.heard_s.get(name, head.slurmctld.began_s)
            busy = pod.busy_until_s > self.now()
            if silent_s > SLURMD_TIMEOUT_S:
                found[name] = "drained*" if name in head.drained else "down*"
            elif name not in head.heard_s:
                found[name] = "unknown"
            elif name in head.drained:
                known = self.now() - head.slurmctld.began_s >= REGISTERS_S
                found[name] = "draining" if busy and known else "drained"
            else:
                found[name] = "allocated" if busy else "idle"
        return found

    def is_well(self, pod: Slurm) -> bool:
        """Whether nothing at all is wrong with it."""
        now = self.now()
        stopped = pod.slurmd is None or pod.text is None or not pod.munged
        mixed = stopped or pod.ahead_s or pod.name in self._drained(pod)
        cut = pod.cut_s[0] <= now < pod.cut_s[1]
        return self.reached(pod) and not cut and not mixed and now >= pod.hangs_s and now >= pod.dumb_s

    def _drained(self, pod: Slurm) -> set[str]:
        head = self.head_of(pod)
        return set() if head is None else head.drained

    # --- the scripts

    def ran(self, pod: Slurm, kind: str, words: Words, stdin: bytes) -> Completed:
        """What a script does and prints."""
        lines, status = getattr(self, f"_{kind}")(pod, words, stdin)
        return Completed(status, "".join(f"{line}\n" for line in lines).encode(), b"")

    def _probe(self, pod: Slurm, words: Words, _: bytes) -> tuple[list[str], int]:
        now = self.now()
        key, peers = words[2], words[5:]
        head = self.head_of(pod)
        lines = [f"clock={self.epoch_s + now + pod.ahead_s:.0f}", "hostname=c0ffee", f"uptime={now + 1_000:.2f}"]
        lines += ["lacks=" if pod.installed else "lacks= slurmctld slurmd", "cpus=8", "memory_kb=65536000"]
        lines += ["gpu_files=1", *(["managed=yes"] if key else [])]
        lines.append(f"conf={pod.text.sha}" if pod.text else "conf=none")
        running = f" {pod.key}" if pod.munged else ""
        lines.append(f"key={pod.key}{running}" if pod.key else "key=none")
        lines.append(f"munged=7 100 {'0' * 64}" if pod.munged else "munged=none")
        for name, daemon in (("slurmctld", pod.slurmctld), ("slurmd", pod.slurmd)):
            ticks = 0 if daemon is None else int((daemon.began_s + 1_000) * 100)
            lines.append(f"{name}=none" if daemon is None else f"{name}={daemon.pid} {ticks} {daemon.text.sha}")
        lines += [f"fabric={pod.ip}", *(["version=slurm-wlm 22.05.8"] if pod.installed else [])]
        if pod.munged:
            lines.append("munge=yes")
        if pod.installed and pod.text:
            lines.append("ping=up" if head is not None else "ping=down Slurmctld(primary) at c0ffee is DOWN")
        for peer in peers:
            other = self.by_name.get(peer.partition("=")[0])
            up = other is not None and other.slurmd is not None and self.linked(pod, other)
            lines.append(f"peer={peer.partition('=')[0]} {'yes' if up else 'no'}")
        if head is not None:
            lines += [f"node={name} {state}" for name, state in self.states(head).items()] + ["nodes=all"]
        return [*lines, "end="], 0

    def _install(self, pod: Slurm, _: Words, __: bytes) -> tuple[list[str], int]:
        pod.installed = True
        return ["installed=yes"], 0

    def _configure(self, pod: Slurm, words: Words, stdin: bytes) -> tuple[list[str], int]:
        key, text = (base64.b64decode(line) for line in stdin.split(b"\n")[:2])
        if not pod.installed:
            return ["error=SLURM_MISSING the image lacks slurmd"], node_scripts.FAILED
        if hashlib.sha256(text).hexdigest() != words[1]:
            return ["error=BAD_INPUT the configuration is not whole"], node_scripts.FAILED
        nodes = NODE.findall(text.decode())
        head = next(name for name, feature in nodes if feature == "controller")
        pod.text = Text(words[1], tuple(name for name, _ in nodes), head)
        pod.key, pod.munged, pod.written_s = hashlib.sha256(key).hexdigest(), True, self.now()
        if words[2] != "controller":
            pod.slurmctld = None
            pod.drained.clear()
            pod.heard_s.clear()
        return ["configured=yes"], 0

    def _restart(self, pod: Slurm, words: Words, _: bytes) -> tuple[list[str], int]:
        if not pod.munged or pod.text is None:
            return ["error=MUNGE_DOWN munged does not run"], node_scripts.FAILED
        if pod.slurmctld is not None:
            pod.slurmctld = self.daemon(pod.text)
        if pod.slurmd is not None:
            pod.slurmd = self.daemon(pod.text)
        return ["restarted=yes"], 0

    def _start_controller(self, pod: Slurm, _: Words, __: bytes) -> tuple[list[str], int]:
        if not pod.munged or pod.text is None:
            return ["error=MUNGE_DOWN munged does not run"], node_scripts.FAILED
        pod.slurmctld = self.daemon(pod.text)
        if pod.text.controller != pod.name:
            return ["error=NOT_STARTED slurmctld does not answer"], node_scripts.FAILED
        return ["started=slurmctld"], 0

    def _start_node(self, pod: Slurm, words: Words, _: bytes) -> tuple[list[str], int]:
        if not pod.munged or pod.text is None:
            return ["error=MUNGE_DOWN munged does not run"], node_scripts.FAILED
        pod.slurmd = self.daemon(pod.text)
        return ["started=slurmd"], 0

    def _smoke(self, pod: Slurm, words: Words, _: bytes) -> tuple[list[str], int]:
        head = self.head_of(pod)
        idle = [name for name, state in self.states(head).items() if state == "idle"] if head else []
        chosen = idle[: int(words[1])]
        ran = [name for name in chosen if self.linked(pod, self.by_name[name]) and self.by_name[name].slurmd]
        if len(chosen) < int(words[1]):
            return ["srun=1", "error=SMOKE_FAILED srun: error: nodes are busy or down"], 0
        if len(ran) < len(chosen):
            lines = [f"node={name}" for name in ran]
            return [*lines, "srun=1", "error=SMOKE_FAILED srun: error: task launch failed"], 0
        pod.smoked = True
        return [*(f"node={name}" for name in ran), "srun=0"], 0

    def _drain(self, pod: Slurm, words: Words, _: bytes) -> tuple[list[str], int]:
        head = self.head_of(pod)
        if head is None or head.slurmctld is None or words[1] not in head.slurmctld.text.nodes:
            return ["error=NOT_DRAINED slurm_update error: Invalid node name specified"], node_scripts.FAILED
        head.drained.add(words[1])
        return ["drained=yes"], 0

    def _remove(self, pod: Slurm, _: Words, __: bytes) -> tuple[list[str], int]:
        pod.slurmctld = pod.slurmd = pod.text = pod.key = None
        pod.munged, pod.busy_until_s = False, 0.0
        pod.drained.clear()
        return ["removed=yes"], 0

    def _authorized_key(self, pod: Slurm, _: Words, __: bytes) -> tuple[list[str], int]:
        return ["key=yes"], 0


@lru_cache(maxsize=1_000)
def told(command: str) -> tuple[str, Words]:
    """The name of a script, and its words: the cluster first. Only the words are split, and once: it takes long."""
    rest = command[command.index(" sh -c ") + len(" sh -c ") :]
    quoted, name = next((one, name) for one, name in QUOTED if rest.startswith(one))
    return name, tuple(shlex.split(rest[len(quoted) :])[1:])
