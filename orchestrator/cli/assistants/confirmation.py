"""The confirmation of an action: a text that only the answer to an earlier call names."""

import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import BAD_ARGUMENT, Failure

CODE_KEY = secrets.token_bytes(32)
CODE_S = 600  # for which a code is valid at least
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Intent:
    """What a caller wants: the effect in words, and the reason that it is noted with."""

    token: str  # the caller's
    effect: str
    reason: str = ""

    def texts(self) -> list[str]:
        """The texts that confirm it: the present one, and the one before it. Another caller or reason has others."""
        period = int(time.time() // CODE_S)
        subjects = (json.dumps([at, self.token, self.effect, self.reason]) for at in (period, period - 1))
        codes = (hmac.new(CODE_KEY, subject.encode(), "sha256").hexdigest()[:8] for subject in subjects)
        return [f"{self.effect}, code {code}" for code in codes]


def is_confirmed(given: str | None, intent: Intent) -> bool:
    """Whether a call has the text of an earlier answer. A text from a pod cannot foresee its code."""
    return given is not None and any(hmac.compare_digest(given.encode(), one.encode()) for one in intent.texts())


def unconfirmed(given: str | None, intent: Intent, facts: Json) -> Json:
    """What an action would do. Raises Failure if another confirmation was given."""
    if given is not None:
        why = f"confirm is not the text that a call without it has named for this: {intent.effect}; nothing was done"
        raise Failure(BAD_ARGUMENT, why=why, fix="ask without confirm, and ask the user")
    reason = {"reason": intent.reason} if intent.reason else {}
    return {"done": False, "would": intent.effect, **reason, **facts, "to_confirm": {"confirm": intent.texts()[0]}}
