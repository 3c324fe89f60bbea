"""The messages that an agent accepts from its handler host. All are checked: a handler can write to the socket too.

Each message about a task names the task and the attempt. `ready` is a host's first message, and `ended` is about a
user's own program.
"""

from __future__ import annotations

from .waits import ORCHESTRATOR, STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 320  # levels of nested lists and objects; the agent walks a result recursively
MAX_SINCE_CHARS = 40
NONE = type(None)
TASK: dict[str, tuple[type, ...]] = {"task": (str,), "attempt": (int,)}
# By `op`: the required fields with their types. `service` is None once its transfer has ended.
REQUIRED: dict[str, dict[str, tuple[type, ...]]] = {
    "ready": {},
    "imported": {**TASK, "seq": (int,)},
    "progress": {**TASK, "fraction": (int, float, NONE), "message": (object,)},
    "service": {**TASK, "seq": (int,), "service": (str, NONE), "why": (str,), "tries": (int,), "since": (str,)},
    "grants": {**TASK, "seq": (int,), "items": (list,)},
    "stored": {**TASK, "key": (str,), "files": (int,), "bytes": (int,), "sent": (int,)},
    "done": {**TASK, "output_location": (str, NONE), "result_data": (dict, NONE)},
    "failed": {**TASK, "type": (str,), "message": (str,)},
    "ended": {"status": (int, NONE)},
}
OPTIONAL: dict[str, tuple[type, ...]] = {
    "dropped_bytes": (int, NONE), "status": (int, NONE), "code": (str, NONE), "point": (str,),
    "traceback": (str, NONE), "retryable": (bool,), "outage": (bool, NONE), "renew": (str, NONE),
}  # fmt: skip


def is_known(message: Any) -> bool:
    """Whether the agent accepts this message."""
    op = message.get("op") if isinstance(message, dict) else None
    required = REQUIRED.get(op) if isinstance(op, str) else None
    if required is None or is_deep(message):
        return False
    if not all(name in message and isinstance(message[name], types) for name, types in required.items()):
        return False
    if not all(isinstance(message[name], types) for name, types in OPTIONAL.items() if name in message):
        return False
    return op != "service" or (
        message["service"] in {STORE, ORCHESTRATOR, "", None} and len(message["since"]) <= MAX_SINCE_CHARS
    )


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list, tuple))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True
