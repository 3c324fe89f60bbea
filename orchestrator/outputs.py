"""Operations on the bucket that pods cannot do, because they have no S3 key: presign a URL, and check an output.

The database has allowed the operation. The gateway does it within the worker's call. For pods that call PostgREST, the
leader does it for their rows in `worker_asks` (leader_jobs/pod_requests.py).
"""

import asyncio
import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from orchestrator.ports import Blobs, NotFound, PortError
from worker.protocol import MAX_OBJECT_BYTES, MAX_UPLOAD_BYTES
from worker.rules import name_problem

GRANT_TTL_S = 300  # agents ask for a fresh URL before each try; a transfer that has begun may take longer
UPLOAD_AGE = timedelta(days=2)  # of a multipart upload that is aborted
LOOKS_AT_ONCE = 16  # of one call: a task may depend on hundreds of outputs
LOOK_TIMEOUT_S = 5.0  # for the bucket to show an output
ITS_TASKS = "this task or of a task that it depends on"
OUTPUTS = "outputs/"  # the only keys that a worker ever gets a URL for
PROBE_KEY = "probes/pod"  # every pod overwrites it before its first claim; its content is not used
PROBE = "written by a pod to see whether it can use this bucket\n"
PROBE_TTL_S = 86_400
CHECKSUM = "x-amz-checksum-sha256"
# Headers of one write, which the parts and the end of a multipart upload have in place of its begin.
PER_WRITE = frozenset({"If-None-Match", CHECKSUM})

RECORDED = {"etag": str, "sha256": str, "bytes": int}  # of tasks.output_object

log = structlog.get_logger()


def recorded_object(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was recorded of a task's output in the bucket: some of RECORDED.

    Nothing for an output at another location. The column is in the user's table: a value of another type is left out.
    """
    stored = task.get("output_object")
    if not isinstance(stored, Mapping) or stored.get("location") != task.get("output_location"):
        return {}
    return {name: stored[name] for name, kind in RECORDED.items() if type(stored.get(name)) is kind}


@dataclass(frozen=True, slots=True)
class Upload:
    """The content to which a presigned URL is bound: the bucket refuses any other request."""

    size_bytes: int
    sha256: str
    content_type: str

    def headers(self) -> Mapping[str, str]:
        """The headers that the request must carry besides its length."""
        return {
            "If-None-Match": "*",
            "Content-Type": self.content_type,
            CHECKSUM: _base64(self.sha256),
            "x-amz-meta-sha256": self.sha256,
        }


async def grant(blobs: Blobs, method: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return {url, location} and further facts for one key, or {refused}, even if the database allowed it.

    `terms`: of a PUT what protocol.GRANTS names; of a GET what was recorded of the object, and an object that is
    another one now is refused as `replaced`. PortError, TimeoutError: the answer is unknown; ask again.
    """
    return (await grant_all(blobs, [(method, key, terms)]))[0]


async def grant_all(blobs: Blobs, asked: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
    """Answer several requests (method, key, terms) as `grant` does."""
    turns = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def refusal(method: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any] | None:
        async with turns:
            return await _refusal(blobs, method, key, terms)

    looks = [asyncio.create_task(refusal(*one)) for one in asked]
    try:
        refusals = await asyncio.gather(*looks)
    finally:
        for one in looks:
            one.cancel()
    # In a thread: the first signature loads the S3 client, which takes most of a second.
    return await asyncio.to_thread(
        lambda: [refused or _sign(blobs, *one) for refused, one in zip(refusals, asked, strict=True)]
    )


async def _refusal(blobs: Blobs, method: str, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if method not in {"PUT", "GET"} or not _is_output(key):
        return {"refused": True}
    if method == "PUT" and (why := name_problem(key.split("/", 3)[-1])):
        log.warning("output_name_refused", key=key, why=why)
        return {"refused": True}
    most_bytes = MAX_OBJECT_BYTES if terms.get("multipart") or "upload_id" in terms else MAX_UPLOAD_BYTES
    if terms.get("once") and int(terms["bytes"]) > most_bytes:
        log.warning("upload_too_large", key=key, bytes=terms["bytes"], most_bytes=most_bytes)
        return {"refused": True}
    if method == "GET" and "etag" in terms:
        seen = await look(blobs, key)
        if seen is None or any(seen.get(name) != terms.get(name) for name in ("etag", "bytes")):
            log.warning("output_replaced", key=key, recorded=terms.get("etag"), seen=seen and seen["etag"])
            return {"refused": True, "replaced": True}
    return None


def store_probe(blobs: Blobs) -> Mapping[str, Any]:
    """Return one PUT and one GET of a small object, for an agent to send: {put, headers, content, get}."""
    headers = {"Content-Length": str(len(PROBE)), "Content-Type": "text/plain"}
    return {
        "put": blobs.sign("PUT", PROBE_KEY, expires_s=PROBE_TTL_S, headers=headers),
        "headers": headers,
        "content": PROBE,
        "get": blobs.sign("GET", PROBE_KEY, expires_s=PROBE_TTL_S),
    }


async def look(blobs: Blobs, key: str) -> Mapping[str, Any] | None:
    """Return the bucket's facts about an output, or None if it is missing.

    PortError, TimeoutError: unknown; ask again.
    """
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
        return {"url": blobs.sign("GET", key, expires_s=GRANT_TTL_S), "location": location, **recorded}
    upload = _upload(key, terms)
    if terms.get("verify"):
        look = {"location": location, "check": _signed(blobs, "HEAD", key, headers={"x-amz-checksum-mode": "ENABLED"})}
    else:  # an agent of an earlier release sends no header with it
        look = {"location": location, "head": blobs.sign("HEAD", key, expires_s=GRANT_TTL_S)}
    if "upload_id" in terms:
        return {**look, **_parts(blobs, key, terms)}
    if terms.get("multipart"):
        kept = {name: value for name, value in upload.headers().items() if name not in PER_WRITE} if upload else {}
        checked = {"x-amz-checksum-algorithm": "SHA256"} if upload else {}
        return {**look, "create": _signed(blobs, "POST", key, query={"uploads": ""}, headers=kept | checked)}
    if upload is None:
        return {**look, "url": blobs.sign("PUT", key, expires_s=GRANT_TTL_S)}
    bound = {"Content-Length": str(upload.size_bytes), **upload.headers()}
    url = blobs.sign("PUT", key, expires_s=GRANT_TTL_S, headers=bound)
    return {**look, "url": url, "headers": upload.headers()}


def _upload(key: str, terms: Mapping[str, Any]) -> "Upload | None":
    """What an upload is bound to; None for one without a condition."""
    kind = mimetypes.guess_type(key)[0] or "application/octet-stream"
    return Upload(int(terms["bytes"]), str(terms["sha256"]), kind) if terms.get("once") else None


def _parts(blobs: Blobs, key: str, terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Each part for its own number, length and checksum; and how the upload ends."""
    upload = {"uploadId": str(terms["upload_id"])}
    signed = []
    for part in terms["parts"]:
        checksum = {CHECKSUM: _base64(part["sha256"])} if "sha256" in part else {}
        bound, query = {"Content-Length": str(int(part["bytes"])), **checksum}, {"partNumber": str(int(part["n"]))}
        url = blobs.sign("PUT", key, expires_s=GRANT_TTL_S, query=upload | query, headers=bound)
        signed.append({"url": url, "headers": checksum})
    once = {"If-None-Match": "*"} if terms.get("once") else {}
    return {
        "parts": signed,
        "complete": _signed(blobs, "POST", key, query=upload, headers=once),
        "abort": _signed(blobs, "DELETE", key, query=upload),
    }


def _signed(
    blobs: Blobs, method: str, key: str, *, query: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
) -> Mapping[str, Any]:
    """{url, headers}: the request that an agent may send."""
    url = blobs.sign(method, key, expires_s=GRANT_TTL_S, query=query, headers=headers)
    return {"url": url, "headers": dict(headers)}


def _base64(sha256: str) -> str:
    """A SHA-256 as S3 compares it with what it receives."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _is_output(key: str) -> bool:
    """Whether a key lies under the outputs by every server's reading: some resolve `..` and empty segments."""
    return key.startswith(OUTPUTS) and not {"", ".", ".."} & set(key.split("/"))


def owner_of(key: str, task: Mapping[str, Any]) -> str | None:
    """Return the id of the task in whose folder the key lies: this task, or one that it depends on; otherwise None.

    A pod writes the locations in its task's row and result. Nobody may follow one to other outputs, or to logs.
    """
    owner = key.removeprefix(OUTPUTS).partition("/")[0]
    known = {str(task["id"]), *map(str, task.get("depends_on") or ())}
    return owner if _is_output(key) and owner in known else None


async def abort_old_uploads(blobs: Blobs) -> None:
    """Abort multipart uploads that no agent completed: the bucket keeps their parts, and bills them, for ever.

    An agent whose upload is aborted while it waits starts it again.
    """
    try:
        aborted = await blobs.abort_uploads(OUTPUTS, older_than=datetime.now(UTC) - UPLOAD_AGE)
    except PortError as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        log.warning("uploads_not_aborted", why=why, fix="python -m orchestrator doctor s3")
    else:
        if aborted:
            log.info("uploads_aborted", uploads=aborted)
