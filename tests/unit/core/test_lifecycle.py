"""What each live worker needs next."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from orchestrator.core.actions import (
    Action,
    Adopt,
    ContinueBringUp,
    Create,
    Delete,
    DeleteOrphan,
    Flush,
    MarkTerminated,
    Rescue,
    SetActivity,
    Terminate,
    UpdateAddress,
    Wait,
)
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Snapshot, Worker
from orchestrator.core.plan import ROWS_PER_TICK, in_transition, plan
from orchestrator.core.pod_tracking import UNLISTED_ORPHAN_S, PodTracker, fold
from orchestrator.core.provider import PodStatus
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import (
    A40,
    L4,
    NOW,
    absent,
    ago,
    busy,
    cooling,
    idle,
    pod_of,
    policy,
    snapshot,
    spawning,
    terminating,
    worker,
)


def only(seen: Snapshot, claimable: int = 3) -> Action | None:
    """The one thing that the plan does (enough demand keeps scaling quiet for a fleet of one)."""
    seen = replace(seen, demand=(replace(seen.demand[0], claimable=claimable),))
    actions = [a for a in plan(seen, policy(pool={"max_active": 1})).actions if type(a).__name__ != "Spawn"]
    assert len(actions) <= 1, actions
    return actions[0] if actions else None


def end(action: Action | None) -> tuple[ExitCause, FailureCode | None]:
    assert isinstance(action, Terminate), action
    return action.cause, action.code


def test_a_recorded_intent_asks_for_the_first_offer() -> None:
    """An operator's intent, or one that was refused elsewhere, is created through the same action."""
    action = only(snapshot(spawning("gpu-1", Stage.INTENT)))
    assert isinstance(action, Create)
    assert action.offer == A40


def test_an_intent_without_an_offer_says_what_it_waits_for() -> None:
    """When every offer cools down, the wait is written once."""
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    action = only(snapshot(spawning("gpu-1", Stage.INTENT), offers=dry))
    assert isinstance(action, Wait)
    assert action.waiting_on == WaitingOn.CAPACITY
    assert action.until_s == 20
    said = spawning("gpu-1", Stage.INTENT, waiting_on=action.waiting_on, waiting_for=action.waiting_for)
    assert only(snapshot(said, offers=dry)) is None


def test_an_intent_waits_until_its_next_attempt() -> None:
    """A rate limit is honoured."""
    later = NOW + timedelta(seconds=9)
    assert only(snapshot(spawning("gpu-1", Stage.INTENT, next_attempt_at=later))) is None


@pytest.mark.parametrize("stage", [Stage.INTENT, Stage.POD_CREATED])
def test_a_pod_with_the_id_of_a_live_intent_is_adopted(stage: Stage) -> None:
    """The reply to the create call was lost; the pod is found by its worker id, whatever its stage's deadline.

    Nor is another one asked for in the same tick, if the row has gone back to the intent.
    """
    lost = spawning("gpu-1", stage, deadline_at=ago(60))
    action = only(snapshot(lost, pods=(pod_of(lost),)))
    why = action.reason if isinstance(action, Adopt) else ""
    assert action == Adopt("gpu-1", "pod-gpu-1", why, usd_per_hour=0.4, billed_s=100)


def test_a_pod_is_adopted_before_its_worker_is_ended() -> None:
    """What it has cost since it was asked for is booked only of a pod that the row names."""
    lost = spawning(
        "gpu-1", Stage.POD_CREATED, created_at=ago(4_000), stage_since=ago(3_990), drain_requested_at=ago(5)
    )
    action = only(snapshot(lost, pods=(pod_of(lost),)))
    assert isinstance(action, Adopt)
    assert action.billed_s == 3_990


def test_another_fleets_pod_is_never_adopted_or_deleted() -> None:
    """Ownership is the fleet id in the pod's environment, not the name."""
    lost = spawning("gpu-1", Stage.POD_CREATED)
    foreign = pod_of(lost, fleet_id="other")
    assert only(snapshot(lost, pods=(foreign,), orphan_since={foreign.id: ago(900)})) is None


@pytest.mark.parametrize(
    ("fleet", "database", "ours", "strange"),
    [
        ("test", "mine", True, False),
        ("test", None, True, False),  # an earlier release made it
        ("test", "theirs", False, True),
        ("other", "mine", False, False),
        ("other", "theirs", False, False),
        (None, None, False, False),
    ],
)
def test_a_pod_is_of_one_fleet_in_one_database(
    fleet: str | None, database: str | None, ours: bool, strange: bool
) -> None:
    """Staging and production may have the same fleet id and the same account."""
    pod = pod_of(worker("gpu-1"), fleet_id=fleet, database_id=database)
    assert (pod.is_of("test", "mine"), pod.is_foreign("test", "mine")) == (ours, strange)


def test_a_row_that_names_another_databases_pod_ends_without_its_delete() -> None:
    """It was copied with that database, which got an identity of its own afterwards."""
    copied = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR)
    seen = snapshot(copied, pods=(), foreign_pods=(pod_of(copied),), absent={"pod-gpu-1": absent(60)})
    assert isinstance(only(seen), MarkTerminated)
    assert isinstance(only(replace(seen, foreign_pods=())), Delete)


def test_a_create_without_an_answer_waits_for_its_deadline() -> None:
    """No clear answer and no pod of that name: nothing is asked again before the deadline ends it."""
    assert only(snapshot(spawning("gpu-1", Stage.POD_CREATED))) is None
    late = spawning("gpu-1", Stage.POD_CREATED, deadline_at=ago(6))
    assert end(only(snapshot(late))) == (ExitCause.SPAWN_FAILED, FailureCode.CREATE_UNKNOWN)


def test_a_worker_with_a_pod_is_brought_up_once() -> None:
    """Bring-up starts unless it is already running."""
    seen = snapshot(spawning("gpu-1"))
    assert only(seen) == ContinueBringUp("gpu-1")
    assert only(replace(seen, bringing_up=frozenset({"gpu-1"}))) is None


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (Stage.POD_RUNNING, FailureCode.NO_RUNTIME),
        (Stage.SSH_DETAILS, FailureCode.SSH_DETAILS_MISSING),
        (Stage.TCP, FailureCode.TCP_TIMEOUT),
        (Stage.SSH_AUTH, FailureCode.AUTH_FAILED),
        (Stage.DEPLOY, FailureCode.STALE_CODE),
        (Stage.PROCESS, FailureCode.NO_PROCESS),
        (Stage.HEARTBEAT, FailureCode.NO_HEARTBEAT),
    ],
)
def test_the_watchdog_ends_a_stage_past_its_deadline(stage: Stage, code: FailureCode) -> None:
    """A bring-up that hangs is ended from outside, with the stage's own code."""
    hung = spawning("gpu-1", stage, deadline_at=ago(6))
    assert end(only(snapshot(hung, bringing_up=frozenset({"gpu-1"})))) == (ExitCause.SPAWN_FAILED, code)


def test_the_hard_cap_ends_the_whole_bringup() -> None:
    """Stages that each keep their deadline cannot add up for ever."""
    slow = spawning("gpu-1", Stage.DEPLOY, created_at=ago(901))
    assert end(only(snapshot(slow))) == (ExitCause.SPAWN_FAILED, FailureCode.STALE_CODE)


@pytest.mark.parametrize("code", [FailureCode.BALANCE, FailureCode.API_AUTH, FailureCode.BAD_SPEC])
def test_a_hopeless_refusal_ends_the_intent(code: FailureCode) -> None:
    """What the provider will refuse again is not asked again with the same row."""
    refused = spawning("gpu-1", Stage.INTENT, failure_code=code, waiting_on=WaitingOn.OPERATOR)
    assert end(only(snapshot(refused))) == (ExitCause.SPAWN_FAILED, code)


def test_a_pod_in_an_unknown_state_is_not_lost_and_does_not_stay_for_ever() -> None:
    """It is no reason to end a worker; a worker that has to end and an orphan are deleted all the same."""
    odd = {"status": PodStatus.UNKNOWN, "has_runtime": False}
    one = busy("gpu-1")
    assert isinstance(only(snapshot(one, pods=(pod_of(one, **odd),))), Wait)
    leaves = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR)
    assert isinstance(only(snapshot(leaves, pods=(pod_of(leaves, **odd),))), Delete)
    orphan = pod_of(worker("gpu-9"), **odd)
    assert isinstance(only(snapshot(pods=(orphan,), orphan_since={orphan.id: ago(900)})), DeleteOrphan)


@pytest.mark.parametrize(
    ("status", "code"), [(PodStatus.EXITED, FailureCode.POD_EXITED), (PodStatus.ERROR, FailureCode.POD_ERROR)]
)
def test_a_pod_that_exited_ends_its_bringup(status: PodStatus, code: FailureCode) -> None:
    """The provider's own word for dead is believed."""
    one = spawning("gpu-1")
    assert end(only(snapshot(one, pods=(pod_of(one, status=status),)))) == (ExitCause.SPAWN_FAILED, code)


@pytest.mark.parametrize("status", [PodStatus.EXITED, PodStatus.ERROR])
def test_a_single_list_does_not_end_a_worker_that_still_sends_heartbeats(status: PodStatus) -> None:
    """A worker ends as exited only after two such lists and an age without a heartbeat in it."""
    one = busy("gpu-1", last_heartbeat=ago(12))
    dead = (pod_of(one, status=status),)
    assert not isinstance(only(snapshot(one, pods=dead)), Terminate)
    assert not isinstance(only(snapshot(one, pods=dead, exited={"pod-gpu-1": absent(11, lists=1)})), Terminate)
    heard = replace(one, last_heartbeat=ago(5))
    assert not isinstance(only(snapshot(heard, pods=dead, exited={"pod-gpu-1": absent(11)})), Terminate)
    unanswered_at = snapshot(one, pods=dead, exited={"pod-gpu-1": absent(11)}, unanswered_at={"gpu-1": ago(3)})
    assert not isinstance(only(unanswered_at), Terminate)
    silent = only(snapshot(one, pods=dead, exited={"pod-gpu-1": absent(11)}))
    assert isinstance(silent, Terminate)
    assert silent.cause is ExitCause.POD_LOST


def test_a_silent_worker_whose_pod_is_listed_as_exited_ends_for_that_reason() -> None:
    """Silence confirms the list: the cause is the end of the pod, which a poison task leaves, not a lost heartbeat."""
    one = busy("gpu-1", last_heartbeat=ago(600))
    end = only(snapshot(one, pods=(pod_of(one, status=PodStatus.EXITED),)))
    assert isinstance(end, Terminate)
    assert (end.cause, end.code) == (ExitCause.POD_LOST, FailureCode.POD_EXITED)


def test_lists_that_show_a_pod_as_ended_are_counted_until_one_shows_it_running() -> None:
    """One list that shows the pod running starts the count from the beginning."""
    one = busy("gpu-1")
    seen = PodTracker()
    for second, status in enumerate([PodStatus.EXITED, PodStatus.EXITED, PodStatus.RUNNING, PodStatus.EXITED]):
        seen = fold(seen, (pod_of(one, status=status),), (one,), "test", NOW + timedelta(seconds=second))
        counted = seen.ended.get("pod-gpu-1")
        assert (counted.lists if counted else 0) == [1, 2, 0, 1][second]


def test_one_incomplete_absence_ends_no_worker() -> None:
    """A pod must be missing from two lists and for a while; what is seen is said from the first list on."""
    one = busy("gpu-1", last_heartbeat=ago(40))
    seen = only(snapshot(one, pods=(), absent={"pod-gpu-1": absent(0, lists=1)}))
    assert isinstance(seen, Wait)
    assert seen.waiting_for.startswith("its pod, missing from RunPod's lists since ")
    assert seen.waiting_for.endswith(": it counts as gone after 10 s of such lists")
    assert isinstance(only(snapshot(one, pods=(), absent={"pod-gpu-1": absent(5, lists=2)})), Wait)
    lost = snapshot(one, pods=(), absent={"pod-gpu-1": absent(11)})
    assert end(only(lost)) == (ExitCause.POD_LOST, FailureCode.POD_MISSING)


@pytest.mark.parametrize("shown", [None, PodStatus.EXITED])
def test_lists_end_no_idle_worker_whose_next_heartbeat_is_not_due(shown: PodStatus | None) -> None:
    """It beats three times in HEARTBEAT_TIMEOUT_SEC, and lists are believed sooner; with a task far oftener."""

    def judged(one: Worker, **changes: Any) -> bool:
        pods = (pod_of(one, status=shown),) if shown else ()
        seen = replace(snapshot(one, pods=pods), **changes)
        lists = {"pod-gpu-1": absent(11)}
        return isinstance(only(replace(seen, exited=lists) if shown else replace(seen, absent=lists)), Terminate)

    assert not judged(idle("gpu-1", 100, last_heartbeat=ago(21)))
    assert judged(idle("gpu-1", 100, last_heartbeat=ago(25)))
    assert not judged(idle("gpu-1", 100, last_heartbeat=ago(25)), window=ObservationWindow(ago(15)))
    assert not judged(idle("gpu-1", 100, last_heartbeat=ago(25)), unanswered_at={"gpu-1": ago(12)})
    assert judged(busy("gpu-1", last_heartbeat=ago(12)))


def test_the_end_of_a_vanished_pod_says_when_a_list_last_showed_it() -> None:
    """Until then it is booked; without an earlier observation, until it was first missed: a budget must hold."""
    one = busy("gpu-1", last_heartbeat=ago(40))
    for shown, booked_until in ((ago(13), ago(13)), (None, absent(11).since)):
        action = only(snapshot(one, pods=(), absent={"pod-gpu-1": replace(absent(11), shown=shown)}))
        assert isinstance(action, Terminate)
        assert action.listed_at == booked_until


def test_an_implausible_list_is_remarked_on_once_until_lists_are_plausible_again() -> None:
    """The row says what the list does not show; nothing is done about it, and nothing is written twice."""
    one = busy("gpu-1")
    bare = replace(pod_of(one), has_runtime=False)
    said = only(snapshot(one, pods=(bare,)))
    assert isinstance(said, Wait)
    assert (said.waiting_on, said.from_state) == (WaitingOn.PROVIDER, State.ACTIVE)
    told = replace(one, waiting_on=WaitingOn.PROVIDER, waiting_for=said.waiting_for)
    assert only(snapshot(told, pods=(bare,))) is None
    well = only(snapshot(told))
    assert isinstance(well, Wait)
    assert (well.waiting_on, well.waiting_for) == (WaitingOn.WORKER, "tasks")


def test_a_worker_that_sends_heartbeats_is_not_lost() -> None:
    """A heartbeat that came after its pod left the lists: they are complete, well-formed and wrong."""
    speaks = busy("gpu-1", last_heartbeat=ago(5))
    assert isinstance(only(snapshot(speaks, pods=(), absent={"pod-gpu-1": absent(30)})), Wait)


def test_silence_counts_from_when_we_listened() -> None:
    """A heartbeat lost while this orchestrator was away itself is no evidence."""
    silent = busy("gpu-1", last_heartbeat=ago(300))
    assert end(only(snapshot(silent))) == (ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT)
    assert only(snapshot(silent, window=ObservationWindow(ago(20)))) is None


def outages(every_s: float, lasting_s: float, until_s: float = 0) -> tuple[tuple[datetime, datetime], ...]:
    """Of the database, for the last hour or so, the newest of them over `until_s` ago."""
    starts = [until_s + lasting_s + number * every_s for number in range(int(3600 // every_s))]
    return tuple((ago(start), ago(start - lasting_s)) for start in reversed(starts))


@pytest.mark.parametrize(
    ("every_s", "lasting_s", "until_s", "silent_s", "dead"),
    [
        (30, 5, 0, 80, False),  # 20 s heard in each 30, if agents come back as slowly as they may
        (30, 5, 0, 95, True),
        (30, 15, 0, 340, False),  # 5 s in each 30
        (30, 15, 0, 360, True),
        (30, 28, 0, 3600, False),  # nobody need have come through
        (3600, 600, 50, 665, False),  # a long one: 15 s before it, and 40 s after it
        (3600, 600, 50, 675, True),
    ],
)
def test_silence_is_counted_across_the_outages_of_the_database(
    every_s: float, lasting_s: float, until_s: float, silent_s: float, dead: bool
) -> None:
    """However often it drops out, a dead worker is known as one in the end, and no live one is taken for it."""
    silent = busy("gpu-1", last_heartbeat=ago(silent_s))
    window = ObservationWindow(ago(7200), outages(every_s, lasting_s, until_s))
    action = only(snapshot(silent, window=window))
    assert (action is not None) == dead
    if dead:
        assert end(action) == (ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT)


def test_a_worker_that_got_no_answer_from_us_is_not_silent() -> None:
    """It called and we were too busy: we know that it is alive, although no row says so."""
    unheard = busy("gpu-1", last_heartbeat=ago(300))
    assert only(snapshot(unheard, unanswered_at={"gpu-1": ago(20)})) is None
    gone_since = end(only(snapshot(unheard, unanswered_at={"gpu-1": ago(90)})))
    assert gone_since == (ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT)


def test_an_operators_request_drains_from_any_live_state() -> None:
    """Termination by request takes the same steps as every other."""
    for one in (busy("gpu-1"), idle("gpu-1", 5), spawning("gpu-1")):
        assert end(only(snapshot(replace(one, drain_requested_at=ago(1)))))[0] == ExitCause.MANUAL


def test_an_agent_that_asks_for_nothing_is_idle() -> None:
    """It beats, so it is not lost; it holds nothing and never says that it is idle: it would be paid for for ever."""
    mute = worker("gpu-1", state_since=ago(9_000), empty_since=ago(121))
    action = only(snapshot(mute))
    assert action == SetActivity("gpu-1", State.ACTIVE, State.IDLE, "held no task for 121 s")
    assert only(snapshot(replace(mute, empty_since=ago(110)))) is None
    assert only(snapshot(replace(mute, tasks_running=1, empty_since=None))) is None


def test_the_state_of_an_own_program_follows_the_tasks_it_holds() -> None:
    """A program that claims in its own way is idle when it has held nothing for a while."""
    free = worker("gpu-1", own_program=True, state_since=ago(61))
    assert only(snapshot(free)) == SetActivity("gpu-1", State.ACTIVE, State.IDLE, "held no task for 61 s")
    taken = idle("gpu-1", 5, own_program=True, tasks_running=2)
    assert only(snapshot(taken)) == SetActivity("gpu-1", State.IDLE, State.ACTIVE, "holds 2 tasks")


@pytest.mark.parametrize(("still_s", "steady_s", "stuck"), [(1259, 9000, False), (1260, 9000, True), (5000, 60, False)])
def test_a_stuck_task_that_its_agent_does_not_end_ends_its_worker(still_s: float, steady_s: float, stuck: bool) -> None:
    """The agent has HEARTBEAT_TIMEOUT_SEC for it, from when we could have heard of it. Task and time are named."""
    one = busy("gpu-1", progress_at=ago(still_s), slowest_task="7f3a")
    action = only(snapshot(one, running=1, window=ObservationWindow(ago(steady_s))))
    if not stuck:
        assert action is None
        return
    assert end(action) == (ExitCause.TASK_STUCK, None)
    assert isinstance(action, Terminate)
    assert action.reason == (
        "task 7f3a showed no sign of life for 1260 s and was not ended by its agent, TASK_STUCK_TIMEOUT_SEC=1200"
    )


HERE: dict[str, Any] = {"ssh_host": "1.2.3.4", "ssh_port": 40_001}


@pytest.mark.parametrize(
    "one",
    [
        spawning("gpu-1", Stage.EXEC, **HERE),
        busy("gpu-1", **HERE),
        idle("gpu-1", 10, **HERE),
        terminating("gpu-1", exit_cause=ExitCause.HEARTBEAT_LOST, **HERE),
        terminating("gpu-1", Stage.FLUSHING, metadata=WorkerMetadata(unreached=3), stage_since=ago(20), **HERE),
    ],
    ids=lambda one: f"{one.state} {one.stage}",
)
def test_the_ssh_address_follows_the_list(one: Worker) -> None:
    """In every state, before any action that connects to the pod: an end that began must still reach it."""
    moved = snapshot(one, pods=(pod_of(one, ssh_host="1.2.3.4", ssh_port=40_002),))
    why = "SSH moved from 1.2.3.4:40001 to 1.2.3.4:40002, as RunPod's list shows"
    assert only(moved) == UpdateAddress("gpu-1", one.state, "1.2.3.4", 40_002, why)
    assert not isinstance(only(snapshot(one, pods=(pod_of(one, **HERE),))), UpdateAddress)
    assert not isinstance(only(snapshot(one, pods=(pod_of(one, ssh_host=None, ssh_port=None),))), UpdateAddress)
    assert only(replace(moved, in_flight=frozenset({"gpu-1"}))) is None


def test_a_list_with_another_address_each_time_does_not_keep_a_lost_worker() -> None:
    """What ends a worker needs no address."""
    late = spawning("gpu-1", Stage.EXEC, deadline_at=ago(60), **HERE)
    assert isinstance(only(snapshot(late, pods=(pod_of(late, ssh_host="1.2.3.4", ssh_port=40_002),))), Terminate)


def test_a_row_without_an_address_is_not_given_one() -> None:
    """Bring-up does that, in its stage ssh_details."""
    assert only(snapshot(spawning("gpu-1"))) == ContinueBringUp("gpu-1")


def test_a_worker_in_flight_is_left_alone() -> None:
    """An action under way is not doubled."""
    silent = busy("gpu-1", last_heartbeat=ago(300))
    assert only(snapshot(silent, in_flight=frozenset({"gpu-1"}))) is None


def test_a_draining_worker_finishes_its_task() -> None:
    """The grace is given in full, and not longer."""
    one = terminating("gpu-1", tasks_running=1, exit_cause=ExitCause.MANUAL)
    assert only(snapshot(one)) is None
    assert isinstance(only(snapshot(replace(one, state_since=ago(601)))), Flush)
    assert isinstance(only(snapshot(replace(one, stop_requested_at=ago(1)))), Flush)
    assert isinstance(only(snapshot(replace(one, tasks_running=0))), Flush)


def test_no_drain_time_for_a_failed_worker() -> None:
    """Its tasks were rescued when it failed; only its logs are still wanted."""
    one = terminating("gpu-1", tasks_running=1, exit_cause=ExitCause.HEARTBEAT_LOST)
    action = only(snapshot(one))
    assert isinstance(action, Flush)
    assert action.reachable


@pytest.mark.parametrize(
    ("met", "worth_a_look"),
    [
        ({"host_key": "ssh-ed25519 A"}, True),  # SSH let us in, and a later stage failed
        ({"host_key": "ssh-ed25519 A", "failure_code": FailureCode.POD_MISMATCH}, False),  # it was somebody else's pod
        ({"failure_code": FailureCode.TCP_REFUSED}, False),
    ],
    ids=str,
)
def test_a_pod_without_an_agent_gets_a_final_snapshot_if_ssh_was_ever_reached(
    met: dict[str, Any], worth_a_look: bool
) -> None:
    """Without any successful SSH login there is nothing to wait for."""
    one = terminating("gpu-1", exit_cause=ExitCause.SPAWN_FAILED, nonce=None, **met)
    action = only(snapshot(one))
    assert isinstance(action, Flush)
    assert action.reachable is worth_a_look


def test_the_logs_of_a_lost_pod_are_declared_lost_at_once() -> None:
    """Nothing can be fetched from a pod that is gone."""
    one = terminating("gpu-1", exit_cause=ExitCause.POD_LOST, failure_code=FailureCode.POD_MISSING)
    action = only(snapshot(one, pods=()))
    assert isinstance(action, Flush)
    assert not action.reachable


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.FLUSHING])
@pytest.mark.parametrize("listed", [(), (PodStatus.EXITED,)], ids=["missing", "EXITED"])
def test_one_implausible_list_does_not_declare_the_log_of_a_live_pod_lost(
    stage: Stage, listed: tuple[PodStatus, ...]
) -> None:
    """The pod is asked for its logs until its absence or its end is proven, not only until a list looks odd."""
    ours: dict[str, Any] = {"last_heartbeat": ago(20), "metadata": WorkerMetadata(database_id="this")}
    one = terminating("gpu-1", stage, exit_cause=ExitCause.IDLE_TIMEOUT, stage_since=ago(20), **ours)
    pods = tuple(pod_of(one, status=status) for status in listed)
    once = {"pod-gpu-1": absent(0, lists=1)}
    odd = only(snapshot(one, pods=pods, absent=once, exited=once, database_id="this"))
    assert isinstance(odd, Flush)
    assert odd.reachable
    twice = {"pod-gpu-1": absent(11)}
    proven = only(snapshot(one, pods=pods, absent=twice, exited=twice, database_id="this"))
    assert isinstance(proven, Flush)
    assert not proven.reachable


def test_a_flush_is_retried_until_its_deadline_and_then_declared() -> None:
    """Logs hold up the delete for a bounded time."""
    one = terminating("gpu-1", Stage.FLUSHING, stage_since=ago(20))
    action = only(snapshot(one))
    assert isinstance(action, Flush)
    assert action.reachable
    late = only(snapshot(replace(one, stage_since=ago(61))))
    assert isinstance(late, Flush)
    assert (late.reachable, late.final) == (False, False)


def test_a_declaration_that_fails_is_retried_with_pauses_and_a_limit() -> None:
    """A ledger that cannot be written must not be asked at every tick, nor keep a pod that is paid for."""
    late = terminating("gpu-1", Stage.FLUSHING, stage_since=ago(61), next_attempt_at=NOW + timedelta(seconds=4))
    assert only(snapshot(late)) is None
    last = only(snapshot(terminating("gpu-1", Stage.FLUSHING, stage_since=ago(601))))
    assert isinstance(last, Flush)
    assert (last.reachable, last.final) == (False, True)


def test_the_flush_of_an_unreachable_pod_ends_earlier() -> None:
    """Three tries and a while prove that the rest of the logs will not come; the pod costs money meanwhile."""
    one = terminating("gpu-1", Stage.FLUSHING, stage_since=ago(16), metadata=WorkerMetadata(unreached=3))
    action = only(snapshot(one))
    assert isinstance(action, Flush)
    assert (action.reachable, action.reason) == (False, "3 connections to its pod failed within 16 s")
    for sooner in (replace(one, stage_since=ago(14)), replace(one, metadata=WorkerMetadata(unreached=2))):
        again = only(snapshot(sooner))
        assert isinstance(again, Flush)
        assert again.reachable


def test_a_pod_that_outlives_its_delete_is_remarked_on_once() -> None:
    """The row says that the delete was answered and since when the pod is listed all the same."""
    sent = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.PROVIDER, waiting_for="the end")
    fresh, aged = (replace(sent, next_attempt_at=NOW + timedelta(seconds=left_s)) for left_s in (7, 5))
    assert only(snapshot(fresh)) is None
    said = only(snapshot(aged))
    assert isinstance(said, Wait)
    assert said.waiting_for == "the end: the delete was answered, and it is still listed since 11:59:55"
    assert only(snapshot(replace(aged, waiting_for=said.waiting_for))) is None


def test_a_delete_is_repeated_while_the_pod_is_listed() -> None:
    """A delete that lies is noticed; absence, not the answer, ends it."""
    one = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR)
    assert isinstance(only(snapshot(one)), Delete)
    sent = replace(one, waiting_on=WaitingOn.PROVIDER, next_attempt_at=NOW + timedelta(seconds=7))
    assert only(snapshot(sent)) is None
    assert isinstance(only(snapshot(replace(sent, next_attempt_at=ago(1)))), Delete)


def test_a_delete_says_whether_the_last_list_had_the_pod() -> None:
    """Lists that lacked a pod before its delete may lack it afterwards too, although it is there."""
    one = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.ORCHESTRATOR, next_attempt_at=ago(1))
    for pods, listed in (((pod_of(one),), True), ((), False)):
        found = only(snapshot(one, pods=pods))
        assert isinstance(found, Delete)
        assert found.listed is listed


def test_only_a_confirmed_absence_marks_a_worker_as_terminated() -> None:
    """Terminated means that two complete lists did not show the pod after the delete."""
    sent = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.PROVIDER)
    assert only(snapshot(sent, pods=(), absent={"pod-gpu-1": absent(5, lists=1)})) is None
    gone = only(snapshot(sent, pods=(), absent={"pod-gpu-1": absent(3)}))
    assert gone == MarkTerminated("gpu-1", "RunPod confirms that the pod is gone")


@pytest.mark.parametrize(
    "known",
    [
        {"metadata": WorkerMetadata(deletes=2)},
        {"metadata": WorkerMetadata(deletes=1)},  # the list before the first delete lacked it
        {"waiting_for": "the delete was answered, and it is still listed since 11:59:50"},
    ],
)
def test_after_a_delete_without_effect_the_absence_must_last_longer(known: dict[str, Any]) -> None:
    """If a pod outlived its delete, two lists without it may both be wrong."""
    sent = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.PROVIDER, **known)
    assert only(snapshot(sent, pods=(), absent={"pod-gpu-1": absent(7)})) is None
    assert isinstance(only(snapshot(sent, pods=(), absent={"pod-gpu-1": absent(11)})), MarkTerminated)


def test_lists_from_before_a_delete_do_not_confirm_it() -> None:
    """A pod that was missing from lists still existed when its delete was answered."""
    sent = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.PROVIDER)
    for asked_s, deletes, proven in ((1, 0, False), (3, 0, True), (7, 3, False), (11, 3, True)):
        asked = replace(
            sent, next_attempt_at=ago(asked_s - policy().delete_retry_s), metadata=WorkerMetadata(deletes=deletes)
        )
        found = only(snapshot(asked, pods=(), absent={"pod-gpu-1": absent(30)}))
        assert isinstance(found, MarkTerminated) == proven, asked_s


def test_the_pod_of_an_unknown_create_is_searched_by_name_before_the_end() -> None:
    """No pod id, no clear refusal: absence needs the listing lag, and a late pod is deleted."""
    one = terminating("gpu-1", Stage.DELETING, pod_id=None, failure_code=FailureCode.CREATE_UNKNOWN)
    assert isinstance(only(snapshot(one, absent={"gpu-1": absent(30)})), Wait)
    assert isinstance(only(snapshot(one, absent={"gpu-1": absent(61)})), MarkTerminated)
    late = only(snapshot(one, pods=(pod_of(one),)))
    assert isinstance(late, Delete)
    assert late.pod_id == "pod-gpu-1"


def test_a_search_for_the_pod_of_an_unknown_create_has_its_own_deadline() -> None:
    """The flush leaves a deadline that is shorter, and each new leader begins the search again."""
    one = terminating("gpu-1", Stage.DELETING, pod_id=None, waiting_on=WaitingOn.ORCHESTRATOR, waiting_for="the call")
    said = only(snapshot(one, absent={"gpu-1": absent(1)}))
    assert isinstance(said, Wait)
    assert said.waiting_on is WaitingOn.PROVIDER
    assert said.waiting_for == "RunPod's confirmation that no pod has its name, over 60 s"
    assert said.deadline_s > 60
    searched = replace(one, waiting_on=WaitingOn.PROVIDER, waiting_for=said.waiting_for)
    assert only(snapshot(searched, absent={"gpu-1": absent(1)})) is None
    assert only(snapshot(replace(searched, deadline_at=ago(0)), absent={"gpu-1": absent(1)})) == said
    late = pod_of(one)
    found = only(snapshot(replace(searched, next_attempt_at=NOW + timedelta(seconds=5)), pods=(late,)))
    assert isinstance(found, Delete)
    assert found.pod_id == late.id


def test_a_refused_intent_needs_no_confirmed_absence() -> None:
    """The provider said that there is no pod."""
    one = terminating("gpu-1", Stage.DELETING, pod_id=None, failure_code=FailureCode.NO_CAPACITY)
    assert isinstance(only(snapshot(one)), MarkTerminated)


def test_one_tick_marks_only_a_part_of_a_large_fleet_as_terminated() -> None:
    """So that it stays short; the next one goes on."""
    refused = {"pod_id": None, "failure_code": FailureCode.NO_CAPACITY}
    seen = snapshot(*[terminating(f"gpu-{n}", Stage.DELETING, **refused) for n in range(150)])
    assert len([a for a in plan(seen, policy()).actions if isinstance(a, MarkTerminated)]) == ROWS_PER_TICK


def test_an_orphan_is_deleted_after_its_grace() -> None:
    """A pod of ours that no live row names does not bill for ever."""
    stray = pod_of(worker("gpu-9"))
    assert plan(snapshot(pods=(stray,), orphan_since={stray.id: ago(74)}), policy()).actions == ()
    made = plan(snapshot(pods=(stray,), orphan_since={stray.id: ago(76)}), policy())
    assert [type(a) for a in made.actions] == [DeleteOrphan]


def test_the_second_pod_of_a_worker_is_deleted_at_once() -> None:
    """A create that was carried out twice leaves one pod."""
    one = busy("gpu-1")
    twin = pod_of(one, id="pod-twin")
    made = plan(snapshot(one, running=1, pods=(twin, pod_of(one))), policy())
    (action,) = made.actions
    assert isinstance(action, DeleteOrphan)
    assert action.pod_id == "pod-twin"


def test_expired_leases_are_rescued_once_we_have_listened_long_enough() -> None:
    """Agents renew through our own gateway: after an outage of ours they get their time again."""
    assert [type(a) for a in plan(snapshot(expired_leases=2), policy()).actions] == [Rescue]
    assert plan(snapshot(expired_leases=2, window=ObservationWindow(ago(30))), policy()).actions == ()


def test_leases_that_a_gateway_without_connections_cannot_renew_are_not_rescued() -> None:
    """The loop reaches the database, and the agents' calls do not: their tasks go on, and no attempt is used up.

    For as long as agents go on without an answer: a worker that sends too many calls must not keep others' tasks.
    """

    def rescued(beat_s: float, called_s: float | None) -> bool:
        one = busy("gpu-1", last_heartbeat=ago(beat_s))
        unanswered = {} if called_s is None else {"gpu-1": ago(called_s)}
        made = plan(snapshot(one, running=1, expired_leases=1, unanswered_at=unanswered), policy(deadman_s=900))
        return any(isinstance(action, Rescue) for action in made.actions)

    assert not rescued(70, called_s=3)
    assert rescued(70, called_s=None)
    assert rescued(70, called_s=65)
    assert rescued(5, called_s=3)  # it is answered again: the expired lease is another worker's
    assert rescued(901, called_s=3)


def test_leases_are_extended_by_the_time_in_which_they_could_not_be_renewed() -> None:
    """20 of 60 s were not observed, and agents retry up to 10 s later: a lease must have been over for 30 s."""
    (action,) = plan(
        snapshot(expired_leases=2, window=ObservationWindow(ago(900), ((ago(50), ago(30)),))), policy()
    ).actions
    assert isinstance(action, Rescue)
    assert action.over_s == 30


def test_a_pod_without_a_row_that_only_some_lists_show_is_deleted() -> None:
    """For example a pod that is listed again after two lists confirmed its end, by one of two servers at RunPod."""
    stray, seen = pod_of(spawning("gpu-9", pod_id="pod-9")), PodTracker()
    for second in range(0, 81, 4):
        now = NOW + timedelta(seconds=second)
        listed = (stray,) if second % 8 == 0 else ()
        seen = fold(seen, listed, (), "test", now)
    made = plan(replace(snapshot(pods=(stray,), orphan_since=seen.orphan_since), now=now), policy())
    assert [type(action) for action in made.actions] == [DeleteOrphan]
    late = now + timedelta(seconds=UNLISTED_ORPHAN_S)
    assert not fold(seen, (), (), "test", late).unlisted_orphans
    mine = fold(seen, (stray,), (spawning("gpu-9", pod_id="pod-9"),), "test", now)
    assert mine.orphan_since == {}


@pytest.mark.parametrize("seen_s", [20, 2000])
def test_an_orphan_whose_owner_one_list_does_not_show_keeps_its_age(seen_s: float) -> None:
    """Its id is there: it is the same pod, however long it has been one. Once it is a row's, that is over."""
    stray = pod_of(worker("gpu-1"))
    unread = replace(stray, fleet_id=None, worker_id=None, owner_unknown=True)
    first, second, third = (NOW + timedelta(seconds=seconds) for seconds in (0, seen_s, seen_s + 20))
    seen = fold(PodTracker(), (stray,), (), "test", first)
    seen = fold(seen, (unread,), (), "test", second)
    assert seen.orphan_since == {}
    assert fold(seen, (stray,), (), "test", third).orphan_since == {stray.id: first}
    owned = fold(seen, (unread,), (worker("gpu-1"),), "test", third)
    assert fold(owned, (stray,), (), "test", third).orphan_since == {stray.id: third}


def test_the_pod_tracker_counts_lists_and_forgets_pods_that_came_back() -> None:
    """Absence grows with each complete list that lacks a pod once seen, and is gone when the pod shows again."""
    one = busy("gpu-1")
    seen = fold(PodTracker(), [pod_of(one)], [one], "test", NOW)
    assert not seen.absent
    first = fold(seen, [], [one], "test", NOW)
    second = fold(first, [], [one], "test", NOW + timedelta(seconds=4))
    assert second.absent["pod-gpu-1"].lists == 2
    assert second.absent["pod-gpu-1"].since == NOW
    assert second.absent["pod-gpu-1"].shown == NOW
    assert not fold(second, [pod_of(one)], [one], "test", NOW).absent


def test_a_period_without_lists_hardly_counts_as_observed() -> None:
    """The database was away for two minutes: lists that were not read may have shown the pod (seed 13274)."""
    one = busy("gpu-1", last_heartbeat=ago(600))
    seen = fold(PodTracker(), [pod_of(one)], [one], "test", ago(131))
    first = fold(seen, [], [one], "test", ago(130))
    second = fold(first, [], [one], "test", ago(10))
    third = fold(second, [], [one], "test", NOW)
    assert [p.absent["pod-gpu-1"].watched_s for p in (first, second, third)] == [0, 10, 20]
    others = [replace(pod_of(idle("gpu-2", 5)), id=f"pod-{n}") for n in range(101)]
    assert fold(first, others, [one], "test", ago(10)).absent["pod-gpu-1"].watched_s == 20
    unknown = terminating("gpu-1", Stage.DELETING, pod_id=None, created_at=ago(900))
    for watched_s, action in ((59, Wait), (60, MarkTerminated)):
        gone = replace(absent(300), watched_s=watched_s)
        assert isinstance(only(snapshot(unknown, pods=(), absent={"gpu-1": gone})), action)


def test_the_age_of_an_absence_ends_at_the_newest_list_and_not_at_the_clock() -> None:
    """Two lists a second apart prove a second, however long no list has come since."""
    one, gone = busy("gpu-1", last_heartbeat=ago(60)), absent(11)
    assert isinstance(only(snapshot(one, pods=(), absent={"pod-gpu-1": gone})), Terminate)
    assert isinstance(only(snapshot(one, pods=(), absent={"pod-gpu-1": replace(gone, until=ago(10))})), Wait)


def test_an_old_list_proves_no_absence() -> None:
    """If a tick hung, a pod may have been created since the newest list; with more pods, lists are rarer."""
    gone = replace(absent(80), until=ago(15))
    sent = terminating("gpu-1", Stage.DELETING, waiting_on=WaitingOn.PROVIDER, next_attempt_at=ago(40))
    assert only(snapshot(sent, pods=(), absent={"pod-gpu-1": gone})) is None
    assert isinstance(only(snapshot(sent, pods=(), absent={"pod-gpu-1": replace(gone, until=ago(9))})), MarkTerminated)
    others = tuple(replace(pod_of(busy("gpu-2")), id=f"pod-{n}", fleet_id="other") for n in range(101))
    assert isinstance(only(snapshot(sent, pods=others, absent={"pod-gpu-1": gone})), MarkTerminated)


def test_a_fresh_pod_that_the_list_does_not_show_yet_is_not_absent() -> None:
    """The provider's listing lags behind its creates."""
    fresh = spawning("gpu-1", stage_since=ago(5))
    assert not fold(PodTracker(), [], [fresh], "test", NOW).absent
    old = spawning("gpu-1", stage_since=ago(61))
    assert fold(PodTracker(), [], [replace(old, stage=Stage.TCP, stage_since=ago(1))], "test", NOW).absent
    assert fold(PodTracker(), [], [old], "test", NOW).absent


def test_a_fresh_pod_whose_worker_ends_at_once_is_not_absent() -> None:
    """Its intent had waited for minutes, so the age of the row says nothing about the age of the pod."""
    ends = terminating("gpu-1", Stage.DELETING, created_at=ago(300), state_since=ago(5))
    assert not fold(PodTracker(), [], [ends], "test", NOW).absent
    assert fold(PodTracker(), [], [replace(ends, state_since=ago(61))], "test", NOW).absent
    listed = replace(ends, ssh_host="10.0.0.1", ssh_port=22)  # only a list shows an address
    assert fold(PodTracker(), [], [listed], "test", NOW).absent


def test_lists_from_before_a_lost_create_do_not_confirm_its_failure() -> None:
    """An intent waited for its turn for minutes, in which no list could have had its pod; then its reply was lost."""
    ends = terminating("gpu-1", Stage.DELETING, pod_id=None, created_at=ago(300))
    for ended_s, action in ((59, Wait), (60, MarkTerminated)):
        seen = snapshot(replace(ends, state_since=ago(ended_s)), pods=(), absent={"gpu-1": absent(300)})
        assert isinstance(only(seen), action)


def test_a_pod_that_bring_up_has_searched_gets_no_second_wait() -> None:
    """Its create call got no clear answer, and for a minute no list had a pod of its name."""
    ends = terminating(
        "gpu-1", Stage.DELETING, pod_id=None, failure_code=FailureCode.CREATE_UNKNOWN, state_since=ago(1)
    )
    assert isinstance(only(snapshot(ends, pods=(), absent={"gpu-1": absent(61)})), MarkTerminated)
    assert isinstance(only(snapshot(ends, pods=(), absent={"gpu-1": absent(50)})), Wait)


def test_the_loop_ticks_fast_only_in_transition() -> None:
    """Ready workers and an empty fleet are looked at every ORCHESTRATOR_POLL_SEC only."""
    assert not in_transition(snapshot(busy("gpu-1"), idle("gpu-2", 5)))
    assert in_transition(snapshot(spawning("gpu-1")))
    assert in_transition(snapshot(terminating("gpu-1")))
    assert in_transition(snapshot(busy("gpu-1"), absent={"pod-gpu-1": absent(1, lists=1)}))


def test_remarks_do_not_delay_an_end() -> None:
    """RunPod's lists flicker, in a large fleet always somewhere: remarks are the last of a tick's rows."""
    flickering = [busy(f"gpu-{n:03}") for n in range(2 * ROWS_PER_TICK)]
    done = idle("gpu-999", 700)
    pods = (*(pod_of(w, has_runtime=False) for w in flickering), pod_of(done))
    seen = snapshot(*flickering, done, pods=pods, running=len(flickering))
    made = plan(seen, policy(pool={"max_active": 99, "tasks_per_gpu": 1})).actions
    assert [a.worker_id for a in made if isinstance(a, Terminate)] == ["gpu-999"]
    assert sum(isinstance(a, Wait) for a in made) == ROWS_PER_TICK - 1
