"""The next action of each member of a cluster, by its status and its fresh reading.

    pending       its private address is known: it becomes a node of the configuration
    reconciling   the configuration and the key are written, then the daemons are started; ready once Slurm hears it
    ready         a daemon that is down moves it back to reconciling; another configuration is written in place
    draining      removed once no job runs on its node, or after a bound (leaving.py)

Each member gets at most one action. Nothing follows from an unknown reading, and nothing is done to a member with a
running action. A member that stays reconciling although it is reached is replaced after `reconcile_s`; the time for
which its controller was away does not count.
"""

from datetime import datetime

from orchestrator.core.cluster_states import WORKING, ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.actions import (
    Configure,
    Join,
    MoveMember,
    OnMember,
    Reconfigure,
    StartController,
    StartNode,
    UpdateMember,
)
from orchestrator.core.clusters.addresses import NodeName
from orchestrator.core.clusters.details import (
    addresses,
    detail_of,
    detail_update,
    moved_address,
    not_ready_since,
    relapse,
    unreached,
)
from orchestrator.core.clusters.facts import ClusterFacts, is_leaving
from orchestrator.core.clusters.leaving import departure, draining, failed
from orchestrator.core.clusters.readings import (
    NO_CONFIGURATION,
    DaemonState,
    Reading,
    is_drained,
    is_silent,
    is_up,
)
from orchestrator.core.clusters.rows import MemberRow
from orchestrator.core.clusters.view import MAX_NODES, Configuration
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import READY

SLURM_READY, CONFIGURING = "slurm_ready", "configuring"  # `phase` of adapter_detail
NO_SLURM = "its image has no Slurm, and install_slurm is not set"


def joins(facts: ClusterFacts) -> list[Join]:
    """Return the promoted workers that become members, up to the wanted number of nodes. Each gets a free index."""
    taken = {member.index_no for member in facts.live}
    free = (index for index in range(MAX_NODES) if index not in taken)
    room = facts.row.nodes - len(facts.kept)
    promoted = sorted(w.id for w in facts.row.unjoined if w.status in READY and w.drain_requested_at is None)
    return [
        Join(worker_id, MemberRole.WORKER, index, NodeName.of_worker(worker_id))
        for worker_id, index in zip(promoted[: max(0, room)], free, strict=False)
    ]


def controller_choice(facts: ClusterFacts) -> MoveMember | UpdateMember | None:
    """Return the member that becomes the controller if there is none: one that SSH reaches, the lowest id first."""
    if facts.controller is not None or (facts.row.status is ClusterStatus.DEPLOYING and _some_unread(facts)):
        return None
    able = [m for m in facts.kept if facts.reading(m.worker_id) is not None and facts.is_free(m.worker_id)]
    able.sort(key=lambda m: (m.status is not MemberStatus.READY, m.status is MemberStatus.PENDING, m.worker_id))
    if not able:
        return None
    chosen = able[0]
    fields, why = {"role": MemberRole.CONTROLLER}, "it becomes the controller: there is none"
    if chosen.status is MemberStatus.READY:  # a ready controller would claim tasks before its slurmctld runs
        return MoveMember(chosen.worker_id, chosen.status, MemberStatus.RECONCILING, why, fields)
    return UpdateMember(chosen.worker_id, chosen.status, why, fields)


def _some_unread(facts: ClusterFacts) -> bool:
    """Whether a first reading is still on its way. Then the choice would depend on the order of the answers."""
    return any(m.worker_id not in facts.view.observed for m in facts.kept)


def step(member: MemberRow, facts: ClusterFacts) -> OnMember | None:
    """Return the next action of one live member."""
    if member.worker_id in facts.view.in_flight:
        return None
    lost, reading = facts.lost(member), facts.reading(member.worker_id)
    if lost is not None:
        return failed(member, *lost)
    if member.status is MemberStatus.DRAINING:
        return draining(member, facts, facts.policy.drain_s)
    if is_leaving(member) and (leaves := departure(member, facts)) is not None:
        return leaves
    if reading is None:
        return unreached(member, facts)
    return _overdue(member, reading, facts) or (
        _progress(member, reading, facts) if facts.is_free(member.worker_id) else None
    )


def _progress(member: MemberRow, reading: Reading, facts: ClusterFacts) -> OnMember | None:
    if reading.slurm_installed is False and not facts.policy.install_slurm:
        return failed(member, FailureCode.SLURM_MISSING, NO_SLURM)
    if member.status is MemberStatus.PENDING:
        return _pending(member, reading) or detail_update(member, reading, facts)
    return (
        moved_address(member, reading) or _configured(member, reading, facts) or detail_update(member, reading, facts)
    )


def _pending(member: MemberRow, reading: Reading) -> MoveMember | None:
    if reading.fabric_addr is None:
        return None
    machine = {"cpus": reading.cpus, "memory_mb": reading.memory_mb, "gpu_files": reading.gpu_files}
    fields = addresses(member, reading) | {"adapter_detail": machine | {"phase": CONFIGURING}}
    why = f"reached; its private address is {reading.fabric_addr.ip}"
    return MoveMember(member.worker_id, MemberStatus.PENDING, MemberStatus.RECONCILING, why, fields)


def _configured(member: MemberRow, reading: Reading, facts: ClusterFacts) -> OnMember | None:
    """Bring a member to the wanted configuration with running daemons. None: it is there, or waits for others."""
    configuration = facts.configuration
    if configuration is None or facts.row.status is ClusterStatus.ALLOCATING or not _is_complete(facts):
        return None
    lack = _lack(reading)
    if lack is not None and member.status is MemberStatus.READY:
        return _step_back(member, reading, facts, lack)
    if lack is not None:
        return Configure(member.worker_id, configuration, install=reading.slurm_installed is False)
    if reading.conf_sha not in (None, facts.conf_sha):
        return Reconfigure(member.worker_id, configuration)
    trouble = _trouble(member, reading, facts)
    if trouble is None:
        return _promotion(member, reading, facts)
    return _repair(member, reading, facts, configuration, trouble)


def _lack(reading: Reading) -> str | None:
    """Return why everything must be written again: the programs, the configuration, the key, or munge."""
    if reading.slurm_installed is False:
        return "it has no Slurm"
    if reading.munge_matches is False:
        return "its munge key is not the cluster's"
    if reading.munge_ok is False:
        return "munge makes no credential that it can read"
    return "it has no configuration" if reading.conf_sha == NO_CONFIGURATION else None


def _step_back(member: MemberRow, reading: Reading, facts: ClusterFacts, trouble: str) -> MoveMember:
    """Record what is wrong with a ready member before it is repaired: people see the cause, and history keeps it."""
    said = {"phase": CONFIGURING, "error": trouble, **relapse(member, facts)}
    fields = {"adapter_detail": detail_of(member, reading, facts) | said}
    return MoveMember(member.worker_id, MemberStatus.READY, MemberStatus.RECONCILING, trouble, fields)


def _repair(
    member: MemberRow, reading: Reading, facts: ClusterFacts, configuration: Configuration, trouble: str
) -> OnMember | None:
    if member.status is MemberStatus.READY:
        return _step_back(member, reading, facts, trouble)
    if member is facts.controller and reading.slurmctld_state is DaemonState.DOWN:
        return StartController(member.worker_id, configuration)
    return StartNode(member.worker_id, configuration) if facts.slurmctld is DaemonState.UP else None


def _is_complete(facts: ClusterFacts) -> bool:
    """Whether the first configuration has all nodes. Later, nodes come and go one by one."""
    if facts.row.status is not ClusterStatus.DEPLOYING:
        return True
    return len(facts.kept) >= facts.row.nodes and all(m.status is not MemberStatus.PENDING for m in facts.kept)


def _trouble(member: MemberRow, reading: Reading, facts: ClusterFacts) -> str | None:
    """Return what is wrong with a member's daemons. An unknown answer is not wrong.

    Slurm may show a node as idle a second after its slurmd was killed, so the pod's own word counts first.
    """
    if member is facts.controller and reading.slurmctld_state is DaemonState.DOWN:
        return "slurmctld does not answer"
    if reading.slurmd_state is DaemonState.DOWN:
        return "slurmd does not run"
    state = facts.state_of(member)
    if is_silent(state):
        return f"slurmctld shows its node as {state}"
    if is_drained(state):  # by Slurm itself, as after a job that it could not kill: the node would take no job any more
        return f"slurmctld shows its node as {state}"
    return None


def _promotion(member: MemberRow, reading: Reading, facts: ClusterFacts) -> MoveMember | None:
    """Return the move to ready of a member that is configured, and that slurmctld hears."""
    if member.status is not MemberStatus.RECONCILING or reading.conf_sha is None or reading.munge_ok is None:
        return None
    state = facts.state_of(member)
    if not is_up(state) or (member is facts.controller and reading.slurmctld_state is not DaemonState.UP):
        return None
    fields = {"adapter_detail": detail_of(member, reading, facts) | {"phase": SLURM_READY}}
    return MoveMember(member.worker_id, MemberStatus.RECONCILING, MemberStatus.READY, f"its node is {state}", fields)


def _overdue(member: MemberRow, reading: Reading, facts: ClusterFacts) -> MoveMember | None:
    """Return the end of a member of a deployed cluster that is reached, and does not become ready in time.

    Nor does one that Slurm drains with each job: it is ready for a moment after each repair.
    """
    if facts.hears_nobody:
        return _hears_nobody(member, facts)
    waits = facts.row.status in WORKING and member.status in (MemberStatus.PENDING, MemberStatus.RECONCILING)
    waited_s = (facts.now - _may_come_up_since(member, facts)).total_seconds()
    if not waits or waited_s < facts.policy.reconcile_s:
        return None
    if member is not facts.controller and facts.slurmctld is not DaemonState.UP:
        return None  # it waits for the controller
    if member.status is MemberStatus.PENDING:
        trouble = "its pod has no private address" if reading.fabric_addr is None else None
    else:
        trouble = _trouble(member, reading, facts) or _unfit(reading, facts)
    return (
        None
        if trouble is None
        else failed(member, FailureCode.MEMBER_UNUSABLE, f"not ready after {waited_s:.0f} s: {trouble}")
    )


def _may_come_up_since(member: MemberRow, facts: ClusterFacts) -> datetime:
    """Return since when a member that is not ready could become ready: a node needs a controller that is ready."""
    controller, since = facts.controller, not_ready_since(member)
    return since if controller is None or member is controller else max(since, controller.status_since)


def _hears_nobody(member: MemberRow, facts: ClusterFacts) -> MoveMember | None:
    """Return the end of a controller that has heard none of its nodes for half of the time that a node has.

    The nodes run, and are kept: in the other half, the next controller must hear them.
    """
    since = max(one.status_since for one in facts.kept if one is not facts.controller)
    silent_s = (facts.now - since).total_seconds()
    if member is not facts.controller or facts.row.status not in WORKING or silent_s < facts.policy.reconcile_s / 2:
        return None
    return failed(member, FailureCode.MEMBER_UNUSABLE, f"slurmctld has heard none of its nodes for {silent_s:.0f} s")


def _unfit(reading: Reading, facts: ClusterFacts) -> str | None:
    if reading.slurm_installed is False:
        return "Slurm could not be installed"
    if (lack := _lack(reading)) is not None:
        return lack
    return "it does not have the configuration" if reading.conf_sha not in (None, facts.conf_sha) else None
