"""No process outlives its task, whatever session, environment and parent it has, unless its handler may keep it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.worker.scripted import Orchestrator, Pod, live, wait_for

CODE = """
import os, subprocess, sys, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))

def note(pid, name):
    with open(os.path.join(os.environ["NOTED"], f"{name}-{pid}"), "w"):
        pass

def start(name, *words, **options):
    note(subprocess.Popen([*words, "sleep", "1000"], **options).pid, name)

def lost(name):
    script = "env -i setsid sh -c 'echo $$ > %s; exec sleep 1000' &" % os.path.join(os.getcwd(), "pid")
    subprocess.run(["sh", "-c", script], check=True)
    while not os.path.exists("pid") or not open("pid").read().strip():
        time.sleep(0.01)
    note(int(open("pid").read()), name)

def forked(name):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        inner = os.fork()
        if inner == 0:
            os.environ.clear()
            os.execv("/bin/sleep", ["sleep", "1000"])
        note(inner, name)
        os._exit(0)
    os.waitpid(pid, 0)

def leave(params, task):
    start("child")
    start("session", start_new_session=True)
    start("bare", start_new_session=True, env={})
    start("stubborn", "sh", "-c", "trap '' TERM HUP; sleep 1000; sleep 1000", start_new_session=True, env={})
    lost("lost")
    forked("forked")
    if params.get("fail"):
        raise ValueError("x")
    while params.get("gate") and not os.path.exists(params["gate"]):
        time.sleep(0.01)
    return {"pid": os.getpid()}

def chain(params, task):
    steps = os.open(os.environ["NOTED"] + ".steps", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    if os.fork() == 0:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if os.fork():
                os._exit(0)
            if params["own_session"]:
                os.setsid()
            os.write(steps, b".")
        os._exit(0)
    while os.fstat(steps).st_size < 3 or params.get("wait"):
        time.sleep(0.01)
    return {"pid": os.getpid()}

def briefly(params, task):
    subprocess.Popen(["sleep", "0.2"])
    return {"pid": os.getpid()}

def fine(params, task):
    return {"pid": os.getpid()}
"""
MODEL = (
    CODE
    + """
start("model", start_new_session=True, env={})
"""
)
DAEMON = (
    CODE
    + """
def daemon():
    if os.fork() == 0:
        os.setsid()
        while not os.path.exists(os.environ["NOTED"] + ".asked"):
            time.sleep(0.01)
        inner = os.fork()
        if inner == 0:
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        note(inner, "daemon")
        os._exit(0)

def await_daemon(params, task):
    open(os.environ["NOTED"] + ".asked", "w").close()
    while not any(name.startswith("daemon") for name in os.listdir(os.environ["NOTED"])):
        time.sleep(0.01)
    return {"pid": os.getpid()}

daemon()
"""
)
LEAVES = """#!/bin/sh
sleep 1000 &
touch $NOTED/child-$!
setsid sleep 1000 &
touch $NOTED/session-$!
env -i setsid sh -c "touch $NOTED/lost-\\$\\$; exec sleep 1000" &
while ! ls $NOTED | grep -q lost; do sleep 0.01; done
"""
OF_A_FUNCTION = {"child", "session", "bare", "stubborn", "lost", "forked"}


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file for each process that a task left. All are gone at the end."""
    folder = tmp_path / "noted"
    folder.mkdir()
    yield folder
    left = live(list(pids(folder).values()))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def pod(noted: Path, make_pod: Callable[..., Pod]) -> Pod:
    pod = make_pod({"leaves.py": CODE, "model.py": MODEL, "daemon.py": DAEMON, "leaves.sh": LEAVES})
    pod.env = {"NOTED": str(noted)}
    return pod


HANDLERS = {
    "leave": "leaves:leave", "chain": "leaves:chain", "briefly": "leaves:briefly", "fine": "leaves:fine",
    "command": "cmd:./leaves.sh",
    "model": "model:fine", "model_leaves": "model:leave",
    "daemon": "daemon:await_daemon", "daemon_leaves": "daemon:leave",
}  # fmt: skip


def pids(noted: Path) -> dict[str, int]:
    return {name: int(pid) for name, _, pid in (file.name.partition("-") for file in noted.iterdir())}


@pytest.mark.parametrize(("task_type", "params"), [("leave", {}), ("leave", {"fail": True}), ("command", {})])
def test_no_process_outlives_its_task(
    orchestrator: Orchestrator, pod: Pod, noted: Path, task_type: str, params: dict[str, object]
) -> None:
    """They are gone when the task's end is reported, and the log says what was ended."""
    pod.start(HANDLERS)
    orchestrator.submit("t", task_type, params)
    orchestrator.until(lambda: orchestrator.completed | orchestrator.failures)
    assert ("t" in orchestrator.failures) is ("fail" in params)
    found = pids(noted)
    assert set(found) == (OF_A_FUNCTION if task_type == "leave" else {"child", "session", "lost"})
    assert live(list(found.values())) == []
    assert pod.events("processes_ended")[0]["task"] == "t"
    assert "--- ended the processes that task t left: " in pod.log("handler")
    assert "sleep" in pod.log("handler")
    orchestrator.submit("next", "fine")
    orchestrator.completion("next")


def test_a_cancelled_task_takes_its_processes_with_it(
    orchestrator: Orchestrator, pod: Pod, noted: Path, tmp_path: Path
) -> None:
    """Also those with a session and an environment of their own."""
    pod.start(HANDLERS, heartbeat_s=0.1)
    orchestrator.submit("t", "leave", {"gate": str(tmp_path / "never")})
    wait_for(lambda: set(pids(noted)) == OF_A_FUNCTION)
    orchestrator.tell(cancel={"t"})
    assert orchestrator.failure("t")["code"] == "CANCELLED"
    assert live(list(pids(noted).values())) == []


@pytest.mark.parametrize("how", ["success", "cancel"])
@pytest.mark.parametrize("own_session", [False, True])
def test_a_process_that_replaces_itself_all_the_time_ends_with_its_task(
    orchestrator: Orchestrator, pod: Pod, tmp_path: Path, how: str, *, own_session: bool
) -> None:
    """Each one forks the next and ends: a look at the process table finds none that still lives."""
    steps = tmp_path / "noted.steps"
    pod.start(HANDLERS, heartbeat_s=0.1)
    orchestrator.submit("t", "chain", {"own_session": own_session, "wait": how == "cancel"})
    if how == "cancel":
        wait_for(lambda: steps.exists() and steps.stat().st_size >= 3)
        orchestrator.tell(cancel={"t"})
        assert orchestrator.failure("t")["code"] == "CANCELLED"
    else:
        orchestrator.completion("t")
        assert pod.events("processes_ended")[0]["task"] == "t"
    done = steps.stat().st_size
    orchestrator.submit("next", "fine")
    orchestrator.completion("next")
    assert steps.stat().st_size == done


def test_what_belongs_to_others_lives_on(orchestrator: Orchestrator, pod: Pod, noted: Path) -> None:
    """The processes that a module started while it was loaded, other hosts, and programs outside the agent."""
    stranger, hosts = subprocess.Popen(["sleep", "100"]), []
    pod.start(HANDLERS)
    try:
        for number, task_type in enumerate(("model", "fine", "leave", "command", "model_leaves", "fine", "model")):
            orchestrator.submit(str(number), task_type, {})
            hosts.append((orchestrator.completion(str(number))["p_result_data"] or {}).get("pid"))
            if number < 4:
                assert live([pids(noted)["model"]])
        assert hosts[0] == hosts[4] != hosts[6]  # a host whose processes were ended is of no use
        assert live([stranger.pid])
    finally:
        stranger.kill()
        stranger.wait()


def test_a_daemon_that_a_module_starts_may_take_its_time(orchestrator: Orchestrator, pod: Pod, noted: Path) -> None:
    """It forks again during the first task, and its parent, which the agent knows, ends. Its host stays warm."""
    pod.start(HANDLERS)
    for number in range(3):
        orchestrator.submit(str(number), "daemon", {})
        assert orchestrator.completion(str(number))["p_result_data"] == orchestrator.completion("0")["p_result_data"]
        assert live([pids(noted)["daemon"]])
    orchestrator.submit("leaves", "daemon_leaves", {})
    orchestrator.completion("leaves")
    assert live(list(pids(noted).values())) == []  # what the task left was ended, and with the host its daemon


def test_a_process_that_ends_soon_costs_no_new_host(orchestrator: Orchestrator, pod: Pod) -> None:
    """A pool of processes that is being shut down, for example."""
    pod.start(HANDLERS)
    for number, task_type in enumerate(("briefly", "fine")):
        orchestrator.submit(str(number), task_type, {})
    assert orchestrator.completion("0")["p_result_data"] == orchestrator.completion("1")["p_result_data"]
    assert not pod.events("processes_ended")


def test_a_handler_may_keep_processes(orchestrator: Orchestrator, pod: Pod, noted: Path) -> None:
    """They and the host stay until the host ends, and other tasks of the worker do not end them."""
    pod.start(HANDLERS, keep_processes=["leave"])
    for number, task_type in enumerate(("leave", "command", "fine")):
        orchestrator.submit(str(number), task_type, {})
    assert orchestrator.completion("0")["p_result_data"] == orchestrator.completion("2")["p_result_data"]
    kept = [pid for name, pid in pids(noted).items() if name in OF_A_FUNCTION - {"child", "session", "lost"}]
    assert live(kept) == kept
    pod.stop()
    assert live(kept) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stop_ends_what_an_agent_leaves_that_does_not_answer(
    orchestrator: Orchestrator, pod: Pod, noted: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """An agent that hangs cannot end them itself. After one that was killed, its host does."""
    pod.start(HANDLERS)
    orchestrator.submit("t", "leave", {"gate": str(tmp_path / "never")})
    wait_for(lambda: set(pids(noted)) == OF_A_FUNCTION)
    os.kill(int((pod.run / "agent.pid").read_text()), how)
    assert pod.stop(grace_s=0)["stopped"]
    known = pids(noted)
    if how == signal.SIGKILL:  # its orphans belong to the machine now
        known = {name: pid for name, pid in known.items() if name not in {"lost", "forked"}}
    wait_for(lambda: not live(list(known.values())))
    for pid in live(list(pids(noted).values())):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not live(list(pids(noted).values())))
