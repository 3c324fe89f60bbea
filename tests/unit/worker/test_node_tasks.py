"""Node tasks: the agent puts the orchestrator's key into authorized_keys, and reports it."""

from pathlib import Path
from typing import Any

import pytest

from worker import protocol
from worker.http1 import Unreachable
from worker.node_tasks import MOST, NodeTasks, put_authorized_key

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB"
OTHER = b"ssh-rsa AAAAB3 somebody@laptop\n"


class Calls:
    """A connection and a journal that remember."""

    def __init__(self, error: Exception | None = None) -> None:
        self.said: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self._error = error

    def call(self, function: str, args: dict[str, Any], *, deadline_s: float) -> dict[str, Any]:
        assert function == protocol.NODE_TASK_DONE
        assert deadline_s > 0
        self.said.append(args)
        if self._error:
            raise self._error
        return {"outcome": "ok"}

    def log(self, name: str, **facts: Any) -> None:
        self.logged.append(name)


def carried_out(tasks: Any, calls: Calls) -> Calls:
    NodeTasks(calls, calls).carry_out(tasks)  # type: ignore[arg-type]
    return calls


def task(**changes: Any) -> dict[str, Any]:
    return {"id": 7, "kind": protocol.AUTHORIZED_KEY, "payload": {"key": KEY}, **changes}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_managed_key_is_added_and_other_keys_stay(home: Path) -> None:
    file = home / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_bytes(OTHER + b"ssh-ed25519 OLD " + protocol.MANAGED_KEY.encode())
    calls = carried_out([task()], Calls())
    assert calls.said == [{"p_id": 7, "p_ok": True, "p_error": None}]
    assert file.read_bytes() == OTHER + f"{KEY} {protocol.MANAGED_KEY}\n".encode()
    assert file.stat().st_mode & 0o777 == 0o600
    carried_out([task()], Calls())  # a repetition changes nothing
    assert file.read_bytes().count(KEY.encode()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "shell"},
        {"payload": None},
        {"payload": {"key": 5}},
        {"payload": {"key": KEY + "\nssh-rsa EVIL"}},
        {"payload": {"key": 'command="rm -rf /" ' + KEY}},
    ],
)
def test_anything_else_is_refused_and_reported(home: Path, changes: dict[str, Any]) -> None:
    calls = carried_out([task(**changes)], Calls())
    assert [one["p_ok"] for one in calls.said] == [False]
    assert calls.said[0]["p_error"]
    assert not (home / ".ssh").exists()


@pytest.mark.parametrize("tasks", [None, {}, "x", [None, 3, {"kind": protocol.AUTHORIZED_KEY}], [{"id": "7"}]])
def test_what_is_no_list_of_tasks_is_ignored(home: Path, tasks: Any) -> None:
    assert not carried_out(tasks, Calls()).said


def test_an_answer_with_many_tasks_is_bounded(home: Path) -> None:
    assert len(carried_out([task(id=n) for n in range(1000)], Calls()).said) == MOST


def test_a_report_without_an_answer_does_not_stop_the_heartbeat(home: Path) -> None:
    assert carried_out([task()], Calls(Unreachable("gone"))).logged == ["node_task_done", "node_task_not_reported"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "authorized_keys").mkdir()  # it cannot be read as a file
    with pytest.raises(OSError, match="directory"):
        put_authorized_key(str(tmp_path), KEY)
    assert [one.name for one in tmp_path.iterdir()] == ["authorized_keys"]
