"""The files of a folder as outputs: each one by itself or, if there are very many, in tar files; and back again."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from pathlib import Path

from .downloads import inside
from .transfer_errors import OutputRefused, TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_SINGLE = 10_000  # files that are stored one by one; each needs two requests to the store
MAX_FILES = 1_000_000  # of one folder: their names are in memory
SHARD_BYTES = 256_000_000  # of a tar file; a larger file is stored by itself
SHARD_NAME = "files-{:05d}.tar"


class Shard:
    """A tar file with some of the files."""

    def __init__(self, path: Path, files: int) -> None:
        self.path, self.files = path, files


def files_below(folder: str, home: str) -> list[str]:
    """Return the files below a folder, subfolder by subfolder.

    Raises OutputRefused for a link out of it and `home`, and for a subfolder that cannot be read.
    """
    roots = tuple(os.path.realpath(root) + os.sep for root in (folder, home))
    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_unread):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *links):
            path = os.path.join(parent, name)
            if not os.path.realpath(path).startswith(roots):
                raise OutputRefused(f"{path} is a link that leaves the task's folder: copy the file instead")
            if os.path.islink(path) and not os.path.exists(path):
                raise OutputRefused(f"{path} is a link that leads to no file: remove it, or copy the file instead")
            if len(found) == MAX_FILES:
                raise OutputRefused(f"{folder} has more than {MAX_FILES} files: pack them")
            found.append(path)
    return sorted(found, key=os.path.split)


def _unread(error: OSError) -> None:
    raise OutputRefused(f"the folder {error.filename} cannot be read: {error.strerror}") from error


def split(files: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the files to store one by one, and the groups to store as tar files."""
    if len(files) <= MAX_SINGLE:
        return list(files), []
    single: list[str] = []
    groups: list[list[str]] = []
    size = 0
    for path in files:
        about = os.stat(path)
        if about.st_size > SHARD_BYTES or not stat.S_ISREG(about.st_mode):  # a pipe is refused with the single files
            single.append(path)
            continue
        if not groups or size + about.st_size > SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += about.st_size
    return single, groups


def unpack(path: Path) -> None:
    """Write the files of a tar file next to it, and remove it. Raises TransferError.

    It contains regular files only. A link, a device, or a name that leaves the folder is refused.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if source is None:
                    raise TransferError(f"{path.name} contains {member.name[:200]!r}, which is not a regular file")
                target = inside(path.parent, member.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (OSError, tarfile.TarError) as error:
        raise TransferError(f"{path.name} could not be unpacked: {type(error).__name__}: {error}") from error
    finally:
        path.unlink(missing_ok=True)


def packed(groups: Sequence[Sequence[str]], folder: str, scratch: Path) -> Iterator[Shard]:
    """Write each group as a tar file, with names relative to `folder`. A file is removed before the next one."""
    for number, group in enumerate(groups):
        path = scratch / SHARD_NAME.format(number)
        try:
            with tarfile.open(path, "w", dereference=True) as tar:
                for one in group:
                    tar.add(one, os.path.relpath(one, folder), recursive=False)
            yield Shard(path, len(group))
        except OSError as error:
            raise TransferError(f"{path.name} could not be written: {type(error).__name__}: {error}") from error
        finally:
            path.unlink(missing_ok=True)
