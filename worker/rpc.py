"""The worker RPC: one call with its answer or its refusal. Callers decide which calls to repeat.

Every call may be repeated.
"""

from __future__ import annotations

import json
import time

from . import protocol
from .http1 import HttpConnection, InterruptibleWait, Unreachable
from .texts import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .agent_state import AgentState
    from .config import Config

    T = TypeVar("T")

AGAIN_S = 0.5  # seconds, at most, between two calls while the orchestrator has not answered yet
REFUSED_S = 8.0  # … while the database refuses a result
OK, ACCEPTED = 200, 202
CALL_S = 10.0  # seconds for one call, without a claim's own wait
CODE_CHARS, MESSAGE_CHARS = 64, 1_000  # of a refusal: the agent quotes it in its reports
REFUSALS = {400, 403, 409, 413, 422}  # statuses about the call; all others are about the server
FORMAT, SQLSTATE = {"code", "message", "details", "hint"}, 5  # of a refusal: its keys, and the length of its code
HEARTBEAT_S = (0.05, 3600.0)  # the shortest and the longest time between heartbeats that an agent accepts


class Refused(Exception):
    """The server understood the call and refused it. A `final` refusal applies to every call of this worker."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.final = code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}


class NotYet(Unreachable):
    """The call arrived and has no result yet. Repeat the call, after `most_s` seconds at most.

    Without a reason, the orchestrator must act first. The reason names what refuses a result in the database.
    """

    def __init__(self, function: str, why: str | None) -> None:
        super().__init__(why or f"{function} waits for the leader")
        self.most_s = REFUSED_S if why else AGAIN_S


class UnknownFunction(Unreachable):
    """The orchestrator's release does not know the function."""


class StoreUnavailable(Unreachable):
    """The call arrived, but the store does not answer the orchestrator, so the output is unknown. Repeat the call."""


class Rpc:
    """One thread's connection to the orchestrator."""

    def __init__(self, config: Config, state: AgentState) -> None:
        self._connection = HttpConnection(config.api_url)
        self._state = state
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
        """Return the answer. Raises Unreachable, NotYet, Refused, or Interrupted if `unless` becomes true first."""
        # As UTF-8: with escapes, the same text could be six times as long, and be refused for its size.
        text = json.dumps({**self._who, **args}, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        body = text.encode("utf-8", "surrogatepass")
        headers = f"Authorization: Bearer {self._config.token}\r\n{self._headers}"
        try:
            status, content = self._connection.post(
                f"/rest/v1/rpc/{function}", headers, body, time.monotonic() + deadline_s,
                InterruptibleWait(self._state, unless) if unless else None,
            )  # fmt: skip
            answer = _object(status, content)
        except Unreachable:
            self._state.note_no_answer()
            raise
        if status in {OK, ACCEPTED}:
            self._state.note_answer()
            if status == ACCEPTED:
                why = answer.get("why")
                raise NotYet(function, None if why is None else shortened(str(why), MESSAGE_CHARS))
            return answer
        code = str(answer.get("code") or "")[:CODE_CHARS]
        message = shortened(str(answer.get("message") or ""), MESSAGE_CHARS)
        final = code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}
        if final or (status in REFUSALS and is_refusal(answer)):
            self._state.note_answer()
            raise Refused(code, message)
        why = f"HTTP {status} {code}: {message}"
        if code == protocol.OUTPUT_UNKNOWN:
            self._state.note_answer()
            raise StoreUnavailable(why)
        self._state.note_no_answer()
        raise (UnknownFunction if code == protocol.UNKNOWN_FUNCTION else Unreachable)(why)

    def close(self) -> None:
        self._connection.close()


def _object(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"HTTP {status} with {len(content)} bytes that are not a JSON object")
    if status in {OK, ACCEPTED} and not isinstance(answer.get("outcome"), str):  # all of the orchestrator's have one
        raise Unreachable(f"HTTP {status} with an answer that is not the orchestrator's")
    return answer


def is_refusal(answer: dict[str, Any]) -> bool:
    """Whether an answer is in the database's format, with a SQLSTATE or a code of PostgREST. A proxy's own is not."""
    code = answer.get("code")
    if not (answer.keys() >= FORMAT and isinstance(code, str) and code.isascii() and code.isalnum()):
        return False
    return code.startswith("PGRST") or (len(code) == SQLSTATE and any(map(str.isdigit, code)))


def within(value: Any, least: float, most: float, otherwise: float) -> float:
    """Return a number of an answer, or `otherwise` if it is none within these bounds."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if least <= number <= most else otherwise


def list_of(kind: type[T], value: Any) -> list[T]:
    """Return the entries of a list that have this type; [] if it is no list."""
    return [one for one in value if isinstance(one, kind)] if isinstance(value, list) else []


def backoff_s(tries: int) -> float:
    """Return the seconds to wait after n failures in a row: 0.25, 0.5, 1, 2, 4, then always 8."""
    return min(8.0, 0.25 * 2.0 ** min(tries - 1, 10))
