"""Upload of outputs and download of dependencies over presigned URLs: the pod never has storage credentials."""

from __future__ import annotations

import contextlib
import itertools
import stat
import time

from . import protocol
from .downloads import Download
from .store import StoreConnection, UploadGone
from .transfer_errors import OutputRefused, TransferError, Unstored
from .transfer_loop import PAUSE_MAX_S, TransferLoop, TransferWait
from .uploads import Abort, Completion, File, Multipart, Start
from .waits import STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from .channel import TaskChannel

STARTS = 4  # tries of one multipart upload, if the store loses it
MULTIPART_BYTES = 16 << 20  # a larger file is sent in parts, so that a broken connection costs one part
FILES_AT_ONCE = 24  # connections for many files; most of the time of a small file is latency
PARTS_AT_ONCE = 2  # connections for the parts of one file; if they break together, each loses a part
LEDGER_LINES = 100  # lines in the ledger about files that were sent more than once


class Transfers:
    """Asks the agent for presigned URLs and transfers the bytes itself, so the agent can receive a cancellation."""

    def __init__(
        self, channel: TaskChannel, task_id: str, directory: Path, *, patience_s: float, clock: Any = time
    ) -> None:
        self._channel, self._task_id, self._clock = channel, task_id, clock
        self._loop = TransferLoop(channel, task_id, directory, patience_s, clock)
        self._numbers = itertools.count(1)

    def put(self, key: str, source: Path) -> tuple[str, int]:
        """Upload a file and return (location, bytes). Raises TransferError."""
        return self.put_all([(key, source)])[0]

    def put_all(self, files: Sequence[tuple[str, Path]], content: int | None = None) -> list[tuple[str, int]]:
        """Upload files, several at a time, and return (location, bytes) of each in order. Raises TransferError.

        `content` is the number of files in them for the ledger, if they are archives.
        """
        if len({key for key, _ in files}) < len(files):
            raise TransferError("two files have the same name")
        sizes = [_size(source) for _, source in files]
        small = [File(key, source, size) for (key, source), size in zip(files, sizes) if size <= MULTIPART_BYTES]
        wait = self._wait()
        try:
            self._loop.run(small, FILES_AT_ONCE, self._loop.file_grants, wait)
            self._record(small, content)
            locations = {file.key: file.location for file in small}
            for (key, source), size in zip(files, sizes):
                if key not in locations:
                    locations[key] = self._put_parts(key, source, size, content, wait)
        finally:
            wait.report(None)
        return [(locations[key], size) for (key, _), size in zip(files, sizes)]

    def get_all(self, files: Sequence[tuple[str, Path, int | None]], task_id: str) -> None:
        """Download outputs of `task_id`: (location, target, bytes if known) of each. Raises TransferError.

        A file arrives completely or not at all. Small files arrive several at a time.
        """
        if len({target for _, target, _ in files}) < len(files):
            raise TransferError("two outputs have the same name")
        wait = self._wait()
        small, large = list[Download](), list[Download]()
        for location, target, size in files:
            start = location.find(f"/outputs/{task_id}/")
            if start < 0:
                raise TransferError(f"{location} is not an output of the task {task_id}")
            is_small = size is not None and size <= MULTIPART_BYTES
            report = _quiet if is_small else wait.progress  # the loop itself reports each small file
            download = Download(location[start + 1 :], target, report, size)
            (small if is_small else large).append(download)
        try:
            self._loop.run(small, FILES_AT_ONCE, self._loop.file_grants, wait)
            for download in large:
                self._loop.run_one(download, download.wanted, wait)
        finally:
            wait.report(None)

    def _put_parts(self, key: str, source: Path, size: int, content: int | None, wait: TransferWait) -> str:
        """Upload a large file in parts and return its location."""
        loop, upload = self._loop, Multipart(key, source, size)
        start, completion = Start(upload), Completion(upload)
        try:
            for number in range(1, STARTS + 1):
                loop.run_one(start, upload.wanted, wait)
                if start.is_refused:
                    return self._put_whole(key, source, size, content, wait)
                try:
                    loop.run([part for part in upload.parts if not part.etag], PARTS_AT_ONCE, loop.part_grants, wait)
                    loop.run_one(completion, upload.wanted, wait)
                except UploadGone as error:
                    upload.begin_again()
                    if number == STARTS:
                        raise Unstored(f"the store lost the upload of {key} {number} times: {error}") from None
                    loop.check_room(completion.what, str(error))
                    wait.pause(STORE, str(error), PAUSE_MAX_S)
                else:
                    break
        except TransferError:
            self._abort(upload, wait)
            raise
        self._report_stored(key, content or 1, upload.whole.size, upload.sent)
        return upload.location

    def _put_whole(self, key: str, source: Path, size: int, content: int | None, wait: TransferWait) -> str:
        """Upload a large file in one write, because the orchestrator's release does not support multipart uploads."""
        file = File(key, source, size)
        if size > protocol.MAX_UPLOAD_BYTES:
            raise TransferError(f"{source.name} is too large for this release of the orchestrator: update it")
        self._loop.run([file], 1, self._loop.file_grants, wait)
        self._record([file], content)
        return file.location

    def _abort(self, upload: Multipart, wait: TransferWait) -> None:
        """Try once to delete the parts in the bucket. The orchestrator aborts old uploads too."""
        if upload.upload_id:
            with contextlib.suppress(Exception), contextlib.closing(StoreConnection()) as connection:
                Abort(upload).send(self._loop.grant(upload.wanted(), wait, patient=False), connection)

    def _wait(self) -> TransferWait:
        return TransferWait(self._channel, self._task_id, next(self._numbers), self._clock)

    def _record(self, files: list[File], content: int | None) -> None:
        """Report the byte ledger of a call: a line for each file that was sent more than once, and one for the rest."""
        repeated = [file for file in files if file.piece.sent > file.piece.size][:LEDGER_LINES]
        for file in repeated:
            self._report_stored(file.key, content or 1, file.piece.size, file.piece.sent)
        rest = [file for file in files if file not in repeated]
        if rest:
            size, sent = sum(file.piece.size for file in rest), sum(file.piece.sent for file in rest)
            self._report_stored(rest[0].key, content or len(rest), size, sent)

    def _report_stored(self, key: str, files: int, size: int, sent: int) -> None:
        ledger = {"key": key, "files": files, "bytes": size, "sent": sent}
        self._channel.send({"op": "stored", "task": self._task_id, **ledger})


def _quiet(_message: str) -> None:
    """Report nothing."""


def _size(source: Path) -> int:
    """Return the size of a file. Raises OutputRefused if it cannot be stored."""
    about = source.stat()
    if not stat.S_ISREG(about.st_mode):  # a pipe would block, and a device never ends
        raise OutputRefused(f"{source} is not a regular file: only regular files can be stored")
    if about.st_size > protocol.MAX_OBJECT_BYTES:
        most = f"{protocol.MAX_OBJECT_BYTES >> 40} TiB, the limit of S3"
        raise OutputRefused(f"{source.name} has more than {most}: split it, or compress it")
    return about.st_size
