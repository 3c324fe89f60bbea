"""The task object of a handler `def handler(params, task)`. It returns None, an output location, or a dict of data."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path

from . import rules, transfers
from .dependencies import Dependency
from .redaction import own_secrets
from .texts import shortened
from .transfer_errors import OutputRefused, ResultRefused, Unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import TaskChannel

MAX_LISTED = 2_000  # outputs in the result; more are listed in a file
LIST_BYTES = 512 << 10  # of that list; a result may have 1 MiB
MESSAGE_CHARS = 400  # of a report of progress
PROGRESS_EVERY_S = 0.2  # of the reports in between only the last one is sent, so a handler may report every step


class Task:
    """One claimed task in the handler's process."""

    def __init__(self, request: dict[str, Any], channel: TaskChannel) -> None:
        given = request["task"]
        self.id: str = given["id"]
        self.type: str = given["task_type"]
        self.attempt: int = given["attempt"]
        self.params: Any = given.get("params")
        self.traceparent: str | None = given.get("traceparent")  # the trace that it is a part of; also in $TRACEPARENT
        self.dir = Path(request["dir"])  # also the current directory; removed after the task
        self.cancelled = False
        self._outputs: dict[str, dict[str, Any]] = {}  # uploaded, by name: name, location, bytes; of a tar file, files
        self._transfers = transfers.Transfers(channel, self.id, self.dir, patience_s=request["patience_s"])
        self._prefix: str = given["output_prefix"]
        self.dependencies = [
            Dependency(one, self.dir, self._transfers.get_all) for one in given.get("dependencies") or ()
        ]
        self._channel, self._pid = channel, os.getpid()
        self._lock = threading.Lock()
        self._progress_at = float("-inf")
        self._waiting: dict[str, Any] | None = None  # the last report, if it was not sent yet
        self._timer: threading.Timer | None = None

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress, 0 to 1. A task without reports for a long time counts as stuck.

        After the task, and in a process that the handler forked, the call does nothing.
        """
        if os.getpid() != self._pid:  # a thread that this process does not have may hold the lock
            return
        fraction = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        if message is not None:  # any value is shown as text; the agent shows fewer characters
            message = shortened(own_secrets().clean_text(str(message)), MESSAGE_CHARS)
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
        with contextlib.suppress(Unsent):
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
        names = [os.path.relpath(path, folder) for path in single]
        if taken := {folders.SHARD_NAME.format(number) for number in range(len(groups))}.intersection(names):
            raise OutputRefused(f"the output {min(taken)} has the name of a tar file of small files: rename it")
        locations = self._upload([(start + name, Path(path)) for name, path in zip(names, single)])
        with tempfile.TemporaryDirectory(dir=self.dir) as scratch:
            for shard in folders.packed(groups, os.fspath(folder), Path(scratch)):
                locations += self._upload([(start + shard.path.name, shard.path)], shard.files)
        return locations

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs that are stored so far: name, location, bytes."""
        return list(self._outputs.values())

    def _upload(self, files: list[tuple[str, Path]], content: int | None = None) -> list[str]:
        """Store files by name. `content` is the number of files in them."""
        if not files:
            return []
        refused = [(name, why) for name, _ in files if (why := _name_problem(name))]
        if refused:
            (name, why), more = refused[0], f" ({len(refused)} names are refused)" if len(refused) > 1 else ""
            raise OutputRefused(f"{rules.shown(name)!a} cannot be the name of an output: {why}{more}")
        stored = self._transfers.put_all([(self._prefix + name, source) for name, source in files], content)
        packed = {} if content is None else {"files": content}
        with self._lock:
            for (name, _), (location, size) in zip(files, stored):
                self._outputs[name] = {"name": name, "location": location, "bytes": size, **packed}
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
            raise ResultRefused(f"a handler returns None, an output location or a dict, not {type(returned).__name__}")
        if self._outputs:
            location = location or next(iter(self._outputs.values()))["location"]
            result = {**self._listed(result or {}), **(result or {})}
        return {"op": "done", "output_location": location, "result_data": result}

    def _listed(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the list of outputs for the result. It is stored as a file of JSON lines if it has no room there."""
        outputs = self.outputs
        if len(outputs) <= MAX_LISTED and len(json.dumps(outputs)) <= LIST_BYTES:
            listed = {"outputs": outputs}
            if rules.result_problem(result) or not rules.result_problem({**listed, **result}):
                return listed
        path = self.dir / rules.LIST_NAME
        path.write_text("".join(json.dumps(one) + "\n" for one in outputs))
        location, _ = self._transfers.put(self._prefix + rules.LIST_NAME, path)
        return {
            "outputs_list": location,
            "outputs_count": len(outputs),
            "outputs_bytes": sum(o["bytes"] for o in outputs),
        }


def _name_problem(name: str) -> str:
    if name == rules.LIST_NAME:
        return "it is reserved for the list of outputs"
    if own_secrets().clean_text(name) != name:  # its location in the result, without the secret, would lead nowhere
        return "it contains a secret of the pod's environment"
    return rules.name_problem(name)
