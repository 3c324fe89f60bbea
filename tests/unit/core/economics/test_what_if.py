"""Recorded tasks under other settings: how far a replay can be trusted, and which rule runs tomorrow."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.core import scaling
from orchestrator.core.actions import Terminate
from orchestrator.core.economics import guard, what_if
from orchestrator.core.economics.fixed import FixedRule
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.recorded import PoolCosts, RecordedPool, RecordedRun, histories
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.core.economics.rule import IdleWorker, PoolView
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.sizes import SizeStep
from orchestrator.core.offers import OfferSelector
from orchestrator.core.replay_settings import settings_of
from orchestrator.core.states import Stage, State
from tests.unit.core.build import ago, busy, idle, policy, snapshot, spawning
from tests.unit.core.economics.traces import poisson

DAY_S = 86_400.0
WEEK = (0.0, 7 * DAY_S)
COSTS = PoolCosts(usd=4.4, paid_s=36_000, boots=12, boot_s=60)
GOOD = RecordedRun("a", 100.0, 130.0, 190.0, "w")


def history(tasks: list[RecordedTask], costs: PoolCosts = COSTS) -> RecordedPool:
    """A pool whose tasks all waited for 5 s."""
    return RecordedPool("a", tasks, [5.0] * len(tasks), costs)


@pytest.mark.parametrize(
    "damaged",
    [
        replace(GOOD, arrived=None), replace(GOOD, started=None), replace(GOOD, ended=None),
        replace(GOOD, arrived=nan), replace(GOOD, started=-inf), replace(GOOD, ended=inf),
        replace(GOOD, ended=120.0),  # it ended before it began
        replace(GOOD, ended=130.0 + 3_660 * DAY_S),  # ten years
        replace(GOOD, arrived=100.0 - 3_660 * DAY_S),
        replace(GOOD, arrived=100.0 + 3_660 * DAY_S),
        replace(GOOD, arrived=195.0),  # it arrived after its end
        replace(GOOD, started=130.0 - 3_660 * DAY_S),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_true_harms_only_itself(damaged: RecordedRun) -> None:
    """The others count as they would without it."""
    other = RecordedRun("a", 300.0, 310.0, 340.0, "w")
    (found,) = histories([GOOD, damaged, other], {"a": COSTS}, *WEEK)
    (alone,) = histories([GOOD, other], {"a": COSTS}, *WEEK)
    assert (found.tasks, found.waits_s, found.left_out) == (alone.tasks, alone.waits_s, 1)
    assert found.tasks == [RecordedTask(100.0, 60.0, "a"), RecordedTask(300.0, 30.0, "a")]
    assert found.waits_s == [30.0, 10.0]


def test_a_start_before_the_arrival_is_no_wait() -> None:
    """Two clocks differ by a little."""
    (found,) = histories([replace(GOOD, started=95.0)], {}, *WEEK)
    assert (found.tasks, found.waits_s) == ([RecordedTask(100.0, 90.0, "a")], [0.0])


def test_the_tasks_of_one_claim_ran_one_after_the_other() -> None:
    runs = [RecordedRun("a", 0.0, 10.0, ended, "w") for ended in (13.0, 15.0, 20.0)]
    (found,) = histories(runs, {}, *WEEK)
    assert sorted(task.duration_s for task in found.tasks) == [2.0, 3.0, 5.0]
    assert sorted(found.waits_s) == [10.0, 13.0, 15.0]


def test_a_pool_without_a_promoted_worker_has_the_usual_boot_time_and_the_price_of_the_others() -> None:
    one, other = histories([GOOD, replace(GOOD, pool="b")], {"a": COSTS}, *WEEK)
    assert (one.boot_s, other.boot_s) == (60, 120)
    assert what_if.prices([one, other]) == pytest.approx({"a": 0.44, "b": 0.44})


def test_a_replay_counts_what_the_provider_counts() -> None:
    """Not the begin of a boot in which there is no machine, and the time until a worker has really ended."""
    costs = replace(COSTS, unpaid_s=20.0, ending_s=7.0)
    settings = {"a": ScalingSettings()}
    spans = [
        what_if.replayed_fleet([history([RecordedTask(0, 30)], one)], settings, *WEEK)[0].spans[0]
        for one in (COSTS, costs)
    ]
    assert spans == [(0, 60 + 30 + 600), (20, 60 + 30 + 600 + 7)]


def test_workers_that_stay_are_paid_to_the_end_and_are_there_from_the_begin() -> None:
    """MIN_ACTIVE_GPUS, with either rule."""
    for chosen in ScalingPolicy:
        settings = {"a": ScalingSettings(min_active=1, scaling_policy=chosen)}
        (done,) = what_if.replayed_fleet([history([RecordedTask(1_000, 30)])], settings, 0, 5_000)
        assert (done.spans, done.waits_s) == ([(0, 5_000)], [0])
        shown = what_if.figures([done], 10)
        assert shown.usd == pytest.approx(5_000 * 0.44 / 3_600)
        assert shown.boots == 1


def test_idle_workers_are_kept_beside_the_busy_ones_with_either_rule() -> None:
    """MACHINES_TO_KEEP_IDLE: a second worker for a task, and one for none."""
    for chosen in ScalingPolicy:
        settings = {"a": ScalingSettings(keep_idle=1, scaling_policy=chosen, idle_timeout_s=100)}
        (done,) = what_if.replayed_fleet(
            [history([RecordedTask(1_000, 30), RecordedTask(3_000, 30)])], settings, 0, 5_000
        )
        assert [began for began, _ in done.spans] == [0, 1_000, 3_000]
        assert sum(ended == 5_000 for _, ended in done.spans) == 1
        assert sum(done.waits_s) == 0


@pytest.mark.parametrize("chosen", list(ScalingPolicy))
def test_the_sizes_of_a_pool_follow_the_time(chosen: ScalingPolicy) -> None:
    """Workers are kept, and limited, from a moment on, also without any task."""
    steps = (SizeStep(1_000, 2, 3), SizeStep(5_000, None, 1), SizeStep(9_000, 0, None))
    settings = {"a": ScalingSettings(max_active=4, scaling_policy=chosen, scheduled=steps, idle_timeout_s=100)}
    crowd = [RecordedTask(at, 30) for at in (2_000, 6_000, 9_500) for _ in range(20)]
    (done,) = what_if.replayed_fleet([history(crowd)], settings, 0.0, 20_000.0)
    workers = done.replayed.workers

    def live(at: float) -> int:
        return sum(one.asked <= at and (one.ended is None or one.ended > at) for one in workers)

    assert (live(999), live(1_001), live(4_990)) == (0, 2, 2)
    asked = [one.asked for one in workers]
    assert max(live(at) for at in asked if at < 5_000) == 3
    assert max((live(at) for at in asked if 5_000 <= at < 9_000), default=1) == 1
    assert max(live(at) for at in asked if at > 9_000) == 4
    assert live(19_999) == 0


def test_a_pool_that_may_have_no_worker_leaves_its_tasks_unrun() -> None:
    (done,) = what_if.replayed_fleet([history([RecordedTask(0, 30)])], {"a": ScalingSettings(max_active=0)}, *WEEK)
    shown = what_if.figures([done], 10)
    assert (shown.unrun, shown.waits.p95_s, shown.usd) == (1, None, 0)


def test_the_error_of_a_replay_is_a_share_of_the_records() -> None:
    assert what_if.error(66.0, 60.0) == pytest.approx(0.1)
    assert [what_if.error(*pair) for pair in ((1.0, 0.0), (1.0, None), (None, 1.0))] == [None] * 3


@given(
    queued=st.integers(0, 30), working=st.integers(0, 8), waiting=st.integers(0, 4),
    idle_s=st.lists(st.floats(1, 700), max_size=5), tasks_per_gpu=st.integers(1, 5), min_active=st.integers(0, 4),
    keep_idle=st.integers(0, 3), most=st.integers(0, 12), started_s=st.sampled_from([None, 10.0, 59.0, 61.0, 500.0]),
)  # fmt: skip
def test_the_replay_of_the_fixed_rule_decides_as_the_daemon_does(
    queued: int, working: int, waiting: int, idle_s: list[float], tasks_per_gpu: int, min_active: int, keep_idle: int,
    most: int, started_s: float | None,
) -> None:  # fmt: skip
    """The same number of starts, and the same idle workers end, as long as the limit has not been lowered."""
    assume(working + waiting + len(idle_s) <= most)
    chosen = {"tasks_per_gpu": tasks_per_gpu, "min_active": min_active, "keep_idle": keep_idle, "max_active": most}
    ours = policy(pool=chosen)
    seen = snapshot(
        *(busy(f"b{n}") for n in range(working)),
        *(spawning(f"s{n}", Stage.POD_RUNNING, created_at=ago(50)) for n in range(waiting)),
        *(idle(f"i{n}", since, created_at=ago(1_000 + n)) for n, since in enumerate(idle_s)),
        claimable=queued, running=working, last_spawn_at={} if started_s is None else {"default": ago(started_s)},
    )  # fmt: skip
    size = scaling.size_of(ours.pools[0], seen, ours, leaving=frozenset())
    actions, _ = scaling.plan(ours.pools[0], size, seen, ours, OfferSelector(seen, ours))
    ended = {one.worker_id for one in actions if isinstance(one, Terminate) and one.from_state is State.IDLE}
    settings = settings_of(ours.pools[0], ours)
    rule = settings.rule(60)
    assert isinstance(rule, FixedRule)
    rule.last_start = None if started_s is None else -started_s
    idle_workers = [IdleWorker(-1_000.0 - n, -since) for n, since in enumerate(idle_s)]
    view = PoolView(
        0.0, [0.0] * queued, queued, [-5.0] * working, [-50.0] * waiting, idle_workers, most, settings.min_active
    )
    decided = rule.decide(view)
    assert decided.starts == max(0, size.asked)
    if decided.starts == 0:
        assert {f"i{place}" for place in decided.ends} == ended


@pytest.mark.parametrize("load", [0.02, 1.0])
def test_tomorrow_runs_what_would_have_been_cheapest(load: float) -> None:
    """The sum of the paid seconds and of the waiting at its price."""
    tasks = poisson(load, 200)
    found = guard.review(history(tasks), ScalingSettings(max_active=20), 0.0, tasks[-1].arrival_s + 1_000)
    assert found.tomorrow in ReviewCandidate
    assert found.costs_s[found.tomorrow] == min(found.costs_s.values())
    assert found.costs_s[ReviewCandidate.FIXED] == pytest.approx(
        found.candidates[ReviewCandidate.FIXED].usd / 0.44 * 3_600 + found.candidates[ReviewCandidate.FIXED].waited_s
    )
    assert found.recorded.waits.p95_s == 5


def test_between_equal_costs_the_operators_settings_stay() -> None:
    """Also if no cost is known."""
    fixed, learned, window = ReviewCandidate
    assert guard.cheapest({learned: 5.0, window: 5.0, fixed: 5.0}) is fixed
    assert guard.cheapest({window: 4.0, learned: 4.0, fixed: 5.0}) is learned
    assert guard.cheapest({learned: nan, fixed: inf}) is fixed
    assert guard.cheapest({}) is fixed


def test_a_review_names_the_error_of_the_settings_in_force() -> None:
    tasks = poisson(0.2, 100)
    found = guard.review(history(tasks), ScalingSettings(scaling_policy=ScalingPolicy.LEARNED), 0.0, 7 * DAY_S)
    assert found.in_force is ReviewCandidate.LEARNED
    assert found.error == pytest.approx(found.candidates[ReviewCandidate.LEARNED].usd / COSTS.usd - 1)
