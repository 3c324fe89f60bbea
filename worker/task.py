"""What a handler gets: `def handler(params, task)`; it returns None, an output location, or a dict of result data."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from . import transfers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any

    from .channel import Channel

PROGRESS_EVERY_S = 0.2  # reports in between are left out: a handler may report each step without thinking


class Task:
    """One claimed task, in the handler's process."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        given = request["task"]
        self.id: str = given["id"]
        self.type: str = given["task_type"]
        self.attempt: int = given["attempt"]
        self.params: Any = given.get("params")
        self.dir = Path(request["dir"])  # the current directory too; removed afterwards
        self.cancelled = False
        self.outputs: list[dict[str, Any]] = []  # what was uploaded: name, location, bytes
        self._door = transfers.Door(channel, self.id, self.dir, patience_s=request["patience_s"])
        self._prefix: str = given["output_prefix"]
        self.dependencies = [Dependency(one, self) for one in given.get("dependencies") or ()]
        self._channel = channel
        self._lock = threading.Lock()
        self._progress_at = float("-inf")

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say how far it is, 0 to 1; what nobody reports for long is taken for stuck."""
        with self._lock:
            now = time.monotonic()
            if now - self._progress_at < PROGRESS_EVERY_S and (fraction is None or fraction < 1):
                return
            self._progress_at = now
        fraction = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        self._channel.send({"op": "progress", "task": self.id, "fraction": fraction, "message": message})

    def upload(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Store a file among the task's outputs; returns its location. Raises TransferError."""
        source = Path(path)
        name = name or source.name
        location, size = self._door.put(self._prefix + name, source)
        with self._lock:
            self.outputs.append({"name": name, "location": location, "bytes": size})
        return location

    def ended(self, returned: Any) -> dict[str, Any]:
        """The last message to the agent, for what the handler returned."""
        location, result = None, None
        if isinstance(returned, str):
            location = returned
        elif isinstance(returned, dict):
            result = dict(returned)
            location = result.pop("output_location", None)
        elif returned is not None:
            raise TypeError(f"a handler returns None, an output location or a dict, not {type(returned).__name__}")
        if self.outputs:
            result = {"outputs": self.outputs, **(result or {})}
            location = location or self.outputs[0]["location"]
        return {"op": "done", "output_location": location, "result_data": result}

    def download(self, location: str, of: str, target: Path) -> Path:
        """Fetch what task `of` left at `location`. Raises TransferError."""
        self._door.get(location, of, target)
        return target


class Dependency:
    """An earlier task that this one depends on, with what it left behind."""

    def __init__(self, given: dict[str, Any], task: Task) -> None:
        self.id: str = given["id"]
        self.task_type: str | None = given.get("task_type")
        self.output_location: str | None = given.get("output_location")
        self.result_data: Any = given.get("result_data")
        self._task = task

    def download(self, to: str | os.PathLike[str] | None = None) -> Path:
        """Fetch its output, by default to <task dir>/<id>-<name>. Raises TransferError."""
        if not self.output_location:
            raise transfers.TransferError(f"the task {self.id} left no output to download")
        name = self.output_location.rpartition("/")[2] or "output"
        target = Path(to) if to is not None else self._task.dir / f"{self.id}-{name}"
        return self._task.download(self.output_location, self.id, target)
