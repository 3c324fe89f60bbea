"""The renewal of the worker's token, which begins after half of its lifetime.

The answer is encrypted with a key from the launch's configuration. Over PostgREST, the answer is in the database for a
moment, and the database must hold no usable secret. Each answer contains the key for the next one, so the
orchestrator's own secrets can be replaced while a worker runs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

from . import protocol
from .http1 import Unreachable
from .rpc import CALL_S, NotYet, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config, RunDir
    from .journal import Journal
    from .rpc import Rpc

RETRY_S = 30.0  # after a failure; a worker has half of its token's lifetime for retries
SALT_BYTES, TAG_BYTES = 16, 32
MAX_SEALED = 8  # encrypted texts that are tried: one for each key of the orchestrator
MAX_SEALED_CHARS = 16_384


class Renewal:
    """Used by the heartbeat's thread. Without a renewal key, the token is never renewed."""

    def __init__(self, config: Config, run: RunDir, journal: Journal, rpc: Rpc) -> None:
        self._config, self._run, self._journal, self._rpc = config, run, journal, rpc
        self._due_at = self._due()

    def renew_if_due(self) -> None:
        """Ask once if a renewal is due. A failure is logged; the next try is after RETRY_S."""
        if self._due_at is None or time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + RETRY_S
        try:
            answer = self._rpc.call(protocol.RENEW, {}, deadline_s=CALL_S)
        except NotYet:
            self._due_at = 0.0  # the leader must answer first: ask again with the next heartbeat
        except (Unreachable, Refused) as error:
            self._journal.log("token_not_renewed", why=str(error))
        else:
            self._take(answer)

    def _take(self, answer: dict[str, Any]) -> None:
        sealed = answer.get("sealed")
        texts = [text for text in sealed[:MAX_SEALED] if isinstance(text, str)] if isinstance(sealed, list) else []
        opened = next(filter(None, (unseal(str(self._config.renewal_key), text) for text in texts)), None)
        if opened is None:
            self._journal.log("token_not_renewed", why="the answer holds no token for this launch", sealed=len(texts))
            return
        self._config.token, self._config.renewal_key = opened["token"], opened["renewal_key"]
        self._journal.hide(opened["token"])
        self._due_at = self._due()
        try:  # for a start of this launch without a configuration
            with open(self._run.at("config.json"), encoding="utf-8") as file:
                given = json.load(file)
            self._run.write("config.json", json.dumps({**given, **opened}))
        except (OSError, ValueError) as error:  # a full disk: the running agent has the token in memory
            self._journal.log("token_not_stored", why=type(error).__name__)
        self._journal.log("token_renewed")

    def _due(self) -> float | None:
        """Return when the renewal is due, on the monotonic clock: the pod's date may be wrong."""
        life_s = lifetime_s(self._config.token) if self._config.renewal_key else None
        return None if life_s is None else time.monotonic() + life_s / 2


def lifetime_s(token: str) -> float | None:
    """Return the lifetime of a token from its issue, or None if the token does not state it."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return max(0.0, float(claims["exp"]) - float(claims["iat"]))
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def unseal(key: str, sealed: str) -> dict[str, str] | None:
    """Decrypt {token, renewal_key}. Return None if the text was changed, or encrypted with another key."""
    try:
        raw = base64.urlsafe_b64decode(sealed[:MAX_SEALED_CHARS])
        secret = bytes.fromhex(key)
    except ValueError:
        return None
    salt, body, tag = raw[:SALT_BYTES], raw[SALT_BYTES:-TAG_BYTES], raw[-TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.new(secret, b"tag" + salt + body, hashlib.sha256).digest()):
        return None
    stream = b"".join(
        hmac.new(secret, b"stream" + salt + block.to_bytes(4, "big"), hashlib.sha256).digest()
        for block in range(len(body) // hashlib.sha256().digest_size + 1)
    )
    try:
        given = json.loads(bytes(a ^ b for a, b in zip(body, stream)))
        return {"token": str(given["token"]), "renewal_key": str(given["renewal_key"])}
    except (KeyError, TypeError, ValueError):
        return None
