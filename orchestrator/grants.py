"""What the bucket's owner does for pods that have no key of it: sign a URL, and look whether an output is there.

The database has said that the worker may; the gateway does it within the worker's call, the leader for the rows that
pods leave which speak to PostgREST itself (`Answers`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import structlog

from orchestrator.ports import Blobs, NotFound, PortError

GRANT_TTL_S = 300  # agents ask for a fresh URL before each try; a transfer that has begun may take longer
LOOK_TIMEOUT_S = 5.0  # for the bucket to show an output
OUTPUTS = "outputs/"  # the only keys that a worker ever gets a URL for
BATCH = 100  # rows answered at once
CONCURRENT_LOOKS = 8

log = structlog.get_logger()


def sign(blobs: Blobs, method: str, key: str) -> Mapping[str, str] | None:
    """{url, location} for one key; None for what nobody may have, whatever the database said."""
    maker = {"PUT": blobs.sign_put, "GET": blobs.sign_get}.get(method)
    if maker is None or not _is_output(key):
        return None
    return {"url": maker(key, expires_s=GRANT_TTL_S), "location": blobs.location(key)}


async def has_output(blobs: Blobs, location: str | None) -> bool:
    """Whether an output is there, or nothing of ours to look for. PortError, TimeoutError: nobody knows; ask again."""
    key = blobs.key_of(location) if location else None
    if key is None:
        return True
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            await blobs.size(key)
    except NotFound:
        log.warning("output_missing", location=location)
        return False
    return True


def _is_output(key: str) -> bool:
    """Whether a key lies under the outputs by every server's reading: some resolve `..` and empty segments."""
    return key.startswith(OUTPUTS) and not {"", ".", ".."} & set(key.split("/"))


class Asked(Protocol):
    """The rows that pods leave."""

    async def asks(self, limit: int) -> Sequence[Mapping[str, Any]]: ...
    async def answer(self, term: int, answers: Sequence[Mapping[str, Any]]) -> int: ...


class Answers:
    """The leader's side of `worker_asks`."""

    def __init__(self, store: Asked, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs
        self._gate = asyncio.Semaphore(CONCURRENT_LOOKS)

    async def give(self, term: int) -> int:
        """Answer the open rows, and those that come meanwhile; how many. Raises PortError."""
        answered = 0
        while asks := await self._store.asks(BATCH):
            # In a thread: the first signature loads the S3 client, which takes most of a second.
            signed = await asyncio.to_thread(self._sign, asks)
            found = await asyncio.gather(*(self._look(ask) for ask in asks if ask["method"] == "HEAD"))
            answers = [*signed, *(answer for answer in found if answer is not None)]
            now_answered = await self._store.answer(term, answers) if answers else 0
            answered += now_answered
            if not now_answered:  # the bucket is away: the next look is for the timer
                break
        return answered

    def _sign(self, asks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        wanted = [ask for ask in asks if ask["method"] != "HEAD"]
        return [
            {"id": ask["id"], "answer": sign(self._blobs, ask["method"], ask["subject"]) or {"refused": True}}
            for ask in wanted
        ]

    async def _look(self, ask: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            async with self._gate:
                found = await has_output(self._blobs, ask["subject"])
        except (PortError, TimeoutError) as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            log.warning("output_unknown", worker=ask["worker_id"], location=ask["subject"], why=why)
            return None
        return {"id": ask["id"], "answer": {"found": found}}
