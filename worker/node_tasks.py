"""Node tasks: requests of the orchestrator to this pod's agent for a cluster. They come with the answer to a heartbeat.

There is one kind: to put the orchestrator's public key into authorized_keys. This restores SSH if SSH refuses the key.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile

from . import protocol
from .http1 import Unreachable
from .rpc import CALL_S, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .journal import Journal
    from .rpc import Rpc

MOST = 10  # of one answer
MAX_BYTES = 1 << 20  # of an authorized_keys that is changed
PUBLIC_KEY = re.compile(r"[a-z0-9@.-]{1,60} [A-Za-z0-9+/=]{1,2000}")  # type and base64
NOT_SENT = (Unreachable, Refused)


class NodeTasks:
    """Used by the heartbeat's thread. A task whose report is not answered comes again, and is done again."""

    def __init__(self, rpc: Rpc, journal: Journal) -> None:
        self._rpc, self._journal = rpc, journal

    def carry_out(self, tasks: Any) -> None:
        """Do the tasks of one answer, and report each."""
        for task in tasks[:MOST] if isinstance(tasks, list) else ():
            if isinstance(task, dict) and isinstance(task.get("id"), int):
                error = _error_of(task)
                self._journal.log("node_task_done", id=task["id"], kind=str(task.get("kind"))[:100], error=error)
                args = {"p_id": task["id"], "p_ok": error is None, "p_error": error}
                try:
                    self._rpc.call(protocol.NODE_TASK_DONE, args, deadline_s=CALL_S)
                except NOT_SENT as unsent:
                    self._journal.log("node_task_not_reported", id=task["id"], why=str(unsent))


def _error_of(task: dict[str, Any]) -> str | None:
    payload = task.get("payload")
    key = payload.get("key") if isinstance(payload, dict) else None
    if task.get("kind") != protocol.AUTHORIZED_KEY:
        return "this agent does not know the kind"
    if not isinstance(key, str) or not PUBLIC_KEY.fullmatch(key):
        return "the payload has no key of the form 'type base64'"
    try:
        put_authorized_key(os.path.expanduser("~/.ssh"), key)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:400]
    return None


def put_authorized_key(directory: str, key: str) -> None:
    """Make `key` the one managed line of authorized_keys; every other line stays. Raises OSError or ValueError."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, "authorized_keys")
    before = b""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        before = file.read(MAX_BYTES + 1)
    if len(before) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    mark = b" " + protocol.MANAGED_KEY.encode()
    kept = [line for line in before.splitlines() if not line.endswith(mark)]
    handle, temporary = tempfile.mkstemp(prefix="authorized_keys.", dir=directory)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b"\n".join([*kept, key.encode() + mark]) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
