"""What is decided while RunPod gives no list of pods: everything that does not need one."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.actions import Action, Delete, Flush, MarkTerminated, Plan, Rescue, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Snapshot, Spent, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import Stage, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import absent, ago, busy, idle, policy, said, snapshot, spawning, terminating

MINE = WorkerMetadata(database_id="d1")  # rows whose pod this database asked for


def unlisted(*workers: Worker, **changes: Any) -> Snapshot:
    """A fleet whose pods are not listed."""
    base = replace(snapshot(*workers, database_id="d1", unlisted="502 from the provider"), pods=None)
    return replace(base, **changes)


def ends(made: Plan) -> dict[str, ExitCause]:
    """Who is ended, and why."""
    return {a.worker_id: a.cause for a in made.actions if isinstance(a, Terminate)}


def only(seen: Snapshot) -> Action | None:
    """The one thing that is done."""
    actions = plan(seen, policy()).actions
    assert len(actions) <= 1, actions
    return actions[0] if actions else None


def test_deadlines_idle_timeouts_and_requests_need_no_list() -> None:
    """Each of them would otherwise cost money, or hold a task, for as long as the provider's answer is odd."""
    fleet = (
        spawning("gpu-1", deadline_at=ago(60)),
        spawning("gpu-2", created_at=ago(1000)),
        busy("gpu-3", last_heartbeat=ago(90)),
        busy("gpu-5", drain_requested_at=ago(1)),
        busy("gpu-6", progress_at=ago(1500)),
    )
    assert ends(plan(unlisted(*fleet), policy())) == {
        "gpu-1": ExitCause.SPAWN_FAILED,
        "gpu-2": ExitCause.SPAWN_FAILED,
        "gpu-3": ExitCause.HEARTBEAT_LOST,
        "gpu-5": ExitCause.MANUAL,
        "gpu-6": ExitCause.TASK_STUCK,
    }


def test_an_idle_worker_times_out_without_a_list() -> None:
    """It would otherwise be paid for as long as the provider's answer is odd."""
    assert ends(plan(unlisted(idle("gpu-1", 700)), policy())) == {"gpu-1": ExitCause.IDLE_TIMEOUT}


def test_the_loop_waits_for_the_first_list() -> None:
    """After a restart it may show the pod of a lost reply: it is adopted, and not ended by its deadline."""
    late = spawning("gpu-1", Stage.POD_CREATED, deadline_at=ago(60))
    made = plan(unlisted(late, busy("gpu-2", last_heartbeat=ago(90)), unlisted=None, expired_leases=1), policy())
    assert [type(a) for a in made.actions] == [Rescue]


def test_a_budget_that_is_used_up_drains_without_a_list() -> None:
    """The money is counted by the rows."""
    made = plan(unlisted(busy("gpu-1"), spent=Spent(10, 1, 1)), policy(daily_budget_usd=10))
    assert ends(made) == {"gpu-1": ExitCause.BUDGET}


def test_earlier_lists_end_no_worker_and_confirm_no_absence() -> None:
    """Only a new list can show an absence; a failed list is none."""
    gone = {"pod-gpu-1": absent(500), "pod-gpu-2": absent(500)}
    sent = terminating("gpu-2", Stage.DELETING, waiting_on=WaitingOn.PROVIDER)
    made = plan(unlisted(busy("gpu-1"), sent, absent=gone, orphan_since={"pod-x": ago(500)}), policy())
    assert made.actions == ()


def test_no_pod_is_created_without_a_list() -> None:
    """A create whose reply is lost could not be found; the decision says what it waits for."""
    seen = unlisted(spawning("gpu-1", Stage.INTENT), expired_leases=1)
    seen = replace(seen, demand=(replace(seen.demand[0], claimable=50),))
    made = plan(seen, policy())
    assert [type(a) for a in made.actions] == [Rescue]
    assert made.decisions[0].target == 4
    assert any("no list of pods" in why and "502 from the provider" in why for why in said(made))


def test_a_pod_is_deleted_once_without_a_list_if_this_database_created_it() -> None:
    """Its record may be the very one that breaks the list."""
    one = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR, metadata=MINE)
    deleted = only(unlisted(one))
    assert isinstance(deleted, Delete)
    assert deleted.pod_id == "pod-gpu-1"
    assert only(unlisted(replace(one, waiting_on=WaitingOn.PROVIDER))) is None


@pytest.mark.parametrize("metadata", [WorkerMetadata(), WorkerMetadata(database_id="another")])
def test_a_row_that_may_be_a_copy_of_another_databases_touches_no_pod_without_a_list(metadata: WorkerMetadata) -> None:
    """Only a list can tell then whose the pod is: neither SSH nor a delete goes to it."""
    one = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR, metadata=metadata)
    assert only(unlisted(one)) is None
    silent = terminating("gpu-1", exit_cause=ExitCause.HEARTBEAT_LOST, metadata=metadata)
    assert only(unlisted(silent)) is None


def test_the_logs_of_an_unlisted_pod_are_fetched_and_not_given_up() -> None:
    """Unknown is not gone."""
    one = terminating("gpu-1", exit_cause=ExitCause.HEARTBEAT_LOST, metadata=MINE)
    flush = only(unlisted(one))
    assert isinstance(flush, Flush)
    assert flush.reachable


def test_an_intent_that_never_had_a_pod_ends_without_a_list() -> None:
    """There is nothing to look for."""
    refused = terminating("gpu-1", Stage.DELETING, pod_id=None, failure_code=FailureCode.NO_CAPACITY)
    assert isinstance(only(unlisted(refused)), MarkTerminated)
