"""Pools that share a budget."""

from dataclasses import replace

from orchestrator.core.actions import Spawn
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.model import Demand, Snapshot, Spent, Worker
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy, Pool
from tests.unit.core.build import ago, busy, policy, pool, snapshot

PRICES = {"NVIDIA A40|SECURE": 1.0, "NVIDIA L4|SECURE": 1.0}


def three(*pools: Pool) -> Policy:
    """Money for three dollars an hour, at one dollar a worker."""
    return replace(policy(hourly_budget_usd=3), pools=pools)


def wants(name: str, tasks: int, waited_s: float | None) -> Demand:
    return Demand(name, tasks, 0, {}, None if waited_s is None else ago(waited_s))


def seen(*demand: Demand, workers: tuple[Worker, ...] = ()) -> Snapshot:
    spent = Spent(0, 0, float(len(workers)))
    return replace(snapshot(*workers), demand=demand, prices=PRICES, spent=spent)


def spawns(observed: Snapshot, rules: Policy) -> list[str]:
    return sorted(a.pool for a in plan(observed, rules).actions if isinstance(a, Spawn))


def test_a_pool_below_its_minimum_comes_before_one_that_is_earlier_in_the_alphabet() -> None:
    """MIN_ACTIVE_GPUS is filled first, whatever waits elsewhere."""
    rules = three(pool(name="a"), pool(name="z", min_active=2))
    assert spawns(seen(wants("a", 900, 3600)), rules) == ["a", "z", "z"]


def test_pools_take_turns_and_the_longest_wait_has_the_first() -> None:
    """No pool takes all the money, and what is left over goes to the pool whose task waits longest."""
    rules = three(pool(name="a"), pool(name="z"))
    assert spawns(seen(wants("a", 900, 60), wants("z", 900, 600)), rules) == ["a", "z", "z"]
    assert spawns(seen(wants("a", 900, 600), wants("z", 900, 60)), rules) == ["a", "a", "z"]


def test_a_pool_without_a_worker_comes_before_one_that_has_some() -> None:
    """The money that a worker's end sets free goes to the pool that has nothing yet."""
    rules = three(pool(name="a"), pool(name="z"))
    workers = (busy("gpu-1", pool="a"), busy("gpu-2", pool="a"))
    assert spawns(seen(wants("a", 900, 3600), wants("z", 1, 5), workers=workers), rules) == ["z"]


def test_a_pool_that_may_not_spawn_reserves_no_budget() -> None:
    """A release that still has to prove itself takes one worker; the others go on."""
    rules = three(pool(name="a", image="new", min_active=3), pool(name="z"))
    assert spawns(seen(wants("z", 900, 60)), rules) == ["a", "z", "z"]


def test_the_pool_that_gets_less_than_it_wants_says_so() -> None:
    """With the arithmetic of the budget."""
    rules = three(pool(name="a"), pool(name="z"))
    decision = plan(seen(wants("a", 900, 60), wants("z", 900, 600)), rules).decisions[0]
    assert BlockedReason.HOURLY_BUDGET in {reason.kind for reason in decision.blocked}
