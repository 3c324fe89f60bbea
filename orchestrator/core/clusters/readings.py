"""The answer of one probe of a member, and for how long probes have failed to reach it.

Each field is decoded by itself to a value, or to None, which means unknown. The plan decides nothing from an unknown
field: an answer that cannot be read is not a bad answer. `reached` is False only if SSH was tried and did not get
through.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from orchestrator.core.clusters.addresses import FabricAddress, NodeName

NO_CONFIGURATION = ""  # `conf_sha` of a pod on which there is none, or another cluster's


class DaemonState(StrEnum):
    """Whether a daemon answers."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer of one probe. None: unknown."""

    reached: bool | None = None  # SSH got through
    slurmctld_state: DaemonState | None = None  # whether the cluster's slurmctld answers to this pod (`scontrol ping`)
    slurmd_state: DaemonState | None = None  # the pod's own slurmd
    munge_ok: bool | None = None  # a credential of the cluster's key can be made and read here
    munge_matches: bool | None = None  # the key on the pod is the cluster's key
    node_states: Mapping[str, str] | None = None  # node name -> state, as slurmctld shows it
    conf_sha: str | None = None  # of the configuration on the pod; NO_CONFIGURATION if there is none
    slurmctld_pid: int | None = None  # only on the controller
    slurmctld_started_at: datetime | None = None
    fabric_addr: FabricAddress | None = None
    hostname: str | None = None  # shown to people only
    slurm_installed: bool | None = None
    version: str | None = None  # of Slurm
    cpus: int | None = None
    memory_mb: int | None = None
    gpu_files: int | None = None  # the number of /dev/nvidia<n>
    clock_skew_s: float | None = None  # the pod's clock minus ours
    peers: Mapping[str, bool] | None = None  # node name -> whether a TCP connection to its slurmd was made
    api_reachable: bool | None = None  # whether the pod reaches the agent's API
    api_url: str | None = None  # … which is this one: the agent keeps the URL that it was started with
    api_error: str | None = None  # why it is not reached
    agent_log_tail: tuple[str, ...] | None = None  # codes that the agent's log shows, newest last
    error: str | None = None  # why the probe is not complete

    def state_of(self, node: NodeName | str) -> str | None:
        """Return what slurmctld says about a node. None: this reading does not say anything about nodes."""
        if self.node_states is None:
            return None
        return self.node_states.get(node.text if isinstance(node, NodeName) else node, ABSENT)


UNREACHED = Reading(reached=False)
ABSENT = "absent"  # slurmctld answers, and does not know the node


@dataclass(frozen=True, slots=True)
class Observed:
    """The newest reading of a member, and for how long probes have failed to reach it."""

    reading: Reading
    at: datetime
    unreached_since: datetime | None = None  # the first probe in a row that did not reach it


def observe(before: Observed | None, reading: Reading, at: datetime) -> Observed:
    """Add one more reading. A reading with `reached` None says nothing, and does not end a row of failed probes."""
    since = before.unreached_since if before else None
    if reading.reached is True:
        since = None
    elif reading.reached is False:
        since = since or at
    return Observed(reading, at, since)


BUSY = frozenset({"alloc", "allocated", "mix", "mixed", "comp", "completing", "drng", "draining"})
DRAINED = frozenset({"drain", "drained"})
DRAINING = DRAINED | {"drng", "draining"}
UP = frozenset({"idle", "plnd", "planned", "resv", "reserved", "maint"}) | BUSY | DRAINED


def _words(state: str) -> set[str]:
    return set(state.lower().rstrip("*~#!%$@^-").replace("*", "").split("+"))


def is_up(state: str | None) -> bool:
    """Whether slurmctld hears the node's slurmd. `idle*` and `down` do not count."""
    return state is not None and "*" not in state and bool(_words(state)) and _words(state) <= UP


def is_busy(state: str | None) -> bool:
    """Whether a job runs on the node."""
    return state is not None and bool(_words(state) & BUSY)


def is_drained(state: str | None) -> bool:
    """Whether the node takes no job, and none runs on it."""
    return state is not None and bool(_words(state) & DRAINED) and not is_busy(state)


def is_draining(state: str | None) -> bool:
    """Whether the node takes no new job, with or without a running one."""
    return state is not None and bool(_words(state) & DRAINING)


def is_silent(state: str | None) -> bool:
    """Whether slurmctld itself says that it does not hear the node. An unknown state says nothing.

    Slurm's own `unknown` is the state of a node that has not registered since slurmctld was started.
    """
    return state is not None and not is_up(state) and _words(state) != {"unknown"}
