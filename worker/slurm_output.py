"""What the batch script of a Slurm job printed and wrote: its log, and the files to store."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import stat

from .output import OUT
from .redaction import SecretFilter, own_secrets
from .rules import name_problem, shown
from .transfer_errors import OutputRefused, TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .task import Task

OUTPUT = "slurm.out"  # of the batch script
CLEANED = ".slurm.out"
MAX_OUTPUTS = 10_000  # files that params.outputs matches; each is stored by itself
COPY_BYTES = 16 << 20  # for one poll: a job may print faster than it can be copied
MAX_MATCHES = 100_000  # files and directories that one pattern names, wanted or not
BLOCK_BYTES = 1 << 20


def copy(offset: int, most_bytes: int | None = None) -> int:
    """Copy what the batch script printed since `offset` into the handler's log, and return the new offset.

    What it prints meanwhile is left for the next call.
    """
    with contextlib.suppress(OSError), open(OUTPUT, "rb", opener=_without_waiting) as file:
        about = os.fstat(file.fileno())
        end = about.st_size if stat.S_ISREG(about.st_mode) else 0
        if most_bytes is not None:
            end = min(end, offset + most_bytes)
        file.seek(offset)
        while offset < end and (block := file.read(min(BLOCK_BYTES, end - offset))):
            OUT.write(block)
            offset += len(block)
    return offset


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, but do not wait for a writer if a script has put a pipe in its place."""
    return os.open(path, flags | os.O_NONBLOCK)


def store(task: Task, patterns: list[str]) -> None:
    """Store the script's output, everything below output/, and the files that `outputs` names. Raises TransferError."""
    if os.path.islink("output"):
        raise OutputRefused("output is a link that leaves the task's folder: copy the files instead")
    matches = _matches(patterns)
    store_output(task)
    task.upload_folder("output")
    for name, path in matches.items():
        task.upload(path, name)


def store_output(task: Task) -> None:
    """Store what the script printed, as in the log: without the secrets of the environment. Raises TransferError."""
    if not os.path.exists(OUTPUT):
        return
    stream = SecretFilter(own_secrets())
    try:
        with open(OUTPUT, "rb", opener=_without_waiting) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                with open(CLEANED, "wb") as cleaned:
                    while block := file.read(BLOCK_BYTES):
                        cleaned.write(stream.feed(block))
                    cleaned.write(stream.flush())
                os.replace(CLEANED, OUTPUT)
    except OSError as error:
        raise TransferError(f"{OUTPUT} could not be written without secrets: {error.strerror}") from error
    task.upload(OUTPUT)


def _matches(patterns: list[str]) -> dict[str, str]:
    """Return name -> path of the files in the task's directory that patterns name. Raises TransferError if too many."""
    found: dict[str, str] = {}
    top = os.path.realpath(".")
    for pattern in patterns:
        paths = list(itertools.islice(glob.iglob(pattern, recursive=True), MAX_MATCHES + 1))
        if len(paths) > MAX_MATCHES:
            raise OutputRefused(f"{pattern!a} in outputs names more than {MAX_MATCHES} files: write them below output/")
        for path in sorted(paths):
            name = os.path.relpath(os.path.realpath(path), top)
            if not name.startswith(("../", "output/")) and name != OUTPUT and os.path.isfile(path):
                if why := name_problem(name):
                    raise OutputRefused(f"{shown(name)!a} cannot be the name of an output: {why}")
                found.setdefault(name, path)
            if len(found) > MAX_OUTPUTS:
                raise OutputRefused(f"outputs matches more than {MAX_OUTPUTS} files: write them below output/")
    return found
