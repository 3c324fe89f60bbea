"""Traces that tests make up."""

import random

from hypothesis import strategies as st

from orchestrator.core.economics.policies import ScalingPolicy, rule_for
from orchestrator.core.economics.replay import RecordedTask, Replayed, Terms, replay


def poisson(load: float, count: int, run_s: float = 30.0, seed: int = 1) -> list[RecordedTask]:
    """Tasks that keep `load` workers busy in the mean."""
    chance, now, tasks = random.Random(seed), 0.0, []
    for _ in range(count):
        now += chance.expovariate(load / run_s)
        tasks.append(RecordedTask(now, chance.expovariate(1 / run_s)))
    return tasks


def replayed(tasks: list[RecordedTask], policy: ScalingPolicy, terms: Terms, wait_price: float = 1.0) -> Replayed:
    """A replay with a rule that has learned nothing before."""
    return replay(tasks, rule_for(policy, terms.boot_s, wait_price), terms)


def _in_order(pairs: list[tuple[float, float, str]]) -> list[RecordedTask]:
    now, tasks = 0.0, []
    for gap_s, duration_s, pool in pairs:
        now += gap_s
        tasks.append(RecordedTask(now, duration_s, pool))
    return tasks


GAPS = st.sampled_from([0.0, 1.0, 7.0, 40.0, 200.0, 900.0, 20_000.0])
TRACES = st.lists(st.tuples(GAPS, st.floats(0, 400), st.sampled_from(["a", "b"])), min_size=1, max_size=40).map(
    _in_order
)
POLICIES = st.sampled_from([*ScalingPolicy])
TERMS = st.builds(Terms, boot_s=st.floats(1, 600), most=st.integers(1, 6))
