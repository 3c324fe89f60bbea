"""What pods cannot do themselves: sign a URL, look whether an output is there, and (`Answers`) get their next token.

The database has said that the worker may; the gateway does it within the worker's call, the leader for the rows that
pods leave which speak to PostgREST itself (`Answers`).
"""

import asyncio
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from orchestrator.ports import Blobs, NotFound, PortError, Upload
from worker.protocol import MAX_UPLOAD_BYTES

GRANT_TTL_S = 300  # agents ask for a fresh URL before each try; a transfer that has begun may take longer
LOOK_TIMEOUT_S = 5.0  # for the bucket to show an output
OUTPUTS = "outputs/"  # the only keys that a worker ever gets a URL for
RENEW = "RENEW"  # the method of a row that asks for the worker's next token
BATCH = 100  # rows answered at once
CONCURRENT_LOOKS = 8

log = structlog.get_logger()


async def grant(blobs: Blobs, method: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """{url, location} and what goes with them for one key, or {refused}, whatever the database said of it.

    `terms`: of a PUT {once, bytes, sha256} for a URL of one write; of a GET what was recorded of the object, and an
    object that is another one now is refused as `replaced`. PortError, TimeoutError: nobody knows; ask again.
    """
    if method not in {"PUT", "GET"} or not _is_output(key):
        return {"refused": True}
    if terms.get("once") and int(terms["bytes"]) > MAX_UPLOAD_BYTES:
        log.warning("upload_too_large", key=key, bytes=terms["bytes"], most_bytes=MAX_UPLOAD_BYTES)
        return {"refused": True}
    if method == "GET" and "etag" in terms:
        seen = await look(blobs, key)
        if seen is None or any(seen.get(name) != terms.get(name) for name in ("etag", "bytes")):
            log.warning("output_replaced", key=key, recorded=terms.get("etag"), seen=seen and seen["etag"])
            return {"refused": True, "replaced": True}
    # In a thread: the first signature loads the S3 client, which takes most of a second.
    return await asyncio.to_thread(_sign, blobs, method, key, terms)


async def look(blobs: Blobs, key: str) -> Mapping[str, Any] | None:
    """What the bucket shows of an output; None if it is not there. PortError, TimeoutError: nobody knows; ask again."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await blobs.look(key)
    except NotFound:
        log.warning("output_missing", key=key)
        return None


def _sign(blobs: Blobs, method: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any]:
    location = blobs.location(key)
    if method == "GET":
        recorded = {name: terms[name] for name in ("etag", "bytes", "sha256") if name in terms}
        return {"url": blobs.sign_get(key, expires_s=GRANT_TTL_S), "location": location, **recorded}
    if not terms.get("once"):
        return {"url": blobs.sign_put(key, expires_s=GRANT_TTL_S), "location": location}
    kind = mimetypes.guess_type(key)[0] or "application/octet-stream"
    upload = Upload(int(terms["bytes"]), str(terms["sha256"]), kind)
    return {
        "url": blobs.sign_put(key, expires_s=GRANT_TTL_S, upload=upload),
        "location": location,
        "headers": upload.headers(),
        "head": blobs.sign_head(key, expires_s=GRANT_TTL_S),
    }


def _is_output(key: str) -> bool:
    """Whether a key lies under the outputs by every server's reading: some resolve `..` and empty segments."""
    return key.startswith(OUTPUTS) and not {"", ".", ".."} & set(key.split("/"))


class Asked(Protocol):
    """The rows that pods leave."""

    async def asks(self, limit: int) -> Sequence[Mapping[str, Any]]: ...
    async def answer(self, term: int, answers: Sequence[Mapping[str, Any]]) -> int: ...


class Answers:
    """The leader's side of `worker_asks`."""

    def __init__(self, store: Asked, blobs: Blobs, sealed: Callable[[str, str], Sequence[str]] = lambda *_: ()) -> None:
        """`sealed`: worker id, jti -> its next token, sealed for it."""
        self._store, self._blobs, self._sealed = store, blobs, sealed
        self._gate = asyncio.Semaphore(CONCURRENT_LOOKS)

    async def give(self, term: int) -> int:
        """Answer the open rows, and those that come meanwhile; how many. Raises PortError."""
        answered = 0
        while asks := await self._store.asks(BATCH):
            found = await asyncio.gather(*(self._answer(ask) for ask in asks))
            answers = [answer for answer in found if answer is not None]
            now_answered = await self._store.answer(term, answers) if answers else 0
            answered += now_answered
            if not now_answered:  # the bucket is away: the next look is for the timer
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
