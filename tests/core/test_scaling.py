"""How many workers, and which come or go."""

from dataclasses import replace

import pytest

from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.states import ExitCause, State
from tests.core.build import A40, L4, NOW, ago, busy, cooling, idle, policy, snapshot, spawning, terminating


def spawned(made: Plan) -> list[Spawn]:
    return [a for a in made.actions if isinstance(a, Spawn)]


def ended(made: Plan) -> list[str]:
    return [a.worker_id for a in made.actions if isinstance(a, Terminate)]


@pytest.mark.parametrize(
    ("claimable", "running", "changes", "target"),
    [
        (0, 0, {}, 0),
        (1, 0, {}, 1),  # one task on an empty fleet is enough
        (3, 0, {}, 1),
        (4, 0, {}, 2),
        (2, 2, {}, 2),  # running tasks are demand
        (1000, 0, {}, 4),
        (0, 0, {"min_active": 2}, 2),
        (1000, 0, {"max_active": 0}, 0),  # the off switch
        (5, 0, {"tasks_per_gpu": 1, "max_active": 50}, 5),
        (0, 0, {"keep_idle": 2}, 2),
    ],
)
def test_target_follows_the_formula(claimable: int, running: int, changes: dict[str, int], target: int) -> None:
    """Target = clamp(max(ceil(demand / threshold), busy + kept idle, min), 0, max), and an empty fleet spawns it."""
    made = plan(snapshot(claimable=claimable, running=running), policy(pool=changes))
    assert made.verdicts[0].target == target
    assert len(spawned(made)) == target


def test_kept_idle_comes_on_top_of_busy() -> None:
    """MACHINES_TO_KEEP_IDLE adds to the busy ones, whatever the queue says."""
    made = plan(snapshot(busy("gpu-1"), running=1), policy(pool={"keep_idle": 1}))
    assert made.verdicts[0].target == 2
    assert len(spawned(made)) == 1


def test_spawning_counts_once() -> None:
    """Workers on their way are capacity: the next tick does not spawn them again."""
    assert not spawned(plan(snapshot(spawning("gpu-1"), spawning("gpu-2"), claimable=6), policy()))


def test_terminating_is_no_capacity_and_what_it_finishes_is_no_demand() -> None:
    """A draining worker neither counts as capacity nor makes the fleet grow by the task it still holds."""
    leaving = terminating("gpu-1", tasks_running=1)
    assert not spawned(plan(snapshot(leaving, running=1), policy()))
    assert len(spawned(plan(snapshot(leaving, running=1, claimable=1), policy()))) == 1


def test_blocked_tasks_never_scale() -> None:
    """Tasks that wait for others or for their time are shown, and spawn nothing."""
    made = plan(snapshot(blocked={"dependencies": 500, "scheduled": 9}), policy())
    assert not made.actions
    assert made.verdicts[0].inputs["blocked"] == {"dependencies": 500, "scheduled": 9}


def test_more_wanted_than_allowed_is_said() -> None:
    """The limit that held back a spawn is named."""
    made = plan(snapshot(claimable=300), policy())
    assert made.verdicts[0].blocked == ("96 more wanted, MAX_ACTIVE_GPUS=4",)


def test_rule_shows_its_arithmetic() -> None:
    """The decision can be checked by hand."""
    made = plan(snapshot(busy("gpu-1"), claimable=3, running=1), policy())
    assert (
        made.verdicts[0].rule == "min(max(ceil((3 claimable + 1 running) / 3), 1 busy + 0 kept idle, 0 min), 4 max) = 2"
    )


def test_worker_names_are_unique_and_repeatable() -> None:
    """The same snapshot names the same workers, each once, in the operators' form."""
    first, second = plan(snapshot(claimable=300), policy()), plan(snapshot(claimable=300), policy())
    names = [s.worker_id for s in spawned(first)]
    assert names == [s.worker_id for s in spawned(second)]
    assert len(set(names)) == 4
    assert all(n.startswith("gpu-20261121_120000-") and len(n) == 28 for n in names)


def test_offers_are_taken_in_order_and_refused_ones_passed_over() -> None:
    """The operator's first choice wins unless it is cooling down."""
    assert spawned(plan(snapshot(claimable=1), policy()))[0].offer == A40
    made = plan(snapshot(claimable=1, offers={A40.key: cooling(A40, 20)}), policy())
    assert spawned(made)[0].offer == L4


def test_a_refused_offer_is_probed_with_one_create() -> None:
    """After a cool-down one create tries the market, however many workers are wanted."""
    dry = {A40.key: cooling(A40, -1), L4.key: cooling(L4, -1)}
    made = plan(snapshot(claimable=300, offers=dry), policy())
    assert [s.offer for s in spawned(made)] == [A40, L4]
    assert any("every offer was refused lately" in b for b in made.verdicts[0].blocked)


def test_no_spawn_while_every_offer_cools() -> None:
    """A dry market is waited out, and the decision says until when."""
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    made = plan(snapshot(claimable=1, offers=dry), policy())
    assert not made.actions
    assert made.verdicts[0].blocked == ("1 spawn(s): every offer was refused lately, next try 12:00:20",)


def test_pause_stops_spawns_only() -> None:
    """A paused fleet spawns nothing, says why, and still lets idle workers go."""
    made = plan(snapshot(claimable=9, paused="stock-taking"), policy())
    assert not spawned(made)
    assert made.verdicts[0].blocked == ("3 spawn(s): paused, stock-taking",)
    assert ended(plan(snapshot(idle("gpu-1", 700), paused="x"), policy())) == ["gpu-1"]


@pytest.mark.parametrize(
    ("seen", "gone"),
    [
        (snapshot(idle("gpu-1", 599)), []),
        (snapshot(idle("gpu-1", 601)), ["gpu-1"]),
        (snapshot(idle("gpu-1", 40), idle("gpu-2", 40)), ["gpu-1"]),  # one stays warm until the idle timeout
        (snapshot(idle("gpu-1", 40), busy("gpu-2"), running=1), ["gpu-1"]),
        (snapshot(idle("gpu-1", 20), busy("gpu-2"), running=1), []),
        (snapshot(idle("gpu-1", 40), claimable=1), []),  # never below the target
        (snapshot(busy("gpu-1"), busy("gpu-2"), running=2), []),  # a busy worker is never scaled down
        (snapshot(idle("gpu-1", 40), busy("gpu-2"), running=1, last_spawn_at={"default": ago(10)}), []),
    ],
)
def test_only_idle_workers_past_their_time_go(seen: Snapshot, gone: list[str]) -> None:
    """Idle timeout for the last warm one, the overcapacity timeout above what is needed, hysteresis after a spawn."""
    assert ended(plan(seen, policy())) == gone


def test_off_switch_keeps_nothing_warm() -> None:
    """MAX_ACTIVE_GPUS=0 lets the last idle worker go after the overcapacity timeout."""
    assert ended(plan(snapshot(idle("gpu-1", 31)), policy(pool={"max_active": 0}))) == ["gpu-1"]


def test_newest_idle_goes_first() -> None:
    """Of equal idlers the one with the least invested goes."""
    older, newer = idle("gpu-1", 40, created_at=ago(900)), idle("gpu-2", 40, created_at=ago(100))
    assert ended(plan(snapshot(older, newer, busy("gpu-3"), running=1, claimable=3), policy())) == ["gpu-2"]


def test_spawning_is_cancelled_only_after_its_grace() -> None:
    """When the work has gone, a climb is given up, but not before SPAWNING_GRACE_PERIOD_SEC."""
    young, old = spawning("gpu-1", created_at=ago(100)), spawning("gpu-2", created_at=ago(200))
    made = plan(snapshot(young, old), policy())
    assert [(a.worker_id, a.cause) for a in made.actions if isinstance(a, Terminate)] == [
        ("gpu-2", ExitCause.SCALE_DOWN)
    ]


def test_a_worker_lost_this_tick_is_replaced_this_tick() -> None:
    """Lifecycle ends come first; scaling counts without them."""
    lost = busy("gpu-1", last_heartbeat=ago(90))
    made = plan(snapshot(lost, claimable=1), policy())
    assert ended(made) == ["gpu-1"]
    assert len(spawned(made)) == 1


def test_nothing_that_needs_the_provider_happens_without_its_list() -> None:
    """No list of pods means unknown, not empty: no spawn, no end, only the rescue of tasks."""
    seen = replace(snapshot(busy("gpu-1", last_heartbeat=ago(900)), claimable=50, expired_leases=1), pods=None)
    assert [type(a).__name__ for a in plan(seen, policy()).actions] == ["Rescue"]


def test_planning_is_deterministic() -> None:
    """The same snapshot and policy give the same plan."""
    seen = snapshot(idle("gpu-2", 700), busy("gpu-1"), spawning("gpu-3"), claimable=40, running=1)
    assert plan(seen, policy()) == plan(seen, policy())
    assert seen.now == NOW
    assert seen.workers[0].state is State.ACTIVE
