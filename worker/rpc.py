"""The worker RPC: one call, its answer or its refusal. Which calls to repeat is the caller's business; all may be."""

from __future__ import annotations

import json
import time

from . import protocol
from .http1 import Connection, Patience, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .config import Config
    from .life import Life

AGAIN_S = 0.5  # at most, between asking for something that is being looked into
OK, ACCEPTED = 200, 202
CALL_S = 10.0  # deadline of one call, apart from a claim's own wait
REFUSALS = {400, 403, 409, 413, 422}  # statuses that say something about the call; all others are about the server


class Refused(Exception):
    """The other side understood and declined; a `final` refusal holds for everything this worker may ever ask."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.final = code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}


class NotYet(Unreachable):
    """Heard, and nothing is done yet: the orchestrator must look first. Ask the same again soon."""


class StoreAway(Unreachable):
    """Heard, and the store does not answer the orchestrator: it cannot say whether the output is there. Ask again."""


class Rpc:
    """One thread's line to the orchestrator."""

    def __init__(self, config: Config, life: Life) -> None:
        self._connection = Connection(config.api_url)
        self._life = life
        self._who = {"p_worker_id": config.worker_id, "p_nonce": config.nonce}
        key = f"apikey: {config.api_key}\r\n" if config.api_key else ""
        self._config = config
        self._headers = (
            f"{key}Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: orchestrator-worker\r\n"
        )

    def call(
        self,
        function: str,
        args: dict[str, Any],
        *,
        deadline_s: float = CALL_S,
        unless: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """The answer. Raises Unreachable, NotYet, Refused; Interrupted when `unless` becomes true before it comes."""
        body = json.dumps({**self._who, **args}, separators=(",", ":"), allow_nan=False).encode()
        headers = f"Authorization: Bearer {self._config.token}\r\n{self._headers}"
        try:
            status, content = self._connection.post(
                f"/rest/v1/rpc/{function}", headers, body, time.monotonic() + deadline_s,
                Patience(self._life, unless) if unless else None,
            )  # fmt: skip
            answer = _object(status, content)
        except Unreachable:
            self._life.unheard()
            raise
        if status in {OK, ACCEPTED}:
            self._life.heard()
            if status == ACCEPTED:
                raise NotYet(f"{function} is being looked into")
            return answer
        code = str(answer.get("code") or "")
        final = code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}
        if final or (status in REFUSALS and code):
            self._life.heard()
            raise Refused(code, str(answer.get("message") or ""))
        why = f"HTTP {status} {code}: {answer.get('message')}"
        if code == protocol.OUTPUT_UNKNOWN:
            self._life.heard()
            raise StoreAway(why)
        self._life.unheard()
        raise Unreachable(why)

    def close(self) -> None:
        self._connection.close()


def _object(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"HTTP {status} with {len(content)} bytes that are not a JSON object")
    return answer


def backoff_s(tries: int) -> float:
    """Seconds to wait after the n-th failure in a row: 0.25, 0.5, 1, 2, 4, then always 8."""
    return min(8.0, 0.25 * 2.0 ** min(tries - 1, 10))
