"""A process that a handler forks, or a thread that it leaves, never reports for its task or for the next one."""

from collections.abc import Callable

import pytest

from tests.process.worker.scripted import Orchestrator, Pod

CODE = """
import gc, json, multiprocessing, os, signal, socket, subprocess, sys, threading, time

def _wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def _in_child(act):
    pid = os.fork()
    if pid == 0:
        act()
    return pid

def exits(params, task):
    if os.fork() == 0:
        sys.exit(3)
    return {"of": task.id, "status": _wait(-1)}

def exits_without_status(params, task):
    if os.fork() == 0:
        sys.exit()
    return {"of": task.id, "status": _wait(-1)}

def exits_with_text(params, task):
    if os.fork() == 0:
        sys.exit("a reason")
    return {"of": task.id, "status": _wait(-1)}

def raises(params, task):
    if os.fork() == 0:
        raise ValueError("in the child")
    return {"of": task.id, "status": _wait(-1)}

def returns(params, task):
    if os.fork() == 0:
        return {"of": "the child"}
    return {"of": task.id, "status": _wait(-1)}

def returns_later(params, task):
    if os.fork() == 0:
        time.sleep(0.3)
        return {"of": "the child"}
    return {"of": task.id}

def in_a_thread(params, task):
    def act():
        if os.fork() == 0:
            sys.exit(1)
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    return {"of": task.id}

def pool(params, task):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return {"of": task.id, "squares": pool.map(_square, [1, 2, 3])}

TASK = None

def _square(number):
    if TASK:
        TASK.progress(0.9, "from a child")
    return number * number

def pool_reports(params, task):
    global TASK
    TASK = task
    return pool(params, task)

def uploads(params, task):
    (task.dir / "file").write_text("x")
    pid = os.fork()
    if pid == 0:
        try:
            task.upload("file")
        except Exception as error:
            os._exit(0 if "forked" in str(error) else 9)
        os._exit(8)
    return {"of": task.id, "status": _wait(pid)}

def writes(params, task):
    (channel,) = [one for one in gc.get_objects() if type(one).__name__ == "Channel"]
    number = channel._socket.fileno()
    copy = os.dup(number)
    os.set_inheritable(copy, True)
    last = json.dumps({"op": "done", "task": task.id, "attempt": task.attempt, "output_location": None,
                       "result_data": {"of": "a child"}})
    program = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode() + b'\\\\n')"
    subprocess.run([sys.executable, "-c", program, str(copy), last], close_fds=False)
    os.close(copy)
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", program, str(number), last])
    os.wait()
    return {"of": task.id}

def forges(params, task):
    (channel,) = [one for one in gc.get_objects() if type(one).__name__ == "Channel"]
    last = {"op": "done", "task": params["as"], "attempt": params.get("attempt", 1), "output_location": None,
            "result_data": {"of": "forged"}}
    channel._socket.sendall(json.dumps(last).encode() + b"\\n")
    time.sleep(60)

def closes(params, task):
    task.progress(0.5)
    os.closerange(3, 4096)
    return {"of": task.id}

def closes_and_reuses(params, task):
    os.closerange(3, 4096)
    for number in range(200):
        open(os.devnull)
        os.open(task.dir / str(number), os.O_RDWR | os.O_CREAT)
    return {"of": task.id, "written": sum(os.path.getsize(task.dir / str(number)) for number in range(200))}

def lingers(params, task):
    def report():
        for number in range(200):
            task.progress(0.01 * (number % 100), "of the earlier task")
            time.sleep(0.01)
    threading.Thread(target=report, daemon=True).start()
    return {"of": task.id}

def ends_at_once(params, task):
    def status_of_ended():
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(9)
        os.kill(pid, signal.SIGTERM)
        return _wait(pid)

    statuses = {status_of_ended() for _ in range(20)}
    thread = threading.Thread(target=lambda: statuses.update(status_of_ended() for _ in range(20)))
    thread.start()
    thread.join()
    return {"of": task.id, "statuses": sorted(statuses), "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, []))}

def has_its_own(params, task):
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    pid = os.fork()
    if pid == 0:
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    return {"of": task.id, "status": _wait(pid)}

def becomes_another_program(params, task):
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])

def fine(params, task):
    time.sleep(0.4)
    return {"of": task.id}
"""
NAMES: dict[str, dict[str, object]] = {
    "exits": {"status": 3},
    "exits_without_status": {"status": 0},
    "exits_with_text": {"status": 1},
    "raises": {"status": 1},
    "returns": {"status": 0},
    "returns_later": {},
    "in_a_thread": {},
    "pool": {"squares": [1, 4, 9]},
    "pool_reports": {"squares": [1, 4, 9]},
    "uploads": {"status": 0},
    "writes": {},
    "closes": {},
    "closes_and_reuses": {"written": 0},
    "lingers": {},
    "ends_at_once": {"statuses": [-15], "blocked": 0},
    "has_its_own": {"status": 5},
}


@pytest.fixture
def pod(make_pod: Callable[..., Pod]) -> Pod:
    pod = make_pod({"forks.py": CODE})
    pod.start({name: f"forks:{name}" for name in (*NAMES, "forges", "becomes_another_program", "fine")})
    return pod


def test_each_task_gets_its_own_result(orchestrator: Orchestrator, pod: Pod) -> None:
    """Children that exit, raise, return, exec, write to copies of the socket; threads that report later."""
    for name in NAMES:
        orchestrator.submit(name, name)
        orchestrator.submit(f"after {name}", "fine")
    for name, more in NAMES.items():
        for task, result in ((name, {"of": name, **more}), (f"after {name}", {"of": f"after {name}"})):
            orchestrator.until(lambda task=task: task in orchestrator.completed | orchestrator.failures)  # type: ignore[misc]
            assert not orchestrator.failures
            assert orchestrator.completion(task)["p_result_data"] == result
    beats = [task for beat in orchestrator.calls_of("worker_heartbeat") for task in beat["p_tasks"]]
    assert not [one for one in beats if "of the earlier task" in str(one) and one["id"] != "lingers"]
    assert "in the child" in pod.log("handler")  # the child's traceback


@pytest.mark.parametrize("given", [{"as": "after"}, {"as": "t", "attempt": 2}])
def test_a_message_of_another_task_decides_nothing(
    orchestrator: Orchestrator, pod: Pod, given: dict[str, object]
) -> None:
    """Nor does one of another attempt. The host ends, and the next task gets a new one."""
    orchestrator.submit("t", "forges", given)
    orchestrator.submit("after", "fine")
    assert orchestrator.failure("t")["code"] == "LOST"
    assert orchestrator.completion("after")["p_result_data"] == {"of": "after"}
    assert len(pod.events("message_of_another_task")) == 1


def test_a_host_that_becomes_another_program_has_returned_nothing(orchestrator: Orchestrator, pod: Pod) -> None:
    """The socket does not survive the exec."""
    orchestrator.submit("t", "becomes_another_program")
    orchestrator.submit("after", "fine")
    assert orchestrator.failure("t")["code"] == "EXIT_STATUS"
    assert orchestrator.completion("after")["p_result_data"] == {"of": "after"}
