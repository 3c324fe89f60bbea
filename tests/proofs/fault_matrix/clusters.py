"""Trials of a Slurm cluster: one thing breaks while a job runs on two nodes, and its task ends all the same."""

from collections.abc import Sequence
from typing import Any

from orchestrator.core.failures import FailureCode
from tests.process.clusters.operator import SETTINGS
from tests.proofs.fault_matrix.cluster_acts import Harm, Working, during_job, half_sold_out, lost, nothing, unled
from tests.proofs.fault_matrix.infrastructure import ASKING, LEADERLESS, SILENT
from tests.proofs.fault_matrix.invariants import CLUSTER_NAMED_S, NAMED_S
from tests.proofs.fault_matrix.runner import Act, Case

SKEW_S = 3_600  # munge's credentials live for 300 s
DRY_S = 30  # SPAWNING_TIMEOUT_SEC where half a cluster is sold out; the deadline of the cluster is twice that
SLURM = ("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm")
FAKETIME = ("faketime", "faketime", "fix: .ci/debian faketime")
COMPILER = ("cc", "gcc", "fix: apt-get install gcc libc6-dev")
GONE_NODE = "MEMBER_(LOST|UNREACHED).* fix: "
HEALS = "named and repaired; the cluster is whole again, the task ends Complete"
REPLACED = "another pod replaces it; the task ends Complete"


async def ctld_killed(work: Working) -> None:
    """The controller's slurmctld dies."""
    await work.control(work.controller, "daemons/kill", {"names": ["slurmctld"]})


async def node_killed(work: Working) -> None:
    """All daemons of the other node die."""
    await work.control(work.member, "daemons/kill", {})


async def other_key(work: Working) -> None:
    """The other node's munge has another key."""
    await work.control(work.member, "munge-key", {})


def clock(seconds: int) -> Harm:
    """The other node's clock is so many seconds ahead."""

    async def harm(work: Working) -> None:
        await work.control(work.member, "clock", {"seconds": seconds})

    return harm


async def cut(work: Working) -> None:
    """The private network between the two nodes is cut."""
    await work.control(work.member, "fabric", {"from": [work.controller["pod"]]})


async def joined(work: Working) -> None:
    """… and is there again."""
    await work.control(work.member, "fabric", {"from": []})


def ssh(mode: str) -> Harm:
    """The other node's sshd changes its ways; standing connections are cut."""

    async def harm(work: Working) -> None:
        await work.control(work.member, "ssh", {"mode": mode, "cut": True})

    return harm


def _case(name: str, description: str, outcome: str, says: str, act: Act, **more: Any) -> Case:
    # Three nodes at most at a time, and one that ends; of each, what it reserves, and as much again.
    settings = {**SETTINGS, "MAX_HOURLY_COST_USD": "3.60", "DAILY_BUDGET_USD": "0.80", **more.pop("settings", {})}
    needs: Sequence[tuple[str, str, str]] = more.pop("needs", ())
    more = {"named_within_s": CLUSTER_NAMED_S, "quick": True, "limit_s": 180, **more}
    name = f"cluster_{name}"
    return Case(name, description, outcome, says, act, tasks=0, settings=settings, needs=(SLURM, *needs), **more)


def _harmed(name: str, description: str, code: str, harm: Harm, outcome: str = HEALS, **more: Any) -> Case:
    """What `cluster explain` says must have its fix."""
    says = f"{code}.* fix: "
    act = during_job(harm, says, mend=more.pop("mend", nothing), once=more.pop("once", False))
    return _case(name, description, outcome, says, act, **more)


def _lost(name: str, description: str, act: Act, outcome: str = REPLACED, says: str = GONE_NODE, **more: Any) -> Case:
    more = {"ends_as": (FailureCode.POD_MISSING,), **more}
    return _case(name, description, outcome, says, act, keeps_logs=False, **more)


CLUSTERS: tuple[Case, ...] = (
    _harmed("ctld_killed", "SIGKILL to the slurmctld of a cluster that runs a job", "CONTROLLER_DOWN", ctld_killed,
            "started again; the job runs on", once=True),
    _harmed("node_killed", "SIGKILL to all Slurm daemons of a node that runs a job", "NODE_DOWN", node_killed),
    _harmed("munge_key", "another munge key on a node that runs a job", "MUNGE_KEY_MISMATCH", other_key),
    _harmed("clock_skew", "the clock of a node that runs a job is an hour ahead", "CLOCK_SKEW", clock(SKEW_S),
            mend=clock(0), needs=(FAKETIME,)),
    _harmed("network_cut", "no network between two nodes that run a job", "FABRIC_CUT", cut, mend=joined,
            needs=(COMPILER,)),
    _harmed("ssh_lost", "the sshd of a node that runs a job is away", "MEMBER_UNREACHED", ssh("refused"),
            "nothing is done; the job runs on", mend=ssh("normal"), once=True),
    _lost("member_evicted", "the pod of a node that runs a job is gone", lost("worker", "vanish")),
    _lost("controller_evicted", "the pod of the controller is gone during a job", lost("controller", "vanish"),
          "another member becomes the controller; " + REPLACED),
    _lost("controller_freezes", "the pod of the controller stands still during a job", lost("controller", "freeze"),
          "another member becomes the controller; " + REPLACED, f"{SILENT}|{GONE_NODE}",
          ends_as=(FailureCode.MEMBER_LOST,)),
    _lost("lost_and_unled", "the pod of a node is gone, and the orchestrator is killed while it is replaced",
          lost("worker", "vanish", killed=True), may_end_as=ASKING),
    _case("orchestrator_killed", "SIGKILL to the orchestrator in each phase of a cluster",
          "a new process goes on; the job runs once", LEADERLESS, unled, may_end_as=ASKING, named_within_s=NAMED_S),
    _case("half_sold_out", "stock for one of two nodes until the deadline",
          "ALLOCATION_TIMEOUT, no pod is left; the next cluster runs the task", "NO_CAPACITY", half_sold_out,
          ends_as=(FailureCode.NO_CAPACITY,), settings={"SPAWNING_TIMEOUT_SEC": str(DRY_S)}),
)  # fmt: skip
