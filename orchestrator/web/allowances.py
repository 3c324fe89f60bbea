"""What one worker's token may use of the gateway: requests and bytes per second, and calls at once.

Without it, one worker would use up the connections and the processor that all workers share.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.web.errors import TOO_FAST, Refusal
from orchestrator.web.token_buckets import WORKER_BYTES, WORKER_REQUESTS, Buckets

KEYS_A_REQUEST = 20  # of a call for URLs; so many keys count as one more request
CALLS = 2  # that use the database or sign URLs at once
TURN_S = 10.0  # that a call waits for those before it
TOO_MANY = 429  # HTTP status: an agent takes it for "try again"


class Allowances:
    """The allowances of all tokens, by their jti. Each method raises Refusal for a caller who has none left."""

    def __init__(self) -> None:
        self._requests, self._bytes = Buckets(WORKER_REQUESTS), Buckets(WORKER_BYTES)
        self._gates: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}  # caller -> its gate, and who uses it

    def admit(self, caller: str, size_bytes: int) -> None:
        """Count a call."""
        now_s = asyncio.get_running_loop().time()
        if not (self._requests.take(caller, 1, now_s) and self._bytes.take(caller, size_bytes, now_s)):
            raise Refusal(TOO_MANY, TOO_FAST, "Too many requests or bytes from this worker", hint="try again")

    def give_back(self, caller: str) -> None:
        """Do not count a call that brought a task: the queue limits how many of them there are."""
        self._requests.give_back(caller, 1)

    def admit_keys(self, caller: str, keys: Any) -> None:
        """Count the keys of a call for URLs. What is no list of keys is refused by the database."""
        requests = len(keys) / KEYS_A_REQUEST if isinstance(keys, list) else 0
        if not self._requests.take(caller, requests, asyncio.get_running_loop().time()):
            raise Refusal(TOO_MANY, TOO_FAST, "Too many keys from this worker", hint="try again")

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait until fewer than CALLS of this caller's calls are running."""
        gate, users = self._gates.setdefault(caller, (asyncio.Semaphore(CALLS), []))
        users.append(None)
        try:
            try:
                async with asyncio.timeout(TURN_S):
                    await gate.acquire()
            except TimeoutError:
                why = "Too many calls at once from this worker"
                raise Refusal(TOO_MANY, TOO_FAST, why, hint="try again") from None
            try:
                yield
            finally:
                gate.release()
        finally:
            users.pop()
            if not users:
                del self._gates[caller]
