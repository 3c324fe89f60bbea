"""The pods of the world of clusters, as Slurm and SSH see them, and the memory of a leader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.addresses import FabricAddress
from orchestrator.core.clusters.readings import UNREACHED, DaemonState, Observed, Reading
from orchestrator.core.clusters.view import Configuration

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def sha_of(configuration: Configuration) -> str:
    return f"sha-{hash(configuration):x}"


@dataclass
class Pod:
    """A pod with what Slurm has on it."""

    ip: str
    alive: bool = True  # a dead one answers nothing, and RunPod still lists it
    reachable: bool = True  # over SSH; a pod that is cut off from us only works on
    cut: bool = False  # from the private network
    installed: bool = True
    configuration: Configuration | None = None
    slurmctld: bool = False
    slurmd: bool = False
    busy: bool = False
    drained: set[str] = field(default_factory=set)  # node names, on the controller


@dataclass
class Leader:
    """The memory of one leader."""

    observed: dict[str, Observed] = field(default_factory=dict)
    running: dict[str, tuple[act.OnMember, datetime]] = field(default_factory=dict)  # worker or cluster id
    probes: dict[str, datetime] = field(default_factory=dict)  # worker -> when its answer comes
    retry_at: dict[str, datetime] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


def node_states(head: Pod, pods: Mapping[str, Pod]) -> dict[str, str]:
    """What the slurmctld of a controller says about its nodes."""
    assert head.configuration is not None
    states = {}
    for node in head.configuration.nodes:
        pod = pods[node.worker_id]
        is_cut = pod is not head and (pod.cut or head.cut)
        if is_cut or not (pod.alive and pod.slurmd and pod.configuration):
            states[node.name.text] = "down*"
        elif node.name.text in head.drained:
            states[node.name.text] = "draining" if pod.busy else "drained"
        else:
            states[node.name.text] = "allocated" if pod.busy else "idle"
    return states


def reading_of(pod: Pod, states: Mapping[str, str] | None, *, is_controller: bool) -> Reading:
    """What a probe of a pod says. `states`: None if no slurmctld answers."""
    if not pod.alive or not pod.reachable:
        return UNREACHED
    return Reading(
        reached=True,
        slurmctld_state=DaemonState.DOWN if states is None else DaemonState.UP,
        slurmd_state=DaemonState.UP if pod.slurmd else DaemonState.DOWN,
        munge_ok=pod.configuration is not None,
        node_states=states,
        conf_sha=sha_of(pod.configuration) if pod.configuration else "",
        slurmctld_pid=4_711 if is_controller and pod.slurmctld else None,
        slurmctld_started_at=LONG_AGO if is_controller and pod.slurmctld else None,
        fabric_addr=FabricAddress(pod.ip),
        hostname="c0ffee",
        slurm_installed=pod.installed,
        cpus=8,
        memory_mb=64_000,
        gpu_files=1,
        clock_skew_s=0.0,
        api_reachable=True,
    )
