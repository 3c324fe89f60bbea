"""The SSH key pair, the bucket, the URL that pods call, and the clocks."""

import asyncio
import ipaddress
import time
import uuid
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from orchestrator import wiring
from orchestrator.adapters import http_client
from orchestrator.adapters.s3 import ONE_LOOK
from orchestrator.config.settings import Settings
from orchestrator.config.validation import PROJECTS_OWN, PUBLIC_KEY, require
from orchestrator.core.places import are_far, bucket_place
from orchestrator.diagnostics.doctor.database import migrates
from orchestrator.diagnostics.doctor.findings import REMEDIES, Section
from orchestrator.ports import BlobRefused, Blobs, NoBucket, NotFound, ObjectExists, PortError
from worker import protocol

if TYPE_CHECKING:
    from orchestrator.config.ssh_keys import BadKey

REPAIR = "python -m orchestrator doctor ssh --repair"
TIMEOUT_S = 8.0
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 30.0  # S3 refuses signatures at 15 min; the platform check of a worker at 30 s
REFUSED = (401, 403)  # HTTP statuses
BAD_JWT = "PGRST30"  # PostgREST's codes about a token begin with this and a digit from 0 to 3
TOKEN_TTL_S = 60.0
SHOWN_CHARS = 200
ONCE_FIX = "use a bucket that enforces conditional writes, as AWS S3 does"
UPLOADS_FIX = (
    "allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or add a lifecycle rule to the bucket with "
    "AbortIncompleteMultipartUpload after 2 days"
)
NEAR_FIX = "put data centres near the bucket first, or use a bucket near the pods"


async def ssh(settings: Settings, section: Section) -> None:
    """Check each half, then both together."""
    from orchestrator.config.ssh_keys import BadKey, private_key, public_keys  # noqa: PLC0415  asyncssh takes a while to import

    private, public = settings.runpod_ssh_private_key, settings.runpod_ssh_public_key
    readable = True
    try:
        ours = private_key(private.get_secret_value() if private else "")
        kind = f"{ours.key.get_algorithm()} {ours.key.get_fingerprint()}"
        _read("the private key", kind, ours.undone, section)
    except BadKey as error:
        section.fail(f"RUNPOD_SSH_PRIVATE_KEY {_state(error)}", str(error), error.fix)
        readable = False
    try:
        offered, text = public_keys(public or "")
        kind = ", ".join(f"{key.get_algorithm()} {key.get_fingerprint()}" for key in offered)
        _read("the public key", kind, text.undone, section)
    except BadKey as error:
        section.fail(f"RUNPOD_SSH_PUBLIC_KEY {_state(error)}", str(error), REPAIR if readable else error.fix)
        readable = False
    if not readable:
        section.skip("whether they belong together", "one of them cannot be read")
        return
    try:
        settings.login_pair()
        section.ok("they belong together")
    except BadKey as error:
        section.fail("they do not belong together", str(error), REPAIR)


async def s3(settings: Settings, section: Section) -> None:
    """Check the bucket with one object: put it, check it by HEAD, and read it back."""
    require(settings, "blobs")
    bucket = bucket_place(settings.s3_endpoint_url, settings.aws_region)
    centers = sorted({offer.data_center or "" for pool in settings.policy().pools for offer in pool.offers})
    if far := [center for center in centers if are_far(center, bucket)]:
        why = f"the bucket is in {bucket}; RUNPOD_DATA_CENTERS names {', '.join(far)}"
        section.warn("pods may be on another continent than the bucket", why, NEAR_FIX)
    blobs = wiring.open_blobs(settings, patience=ONE_LOOK)
    key, content = f"doctor/{uuid.uuid4().hex}.txt", f"orchestrator doctor {time.time()}".encode()
    try:
        await _is_there(blobs, key)
        await blobs.put(key, content, content_type="text/plain")
        section.ok("an object can be stored", f"s3://{settings.s3_bucket} takes, checks and returns objects")
        try:
            if await blobs.get(key) == content:
                section.ok("it can be read back")
            else:
                section.fail("what is read back is not what was stored", key, "see who else writes to the bucket")
            await is_written_once(blobs, key, section)
            await uploads_are_aborted(blobs, section)
        finally:
            await blobs.delete(key)
        section.ok("it can be deleted")
    except NoBucket as error:
        section.fail(f"the bucket {settings.s3_bucket} does not exist", str(error), REMEDIES["s3"])
    except PortError as error:
        section.fail("the bucket does not do what is needed", f"{type(error).__name__}: {error}", REMEDIES["s3"])
    finally:
        await blobs.close()


async def clock(settings: Settings, section: Section) -> None:
    """Compare this machine's clock with the clocks of those that check times."""
    s3_url = settings.s3_endpoint_url or f"https://s3.{settings.aws_region}.amazonaws.com"
    asked = {"RunPod": _http_offset(settings.runpod_api_base_url), "S3": _http_offset(s3_url)}
    if settings.database_url or settings.supabase_url:
        asked["the database"] = _database_offset(settings)
    offsets = await asyncio.gather(*asked.values())
    for name, offset_s in zip(asked, offsets, strict=True):
        if offset_s is None:
            section.skip(f"against {name}", "it shows no time")
        elif abs(offset_s) < SKEW_WARN_S:
            section.ok(f"agrees with {name}", f"within {max(1, round(abs(offset_s)))} s")
        else:
            offset = f"this clock is {abs(offset_s):.0f} s {'behind' if offset_s > 0 else 'ahead'}"
            report = section.fail if abs(offset_s) >= SKEW_FAIL_S else section.warn
            report(f"differs from {name}", offset, "set this machine's clock: timedatectl set-ntp true")


async def gateway(settings: Settings, section: Section) -> None:
    """Check the secret of worker tokens, and try a token at the URL that pods call."""
    require(settings, "gateway")
    section.ok("worker tokens can be signed")
    url, variable = settings.worker_url or "", "SUPABASE_URL" if settings.pods_use_supabase else "WORKER_API_URL"
    if _local(url) and not _local(settings.runpod_api_base_url):
        why = f"{url} is an address of this machine, and pods are elsewhere"
        section.fail(f"pods cannot reach {variable}", why, f"set {variable} to an address that pods can reach")
        return
    look = 'curl -i "$SUPABASE_URL/rest/v1/"' if settings.pods_use_supabase else "python -m orchestrator run"
    try:
        status, code, refusal = await _nobodys_heartbeat(settings, url)
    except httpx.HTTPError as error:
        section.warn(f"no service answers at {variable}", f"{url}: {type(error).__name__}: {error}", look)
        return
    why = f"{url}: HTTP {status} {code}: {refusal}"
    if code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}:
        section.ok(f"{variable} accepts worker tokens", f"{url} refuses an unknown worker, as it should ({code})")
    elif code == protocol.UNKNOWN_FUNCTION and settings.pods_use_supabase:  # it checks the signature first
        section.skip(f"a call at {variable}", "its schema is not there yet; the signature of the token was accepted")
    elif status in REFUSED or code.startswith(BAD_JWT):
        section.fail(f"{variable} refuses worker tokens", why, _token_fix(settings, code))
    else:
        section.warn(f"{variable} does not answer as the worker RPC does", why, look)


async def _nobodys_heartbeat(settings: Settings, url: str) -> tuple[int, str, str]:
    """Return HTTP status, code and text of the refusal for an unknown worker's heartbeat. Raises httpx.HTTPError."""
    from orchestrator.worker_tokens import mint  # noqa: PLC0415  as in Settings.token_keys

    name = f"doctor-{uuid.uuid4().hex}"
    token = mint(settings.token_keys()[0], name, name, time.time(), TOKEN_TTL_S)
    headers = {"Authorization": f"Bearer {token}"}
    if settings.pods_use_supabase:
        headers["apikey"] = settings.supabase_publishable_key or ""
    call = {"p_worker_id": name, "p_nonce": name, "p_tasks": [], "p_health": {}, "p_logs": {}}
    async with http_client.client(url, timeout=TIMEOUT_S) as client:
        reply = await client.post(f"{url}/rest/v1/rpc/{protocol.HEARTBEAT}", headers=headers, json=call)
    try:
        body = reply.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):  # a page of the hosting platform
        return reply.status_code, "", f"{len(reply.content)} bytes that are not a JSON object"
    return reply.status_code, str(body.get("code") or ""), str(body.get("message") or "")[:SHOWN_CHARS]


def _token_fix(settings: Settings, code: str) -> str:
    if code and not code.startswith(BAD_JWT):  # the signature was valid, but the role or its rights are missing
        return migrates(settings)
    if not settings.pods_use_supabase:
        return "set WORKER_JWT_SECRET to the one that the service at WORKER_API_URL has"
    return PROJECTS_OWN if code else PUBLIC_KEY  # a proxy in front of PostgREST that reads the key has no codes


async def _is_there(blobs: Blobs, key: str) -> None:
    """Raise NoBucket if the bucket is missing, before anything is put: some servers create a bucket of any name."""
    try:
        await blobs.get(key)
    except NoBucket:
        raise
    except (NotFound, BlobRefused):
        pass  # without the right to list the bucket, a missing object is refused too; the put will show it


async def is_written_once(blobs: Blobs, key: str, section: Section) -> None:
    """Return whether the bucket refuses a second write with the condition that there is no object."""
    follows = (
        "a pod can replace its output for 5 minutes after it stored it; a dependant whose input was replaced "
        "fails with OUTPUT_REPLACED and is not given it"
    )
    try:
        await blobs.put_new(key, b"a second write")
    except ObjectExists:
        section.ok("an output is written once", "a second write with If-None-Match: * is refused")
    except BlobRefused as error:
        section.warn("the bucket knows no If-None-Match", f"{error}; {follows}", ONCE_FIX)
    else:
        section.warn("the bucket ignores If-None-Match", follows, ONCE_FIX)


async def uploads_are_aborted(blobs: Blobs, section: Section) -> None:
    """Whether the orchestrator may list and abort multipart uploads that a pod did not complete."""
    try:
        await blobs.abort_uploads("doctor/", older_than=datetime.fromtimestamp(0, UTC))
    except BlobRefused as error:
        why = f"{error}; the parts of an upload whose pod was lost stay in the bucket, and are billed"
        section.warn("incomplete multipart uploads cannot be listed", why, UPLOADS_FIX)
    else:
        section.ok("incomplete multipart uploads can be listed", "the orchestrator aborts them after two days")


def _state(error: "BadKey") -> str:
    return "is missing" if error.cause in {"no_private_key", "no_public_key"} else "cannot be used"


def _read(name: str, kind: str, undone: tuple[str, ...], section: Section) -> None:
    if undone:
        section.warn(f"{name} is usable, though its text was changed", f"{kind}; undone: {', '.join(undone)}", REPAIR)
    else:
        section.ok(f"{name} can be read", kind)


async def _http_offset(url: str) -> float | None:
    """Return how many seconds a server's clock is ahead of ours, by the Date header of any answer."""
    try:
        async with http_client.client(url, timeout=TIMEOUT_S) as client:
            sent = time.time()
            date = (await client.get(url)).headers["date"]
        return parsedate_to_datetime(date).timestamp() + 0.5 - (sent + time.time()) / 2  # the header is rounded down
    except (httpx.HTTPError, KeyError, ValueError):
        return None


async def _database_offset(settings: Settings) -> float | None:
    try:
        async with wiring.open_store(settings) as store:
            before = datetime.now(UTC)
            now = (await store.snapshot()).now
            after = datetime.now(UTC)
    except PortError:
        return None
    return ((now - before) + (now - after)).total_seconds() / 2


def _local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in {"localhost", ""} or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
