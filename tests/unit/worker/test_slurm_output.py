"""The output of a batch script reaches the handler's log, whatever the script makes of its file."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import redaction, slurm_output
from worker.slurm_output import OUTPUT, copy
from worker.transfer_errors import TransferError


@pytest.fixture(autouse=True)
def _in_the_task_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_call_copies_no_more_than_it_may(capfd: pytest.CaptureFixture[str]) -> None:
    """A job may print faster than its output is copied: its state is looked at in between."""
    Path(OUTPUT).write_bytes(b"x" * 1_000)
    assert copy(0, 600) == 600
    assert copy(600, 600) == 1_000
    assert capfd.readouterr().out == "x" * 1_000


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("/dev/zero")])
def test_a_script_that_replaces_its_output_does_not_keep_the_handler_waiting(make: object) -> None:
    make(OUTPUT)  # type: ignore[operator]
    assert copy(0, 600) == 0


def test_more_files_than_are_stored_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_output, "MAX_OUTPUTS", 3)
    for number in range(4):
        Path(f"{number}.bin").touch()
    with pytest.raises(TransferError, match="more than 3 files"):
        slurm_output._matches(["*.bin"])
    assert sorted(slurm_output._matches(["[0-2].bin"])) == ["0.bin", "1.bin", "2.bin"]


def test_a_name_that_no_output_can_have_is_named_before_an_upload() -> None:
    Path("a.bin").touch()
    Path("b\n.bin").touch()
    with pytest.raises(TransferError, match="cannot be the name of an output: it contains the control character"):
        slurm_output._matches(["*.bin"])


def test_a_pattern_reads_no_more_names_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories count too, although none of them is stored."""
    monkeypatch.setattr(slurm_output, "MAX_MATCHES", 3)
    for number in range(4):
        Path(f"folder-{number}").mkdir()
    with pytest.raises(TransferError, match="names more than 3 files"):
        slurm_output._matches(["folder-*"])


def test_a_pattern_does_not_leave_the_directory_of_the_task(tmp_path: Path) -> None:
    (tmp_path.parent / "secret").touch()
    Path("link").symlink_to("/etc/hostname")
    Path("folder").symlink_to("/etc")
    assert slurm_output._matches(["../*", "/etc/*", "link", "folder/*", OUTPUT, "output/*"]) == {}


def test_the_stored_output_of_a_job_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file goes to S3 as an output of the task; the second part of the secret is in another block."""
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop0123456789")
    monkeypatch.setattr(redaction, "_own", None)  # as in a new process
    before = "x" * (slurm_output.BLOCK_BYTES - 10)
    Path(OUTPUT).write_text(f"{before}hf_abcdefghijklmnop0123456789 after\n")
    stored: list[str] = []
    task: Any = SimpleNamespace(upload=lambda path: stored.append(Path(path).read_text()))
    slurm_output.store_output(task)
    assert stored == [f"{before}[redacted] after\n"]
    assert [path.name for path in Path().iterdir()] == [OUTPUT]
