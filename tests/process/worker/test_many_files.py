"""Many files of one task: several are on their way at a time, and very many are packed."""

import io
import json
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.worker.multipart_store import Granting, MultipartStore
from tests.process.worker.scripted import Orchestrator, Pod
from worker import folders, protocol
from worker import task as task_module
from worker.task import Task
from worker.transfer_errors import TransferError
from worker.transfers import Transfers

JOB = """#!/bin/sh
mkdir output/deep
for n in $(seq 1 %d); do echo "$n" > output/deep/$n.txt; done
"""


@pytest.fixture
def store() -> Iterator[MultipartStore]:
    """Somewhere to put them."""
    with MultipartStore() as store:
        yield store


def task(store: MultipartStore, folder: Path) -> tuple[Task, Granting]:
    """A handler's task whose directory is this folder."""
    granting = Granting(store)
    given = {"id": "t", "task_type": "x", "attempt": 1, "output_prefix": "outputs/t/1/"}
    request = {"task": given, "dir": str(folder), "patience_s": 60}
    return Task(request, granting), granting  # type: ignore[arg-type]


def filled(folder: Path, files: int) -> dict[str, bytes]:
    """So many small files, in folders; their content by name."""
    content = {f"{number % 7}/{number}.txt": b"%d" % number for number in range(files)}
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return content


def test_all_files_of_a_folder_arrive(store: MultipartStore, tmp_path: Path) -> None:
    """A few calls bring the URLs for all of them, several tries are lost, and each file is there."""
    content = filled(tmp_path / "frames", 700)
    one, granting = task(store, tmp_path)
    store.lose_objects = 5
    locations = one.upload_folder(tmp_path / "frames", "made")
    assert len(locations) == len(set(locations)) == 700
    assert store.objects == {f"/outputs/t/1/made/{name}": text for name, text in content.items()}
    ledger = [message for message in granting.told if message["op"] == "stored"]
    assert sum(line["files"] for line in ledger) == 700
    assert sum(line["sent"] - line["bytes"] for line in ledger) > 0
    assert one.ended(None)["result_data"]["outputs"][0]["name"] == "made/0/0.txt"


def test_the_next_urls_are_requested_while_half_of_the_last_ones_are_left(tmp_path: Path) -> None:
    """The store is busy meanwhile: it answers 100 of the first 300 files only after the second request for URLs."""
    asked_again, waited = threading.Event(), list[bool]()

    class Waiting(MultipartStore):
        def keep(self, path: str, body: bytes) -> None:
            super().keep(path, body)
            if len(self.objects) > 200:
                waited.append(asked_again.wait(20))

    class Asking(Granting):
        def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            if self.asked:
                asked_again.set()
            return super().ask(message, timeout_s)

    with Waiting() as store:
        granting = Asking(store)
        filled(tmp_path / "frames", 400)
        files = [(path.name, path) for path in (tmp_path / "frames").rglob("*.txt")]
        stored = Transfers(granting, "t", tmp_path, patience_s=60).put_all(files)  # type: ignore[arg-type]
    assert len(stored) == 400
    assert len(waited) >= 200
    assert all(waited)


def test_a_long_list_of_outputs_is_a_file(
    store: MultipartStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result stays within the gateway's limits and says where the list is."""
    monkeypatch.setattr(task_module, "MAX_LISTED", 100)
    filled(tmp_path / "frames", 101)
    one, _ = task(store, tmp_path)
    one.upload_folder(tmp_path / "frames")
    result = one.ended({"ok": True})["result_data"]
    assert result == {
        "ok": True, "outputs_list": "s3://bucket/outputs/t/1/.outputs.jsonl", "outputs_count": 101,
        "outputs_bytes": sum(len(str(number)) for number in range(101)),
    }  # fmt: skip
    lines = [json.loads(line) for line in store.objects["/outputs/t/1/.outputs.jsonl"].splitlines()]
    assert len(lines) == 101
    assert all(f"/outputs/t/1/{line['name']}" in store.objects for line in lines)


def test_very_many_files_are_packed(store: MultipartStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tar files of a size; a large file is stored by itself, and no scratch file is left."""
    monkeypatch.setattr(folders, "MAX_SINGLE", 100)
    monkeypatch.setattr(folders, "SHARD_BYTES", 200)
    content = filled(tmp_path / "frames", 150)
    (tmp_path / "frames" / "large").write_bytes(bytes(201))
    one, granting = task(store, tmp_path)
    locations = one.upload_folder(tmp_path / "frames")
    assert locations[0] == "s3://bucket/outputs/t/1/large"
    assert locations[1:] == [f"s3://bucket/outputs/t/1/files-{n:05d}.tar" for n in range(len(locations) - 1)]
    found: dict[str, bytes] = {}
    for location in locations[1:]:
        with tarfile.open(fileobj=io.BytesIO(store.objects[location.removeprefix("s3://bucket")])) as tar:
            found |= {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}
    assert found == content
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]
    ledger = [message for message in granting.told if message["op"] == "stored"]
    assert sum(line["files"] for line in ledger) == 151


def test_a_pipe_among_very_many_files_is_refused(
    store: MultipartStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before one is stored."""
    monkeypatch.setattr(folders, "MAX_SINGLE", 10)
    filled(tmp_path / "frames", 11)
    os.mkfifo(tmp_path / "frames" / "pipe")
    one, _ = task(store, tmp_path)
    with pytest.raises(TransferError, match="not a regular file"):
        one.upload_folder(tmp_path / "frames")
    assert store.objects == {}


def test_a_command_with_many_small_files_is_done_and_warned_of(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod]
) -> None:
    """All of them are stored, and the heartbeat has the finding until a task stores fewer."""
    pod = make_pod({"many.sh": JOB % 1_200, "few.sh": JOB % 3})
    pod.start({"many": "cmd:./many.sh", "few": "cmd:./few.sh"})
    orchestrator.submit("m", "many")
    orchestrator.completion("m")
    assert orchestrator.objects == {f"outputs/m/1/deep/{n}.txt": b"%d\n" % n for n in range(1, 1_201)}

    def found() -> list[str]:
        beats = orchestrator.calls_of(protocol.HEARTBEAT)
        return [one["code"] for one in ((beats[-1]["p_health"] or {}).get("findings") or [])] if beats else []

    orchestrator.until(lambda: "MANY_SMALL_FILES" in found())
    orchestrator.submit("f", "few")
    orchestrator.completion("f")
    orchestrator.until(lambda: "MANY_SMALL_FILES" not in found())
    lines = [line for line in pod.events("output_stored") if line["task"] == "m"]  # one more for each file sent again
    assert sum(line["files"] for line in lines) == 1_200
    assert sum(line["sent"] for line in lines) >= sum(line["bytes"] for line in lines)
