"""What a tick writes down: each pool's own actions in its own row."""

from dataclasses import replace
from typing import Any, cast

from structlog.testing import capture_logs

from orchestrator.core.plan import plan
from orchestrator.loop.decisions import DecisionRecorder
from orchestrator.ports import Store
from tests.unit.core.build import idle, policy, snapshot


class Rows:
    """A store that keeps decisions."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def record_decision(self, term: int, row: dict[str, Any]) -> None:
        self.rows.append(row)


async def test_a_pools_decision_names_only_its_own_workers() -> None:
    """One pool's termination is nothing that another decided."""
    both = policy()
    both = replace(both, pools=(*both.pools, replace(both.pools[0], name="training")))
    seen = snapshot(idle("gpu-here", 5), idle("gpu-there", 9_999, pool="training"), claimable=1)
    store = Rows()
    await DecisionRecorder(cast("Store", store)).record(1, seen, plan(seen, both))
    named = {row["pool"]: [action.split(":")[0] for action in row["actions"]] for row in store.rows}
    assert named == {"default": [], "training": ["terminate gpu-there"]}


def test_the_cycle_summary_counts_every_queued_task() -> None:
    """Also tasks that wait for a dependency, for their time or for the end of a pause."""
    seen = snapshot(claimable=2, running=1, blocked={"dependencies": 3, "scheduled": 4, "paused": 5})
    with capture_logs() as logged:
        DecisionRecorder(cast("Store", Rows())).sum_up(seen, plan(seen, policy()), tick_s=0.1, observe_s=0.1)
    assert [line["status"]["queued_tasks"] for line in logged if line["event"] == "cycle_ended"] == [14]
