"""The confirmation of an action: a text that only the answer to an earlier call names."""

import hmac
import secrets
import time
from typing import Any

from orchestrator.errors import BAD_ARGUMENT, Failure

CODE_KEY = secrets.token_bytes(32)
CODE_S = 600  # for which a code is valid at least
Json = dict[str, Any]


def _texts(effect: str) -> list[str]:
    """The texts that confirm an effect: the present one, and the one before it."""
    period = int(time.time() // CODE_S)
    codes = (hmac.new(CODE_KEY, f"{at} {effect}".encode(), "sha256").hexdigest()[:8] for at in (period, period - 1))
    return [f"{effect}, code {code}" for code in codes]


def is_confirmed(given: str | None, effect: str) -> bool:
    """Whether a call has the text of an earlier answer. A text from a pod cannot foresee its code."""
    return given is not None and any(hmac.compare_digest(given.encode(), one.encode()) for one in _texts(effect))


def unconfirmed(given: str | None, effect: str, facts: Json) -> Json:
    """What an action would do. Raises Failure if another confirmation was given."""
    if given is not None:
        why = f"confirm is not the text that a call without it has named for this: {effect}; nothing was done"
        raise Failure(BAD_ARGUMENT, why=why, fix="ask without confirm, and ask the user")
    return {"done": False, "would": effect, **facts, "to_confirm": {"confirm": _texts(effect)[0]}}
