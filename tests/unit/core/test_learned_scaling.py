"""A pool with SCALING_POLICY=learned: which workers start and end, and how the decision says why."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import decision_text
from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.economics.learned import up
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.rule import PoolView
from orchestrator.core.economics.statistics import GRID_S, Gaps, Statistics
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import EVERY_POOL, LearnedPool, Pause, ScaleLimit, Snapshot, Worker
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.core.states import Stage
from tests.unit.core.build import (
    A40,
    L4,
    NEVER,
    NOW,
    ago,
    brought_up,
    busy,
    cooling,
    idle,
    policy,
    said,
    snapshot,
    spawning,
    terminating,
)

NOW_S = NOW.timestamp()
KNOWN = Statistics(boot_s=60.0, run_s=30.0, runs=50)


def learned(**changes: Any) -> Policy:
    """A policy whose only pool follows the learned rule."""
    return policy(pool={"scaling_policy": ScalingPolicy.LEARNED, "max_active": 20, **changes})


def seen(*workers: Worker, claimable: int = 0, waited_s: float = 0, **changes: Any) -> Snapshot:
    """A fleet whose ready tasks have waited for so long. Each busy worker has just claimed its task."""
    facts = LearnedPool(
        changes.pop("known", KNOWN),
        (NOW_S - waited_s,) * min(claimable, 100),
        {worker.id: NOW_S for worker in workers if worker.tasks_running},
        changes.pop("last_end", {}),
    )
    running = sum(worker.tasks_running for worker in workers)
    return snapshot(*workers, claimable=claimable, running=running, learned={"default": facts}, **changes)


def spawned(made: Plan) -> list[Spawn]:
    return [action for action in made.actions if isinstance(action, Spawn)]


def ended(made: Plan) -> list[str]:
    return [action.worker_id for action in made.actions if isinstance(action, Terminate)]


def test_a_cold_queue_starts_one_worker_and_says_why() -> None:
    made = plan(seen(claimable=1), learned())
    assert [one.reason for one in spawned(made)] == ["start 1: tasks wait, and no worker is there"]
    assert made.decisions[0].target == 1


def test_a_burst_starts_as_many_as_the_rule_says_and_each_has_the_arithmetic() -> None:
    """It is the function that the replay uses."""
    expected = up(KNOWN, PoolView(NOW_S, [NOW_S] * 40, 40, [NOW_S], [], [], 20), 1.0, 240.0)
    made = plan(seen(busy("gpu-1"), claimable=40), learned())
    assert len(spawned(made)) == expected.starts > 1
    assert {one.reason for one in spawned(made)} == {expected.why}
    assert expected.why in made.decisions[0].rule


def test_a_task_that_a_busy_worker_takes_soon_starts_none() -> None:
    made = plan(seen(busy("gpu-1"), claimable=1), learned())
    assert spawned(made) == []
    assert "one more worker saves less than it costs" in made.decisions[0].rule
    assert made.decisions[0].review_at is not None


def test_an_idle_worker_takes_a_task_before_another_one_starts() -> None:
    """The queue that is left counts; the observation may be older than the claims."""
    assert spawned(plan(seen(idle("gpu-1", 5), claimable=1), learned())) == []
    assert len(spawned(plan(seen(idle("gpu-1", 5), claimable=40), learned()))) > 1


def test_ten_thousand_tasks_start_no_more_than_the_limit() -> None:
    made = plan(seen(claimable=10_000), learned(max_active=7))
    assert len(spawned(made)) == 7
    assert "MAX_ACTIVE_GPUS=7" in said(made)[0]


def test_at_the_limit_the_decision_says_what_more_workers_would_save() -> None:
    """Not that one more saves less than it costs."""
    made = plan(seen(busy("gpu-1"), claimable=10_000), learned(max_active=1))
    assert spawned(made) == []
    rule = made.decisions[0].rule
    assert rule.startswith("start 100: the last one saves ")
    assert rule.endswith("; 1 max; target 1")


def test_a_late_task_gets_a_boot() -> None:
    """Within MAX_WAIT_SEC, also if that is worth nothing."""
    late = seen(busy("gpu-1"), claimable=1, waited_s=500)
    assert [one.reason for one in spawned(plan(late, learned(wait_price=0.001)))] == [
        "start 1: 1 tasks have waited 240 s"
    ]
    assert spawned(plan(late, learned(wait_price=0.001, max_wait_s=600))) == []


def test_a_higher_price_of_waiting_starts_more() -> None:
    queue = seen(busy("gpu-1"), claimable=10)
    assert len(spawned(plan(queue, learned(wait_price=10)))) > len(spawned(plan(queue, learned(wait_price=0.2))))


def test_a_pause_and_an_operators_limit_take_precedence() -> None:
    paused = plan(seen(claimable=0, blocked={"paused": 9}, paused={EVERY_POOL: Pause("no", None)}), learned())
    assert spawned(paused) == []
    limit = ScaleLimit("default", 2, "quiet", NEVER)
    assert len(spawned(plan(seen(claimable=100, scale_limits={"default": limit}), learned()))) == 2


def test_a_new_release_starts_with_one_canary() -> None:
    made = plan(seen(claimable=100, promoted_releases=frozenset()), learned())
    assert len(spawned(made)) == 1


def test_the_least_number_of_workers_stays() -> None:
    """MIN_ACTIVE_GPUS and MACHINES_TO_KEEP_IDLE."""
    two = [idle("gpu-1", 5_000), idle("gpu-2", 4_000)]
    assert ended(plan(seen(*two), learned(min_active=2))) == []
    assert ended(plan(seen(*two), learned(min_active=1))) == ["gpu-1"]
    assert ended(plan(seen(*two), learned(keep_idle=1))) == ["gpu-1"]
    made = plan(seen(*two), learned(min_active=2))
    assert made.decisions[0].rule == "2 idle workers stay in any case: at least 2 workers; target 2"
    assert made.decisions[0].review_at is None
    made = plan(seen(), learned(min_active=2))
    assert [one.reason for one in spawned(made)] == ["2 below target"] * 2
    assert "at least 2 workers" in made.decisions[0].rule


def test_an_idle_worker_ends_after_its_window() -> None:
    """Without recorded gaps that is one cold start: a boot, and the waiting for it."""
    made = plan(seen(idle("gpu-1", 121)), learned())
    (end,) = [action for action in made.actions if isinstance(action, Terminate)]
    assert (end.worker_id, end.cause) == ("gpu-1", ExitCause.IDLE_TIMEOUT)
    assert end.reason == "idle for 121 s; level 1 is kept for 120 s"
    assert made.decisions[0].target == 0


def test_an_idle_worker_that_stays_says_until_when() -> None:
    made = plan(seen(idle("gpu-1", 60)), learned())
    assert ended(made) == []
    assert made.decisions[0].rule == "1 idle worker stays: kept 120 s at level 1 until 12:01:00; target 1"
    assert made.decisions[0].review_at == ago(-60)
    text = decision_text.sentence(made.decisions[0].inputs, made.decisions[0].target)
    assert text == "no tasks ready; 1 idle worker stays: kept 120 s at level 1 until 12:01:00 → 1 worker"


def test_the_worker_with_the_oldest_last_use_ends_first() -> None:
    """Whichever is newer; a short task counts that changed no row of the worker."""
    workers = [idle("gpu-1", 130), idle("gpu-2", 125), idle("gpu-3", 140)]
    made = plan(seen(*workers, last_end={"gpu-3": NOW_S - 5}), learned())
    assert ended(made) == ["gpu-1", "gpu-2"]


def test_no_busy_worker_ends() -> None:
    made = plan(seen(*[busy(f"gpu-{n}") for n in range(1, 6)]), learned(max_active=1))
    assert ended(made) == []


def test_idle_workers_beyond_the_limit_end_at_once() -> None:
    limit = ScaleLimit("default", 1, "quiet", NEVER)
    made = plan(seen(idle("gpu-1", 5), idle("gpu-2", 4), scale_limits={"default": limit}), learned())
    assert ended(made) == ["gpu-1"]


def test_a_boot_is_finished_although_its_work_has_gone() -> None:
    """Another boot would cost more when the next task comes. One without a pod, or that is late, is cancelled."""
    ended_boots = tuple(brought_up(600 + n, promoted=True, boot_s=300.0) for n in range(3))
    halfway = spawning("gpu-1", created_at=ago(200))
    assert ended(plan(seen(halfway, ended=ended_boots), learned())) == []
    intent = spawning("gpu-1", Stage.INTENT, created_at=ago(200))
    assert ended(plan(seen(intent, ended=ended_boots), learned())) == ["gpu-1"]
    slow = spawning("gpu-1", created_at=ago(650))
    assert ended(plan(seen(slow, ended=ended_boots), learned())) == ["gpu-1"]


def test_idle_workers_stay_for_the_tasks_of_lost_ones() -> None:
    """These tasks are queued again soon."""
    free, lost = idle("gpu-1", 500), busy("gpu-2", last_heartbeat=ago(90))
    assert ended(plan(seen(free, lost), learned())) == ["gpu-2"]
    assert ended(plan(seen(free, busy("gpu-2")), learned())) == ["gpu-1"]


def test_the_boot_time_is_that_of_the_offer_that_would_be_taken() -> None:
    """The first one may cool down."""
    boots = (
        brought_up(900, promoted=True, boot_s=100.0, offer=A40.key),
        brought_up(800, promoted=True, boot_s=400.0, offer=L4.key),
    )
    assert plan(seen(ended=boots), learned()).decisions[0].inputs["boot_s"] == 100
    off = {A40.key: cooling(A40, 60)}
    assert plan(seen(ended=boots, offers=off), learned()).decisions[0].inputs["boot_s"] == 400
    assert plan(seen(), learned()).decisions[0].inputs["boot_s"] == 60  # as stored


def test_a_pool_of_which_nothing_is_known_decides_all_the_same() -> None:
    """The call that reads it may have failed."""
    made = plan(replace(seen(claimable=5), learned={}), learned())
    assert len(spawned(made)) >= 1
    assert plan(replace(seen(idle("gpu-1", 500)), learned={}), learned()).decisions[0].target == 0


@pytest.mark.parametrize(("choices", "is_learned"), [
    ({}, False), ({"default": "learned"}, True), ({EVERY_POOL: "learned"}, True),
    ({EVERY_POOL: "learned", "default": "fixed"}, False), ({"other": "learned"}, False),
])  # fmt: skip
def test_an_operator_chooses_the_rule(choices: dict[str, str], is_learned: bool) -> None:
    """Of one pool, or of every pool that has no choice of its own."""
    chosen = {name: ScalingPolicy(one) for name, one in choices.items()}
    made = plan(seen(claimable=1, scaling_policies=chosen), policy())
    assert (made.decisions[0].inputs.get("policy") == "learned") is is_learned


def test_an_operator_chooses_the_fixed_rule_although_the_settings_say_learned() -> None:
    made = plan(seen(claimable=1, scaling_policies={"default": ScalingPolicy.FIXED}), learned())
    assert made.decisions[0].inputs["policy"] == "fixed"
    text = decision_text.sentence(made.decisions[0].inputs, made.decisions[0].target)
    assert text == "1 task ready, 3 per GPU → 1 worker; an operator chose the rule fixed"


def test_after_a_review_the_cheapest_rule_of_the_last_week_decides() -> None:
    """An idle worker stays for one cold start, or as long as the fixed settings say; the decision names the review."""
    long = Gaps((*(0.0 for _ in GRID_S[1:]), 200.0))  # the worker is used again after hours: its window is short
    known, kept = replace(KNOWN, gaps=((long, *KNOWN.gaps[0][1:]), *KNOWN.gaps[1:])), {}
    for found in (None, *ReviewCandidate):
        at = seen(idle("gpu-1", 90), known=known)
        made = plan(replace(at, learned={"default": replace(at.learned["default"], reviewed=found)}), learned())
        kept[found] = (not ended(made), made.decisions[0].rule)
    assert [stays for stays, _ in kept.values()] == [False, True, False, True]
    assert "by the fixed settings today" in kept[ReviewCandidate.FIXED][1]
    assert "for one cold start today" in kept[ReviewCandidate.COLD_START][1]
    assert kept[None][1] == kept[ReviewCandidate.LEARNED][1]
    chosen = {"default": ScalingPolicy.LEARNED}
    facts = {"default": replace(at.learned["default"], reviewed=ReviewCandidate.FIXED)}
    made = plan(replace(at, learned=facts, scaling_policies=chosen), learned())
    assert decision_text.sentence(made.decisions[0].inputs, made.decisions[0].target).endswith(
        "; an operator chose the rule learned; by the fixed settings today, which would have been cheaper than learned "
        "in the last week"
    )


def test_an_ending_workers_tasks_are_no_demand() -> None:
    made = plan(seen(terminating("gpu-1", tasks_running=1)), learned())
    assert made.decisions[0].target == 0
