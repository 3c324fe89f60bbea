"""The input of a cluster's plan: what is known about it, the plan's numbers, and the content of a configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.core.clusters.addresses import FabricAddress, NodeName
from orchestrator.core.clusters.readings import Observed
from orchestrator.core.clusters.rows import ClusterRow

MAX_NODES = 64  # of one cluster


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a configuration, from its member's row, so that every leader gets the same."""

    worker_id: str
    name: NodeName
    address: FabricAddress
    index: int  # its slurmd's port follows from it
    cpus: int
    memory_mb: int | None  # None: Slurm does not count memory
    gpus: int
    gpu_files: int  # the number of /dev/nvidia<n>; 0: the GPUs are counted without files


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of slurm.conf and gres.conf of a whole cluster."""

    cluster: str
    controller: NodeName
    nodes: tuple[Node, ...]  # by index


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What is known about one cluster: its rows, and what this leader has seen. A new leader has seen nothing."""

    row: ClusterRow
    now: datetime  # the database's clock
    observed: Mapping[str, Observed] = field(default_factory=dict)  # worker -> since its last action began
    in_flight: frozenset[str] = frozenset()  # workers with a running action, and the cluster's id for one of its own
    retry_at: Mapping[str, datetime] = field(default_factory=dict)  # worker or cluster id -> end of its backoff
    usd_per_node_hour: float | None = None  # the usual price of one node


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """The numbers of the plan. `conf_sha` is the identity of the text that a configuration becomes."""

    conf_sha: Callable[[Configuration], str]
    install_slurm: bool = False  # whether Slurm may be installed on a pod whose image has none
    idle_s: float = 600  # for which nodes must have no work before they are released
    allocate_s: float = 1_800  # until every node of a new cluster is promoted
    deploy_s: float = 900  # from then until the smoke job has succeeded
    reconcile_s: float = 600  # of one member, before it is replaced
    lost_s: float = 60  # without SSH, if slurmctld calls the node down
    cut_off_s: float = 900  # without SSH and heartbeats, if slurmctld says nothing about the node
    registers_s: float = 30  # from the start of slurmctld until all nodes have registered: 3 s were seen
    fresh_s: float = 30  # an older reading counts as unknown
    delete_s: float = 600  # for running jobs, after a delete was asked for
    max_nodes: int = MAX_NODES  # MAX_ACTIVE_GPUS of the pool
    drain_s: float = 86_400  # for the jobs of a node that is drained
    remove_s: float = 60  # for stopping the daemons of a drained node
