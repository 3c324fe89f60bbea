"""How many workers, and which come or go."""

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import Demand, EndedBringUp, Pause, Snapshot, Worker
from orchestrator.core.plan import ROWS_PER_TICK, plan
from orchestrator.core.states import Stage, State
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import (
    A40,
    L4,
    NOW,
    ago,
    brought_up,
    busy,
    idle,
    policy,
    pool,
    said,
    snapshot,
    spawning,
    terminating,
)


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
    assert made.decisions[0].target == target
    assert len(spawned(made)) == target


def test_kept_idle_comes_on_top_of_busy() -> None:
    """MACHINES_TO_KEEP_IDLE adds to the busy ones, whatever the queue says."""
    made = plan(snapshot(busy("gpu-1"), running=1), policy(pool={"keep_idle": 1}))
    assert made.decisions[0].target == 2
    assert len(spawned(made)) == 1


def test_spawning_counts_once() -> None:
    """Workers on their way are capacity: the next tick does not spawn them again."""
    assert not spawned(plan(snapshot(spawning("gpu-1"), spawning("gpu-2"), claimable=6), policy()))


def test_a_terminating_worker_is_no_capacity_and_its_tasks_are_no_demand() -> None:
    """A draining worker neither counts as capacity nor makes the fleet grow by the task it still holds."""
    leaving = terminating("gpu-1", tasks_running=1)
    assert not spawned(plan(snapshot(leaving, running=1), policy()))
    assert len(spawned(plan(snapshot(leaving, running=1, claimable=1), policy()))) == 1


def test_blocked_tasks_never_scale() -> None:
    """Tasks that wait for others or for their time are shown, and spawn nothing."""
    made = plan(snapshot(blocked={"dependencies": 500, "scheduled": 9}), policy())
    assert not made.actions
    assert made.decisions[0].inputs["blocked"] == {"dependencies": 500, "scheduled": 9}


def test_a_target_above_the_limit_is_reported() -> None:
    """The limit that held back a spawn is named."""
    made = plan(snapshot(claimable=300), policy())
    assert said(made) == ["96 workers blocked: The pool has all the workers that it may have: MAX_ACTIVE_GPUS=4."]


def test_rule_shows_its_arithmetic() -> None:
    """The decision can be checked by hand."""
    made = plan(snapshot(busy("gpu-1"), claimable=3, running=1), policy())
    assert made.decisions[0].rule == "min(max(ceil((3 ready + 1 running) / 3), 1 busy + 0 kept idle, 0 min), 4 max) = 2"


def test_worker_names_are_unique_and_repeatable() -> None:
    """The same snapshot names the same workers, each once, in the operators' form."""
    first, second = plan(snapshot(claimable=300), policy()), plan(snapshot(claimable=300), policy())
    names = [s.worker_id for s in spawned(first)]
    assert names == [s.worker_id for s in spawned(second)]
    assert len(set(names)) == 4
    assert all(n.startswith("gpu-20261121_120000-") and len(n) == 28 for n in names)


def test_pause_stops_spawns_only() -> None:
    """A paused fleet spawns nothing, says why, and still lets idle workers go."""
    pauses = {"*": Pause("stock-taking", None)}
    made = plan(snapshot(paused=pauses), policy(pool={"min_active": 3}))
    assert not spawned(made)
    assert said(made) == ["3 spawns blocked: Paused: stock-taking."]
    assert ended(plan(snapshot(idle("gpu-1", 700), paused=pauses), policy())) == ["gpu-1"]


def test_tasks_that_wait_for_a_limit_start_no_worker() -> None:
    """They are blocked, by name, and no demand."""
    made = plan(snapshot(blocked={"concurrency": 9}), policy())
    assert not spawned(made)
    assert said(made) == ["9 tasks blocked: They wait for a concurrency key or a limit of their type."]


def test_one_pool_is_paused_for_a_time() -> None:
    """Its waiting tasks are shown as paused and scale nothing; the loop looks again when the pause is over."""
    until = NOW + timedelta(minutes=5)
    seen = snapshot(blocked={"paused": 9}, paused={"default": Pause("stock-taking", until)})
    made = plan(seen, policy())
    assert said(made) == [f"9 tasks blocked: Paused: stock-taking. It ends at {until:%H:%M:%S}."]
    assert (made.decisions[0].target, made.decisions[0].retry_at) == (0, until)
    assert spawned(plan(snapshot(claimable=1, paused={"other": Pause("x", None)}), policy()))


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
def test_only_idle_workers_past_their_timeout_end(seen: Snapshot, gone: list[str]) -> None:
    """Idle timeout for the last warm one, the overcapacity timeout above what is needed, hysteresis after a spawn."""
    assert ended(plan(seen, policy())) == gone


def test_the_off_switch_keeps_no_worker_warm() -> None:
    """MAX_ACTIVE_GPUS=0 lets the last idle worker go after the overcapacity timeout."""
    assert ended(plan(snapshot(idle("gpu-1", 31)), policy(pool={"max_active": 0}))) == ["gpu-1"]


def test_the_newest_idle_worker_is_drained_first() -> None:
    """Of equal idlers the one with the least invested goes."""
    older, newer = idle("gpu-1", 40, created_at=ago(900)), idle("gpu-2", 40, created_at=ago(100))
    assert ended(plan(snapshot(older, newer, busy("gpu-3"), running=1, claimable=3), policy())) == ["gpu-2"]


def booted(boot_s: float, count: int = 5) -> tuple[EndedBringUp, ...]:
    return tuple(brought_up(600 + n, promoted=True, boot_s=boot_s) for n in range(count, 0, -1))


@pytest.mark.parametrize(
    ("worker", "boot_s", "cancelled"),
    [
        (spawning("gpu-1", created_at=ago(100)), 40, False),  # not before SPAWNING_GRACE_PERIOD_SEC
        (spawning("gpu-1", created_at=ago(200)), 300, False),  # 100 s are left of a boot that would cost 300 s again
        (spawning("gpu-1", created_at=ago(500)), 300, False),  # overdue: 250 s more are expected
        (spawning("gpu-1", created_at=ago(620)), 300, True),  # so overdue that a new boot is cheaper
        (spawning("gpu-1", created_at=ago(200)), 60, True),
        (spawning("gpu-1", created_at=ago(200)), None, False),  # no boot is known: the grace is taken for one
        (spawning("gpu-1", created_at=ago(370)), None, True),
        (spawning("gpu-1", Stage.INTENT, created_at=ago(200)), 300, True),  # nothing has been paid for yet
        (spawning("gpu-1", created_at=ago(620), metadata=WorkerMetadata(asked_for="operator")), 300, False),
    ],
)
def test_a_boot_without_work_is_cancelled_only_if_the_rest_costs_more_than_it_saves(
    worker: Worker, boot_s: float | None, cancelled: bool
) -> None:
    """The rest of a boot is compared with the whole boot that it saves when work comes back.

    The tick that cancels it does not continue it.
    """
    made = plan(snapshot(worker, ended=booted(boot_s) if boot_s else ()), policy())
    ends = [(a.worker_id, a.cause) for a in made.actions if isinstance(a, Terminate)]
    assert ends == ([("gpu-1", ExitCause.SCALE_DOWN)] if cancelled else [])
    assert not cancelled or len(made.actions) == 1


def test_the_boot_times_of_another_pool_do_not_count() -> None:
    """Its image may be ten times as large."""
    others = tuple(replace(one, pool="other") for one in booted(3_000, 40))
    seen = snapshot(spawning("gpu-1", created_at=ago(620)), ended=(*booted(300), *others))
    assert ended(plan(seen, policy())) == ["gpu-1"]


def test_a_lowered_limit_ends_workers_that_do_not_work_yet() -> None:
    """MAX_ACTIVE_GPUS shrinks: bring-ups beyond it end at once, idle workers after their time, busy ones never."""
    fleet = (busy("gpu-1"), busy("gpu-2"), spawning("gpu-3"), idle("gpu-4", 10))
    seen = snapshot(*fleet, running=2, claimable=9)
    assert ended(plan(seen, policy(pool={"max_active": 4}))) == []
    assert ended(plan(seen, policy(pool={"max_active": 3}))) == ["gpu-3"]
    later = snapshot(*fleet[:2], idle("gpu-4", 31), running=2, claimable=9)
    assert ended(plan(later, policy(pool={"max_active": 1}))) == ["gpu-4"]


def test_the_newest_bringup_beyond_the_limit_ends_first() -> None:
    """What has been starting longest is nearest to being useful."""
    seen = snapshot(spawning("gpu-1", created_at=ago(50)), spawning("gpu-2", created_at=ago(5)), claimable=9)
    assert ended(plan(seen, policy(pool={"max_active": 1}))) == ["gpu-2"]


@pytest.mark.parametrize(
    ("spawned_ago_s", "pool", "gone"),
    [(59, "default", []), (60, "default", ["gpu-1"]), (5, "other", ["gpu-1"])],
)
def test_hysteresis_ends_with_its_grace_and_holds_for_its_own_pool(
    spawned_ago_s: float, pool: str, gone: list[str]
) -> None:
    """SCALE_DOWN_GRACE_PERIOD_SEC counts from the pool's own last spawn, to the second."""
    seen = snapshot(idle("gpu-1", 40), busy("gpu-2"), running=1, last_spawn_at={pool: ago(spawned_ago_s)})
    assert ended(plan(seen, policy())) == gone


def test_hysteresis_does_not_delay_the_idle_timeout() -> None:
    """The delay prevents flapping, and an idle timeout is no flapping."""
    seen = snapshot(idle("gpu-1", 700), busy("gpu-2"), running=1, last_spawn_at={"default": ago(10)})
    assert ended(plan(seen, policy())) == ["gpu-1"]


def test_each_pool_serves_only_its_own_tasks() -> None:
    """Two pools scale side by side, each by its own numbers."""
    pools = (pool(), pool(name="training", tasks_per_gpu=1, max_active=2, offers=(L4,)))
    demand = (Demand("default", 3, 0, {}, None), Demand("training", 5, 0, {}, None))
    made = plan(replace(snapshot(), demand=demand), replace(policy(), pools=pools))
    assert [(s.pool, s.offer) for s in spawned(made)] == [("default", A40), ("training", L4), ("training", L4)]
    assert [(v.pool, v.target) for v in made.decisions] == [("default", 1), ("training", 2)]


def test_a_pool_that_is_not_configured_is_shown_and_its_idle_workers_end() -> None:
    """Its tasks wait and are visible; its workers finish and end."""
    workers = (idle("gpu-1", 31, pool="old"), busy("gpu-2", pool="old"))
    seen = replace(snapshot(*workers), demand=(Demand("old", 7, 1, {}, None),))
    made = plan(seen, policy())
    assert ended(made) == ["gpu-1"]
    assert said(made, pool=1) == ["7 tasks blocked: No pool 'old' is configured."]


def test_a_worker_that_an_operator_asked_for_comes_up_without_work() -> None:
    """It is not cancelled as surplus; once it is up and idle, it goes as any other."""
    asked = spawning("gpu-1", created_at=ago(800), metadata=WorkerMetadata(asked_for="operator"))
    assert ended(plan(snapshot(asked), policy())) == []


def test_a_worker_lost_this_tick_is_replaced_this_tick() -> None:
    """Lifecycle ends come first; scaling counts without them."""
    lost = busy("gpu-1", last_heartbeat=ago(90))
    made = plan(snapshot(lost, claimable=1), policy())
    assert ended(made) == ["gpu-1"]
    assert len(spawned(made)) == 1


def test_a_free_worker_stays_for_the_tasks_of_a_lost_worker() -> None:
    """It is queued again in this tick; without it the free one would go, and another would be rented for it."""
    lost, free = busy("gpu-1", last_heartbeat=ago(90)), idle("gpu-2", 700)
    made = plan(snapshot(lost, free, running=1), policy())
    assert ended(made) == ["gpu-1"]
    assert not spawned(made)
    healthy = plan(snapshot(idle("gpu-1", 10), free), policy())
    assert ended(healthy) == ["gpu-2"]


def test_planning_is_deterministic() -> None:
    """The same snapshot and policy give the same plan."""
    seen = snapshot(idle("gpu-2", 700), busy("gpu-1"), spawning("gpu-3"), claimable=40, running=1)
    assert plan(seen, policy()) == plan(seen, policy())
    assert seen.now == NOW
    assert seen.workers[0].state is State.ACTIVE


def test_a_large_fleet_ends_over_several_ticks() -> None:
    """A tick ends a part of it, so that it stays short; the next one goes on."""
    fleet = [idle(f"gpu-{number}", 900) for number in range(150)]
    made = plan(snapshot(*fleet), policy(pool={"max_active": 150}))
    assert len(ended(made)) == ROWS_PER_TICK
