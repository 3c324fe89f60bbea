"""RunPod's list against the rows."""

from dataclasses import replace
from typing import Any

from orchestrator.cli.commands.diagnose import hourly_cost
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.diagnostics.collect import runpod
from orchestrator.diagnostics.drift import drift
from tests.unit.core.build import NOW, ago, pod_of, worker


def row(name: str, status: str = "active", age_s: float = 600, **changes: Any) -> dict[str, Any]:
    """A row as the database gives it."""
    return {"id": name, "status": status, "pod_id": f"pod-{name}", "created_at": ago(age_s).isoformat()} | changes


def pod(name: str, **changes: Any) -> Pod:
    """The pod of a worker of this name."""
    return replace(pod_of(worker(name)), **changes)


def test_equal_rows_and_pods_are_no_drift() -> None:
    """A pod and its row; an intent without a pod, whose pod is up although no answer came; a new one."""
    rows = [row("a"), row("b", "spawning", pod_id=None), row("c", "spawning", age_s=5), row("d", "terminating")]
    found = drift([pod("a"), pod("b")], rows, "test", "ours", NOW)
    assert not found
    assert (found.pods, found.foreign) == (2, 0)


def test_pods_without_rows_are_named_with_their_price() -> None:
    """Of an ended worker, or a second pod of one that has its own; not another fleet's."""
    rows = [row("a"), row("z", "terminated")]
    pods = [pod("a"), pod("a", id="second"), pod("z"), pod("x", fleet_id="other"), pod("y", fleet_id=None)]
    found = drift(pods, rows, "test", "ours", NOW)
    assert [orphan.pod_id for orphan in found.orphans] == ["second", "pod-z"]
    assert (found.usd_per_hour, found.cost, found.foreign) == (0.8, "$0.80/h", 2)


def test_a_sum_of_prices_says_that_one_is_not_known() -> None:
    """RunPod's list may lack it, and the pod costs money all the same."""
    pods = [pod("a"), pod("b", price_usd_per_hour=None)]
    found = drift(pods, [], "test", "ours", NOW)
    assert (found.usd_per_hour, found.cost) == (0.4, "at least $0.40/h")
    [theirs] = drift([replace(one, database_id="dev") for one in pods], [], "test", "ours", NOW).foreign_pods
    assert (theirs.usd_per_hour, theirs.unpriced) == (0.4, 1)
    assert theirs.what == "2 pods of fleet test belong to another database (at least $0.40/h)"
    state, _ = runpod(pods, "test", {"database_id": "ours"})
    assert (state["total_hourly_cost"], state["unpriced_pods"]) == (0.4, 1)
    assert hourly_cost(state) == "at least $0.40"
    assert hourly_cost(runpod(pods[:1], "test", {"database_id": "ours"})[0]) == "$0.40"


def test_pods_of_another_database_are_listed_separately() -> None:
    """They have this fleet's name and are neither orphans nor foreign; those without an identity are ours."""
    rows = [row("a"), row("b")]
    theirs = [pod(name, database_id=database) for name, database in (("x", "dev"), ("y", "old"), ("z", "dev"))]
    found = drift([pod("a", database_id="ours"), pod("b"), *theirs], rows, "test", "ours", NOW)
    assert not found
    assert [(one.database_id, one.pods, one.usd_per_hour) for one in found.foreign_pods] == [
        ("dev", ("pod-x", "pod-z"), 0.8),
        ("old", ("pod-y",), 0.4),
    ]
    assert (found.pods, found.foreign) == (2, 0)


def test_rows_without_pods_are_named_with_what_runpod_says() -> None:
    """Not listed, or ended; a worker that ends anyway is not."""
    rows = [row("a"), row("b"), row("c", "terminating")]
    found = drift([pod("b", status=PodStatus.EXITED)], rows, "test", "ours", NOW)
    assert [(one.worker_id, one.pod_status) for one in found.bereft] == [("a", None), ("b", "EXITED")]
