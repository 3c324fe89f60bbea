"""A task is stuck only if it shows no sign of life; it ends alone, and its agent goes on."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.worker.machine import Machine
from tests.process.worker.scripted import TOKEN, Orchestrator, Pod, wait_for
from worker.agent_state import AgentState
from worker.config import Config, RunDir
from worker.heartbeat import Heartbeat
from worker.journal import Journal

STUCK_S = 2.0
WORK_S = 5.0
HEARTBEAT_S = 0.2
CODE = """
import os, sys, time

def each(act):
    until = time.monotonic() + float(os.environ["WORK_S"])
    while time.monotonic() < until:
        act()
        time.sleep(0.25)

def reports(params, task):
    each(lambda: task.progress(0.5, "the same again"))

def prints(params, task):
    each(lambda: print("a line"))

def writes(params, task):
    with open("frames", "ab", buffering=0) as file:
        each(lambda: file.write(b"frame"))

def computes(params, task):
    until = time.monotonic() + float(os.environ["WORK_S"])
    while time.monotonic() < until:
        pass

def stands(params, task):
    time.sleep(1000)

def pid(params, task):
    return {"pid": os.getpid()}
"""
PRINTS = """#!/bin/sh
for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; sleep 0.5; done
"""
TELLS = """#!/bin/sh
heard() { until [ -e "$HEARD/$1" ]; do sleep 0.1; done; }
echo 'progress: 0.25 a quarter'
heard 1
echo 'progress: 0.5'
heard 2
echo 'progress: loading the model'
heard 3
echo '0.75 three quarters' > progress
heard 4
echo '{"told": true}'
echo 'progress: 1'
"""
ALIVE = ("reports", "prints", "writes", "computes")


@pytest.fixture
def pod(make_pod: Callable[..., Pod], orchestrator: Orchestrator) -> Pod:
    orchestrator.stuck_s = STUCK_S
    return make_pod({"life.py": CODE, "prints.sh": PRINTS, "tells.sh": TELLS})


def start(pod: Pod, **config: Any) -> None:
    handlers = {name: f"life:{name}" for name in (*ALIVE, "stands", "pid")}
    commands = {"command": "cmd:./prints.sh", "silent": "cmd:sleep 1000", "tells": "cmd:./tells.sh"}
    env = {"WORK_S": str(WORK_S), "HEARD": str(pod.home / "heard")}
    pod.start(handlers | commands, env=env, heartbeat_s=HEARTBEAT_S, **config)


@pytest.mark.parametrize("name", [*ALIVE, "command"])
def test_a_task_with_a_sign_of_life_is_not_stuck(orchestrator: Orchestrator, pod: Pod, name: str) -> None:
    """A report of the same value, a line in the log, a file that grows, processor time: each of them is enough."""
    orchestrator.submit("one", name)
    start(pod)
    orchestrator.until(lambda: orchestrator.completed.get("one") or orchestrator.failures.get("one"))
    assert "one" in orchestrator.completed


@pytest.mark.parametrize("name", ["stands", "silent"])
def test_a_stuck_task_ends_alone(orchestrator: Orchestrator, pod: Pod, name: str) -> None:
    """Its attempt fails with a reason of its own; the same agent runs the next task, in another process."""
    for task, kind in (("before", "pid"), ("stuck", name), ("after", "pid")):
        orchestrator.submit(task, kind)
    start(pod)
    failure = orchestrator.failure("stuck")
    assert (failure["code"], failure["exit_class"], failure["retryable"]) == ("TASK_STUCK", "timeout", True)
    assert failure["message"].startswith("no sign of life for ")
    pids = [orchestrator.completion(task)["p_result_data"]["pid"] for task in ("before", "after")]
    assert (pids[0] == pids[1]) is (name == "silent")  # commands have a host of their own
    assert orchestrator.count("worker_register") == 1


def test_gpu_time_is_a_sign_of_life(orchestrator: Orchestrator, pod: Pod, tmp_path: Path) -> None:
    """Until the GPU is idle too."""
    machine = Machine(tmp_path / "machine")
    pod.env, pod.python = machine.install(sys.executable), str(machine.bin / "python3")
    machine.shows(utilization__gpu="97")
    orchestrator.submit("one", "stands")
    start(pod, monitor_s=0.1)
    orchestrator.until(lambda: len(_tasks(orchestrator)) > 2 * STUCK_S / HEARTBEAT_S)
    assert not orchestrator.failures
    machine.shows(utilization__gpu="0")
    assert orchestrator.failure("one")["code"] == "TASK_STUCK"


@pytest.mark.parametrize("reports", [True, False])
def test_a_sign_of_life_during_the_heartbeat_counts(tmp_path: Path, reports: bool) -> None:
    """The answer is about the time before it: a task that has gone on meanwhile is not ended."""
    state = AgentState(60, RunDir(str(tmp_path)))
    state.running = held = state.hold({"id": "one", "attempt": 1})
    state.still_s = STUCK_S

    class Slow(Orchestrator):
        def _stuck(self, args: dict[str, Any]) -> list[str]:
            if reports:
                state.still_s = 0.0  # as the main thread does
            return super()._stuck(args)

    with Slow() as orchestrator:
        orchestrator.stuck_s = STUCK_S
        config = Config({"worker_id": "gpu-1", "nonce": "n", "api_url": orchestrator.url, "token": TOKEN})
        journal = Journal(str(tmp_path / "agent.log"), ())
        assert Heartbeat(config, RunDir(str(tmp_path)), state, journal).beat()
    assert held.stuck is not reports


def test_a_task_that_waits_for_the_answer_to_its_report_is_not_stuck(tmp_path: Path) -> None:
    """It has ended: nothing runs that could be ended. The task that runs meanwhile may be stuck."""
    state, run = AgentState(60, RunDir(str(tmp_path))), RunDir(str(tmp_path))
    waiting, other = (state.hold({"id": name, "attempt": 1}) for name in ("one", "two"))
    with Orchestrator() as orchestrator:
        orchestrator.stuck_s = STUCK_S
        config = Config({"worker_id": "gpu-1", "nonce": "n", "api_url": orchestrator.url, "token": TOKEN})
        heartbeat = Heartbeat(config, run, state, Journal(str(tmp_path / "agent.log"), ()))
        for running in (None, other):
            state.running, state.still_s = running, 10 * STUCK_S
            assert heartbeat.beat()
            assert (waiting.stuck, other.stuck) == (False, running is other)


def test_each_change_of_the_health_is_sent_once(tmp_path: Path) -> None:
    """The second change too, and the end of it."""
    state, run = AgentState(60, RunDir(str(tmp_path))), RunDir(str(tmp_path))
    with Orchestrator() as orchestrator:
        config = Config({"worker_id": "gpu-1", "nonce": "n", "api_url": orchestrator.url, "token": TOKEN})
        heartbeat = Heartbeat(config, run, state, Journal(str(tmp_path / "agent.log"), ()))
        for health in ({"store": "a"}, {"store": "b"}, {}):
            state.health = dict(health)
            assert heartbeat.beat()
            assert heartbeat.beat()
        assert orchestrator.healths == [{"store": "a"}, None, {"store": "b"}, None, {}, None]


def test_an_older_database_ends_no_task(orchestrator: Orchestrator, pod: Pod) -> None:
    """It does not say which tasks are stuck."""
    orchestrator.stuck_s = None
    orchestrator.submit("one", "stands")
    start(pod)
    orchestrator.until(lambda: any(t.get("still_s", 0) > STUCK_S for t in _tasks(orchestrator)))
    assert not orchestrator.failures


def test_the_time_for_which_a_pod_is_frozen_does_not_count(orchestrator: Orchestrator, pod: Pod) -> None:
    """The agent and its task stood still together."""
    orchestrator.submit("one", "prints")
    start(pod)
    orchestrator.until(lambda: len(_tasks(orchestrator)) > 2)
    pids = [int((pod.run / "agent.pid").read_text()), *(int(path.name) for path in (pod.run / "sessions").iterdir())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STUCK_S * 1.5)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    orchestrator.until(lambda: orchestrator.completed.get("one") or orchestrator.failures.get("one"))
    assert "one" in orchestrator.completed
    assert max(task["still_s"] for task in _tasks(orchestrator)) < STUCK_S


def test_a_command_reports_progress_by_lines_and_by_a_file(orchestrator: Orchestrator, pod: Pod) -> None:
    """The lines stay in the log, and none of them is the result."""
    orchestrator.stuck_s = None  # the command is quiet for as long as it takes
    orchestrator.submit("one", "tells")
    (pod.home / "heard").mkdir()
    start(pod)

    def said() -> list[tuple[float | None, str | None]]:
        reports = [task["progress"] for task in _tasks(orchestrator) if "progress" in task]
        return list(dict.fromkeys((one["fraction"], one["message"]) for one in reports))

    steps = [(0.25, "a quarter"), (0.5, None), (None, "loading the model"), (0.75, "three quarters")]
    for number, step in enumerate(steps, 1):
        orchestrator.until(lambda: step in said())  # noqa: B023
        (pod.home / "heard" / str(number)).touch()
    assert orchestrator.completion("one")["p_result_data"] == {"told": True}
    assert said()[:4] == steps
    wait_for(lambda: "progress: 0.25 a quarter\n" in pod.log("handler"))


def _tasks(orchestrator: Orchestrator) -> list[dict[str, Any]]:
    """What heartbeats said of tasks, in order."""
    return [task for beat in orchestrator.calls_of("worker_heartbeat") for task in beat["p_tasks"]]
