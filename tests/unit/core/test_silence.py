"""Silent workers: their pods are asked before they end."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import rescue
from orchestrator.core.actions import Action, AskPod, Terminate, UpdateAddress, Wait
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import PodAnswer, Snapshot, Worker
from orchestrator.core.plan import QUESTIONS_AT_ONCE, in_transition, plan
from orchestrator.core.provider import PodStatus
from orchestrator.core.silence import CALLS_UNANSWERED, NO_NETWORK
from orchestrator.core.states import WaitingOn
from tests.unit.core.build import ago, busy, pod_of, policy, snapshot, spawning, terminating, worker

TOLD: dict[str, Any] = {"waiting_on": WaitingOn.OPERATOR, "waiting_for": CALLS_UNANSWERED}


def quiet(seconds: float) -> dict[str, Any]:
    return {"ssh_host": "127.0.0.1", "ssh_port": 22, "last_heartbeat": ago(seconds)}


def silent(name: str, seconds: float = 70, **changes: Any) -> Worker:
    return worker(name, **{"tasks_running": 1, **quiet(seconds), **changes})


def steps(seen: Snapshot) -> dict[str, Action]:
    """What follows for each worker, by its id."""
    made = plan(seen, policy()).actions
    return {action.worker_id: action for action in made if isinstance(action, AskPod | Terminate | Wait)}


def asked(seconds: float, calls_unanswered: bool | None, **changes: Any) -> PodAnswer:
    return replace(PodAnswer(ago(seconds), ("127.0.0.1", 22), calls_unanswered), **changes)


def test_a_pod_is_asked_before_the_lease_of_its_task_ends() -> None:
    assert not steps(snapshot(silent("gpu-1", 39)))
    assert isinstance(steps(snapshot(silent("gpu-1", 41)))["gpu-1"], AskPod)
    assert not steps(snapshot(silent("gpu-1", 41), window=ObservationWindow(ago(30))))


def test_an_ended_agent_ends_its_worker_at_the_timeout() -> None:
    answers = {"gpu-1": asked(1, False)}
    assert not steps(snapshot(silent("gpu-1", 59), pod_answers=answers))
    assert isinstance(steps(snapshot(silent("gpu-1", 61), pod_answers=answers))["gpu-1"], Terminate)


def test_an_agent_whose_first_unanswered_call_takes_long_is_asked_again() -> None:
    """An idle agent calls in each third of the timeout. In an earlier release, a call to two addresses takes 20 s."""
    seen = snapshot(silent("gpu-1", 61, tasks_running=0), pod_answers={"gpu-1": asked(20, False)})
    assert isinstance(steps(seen)["gpu-1"], AskPod)
    busy_one = replace(seen, workers=(silent("gpu-1", 61),), expired_leases=1)
    assert not rescue.plan(busy_one, policy())
    assert isinstance(steps(replace(seen, pod_answers={"gpu-1": asked(0.5, False)}))["gpu-1"], Terminate)
    assert isinstance(steps(replace(seen, pod_answers={"gpu-1": asked(0.5, True)}))["gpu-1"], Wait)


def test_one_silent_worker_among_others_is_asked_and_gets_a_moment() -> None:
    """Its own network is broken, or it is the last one to come back."""
    others = (busy("gpu-2"), busy("gpu-3"))
    assert isinstance(steps(snapshot(silent("gpu-1"), *others))["gpu-1"], AskPod)
    known = silent("gpu-1", 100, **TOLD)
    assert not steps(snapshot(known, *others, pod_answers={"gpu-1": asked(59, True)}))
    assert isinstance(steps(snapshot(known, *others, pod_answers={"gpu-1": asked(61, True)}))["gpu-1"], Terminate)


def test_a_worker_that_is_alone_is_asked() -> None:
    assert isinstance(steps(snapshot(silent("gpu-1"), spawning("gpu-2")))["gpu-1"], AskPod)


@pytest.mark.parametrize("changes", [{"nonce": None}, {"ssh_host": None, "ssh_port": None}])
def test_a_worker_that_cannot_be_asked_ends(changes: dict[str, Any]) -> None:
    assert isinstance(steps(snapshot(silent("gpu-1", **changes)))["gpu-1"], Terminate)


def test_a_worker_whose_agent_gets_no_answer_stays_and_says_why() -> None:
    seen = snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(3, True)})
    remark = steps(seen)["gpu-1"]
    assert isinstance(remark, Wait)
    assert (remark.waiting_on, remark.waiting_for) == (WaitingOn.OPERATOR, CALLS_UNANSWERED)
    assert remark.deadline_s == pytest.approx(policy().deadman_s - 70)
    known = silent("gpu-1", **TOLD)
    assert not steps(replace(seen, workers=(known,)))


def test_the_remark_follows_the_last_answer() -> None:
    """After an outage of this process's network, the agents may still not reach the gateway."""
    known = silent("gpu-1", **{**TOLD, "waiting_for": NO_NETWORK})
    remark = steps(snapshot(known, pod_answers={"gpu-1": asked(3, True)}))["gpu-1"]
    assert isinstance(remark, Wait)
    assert remark.waiting_for == CALLS_UNANSWERED


def test_its_pod_is_asked_again() -> None:
    known = silent("gpu-1", **TOLD)
    assert not steps(snapshot(known, pod_answers={"gpu-1": asked(19, True)}))
    assert isinstance(steps(snapshot(known, pod_answers={"gpu-1": asked(21, True)}))["gpu-1"], AskPod)


def test_a_worker_whose_agent_makes_no_calls_ends() -> None:
    end = steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(1, False)}))["gpu-1"]
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.HEARTBEAT_LOST


def test_a_pod_that_ssh_does_not_reach_is_tried_again_before_its_worker_ends() -> None:
    """A connection may have gone with some router's memory of it."""
    assert not steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(4, None)}))
    assert isinstance(steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(6, None)}))["gpu-1"], AskPod)
    ended = steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(1, None, unreached_s=11.0)}))
    assert isinstance(ended["gpu-1"], Terminate)


def test_an_answer_from_another_address_does_not_count() -> None:
    """The list shows where its SSH is now."""
    one = silent("gpu-1", ssh_port=23)
    answers = {"gpu-1": asked(1, None, address=("127.0.0.1", 23), unreached_s=11.0)}
    (update,) = [a for a in plan(snapshot(one, pod_answers=answers), policy()).actions if isinstance(a, UpdateAddress)]
    assert update.port == 22
    assert isinstance(steps(snapshot(silent("gpu-1"), pod_answers=answers))["gpu-1"], AskPod)


def test_an_old_answer_does_not_count() -> None:
    answers = {"gpu-1": asked(61, False)}
    assert isinstance(steps(snapshot(silent("gpu-1", 100), pod_answers=answers))["gpu-1"], AskPod)


def test_an_answer_about_an_earlier_silence_does_not_count() -> None:
    assert isinstance(steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(80, False)}))["gpu-1"], AskPod)


def test_without_any_network_an_unreached_pod_proves_nothing() -> None:
    """Neither SSH nor RunPod answers: this process may have no network."""
    away = {"gpu-1": asked(1, None, unreached_s=100.0, has_network=False)}
    remark = steps(snapshot(silent("gpu-1"), pod_answers=away))["gpu-1"]
    assert isinstance(remark, Wait)
    assert remark.waiting_for == NO_NETWORK
    late = {"gpu-1": asked(6, None, unreached_s=100.0, has_network=False)}
    again = steps(snapshot(silent("gpu-1"), busy("gpu-2"), busy("gpu-3"), pod_answers=late))
    assert again["gpu-1"] == AskPod("gpu-1", "no heartbeat for 70 s, HEARTBEAT_TIMEOUT_SEC=60", others_are_heard=True)


def test_a_worker_that_finishes_its_tasks_is_asked_too() -> None:
    one = terminating("gpu-1", tasks_running=1, exit_cause=ExitCause.MANUAL, **quiet(70))
    assert isinstance(steps(snapshot(one))["gpu-1"], AskPod)
    assert not rescue.plan(snapshot(one, expired_leases=1), policy())
    assert rescue.plan(snapshot(one, expired_leases=1, pod_answers={"gpu-1": asked(1, False)}), policy())


def test_a_worker_that_finishes_its_tasks_says_that_its_agent_gets_no_answer() -> None:
    """Nobody hears how its tasks end. The remark lasts until the agent is heard, and does not change the drain."""
    draining: dict[str, Any] = {"tasks_running": 1, "exit_cause": ExitCause.MANUAL, "state_since": ago(100)}
    seen = snapshot(terminating("gpu-1", **draining, **quiet(70)), pod_answers={"gpu-1": asked(1, True)})
    remark = steps(seen)["gpu-1"]
    assert isinstance(remark, Wait)
    assert (remark.waiting_on, remark.waiting_for) == (WaitingOn.OPERATOR, CALLS_UNANSWERED)
    assert remark.deadline_s == pytest.approx(policy().drain_grace_s - 100)
    known = terminating("gpu-1", **draining, **quiet(70), **TOLD)
    assert not steps(replace(seen, workers=(known,)))
    late = terminating("gpu-1", **draining, **quiet(policy().deadman_s + 1), **TOLD)
    assert not steps(snapshot(late))
    again = steps(snapshot(terminating("gpu-1", **draining, **quiet(1), **TOLD)))["gpu-1"]
    assert isinstance(again, Wait)
    assert (again.waiting_on, again.deadline_s) == (WaitingOn.WORKER, remark.deadline_s)


def test_workers_that_finish_their_tasks_count_among_the_silent_and_the_heard() -> None:
    """During a rollout, a fleet may have no others."""
    draining: dict[str, Any] = {"tasks_running": 1, "exit_cause": ExitCause.MANUAL}
    cut = terminating("gpu-1", **draining, **quiet(70), **TOLD)
    answers = {"gpu-1": asked(21, True)}
    assert isinstance(steps(snapshot(cut, pod_answers=answers))["gpu-1"], AskPod)
    heard = [terminating(name, **draining, **quiet(1)) for name in ("gpu-2", "gpu-3")]
    assert not steps(snapshot(cut, *heard, pod_answers=answers))
    known = silent("gpu-1", **TOLD)
    assert not steps(snapshot(known, *heard, pod_answers=answers))
    assert isinstance(steps(snapshot(known, *heard, pod_answers={"gpu-1": asked(61, True)}))["gpu-1"], Terminate)


def test_the_leader_does_not_wait_longer_than_an_agent() -> None:
    seconds = policy().deadman_s + 1
    assert isinstance(
        steps(snapshot(silent("gpu-1", seconds), pod_answers={"gpu-1": asked(1, True)}))["gpu-1"], Terminate
    )


def test_a_worker_ended_by_an_outage_and_a_lost_worker_have_different_codes() -> None:
    """Its agent has asked RunPod to stop its pod, which a list may show already."""
    cut_off = silent("gpu-1", policy().deadman_s + 1, **TOLD)
    stopped = pod_of(cut_off, status=PodStatus.EXITED)
    for seen in (snapshot(cut_off), snapshot(cut_off, pods=(stopped,))):
        end = steps(seen)["gpu-1"]
        assert isinstance(end, Terminate)
        assert (end.cause, end.code) == (ExitCause.HEARTBEAT_LOST, FailureCode.GATEWAY_UNREACHED)
    for lost in (silent("gpu-1", policy().deadman_s + 1), silent("gpu-1", 300, **TOLD)):
        end = steps(snapshot(lost, pod_answers={"gpu-1": asked(1, False)}))["gpu-1"]
        assert isinstance(end, Terminate)
        assert end.code is FailureCode.NO_HEARTBEAT


def test_a_pod_that_the_list_shows_as_ended_is_not_asked() -> None:
    one = silent("gpu-1")
    end = steps(snapshot(one, pods=(pod_of(one, status=PodStatus.EXITED),)))["gpu-1"]
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.POD_LOST


def test_the_remark_is_removed_when_the_silence_ends() -> None:
    again = busy("gpu-1", ssh_host="127.0.0.1", ssh_port=22, **TOLD)
    remark = steps(snapshot(again))["gpu-1"]
    assert isinstance(remark, Wait)
    assert remark.waiting_on is WaitingOn.WORKER


def test_a_new_leader_keeps_the_remark_until_the_worker_sends_a_heartbeat() -> None:
    """It has not listened long enough to call a worker silent, and an operator must see the cause all the time."""
    just_now = ObservationWindow(ago(1))
    assert not steps(snapshot(silent("gpu-1", 61, **TOLD), window=just_now))
    assert isinstance(steps(snapshot(silent("gpu-1", 1, **TOLD), window=just_now))["gpu-1"], Wait)


def test_no_task_is_rescued_before_the_pod_of_its_worker_has_answered() -> None:
    """Afterwards the leases of an agent that calls are renewed, so what has expired belongs to others."""
    seen = snapshot(silent("gpu-1"), busy("gpu-2"), busy("gpu-3"), expired_leases=1)
    assert not rescue.plan(seen, policy())
    assert not rescue.plan(replace(seen, in_flight=frozenset({"gpu-1"})), policy())
    for answer in (True, False):
        assert rescue.plan(replace(seen, pod_answers={"gpu-1": asked(1, answer)}), policy())


def test_no_task_is_rescued_while_the_leases_of_a_worker_that_may_be_well_are_not_renewed_yet() -> None:
    """They are renewed after each answer of its pod; among many silent workers, the next question may wait."""
    seen = snapshot(silent("gpu-1", 300), expired_leases=1)
    for answer in (asked(0.1, True), asked(0.1, None, has_network=False)):
        assert rescue.plan(replace(seen, pod_answers={"gpu-1": answer}), policy())
        asking = replace(seen, pod_answers={"gpu-1": answer}, in_flight=frozenset({"gpu-1"}))
        assert not rescue.plan(asking, policy())
    assert rescue.plan(replace(seen, pod_answers={"gpu-1": asked(59, True)}), policy())
    assert not rescue.plan(replace(seen, pod_answers={"gpu-1": asked(61, True)}), policy())


def test_a_task_that_seems_stuck_is_left_to_an_agent_whose_silence_has_just_ended() -> None:
    late = busy("gpu-1", last_heartbeat=ago(1), progress_at=ago(2000), slowest_task="t1")
    (end,) = steps(snapshot(late)).values()
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.TASK_STUCK
    assert not steps(snapshot(late, heard_again_at={"gpu-1": ago(59)}))
    assert steps(snapshot(late, heard_again_at={"gpu-1": ago(61)}))


def test_a_task_that_seems_stuck_is_left_to_the_rule_for_silent_workers_during_a_silence() -> None:
    """The task named last may have ended before the agent died, and another one started."""
    quiet_one = busy("gpu-1", **quiet(59), progress_at=ago(2000), slowest_task="t1")
    answers = {"gpu-1": asked(1, False)}
    assert not steps(snapshot(quiet_one, pod_answers=answers))
    end = steps(snapshot(replace(quiet_one, last_heartbeat=ago(61)), pod_answers=answers))["gpu-1"]
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.HEARTBEAT_LOST
    assert steps(snapshot(replace(quiet_one, last_heartbeat=ago(39))))


def test_a_thousand_silent_workers_are_asked_in_parts() -> None:
    asks = [a for a in steps(snapshot(*(silent(f"gpu-{n}") for n in range(1000)))).values() if isinstance(a, AskPod)]
    assert len(asks) == QUESTIONS_AT_ONCE


def test_no_question_waits_in_a_queue_and_the_oldest_answer_is_next() -> None:
    """A worker with a running action cannot be ended, and a question to a pod that does not answer takes 16 s."""
    thousand = [silent(f"gpu-{n:04}") for n in range(1000)]
    asking = frozenset(one.id for one in thousand[:QUESTIONS_AT_ONCE])
    assert not steps(snapshot(*thousand, in_flight=asking))
    answers = {one.id: asked(21, True) for one in thousand[:-1]} | {thousand[500].id: asked(30, True)}
    seen = snapshot(*thousand, pod_answers=answers, in_flight=frozenset(sorted(asking)[2:]))
    assert {name for name, step in steps(seen).items() if isinstance(step, AskPod)} == {"gpu-0999", "gpu-0500"}


def test_the_tries_to_reach_a_pod_belong_together() -> None:
    """Otherwise the second try of each of a thousand pods came minutes after the first, and counted as a first one."""
    thousand = [silent(f"gpu-{n:04}") for n in range(1000)]
    answers = {"gpu-0998": asked(6, None), "gpu-0999": asked(6, None, has_network=False)}
    seen = steps(snapshot(*thousand, pod_answers=answers))
    assert isinstance(seen.get("gpu-0998"), AskPod)
    assert "gpu-0999" not in seen


def test_the_next_tick_comes_soon_while_a_worker_is_silent() -> None:
    assert in_transition(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(1, True)}))
    assert not in_transition(snapshot(silent("gpu-1", 1), pod_answers={"gpu-1": asked(9, True)}))


def test_a_worker_that_ends_is_not_asked() -> None:
    """The pool is switched off in the same tick."""
    seen = snapshot(silent("gpu-1", tasks_running=0))
    made = plan(seen, policy(pool={"max_active": 0})).actions
    assert sum(getattr(action, "worker_id", None) == "gpu-1" for action in made) == 1
