"""What a handler gets of an earlier task stays below the folder that it names."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from worker import folders
from worker.dependencies import Dependency
from worker.downloads import inside
from worker.transfer_errors import TransferError


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b", "x" * 5_000])
def test_a_name_stays_in_the_folder(name: str, tmp_path: Path) -> None:
    """The result of the earlier task says it."""
    with pytest.raises(TransferError, match="not a name below a folder"):
        inside(tmp_path, name)


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    """A tar file with these members, each of four bytes if it is a file."""
    with tarfile.open(path, "w") as tar:
        for member in members:
            member.size = 4 if member.isreg() else 0
            tar.addfile(member, io.BytesIO(b"abcd") if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    """A member that links to `to`, if it is a link."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def test_a_tar_file_becomes_its_files(tmp_path: Path) -> None:
    """And is removed."""
    folders.unpack(archive(tmp_path / "a.tar", member("x/y.txt"), member("z")))
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {"x/y.txt", "z"}


@pytest.mark.parametrize(
    "wrong",
    [
        member("../up"), member("/etc/x"), member("link", tarfile.SYMTYPE, "/etc"),
        member("hard", tarfile.LNKTYPE, "x"), member("fifo", tarfile.FIFOTYPE), member("device", tarfile.CHRTYPE),
    ],
    ids=lambda one: one.name,
)  # fmt: skip
def test_a_tar_file_writes_nothing_elsewhere(wrong: tarfile.TarInfo, tmp_path: Path) -> None:
    """No links, so that no later member is written through one."""
    (tmp_path / "in").mkdir()
    path = archive(tmp_path / "in/a.tar", wrong)
    with pytest.raises(TransferError):
        folders.unpack(path)
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


def test_what_is_no_tar_file_is_an_error(tmp_path: Path) -> None:
    """It is removed too."""
    (tmp_path / "a.tar").write_bytes(b"x" * 1_000)
    with pytest.raises(TransferError, match="could not be unpacked"):
        folders.unpack(tmp_path / "a.tar")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "result", [None, 5, {}, {"outputs": {}}, {"outputs": [5]}, {"outputs": [{"name": 1, "location": "x"}]}]
)
def test_a_result_without_a_list_is_an_error(result: Any, tmp_path: Path) -> None:
    """A handler may return anything under these names."""
    with pytest.raises(TransferError, match="list"):
        Dependency({"id": "t", "result_data": result}, tmp_path, lambda _files, _of: None).download_folder()
