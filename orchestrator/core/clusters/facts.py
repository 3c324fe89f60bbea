"""Facts about one cluster, from its rows and the fresh readings of its members. None means unknown."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property

from orchestrator.core.cluster_states import LIVE_MEMBER, MemberRole, MemberStatus
from orchestrator.core.clusters.addresses import FabricAddress, NodeName
from orchestrator.core.clusters.readings import DaemonState, Reading, is_busy, is_silent
from orchestrator.core.clusters.rows import MemberRow
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView, Configuration, Node
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State

CONFIGURED = LIVE_MEMBER - {MemberStatus.PENDING}  # these are nodes of the configuration
KEPT = LIVE_MEMBER - {MemberStatus.DRAINING}  # these count as nodes of the wanted size, unless their workers drain


class ClusterFacts:
    """The facts of one view."""

    def __init__(self, view: ClusterView, policy: ClusterPolicy) -> None:
        self.view, self.policy, self.row, self.now = view, policy, view.row, view.now
        self.live = sorted((m for m in view.row.members if m.status in LIVE_MEMBER), key=lambda m: m.worker_id)
        self.kept = [m for m in self.live if m.status in KEPT and not is_leaving(m)]
        self.ready = [m for m in self.kept if m.status is MemberStatus.READY]
        self.controller = next((m for m in self.live if m.role is MemberRole.CONTROLLER), None)

    def is_free(self, name: str) -> bool:
        """Whether a worker, or the cluster itself by its id, has no running action and no backoff."""
        retry_at = self.view.retry_at.get(name)
        return name not in self.view.in_flight and (retry_at is None or retry_at <= self.now)

    def reading(self, worker_id: str) -> Reading | None:
        """Return the fresh reading of a member that SSH reached."""
        seen = self.view.observed.get(worker_id)
        if seen is None or seen.reading.reached is not True or worker_id in self.view.in_flight:
            return None
        return seen.reading if self.is_fresh(seen.at) else None

    def is_fresh(self, at: datetime) -> bool:
        """Whether a reading of this time still counts."""
        return self.now - at <= timedelta(seconds=self.policy.fresh_s)

    def unreached_s(self, worker_id: str) -> float:
        """Return for how long probes have failed to reach a member; 0 if the newest one reached it or is too old."""
        seen = self.view.observed.get(worker_id)
        if seen is None or seen.unreached_since is None or not self.is_fresh(seen.at):
            return 0.0
        return (seen.at - seen.unreached_since).total_seconds()

    @cached_property
    def slurmctld(self) -> DaemonState | None:
        """Whether slurmctld answers: to the controller's own pod, or else to any other member."""
        if self.controller is None:
            return DaemonState.DOWN if self.live else None
        own = self.reading(self.controller.worker_id)
        if own is not None:
            return own.slurmctld_state
        told = {r.slurmctld_state for m in self.live if (r := self.reading(m.worker_id)) is not None} - {None}
        return DaemonState.UP if DaemonState.UP in told else next(iter(told), None)

    @cached_property
    def node_states(self) -> Mapping[str, str] | None:
        """Return the states of all nodes as slurmctld shows them."""
        first = [self.controller] if self.controller else []
        for member in [*first, *self.live]:
            reading = self.reading(member.worker_id)
            if reading is not None and reading.slurmctld_state is DaemonState.UP and reading.node_states is not None:
                return reading.node_states
        return None

    @cached_property
    def has_registered(self) -> bool:
        """Whether slurmctld has run long enough to know its nodes' jobs.

        After its start, it shows a draining node with a job as drained until the node has registered. A pod on which
        the start cannot be computed does not hold up a drain.
        """
        reading = self.reading(self.controller.worker_id) if self.controller else None
        if reading is None:
            return False
        started_at = reading.slurmctld_started_at
        return started_at is None or (self.now - started_at).total_seconds() >= self.policy.registers_s

    def state_of(self, member: MemberRow) -> str | None:
        """Return what slurmctld says about a member's node."""
        states = self.node_states
        return None if states is None else Reading(node_states=states).state_of(member.node_name)

    @cached_property
    def hears_nobody(self) -> bool:
        """Whether slurmctld calls all other nodes silent, two at least, and no slurmd of them is known to be down.

        Then the controller has lost the private network, and its nodes have not.
        """
        others = [one for one in self.kept if one is not self.controller and one.status in CONFIGURED]
        readings = [self.reading(one.worker_id) for one in others]
        return (
            len(others) > 1
            and self.slurmctld is DaemonState.UP
            and all(is_silent(self.state_of(one)) for one in others)
            and all(one is None or one.slurmd_state is not DaemonState.DOWN for one in readings)
        )

    def may_work(self, member: MemberRow) -> bool:
        """Whether a job may run on a member's node, as far as a slurmctld knows that is not known to be down."""
        if member.status is MemberStatus.PENDING or self.slurmctld is DaemonState.DOWN:
            return False
        state = self.state_of(member)
        return state is None or is_busy(state)

    @cached_property
    def busy(self) -> int | None:
        """Return the number of nodes with a running job. 0 if slurmctld is known to be down."""
        if self.slurmctld is DaemonState.DOWN:
            return 0
        if self.node_states is None:
            return None
        return sum(is_busy(self.state_of(member)) for member in self.kept)

    @cached_property
    def for_tasks(self) -> int:
        """Return the number of nodes that the largest task needs, within the limits: a cluster runs one at a time."""
        row = self.row
        wanted = max(row.demand.largest, row.min_nodes)
        return max(row.min_nodes, min(wanted, row.max_nodes, self.policy.max_nodes))

    @cached_property
    def configuration(self) -> Configuration | None:
        """Return the configuration that all members should have; None while it is not complete."""
        nodes = {member.worker_id: node for member in self.live if (node := node_of(member)) is not None}
        if self.controller is None or self.controller.worker_id not in nodes:
            return None
        first = nodes[self.controller.worker_id].name
        return Configuration(self.row.id, first, tuple(sorted(nodes.values(), key=lambda node: node.index)))

    @cached_property
    def conf_sha(self) -> str | None:
        """Return the identity of the configuration."""
        return None if self.configuration is None else self.policy.conf_sha(self.configuration)

    @property
    def is_smoked(self) -> bool:
        """Whether the present controller has run a smoke job with success."""
        evidence = self.row.smoke_evidence
        if not isinstance(evidence, Mapping):  # none, or a value that a user wrote
            return False
        return self.controller is not None and evidence.get("controller") == self.controller.worker_id

    def lost(self, member: MemberRow) -> tuple[FailureCode, str] | None:
        """Return why a member is lost. An unknown reading is never a reason."""
        worker, lost_s, cut_s = member.worker, self.policy.lost_s, self.policy.cut_off_s
        if worker is None or (worker.status in (State.TERMINATING, State.TERMINATED) and not is_leaving(member)):
            return FailureCode.MEMBER_LOST, "its worker ends" if worker else "its worker is gone"
        heard_at = worker.last_heartbeat
        is_unheard = heard_at is not None and (self.now - heard_at).total_seconds() >= cut_s
        if member.role is MemberRole.CONTROLLER and is_unheard:
            return FailureCode.MEMBER_LOST, f"its agent, which claims the tasks, was last heard at {heard_at:%H:%M:%S}"
        unreached_s = self.unreached_s(member.worker_id)
        if unreached_s < lost_s:
            return None
        told = self._slurm_says(member)
        if told is not None:
            return FailureCode.MEMBER_LOST, f"SSH has not reached it for {unreached_s:.0f} s, and {told}"
        if unreached_s >= cut_s and is_unheard:
            return FailureCode.MEMBER_LOST, f"neither SSH nor its agent has answered for {cut_s:.0f} s"
        return None

    def _slurm_says(self, member: MemberRow) -> str | None:
        """Return what Slurm says against a member that SSH does not reach; None if it does not call it down."""
        state = self.state_of(member)
        if state is not None:
            return f"slurmctld shows its node as {state}" if is_silent(state) else None
        if member is self.controller and self.slurmctld is DaemonState.DOWN:
            return "its slurmctld answers to no other member"
        return None


def is_leaving(member: MemberRow) -> bool:
    """Whether the member's worker is to end, and still waits for the work on its node (core/termination.py)."""
    worker = member.worker
    return worker is not None and worker.status is State.TERMINATING and worker.stage is Stage.DRAINING


def node_of(member: MemberRow) -> Node | None:
    """Return a member as a node of the configuration; None while it is no node, or its address is not known."""
    address, name = FabricAddress.of(member.fabric_addr), NodeName.of(member.node_name)
    if member.status not in CONFIGURED or address is None or name is None:
        return None
    detail, worker = member.adapter_detail, member.worker
    return Node(
        member.worker_id,
        name,
        address,
        member.index_no,
        cpus=whole(detail.get("cpus")) or 1,
        memory_mb=whole(detail.get("memory_mb")),
        gpus=worker.gpu_count if worker else 0,
        gpu_files=whole(detail.get("gpu_files")) or 0,
    )


def whole(value: object) -> int | None:
    """Return a positive integer of a row's JSON, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
