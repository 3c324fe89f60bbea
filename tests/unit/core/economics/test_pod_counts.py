"""How many workers of a replay boot, work and are idle, over time."""

import pytest
from hypothesis import given, settings

from orchestrator.core.economics import what_if
from orchestrator.core.economics.pod_counts import pod_counts
from orchestrator.core.economics.recorded import PoolCosts, RecordedPool
from orchestrator.core.economics.replay import RecordedTask
from orchestrator.core.economics.scaling_settings import ScalingSettings
from tests.unit.core.economics.traces import TRACES

COSTS = PoolCosts(usd=1.0, paid_s=3_600, boots=1, boot_s=60)


def replayed(tasks: list[RecordedTask], until: float) -> what_if.PoolReplayed:
    pool = RecordedPool("a", tasks, [0.0] * len(tasks), COSTS)
    (done,) = what_if.replayed_fleet([pool], {"a": ScalingSettings(max_active=5)}, 0.0, until)
    return done


def test_a_lone_task_boots_a_worker_that_works_and_is_then_idle() -> None:
    """A boot of 60 s, a run of 30 s and 600 s of idleness, in steps of a minute."""
    counts = pod_counts([replayed([RecordedTask(0, 30)], 900)], 0, 900, 15)
    assert [one.at for one in counts] == [60.0 * step for step in range(15)]
    assert [one.booting for one in counts[:3]] == [1, 0, 0]
    assert [one.busy for one in counts[:3]] == [0, 0.5, 0]
    assert [one.idle for one in counts[:3]] == [0, 0.5, 1]
    assert [one.idle for one in counts[11:13]] == [0.5, 0]


@settings(max_examples=30, deadline=None)
@given(tasks=TRACES)
def test_the_steps_together_are_the_time_of_the_workers(tasks: list[RecordedTask]) -> None:
    """Whatever the number of steps is."""
    tasks = [task._replace(pool="a") for task in tasks]
    until = tasks[-1].arrival_s + 5_000
    done = replayed(tasks, until)
    for steps in (1, 7, 240):
        counts = pod_counts([done], 0, until, steps)
        step_s = until / steps
        assert sum(one.busy for one in counts) * step_s == pytest.approx(sum(task.duration_s for task in tasks))
        assert sum(one.busy + one.idle + one.booting for one in counts) * step_s == pytest.approx(done.paid_s)
        assert all(min(one.busy, one.idle, one.booting) >= 0 for one in counts)
