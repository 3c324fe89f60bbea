"""Each fault of a running cluster is named with its cause, and healed."""

from collections.abc import Awaitable, Callable

import pytest

from testbed.stack import Stack
from tests.process.clusters.fleet import Cluster

pytestmark = [pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm"), pytest.mark.full]
SKEW_S = 3_600
NAMED_S = 90.0  # within which a cause is named
HEALED_S = 240.0
Fault = Callable[[Stack, str, str], Awaitable[None]]  # of the controller's pod and a worker's


async def cut(stack: Stack, controller: str, worker: str) -> None:
    """Cut the private network between the two; it heals when the cause is named."""
    await stack.control("POST", f"pods/{worker}/fabric", {"from": [controller]})


async def skew(stack: Stack, controller: str, worker: str) -> None:
    """Move a worker's clock."""
    del controller
    await stack.control("POST", f"pods/{worker}/clock", {"seconds": SKEW_S})


async def wrong_key(stack: Stack, controller: str, worker: str) -> None:
    """Another munge key on a worker."""
    del controller
    await stack.control("POST", f"pods/{worker}/munge-key", {})


async def controller_killed(stack: Stack, controller: str, worker: str) -> None:
    """The controller's slurmctld dies."""
    del worker
    await stack.control("POST", f"pods/{controller}/daemons/kill", {"names": ["slurmctld"]})


async def node_killed(stack: Stack, controller: str, worker: str) -> None:
    """All daemons of a worker die."""
    del controller
    await stack.control("POST", f"pods/{worker}/daemons/kill", {})


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(cut, "FABRIC_CUT", marks=pytest.mark.needs_program("cc", "gcc")),
        pytest.param(skew, "CLOCK_SKEW", marks=pytest.mark.needs_program("faketime", "faketime")),
        (wrong_key, "MUNGE_KEY_MISMATCH"),
        (controller_killed, "CONTROLLER_DOWN"),
        (node_killed, "NODE_DOWN"),
    ],
)
async def test_a_fault_is_named_and_the_cluster_recovers(
    stack: Stack, cluster: Cluster, fault: Fault, code: str
) -> None:
    """`cluster explain` has the cause within its bound; afterwards every node is ready again."""
    await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    (controller,), (worker,) = await cluster.pods("controller"), await cluster.pods("worker")
    await fault(stack, controller, worker)
    await cluster.names(code, timeout_s=NAMED_S)
    if fault is cut:
        await stack.control("POST", f"pods/{worker}/fabric", {"from": []})
    if fault is skew:
        await stack.control("POST", f"pods/{worker}/clock", {"seconds": 0})
    await cluster.until(
        """select 1 from cluster_apps c where id = %s and status = 'running' and nodes =
             (select count(*) from cluster_members m where m.cluster = c.id and m.status = 'ready')""",
        cluster.id, timeout_s=HEALED_S,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["vanish", "freeze"])
async def test_a_lost_controller_is_followed_by_another_member(stack: Stack, cluster: Cluster, how: str) -> None:
    """Evicted, or no longer reachable over SSH nor by heartbeats: the cluster runs again on other pods."""
    await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    (controller,) = await cluster.pods("controller")
    await stack.control("POST", f"pods/{controller}/kill", {"how": how})
    await cluster.reaches("degraded", timeout_s=NAMED_S)
    await cluster.reaches("running", timeout_s=HEALED_S)
    assert controller not in [*await cluster.pods("controller"), *await cluster.pods("worker")]


async def test_a_member_without_ssh_is_lost_only_if_slurmctld_does_not_know_it_either(
    stack: Stack, cluster: Cluster
) -> None:
    """SSH alone is no reason to replace a node that works: the cluster goes on running."""
    await stack.start_orchestrator()
    await cluster.create(2)
    await cluster.reaches("running")
    (worker,) = await cluster.pods("worker")
    await stack.control("POST", f"pods/{worker}/ssh", {"mode": "refused", "cut": True})
    await cluster.until("select 1 from cluster_members where cluster = %s and adapter_detail ->> 'error' is not null",
                        cluster.id, timeout_s=NAMED_S)  # fmt: skip
    await stack.control("POST", f"pods/{worker}/ssh", {"mode": "normal"})
    await cluster.until("select 1 from cluster_members where cluster = %s and adapter_detail ->> 'error' is null",
                        cluster.id)  # fmt: skip
    assert await cluster.pods("worker") == [worker]
