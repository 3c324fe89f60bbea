"""What a cluster waits for: who must act, until when, what happens then, and the fix. Pure: from one row of the report.

`core/clusters/diagnoses.py` says what is wrong with its members.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.cluster_states import LIVE_MEMBER, ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.diagnoses import diagnose
from orchestrator.core.clusters.rows import ClusterRow, MemberRow, MemberWorker
from orchestrator.core.meanings import NOBODY, OPERATOR, ORCHESTRATOR, PROVIDER
from orchestrator.core.plurals import counted
from orchestrator.core.states import LIVE, READY
from orchestrator.diagnostics import causes

ENDED = frozenset({ClusterStatus.DELETED, ClusterStatus.FAILED})
SCALING = "python -m orchestrator explain scaling"
INTERNAL = frozenset({"nonce"})  # of a worker's launch: of no use to a person
REMEMBERED = 5  # members that ended whose reasons are shown


@dataclass(frozen=True, slots=True)
class ClusterStanding:
    """Where a cluster is, and why."""

    who: str  # must act: orchestrator, provider, operator or nobody
    what: str  # it waits for; of an ended one, why it ended
    until: datetime | None
    then: str  # what happens next by itself
    fix: str
    code: str | None  # a failure code


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """Something that is wrong with a cluster, from one observation."""

    code: str
    worker_id: str | None  # the member; None: the whole cluster
    cause: str
    fix: str
    evidence: str


def live_members(row: ClusterRow) -> tuple[MemberRow, ...]:
    """Return the members that are neither removed nor failed, in the order of their index."""
    return tuple(sorted((one for one in row.members if one.status in LIVE_MEMBER), key=lambda one: one.index_no))


def ended_members(row: ClusterRow) -> tuple[MemberRow, ...]:
    """Return the newest members that were removed or failed."""
    ended = sorted((one for one in row.members if one.status not in LIVE_MEMBER), key=lambda one: one.status_since)
    return tuple(ended[-REMEMBERED:])


def ready_nodes(row: ClusterRow) -> int:
    """Return how many members are ready."""
    return sum(one.status is MemberStatus.READY for one in row.members)


def usd_per_hour(row: ClusterRow) -> float:
    """Return the price of the workers that live now; one without a known price counts as nothing."""
    workers = (*(one.worker for one in live_members(row)), *row.unjoined)
    return sum(one.price_usd_per_hour or 0 for one in workers if one is not None and one.status in LIVE)


def slurm_state(one: MemberRow) -> str:
    """Return what the last probe said: `idle`, `ctld up, idle`; a dash if it is unknown."""
    node, control = (_text(one.adapter_detail.get(name)) for name in ("slurmd_state", "slurmctld_state"))
    shown = [f"ctld {control}"] if control and one.role is MemberRole.CONTROLLER else []
    return ", ".join([*shown, *([node] if node else [])]) or "–"


def member_error(one: MemberRow) -> str | None:
    """Return what is wrong with a member, as the leader recorded it."""
    if one.status is MemberStatus.FAILED:
        return one.reason or _text(one.adapter_detail.get("error"))
    return _text(one.adapter_detail.get("error"))


def standing(row: ClusterRow) -> ClusterStanding:
    """Return what a cluster waits for."""
    if row.status in ENDED:
        return _ended(row)
    made = _STANDINGS[row.status](row)
    what = row.waiting_for or made.what
    return ClusterStanding(made.who, what, row.deadline_at, made.then, made.fix, row.failure_code)


def _requested(row: ClusterRow) -> ClusterStanding:
    if row.min_nodes or row.demand.tasks:
        return _made(ORCHESTRATOR, "the leader", "its next step rents the nodes", "python -m orchestrator health")
    then = "a task that is ready to run brings its nodes back; without tasks it costs nothing"
    return _made(NOBODY, f"tasks of pool {row.pool}", then, f"python -m orchestrator cluster submit {row.id} --help")


def _allocating(row: ClusterRow) -> ClusterStanding:
    promoted = sum(_is_promoted(one) for one in (*(m.worker for m in live_members(row)), *row.unjoined))
    then = "if a node is missing at the deadline, the cluster fails and every worker ends: all or nothing"
    return _made(PROVIDER, f"workers: {promoted} of {row.nodes} are promoted", then, SCALING)


def _deploying(row: ClusterRow) -> ClusterStanding:
    ready = ready_nodes(row)
    what = f"Slurm on the nodes: {ready} of {row.nodes} are ready"
    if ready >= row.nodes:
        what = "the smoke job"
    then = "after the smoke job it is running; at the deadline it fails, and every worker ends"
    return _made(ORCHESTRATOR, what, then, f"python -m orchestrator cluster members {row.id}")


def _running(row: ClusterRow) -> ClusterStanding:
    if row.demand.tasks:
        then = "the controller runs one after another with sbatch"
        what = f"its tasks: {row.demand.tasks} wait or run, on {counted(row.demand.nodes, 'node')} in all"
    else:
        what = f"tasks of pool {row.pool}"
        then = "it keeps its nodes" if row.min_nodes else "without tasks it releases its nodes"
    return _made(NOBODY, what, then, f"python -m orchestrator tasks list --pool {row.pool}")


def _degraded(row: ClusterRow) -> ClusterStanding:
    what = row.reason or f"{ready_nodes(row)} of {row.nodes} nodes are ready"
    then = "a lost node is replaced; the cluster is running again after its smoke job"
    return _made(ORCHESTRATOR, what, then, f"python -m orchestrator cluster members {row.id}")


def _deleting(row: ClusterRow) -> ClusterStanding:
    left = len(live_members(row)) + len(row.unjoined)
    then = "its workers end, and RunPod confirms that their pods are gone"
    return _made(ORCHESTRATOR, f"the end of {counted(left, 'node')}", then, "python -m orchestrator list")


def _ended(row: ClusterRow) -> ClusterStanding:
    cause = causes.of(row.failure_code) if row.failure_code else None
    what = row.reason or (cause.means if cause else "no reason is recorded")
    if row.status is ClusterStatus.DELETED:
        return ClusterStanding(NOBODY, what, None, "nothing: it has ended", "nothing to do", row.failure_code)
    again = f"python -m orchestrator cluster create NAME --pool {row.pool} --nodes {row.nodes}"
    fix = cause.fix if cause else f"python -m orchestrator cluster operations {row.id}; then {again}"
    return ClusterStanding(OPERATOR, what, None, "nothing: its workers end, its tasks wait", fix, row.failure_code)


_STANDINGS = {
    ClusterStatus.REQUESTED: _requested,
    ClusterStatus.ALLOCATING: _allocating,
    ClusterStatus.DEPLOYING: _deploying,
    ClusterStatus.RUNNING: _running,
    ClusterStatus.DEGRADED: _degraded,
    ClusterStatus.DELETING: _deleting,
}


def problems(row: ClusterRow, now: datetime) -> tuple[ClusterProblem, ...]:
    """Return what is wrong: the diagnoses of core/clusters/diagnoses.py, and why the last members failed."""
    found = [ClusterProblem(one.code, one.worker_id, one.cause, one.fix, one.evidence) for one in diagnose(row, now)]
    return (*found, *_unreplaced(row))


def _unreplaced(row: ClusterRow) -> tuple[ClusterProblem, ...]:
    """Return why the members failed whose places are still empty: a failure ends when another node is ready."""
    empty = 0 if row.status in ENDED else row.nodes - ready_nodes(row)
    failed = [one for one in ended_members(row) if one.status is MemberStatus.FAILED]
    return tuple(one for one in map(_failure, failed[-empty:] if empty > 0 else ()) if one)


def _failure(member: MemberRow) -> ClusterProblem | None:
    code = _text(member.adapter_detail.get("failure_code"))
    cause = causes.of(code) if code else None
    if cause is None:
        return None
    about = cause.about(worker=member.worker_id)
    return ClusterProblem(about.code, member.worker_id, about.means, about.fix, member.reason or "")


def cluster_document(row: ClusterRow) -> dict[str, Any]:
    """Return a cluster without its lists, as JSON has it."""
    lists = ("members", "unjoined", "operations", "node_tasks", "events")
    own = {name: value for name, value in asdict(row).items() if name not in lists}
    counts = {"ready_nodes": ready_nodes(row), "usd_per_hour": usd_per_hour(row)}
    return {**own, **counts, "waits": asdict(standing(row))}


def member_document(one: MemberRow) -> dict[str, Any]:
    """Return a member as JSON has it, without the keys of its launch."""
    return {**asdict(one), "worker": worker_document(one.worker)}


def worker_document(one: MemberWorker | None) -> dict[str, Any] | None:
    """Return a worker as JSON has it, without the keys of its launch."""
    return None if one is None else {name: value for name, value in asdict(one).items() if name not in INTERNAL}


def detail(one: MemberRow) -> Mapping[str, Any]:
    """Return `adapter_detail` with the addresses that the row has in columns of its own."""
    own = {"host": one.ssh_host, "port": one.ssh_port, "fabric_addr": one.fabric_addr, "hostname": one.hostname}
    return {**one.adapter_detail, **own, "node_name": one.node_name}


def _made(who: str, what: str, then: str, fix: str) -> ClusterStanding:
    return ClusterStanding(who, what, None, then, fix, None)


def _is_promoted(one: MemberWorker | None) -> bool:
    return one is not None and one.status in READY


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
