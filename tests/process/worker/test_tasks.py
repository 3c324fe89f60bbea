"""A task is claimed, run in a warm child, its outputs stored, its result delivered."""

import itertools
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.worker.scripted import PATIENCE_S, Orchestrator, Pod, wait_for
from worker import host, protocol
from worker.channel import Channel
from worker.streams import StandardStreams
from worker.task import Task

COUNTING = """
import os
with open(os.environ["LOADS"], "a") as loads:
    loads.write("loaded\\n")

def double(params, task):
    print("doubling", params["n"])
    return {"n": params["n"] * 2, "pid": os.getpid(), "dir": str(task.dir), "cwd": os.getcwd()}
"""

VARIOUS = """
import os, threading, time

def nothing(params, task):
    return None

def where(params, task):
    return "s3://bucket/somewhere/else"

def wrong(params, task):
    return 42

def leak(params, task):
    import os
    return {"seen": [f"it is {os.environ['HF_TOKEN']}!"], os.environ["HF_TOKEN"]: 1}

def not_a_number(params, task):
    return {"loss": float("nan")}

def wrong_location(params, task):
    return {"output_location": 7}

def slow(params, task):
    task.progress(0.25, "a quarter")
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)
    return {"through": True}

def hasty(params, task):
    for number in range(1, 6):
        task.progress(number / 10, f"step {number}")
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)

def store(params, task):
    (task.dir / "a.bin").write_bytes(b"x" * 100_000)
    return {"output_location": task.upload("a.bin", name="deep/b.bin"), "kept": True}

def join(params, task):
    text = b"".join(one.download().read_bytes() for one in task.dependencies)
    (task.dir / "joined").write_bytes(text)
    task.upload(task.dir / "joined")
    return {"from": [one.result_data for one in task.dependencies]}

def read(params, task):
    return {"text": task.dependencies[0].download().read_text()}
"""


TRACED = """
import os

def seen(params, task):
    return {"task": task.traceparent, "environment": os.environ.get("TRACEPARENT")}
"""


def test_a_handler_gets_the_trace_of_its_task_alone(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """In the task, in the environment, and in the input of a command; the next task of the process has none."""
    command = """cmd:python3 -c 'import json, os, sys; t = json.load(sys.stdin); print(json.dumps({"task": t["traceparent"], "environment": os.environ.get("TRACEPARENT")}))'"""  # noqa: E501
    pod = make_pod({"traced.py": TRACED})
    pod.start(handlers={"traced": "traced:seen", "command": command})
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for number, (kind, given) in enumerate(itertools.product(("traced", "command"), (trace, None))):
        orchestrator.submit(f"t{number}", kind, {}, traceparent=given)
        assert orchestrator.completion(f"t{number}")["p_result_data"] == {"task": given, "environment": given}


def test_three_tasks_load_their_module_once(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """Three tasks of one module run in one process that imported the module once, each in a folder of its own."""
    pod = make_pod({"counting.py": COUNTING})
    pod.start({"double": "counting:double"}, env={"LOADS": str(pod.home / "loads")})
    for n in range(3):
        orchestrator.submit(f"task-{n}", "double", {"n": n})
    results = [orchestrator.completion(f"task-{n}")["p_result_data"] for n in range(3)]
    assert [result["n"] for result in results] == [0, 2, 4]
    assert len({result["pid"] for result in results}) == 1
    assert len({result["dir"] for result in results}) == 3
    assert all(result["cwd"] == result["dir"] for result in results)
    assert (pod.home / "loads").read_text() == "loaded\n"
    wait_for(lambda: not list((pod.run / "tasks").iterdir()))  # nothing of them is left on the disk


def test_handler_log_notes_the_task(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """What a handler prints is in handler.log at once, between lines that name the task."""
    pod = make_pod({"counting.py": COUNTING})
    pod.start({"double": "counting:double"}, env={"LOADS": str(pod.home / "loads")})
    orchestrator.submit("the-task", "double", {"n": 1})
    orchestrator.completion("the-task")
    assert pod.log("handler").splitlines() == [
        "--- task the-task attempt 1 begins: counting:double",
        "doubling 1",
        "--- task the-task attempt 1 ends: done",
    ]


def test_the_last_of_several_reports_is_shown(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """Of reports that follow each other quickly, not all are sent; the last one is, although no other one follows."""
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"hasty": "various:hasty"}, heartbeat_s=0.1)
    orchestrator.submit("t", "hasty", {"gate": str(pod.home / "gate")})

    def shown() -> list[Any]:
        beats = [one for call in orchestrator.calls_of(protocol.HEARTBEAT) for one in call["p_tasks"]]
        return [one["progress"]["message"] for one in beats if one.get("progress")]

    wait_for(lambda: "step 5" in shown())
    assert set(shown()) <= {"step 1", "step 5"}
    (pod.home / "gate").touch()
    orchestrator.completion("t")


def fails_at_once(_: Any, task: Task) -> None:
    """A handler."""
    task.progress(0.1, "begins")
    task.progress(0.2, "reads")
    raise ValueError("no segments")


def test_the_last_report_comes_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not after it, when the same process may run the next attempt."""
    monkeypatch.chdir(tmp_path)
    ours, theirs = socket.socketpair()
    given = {"id": "t", "task_type": "t", "attempt": 1, "params": {}, "output_prefix": "p/"}
    request = {"op": "run", "handler": f"{__name__}:fails_at_once", "task": given, "dir": str(tmp_path)}
    channel = Channel(theirs)
    monkeypatch.setattr(channel, "ask", lambda *_: {})
    host.Host(channel, StandardStreams(), None).run({**request, "patience_s": 1})
    ours.settimeout(PATIENCE_S)
    with ours, theirs, ours.makefile("rb") as lines:
        sent = [json.loads(next(lines)) for _ in range(3)]
    assert [one.get("message") for one in sent] == ["begins", "reads", "no segments"]
    assert {(one["task"], one["attempt"]) for one in sent} == {("t", 1)}
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer) and not one.finished.is_set()]


def test_returned_values(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """None, a location and a dict are results; anything else, or what JSON cannot hold, is refused once."""
    pod = make_pod({"various.py": VARIOUS})
    names = ["nothing", "where", "wrong", "not_a_number", "wrong_location"]
    pod.start({name: f"various:{name}" for name in names})
    for name in names:
        orchestrator.submit(name, name)
    nothing, where = orchestrator.completion("nothing"), orchestrator.completion("where")
    assert (nothing["p_output_location"], nothing["p_result_data"]) == (None, None)
    assert where["p_output_location"] == "s3://bucket/somewhere/else"
    reasons = {
        "wrong": "not int", "not_a_number": "loss: nan is not JSON", "wrong_location": "of the type int",
    }  # fmt: skip
    for name, why in reasons.items():
        failure = orchestrator.failure(name)
        assert why in failure["message"]
        assert (failure["code"], failure["point"], failure["retryable"]) == ("RESULT_REFUSED", "Completion", False)


def test_a_result_leaves_without_secrets(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """What a handler returns is stored where many can read it: the pod's own secrets are not in it."""
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"leak": "various:leak"}, env={"HF_TOKEN": "hf_sesame\nopen"})
    orchestrator.submit("t", "leak", {})
    assert orchestrator.completion("t")["p_result_data"] == {"seen": ["it is [redacted]!"], "[redacted]": 1}


def test_progress_and_leases_during_a_long_handler(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """While a handler computes, heartbeats name the attempt and carry its progress and the sizes of the logs."""
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"slow": "various:slow"}, heartbeat_s=0.1)
    orchestrator.submit("long", "slow", {"gate": str(pod.home / "gate")}, attempt=3)

    def told() -> list[dict[str, Any]]:
        return [
            beat for beat in orchestrator.calls_of(protocol.HEARTBEAT) for task in beat["p_tasks"] if "progress" in task
        ]

    orchestrator.until(lambda: len(told()) >= 4)
    (pod.home / "gate").touch()
    orchestrator.completion("long")
    beats = told()
    (task,) = beats[-1]["p_tasks"]
    assert task.pop("still_s") < PATIENCE_S
    assert task == {"id": "long", "attempt": 3, "progress": {"fraction": 0.25, "message": "a quarter"}}
    sizes = beats[-1]["p_logs"]
    assert set(sizes) == set(protocol.STREAMS)
    assert sizes["agent"] > 0


def test_upload_survives_a_failing_store(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """An upload is tried again when the store answers 503, and the result says what was stored and how large it is."""
    orchestrator.break_uploads = 2
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"store": "various:store"})
    orchestrator.submit("kept", "store")
    completion = orchestrator.completion("kept")
    assert completion["p_output_location"] == "s3://bucket/x/outputs/kept/1/deep/b.bin"
    assert completion["p_result_data"] == {
        "kept": True,
        "outputs": [{"name": "deep/b.bin", "location": completion["p_output_location"], "bytes": 100_000}],
    }
    assert orchestrator.objects["outputs/kept/1/deep/b.bin"] == b"x" * 100_000


def test_the_completion_says_when_its_outputs_were_uploaded(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """In seconds since its claim; a task that only downloads, or stores nothing, says nothing."""
    orchestrator.objects |= {"outputs/one/1/o": b"first"}
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"store": "various:store", "read": "various:read"})
    given = {"id": "one", "task_type": "t", "output_location": "s3://bucket/x/outputs/one/1/o", "result_data": None}
    orchestrator.submit("kept", "store")
    orchestrator.submit("later", "read", dependencies=[given])
    upload = orchestrator.completion("kept")["p_output"]["upload"]
    assert 0 < upload["started_s"] <= upload["ended_s"]
    assert "p_output" not in orchestrator.completion("later")


def test_an_older_gateway_gets_the_completion_without_its_upload(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """It does not know the call that says it."""
    orchestrator.knows_uploads = False
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"store": "various:store"})
    orchestrator.submit("kept", "store")
    completion = orchestrator.completion("kept")
    assert completion.keys() == {
        "p_worker_id", "p_nonce", "p_task_id", "p_attempt", "p_output_location", "p_result_data"
    }  # fmt: skip
    assert orchestrator.count(protocol.COMPLETE) == 1


def test_dependencies_are_downloaded(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A task gets its dependencies in order, with their files and results."""
    orchestrator.objects |= {"outputs/one/1/o": b"first ", "outputs/two/1/o": b"second"}
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"join": "various:join"})
    given = [
        {"id": i, "task_type": "x", "output_location": f"s3://bucket/x/outputs/{i}/1/o", "result_data": {"of": i}}
        for i in ("one", "two")
    ]
    orchestrator.submit("both", "join", dependencies=given)
    assert orchestrator.completion("both")["p_result_data"]["from"] == [{"of": "one"}, {"of": "two"}]
    assert orchestrator.objects["outputs/both/1/joined"] == b"first second"


def test_missing_dependency_fails_the_task(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A dependency without an output fails the task at its completion, with the dependency named."""
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"read": "various:read"})
    gone = {"id": "gone", "task_type": "x", "output_location": None, "result_data": None}
    orchestrator.submit("reader", "read", dependencies=[gone])
    failure = orchestrator.failure("reader")
    assert failure["message"] == "TransferError: the task gone left no output to download"
    assert failure["point"] == "Completion"


def test_command_handler(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A command gets the task on stdin, its output files are uploaded, its last line of JSON is the result."""
    script = """#!/bin/sh
cat > output/given.json
mkdir output/more && echo hello > output/more/hello.txt
echo working
echo '{"answer": 42}'
"""
    pod = make_pod({"job.sh": script})
    pod.start({"job": "cmd:./job.sh --fast"})
    orchestrator.submit("shell", "job", {"text": 'it\'s "quoted"'})
    result = orchestrator.completion("shell")["p_result_data"]
    assert result["answer"] == 42
    assert [one["name"] for one in result["outputs"]] == ["given.json", "more/hello.txt"]
    given = json.loads(orchestrator.objects["outputs/shell/1/given.json"])
    assert given == {
        "id": "shell", "task_type": "job", "attempt": 1, "params": {"text": "it's \"quoted\""}, "dependencies": [],
        "traceparent": None,
    }  # fmt: skip
    assert "working\n" in pod.log("handler")


def test_the_result_of_a_command_is_kept_or_refused(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """It is never lost without a word, and the work is not done again in vain."""
    large = """#!/bin/sh\npython3 -c 'print("{\\"a\\": \\"%s\\"}" % ("x" * (1 << 20)))'; echo done.\n"""
    pod = make_pod({"small.sh": "#!/bin/sh\necho '{\"answer\": 42}'; echo done.\n", "large.sh": large})
    pod.start({"small": "cmd:./small.sh", "large": "cmd:./large.sh"})
    orchestrator.submit("large", "large")
    failure = orchestrator.failure("large")
    assert (failure["code"], failure["point"], failure["retryable"]) == ("RESULT_REFUSED", "Completion", False)
    assert "more than 1048576 bytes" in failure["message"]
    orchestrator.submit("small", "small")
    assert orchestrator.completion("small")["p_result_data"] == {"answer": 42}


def test_a_name_that_no_output_can_have_fails_before_an_upload(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """By its own name, whichever file is the first."""
    script = """#!/bin/bash
touch output/first output/second
mkdir $'output/caf\\xe9' && touch $'output/caf\\xe9/x.txt'
"""
    pod = make_pod({"job.sh": script})
    pod.start({"job": "cmd:./job.sh"})
    orchestrator.submit("t", "job")
    failure = orchestrator.failure("t")
    assert (failure["code"], failure["retryable"]) == ("OUTPUT_REFUSED", False)
    assert "'caf\\udce9/x.txt' cannot be the name of an output: it is not UTF-8" in failure["message"]
    assert orchestrator.objects == {}


def test_commands_and_functions_side_by_side(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A worker with handlers of both kinds runs both, and a task type that nobody handles fails by name."""
    pod = make_pod({"various.py": VARIOUS})
    orchestrator.requeues = True  # on a busy machine the last ones do not begin soon enough
    pod.start({"nothing": "various:nothing", "true": "cmd:true"}, batch=3)
    for task_type in ("true", "nothing", "unknown"):
        orchestrator.submit(task_type, task_type)
    orchestrator.completion("true")
    orchestrator.completion("nothing")
    assert orchestrator.failure("unknown")["code"] == "NO_HANDLER"


def test_refused_result_is_a_failure(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A result that the orchestrator refuses (too large, say) is reported as a failure, and the next task runs."""
    pod = make_pod({"various.py": VARIOUS})
    pod.start({"nothing": "various:nothing"})
    orchestrator.refuse_results = True
    orchestrator.submit("refused", "nothing")
    failure = orchestrator.failure("refused")
    assert (failure["code"], failure["point"], failure["retryable"]) == ("RESULT_REFUSED", "Completion", False)
    orchestrator.refuse_results = False
    orchestrator.submit("next", "nothing")
    orchestrator.completion("next")
