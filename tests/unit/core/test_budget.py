"""What money lets a fleet do, with its arithmetic."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core import budget
from orchestrator.core.actions import Create, Plan, Spawn, Terminate, Wait
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import PodPrice, Snapshot, Spent
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.core.states import Stage, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import (
    A40,
    L4,
    ago,
    busy,
    idle,
    policy,
    pool,
    said,
    snapshot,
    spawning,
    terminating,
)

PRICES = {"NVIDIA A40|SECURE": 0.6, "NVIDIA L4|SECURE": 0.3}
WIND_DOWN_USD, BRING_UP_USD = 0.14, 0.15  # of an A40: 600 + 60 + 180 s, and 900 s


def wanting(*spent: float, workers: Any = (), **changes: Any) -> Snapshot:
    """A fleet that wants four workers and has spent so much today, committed so much, and costs so much an hour."""
    money = Spent(*(*spent, 0, 0, 0)[:3])
    fields: dict[str, Any] = {"claimable": 12, "spent": money, "prices": PRICES}
    return snapshot(*workers, **fields | changes)


def daily(usd: float, **changes: Any) -> Policy:
    return policy(daily_budget_usd=usd, **changes)


def spawned(made: Plan) -> list[Spawn]:
    return [a for a in made.actions if isinstance(a, Spawn)]


def ended(made: Plan) -> list[Terminate]:
    return [a for a in made.actions if isinstance(a, Terminate)]


def test_without_a_budget_prices_do_not_matter() -> None:
    """None is asked for, none is needed."""
    assert len(spawned(plan(wanting(999, 999, 999, prices={}), policy()))) == 4


@pytest.mark.parametrize(
    ("limit", "hourly", "count"), [(2.4, 0, 4), (2.39, 0, 3), (1.2, 0.6, 1), (0.5, 0, 0), (0, 0, 0)]
)
def test_the_hourly_limit_counts_what_is_spawned_in_this_tick(limit: float, hourly: float, count: int) -> None:
    """Each new worker adds its price to what runs."""
    made = plan(wanting(0, 0, hourly), policy(hourly_budget_usd=limit, pool={"offers": (A40,)}))
    assert len(spawned(made)) == count


def test_a_budget_that_limits_spawns_shows_its_arithmetic() -> None:
    """The sum can be checked by hand, for each budget."""
    made = plan(wanting(0, 0, 0.6), policy(hourly_budget_usd=1, pool={"offers": (A40,)}))
    assert said(made) == [
        "4 spawns blocked: The workers cost $0.60/h and A40 costs $0.60/h: more than MAX_HOURLY_COST_USD=1."
    ]
    made = plan(wanting(9.5, 0.25), daily(10, pool={"offers": (A40,)}))
    assert said(made)[-1] == (
        "4 spawns blocked: Spent today: $9.50 of $10.00. The running workers need $0.25 more. A40 needs $0.29."
    )


def test_the_budget_must_cover_the_bring_up_and_the_end_of_a_new_worker() -> None:
    """Otherwise it would be drained before it did anything; those spawned together share the room."""
    one = WIND_DOWN_USD + BRING_UP_USD
    for usd, count in ((one - 0.01, 0), (one + 0.001, 1), (one + WIND_DOWN_USD + 0.001, 2)):
        assert len(spawned(plan(wanting(), daily(usd, pool={"offers": (A40,)})))) == count


def test_a_cheaper_offer_is_taken_if_a_more_expensive_one_does_not_fit() -> None:
    """The operator's order, as far as the money goes."""
    made = plan(wanting(), policy(hourly_budget_usd=0.9))
    assert [s.offer for s in spawned(made)] == [A40, L4]


def test_several_gpus_cost_several_times_as_much() -> None:
    """A price is of one GPU."""
    assert not spawned(plan(wanting(), policy(hourly_budget_usd=1, pool={"gpu_count": 2, "offers": (A40,)})))


def test_an_unknown_price_does_not_count_as_zero() -> None:
    """With a budget set, nothing is rented before its price is known."""
    made = plan(wanting(prices={}), daily(10))
    assert not spawned(made)
    assert "price of A40 (SECURE) is not known" in said(made)[-1]


def price(usd: float, created: float = 30, ended: float | None = 10, *, too_dear: int = 1) -> PodPrice:
    """What an A40 cost, whose row was made and whose end began so many seconds ago."""
    return PodPrice(A40.key, usd, ago(created), None if ended is None else ago(ended), too_dear)


@pytest.mark.parametrize("budgets", [{"hourly_budget_usd": 1.0}, {"daily_budget_usd": 0.6}])
def test_the_actual_price_of_a_pod_counts_for_the_next_one(budgets: dict[str, float]) -> None:
    """Otherwise pods that cost more than the catalogue says would be rented and ended again without end."""
    only = policy(**budgets, pool={"offers": (A40,)})
    made = plan(wanting(pod_prices=(price(6.0),)), only)
    assert not spawned(made)
    assert "$6.00/h, and RunPod's catalogue says $0.60/h" in said(made)[-1]
    assert "costs $6.00/h" in said(made)[-1] or "needs $2.90" in said(made)[-1]
    other = policy(**budgets, pool={"offers": (A40, L4)})
    assert spawned(plan(wanting(pod_prices=(price(6.0),)), other))[0].offer == L4


@pytest.mark.parametrize(
    ("too_dear", "held_s"),
    [
        (0, budget.PRICE_SEEN_S),
        (1, budget.TOO_DEAR_S),
        (2, 2 * budget.TOO_DEAR_S),
        (99, budget.TOO_DEAR_MAX_S),
    ],
)
def test_a_price_counts_for_longer_each_time_it_was_too_high(too_dear: int, held_s: float) -> None:
    """One expensive host must not stop the fleet for ever; and the reason says until when."""
    only = policy(hourly_budget_usd=1.0, pool={"offers": (A40,)})
    made = plan(wanting(pod_prices=(price(6.0, held_s, held_s - 1, too_dear=too_dear),)), only)
    (reason,) = [one for one in made.decisions[0].blocked if one.kind is BlockedReason.DEAR_PODS]
    assert reason.until == ago(-1)
    assert spawned(plan(wanting(pod_prices=(price(6.0, held_s, held_s + 1, too_dear=too_dear),)), only))


def test_the_newest_price_of_an_offer_counts() -> None:
    """A cheap pod that lives does not hide what a later one cost, nor a dear one that a still later one was cheap."""
    only = policy(hourly_budget_usd=2.5, pool={"offers": (A40,)})
    cheap = busy("gpu-1", metadata=WorkerMetadata(offer=A40.key), price_usd_per_hour=0.59, created_at=ago(100))
    assert not spawned(plan(wanting(0, 0, 0.59, workers=(cheap,), pod_prices=(price(5.9),)), only))
    later = replace(cheap, created_at=ago(5))
    assert spawned(plan(wanting(0, 0, 0.59, workers=(later,), pod_prices=(price(5.9),)), only))
    dear = terminating("gpu-2", metadata=WorkerMetadata(offer=A40.key), price_usd_per_hour=5.9, created_at=ago(50))
    assert not spawned(plan(wanting(0, 0, 0.59, workers=(cheap, dear)), only))


def test_a_price_that_the_budget_has_room_for_stops_nothing() -> None:
    """A higher limit ends the pause at once, and a price below the catalogue's does not count."""
    rich = policy(hourly_budget_usd=7, pool={"offers": (A40,)})
    (one,) = spawned(plan(wanting(pod_prices=(price(6.0),)), rich))
    assert one.usd_per_hour == 6.0
    poor = policy(hourly_budget_usd=0.5, pool={"offers": (A40,)})
    made = plan(wanting(pod_prices=(price(0.1),)), poor)
    assert [one.kind for one in made.decisions[0].blocked if one.count] == [BlockedReason.HOURLY_BUDGET]


def test_no_two_spawns_of_an_offer_end_for_the_budget_in_a_row() -> None:
    """An hour of ticks, with one cheap pod and later ones that cost ten times the catalogue's price."""
    only = policy(hourly_budget_usd=2.5, pool={"offers": (A40,), "max_active": 2})
    cheap = busy("gpu-1", metadata=WorkerMetadata(offer=A40.key), price_usd_per_hour=0.59, created_at=ago(5000))
    paid: list[PodPrice] = []
    for second in range(0, 3600, 10):
        now = ago(-second)
        seen = replace(wanting(0, 0, 0.59, workers=(cheap,)), now=now, pod_prices=tuple(paid[-1:]))
        if spawned(plan(seen, only)):
            paid.append(PodPrice(A40.key, 5.9, now, now + timedelta(seconds=5), len(paid) + 1))
    assert len(paid) == 1


def test_the_price_of_a_live_pod_counts_and_a_lower_one_does_not() -> None:
    """The higher of the catalogue's price and the one last seen, of each GPU."""
    seen: dict[str, Any] = {"metadata": WorkerMetadata(offer=A40.key), "price_usd_per_hour": 3.0, "gpu_count": 2}
    room = budget.BudgetRoom(wanting(workers=(busy("gpu-1", **seen),)), daily(10))
    assert room.price(pool(gpu_count=1), A40) == 1.5
    room = budget.BudgetRoom(wanting(workers=(busy("gpu-1", **seen | {"price_usd_per_hour": 0.2}),)), daily(10))
    assert room.price(pool(gpu_count=1), A40) == 0.6


@pytest.mark.parametrize("prices", [(0.2, 1.5), (1.5, 0.2)])
def test_of_several_live_pods_the_most_expensive_one_counts(prices: tuple[float, float]) -> None:
    """The order of the rows does not matter: the next pod may be as expensive."""
    workers = tuple(
        busy(f"gpu-{n}", metadata=WorkerMetadata(offer=A40.key), price_usd_per_hour=usd, gpu_count=1)
        for n, usd in enumerate(prices)
    )
    room = budget.BudgetRoom(wanting(workers=workers), daily(10))
    assert room.price(pool(gpu_count=1), A40) == 1.5


def test_all_workers_end_when_the_daily_budget_is_used_up() -> None:
    """Spent and committed reach the budget: every worker drains, whatever its state, and none comes."""
    workers = (busy("gpu-1"), idle("gpu-2", 5), spawning("gpu-3"), terminating("gpu-4"))
    made = plan(wanting(9.4, 0.6, workers=workers), daily(10))
    assert {(a.worker_id, a.cause) for a in ended(made)} == {(f"gpu-{n}", ExitCause.BUDGET) for n in (1, 2, 3)}
    assert ended(made)[0].reason == "$9.40 spent today and $0.60 to end the workers reach DAILY_BUDGET_USD=10"
    assert not spawned(made)
    assert not ended(plan(wanting(9.39, 0.6, workers=workers), daily(10)))


def test_a_drained_worker_is_not_brought_up() -> None:
    """One action a worker."""
    made = plan(wanting(10, 0, workers=(spawning("gpu-1"),)), daily(10))
    assert [type(a) for a in made.actions] == [Terminate]


def test_a_lowered_hourly_limit_ends_the_least_useful_first() -> None:
    """Starting ones, then idle ones, then busy ones, the newest of each, until it fits; leaving ones count as gone."""
    workers = (
        busy("gpu-1", price_usd_per_hour=1),
        busy("gpu-2", price_usd_per_hour=1, created_at=ago(10)),
        idle("gpu-3", 5, price_usd_per_hour=1),
        spawning("gpu-4", price_usd_per_hour=1),
        terminating("gpu-5", price_usd_per_hour=1),
    )
    for limit, gone in ((4, []), (3, ["gpu-4"]), (1.5, ["gpu-4", "gpu-3", "gpu-2"])):
        made = plan(wanting(0, 0, 5, workers=workers), policy(hourly_budget_usd=limit))
        assert [a.worker_id for a in ended(made)] == gone


def test_an_operators_intent_waits_for_the_budget_and_says_so() -> None:
    """No create without its reservation; when its time is over the cause is the budget."""
    one = spawning("gpu-1", Stage.INTENT, waiting_on=WaitingOn.ORCHESTRATOR)
    (wait,) = plan(wanting(9.99, workers=(one,), claimable=1), daily(10)).actions
    assert isinstance(wait, Wait)
    assert wait.waiting_on is WaitingOn.BUDGET
    late = spawning("gpu-1", Stage.INTENT, waiting_on=WaitingOn.BUDGET, created_at=ago(901))
    (end,) = ended(plan(wanting(9.99, workers=(late,), claimable=1), daily(10)))
    assert (end.cause, end.code) == (ExitCause.BUDGET, FailureCode.INTENT_STALE)


def test_an_intent_with_a_reservation_may_create_its_pod() -> None:
    """Its own reservation does not count against it."""
    own = spawning(
        "gpu-1", Stage.INTENT, reserved_usd=WIND_DOWN_USD, reserved_usd_per_hour=0.6, price_usd_per_hour=None
    )
    seen = wanting(0, WIND_DOWN_USD, 0.6, workers=(own,), claimable=1)
    (create,) = plan(seen, policy(hourly_budget_usd=0.6, daily_budget_usd=0.3)).actions
    assert isinstance(create, Create)
    assert create.usd_per_hour == 0.6


def test_a_reservation_includes_the_cost_of_ending() -> None:
    """Draining, flushing, deleting and a tick's delay, at the worker's price."""
    fields = budget.reservation(0.6, daily(10))
    assert fields == {
        "reserved_usd": pytest.approx(WIND_DOWN_USD),
        "reserved_usd_per_hour": 0.6,
        "budget": {"hourly_usd": None, "daily_usd": 10, "useful_usd": pytest.approx(BRING_UP_USD)},
    }


def test_ready_workers_stay_while_the_budget_lasts() -> None:
    """A budget alone ends no worker."""
    assert not ended(plan(wanting(1, 0.2, 0.6, workers=(busy("gpu-1"),), running=1), daily(10)))
