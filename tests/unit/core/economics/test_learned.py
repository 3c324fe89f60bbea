"""When the learned rule starts workers, and when it ends them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.economics.learned import LearnedRule, saving_text, up
from orchestrator.core.economics.rule import IdleWorker, PoolView
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.waiting import MAX_TASKS, arrivals, starts

KNOWN = Statistics(boot_s=60.0, boots=5, run_s=30.0, runs=50)
NEVER_S = 1e9


def view(
    queued: int = 0, busy: int = 0, booting: int = 0, idle: int = 0, most: int = 20, waited_s: float = 0.0
) -> PoolView:
    """A pool at second 10,000, whose tasks and boots have just begun."""
    now = 10_000.0
    idles = [IdleWorker(now - 500, now - 100 + place) for place in range(idle)]
    return PoolView(now, [now - waited_s] * queued, queued, [now] * busy, [now] * booting, idles, most)


def started(known: Statistics, seen: PoolView, wait_price: float = 1.0, max_wait_s: float = NEVER_S) -> int:
    return up(known, seen, wait_price, max_wait_s).starts


def test_a_first_task_starts_a_worker() -> None:
    assert started(KNOWN, view(queued=1)) == 1


def test_no_task_starts_none() -> None:
    assert started(KNOWN, view(busy=3)) == 0


def test_a_task_that_a_busy_worker_takes_soon_starts_none() -> None:
    assert started(KNOWN, view(queued=1, busy=1)) == 0


def test_a_long_queue_starts_several_and_says_what_the_last_one_saves() -> None:
    growth = up(KNOWN, view(queued=40, busy=1), 1.0, NEVER_S)
    assert growth.starts > 2
    assert growth.why.startswith(f"start {growth.starts}: the last one saves ")
    assert growth.why.endswith("; a boot costs 90 s")


def test_the_sentence_states_the_arithmetic() -> None:
    text = saving_text(1, 212, 1.0, 90)
    assert text == "start 1: saves 212 s of waiting, worth 212 s of GPU time; a boot costs 90 s"


@pytest.mark.parametrize(("boot_s", "after_s"), [(60.0, 10.0), (86_400.0, 864.0)])
def test_waiting_tasks_are_looked_at_again_in_a_hundredth_of_a_boot_but_not_sooner_than_in_ten_seconds(
    boot_s: float, after_s: float
) -> None:
    rule = LearnedRule(replace(KNOWN, boot_s=boot_s), wait_price=0.0, max_wait_s=NEVER_S)
    assert rule.decide(view(queued=1, busy=1)).review_at == 10_000.0 + after_s


@given(queued=st.integers(1, 500), waited_s=st.floats(0, 1e6), booting=st.integers(0, 5))
def test_no_review_lies_in_the_past(queued: int, waited_s: float, booting: int) -> None:
    """Also if more tasks are late than one decision may start workers for."""
    seen = view(queued=queued, booting=booting, most=1_000, waited_s=waited_s)
    review_at = LearnedRule(KNOWN).decide(seen).review_at
    assert review_at is None or review_at > seen.now


def test_the_limit_bounds_the_starts() -> None:
    assert started(KNOWN, view(queued=400, busy=1, most=3)) == 2
    assert started(KNOWN, view(queued=400, busy=3, most=3)) == 0


def test_arrivals_that_a_later_boot_can_serve_start_none() -> None:
    """Ten tasks are expected while a long one runs, but none within two boots."""
    known = replace(KNOWN, run_s=1_000.0, rate=1 / 200, rate_at=10_000.0)
    assert started(known, view(queued=1, busy=1, booting=1)) == 0


def test_cheap_waiting_starts_fewer() -> None:
    seen = view(queued=40, busy=1)
    assert started(KNOWN, seen, wait_price=0.1) < started(KNOWN, seen) < started(KNOWN, seen, wait_price=10)
    assert started(KNOWN, view(queued=40), wait_price=0) == 1


def test_a_task_that_waits_too_long_gets_a_boot() -> None:
    """Also if that is not worth it; one boot for each such task, and those on their way count."""
    seen = view(queued=2, busy=1, waited_s=240)
    assert started(KNOWN, seen, wait_price=0.01) == 0
    growth = up(KNOWN, seen, 0.01, 240)
    assert (growth.starts, growth.why) == (2, "start 2: 2 tasks have waited 240 s")
    assert started(KNOWN, view(queued=2, busy=1, booting=1, waited_s=240), 0.01, 240) == 1


def test_the_review_comes_no_later_than_the_longest_wait() -> None:
    rule = LearnedRule(KNOWN, wait_price=0.01)
    decision = rule.decide(view(queued=1, busy=1, waited_s=235))
    assert (decision.starts, decision.review_at) == (0, 10_005)


def test_idle_workers_end_when_their_window_is_over_the_one_used_longest_ago_first() -> None:
    rule = LearnedRule(KNOWN)  # no gaps yet: 120 s
    decision = rule.decide(view(busy=1, idle=3))
    assert (decision.ends, decision.review_at) == ((), 10_020)
    later = replace(view(busy=1, idle=3), now=10_021.0)
    assert rule.decide(later).ends == (0, 1)
    assert rule.decide(later).why == "end 2: idle for 120 s; level 3 is kept for 120 s"


COUNTS = st.integers(0, 12)


@settings(max_examples=40, deadline=None)
@given(queued=st.integers(1, 600), more=st.integers(1, 50), busy=COUNTS, booting=COUNTS, rate=st.floats(0, 5))
def test_more_queued_tasks_never_start_fewer(queued: int, more: int, busy: int, booting: int, rate: float) -> None:
    """Up to the size of the simulation: beyond it, expected arrivals give way."""
    known = replace(KNOWN, rate=rate, rate_at=10_000.0)
    few, many = (started(known, view(count, busy, booting, most=60)) for count in (queued, queued + more))
    assert few <= many


@given(queued=st.integers(0, 2_000), rate=st.floats(0, 1e6), until_s=st.floats(0, 1e6))
def test_a_simulation_is_bounded(queued: int, rate: float, until_s: float) -> None:
    arriving = arrivals(queued, rate, until_s)
    assert len(arriving) <= MAX_TASKS
    assert all(0 <= at <= until_s * (1 + 1e-9) for at in arriving)


@given(free=st.lists(st.floats(0, 500), min_size=1, max_size=10), queued=st.integers(1, 50), run_s=st.floats(0, 100))
def test_a_worker_more_delays_no_task(free: list[float], queued: int, run_s: float) -> None:
    arriving = arrivals(queued, 0.05, 300)
    before, after = starts(arriving, free, run_s), starts(arriving, [*free, 60.0], run_s)
    assert all(late >= soon for late, soon in zip(before, after, strict=True))


@pytest.mark.parametrize("least", range(5))
def test_workers_that_have_to_stay_are_not_asked_about_again_at_once(least: int) -> None:
    """The windows of some are over, those of others are not."""
    rule = LearnedRule(KNOWN)
    idles = [IdleWorker(0.0, 0.0), IdleWorker(0.0, 1.0), IdleWorker(0.0, 9_990.0), IdleWorker(0.0, 9_999.0)]
    decided = rule.decide(PoolView(10_000.0, [], 0, [], [], idles, 5, least))
    assert decided.ends == (0, 1)[: 4 - least]
    assert decided.review_at is not None
    assert (decided.review_at > 10_000.0) == (not decided.ends)
