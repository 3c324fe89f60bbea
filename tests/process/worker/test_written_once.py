"""An output is written once: a repeated upload succeeds, and other bytes under the same name are refused."""

from pathlib import Path

import pytest

from tests.process.worker.scripted import Orchestrator
from tests.process.worker.test_outages import Clock, transfers_with
from worker import protocol
from worker.transfer_errors import Exists, Replaced, TransferError

KEY = "outputs/t/1/result"


def test_an_upload_whose_answer_was_lost_succeeds_when_it_is_repeated(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    """The store has the object already; its MD5 says that it is this one."""
    orchestrator.lose_uploads = 1
    one, asked = transfers_with(orchestrator, tmp_path, Clock())
    (tmp_path / "result").write_bytes(b"kept")
    assert one.put(KEY, tmp_path / "result") == (f"s3://bucket/x/{KEY}", 4)
    assert asked.grants == 2


def test_other_bytes_under_the_same_name_are_refused(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """The first file stays, and the failure has its own code."""
    one, _ = transfers_with(orchestrator, tmp_path, Clock())
    for content in (b"first", b"other"):
        (tmp_path / "result").write_bytes(content)
        if content == b"first":
            one.put(KEY, tmp_path / "result")
    with pytest.raises(Exists, match="written once") as failed:
        one.put(KEY, tmp_path / "result")
    assert failed.value.code == protocol.OUTPUT_EXISTS
    assert orchestrator.objects == {KEY: b"first"}


def test_a_store_that_knows_no_condition_gets_a_plain_upload(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """Some refuse the header as not implemented: the task must not wait for ever."""
    orchestrator.knows_conditions = None
    one, asked = transfers_with(orchestrator, tmp_path, Clock())
    (tmp_path / "result").write_bytes(b"kept")
    one.put(KEY, tmp_path / "result")
    assert orchestrator.objects == {KEY: b"kept"}
    assert asked.grants == 2


def test_a_store_that_knows_no_checksum_gets_a_plain_upload(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """It says which header it does not take, with the status of a bad request."""
    orchestrator.knows_checksums = False
    one, asked = transfers_with(orchestrator, tmp_path, Clock())
    (tmp_path / "result").write_bytes(b"kept")
    one.put(KEY, tmp_path / "result")
    assert orchestrator.objects == {KEY: b"kept"}
    assert asked.grants == 2


def test_a_file_that_the_store_cannot_take_is_not_asked_for(
    orchestrator: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is told what to do."""
    monkeypatch.setattr(protocol, "MAX_OBJECT_BYTES", 1_000)
    one, asked = transfers_with(orchestrator, tmp_path, Clock())
    (tmp_path / "result").write_bytes(bytes(1_001))
    with pytest.raises(TransferError, match="split it"):
        one.put(KEY, tmp_path / "result")
    assert asked.grants == 0


@pytest.mark.parametrize("recorded", [{"etag": "another"}, {"bytes": 5}, {"sha256": "0" * 64}])
def test_an_object_that_is_not_the_recorded_one_is_not_handed_to_the_handler(
    orchestrator: Orchestrator, tmp_path: Path, recorded: dict[str, object]
) -> None:
    """It may have been replaced after the URL was signed."""
    orchestrator.objects["outputs/other/1/o"] = b"evil"
    one, asked = transfers_with(orchestrator, tmp_path, Clock())
    asked.recorded = dict(recorded)
    with pytest.raises(Replaced) as failed:
        one.get_all([("s3://bucket/x/outputs/other/1/o", tmp_path / "o", None)], "other")
    assert failed.value.code == protocol.OUTPUT_REPLACED
    assert list(tmp_path.iterdir()) == []
