"""The leader's reviews of the rules of scaling, in one sentence each."""

from typing import Any

import pytest

from orchestrator.core.economics.guard import review
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.recorded import PoolCosts, RecordedPool
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.core.economics.review_json import answer, question, review_as_json
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.diagnostics.scaling_reviews import told
from tests.unit.diagnostics.reviews import REVIEW


def row(pool: str = "default", **changes: Any) -> dict[str, Any]:
    return {"pool": pool, "at": "2026-11-21T00:00:05+00:00", "review": REVIEW | changes}


def test_a_review_is_one_sentence() -> None:
    """Of what the other rule would have cost, and how far a replay can be trusted."""
    (one,) = told([row()])
    assert one.sentence == (
        "In the last week, learned would have cost $41.00 instead of $63.00, p95 wait 38s instead of 1m11s; "
        "the replay of your settings differs from the records by 4 %."
    )
    assert one.is_better
    assert "1,204 tasks" in one.basis
    assert "learned was the cheapest of fixed, learned, cold start" in one.basis


def test_each_of_several_pools_is_named() -> None:
    first, second = told([row("a"), row("b")])
    assert ("in pool a, p95" in first.sentence, "in pool b, p95" in second.sentence) == (True, True)


def test_if_learned_is_in_force_the_other_rule_is_fixed() -> None:
    (one,) = told([row(in_force="learned", since="2026-11-19T00:00:00+00:00", error_share=None)])
    assert one.sentence.startswith("In the last 2 days, fixed would have cost $63.00 instead of $41.00")
    assert one.sentence.endswith("the replay of your settings cannot be compared with the records.")
    assert not one.is_better


@pytest.mark.parametrize(
    "broken", [{}, {"candidates": {}}, {"in_force": 3}, {"error_share": "much"}, {"tasks": None}, {"until": "infinity"}]
)
def test_a_review_of_another_form_is_left_out(broken: dict[str, Any]) -> None:
    """Another version may have written it."""
    changed = row()
    changed["review"] = {**REVIEW, **broken} if broken else []
    assert len(told([changed, row("b")])) == 1


def test_a_process_answers_what_the_function_returns() -> None:
    """Whatever the settings are."""
    tasks = [RecordedTask(1e9 + 100.0 * number, 30.0, "a") for number in range(20)]
    pool = RecordedPool("a", tasks, [1.0] * 20, PoolCosts(usd=1.0, paid_s=7_200, boots=1, boot_s=60, ending_s=5))
    for policy in ScalingPolicy:
        settings = ScalingSettings(scaling_policy=policy, max_wait_s=100, min_active=1)
        asked = question(pool, settings, 1e9, 1e9 + 3_000)
        assert answer(asked) == review_as_json(review(pool, settings, 1e9, 1e9 + 3_000))


def test_a_pool_that_paid_nothing_is_compared_by_its_workers() -> None:
    """Dollars would be zero on both sides."""
    (one,) = told([row(usd_per_hour=0)])
    assert "$" not in one.sentence
    assert "learned would have started 1 worker instead of 1" in one.sentence
