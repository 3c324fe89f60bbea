"""An operator's limit for a time: at most so many workers in a pool, or in the whole fleet."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.blocked import Blocked, BlockedReason, line
from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.model import EVERY_POOL, ClusterNeed, Demand, ScaleLimit, Snapshot, Worker
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy, PoolKind
from tests.unit.core.build import NOW, ago, busy, cooling, idle, policy, pool, snapshot, spawning

UNTIL = NOW + timedelta(hours=2)


def limit(most: int, name: str = EVERY_POOL) -> dict[str, ScaleLimit]:
    return {name: ScaleLimit(name, most, "a demo elsewhere", UNTIL)}


def spawns(made: Plan) -> list[str]:
    return sorted(action.pool for action in made.actions if isinstance(action, Spawn))


def ends(made: Plan) -> list[str]:
    return sorted(action.worker_id for action in made.actions if isinstance(action, Terminate))


def limited(made: Plan, place: int = 0) -> list[Blocked]:
    return [one for one in made.decisions[place].blocked if one.kind is BlockedReason.SCALE_LIMIT]


def two(**changes: int) -> Policy:
    """Two pools with room for nine workers each."""
    return replace(policy(), pools=(pool(name="a", max_active=9, **changes), pool(name="z", max_active=9, **changes)))


def wants(*workers: Worker, a: int, z: int, **changes: Any) -> Snapshot:
    demand = (Demand("a", a, 0, {}, ago(60)), Demand("z", z, 0, {}, ago(60)))
    return replace(snapshot(*workers), demand=demand, **changes)


def test_a_limit_lowers_the_target_of_its_pool_and_is_named() -> None:
    """What it holds back has a reason of its own, with the count, the operator's words and the end."""
    made = plan(snapshot(claimable=300, scale_limits=limit(2, "default")), policy(pool={"max_active": 5}))
    assert spawns(made) == ["default"] * 2
    (reason,) = limited(made)
    assert (reason.count, reason.until) == (3, UNTIL)
    assert line(reason).startswith("3 workers blocked: At most 2 in pool default: a demo elsewhere. It ends at ")
    assert "5 max, 2 by an operator in pool default) = 2" in made.decisions[0].rule


def test_what_the_pool_may_not_have_anyway_is_not_blamed_on_the_limit() -> None:
    """Of 100 wanted workers, MAX_ACTIVE_GPUS blocks 95 and the limit 3."""
    made = plan(snapshot(claimable=300, scale_limits=limit(2)), policy(pool={"max_active": 5}))
    wanted = int(str(made.decisions[0].inputs["wanted"]))
    counts = {one.kind: one.count for one in made.decisions[0].blocked}
    assert counts[BlockedReason.MAX_ACTIVE] == wanted - 5
    assert counts[BlockedReason.SCALE_LIMIT] == 3


def test_a_limit_never_allows_more_than_the_pool_may_have() -> None:
    """It only lowers."""
    rules = policy(pool={"max_active": 2})
    made = plan(snapshot(claimable=300, scale_limits=limit(50, "default") | limit(60)), rules)
    assert made == plan(snapshot(claimable=300), rules)


def test_busy_workers_beyond_a_limit_stay_idle_and_starting_ones_end() -> None:
    """Idle ones end as above any target, after the overcapacity timeout."""
    seen = snapshot(
        busy("gpu-1"), busy("gpu-2"), idle("gpu-3", 31), spawning("gpu-4"), running=2, claimable=300,
        scale_limits=limit(1, "default"),
    )  # fmt: skip
    assert ends(plan(seen, policy(pool={"max_active": 9}))) == ["gpu-3", "gpu-4"]
    assert ends(plan(replace(seen, scale_limits={}), policy(pool={"max_active": 9}))) == []


def test_the_pools_share_the_limit_of_the_whole_fleet() -> None:
    """They take turns, and what is there counts."""
    seen = wants(busy("gpu-1", pool="a"), a=300, z=300, scale_limits=limit(4))
    made = plan(seen, two())
    assert spawns(made) == ["a", "z", "z"]
    assert all(limited(made, place) for place in (0, 1))


def test_a_pool_whose_offers_are_sold_out_leaves_the_room_to_the_others() -> None:
    """The limit counts workers, not wishes."""
    rules = two()
    offer = rules.pools[0].offers[0]
    sold_out = replace(rules.pools[0], offers=(offer,))
    rules = replace(rules, pools=(sold_out, replace(rules.pools[1], offers=(replace(offer, gpu_type="NVIDIA L4"),))))
    seen = wants(a=300, z=300, scale_limits=limit(3), offers={offer.key: cooling(offer, 60)})
    assert spawns(plan(seen, rules)) == ["z"] * 3


def test_idle_workers_of_one_pool_fill_the_limit_until_they_end() -> None:
    """So the number of workers never rises above the limit."""
    workers = [idle(f"gpu-{n}", 5, pool="a") for n in range(3)]
    made = plan(wants(*workers, a=0, z=300, scale_limits=limit(3)), two())
    assert spawns(made) == []
    (reason,) = limited(made, 1)
    assert (reason.unit, reason.detail["where"], reason.detail["limit"]) == ("worker", "the whole fleet", 3)


def test_a_limit_below_what_is_there_ends_starting_workers_before_idle_ones_in_all_pools() -> None:
    """One pool is not emptied for the other."""
    workers = (
        busy("gpu-1", pool="a"), idle("gpu-2", 5, pool="a"), spawning("gpu-3", pool="a"),
        busy("gpu-4", pool="z"), spawning("gpu-5", pool="z"),
    )  # fmt: skip
    seen = wants(*workers, a=300, z=300, scale_limits=limit(3))
    assert ends(plan(seen, two())) == ["gpu-3", "gpu-5"]


def test_workers_of_a_pool_that_is_not_configured_count_too() -> None:
    """They cost the same."""
    seen = wants(busy("gpu-1", pool="gone"), busy("gpu-2", pool="gone"), a=300, z=0, scale_limits=limit(3))
    assert spawns(plan(seen, two())) == ["a"]


def test_a_cluster_keeps_its_nodes_and_gets_no_more() -> None:
    """Its pool has the same limit."""
    rules = policy(pool={"kind": PoolKind.CLUSTER, "max_active": 9})
    need = ClusterNeed("train", "default", ClusterStatus.RUNNING, 5, {"gpu-1": MemberStatus.READY})
    node = idle("gpu-1", 9_000, cluster="train")
    made = plan(snapshot(node, clusters=(need,), scale_limits=limit(2)), rules)
    assert (spawns(made), ends(made), made.decisions[0].target) == (["default"], [], 2)
    assert limited(made)[0].count == 3
    assert ends(plan(snapshot(node, clusters=(need,), scale_limits=limit(1)), rules)) == []
