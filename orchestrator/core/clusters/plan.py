"""The plan of one cluster. Pure: the same view and policy give the same actions.

    requested    it wants no node, until tasks wait or it keeps a minimum of nodes: allocating
    allocating   its pool gets the wanted workers, which join; fails at the deadline unless all of them are there
    deploying    the members get one configuration, the daemons start, the smoke job runs; fails at the deadline
    running      nodes follow the tasks: more at once, fewer after `idle_s`; with none needed, all of them are released
    degraded     as running, while a lost member is replaced or slurmctld is down
    deleting     the members drain and go; then deleted

Everything is derived from the rows and the readings, so another leader continues where the last one stopped. A surplus
of nodes is recorded (`waiting_for` and `deadline_at` of a running cluster), so its time does not begin again either.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from orchestrator.core.cluster_states import LIVE_MEMBER, ClusterStatus, MemberStatus
from orchestrator.core.clusters import members, operations, size, smoke
from orchestrator.core.clusters.actions import (
    Allocate,
    ClusterAction,
    Dissolve,
    DrainNode,
    Fail,
    MoveCluster,
    MoveMember,
    OnCluster,
    OnMember,
    RecordConfiguration,
    Remark,
)
from orchestrator.core.clusters.facts import ClusterFacts, is_leaving
from orchestrator.core.clusters.leaving import leave
from orchestrator.core.clusters.members import NO_SLURM
from orchestrator.core.clusters.readings import DaemonState
from orchestrator.core.clusters.rows import MemberRow
from orchestrator.core.clusters.size import NOTHING, is_overdue
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView
from orchestrator.core.failures import FailureCode
from orchestrator.core.plurals import counted
from orchestrator.core.states import State

NO_POOL_S = 300.0  # while a release rolls out, the leader may not know a new pool
BACKOFF_S, MAX_BACKOFF_S = 5.0, 120.0  # after a failed action; it doubles with each failure in a row


def backoff_s(failures: int) -> float:
    """Return the pause after so many failed actions in a row, at least 1."""
    return float(min(BACKOFF_S * 2 ** min(failures - 1, 10), MAX_BACKOFF_S))


def plan(view: ClusterView, policy: ClusterPolicy) -> tuple[ClusterAction, ...]:
    """Return at most one action for the cluster and one for each member, and the refused operations."""
    facts = ClusterFacts(view, policy)
    row = view.row
    if row.status in ENDED:
        return tuple(_last_moves(facts))
    if row.delete_requested_at is not None and row.status is not ClusterStatus.DELETING:
        return (MoveCluster(row.status, ClusterStatus.DELETING, "an operator deletes it", NOTHING),)
    if row.status in BEGINNING and any(_lacks_slurm(facts, member) for member in facts.kept):
        return (Fail(row.status, FailureCode.SLURM_MISSING, NO_SLURM),)
    on_cluster, on_members = STEPS[row.status](facts)
    asked, refused = operations.plan(facts)
    asked += operations.taken_over(facts)
    return (*([on_cluster] if on_cluster else []), *refused, *_one_each(facts, asked, on_members))


def plan_without_pool(view: ClusterView, since: datetime, policy: ClusterPolicy) -> tuple[ClusterAction, ...]:
    """Return the end of a cluster whose pool is not configured, at the latest `NO_POOL_S` after `since`.

    Its pool gets no worker and keeps none, so the cluster would wait for nodes without end.
    """
    row = view.row
    if row.status is ClusterStatus.DELETING or row.delete_requested_at is not None:
        return plan(view, policy)
    if (view.now - since).total_seconds() < NO_POOL_S:
        return ()
    why = f"{row.pool} is no cluster pool of the orchestrator"
    return (Fail(row.status, FailureCode.POOL_REMOVED, why),)


def is_moving(view: ClusterView) -> bool:
    """Whether the next step should come soon: the cluster or a member changes its state."""
    if view.row.status in ENDED:
        return any(member.status in LIVE_MEMBER for member in view.row.members)
    steady = (ClusterStatus.RUNNING, ClusterStatus.REQUESTED)
    still = (MemberStatus.READY, MemberStatus.REMOVED, MemberStatus.FAILED)
    moving = (member.status not in still or is_leaving(member) for member in view.row.members)
    return view.row.status not in steady or any(moving)


Step = tuple[OnCluster | None, list[OnMember]]


def _one_each(facts: ClusterFacts, asked: Iterable[OnMember], others: Iterable[OnMember]) -> list[OnMember]:
    """Return the first action of each worker without a running one. The end of a member precedes a request."""
    rest = list(others)
    ends = [one for one in rest if isinstance(one, MoveMember) and one.to_status is MemberStatus.FAILED]
    chosen: dict[str, OnMember] = {}
    for action in (*ends, *asked, *rest):
        if action.worker_id not in facts.view.in_flight:
            chosen.setdefault(action.worker_id, action)
    return list(chosen.values())


def _last_moves(facts: ClusterFacts) -> list[OnMember]:
    """Let the members of an ended cluster end too."""
    ended = MemberStatus.FAILED if facts.row.status is ClusterStatus.FAILED else None
    moves: list[OnMember] = []
    for member in (one for one in facts.live if one.worker_id not in facts.view.in_flight):
        to_status = ended or (MemberStatus.FAILED if member.status is MemberStatus.READY else MemberStatus.REMOVED)
        moves.append(MoveMember(member.worker_id, member.status, to_status, f"the cluster is {facts.row.status}"))
    return moves


def _member_steps(facts: ClusterFacts) -> list[OnMember]:
    return [action for member in facts.live if (action := members.step(member, facts)) is not None]


def _requested(facts: ClusterFacts) -> Step:
    row, policy = facts.row, facts.policy
    leaving = [one for member in facts.live if (one := leave(member, facts, 0)) is not None]
    wanted = max(row.nodes, facts.for_tasks)
    if leaving or facts.live or not wanted or not (row.min_nodes or row.demand.tasks):
        return None, leaving
    why = f"for {counted(row.demand.tasks, 'task')}" if row.demand.tasks else "nodes were asked for"
    return Allocate(wanted, policy.allocate_s, why), []


def _allocating(facts: ClusterFacts) -> Step:
    row = facts.row
    steps: list[OnMember] = [*members.joins(facts), *_member_steps(facts)]
    if row.nodes and len(facts.kept) >= row.nodes:
        fields = {"waiting_for": "Slurm on all nodes", "deadline_s": facts.policy.deploy_s}
        return MoveCluster(row.status, ClusterStatus.DEPLOYING, "every node is promoted", fields), steps
    if not row.nodes or not (row.min_nodes or row.demand.tasks):
        fields = {"nodes": 0, **NOTHING}
        return MoveCluster(row.status, ClusterStatus.REQUESTED, "no task needs its nodes", fields), steps
    if row.deadline_at is None:  # an operator wants more nodes than before
        return Remark("its nodes", facts.policy.allocate_s), steps
    if is_overdue(facts):
        why = f"{len(facts.kept)} of {counted(row.nodes, 'node')} were promoted in time"
        return Fail(row.status, FailureCode.ALLOCATION_TIMEOUT, why), steps
    return None, steps


def _deploying(facts: ClusterFacts) -> Step:
    row = facts.row
    choice = members.controller_choice(facts)
    steps: list[OnMember] = [*members.joins(facts), *([choice] if choice else []), *_member_steps(facts)]
    if smoke.is_deployed(facts) and facts.is_smoked:
        fields = {**NOTHING, "conf_sha": facts.conf_sha}
        return MoveCluster(row.status, ClusterStatus.RUNNING, "the smoke job succeeded", fields), steps
    if row.deadline_at is None:  # the same
        missing_s = facts.policy.allocate_s if len(facts.kept) < row.nodes else 0
        return Remark("Slurm on all nodes", missing_s + facts.policy.deploy_s), steps
    if is_overdue(facts):
        ready = f"{len(facts.ready)} of {counted(row.nodes, 'node')} are ready"
        why = f"{ready}, and the smoke job has not succeeded" if smoke.is_deployed(facts) else f"only {ready}"
        return Fail(row.status, FailureCode.DEPLOY_TIMEOUT, why), steps
    return None, [*smoke.plan(facts), *steps]


def _lacks_slurm(facts: ClusterFacts, member: MemberRow) -> bool:
    reading = facts.reading(member.worker_id)
    return reading is not None and reading.slurm_installed is False and not facts.policy.install_slurm


def _settled(facts: ClusterFacts) -> Step:
    """The step of a running or degraded cluster."""
    row = facts.row
    choice = members.controller_choice(facts)
    steps: list[OnMember] = [*members.joins(facts), *([choice] if choice else []), *_member_steps(facts)]
    trouble = _trouble(facts)
    if row.status is ClusterStatus.RUNNING and trouble is not None:
        return MoveCluster(row.status, ClusterStatus.DEGRADED, trouble, NOTHING), steps
    if row.status is ClusterStatus.DEGRADED and smoke.is_deployed(facts):
        if facts.is_smoked:
            fields = {**NOTHING, "conf_sha": facts.conf_sha}
            return MoveCluster(row.status, ClusterStatus.RUNNING, "every node is ready", fields), steps
        steps = [*smoke.plan(facts), *steps]
    resize = size.plan(facts) or _outdated_remark(facts)
    if resize is None and facts.conf_sha is not None and facts.conf_sha != row.conf_sha:
        resize = RecordConfiguration(facts.conf_sha)
    return resize, [*steps, *size.drains(facts)]


def _outdated_remark(facts: ClusterFacts) -> Remark | None:
    """Remove what the row says of a smoke job that is not due any more. What it says of a surplus has a deadline."""
    is_about_smoke = facts.row.waiting_for is not None and facts.row.deadline_at is None
    return Remark(None, None) if is_about_smoke and not smoke.is_deployed(facts) else None


def _trouble(facts: ClusterFacts) -> str | None:
    """Return why a running cluster is degraded: its controller, or a member that it has lost since it runs."""
    if facts.controller is None:
        return "its controller is lost"
    if facts.controller.status is not MemberStatus.READY:
        return f"its controller is {facts.controller.status}: {facts.controller.reason or 'not ready'}"
    if facts.slurmctld is DaemonState.DOWN:
        return "slurmctld does not answer"
    if len(facts.ready) >= facts.row.nodes:
        return None
    lost = [
        m for m in facts.row.members if m.status is MemberStatus.FAILED and m.status_since >= facts.row.status_since
    ]
    down = [m for m in facts.live if m.status is MemberStatus.RECONCILING and m.adapter_detail.get("error")]
    return next((f"{m.node_name} is {m.status}: {m.reason}" for m in (*lost, *down)), None)


def _deleting(facts: ClusterFacts) -> Step:
    """Drain all members, the controller last, then wait until all their workers are gone."""
    if facts.live:
        return None, _departures(facts)
    open_workers = [m.worker for m in facts.row.members if m.worker and m.worker.status is not State.TERMINATED]
    if open_workers or facts.row.unjoined:
        return None, []
    return Dissolve("all its workers are gone"), []


def _departures(facts: ClusterFacts) -> list[OnMember]:
    """Let running jobs end within `delete_s`. Without slurmctld, no node drains, and the bound ends the wait.

    A node is not given up before it is known whether slurmctld can drain it, as after a change of leadership. One that
    is being repaired drains too if it has a job.
    """
    controller, bound_s, slurmctld = facts.controller, facts.policy.delete_s, facts.slurmctld
    steps: list[OnMember | None] = []
    is_late = (facts.now - facts.row.status_since).total_seconds() >= bound_s  # slurmctld may answer, and drain nothing
    may_drain = slurmctld is not DaemonState.DOWN and not is_late
    for member in facts.live:
        stays = may_drain and facts.lost(member) is None
        if controller is not None and stays and member.status is MemberStatus.READY:
            is_free = slurmctld is DaemonState.UP and facts.is_free(member.worker_id)
            drain = DrainNode(member.worker_id, controller.worker_id, "the cluster is deleted")
            steps.append(drain if is_free else None)
        elif stays and slurmctld is None and member.status is MemberStatus.RECONCILING:
            continue
        elif member is not controller or len(facts.live) == 1:
            steps.append(leave(member, facts, 0 if is_late else bound_s))
    return [one for one in steps if one is not None]


BEGINNING = frozenset({ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING})
ENDED = frozenset({ClusterStatus.DELETED, ClusterStatus.FAILED})
STEPS: Mapping[ClusterStatus, Callable[[ClusterFacts], Step]] = MappingProxyType(
    {
        ClusterStatus.REQUESTED: _requested,
        ClusterStatus.ALLOCATING: _allocating,
        ClusterStatus.DEPLOYING: _deploying,
        ClusterStatus.RUNNING: _settled,
        ClusterStatus.DEGRADED: _settled,
        ClusterStatus.DELETING: _deleting,
    }
)
