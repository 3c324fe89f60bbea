"""What a handler host may say to its agent: a handler can write to that socket too, so that nothing else is taken."""

from __future__ import annotations

from .waits import ORCHESTRATOR, STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 320  # of lists and objects in each other; the agent walks a result with Python's own stack
MAX_SINCE_CHARS = 40
NONE = type(None)
# By `op`: the fields that it must have, and of which types. A service is None once its transfer has ended.
REQUIRED: dict[str, dict[str, tuple[type, ...]]] = {
    "progress": {"task": (str,), "fraction": (int, float, NONE), "message": (object,)},
    "service": {
        "task": (str,), "seq": (int,), "service": (str, NONE), "why": (str,), "tries": (int,), "since": (str,),
    },
    "grants": {"seq": (int,), "items": (list,)},
    "done": {"output_location": (str, NONE), "result_data": (dict, NONE)},
    "failed": {"type": (str,), "message": (str,)},
    "ended": {"status": (int, NONE)},
}  # fmt: skip
OPTIONAL: dict[str, tuple[type, ...]] = {
    "dropped_bytes": (int, NONE), "status": (int, NONE), "code": (str, NONE), "point": (str,),
    "traceback": (str, NONE), "retryable": (bool,), "outage": (bool, NONE),
}  # fmt: skip


def is_known(message: Any) -> bool:
    """Whether this is a message that the agent can take in."""
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
    """Whether lists and objects lie in each other beyond MAX_DEPTH."""
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
