"""A full disk on a pod loses log lines, says how many, and neither blocks a handler nor keeps a launch from ending."""

import errno
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.worker.scripted import Orchestrator, Pod, live
from worker import protocol, usercode
from worker.config import RunDir
from worker.journal import Journal
from worker.output import HandlerOutput

FULL = Path("/dev/full")  # each write to it fails with ENOSPC
TALKATIVE = """
import sys

def prints(params, task):
    for n in range(1000):
        print("line", n, "x" * 100)
    sys.stderr.write("the last word\\n")
    return {"printed": True}
"""


def with_full_log(pod: Pod) -> None:
    """Put the handler's log of the next launch onto a full disk."""
    logs = pod.run / "logs"
    logs.mkdir(parents=True)
    (logs / "handler.log").symlink_to(FULL)


def dropped(orchestrator: Orchestrator) -> int:
    """What the newest heartbeat says of dropped output."""
    beats = orchestrator.calls_of(protocol.HEARTBEAT)
    return int(beats[-1]["p_health"].get("output_dropped_bytes", 0)) if beats else 0


def test_a_command_that_says_much_ends_although_its_log_is_full(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """Somebody drains its pipe to the end: its result arrives, and what was dropped is declared."""
    script = "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\\\0' x | fold -w 99\necho\necho '{\"answer\": 42}'\n"
    pod = make_pod({"job.sh": script})
    with_full_log(pod)
    pod.start({"job": "cmd:./job.sh"}, default_timeout_s=30)
    orchestrator.submit("loud", "job")
    orchestrator.until(lambda: orchestrator.completed.get("loud") or orchestrator.failures.get("loud"))
    assert orchestrator.failures == {}
    assert orchestrator.completion("loud")["p_result_data"]["answer"] == 42
    orchestrator.until(lambda: dropped(orchestrator) > 300_000)
    [event] = pod.events("output_dropped")
    assert event["bytes"] > 300_000


def test_a_function_that_prints_does_not_fail_for_it(orchestrator: Orchestrator, make_pod: Callable[..., Pod]) -> None:
    """The disk is the machine's matter: the work is good."""
    pod = make_pod({"talkative.py": TALKATIVE})
    with_full_log(pod)
    pod.start({"prints": "talkative:prints"})
    orchestrator.submit("loud", "prints")
    orchestrator.until(lambda: orchestrator.completed.get("loud") or orchestrator.failures.get("loud"))
    assert orchestrator.failures == {}
    assert orchestrator.completion("loud")["p_result_data"] == {"printed": True}
    orchestrator.until(lambda: dropped(orchestrator) > 100_000)


def test_the_log_says_how_much_was_dropped_once_there_is_room(tmp_path: Path) -> None:
    """What was written before and after stays; between them stands the number of bytes that are missing."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    full = os.open(FULL, os.O_WRONLY)
    output = HandlerOutput(os.dup(log))
    output.write(b"before\n")
    os.dup2(full, output.fileno())
    output.write(b"0123456789")
    os.dup2(log, output.fileno())
    output.write(b"after\n")
    text = (tmp_path / "log").read_text()
    assert text == "before\n\n--- 10 bytes of output were dropped: the disk was full\nafter\n"
    assert output.take_dropped() == 10
    assert output.take_dropped() == 0


def test_a_torn_line_of_the_agents_log_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes half a line: the next one stands on a line of its own and tells of the loss."""
    journal = Journal(str(tmp_path / "agent.log"), [])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    journal.log("torn")
    monkeypatch.setattr(os, "write", write)
    journal.log("whole")
    _, last = (tmp_path / "agent.log").read_text().splitlines()
    assert (json.loads(last)["event"], json.loads(last)["lines_lost"]) == ("whole", 1)


def test_a_leftover_of_a_cut_write_does_not_keep_a_launch_from_being_stopped(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """`stop` ends what runs, whatever lies among the notes of sessions."""
    pod = make_pod()
    line = pod.start({"true": "cmd:true"})
    orchestrator.submit("t", "true")
    orchestrator.completion("t")
    for name in ("4711.tmp", "nonsense", "12345"):
        (pod.run / "sessions" / name).write_text("")
    assert pod.stop(grace_s=2) == {"stopped": True}
    assert live([line["pid"]]) == []


def test_a_write_that_the_disk_refuses_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the temporary file stays, which would take room and confuse a reader of the directory."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        RunDir(str(tmp_path)).write("token", "text")
    assert list(tmp_path.iterdir()) == []


def test_user_code_that_does_not_fit_leaves_no_half_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try would otherwise take more of the room that is missing."""
    with zipfile.ZipFile(tmp_path / "user-abc.zip", "w") as archive:
        archive.writestr("a.py", "a = 1\n")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extract", full)
    with pytest.raises(OSError, match="No space"):
        usercode.unpack(str(tmp_path), "abc")
    assert [path.name for path in tmp_path.iterdir()] == ["user-abc.zip"]


def test_a_log_that_a_handler_removed_does_not_end_the_agent(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """The next task runs, and a failure is reported without the log's last lines."""
    pod = make_pod()
    pod.start({"true": "cmd:true", "false": "cmd:false"})
    orchestrator.submit("one", "true")
    orchestrator.completion("one")
    (pod.run / "logs" / "handler.log").unlink()
    orchestrator.submit("two", "false")
    assert orchestrator.failure("two")["code"] == "EXIT_STATUS"
    orchestrator.submit("three", "true")
    orchestrator.completion("three")
