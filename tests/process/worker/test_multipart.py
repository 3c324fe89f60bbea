"""A large file goes in parts: what the store has is not sent again, and nobody trusts an answer alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker.multipart_store import Granting, MultipartStore
from tests.process.worker.test_outages import Clock
from worker import content, protocol, transfer_loop, transfers
from worker.transfer_errors import Exists, TransferError, Unstored
from worker.transfers import Transfers

KEY = "outputs/t/1/film"
PART_BYTES = 4_000
BYTES = 10 * PART_BYTES + 17


@pytest.fixture
def store() -> Iterator[MultipartStore]:
    """It takes small parts."""
    with MultipartStore() as store:
        yield store


@pytest.fixture
def film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of eleven parts."""
    monkeypatch.setattr(content, "MIN_PART_BYTES", PART_BYTES)
    monkeypatch.setattr(transfers, "MULTIPART_BYTES", PART_BYTES)
    path = tmp_path / "film"
    path.write_bytes(os.urandom(BYTES))
    return path


def opened(store: MultipartStore, folder: Path, *, knows_multipart: bool = True) -> tuple[Transfers, Granting]:
    granting = Granting(store, knows_multipart=knows_multipart)
    return Transfers(granting, "t", folder, patience_s=60, clock=Clock()), granting  # type: ignore[arg-type]


def put(store: MultipartStore, film: Path) -> Granting:
    """Store it, and compare what the store has."""
    uploader, granting = opened(store, film.parent)
    assert uploader.put(KEY, film) == (f"s3://bucket/{KEY}", BYTES)
    assert store.objects == {f"/{KEY}": film.read_bytes()}
    assert store.uploads == {}
    return granting


def test_parts_are_sent_once_and_the_object_is_looked_at(store: MultipartStore, film: Path) -> None:
    """Eleven parts, one HEAD, and a line of the byte ledger."""
    granting = put(store, film)
    assert (store.received["part"], store.received["HEAD"], store.part_bytes) == (11, 1, BYTES)
    (line,) = [message for message in granting.told if message["op"] == "stored"]
    assert (line["key"], line["files"], line["bytes"], line["sent"]) == (KEY, 1, BYTES, BYTES)


def test_a_broken_connection_costs_its_part(store: MultipartStore, film: Path) -> None:
    """What the store has acknowledged stays."""
    store.cut_parts = 3
    granting = put(store, film)
    assert store.part_bytes == BYTES + 3 * PART_BYTES
    (line,) = [message for message in granting.told if message["op"] == "stored"]
    assert line["sent"] == store.part_bytes


def test_a_completion_whose_answer_was_lost_is_a_success(store: MultipartStore, film: Path) -> None:
    """The upload is gone, and the object is this file."""
    store.lose_replies = 1
    put(store, film)
    assert store.part_bytes == BYTES


def test_an_error_that_comes_with_status_200_is_an_error(store: MultipartStore, film: Path) -> None:
    """S3 begins its answer before it knows."""
    store.late_errors = 1
    put(store, film)
    assert store.received["complete"] == 1


@pytest.mark.parametrize("fault", ["forget_uploads", "lose_objects", "corrupt"])
def test_what_the_store_forgets_or_corrupts_is_sent_again(store: MultipartStore, film: Path, fault: str) -> None:
    """The local file is kept until a HEAD shows the same bytes."""
    setattr(store, fault, 1)
    put(store, film)
    assert store.received["begin"] == 2


@pytest.mark.parametrize("fault", ["lose_objects", "corrupt"])
def test_a_store_that_never_keeps_it_fails_the_upload(store: MultipartStore, film: Path, fault: str) -> None:
    """With the code for an output that is not there; nothing is left in the bucket."""
    setattr(store, fault, 1_000)
    uploader, _ = opened(store, film.parent)
    with pytest.raises(Unstored) as failed:
        uploader.put(KEY, film)
    assert failed.value.code == protocol.OUTPUT_MISSING
    assert store.uploads == {}
    assert film.exists()


def test_other_content_under_the_name_is_refused_and_the_parts_are_forgotten(store: MultipartStore, film: Path) -> None:
    """Written once, as with one write."""
    store.objects[f"/{KEY}"] = b"first"
    uploader, _ = opened(store, film.parent)
    with pytest.raises(Exists, match="written once"):
        uploader.put(KEY, film)
    assert store.objects == {f"/{KEY}": b"first"}
    assert (store.uploads, store.received["abort"]) == ({}, 1)


def test_a_store_that_knows_no_condition_keeps_the_parts_that_it_has(store: MultipartStore, film: Path) -> None:
    """The end is signed again without it."""
    store.knows_conditions = False
    put(store, film)
    assert store.part_bytes == BYTES


def test_an_etag_that_is_no_md5_is_not_taken_for_one(store: MultipartStore, film: Path) -> None:
    """A bucket with keys of KMS says so; its ETags have the form of an MD5."""
    store.encrypts = True
    put(store, film)
    (film.parent / "small").write_bytes(b"x")
    uploader, _ = opened(store, film.parent)
    uploader.put("outputs/t/1/small", film.parent / "small")
    assert store.received["whole"] == 1


def test_an_orchestrator_of_an_earlier_release_gets_one_write(store: MultipartStore, film: Path) -> None:
    """It signs no parts: the file goes as it went before."""
    uploader, _ = opened(store, film.parent, knows_multipart=False)
    assert uploader.put(KEY, film) == (f"s3://bucket/{KEY}", BYTES)
    assert store.objects == {f"/{KEY}": film.read_bytes()}


def test_a_file_that_becomes_shorter_fails_the_upload(
    store: MultipartStore, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler still writes to it."""
    uploader, granting = opened(store, film.parent)
    ask = granting.ask

    def shrinks(message: dict[str, object], timeout_s: float) -> dict[str, object]:
        os.truncate(film, PART_BYTES)
        return ask(message, timeout_s)

    monkeypatch.setattr(granting, "ask", shrinks)
    with pytest.raises(TransferError, match="was changed during the upload"):
        uploader.put(KEY, film)
    assert store.uploads == {}


@pytest.mark.parametrize("way", ["in parts", "in one write", "to an orchestrator of an earlier release"])
def test_a_file_that_grows_is_stored_with_the_bytes_that_it_had(
    store: MultipartStore, film: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A log that a process still writes: its size in the result is the size of the object, and the upload ends."""
    monkeypatch.setattr(transfer_loop, "FILES_A_GRANT", 1)
    if way == "in one write":
        monkeypatch.setattr(transfers, "MULTIPART_BYTES", 10 * BYTES)
    uploader, granting = opened(store, film.parent, knows_multipart=way == "in parts")
    ask, before, small = granting.ask, film.read_bytes(), film.with_name("small")
    small.write_bytes(b"x")

    def grows(message: dict[str, object], timeout_s: float) -> dict[str, object]:
        with film.open("ab") as file:
            file.write(b"more")
        return ask(message, timeout_s)

    monkeypatch.setattr(granting, "ask", grows)
    stored = uploader.put_all([("outputs/t/1/small", small), (KEY, film)])
    assert [size for _, size in stored] == [1, BYTES]
    assert store.objects[f"/{KEY}"] == before


@pytest.mark.parametrize(("fault", "tries"), [("lose_objects", 2), ("corrupt", 2)])
def test_a_small_file_is_looked_at_too(store: MultipartStore, tmp_path: Path, fault: str, tries: int) -> None:
    """A 200 for bytes that the store does not show is not believed."""
    setattr(store, fault, 1)
    (tmp_path / "small").write_bytes(b"kept")
    uploader, _ = opened(store, tmp_path)
    uploader.put(KEY, tmp_path / "small")
    assert store.objects == {f"/{KEY}": b"kept"}
    assert store.received["whole"] == tries
