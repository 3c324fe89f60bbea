"""The outputs of the earlier tasks on which a task depends, as a handler gets them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .downloads import inside
from .rules import LIST_NAME, NAME_PART_BYTES
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    GetAll = Callable[[list[tuple[str, Path, int | None]], str], None]  # Transfers.get_all

AT_ONCE = 1_000  # outputs whose names are in memory
LINE_BYTES = 64 << 10  # of one output in a long list


class Dependency:
    """An earlier task on which this one depends, with its outputs."""

    def __init__(self, given: dict[str, Any], directory: Path, get_all: GetAll) -> None:
        """`directory` is that of the dependent task, for what has no other target."""
        self.id: str = given["id"]
        self.task_type: str | None = given.get("task_type")
        self.output_location: str | None = given.get("output_location")
        self.result_data: Any = given.get("result_data")
        self._directory, self._get_all = directory, get_all

    def download(self, to: str | os.PathLike[str] | None = None) -> Path:
        """Download its output, by default to <task dir>/<id>-<name>, or <id>/<name> if that name is too long.

        Raises TransferError.
        """
        if not self.output_location:
            raise TransferError(f"the task {self.id} left no output to download")
        name = self.output_location.rpartition("/")[2] or "output"
        together = f"{self.id}-{name}"
        is_long = len(os.fsencode(together)) > NAME_PART_BYTES
        target = Path(to) if to is not None else self._directory / (f"{self.id}/{name}" if is_long else together)
        self._get_all([(self.output_location, target, None)], self.id)
        return target

    def download_folder(self, to: str | os.PathLike[str] | None = None) -> Path:
        """Download all its outputs under their names, by default to <task dir>/<id>. Raises TransferError.

        Several files are on their way at a time. The tar files of `upload_folder` are unpacked.
        """
        folder = Path(to) if to is not None else self._directory / self.id
        folder.mkdir(parents=True, exist_ok=True)
        batch: list[dict[str, Any]] = []
        for output in self._outputs(folder):
            batch.append(output)
            if len(batch) == AT_ONCE:
                self._fetch(batch, folder)
                batch = []
        self._fetch(batch, folder)
        return folder

    def _fetch(self, batch: list[dict[str, Any]], folder: Path) -> None:
        """Download some outputs. A tar file is removed after it was unpacked, before the next one is downloaded."""
        from . import folders  # noqa: PLC0415 tarfile is loaded only if it is needed

        single = [one for one in batch if "files" not in one]
        self._get_all([(one["location"], inside(folder, one["name"]), _size(one)) for one in single], self.id)
        for one in batch:
            if "files" in one:
                path = inside(folder, one["name"])
                self._get_all([(one["location"], path, _size(one))], self.id)
                folders.unpack(path)

    def _outputs(self, folder: Path) -> Iterator[dict[str, Any]]:
        """The list in the result: {name, location, bytes, files} of each, where `files` says that it is a tar file."""
        result = self.result_data if isinstance(self.result_data, dict) else {}
        if isinstance(result.get("outputs"), list):
            yield from map(self._output, result["outputs"])
        elif isinstance(result.get("outputs_list"), str):
            listed = folder / LIST_NAME
            self._get_all([(result["outputs_list"], listed, None)], self.id)
            try:
                with listed.open("rb") as file:
                    while line := file.readline(LINE_BYTES):
                        yield self._output(_decoded(line))
            finally:
                listed.unlink(missing_ok=True)
        else:
            raise TransferError(f"the result of task {self.id} lists no outputs")

    def _output(self, one: Any) -> dict[str, Any]:
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("location"), str):
            return one
        raise TransferError(f"the result of task {self.id} does not list its outputs as upload_folder does")


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _size(one: dict[str, Any]) -> int | None:
    size = one.get("bytes")
    return size if isinstance(size, int) else None
