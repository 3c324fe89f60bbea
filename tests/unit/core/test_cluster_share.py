"""Pools that share a budget with clusters: a cluster rents all its nodes, or it begins with none."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from orchestrator.core import plan as planning
from orchestrator.core.actions import Spawn
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.model import ClusterNeed, Demand, Snapshot, Spent
from orchestrator.core.policy import Policy, PoolKind
from orchestrator.core.provider import Offer
from tests.unit.core import build

H100 = Offer("NVIDIA H100", "EU-RO-1", "SECURE")
PRICES = {"NVIDIA H100|SECURE": 2.0, "NVIDIA A40|SECURE": 2.0}
FOUR = 8.0  # dollars per hour of four workers


def policy(hourly_usd: float, *more: str) -> Policy:
    """A fleet with the cluster pools `a` and `b`, and ordinary pools before them."""
    cluster = {"kind": PoolKind.CLUSTER, "offers": (H100,), "max_active": 8}
    pools = [build.pool(name=name, offers=(build.A40,), max_active=8, tasks_per_gpu=1) for name in more]
    pools += [build.pool(name=name, **cluster) for name in ("a", "b")]
    return replace(build.policy(hourly_budget_usd=hourly_usd), pools=tuple(pools))


def seen(*workers: Any, nodes: dict[str, int], **more: Any) -> Snapshot:
    needs = tuple(ClusterNeed(f"c-{pool}", pool, ClusterStatus.ALLOCATING, n, {}) for pool, n in nodes.items())
    more.setdefault("spent", Spent(0, 0, 2.0 * len(workers)))
    return build.snapshot(*workers, clusters=needs, prices=PRICES, **more)


def spawns(snapshot: Snapshot, rules: Policy) -> dict[str, int]:
    """How many workers of each pool start."""
    made = [one.pool for one in planning.plan(snapshot, rules).actions if isinstance(one, Spawn)]
    return {name: made.count(name) for name in dict.fromkeys(made)}


def test_two_clusters_do_not_divide_a_budget_that_pays_for_one_of_them() -> None:
    assert spawns(seen(nodes={"a": 4, "b": 4}), policy(FOUR)) == {"a": 4}


def test_the_cluster_that_cannot_be_paid_after_another_one_says_so() -> None:
    decisions = planning.plan(seen(nodes={"a": 4, "b": 4}), policy(FOUR)).decisions
    (reason,) = next(one for one in decisions if one.pool == "b").blocked
    assert (reason.kind, reason.detail["nodes"]) == (BlockedReason.CLUSTER_BUDGET, 4)


def test_two_clusters_start_together_if_the_budget_pays_for_both() -> None:
    assert spawns(seen(nodes={"a": 4, "b": 4}), policy(2 * FOUR)) == {"a": 4, "b": 4}


def test_another_pool_does_not_take_the_money_of_a_node_while_a_cluster_is_served() -> None:
    tasks = Demand("plain", 4, 0, {}, build.ago(1))
    assert spawns(seen(nodes={"a": 3}, demand=(tasks,)), policy(FOUR, "plain")) == {"plain": 1, "a": 3}


def test_the_money_of_nodes_that_start_later_is_kept_for_a_cluster_that_has_begun() -> None:
    canary = build.spawning("gpu-1", pool="a", cluster="c-a", price_usd_per_hour=2.0, reserved_usd_per_hour=2.0)
    assert "b" not in spawns(seen(canary, nodes={"a": 4, "b": 4}), policy(FOUR + 2.0))


def test_a_cluster_that_has_begun_comes_before_one_whose_tasks_wait_longer() -> None:
    first = build.spawning("gpu-1", pool="b", cluster="c-b", price_usd_per_hour=2.0, reserved_usd_per_hour=2.0)
    waiting = Demand("a", 1, 0, {}, build.NOW - timedelta(hours=9))
    assert spawns(seen(first, nodes={"a": 4, "b": 4}, demand=(waiting,)), policy(FOUR + 2.0)) == {"b": 3}
