"""Silent workers: one among others that are heard has failed; if most are silent, their pods are asked first."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import rescue
from orchestrator.core.actions import Action, AskPod, Terminate, Wait
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import PodAnswer, PodStatus, Snapshot, Worker
from orchestrator.core.plan import plan
from orchestrator.core.silence import CALLS_IN_VAIN, NO_NETWORK
from orchestrator.core.states import WaitingOn
from tests.unit.core.build import ago, busy, idle, pod_of, policy, snapshot, spawning, worker


def silent(name: str, seconds: float = 70, **changes: Any) -> Worker:
    fields = {"tasks_running": 1, "ssh_host": "127.0.0.1", "ssh_port": 22, "last_heartbeat": ago(seconds)}
    return worker(name, **fields | changes)


def steps(seen: Snapshot) -> dict[str, Action]:
    """What follows for each worker, by its id."""
    made = plan(seen, policy()).actions
    return {action.worker_id: action for action in made if isinstance(action, AskPod | Terminate | Wait)}


def asked(seconds: float, calls_in_vain: bool | None) -> PodAnswer:
    return PodAnswer(ago(seconds), calls_in_vain)


def test_one_silent_worker_among_others_ends_unasked() -> None:
    found = steps(snapshot(silent("gpu-1"), busy("gpu-2"), busy("gpu-3")))
    assert isinstance(found.pop("gpu-1"), Terminate)
    assert not found


def test_if_most_are_silent_each_pod_is_asked() -> None:
    """A worker whose silence is not long enough yet is not heard either: idle ones send fewer heartbeats."""
    found = steps(snapshot(silent("gpu-1"), idle("gpu-2", 20, last_heartbeat=ago(45)), busy("gpu-3")))
    assert isinstance(found["gpu-1"], AskPod)
    assert found.keys() == {"gpu-1"}


def test_a_worker_that_is_alone_is_asked() -> None:
    assert isinstance(steps(snapshot(silent("gpu-1"), spawning("gpu-2")))["gpu-1"], AskPod)


@pytest.mark.parametrize("changes", [{"nonce": None}, {"ssh_host": None, "ssh_port": None}])
def test_a_worker_that_cannot_be_asked_ends(changes: dict[str, Any]) -> None:
    assert isinstance(steps(snapshot(silent("gpu-1", **changes)))["gpu-1"], Terminate)


def test_a_worker_whose_agent_calls_in_vain_stays_and_says_why() -> None:
    seen = snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(3, True)})
    remark = steps(seen)["gpu-1"]
    assert isinstance(remark, Wait)
    assert (remark.waiting_on, remark.waiting_for) == (WaitingOn.OPERATOR, CALLS_IN_VAIN)
    assert remark.deadline_s == pytest.approx(policy().deadman_s - 70)
    known = silent("gpu-1", waiting_on=WaitingOn.OPERATOR)
    assert not steps(replace(seen, workers=(known,)))


def test_its_pod_is_asked_again() -> None:
    known = silent("gpu-1", waiting_on=WaitingOn.OPERATOR)
    assert not steps(snapshot(known, pod_answers={"gpu-1": asked(19, True)}))
    assert isinstance(steps(snapshot(known, pod_answers={"gpu-1": asked(21, True)}))["gpu-1"], AskPod)


def test_the_last_one_to_be_heard_again_has_time() -> None:
    """The path works again and most are heard: this agent's next call may be a few seconds away."""
    known = silent("gpu-1", waiting_on=WaitingOn.OPERATOR)
    others = (busy("gpu-2"), busy("gpu-3"))
    assert "gpu-1" not in steps(snapshot(known, *others, pod_answers={"gpu-1": asked(25, True)}))
    assert isinstance(steps(snapshot(known, *others, pod_answers={"gpu-1": asked(61, True)}))["gpu-1"], Terminate)


@pytest.mark.parametrize("calls_in_vain", [False, None])
def test_a_worker_whose_pod_shows_no_call_ends(calls_in_vain: bool | None) -> None:
    end = steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(1, calls_in_vain)}))["gpu-1"]
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.HEARTBEAT_LOST


def test_an_answer_about_an_earlier_silence_does_not_count() -> None:
    assert isinstance(steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(80, False)}))["gpu-1"], AskPod)


def test_without_any_network_an_unreached_pod_proves_nothing() -> None:
    """Neither SSH nor RunPod answers: the network of this process may be away."""
    answers = {"gpu-1": asked(1, None)}
    remark = steps(snapshot(silent("gpu-1"), pod_answers=answers, unlisted="no connection"))["gpu-1"]
    assert isinstance(remark, Wait)
    assert remark.waiting_for == NO_NETWORK
    shown = steps(snapshot(silent("gpu-1"), pod_answers={"gpu-1": asked(1, False)}, unlisted="no connection"))
    assert isinstance(shown["gpu-1"], Terminate)


def test_nobody_waits_longer_than_an_agent_does() -> None:
    seconds = policy().deadman_s + 1
    assert isinstance(
        steps(snapshot(silent("gpu-1", seconds), pod_answers={"gpu-1": asked(1, True)}))["gpu-1"], Terminate
    )


def test_a_pod_that_the_list_shows_as_ended_is_not_asked() -> None:
    one = silent("gpu-1")
    end = steps(snapshot(one, pods=(pod_of(one, status=PodStatus.EXITED),)))["gpu-1"]
    assert isinstance(end, Terminate)
    assert end.cause is ExitCause.POD_LOST


def test_the_remark_goes_with_the_silence() -> None:
    again = busy("gpu-1", ssh_host="127.0.0.1", ssh_port=22, waiting_on=WaitingOn.OPERATOR)
    remark = steps(snapshot(again))["gpu-1"]
    assert isinstance(remark, Wait)
    assert remark.waiting_on is WaitingOn.WORKER


def test_no_task_is_rescued_from_a_worker_that_may_be_well() -> None:
    seen = snapshot(silent("gpu-1"), expired_leases=1)
    assert not rescue.plan(seen, policy())
    assert not rescue.plan(replace(seen, pod_answers={"gpu-1": asked(1, True)}), policy())
    assert rescue.plan(replace(seen, pod_answers={"gpu-1": asked(1, False)}), policy())
    assert rescue.plan(snapshot(silent("gpu-1"), busy("gpu-2"), busy("gpu-3"), expired_leases=1), policy())


def test_a_worker_that_ends_is_not_asked() -> None:
    """The pool is switched off in the same tick."""
    seen = snapshot(silent("gpu-1", tasks_running=0))
    made = plan(seen, policy(pool={"max_active": 0})).actions
    assert sum(getattr(action, "worker_id", None) == "gpu-1" for action in made) == 1
