"""The learned rule in the daemon: the cases that it must master, and a recorded day that the replay decides alike."""

import random

import pytest

from orchestrator.core.economics.learned import LearnedRule
from orchestrator.core.economics.replay import RecordedTask, Terms, replay
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.stored import as_json
from orchestrator.loop.learning import Learning
from tests.proofs.simulator.virtual_fleet import FLEET, START, VirtualFleet

DAY_S = 86_400.0
SECOND_S = 1.0


def done(fleet: VirtualFleet) -> int:
    """How many tasks are complete."""
    return sum(task["status"] == "Complete" for task in fleet.db.tasks.values())


async def test_a_cold_queue_gets_a_worker_that_ends_after_one_cold_start() -> None:
    """A boot and the waiting for it, because nothing is known of gaps."""
    fleet = VirtualFleet(60.0, max_active=5)
    fleet.submit([(10.0, 20.0)])
    await fleet.run(1_000.0)
    assert fleet.broken == []
    assert fleet.starts == [(10.0, "start 1: tasks wait, and no worker is there")]
    [(at_s, why)] = fleet.ends
    assert (round(at_s), why) == (210, "idle for 120 s; level 1 is kept for 120 s")


async def test_a_burst_is_served_within_the_limit_and_the_workers_go() -> None:
    """Sixty tasks at once, three times."""
    fleet = VirtualFleet(60.0, max_active=6)
    fleet.submit([(at, 30.0) for burst in range(3) for at in [100.0 + 2_000 * burst] * 60])
    await fleet.run(8_000.0)
    assert fleet.broken == []
    assert done(fleet) == 180
    assert len(fleet.starts) == len(fleet.ends)
    assert any("the last one saves" in why for _, why in fleet.starts)


async def test_one_task_a_day_pays_one_boot_and_no_idle_day() -> None:
    """The worker ends long before the next task."""
    fleet = VirtualFleet(120.0, max_active=5)
    fleet.submit([(600.0 + DAY_S * day, 60.0) for day in range(5)])
    await fleet.run(5 * DAY_S)
    assert fleet.broken == []
    assert (done(fleet), len(fleet.starts), len(fleet.ends)) == (5, 5, 5)
    assert fleet.ends[-1][0] - fleet.starts[-1][0] <= 120 + 60 + 240 + 30


async def test_ten_thousand_tasks_at_once_start_what_is_allowed() -> None:
    """In one tick, and no more afterwards."""
    fleet = VirtualFleet(60.0, max_active=20)
    fleet.submit([(10.0, 40.0)] * 10_000)
    await fleet.run(140.0)
    assert fleet.broken == []
    assert [at for at, _ in fleet.starts] == [10.0] * 20
    assert done(fleet) == 20


async def test_boots_that_fail_are_tried_again_until_one_succeeds() -> None:
    """The breaker and its canaries decide how many; all tasks run in the end."""
    fleet = VirtualFleet(60.0, max_active=4, boots_fail=lambda number: number in {1, 2, 5})
    fleet.submit([(10.0, 20.0)] * 30)
    await fleet.run(3_000.0)
    assert fleet.broken == []
    assert done(fleet) == 30


async def test_statistics_that_are_lost_are_learned_again() -> None:
    """From the runs alone, they are the same."""
    fleet = VirtualFleet(60.0, max_active=5)
    dice = random.Random(4)
    fleet.submit([(dice.uniform(0, 5_000), dice.uniform(5, 60)) for _ in range(60)])
    await fleet.run(6_000.0)
    kept = fleet.learning
    fleet.db.statistics.clear()
    again = Learning(fleet.store, fleet.policy)
    half = await fleet.store.snapshot()
    known = [(await one.read(half))["default"].known for one in (kept, again)]
    assert known[0].runs == 60
    assert as_json(known[0]) == as_json(known[1])


@pytest.mark.parametrize(("seed", "boot_s", "wait_price"), [(1, 60.0, 1.0), (2, 120.0, 1.0), (3, 60.0, 5.0)])
async def test_the_replay_of_a_recorded_day_starts_the_same_workers(
    seed: int, boot_s: float, wait_price: float
) -> None:
    """As many, and within a tick of the same times: what the replay shows is what the daemon does."""
    fleet, dice = VirtualFleet(boot_s, max_active=8, wait_price=wait_price), random.Random(seed)
    await fleet.store.learn(1, {"default": (Statistics(boot_s), START.timestamp())})  # both expect the same boot
    tasks, at_s = [], 0.0
    while at_s < DAY_S / 4:
        at_s += dice.expovariate(1 / dice.choice((15.0, 60.0, 900.0)))
        tasks.append((round(at_s, 3), round(dice.uniform(5.0, 90.0), 3)))
    fleet.submit(tasks)
    await fleet.run(DAY_S / 2)
    assert fleet.broken == []
    assert done(fleet) == len(tasks)
    recorded = (await fleet.store.histories({"default": 0.0}))["default"].runs
    begin = START.timestamp()
    trace = sorted(RecordedTask(run.arrived - begin, run.ended - run.started) for run, _ in recorded)
    assert len(trace) == len(tasks)

    def rule(_: str) -> LearnedRule:
        return LearnedRule(Statistics(boot_s), wait_price)

    replayed = replay(trace, rule, Terms(boot_s, most=8))
    asked = [worker.asked for worker in replayed.workers]
    assert len(asked) == len(fleet.starts) > 5
    assert asked == pytest.approx([at for at, _ in fleet.starts], abs=2 * SECOND_S)


def test_the_fleet_of_these_tests_is_that_of_the_policy() -> None:
    """The names agree."""
    assert VirtualFleet(60.0).policy.fleet_id == FLEET
