"""Every way in which an attempt can end badly is told apart, and leaves no process behind."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.worker.scripted import Orchestrator, Pod, live, wait_for
from worker import exits

BAD = """
import json, os, signal, subprocess, sys, time

class Poison(Exception):
    retryable = False

def broken(params, task):
    secret = "the token"
    raise KeyError("no such picture: " + os.environ.get("MY_API_KEY", ""))

def poison(params, task):
    raise Poison("never again")

def exits(params, task):
    sys.exit(3)

def vanishes(params, task):
    os._exit(7)

def crashes(params, task):
    os.kill(os.getpid(), signal.SIGSEGV)

def killed(params, task):
    os.kill(os.getpid(), signal.SIGKILL)

def vram(params, task):
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

def vram_in_child(params, task):
    print("torch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr)
    os._exit(1)

def fine(params, task):
    return {"pid": os.getpid()}

def family(params, task):
    # a child, its child, one in a session of its own, one that ignores TERM
    pids = [
        subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! >> pids; wait"]).pid,
        subprocess.Popen(["sleep", "1000"], start_new_session=True).pid,
        subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]).pid,
        os.getpid(),
    ]
    while not os.path.exists("pids") or not open("pids").read().strip():
        time.sleep(0.01)
    pids.append(int(open("pids").read()))
    with open(params["pids"] + ".part", "w") as file:
        json.dump(pids, file)
    os.rename(params["pids"] + ".part", params["pids"])
    try:
        time.sleep(1000)
    finally:
        print("tidied up")
"""


@pytest.fixture
def pod(make_pod: Callable[..., Pod]) -> Pod:
    return make_pod({"bad.py": BAD})


NAMES = ("broken", "poison", "exits", "vanishes", "crashes", "killed", "vram", "vram_in_child", "fine", "family")
HANDLERS = {name: f"bad:{name}" for name in NAMES}


@pytest.mark.parametrize(
    ("name", "exit_class", "code", "message"),
    [
        ("broken", "exception", "HANDLER_ERROR", "KeyError: 'no such picture: [redacted]'"),
        ("exits", "exception", "HANDLER_ERROR", "SystemExit: 3"),
        ("vanishes", "exception", "EXIT_STATUS", "status 7"),
        ("crashes", "signal", "SIGNAL", "SIGSEGV"),
        ("killed", "signal", "SIGNAL", "SIGKILL"),
        ("vram", "vram_oom", "VRAM_OOM", "CUDA out of memory"),
        ("vram_in_child", "vram_oom", "VRAM_OOM", "CUDA out of memory"),
    ],
)
def test_failures_are_classified(
    orchestrator: Orchestrator, pod: Pod, name: str, exit_class: str, code: str, message: str
) -> None:
    """A failed attempt says how it ended, and the next task runs all the same."""
    pod.start(HANDLERS, env={"MY_API_KEY": "hush-hush-hush"})
    orchestrator.submit("bad", name)
    orchestrator.submit("good", "fine")
    failure = orchestrator.failure("bad")
    assert (failure["exit_class"], failure["code"]) == (exit_class, code)
    assert message in failure["message"]
    assert failure["point"] == "Processing"
    assert failure["retryable"] is True
    orchestrator.completion("good")
    ends = pod.log("handler").partition("--- task good")[0].count("--- task bad attempt 1 ends: failed")
    assert ends == 1  # written by the agent if the host ended first


def test_exceptions_carry_a_traceback_without_secrets(orchestrator: Orchestrator, pod: Pod) -> None:
    """A failure report has the type and the innermost frames; configured secrets are blotted out of it."""
    pod.start(HANDLERS, env={"MY_API_KEY": "hush-hush-hush"})
    orchestrator.submit("bad", "broken")
    failure = orchestrator.failure("bad")
    assert failure["detail"]["type"] == "KeyError"
    assert "in broken" in failure["detail"]["traceback"]
    assert "hush" not in json.dumps(failure)
    assert "hush" not in pod.log("agent")


def test_exception_keeps_the_host_warm_and_may_forbid_a_retry(orchestrator: Orchestrator, pod: Pod) -> None:
    """An exception costs no reloading, and one with `retryable = False` asks for no further attempt."""
    pod.start(HANDLERS)
    for task_id, task_type in (("first", "fine"), ("bad", "poison"), ("second", "fine")):
        orchestrator.submit(task_id, task_type)
    pids = [orchestrator.completion(task_id)["p_result_data"]["pid"] for task_id in ("first", "second")]
    assert pids[0] == pids[1]
    assert orchestrator.failure("bad")["retryable"] is False


@pytest.mark.parametrize("how", ["cancelled", "timeout", "fenced"])
def test_whole_tree_is_killed(orchestrator: Orchestrator, pod: Pod, tmp_path: Path, how: str) -> None:
    """A cancelled, overdue or fenced task takes every process it started with it; the next one runs."""
    pod.start(HANDLERS, heartbeat_s=0.1)
    noted = tmp_path / "pids"
    orchestrator.submit("tree", "family", {"pids": str(noted)}, timeout_s=15.0 if how == "timeout" else None)
    pids = json.loads(wait_for(lambda: noted.exists() and noted.read_text()))
    assert len(live(pids)) == 5
    if how != "timeout":
        orchestrator.tell(**{"cancel" if how == "cancelled" else "fenced": {"tree"}})
    wait_for(lambda: not live(pids))
    assert "tidied up" in pod.log("handler")
    orchestrator.submit("next", "fine")
    orchestrator.completion("next")
    if how == "fenced":
        assert not orchestrator.failures
    else:
        failure = orchestrator.failure("tree")
        assert (failure["exit_class"], failure["retryable"]) == (how, how == "timeout")


def test_command_ended_by_a_signal(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A command's status above 128 is its signal, as shells say it; any other status is named."""
    pod = make_pod({"suicide.sh": "#!/bin/sh\nsh -c 'kill -9 $$'\n", "three.sh": "#!/bin/sh\necho why >&2; exit 3\n"})
    pod.start({"suicide": "cmd:./suicide.sh", "three": "cmd:./three.sh", "absent": "cmd:./absent.sh"})
    for name in ("suicide", "three", "absent"):
        orchestrator.submit(name, name)
    assert orchestrator.failure("suicide")["exit_class"] == "signal"
    three = orchestrator.failure("three")
    assert three["exit_class"] == "exception"
    assert "status 3" in three["message"]
    assert "why" in three["detail"]["log"]
    assert "FileNotFoundError" in orchestrator.failure("absent")["message"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sys/fs/cgroup/memory.events", "low 0\noom 1\noom_kill {}\n"),
        ("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_an_oom_kill_and_a_plain_kill_have_different_codes(
    orchestrator: Orchestrator, pod: Pod, tmp_path: Path, name: str, content: str
) -> None:
    """SIGKILL with the cgroup's counter grown, v2 or v1, is an OOM; without it, it is a signal."""
    counter = tmp_path / "root" / name
    counter.parent.mkdir(parents=True)
    counter.write_text(content.format(4))
    pod.start(HANDLERS, system_root=str(tmp_path / "root"))
    orchestrator.submit("plain", "killed")
    assert orchestrator.failure("plain")["exit_class"] == "signal"
    noted = tmp_path / "pids"
    orchestrator.submit("oom", "family", {"pids": str(noted)})
    host = json.loads(wait_for(lambda: noted.exists() and noted.read_text()))[3]
    counter.write_text(content.format(5))
    os.kill(host, 9)
    assert orchestrator.failure("oom")["exit_class"] == "oom"


def test_unreadable_counters_are_unknown(tmp_path: Path) -> None:
    """No cgroup files, or nonsense in them: the counter is unknown, which is not zero."""
    assert exits.oom_kills(str(tmp_path)) is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.events").write_text("oom_kill [N/A]\n")
    assert exits.oom_kills(str(tmp_path)) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/x\n")
    (tmp_path / "sys/fs/cgroup/pod/x").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/pod/x/memory.events").write_text("oom_kill 2\n")
    assert exits.oom_kills(str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("status", "kills", "log", "expected"),
    [
        (-9, 1, "", "oom"),
        (1, 1, "CUDA out of memory", "oom"),
        (1, 0, "CUDA out of memory", "vram_oom"),
        (-11, None, "", "signal"),
        (137, 0, "", "signal"),
        (127, 0, "", "exception"),
        (255, 0, "", "exception"),
        (0, 0, "", "exception"),
        (None, 0, "", "lost"),
    ],
)
def test_exit_classes(status: int | None, kills: int | None, log: str, expected: str) -> None:
    """Exit status, OOM counter and log give one class, the counter first."""
    assert exits.of_process(status, kills, log)[0] == expected
