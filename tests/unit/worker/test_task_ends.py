"""One beyond each bound of a task, in the handler's process: what the owner of the task reads."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import folders, host, rules
from worker.dependencies import Dependency
from worker.downloads import Download
from worker.task import Task


def ended(handler: str, folder: Path, params: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a task to its end; its last message, and the messages before it."""
    sent: list[dict[str, Any]] = []

    def asked(message: dict[str, Any], _timeout_s: float) -> dict[str, Any]:
        if message["op"] != "imported":
            sent.append(message)
        return {"error": "no store here", "final": True}

    channel: Any = SimpleNamespace(send=sent.append, ask=asked)
    streams: Any = SimpleNamespace(note_objects=lambda: None)
    task = {"id": "t", "task_type": "t", "attempt": 1, "params": params, "output_prefix": "outputs/t/1/"}
    one, interrupt = Task({"task": task, "dir": str(folder), "patience_s": 1}, channel), signal.getsignal(signal.SIGINT)
    try:
        last = host.Host(channel, streams, None)._outcome(handler, one, channel)
    finally:
        signal.signal(signal.SIGINT, interrupt)  # a host ignores it between tasks
    one.flush_progress()
    return last, sent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task changes the current directory."""
    monkeypatch.chdir(tmp_path)


def returns(params: Any, _: Task) -> Any:
    """A handler."""
    return eval(params)  # noqa: S307


RETURNED = {
    "a number": ("42", "not int"),
    "a list": ("[1]", "not list"),
    "a place that is no text": ("{'output_location': 7}", "of the type int"),
    "a place that is too long": ("'s3://' + 'x' * 5_000", "bytes, more than 4096"),
    "NaN": ("{'loss': float('nan')}", "loss: nan is not JSON"),
    "a set": ("{'a': {1}}", "a: a value of the type set is not JSON"),
    "too large": ("{'a': 'x' * (1 << 20)}", "more than 1048576 bytes"),
    "too deep": ("__import__('json').loads('{\"a\":' * 500 + '1' + '}' * 500)", "nested deeper than 60 levels"),
    "too many values": ("{'a': [0] * 20_000}", "more than 20000 keys and values"),
    "NUL": ("{'a': '\\0'}", "a NUL character"),
    "a long number": ("{'a': 10 ** 5_000}", "more than 1000 digits"),
}


@pytest.mark.parametrize("case", RETURNED)
def test_a_result_that_cannot_be_stored_is_refused_once(case: str, tmp_path: Path) -> None:
    """Another attempt would return the same."""
    value, why = RETURNED[case]
    last, _ = ended(f"{__name__}:returns", tmp_path, value)
    assert (last["op"], last["code"], last["point"], last["retryable"]) == (
        "failed", "RESULT_REFUSED", "Completion", False
    )  # fmt: skip
    assert why in last["message"]


PRINTED = {
    "{'a': 1}": "is not JSON",
    '{"a": NaN}\ndone.': "a: nan is not JSON",
    '{"a": 1e999}': "a: inf is not JSON",
    '{"a": 1, "a": 2}': "is there twice",
    '{"a": "\\u0000"}': "a NUL character",
    '{"a": "\\ud800"}': "half of a surrogate pair",
    json.dumps({"a": "x" * (1 << 20)}) + "\ndone.": "more than 1048576 bytes",
}


@pytest.mark.parametrize("text", PRINTED, ids=lambda text: ascii(text[:20]))
def test_what_a_command_prints_as_its_result_is_refused_once(text: str, tmp_path: Path) -> None:
    """By the same rules."""
    (tmp_path / "printed").write_text(text)
    last, _ = ended("cmd:cat printed", tmp_path)
    assert (last["op"], last.get("code"), last.get("retryable")) == ("failed", "RESULT_REFUSED", False)
    assert PRINTED[text] in last["message"]


def test_all_that_a_command_prints_is_read(tmp_path: Path) -> None:
    """Also if it ends before its output is read, and a child of it goes on."""
    (tmp_path / "printed").write_text(json.dumps({"a": "x" * 60_000}))
    last, _ = ended("cmd:sh -c 'sleep 5 & cat printed'", tmp_path)
    assert last["result_data"] == {"a": "x" * 60_000}


def test_what_a_failed_command_prints_stands_before_its_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A reader takes what follows for that of another task."""
    last, _ = ended("cmd:sh -c '(sleep 0.1; echo last words) & exit 3'", tmp_path)
    assert last["op"] == "failed"
    assert capfd.readouterr().out == "last words\n"


LEFT = {
    "ok/caf\udce9/x": "'ok/caf\\udce9/x' cannot be the name of an output: it is not UTF-8",
    "a\nb": "cannot be the name of an output: it contains the control character",
    "a\\b": "it contains a backslash",
    rules.LIST_NAME: "it is reserved for the list of outputs",
}


@pytest.mark.parametrize("name", LEFT, ids=ascii)
def test_a_name_that_is_refused_is_named_before_an_upload(name: str, tmp_path: Path) -> None:
    """Not the first of the files."""
    path = tmp_path / "output" / name
    path.parent.mkdir(parents=True)
    path.touch()
    (tmp_path / "output" / "!first").touch()
    last, sent = ended("cmd:true", tmp_path)
    assert (last["op"], last.get("code"), last.get("retryable")) == ("failed", "OUTPUT_REFUSED", False)
    assert LEFT[name] in last["message"]
    assert [one for one in sent if one["op"] == "grants"] == []


def too_many(params: Any, task: Task) -> Any:
    """A handler."""
    for number in range(params):
        (task.dir / "made" / str(number)).mkdir(parents=True)
        (task.dir / "made" / str(number) / "x").touch()
    task.upload_folder("made")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folder's name."""
    monkeypatch.setattr(folders, "MAX_FILES", 3)
    last, _ = ended(f"{__name__}:too_many", tmp_path, 4)
    assert (last["code"], last["message"]) == ("OUTPUT_REFUSED", "made has more than 3 files: pack them")


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would be missing without a word."""

    def scandir(path: str) -> Any:
        if path.endswith("/secret"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path)

    opened = os.scandir
    (tmp_path / "made" / "secret").mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", scandir)
    last, _ = ended(f"{__name__}:too_many", tmp_path, 0)
    assert (last["code"], last["message"]) == (
        "OUTPUT_REFUSED", "the folder made/secret cannot be read: Permission denied"
    )  # fmt: skip


def test_a_file_with_the_name_of_a_tar_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tar file would be refused as a second file of that name, after hours of work."""
    monkeypatch.setattr(folders, "MAX_SINGLE", 1)
    monkeypatch.setattr(folders, "SHARD_BYTES", 10)
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "files-00000.tar").write_bytes(b"x" * 20)
    (tmp_path / "output" / "small").touch()
    last, sent = ended("cmd:true", tmp_path)
    assert (last["code"], "files-00000.tar" in last["message"]) == ("OUTPUT_REFUSED", True)
    assert [one for one in sent if one["op"] == "grants"] == []


def reports(params: Any, task: Task) -> Any:
    """A handler."""
    task.progress(0.5, eval(params))  # noqa: S307


@pytest.mark.parametrize("message", ["{'loss': float('nan')}", "{1, 2}", "'x' * (100 << 20)", "'\\ud800'"])
def test_a_report_of_any_value_ends_no_task(message: str, tmp_path: Path) -> None:
    """It is shown as text, with its end cut."""
    last, sent = ended(f"{__name__}:reports", tmp_path, message)
    assert last["op"] == "done"
    (report,) = sent
    assert isinstance(report["message"], str)
    assert len(json.dumps(report)) < 10_000


def test_a_download_of_the_longest_name_has_a_place(tmp_path: Path) -> None:
    """Also while it has not arrived completely, and by default beside those of other tasks."""
    name = "x" * rules.NAME_PART_BYTES
    targets: list[Path] = []
    given = {"id": "t" * 36, "output_location": f"s3://b/outputs/t/1/{name}"}
    one = Dependency(given, tmp_path, lambda files, _: targets.extend(target for _, target, _ in files))
    assert one.download() == targets[0] == tmp_path / ("t" * 36) / name
    targets[0].parent.mkdir()
    targets[0].touch()
    Download("k", targets[0], lambda _: None)._part.touch()
