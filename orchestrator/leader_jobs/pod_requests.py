"""The leader answers requests of pods that call PostgREST: for a presigned URL, an output's facts, or the next token.

Each request is a row in `worker_asks`. Pods that call our gateway get the same answers within their call.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from orchestrator.outputs import grant, look
from orchestrator.ports import Blobs, PortError

EVERY_S = 1.0  # without notifications
RENEW = "RENEW"  # the method of a row that asks for the worker's next token
BATCH = 100  # rows answered at once
CONCURRENT_LOOKS = 8
log = structlog.get_logger()


class AskRows(Protocol):
    """The store's functions for `worker_asks`."""

    async def asks(self, limit: int) -> Sequence[Mapping[str, Any]]: ...
    async def answer(self, term: int, answers: Sequence[Mapping[str, Any]]) -> int: ...


class PodRequests:
    """Answers the open requests of a fleet's pods."""

    def __init__(
        self, store: AskRows, blobs: Blobs, sealed: Callable[[str, str], Sequence[str]] = lambda *_: ()
    ) -> None:
        """`sealed`: worker id, jti -> its next token, sealed for it."""
        self._store, self._blobs, self._sealed = store, blobs, sealed
        self._gate = asyncio.Semaphore(CONCURRENT_LOOKS)

    async def step(self, term: int) -> int:
        """Answer the open rows, and those that arrive meanwhile. Return how many. Raises PortError."""
        answered = 0
        while asks := await self._store.asks(BATCH):
            found = await asyncio.gather(*(self._answer(ask) for ask in asks))
            answers = [answer for answer in found if answer is not None]
            now_answered = await self._store.answer(term, answers) if answers else 0
            answered += now_answered
            if not now_answered:  # the bucket is unavailable: the timer tries again
                break
        return answered

    async def _answer(self, ask: Mapping[str, Any]) -> Mapping[str, Any] | None:
        subject = ask["subject"]
        if ask["method"] == RENEW:
            return {"id": ask["id"], "answer": {"sealed": list(self._sealed(ask["worker_id"], subject))}}
        try:
            async with self._gate:
                if ask["method"] == "HEAD":
                    key = self._blobs.key_of(subject)
                    seen = await look(self._blobs, key) if key else None
                    answer = {"found": key is None or seen is not None, **({"object": seen} if seen else {})}
                else:
                    answer = dict(await grant(self._blobs, ask["method"], subject, ask.get("terms") or {}))
        except (PortError, TimeoutError) as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            log.warning("output_unknown", worker=ask["worker_id"], subject=subject, why=why)
            return None
        return {"id": ask["id"], "answer": answer}
