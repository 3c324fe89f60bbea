"""Handlers that say, return or leave behind what nobody expects: their task fails by name, and the worker goes on."""

from collections.abc import Callable

import pytest

from tests.process.worker.scripted import Orchestrator, Pod

ODD = """
import gc, os, socket

def say(params, task):
    (channel,) = [one for one in gc.get_objects() if type(one).__name__ == "Channel"]
    for line in params["lines"]:
        channel._socket.sendall(line.encode() + b"\\n")
    return {"said": len(params["lines"])}

def fifo(params, task):
    os.mkfifo("pipe")
    task.upload("pipe")

def device(params, task):
    task.upload("/dev/zero")

def folder(params, task):
    os.mkdir("folder")
    task.upload("folder")

def large(params, task):
    return {"text": "x" * (50 << 20)}

def loud(params, task):
    raise ValueError("x" * (50 << 20))

def deep(params, task):
    found = []
    for _ in range(params["depth"]):
        found = [found]
    return {"deep": found}

def fine(params, task):
    return {"fine": True}
"""
ODD_LINES = [
    "5",
    "null",
    '"done"',
    "[]",
    "{}",
    '{"op": []}',
    '{"op": "progress"}',
    '{"op": "progress", "task": "t", "message": "x", "fraction": "half"}',
    '{"op": "service", "task": "t"}',
    '{"op": "service", "task": "t", "seq": [], "service": "store", "why": "x", "tries": 1, "since": ""}',
    '{"op": "grants"}',
    '{"op": "grants", "seq": 1, "items": 7}',
    '{"op": "done"}',
    '{"op": "done", "output_location": 7, "result_data": []}',
    '{"op": "failed"}',
    '{"op": "failed", "type": "X", "message": 7}',
    '{"op": "ended"}',
    '{"op": "nonsense"}',
    '{"op": "done", "output_location": null, "result_data": null, "dropped_bytes": "7"}',
]


def test_messages_of_an_unknown_shape_are_ignored(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """A handler can write to the agent's socket; the task goes on, and the log has one line about it."""
    pod = make_pod({"odd.py": ODD})
    pod.start({"say": "odd:say", "fine": "odd:fine"})
    orchestrator.submit("t", "say", {"lines": ODD_LINES})
    assert orchestrator.completion("t")["p_result_data"] == {"said": len(ODD_LINES)}
    orchestrator.submit("next", "fine")
    assert orchestrator.completion("next")["p_result_data"] == {"fine": True}
    assert pod.log("agent").count('"message_ignored"') == 1


@pytest.mark.parametrize("line", ["[" * 200_000, "no json", "9" * 5_000])
def test_what_cannot_be_read_ends_the_host_only(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], line: str
) -> None:
    """Where the stream is broken nobody knows what else was in it; the next task gets a new host."""
    pod = make_pod({"odd.py": ODD})
    pod.start({"say": "odd:say", "fine": "odd:fine"})
    orchestrator.submit("t", "say", {"lines": [line]})
    orchestrator.until(lambda: orchestrator.failures.get("t") or orchestrator.completed.get("t"))
    orchestrator.submit("next", "fine")
    assert orchestrator.completion("next")["p_result_data"] == {"fine": True}


@pytest.mark.parametrize("name", ["fifo", "device", "folder"])
def test_only_regular_files_are_uploaded(orchestrator: Orchestrator, make_pod: Callable[..., Pod], name: str) -> None:
    """A pipe would block, and a device never ends."""
    pod = make_pod({"odd.py": ODD})
    pod.start({name: f"odd:{name}"})
    orchestrator.submit("t", name)
    failure = orchestrator.failure("t")
    assert "not a regular file" in failure["message"]
    assert failure["point"] == "Completion"


def test_a_large_result_is_refused_on_the_pod(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """It never leaves the host, and the same goes for the text of an error."""
    pod = make_pod({"odd.py": ODD})
    pod.start({"large": "odd:large", "loud": "odd:loud"})
    orchestrator.submit("t", "large")
    failure = orchestrator.failure("t")
    assert (failure["code"], failure["point"], failure["retryable"]) == ("RESULT_REFUSED", "Completion", False)
    assert "more than 1048576" in failure["message"]
    orchestrator.submit("loud", "loud")
    assert orchestrator.failure("loud")["code"] == "HANDLER_ERROR"


@pytest.mark.parametrize("depth", [300, 600, 900])
def test_a_deep_result_ends_its_task_only(orchestrator: Orchestrator, make_pod: Callable[..., Pod], depth: int) -> None:
    """Taken or failed by name: the worker goes on."""
    pod = make_pod({"odd.py": ODD})
    pod.start({"deep": "odd:deep", "fine": "odd:fine"})
    orchestrator.submit("t", "deep", {"depth": depth})
    orchestrator.until(lambda: orchestrator.failures.get("t") or orchestrator.completed.get("t"))
    orchestrator.submit("next", "fine")
    assert orchestrator.completion("next")["p_result_data"] == {"fine": True}


LEFT = {
    "link": ("ln -s /etc/hostname output/name", "leaves the task's folder"),
    "linked folder": ("ln -s /etc output/etc", "leaves the task's folder"),
    "whole folder": ("rmdir output && ln -s /etc output", "leaves the task's folder"),
    "link to nothing": ("ln -s ../gone output/name", "leads to no file"),
    "link to itself": ("ln -s name output/name", "leads to no file"),
    "pipe": ("mkfifo output/pipe", "not a regular file"),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_command_leaves_is_bounded(orchestrator: Orchestrator, make_pod: Callable[..., Pod], left: str) -> None:
    """Links that leave the task's folder, and what is no file, are refused before one is stored."""
    script, why = LEFT[left]
    pod = make_pod({"job.sh": f"#!/bin/sh\n{script}\n"})
    pod.start({"job": "cmd:./job.sh"})
    orchestrator.submit("t", "job")
    failure = orchestrator.failure("t")
    assert (failure["code"], failure["retryable"]) == ("OUTPUT_REFUSED", False)
    assert why in failure["message"]
    assert not orchestrator.objects


def test_a_link_within_the_tasks_folder_is_an_output(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """It replaces the file."""
    pod = make_pod({"job.sh": "#!/bin/sh\necho hello > made\nln -s ../made output/made.txt\n"})
    pod.start({"job": "cmd:./job.sh"})
    orchestrator.submit("t", "job")
    orchestrator.completion("t")
    assert orchestrator.objects == {"outputs/t/1/made.txt": b"hello\n"}
