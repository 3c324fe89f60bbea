"""Cost and waiting of the learned rule of scaling, relative to today's rule and to the best fixed window.

ECONOMICS_TRACE=tasks.csv (arrival_s,duration_s) adds the figures of recorded tasks; Poisson arrivals need no file.
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from orchestrator.cli.trace_file import read
from orchestrator.core.economics.daily_budget import DAY_S
from orchestrator.core.economics.guard import candidate_rule, cheapest
from orchestrator.core.economics.learned import LearnedRule
from orchestrator.core.economics.outcome import BY_REQUEST, gpu_s_by_day, outcome, paid_spans
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy, rule_for
from orchestrator.core.economics.replay import RecordedTask, Terms, replay
from orchestrator.core.economics.rule import Rule
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.windows import cold_start_s

TRIES = 4_000  # tasks of each Poisson trace
GOALS = {
    "tasks_to_fixed_60": ("<=", 0.88),
    "tasks_to_fixed_300": ("<=", 0.56),
    "longest_wait_boots": ("<=", 5.1),
    "guard_to_best_60": ("<=", 1.02),
    "guard_to_best_300": ("<=", 1.02),
    "replay_100k_s": ("<=", 10.0),
}
LOADS = (0.1, 0.3, 1.0, 2.0)  # mean number of busy workers
RUN_S = 30.0
MOST = 20
TOLD = tuple(f"poisson_{load:g}_to_best_window_{boot_s}" for load in LOADS for boot_s in (60, 300))
SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)  # windows in hindsight, in cold starts
WAIT_PRICE = 1.0


@dataclass(slots=True)
class ConstantWindow(LearnedRule):
    """The learned rule, but an idle worker is kept for a constant time."""

    kept_s: float = 0.0

    def window(self, level: int, now: float) -> float:  # noqa: ARG002  a constant depends on nothing
        """Return the constant."""
        return self.kept_s


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one replay."""

    total_s: float
    longest_wait_s: float


async def measure(_: Path, tries: int) -> dict[str, Any]:
    """Ratios of cost + waiting, by boot time in seconds."""
    figures: dict[str, Any] = {}
    if trace := os.environ.get("ECONOMICS_TRACE"):
        tasks = read(trace)
        for boot_s in (60, 120, 300, 600):
            for name, some in {"tasks": tasks, "tenth": tasks[::10], "hundredth": tasks[::100]}.items():
                figures[f"{name}_to_fixed_{boot_s}"] = _to_fixed(some, boot_s)
        figures["longest_wait_boots"] = max(_sums(tasks, boot_s, ScalingPolicy.LEARNED).longest_wait_s / boot_s
                                            for boot_s in (60, 120, 300, 600))  # fmt: skip
        figures |= _by_days(tasks)
        figures |= {f"guard_to_best_{boot_s}": _guard_to_best(tasks, boot_s) for boot_s in (60, 300)}
    for load in LOADS:
        for boot_s in (60, 300):
            figures[f"poisson_{load:g}_to_best_window_{boot_s}"] = _to_best_window(_poisson(load, tries), boot_s)
    began_s = time.process_time()
    _sums(_poisson(LOADS[-1], 100_000), 60, ScalingPolicy.LEARNED)
    return figures | {"replay_100k_s": time.process_time() - began_s}


def _sums(tasks: Sequence[RecordedTask], boot_s: float, policy: ScalingPolicy | Callable[[str], Rule]) -> Sums:
    rule = rule_for(policy, boot_s, WAIT_PRICE) if isinstance(policy, ScalingPolicy) else policy
    summed = outcome(tasks, replay(tasks, rule, Terms(boot_s, MOST)))
    return Sums(summed.cost_and_waiting_s(WAIT_PRICE), summed.wait_max_s or 0.0)


def _to_fixed(tasks: Sequence[RecordedTask], boot_s: float) -> float:
    learned, fixed = (_sums(tasks, boot_s, policy).total_s for policy in (ScalingPolicy.LEARNED, ScalingPolicy.FIXED))
    return learned / fixed


def _to_best_window(tasks: Sequence[RecordedTask], boot_s: float) -> float:
    def constant(share: float) -> Callable[[str], Rule]:
        kept_s = share * cold_start_s(boot_s, WAIT_PRICE)
        return lambda _: ConstantWindow(Statistics(boot_s), WAIT_PRICE, kept_s=kept_s)

    best_s = min(_sums(tasks, boot_s, constant(share)).total_s for share in SHARES)
    return _sums(tasks, boot_s, ScalingPolicy.LEARNED).total_s / best_s


def _guard_to_best(tasks: Sequence[RecordedTask], boot_s: float) -> float:
    """Return the cost of the days that each run the candidate that was cheapest before, relative to the best one."""
    settings = ScalingSettings(max_active=MOST, wait_price=WAIT_PRICE)
    costs_s: dict[ReviewCandidate, defaultdict[int, float]] = {}
    for one in ReviewCandidate:
        rule = candidate_rule(one, settings, boot_s)
        done = replay(tasks, partial(_same, rule), Terms(boot_s, MOST))
        days = defaultdict(float, gpu_s_by_day(paid_spans(tasks, done, BY_REQUEST)))
        for task, start in zip(tasks, done.tasks, strict=True):
            days[int(task.arrival_s // DAY_S)] += (start.at if start else inf) - task.arrival_s
        costs_s[one] = days
    first, last = (int(task.arrival_s // DAY_S) for task in (tasks[0], tasks[-1]))
    guarded_s = 0.0
    judged = range(first + 1, last + 1)
    for day in judged:
        week = range(max(first, day - 7), day)
        guarded_s += costs_s[cheapest({one: sum(days[at] for at in week) for one, days in costs_s.items()})][day]
    return guarded_s / min(sum(days[day] for day in judged) for days in costs_s.values())


def _same(rule: Rule, _: str) -> Rule:
    """Return the rule, in whichever pool."""
    return rule


def _by_days(tasks: Sequence[RecordedTask]) -> dict[str, float]:
    """Return the ratios of the first and the second half of the days: a rule that only fits one of them differs."""
    middle_s = (tasks[0].arrival_s + tasks[-1].arrival_s) / 2
    halves = {
        "first_half": [task for task in tasks if task.arrival_s < middle_s],
        "second_half": [task for task in tasks if task.arrival_s >= middle_s],
    }
    return {
        f"{name}_to_fixed_{boot_s}": _to_fixed(some, boot_s) for name, some in halves.items() for boot_s in (60, 300)
    }


def _poisson(load: float, count: int) -> list[RecordedTask]:
    chance = random.Random(f"{load}")
    now, tasks = 0.0, []
    for _ in range(count):
        now += chance.expovariate(load / RUN_S)
        tasks.append(RecordedTask(now, chance.expovariate(1 / RUN_S)))
    return tasks
