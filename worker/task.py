"""The task object of a handler `def handler(params, task)`. It returns None, an output location, or a dict of data."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

from . import transfers
from .dependencies import Dependency

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel

MAX_LISTED = 2_000  # outputs in the result; the gateway takes 20,000 JSON values
LIST_BYTES = 512 << 10  # of that list; a result may have 1 MiB
LIST_NAME = ".outputs.jsonl"
PROGRESS_EVERY_S = 0.2  # of the reports in between only the last one is sent, so a handler may report every step


class Task:
    """One claimed task in the handler's process."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        given = request["task"]
        self.id: str = given["id"]
        self.type: str = given["task_type"]
        self.attempt: int = given["attempt"]
        self.params: Any = given.get("params")
        self.traceparent: str | None = given.get("traceparent")  # the trace that it is a part of; also in $TRACEPARENT
        self.dir = Path(request["dir"])  # also the current directory; removed after the task
        self.cancelled = False
        self.outputs: list[dict[str, Any]] = []  # uploaded: name, location, bytes; of a tar file, files too
        self._transfers = transfers.Transfers(channel, self.id, self.dir, patience_s=request["patience_s"])
        self._prefix: str = given["output_prefix"]
        self.dependencies = [
            Dependency(one, self.dir, self._transfers.get_all) for one in given.get("dependencies") or ()
        ]
        self._channel = channel
        self._lock = threading.Lock()
        self._progress_at = float("-inf")
        self._waiting: dict[str, Any] | None = None  # the last report, if it was not sent yet
        self._timer: threading.Timer | None = None

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress, 0 to 1. A task without reports for a long time counts as stuck."""
        fraction = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        report = {"op": "progress", "task": self.id, "fraction": fraction, "message": message}
        with self._lock:
            wait_s = self._progress_at + PROGRESS_EVERY_S - time.monotonic()
            if wait_s <= 0 or fraction == 1:
                self._send(report)
                return
            self._waiting = report
            if self._timer is None:
                self._timer = threading.Timer(wait_s, self.flush_progress)
                self._timer.daemon = True
                with contextlib.suppress(RuntimeError):  # no thread: the next report is sent in its place
                    self._timer.start()

    def flush_progress(self) -> None:
        """Send the last report now, if it was not sent yet."""
        with self._lock, contextlib.suppress(OSError, TypeError, ValueError):  # the agent has ended, or it is not JSON
            if self._waiting is not None:
                self._send(self._waiting)

    def _send(self, report: dict[str, Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting, self._timer, self._progress_at = None, None, time.monotonic()
        self._channel.send(report)

    def upload(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Store a file as an output of the task and return its location. Raises TransferError."""
        source = Path(path)
        return self._upload([(name or source.name, source)])[0]

    def upload_folder(self, folder: str | os.PathLike[str], name: str = "") -> list[str]:
        """Store the files of a folder, under `name`/, and return the locations. Raises TransferError.

        Several files are on their way at a time. More than 10,000 files are stored as tar files of about 256 MB.
        """
        from . import folders  # noqa: PLC0415 tarfile is loaded only if it is needed

        start = f"{name.strip('/')}/" if name.strip("/") else ""
        single, groups = folders.split(folders.files_below(os.fspath(folder), os.fspath(self.dir)))
        locations = self._upload([(start + os.path.relpath(path, folder), Path(path)) for path in single])
        with tempfile.TemporaryDirectory(dir=self.dir) as scratch:
            for shard in folders.packed(groups, os.fspath(folder), Path(scratch)):
                locations += self._upload([(start + shard.path.name, shard.path)], shard.files)
        return locations

    def _upload(self, files: list[tuple[str, Path]], content: int | None = None) -> list[str]:
        """Store files by name. `content` is the number of files in them."""
        if not files:
            return []
        stored = self._transfers.put_all([(self._prefix + name, source) for name, source in files], content)
        packed = {} if content is None else {"files": content}
        with self._lock:
            for (name, _), (location, size) in zip(files, stored):
                self.outputs.append({"name": name, "location": location, "bytes": size, **packed})
        return [location for location, _ in stored]

    def ended(self, returned: Any) -> dict[str, Any]:
        """Return the last message to the agent for the value that the handler returned."""
        location, result = None, None
        if isinstance(returned, str):
            location = returned
        elif isinstance(returned, dict):
            result = dict(returned)
            location = result.pop("output_location", None)
        elif returned is not None:
            raise TypeError(f"a handler returns None, an output location or a dict, not {type(returned).__name__}")
        if self.outputs:
            location = location or self.outputs[0]["location"]
            result = {**self._listed(), **(result or {})}
        return {"op": "done", "output_location": location, "result_data": result}

    def _listed(self) -> dict[str, Any]:
        """Return the list of outputs for the result. A long list is stored as a file of JSON lines."""
        outputs = self.outputs
        if len(outputs) <= MAX_LISTED and len(json.dumps(outputs)) <= LIST_BYTES:
            return {"outputs": outputs}
        path = self.dir / LIST_NAME
        path.write_text("".join(json.dumps(one) + "\n" for one in outputs))
        location, _ = self._transfers.put(self._prefix + LIST_NAME, path)
        return {
            "outputs_list": location,
            "outputs_count": len(outputs),
            "outputs_bytes": sum(o["bytes"] for o in outputs),
        }
