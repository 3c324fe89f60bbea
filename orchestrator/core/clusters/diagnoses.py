"""What is wrong with a cluster: each diagnosis follows from one observation, and has a cause and a fix.

The observations are in the rows (`adapter_detail` has those of the last probe), so every command and the API reach the
same diagnoses as the leader. An unknown observation is no diagnosis. In a fix, `<cluster>` and `<worker>` stand for
ids.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core.cluster_states import LIVE_MEMBER, ClusterStatus, MemberRole, MemberStatus, NodeTaskStatus
from orchestrator.core.clusters.readings import DaemonState, is_silent
from orchestrator.core.clusters.rows import ClusterRow, MemberRow
from orchestrator.core.meanings import NOBODY, OPERATOR, ORCHESTRATOR, PROVIDER, Explained, Meaning

SKEW_S = 30.0  # munge refuses credentials of a clock that is minutes off; tokens and signed URLs fail earlier
MAX_SKEW_S = 1e10  # 300 years: a larger value was written by hand
MOMENT_CHARS = 40
URL_CHARS = 200
STARVED_S = 60.0  # an agent takes a node task with its next heartbeat
RECONCILE = "python -m orchestrator cluster reconcile <cluster> --worker <worker>"
RESTARTED = "python -m orchestrator terminate <worker>"  # an agent keeps the URL that it was started with
REPLACE = "for another node: python -m orchestrator cluster drain <cluster> <worker>"
RECONCILED = "its configuration and key are written again; after ten minutes it is replaced"


class Diagnosis(Explained):
    """What is wrong."""

    row: Meaning

    # fmt: off
    NO_APP_CONTROLLER = "NO_APP_CONTROLLER", Meaning(
        "No slurmctld runs for the cluster: no process id and no start time are known.",
        ORCHESTRATOR, "a member becomes the controller, and slurmctld is started on it", RECONCILE)
    CONTROLLER_DOWN = "CONTROLLER_DOWN", Meaning(
        "The controller's slurmctld does not answer.",
        ORCHESTRATOR, "it is started again; after ten minutes another member becomes the controller", RECONCILE)
    NODE_DOWN = "NODE_DOWN", Meaning(
        "A node's slurmd does not run, or slurmctld does not hear it.",
        ORCHESTRATOR, "slurmd is started again; after ten minutes the node is replaced", RECONCILE)
    TRANSPORT_HOSTNAME = "TRANSPORT_HOSTNAME", Meaning(
        "The SSH address in the member's row is the name that the pod gives itself, which nothing resolves.",
        ORCHESTRATOR, "the address in the worker's row is used, and written over it", RECONCILE)
    AGENT_API_UNREACHABLE = "AGENT_API_UNREACHABLE", Meaning(
        "The pod does not reach the address to which its agent sends heartbeats.",
        OPERATOR, "its Slurm jobs continue; the controller claims no task until the address is reached",
        "make the URL of the evidence reachable from pods; if WORKER_API_URL has another one by now: " + RESTARTED)
    AGENT_CRED_EXPIRED = "AGENT_CRED_EXPIRED", Meaning(
        "The token of the pod's agent has expired.",
        OPERATOR, "the agent ends itself after DEADMAN_TIMEOUT_SEC; its worker is replaced",
        "compare the pod's clock with ours (clock_skew_s); " + REPLACE)
    TOKEN_INVALID = "TOKEN_INVALID", Meaning(
        "The API refuses the agent's token (401): the database accepts another one from this worker.",
        OPERATOR, "the agent ends itself after DEADMAN_TIMEOUT_SEC; its worker is replaced",
        "see that all replicas have the same WORKER_JWT_SECRET; " + REPLACE)
    NODE_TASK_STARVED = "NODE_TASK_STARVED", Meaning(
        "A node task waits for the agent, which sends no heartbeat.",
        OPERATOR, "the task expires at its deadline",
        "once its heartbeats arrive: python -m orchestrator cluster bootstrap-ssh <cluster> --worker <worker>")
    MUNGE_KEY_MISMATCH = "MUNGE_KEY_MISMATCH", Meaning(
        "The munge key on the pod is not the cluster's key, so Slurm refuses its messages.",
        ORCHESTRATOR, RECONCILED, RECONCILE)
    CLOCK_SKEW = "CLOCK_SKEW", Meaning(
        "The pod's clock differs from ours by more than 30 s, so munge and tokens may be refused.",
        PROVIDER, "if munge fails because of it, the node is replaced after ten minutes", REPLACE)
    FABRIC_CUT = "FABRIC_CUT", Meaning(
        "A node does not reach the slurmd of another one over the private network.",
        PROVIDER, "no smoke job is run while it lasts: a cluster that is deploying fails at its deadline", REPLACE)
    MEMBER_UNREACHED = "MEMBER_UNREACHED", Meaning(
        "SSH does not reach the node's pod, on which Slurm may still run.",
        PROVIDER, "if slurmctld calls the node down as well, it is replaced after a minute",
        "python -m orchestrator explain <worker>; " + REPLACE)
    SLURM_MISSING = "SLURM_MISSING", Meaning(
        "The pod has no Slurm.",
        OPERATOR, "the cluster fails, unless the pool has install_slurm = true",
        "set install_slurm = true for the pool in POOLS_FILE, or RUNPOD_WORKER_IMAGE to an image with Slurm and munge")
    TASK_TOO_LARGE = "TASK_TOO_LARGE", Meaning(
        "A task that a worker has claimed asks for more nodes than the cluster may have since then.",
        OPERATOR, "its job runs on; if it has not begun, it waits for nodes, and fails after half an hour",
        "python -m orchestrator cluster scale <cluster> --max-nodes N; or cancel the task")
    NODES_MISSING = "NODES_MISSING", Meaning(
        "Wanted nodes are not there yet.",
        NOBODY, "their pods are started; python -m orchestrator explain scaling says what they wait for",
        "python -m orchestrator explain scaling")
    # fmt: on


@dataclass(frozen=True, slots=True)
class ClusterDiagnosis:
    """One diagnosis of one cluster."""

    code: Diagnosis
    cluster: str
    worker_id: str | None  # None: it is about the whole cluster
    evidence: str

    @property
    def cause(self) -> str:
        """One sentence."""
        return str(self.code.row.means)

    @property
    def fix(self) -> str:
        """A command or a setting, with the ids in it."""
        text = str(self.code.row.fix).replace("<cluster>", self.cluster)
        return text.replace("<worker>", self.worker_id) if self.worker_id else text.replace(" --worker <worker>", "")


def diagnose(row: ClusterRow, now: datetime) -> tuple[ClusterDiagnosis, ...]:
    """Return what is wrong, the most general first. At most one diagnosis of a kind for a member."""
    if row.status in (ClusterStatus.REQUESTED, ClusterStatus.DELETED):
        return ()
    live = [member for member in row.members if member.status in LIVE_MEMBER]
    found = [ClusterDiagnosis(code, row.id, None, evidence) for code, evidence in _of_cluster(row, live)]
    silent = {member.node_name for member in live if _is_silent(member)}
    for member in live:
        own = (*_of_member(member, silent), *_of_tasks(row, member, now))
        found += [ClusterDiagnosis(code, row.id, member.worker_id, evidence) for code, evidence in own]
    if row.status is ClusterStatus.FAILED and row.failure_code == Diagnosis.SLURM_MISSING:
        found.append(ClusterDiagnosis(Diagnosis.SLURM_MISSING, row.id, None, row.reason or ""))
    return tuple(found)


Found = Iterator[tuple[Diagnosis, str]]


def _of_cluster(row: ClusterRow, live: list[MemberRow]) -> Found:
    controller = next((member for member in live if member.role is MemberRole.CONTROLLER), None)
    deployed = row.status in (ClusterStatus.DEPLOYING, ClusterStatus.RUNNING, ClusterStatus.DEGRADED)
    if deployed and controller is None:
        yield Diagnosis.NO_APP_CONTROLLER, f"none of {len(live)} members is the controller"
    if deployed and controller is not None and not _has_process(controller.adapter_detail):
        yield Diagnosis.NO_APP_CONTROLLER, f"{controller.node_name}: no slurmctld_pid and no slurmctld_started_at"
    missing = row.nodes - len(live)
    if row.status in (ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, ClusterStatus.DEGRADED) and missing > 0:
        yield Diagnosis.NODES_MISSING, f"{len(live)} of {row.nodes}; {len(row.unjoined)} workers are starting"
    if row.demand.largest > row.max_nodes:
        yield Diagnosis.TASK_TOO_LARGE, f"{row.demand.largest} nodes; max_nodes is {row.max_nodes}"


def _has_process(detail: Mapping[str, Any]) -> bool:
    return detail.get("slurmctld_pid") is not None or detail.get("slurmctld_started_at") is not None


def _is_silent(member: MemberRow) -> bool:
    """Whether the member's slurmd does not run, or slurmctld does not hear it."""
    state = member.adapter_detail.get("slurmd_state")
    return isinstance(state, str) and state != DaemonState.UP and is_silent(state)


def _of_member(member: MemberRow, silent: set[str]) -> Found:
    """`silent`: names of nodes without a slurmd, which no other node can reach."""
    detail, name = member.adapter_detail, member.node_name
    if member.ssh_host is not None and member.ssh_host == member.hostname:
        yield Diagnosis.TRANSPORT_HOSTNAME, f"{name}: ssh_host {member.ssh_host} is its hostname"
    if member.role is MemberRole.CONTROLLER and detail.get("slurmctld_state") == DaemonState.DOWN:
        yield Diagnosis.CONTROLLER_DOWN, f"{name}: slurmctld_state=down"
    if member.status in (MemberStatus.READY, MemberStatus.RECONCILING) and _is_silent(member):
        yield Diagnosis.NODE_DOWN, f"{name}: slurmd_state={detail['slurmd_state']}"
    if since := detail.get("unreached_since"):
        yield Diagnosis.MEMBER_UNREACHED, f"{name}: no SSH since {str(since)[:MOMENT_CHARS]}"
    if detail.get("slurm_installed") is False:
        yield Diagnosis.SLURM_MISSING, f"{name}: no slurmctld, slurmd or munged"
    if detail.get("munge_matches") is False:
        yield Diagnosis.MUNGE_KEY_MISMATCH, f"{name}: another fingerprint than the cluster's key"
    skew_s = detail.get("clock_skew_s")
    if isinstance(skew_s, int | float) and SKEW_S < abs(skew_s) < MAX_SKEW_S:
        yield Diagnosis.CLOCK_SKEW, f"{name}: {skew_s:+.0f} s"
    if cut := [name for name in map(str, _listed(detail, "cut_peers")) if name not in silent]:
        yield Diagnosis.FABRIC_CUT, f"{member.node_name} does not reach {', '.join(cut)}"
    if detail.get("api_reachable") is False:
        url, why = (str(detail.get(one) or "")[:URL_CHARS] for one in ("api_url", "api_error"))
        yield Diagnosis.AGENT_API_UNREACHABLE, f"{name}: {url or 'its URL'} from the pod: {why or 'no answer'}"
    codes = _listed(detail, "agent_codes")
    if codes and codes[-1] == "token_expired":
        yield Diagnosis.AGENT_CRED_EXPIRED, f"{name}: its log ends with token_expired; its clock is {skew_s or 0} s off"
    if codes and codes[-1] == "token_invalid":
        yield Diagnosis.TOKEN_INVALID, f"{name}: its log ends with token_invalid"


def _listed(detail: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of the details; empty for anything else that a user may have written there."""
    value = detail.get(name)
    return value if isinstance(value, list) else []


def _of_tasks(row: ClusterRow, member: MemberRow, now: datetime) -> Found:
    waiting = [t for t in row.node_tasks if t.worker_id == member.worker_id and t.status is NodeTaskStatus.QUEUED]
    if not waiting or member.worker is None:
        return
    oldest = min(waiting, key=lambda task: task.created_at)
    waits_s, heard_at = (now - oldest.created_at).total_seconds(), member.worker.last_heartbeat
    silent_s = None if heard_at is None else (now - heard_at).total_seconds()
    if waits_s >= STARVED_S and (silent_s is None or silent_s >= STARVED_S):
        heard = "never" if silent_s is None else f"{silent_s:.0f} s ago"
        yield Diagnosis.NODE_TASK_STARVED, f"node task {oldest.id} waits for {waits_s:.0f} s; last heartbeat {heard}"
