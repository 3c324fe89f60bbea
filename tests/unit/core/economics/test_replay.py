"""The replay of tasks in virtual time."""

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.economics.outcome import gpu_s_by_day, outcome
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.replay import RecordedTask, Replayed, Terms
from tests.unit.core.economics.traces import POLICIES, TERMS, TRACES, poisson, replayed

LEARNED, FIXED = ScalingPolicy.LEARNED, ScalingPolicy.FIXED
TRIES = settings(max_examples=30, deadline=None)


def usd_by_day(done: Replayed, usd_per_hour: float) -> list[float]:
    """What each day cost, recomputed from the workers."""
    spans = [(one.asked, one.ended) for one in done.workers if one.ended is not None]
    return [seconds * usd_per_hour / 3_600 for seconds in gpu_s_by_day(spans).values()]


@pytest.mark.parametrize("policy", [*ScalingPolicy])
def test_a_lone_task_waits_for_one_boot(policy: ScalingPolicy) -> None:
    done = replayed([RecordedTask(100, 30)], policy, Terms(60, 20))
    (worker,), (start,) = done.workers, done.tasks
    assert (worker.asked, worker.ready) == (100, 160)
    assert start is not None
    assert start.at == 160


def test_the_learned_rule_keeps_a_worker_for_one_cold_start_and_todays_for_its_timeout() -> None:
    """The last worker stays warm until GPU_IDLE_TIMEOUT_SEC."""
    ends = [replayed([RecordedTask(0, 30)], policy, Terms(60, 20)).workers[0].ended for policy in (LEARNED, FIXED)]
    assert ends == [90 + 120, 90 + 600]


def test_todays_rule_has_three_tasks_for_each_worker() -> None:
    done = replayed([RecordedTask(0, 100)] * 7, FIXED, Terms(60, 20))
    assert len(done.workers) == 3


def test_work_goes_to_the_worker_that_was_used_last() -> None:
    """So that the others can end."""
    tasks = [RecordedTask(0, 10), RecordedTask(0, 20), RecordedTask(0, 200), RecordedTask(100, 5)]
    first, second, _, last = replayed(tasks, LEARNED, Terms(60, 20), wait_price=100).tasks
    assert first is not None
    assert second is not None
    assert last is not None
    assert first.worker != second.worker == last.worker


@pytest.mark.parametrize("boot_s", [60, 300])
def test_below_the_limit_no_task_waits_longer_than_five_boots(boot_s: float) -> None:
    tasks = poisson(1.5, 1_500)
    done = replayed(tasks, LEARNED, Terms(boot_s, 100))
    waited_s = outcome(tasks, done).wait_max_s
    assert waited_s is not None
    assert waited_s <= 5.1 * boot_s


@TRIES
@given(tasks=TRACES, policy=POLICIES, terms=TERMS)
def test_each_task_runs_once_on_a_worker_of_its_pool_that_is_ready(
    tasks: list[RecordedTask], policy: ScalingPolicy, terms: Terms
) -> None:
    """Never two at once on one worker, and no pool has more workers than it may have."""
    done = replayed(tasks, policy, terms)
    held = defaultdict(list)
    for task, start in zip(tasks, done.tasks, strict=True):
        assert start is not None
        worker = done.workers[start.worker]
        assert worker.ready is not None
        assert worker.ended is not None
        assert worker.pool == task.pool
        assert max(task.arrival_s, worker.ready) <= start.at <= start.at + task.duration_s <= worker.ended
        held[start.worker].append((start.at, start.at + task.duration_s))
    for spans in held.values():
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(spans)))
    for pool in {task.pool for task in tasks}:
        spans = [(one.asked, one.ended or one.asked) for one in done.workers if one.pool == pool]
        assert all(sum(a <= asked < b for a, b in spans) <= terms.most for asked, _ in spans)


@TRIES
@given(tasks=TRACES, policy=POLICIES, terms=TERMS, kept=st.integers(1, 40), paid=st.booleans())
def test_no_decision_depends_on_a_later_task(
    tasks: list[RecordedTask], policy: ScalingPolicy, terms: Terms, kept: int, paid: bool
) -> None:
    """A replay of the first tasks decides the same, until the first task that it does not have."""
    terms = replace(terms, usd_per_hour=1.0, daily_usd=0.5) if paid else terms
    first = tasks[:kept]
    until = tasks[kept].arrival_s if kept < len(tasks) else float("inf")
    some, everything = replayed(first, policy, terms), replayed(tasks, policy, terms)
    before = [[one for one in done.decisions if one[0] < until] for done in (some, everything)]
    assert before[0] == before[1]
    asked = [[one.asked for one in done.workers if one.asked < until] for done in (some, everything)]
    assert asked[0] == asked[1]


@TRIES
@given(tasks=TRACES, policy=POLICIES, terms=TERMS, daily_usd=st.floats(0.01, 2), usd_per_hour=st.floats(0.1, 5))
def test_a_days_budget_is_never_exceeded(
    tasks: list[RecordedTask], policy: ScalingPolicy, terms: Terms, daily_usd: float, usd_per_hour: float
) -> None:
    """All workers have ended, also if the budget cannot pay the work."""
    done = replayed(tasks, policy, replace(terms, daily_usd=daily_usd, usd_per_hour=usd_per_hour))
    assert all(one.ended is not None for one in done.workers)
    assert max(usd_by_day(done, usd_per_hour), default=0) <= daily_usd


@pytest.mark.parametrize("policy", ScalingPolicy)
def test_a_day_that_begins_with_more_late_tasks_than_one_decision_may_start_keeps_its_budget(
    policy: ScalingPolicy,
) -> None:
    """A review of the past would count money twice."""
    tasks = [RecordedTask(40_000 + at, 600) for at in range(600)]
    done = replayed(tasks, policy, Terms(60, 1_000, usd_per_hour=1.0, daily_usd=20.0))
    assert max(usd_by_day(done, 1.0)) <= 20
    assert all(one.ended is not None and one.ended >= one.asked for one in done.workers)


def test_work_that_the_budget_interrupts_runs_on_another_day() -> None:
    tasks = [RecordedTask(number * 10.0, 600) for number in range(20)]
    done = replayed(tasks, LEARNED, Terms(60, 5, usd_per_hour=1.0, daily_usd=1.0))
    starts = [start.at for start in done.tasks if start]
    assert len(starts) == len(tasks)
    assert max(starts) > 86_400


def test_work_that_no_day_can_pay_is_left() -> None:
    """The replay ends."""
    done = replayed([RecordedTask(0, 7_200)], LEARNED, Terms(60, 5, usd_per_hour=1.0, daily_usd=1.0))
    assert outcome([RecordedTask(0, 7_200)], done).unpaid == 1


@pytest.mark.parametrize("policy", [*ScalingPolicy])
def test_the_replay_ends_if_the_usual_task_has_become_too_long_for_a_day(policy: ScalingPolicy) -> None:
    """The first one runs over midnight, on the money of two days; after it, no worker is worth its start."""
    tasks = [RecordedTask(85_000, 4_000), RecordedTask(90_000, 4_000), RecordedTask(90_000, 4_000)]
    done = replayed(tasks, policy, Terms(60, 1, usd_per_hour=1.0, daily_usd=0.9))
    assert [start is not None for start in done.tasks] == [True, False, False]
    assert all(one.ended is not None for one in done.workers)
    assert max(usd_by_day(done, 1.0)) <= 0.9


def test_the_learned_rule_costs_less_than_todays_on_a_thin_queue() -> None:
    tasks = poisson(0.02, 400)
    learned, fixed = (outcome(tasks, replayed(tasks, policy, Terms(60, 20))) for policy in (LEARNED, FIXED))
    assert learned.cost_and_waiting_s(1) < 0.5 * fixed.cost_and_waiting_s(1)


def test_the_sums_of_a_replay_are_those_of_its_workers_and_tasks() -> None:
    tasks = [RecordedTask(86_350, 100), RecordedTask(86_350, 100)]
    done = replayed(tasks, LEARNED, Terms(60, 1))
    summed = outcome(tasks, done)
    assert (summed.boots, summed.unpaid) == (1, 0)
    assert (summed.wait_p50_s, summed.wait_p95_s, summed.wait_max_s, summed.waited_s) == (60, 160, 160, 220)
    assert summed.gpu_s == 60 + 100 + 100 + 120
    assert summed.most_on_a_day_gpu_s == 330
    assert summed.usd(3_600) == 380
