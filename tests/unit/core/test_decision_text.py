"""The sentence of a decision says what the pool needs, why, and what the tick does about it."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import decision_text
from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.model import Demand, Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.plurals import MOST_QUEUED
from tests.unit.core.build import busy, idle, policy, snapshot, spawning

NEW: dict[str, Any] = {"promoted_releases": frozenset()}


def told(made: Plan) -> str:
    """The sentence that the decision row of the only pool gives."""
    (decision,) = made.decisions
    kinds = {Spawn: "spawn", Terminate: "terminate"}
    actions = [f"{kinds[type(a)]} {a.worker_id}: …" for a in made.actions if isinstance(a, Spawn | Terminate)]
    blocked = [reason.as_json() for reason in decision.blocked]
    row = {"target": decision.target, "inputs": decision.inputs, "rule": decision.rule, "blocked": blocked}
    return decision_text.row_sentence({**row, "actions": actions})


@pytest.mark.parametrize(
    ("seen", "pool", "sentence"),
    [
        (snapshot(), {}, "no tasks ready → 0 workers"),
        (snapshot(claimable=5), {"tasks_per_gpu": 2}, "5 tasks ready, 2 per GPU → 3 workers; starting 3"),
        (snapshot(claimable=1), {}, "1 task ready, 3 per GPU → 1 worker; starting 1"),
        (snapshot(claimable=5, **NEW), {"tasks_per_gpu": 2},
         "5 tasks ready, 2 per GPU → 3 workers; starting 1 first, because this release is new"),
        (snapshot(busy("gpu-1"), claimable=3, running=1), {},
         "3 tasks ready and 1 running, 3 per GPU → 2 workers; starting 1"),
        (snapshot(claimable=30), {}, "30 tasks ready, 3 per GPU → 10 workers, but at most 4 are allowed; starting 4"),
        (snapshot(claimable=6), {"max_active": 1},
         "6 tasks ready, 3 per GPU → 2 workers, but at most 1 is allowed; starting 1"),
        (snapshot(), {"min_active": 2}, "no tasks ready, always at least 2 workers → 2 workers; starting 2"),
        (snapshot(busy("gpu-1"), running=1), {"keep_idle": 1},
         "no tasks ready and 1 running, 1 worker busy and 1 kept idle → 2 workers; starting 1"),
        (snapshot(idle("gpu-1", 9_999)), {}, "no tasks ready → 0 workers; ending 1"),
    ],
)  # fmt: skip
def test_a_decision_is_a_plain_sentence(seen: Snapshot, pool: dict[str, Any], sentence: str) -> None:
    """It names the part of the formula that decides."""
    assert told(plan(seen, policy(pool=pool))) == sentence


def test_tasks_of_a_paused_pool_are_not_said_to_be_none() -> None:
    """Workers that are there run them; no other is started for them."""
    paused = Demand("default", 0, 1, {"paused": 2}, None)
    text = told(plan(snapshot(busy("gpu-1"), demand=(paused,)), policy()))
    assert text == "2 tasks ready and 1 running, but spawning is paused, 3 per GPU → 1 worker"
    paused = Demand("default", 0, 0, {"paused": 1, "scheduled": 4}, None)
    assert told(plan(snapshot(demand=(paused,)), policy())) == "1 task ready, but spawning is paused → 0 workers"


def test_more_tasks_than_the_queue_counts_are_at_least_so_many() -> None:
    """The queue of a pool counts 10,000 tasks of a kind."""
    inputs = {"claimable": 10_000, "running": 2, "tasks_per_gpu": 1, "wanted": 4}
    assert decision_text.sentence(inputs, 4).startswith("at least 10,000 tasks ready and 2 running")
    text = Path("migrations/functions/queue/16_demand.sql").read_text(encoding="utf-8")
    assert f"c_most constant int := {MOST_QUEUED};" in text


def test_workers_are_counted_by_what_they_do() -> None:
    """Spawning workers are capacity that will be there."""
    made = plan(snapshot(busy("gpu-1"), idle("gpu-2", 5), spawning("gpu-3"), running=1), policy())
    assert decision_text.workers(made.decisions[0].inputs) == "2 ready (1 busy), 1 starting"
    assert decision_text.workers(plan(snapshot(), policy()).decisions[0].inputs) == "none"


def test_a_row_of_an_earlier_release_shows_what_it_has() -> None:
    """Its inputs may lack facts, or be absent."""
    row = {"rule": "ceil(4 / 2) = 2", "target": 2, "actions": [], "blocked": []}
    assert decision_text.row_sentence(row) == "ceil(4 / 2) = 2"
    assert decision_text.row_sentence(row | {"inputs": {"claimable": 4, "running": "?"}}) == "4 tasks ready → 2 workers"
