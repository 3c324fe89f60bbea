"""Results of quick tasks go together; none waits for a long one, and none is lost or said twice on the way."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.worker.scripted import Orchestrator, Pod, wait_for
from worker import protocol

WORK = """
import os, time

def quick(params, task):
    return {"n": params}

def big(params, task):
    return {"text": "x" * 20_000}

def bad(params, task):
    raise ValueError("no")

def loud(params, task):
    raise ValueError("no " * 1_000)

def gated(params, task):
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)

def slow(params, task):
    time.sleep(2.1)
"""
CLAIMS = {protocol.CLAIM, protocol.COMPLETE_AND_CLAIM}
HANDLERS = {name: f"work:{name}" for name in ("quick", "big", "bad", "loud", "gated", "slow")}


@pytest.fixture
def pod(make_pod: Callable[..., Pod]) -> Pod:
    return make_pod({"work.py": WORK})


def submit(orchestrator: Orchestrator, *tasks: str) -> None:
    """Tasks for one claim, named after their types and places."""
    with orchestrator.changed:
        for place, kind in enumerate(tasks):
            orchestrator.submit(f"{kind}-{place}", kind, place)


def all_reported(orchestrator: Orchestrator, pod: Pod, count: int) -> None:
    """Every task ended once, and the agent holds none any more."""
    orchestrator.until(lambda: len(orchestrator.completed) + len(orchestrator.failures) == count)
    assert all(len(said) == 1 for said in (*orchestrator.completed.values(), *orchestrator.failures.values()))
    assert len(wait_for(lambda: len(said := pod.events("task_reported")) == count and said)) == count


def test_quick_results_go_together(orchestrator: Orchestrator, pod: Pod) -> None:
    """Forty no-ops of one claim take fewer calls than tasks; each result is its own task's."""
    orchestrator.requeues = True  # on a busy machine the last ones do not begin soon enough
    pod.start(HANDLERS, batch=40)
    submit(orchestrator, *["quick"] * 40)
    all_reported(orchestrator, pod, 40)
    assert [orchestrator.completion(f"quick-{n}")["p_result_data"] for n in range(40)] == [{"n": n} for n in range(40)]
    assert orchestrator.count(protocol.COMPLETE_MANY) + orchestrator.count(protocol.COMPLETE_AND_CLAIM) < 40
    assert orchestrator.count(protocol.COMPLETE) == 0


def test_a_result_brings_the_next_task(orchestrator: Orchestrator, pod: Pod) -> None:
    """One task a claim is one call a task, and a claim that waits when there is none left."""
    pod.start(HANDLERS)
    submit(orchestrator, "quick", "quick", "big", "quick")
    all_reported(orchestrator, pod, 4)
    said = [
        [one["task_id"] for one in call["p_results"]] for call in orchestrator.calls_of(protocol.COMPLETE_AND_CLAIM)
    ]
    assert said == [["quick-0"], ["quick-1"], ["quick-3"]]
    assert [one["p_task_id"] for one in orchestrator.calls_of(protocol.COMPLETE)] == ["big-2"]
    numbers = [call["p_claim_no"] for name, call in orchestrator.calls if name in CLAIMS]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def test_what_a_lost_answer_brought_is_not_lost(orchestrator: Orchestrator, pod: Pod) -> None:
    """The result is said again alone, and the claim repeated under its number."""
    orchestrator.lose_replies_to.extend([protocol.COMPLETE_AND_CLAIM] * 2)  # once more on a new connection
    pod.start(HANDLERS)
    submit(orchestrator, "quick", "quick")
    all_reported(orchestrator, pod, 2)
    assert len(pod.events("task_claimed")) == 2
    (first, again) = [one["outcome"] for one in pod.events("task_reported")]
    assert (first, again) == ("already", "ok")
    lost = orchestrator.calls_of(protocol.COMPLETE_AND_CLAIM)[0]["p_claim_no"]
    assert lost in [call["p_claim_no"] for call in orchestrator.calls_of(protocol.CLAIM)]


def test_failures_and_large_results_go_alone(orchestrator: Orchestrator, pod: Pod) -> None:
    """They say more than fits into a call with others."""
    orchestrator.requeues = True  # on a busy machine the last ones do not begin soon enough
    pod.start(HANDLERS, batch=6)
    submit(orchestrator, "quick", "big", "quick", "bad", "quick", "quick")
    all_reported(orchestrator, pod, 6)
    assert orchestrator.failure("bad-3")["code"] == "HANDLER_ERROR"
    assert [one["p_task_id"] for one in orchestrator.calls_of(protocol.COMPLETE)] == ["big-1"]


@pytest.mark.parametrize("knows_many", [True, False])
def test_no_result_waits_for_a_long_task(
    orchestrator: Orchestrator, pod: Pod, tmp_path: Path, *, knows_many: bool
) -> None:
    """What has ended is heard while the next task of the claim runs; with an older gateway when that has ended."""
    orchestrator.tell(knows_many=knows_many, requeues=True)  # on a busy machine the last one does not begin soon enough
    pod.start(HANDLERS, batch=3)
    with orchestrator.changed:
        orchestrator.submit("first", "quick")
        orchestrator.submit("second", "quick")
        orchestrator.submit("long", "gated", {"gate": str(tmp_path / "gate")})
    if knows_many:
        orchestrator.completion("first")
        orchestrator.completion("second")
    else:
        wait_for(lambda: pod.events("results_unanswered"))
    orchestrator.until(lambda: "long" in orchestrator.running)
    (tmp_path / "gate").touch()
    all_reported(orchestrator, pod, 3)


@pytest.mark.parametrize("trouble", ["lost", "unknown", "refused", "fenced"])
def test_what_the_one_call_leaves_open_is_said_of_each(orchestrator: Orchestrator, pod: Pod, trouble: str) -> None:
    """A lost answer, an older gateway, a refusal: each result is offered alone; another's task is dropped."""
    orchestrator.requeues = True  # on a busy machine the last ones do not begin soon enough
    orchestrator.refuse_results = trouble == "refused"
    orchestrator.knows_many = trouble != "unknown"
    if trouble == "lost":
        orchestrator.lose_replies_to.extend((protocol.COMPLETE_MANY, protocol.COMPLETE_AND_CLAIM))
    elif trouble == "fenced":
        orchestrator.fenced.add("quick-1")
    pod.start(HANDLERS, batch=3)
    submit(orchestrator, "quick", "quick", "quick")
    if trouble == "fenced":
        orchestrator.completion("quick-0")
        orchestrator.completion("quick-2")
        assert "quick-1" not in orchestrator.completed
        return
    all_reported(orchestrator, pod, 3)
    if trouble == "refused":
        assert {orchestrator.failure(f"quick-{n}")["code"] for n in range(3)} == {"RESULT_REFUSED"}


def test_a_failure_whose_text_is_refused_is_reported_without_it(orchestrator: Orchestrator, pod: Pod) -> None:
    """Otherwise its lease would expire, and nobody would know what happened."""
    orchestrator.max_failure_chars = 500
    pod.start(HANDLERS)
    submit(orchestrator, "loud")
    failure = orchestrator.failure("loud-0")
    assert (failure["code"], failure["exit_class"], failure["retryable"]) == ("HANDLER_ERROR", "exception", True)
    assert failure["message"] == "the text of this failure was refused (PGRST102: too large): see the log"


def test_what_has_not_begun_soon_is_handed_back(orchestrator: Orchestrator, pod: Pod) -> None:
    """After a task that took long, the rest of the claim is for workers that are idle."""
    pod.start(HANDLERS, batch=3)
    submit(orchestrator, "slow", "quick", "quick")
    orchestrator.completion("slow-0")
    orchestrator.until(lambda: set(orchestrator.released) == {"quick-1", "quick-2"})
    assert not orchestrator.failures


def test_results_on_hand_are_delivered_before_the_end(orchestrator: Orchestrator, pod: Pod, tmp_path: Path) -> None:
    """Told to stop in the middle of a claim, the agent says what has ended and hands back what has not."""
    pod.start(HANDLERS, batch=4)
    orchestrator.submit("warm", "quick")  # a first task that takes long would hand the second back
    orchestrator.completion("warm")
    orchestrator.tell(knows_many=False)  # so that the results are still on hand
    with orchestrator.changed:
        orchestrator.submit("first", "quick")
        orchestrator.submit("second", "quick")
        orchestrator.submit("long", "gated", {"gate": str(tmp_path / "gate")})
        orchestrator.submit("unbegun", "quick")
    wait_for(lambda: pod.events("results_unanswered"))
    orchestrator.tell(wanted=protocol.STOP)
    assert pod.ended() == "told to stop"
    assert set(orchestrator.completed) == {"warm", "first", "second"}
    assert set(orchestrator.released) == {"long", "unbegun"}


def test_a_result_that_the_database_refuses_is_kept_and_delays_no_other(orchestrator: Orchestrator, pod: Pod) -> None:
    """A trigger of a user refuses one completion of three. Once it is allowed, it needs no second attempt."""
    orchestrator.requeues = True  # on a busy machine the last ones do not begin soon enough
    orchestrator.held_up.add("quick-0")
    pod.start(HANDLERS, batch=3)
    submit(orchestrator, "quick", "quick", "quick")
    orchestrator.completion("quick-1")
    orchestrator.completion("quick-2")
    orchestrator.until(lambda: len(orchestrator.calls_of(protocol.COMPLETE)) > 4)
    assert "quick-0" in orchestrator.running
    orchestrator.held_up.clear()
    all_reported(orchestrator, pod, 3)
    assert not orchestrator.failures
    assert [event["task"] for event in pod.events("task_claimed")].count("quick-0") == 1
