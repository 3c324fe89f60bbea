"""The size of a cluster pool, and what is left alone because it is a node of a cluster."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import plan as planning
from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.lifecycle import plan as lifecycle
from orchestrator.core.model import EVERY_POOL, ClusterNeed, ScaleLimit, Snapshot, Spent, Worker
from orchestrator.core.policy import Policy, PoolKind
from orchestrator.core.provider import Offer
from orchestrator.core.states import State
from tests.unit.core import build
from tests.unit.core.build import ago

H100 = Offer("NVIDIA H100", "EU-RO-1", "SECURE")
RUNNING = ClusterStatus.RUNNING


def policy(**changes: Any) -> Policy:
    pool = {"name": "slurm", "kind": PoolKind.CLUSTER, "offers": (H100,), "max_active": 8}
    return build.policy(pool=pool | changes.pop("pool", {}), **changes)


def node(name: str, **changes: Any) -> Worker:
    changes = {"state": State.IDLE, "state_since": ago(9_000)} | changes
    return build.worker(name, pool="slurm", cluster="train", **changes)


def seen(
    *workers: Worker,
    nodes: int = 2,
    status: ClusterStatus = RUNNING,
    members: dict[str, str] | None = None,
    **more: Any,
) -> Snapshot:
    known = {name: MemberStatus(one) for name, one in (members or {}).items()}
    need = ClusterNeed("train", "slurm", status, nodes, known)
    return build.snapshot(*workers, clusters=(need,), **more)


def spawned(made: Plan) -> list[Spawn]:
    return [one for one in made.actions if isinstance(one, Spawn)]


def ended(made: Plan) -> dict[str, Terminate]:
    return {one.worker_id: one for one in made.actions if isinstance(one, Terminate)}


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (ClusterStatus.REQUESTED, 0),
        (ClusterStatus.ALLOCATING, 3),
        (ClusterStatus.DEPLOYING, 3),
        (ClusterStatus.RUNNING, 3),
        (ClusterStatus.DEGRADED, 3),
        (ClusterStatus.DELETING, 0),
    ],
)
def test_a_cluster_pool_has_the_nodes_that_its_cluster_wants_and_not_what_the_queue_wants(
    status: ClusterStatus, wanted: int
) -> None:
    made = planning.plan(seen(nodes=3, status=status, claimable=50), policy())
    assert made.decisions[0].target == wanted
    assert [one.cluster for one in spawned(made)] == ["train"] * wanted


def test_without_a_cluster_the_pool_is_empty_whatever_waits() -> None:
    made = planning.plan(build.snapshot(node("gpu-1"), claimable=50), policy())
    assert not spawned(made)
    assert ended(made)["gpu-1"].reason == "its cluster train has ended"
    assert made.decisions[0].rule == "no cluster of this pool is live: 0"


def test_the_money_for_all_missing_nodes_must_be_there_before_the_first_is_recorded() -> None:
    prices = {"NVIDIA H100|SECURE": 3.0}
    rich, poor = policy(hourly_budget_usd=12.0), policy(hourly_budget_usd=11.0)
    there = seen(nodes=4, status=ClusterStatus.ALLOCATING, prices=prices)
    assert len(spawned(planning.plan(there, rich))) == 4
    made = planning.plan(there, poor)
    assert not spawned(made)
    (said,) = build.said(made)
    assert said.startswith("4 spawns blocked: Its 4 missing nodes start together or not at all")
    assert "MAX_HOURLY_COST_USD=11" in said


def test_the_day_must_have_room_for_all_of_them_too() -> None:
    there = seen(nodes=4, status=ClusterStatus.ALLOCATING, prices={"NVIDIA H100|SECURE": 3.0}, spent=Spent(9, 0, 0))
    assert len(spawned(planning.plan(there, policy(daily_budget_usd=100)))) == 4
    made = planning.plan(there, policy(daily_budget_usd=12))
    assert not spawned(made)
    assert "Spent today: $9.00 of $12.00." in build.said(made)[0]


def test_more_nodes_than_the_pool_may_have_are_said() -> None:
    made = planning.plan(seen(nodes=9), policy())
    assert made.decisions[0].target == 8
    assert "1 worker blocked: The pool has all the workers that it may have: MAX_ACTIVE_GPUS=8." in build.said(made)


def test_a_cluster_that_begins_gets_no_node_while_a_limit_is_below_its_nodes() -> None:
    """A part of them would cost money until the deadline, and the cluster would fail all the same."""
    for name, most in (("slurm", 3), (EVERY_POOL, 3), (EVERY_POOL, 1)):
        limits = {name: ScaleLimit(name, most, "a demo elsewhere", ago(-600))}
        made = planning.plan(seen(nodes=4, status=ClusterStatus.ALLOCATING, scale_limits=limits), policy())
        assert (spawned(made), made.decisions[0].target) == ([], 0)
        assert build.said(made)[0].startswith(f"4 workers blocked: At most {most} in ")
        begun = [build.spawning(f"gpu-{n}", pool="slurm", cluster="train") for n in range(2)]
        made = planning.plan(seen(*begun, nodes=4, status=ClusterStatus.ALLOCATING, scale_limits=limits), policy())
        assert (spawned(made), ended(made)) == ([], {})
        assert len(spawned(planning.plan(seen(nodes=4, scale_limits=limits), policy()))) == most
    limits = {EVERY_POOL: ScaleLimit(EVERY_POOL, 4, "a demo elsewhere", ago(-600))}
    made = planning.plan(seen(nodes=4, status=ClusterStatus.ALLOCATING, scale_limits=limits), policy())
    assert len(spawned(made)) == 4


def test_a_cluster_begins_only_with_room_for_all_nodes_in_the_limit_that_it_shares() -> None:
    """Another pool is served first, because its tasks have waited for longer."""
    rules = policy()
    queue = replace(build.policy().pools[0], name="queue", min_active=1)
    rules = replace(rules, pools=(*rules.pools, queue))
    limits = {EVERY_POOL: ScaleLimit(EVERY_POOL, 4, "a demo elsewhere", ago(-600))}
    made = planning.plan(seen(nodes=4, status=ClusterStatus.ALLOCATING, scale_limits=limits), rules)
    assert [one.pool for one in spawned(made)] == ["queue"]
    assert "4 spawns blocked: At most 4 in the whole fleet: a demo elsewhere" in build.said(made)[0]


def test_a_member_never_ends_because_it_is_idle_or_beyond_the_wanted_nodes() -> None:
    """The cluster drains it first."""
    nodes = [node(f"gpu-{n}") for n in range(4)]
    members = {one.id: "ready" for one in nodes}
    assert not ended(planning.plan(seen(*nodes, nodes=1, members=members), policy()))
    assert not ended(planning.plan(seen(*nodes, status=ClusterStatus.DELETING, members=members), policy()))


def test_a_removed_or_failed_member_ends_and_the_failed_one_without_finishing_its_tasks() -> None:
    members = {"gpu-1": "ready", "gpu-2": "removed", "gpu-3": "failed"}
    made = planning.plan(seen(node("gpu-1"), node("gpu-2"), node("gpu-3"), members=members), policy())
    assert {name: (one.cause, one.code) for name, one in ended(made).items()} == {
        "gpu-2": (ExitCause.SCALE_DOWN, None),
        "gpu-3": (ExitCause.HEARTBEAT_LOST, FailureCode.MEMBER_LOST),
    }
    assert len(spawned(made)) == 1  # one of the two wanted nodes is left


def test_a_draining_node_is_replaced_before_it_is_gone_if_its_place_is_wanted() -> None:
    members = {"gpu-1": "ready", "gpu-2": "draining"}
    made = planning.plan(seen(node("gpu-1"), node("gpu-2"), nodes=2, members=members), policy())
    assert len(spawned(made)) == 1
    assert not ended(made)
    assert not spawned(planning.plan(seen(node("gpu-1"), node("gpu-2"), nodes=1, members=members), policy()))


def test_workers_that_never_joined_end_beyond_the_wanted_nodes_the_ones_that_boot_first() -> None:
    boots = build.spawning("gpu-3", pool="slurm", cluster="train")
    made = planning.plan(seen(node("gpu-1"), node("gpu-2"), boots, nodes=2, members={"gpu-1": "ready"}), policy())
    assert list(ended(made)) == ["gpu-3"]


def test_a_worker_of_another_cluster_ends() -> None:
    other = replace(node("gpu-9"), cluster="earlier")
    made = planning.plan(seen(node("gpu-1"), other, nodes=1, members={"gpu-1": "ready"}), policy())
    assert list(ended(made)) == ["gpu-9"]


def test_a_worker_with_a_running_action_is_not_ended_yet() -> None:
    made = planning.plan(seen(node("gpu-1"), nodes=0, in_flight=frozenset({"gpu-1"})), policy())
    assert not ended(made)


@pytest.mark.parametrize("tasks_running", [0, 1])
def test_a_node_does_not_count_as_silent_or_stuck_or_not_claiming(tasks_running: int) -> None:
    quiet = node(
        "gpu-1", last_heartbeat=ago(500), tasks_running=tasks_running, progress_at=ago(9_000),
        state=State.ACTIVE if tasks_running else State.IDLE,
    )  # fmt: skip
    demand = replace(build.snapshot(claimable=9).demand[0], pool="slurm", oldest_claimable_at=ago(9_000))
    there = seen(quiet, members={"gpu-1": "ready"}, nodes=1, demand=(demand,), claim_seen_at={"gpu-1": ago(9_000)})
    assert not [one for one in lifecycle(there, policy()) if isinstance(one, Terminate)]
    alone = replace(there, workers=(replace(quiet, cluster=None),))
    assert [one for one in lifecycle(alone, policy()) if isinstance(one, Terminate)]


def test_a_lost_pod_of_a_node_still_ends_its_worker() -> None:
    there = seen(node("gpu-1", last_heartbeat=ago(500)), members={"gpu-1": "ready"}, nodes=1, pods=())
    there = replace(there, absent={"pod-gpu-1": build.absent(20)})
    (end,) = ended(planning.plan(there, policy())).values()
    assert end.code is FailureCode.POD_MISSING


def test_a_cluster_pool_changes_nothing_for_a_queue_pool() -> None:
    """The same plan as without it, whatever the cluster wants."""
    queue = build.pool()
    alone = replace(policy(), pools=(queue,))
    both = replace(policy(), pools=(queue, policy().pools[0]))
    workers = (build.busy("gpu-a"), build.idle("gpu-b", 700), build.idle("gpu-c", 50))
    there = build.snapshot(*workers, claimable=20, running=1)
    before = planning.plan(there, alone)
    need = ClusterNeed("train", "slurm", RUNNING, 3, {})
    after = planning.plan(replace(there, clusters=(need,)), both)
    mine = [one for one in after.actions if getattr(one, "pool", "default") == "default"]
    assert mine == list(before.actions)
    assert after.decisions[0] == before.decisions[0]


def test_many_failed_nodes_are_not_replaced_before_they_end() -> None:
    """One tick writes a bounded number of rows: the ends come first, so the pool never has more than its limit."""
    nodes = [node(f"gpu-{n:02}") for n in range(49)]
    members = {one.id: "failed" if index < 31 else "ready" for index, one in enumerate(nodes)}
    made = planning.plan(seen(*nodes, nodes=47, members=members), policy(pool={"max_active": 49}))
    assert len(ended(made)) > 0
    assert len(nodes) - len(ended(made)) + len(spawned(made)) <= 49
