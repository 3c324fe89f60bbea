"""The ways in and out: the SSH key pair, the bucket, the workers' URL, and whether the clocks agree."""

import asyncio
import ipaddress
import time
import uuid
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from orchestrator import wiring
from orchestrator.config.settings import Settings
from orchestrator.config.validation import PROJECTS_OWN, PUBLIC_KEY, require
from orchestrator.diagnostics.doctor.database import MIGRATE
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.ports import BlobRefused, Blobs, NoBucket, NotFound, ObjectExists, PortError
from worker import protocol

REPAIR = "python -m orchestrator doctor ssh --repair"
TIMEOUT_S = 8.0
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 30.0  # S3 refuses signatures at 15 min; a worker's platform check at 30 s
REFUSED = (401, 403)  # HTTP statuses
BAD_JWT = "PGRST30"  # how PostgREST's codes begin that are about a token: 0 to 3
TOKEN_TTL_S = 60.0
SHOWN_CHARS = 200
ONCE_FIX = "use a bucket that enforces conditional writes, as AWS S3 does"
BUCKET_FIX = "check S3_ENDPOINT_URL, S3_BUCKET, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


async def ssh(settings: Settings, section: Section) -> None:
    """Each half by itself, then both together."""
    from orchestrator.config.ssh_keys import BadKey, private_key, public_keys  # noqa: PLC0415  asyncssh takes a while to import

    private, public = settings.runpod_ssh_private_key, settings.runpod_ssh_public_key
    readable = True
    try:
        ours = private_key(private.get_secret_value() if private else "")
        kind = f"{ours.key.get_algorithm()} {ours.key.get_fingerprint()}"
        _read("the private key", kind, ours.undone, section)
    except BadKey as error:
        section.fail("RUNPOD_SSH_PRIVATE_KEY cannot be used", str(error), error.fix)
        readable = False
    try:
        offered, text = public_keys(public or "")
        kind = ", ".join(f"{key.get_algorithm()} {key.get_fingerprint()}" for key in offered)
        _read("the public key", kind, text.undone, section)
    except BadKey as error:
        section.fail("RUNPOD_SSH_PUBLIC_KEY cannot be used", str(error), REPAIR if readable else error.fix)
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
    """One object of ours: put (and seen by HEAD), read back, deleted."""
    require(settings, "blobs")
    blobs = wiring.open_blobs(settings)
    key, content = f"doctor/{uuid.uuid4().hex}.txt", f"orchestrator doctor {time.time()}".encode()
    try:
        await _is_there(blobs, key)
        await blobs.put(key, content, content_type="text/plain")
        section.ok("an object can be stored", f"s3://{settings.s3_bucket}, HEAD shows its {len(content)} bytes")
        try:
            if await blobs.get(key) == content:
                section.ok("it can be read back")
            else:
                section.fail("what is read back is not what was stored", key, "see who else writes to the bucket")
            await is_written_once(blobs, key, section)
        finally:
            await blobs.delete(key)
        section.ok("it can be deleted")
    except NoBucket as error:
        section.fail(f"the bucket {settings.s3_bucket} does not exist", str(error), BUCKET_FIX)
    except PortError as error:
        section.fail("the bucket does not do what is needed", f"{type(error).__name__}: {error}", BUCKET_FIX)
    finally:
        await blobs.close()


async def clock(settings: Settings, section: Section) -> None:
    """This machine's clock against everybody's who minds."""
    s3_url = settings.s3_endpoint_url or f"https://s3.{settings.aws_region}.amazonaws.com"
    asked = {"RunPod": _http_offset(settings.runpod_api_base_url), "S3": _http_offset(s3_url)}
    if settings.database_url or settings.supabase_url:
        asked["the database"] = _database_offset(settings)
    offsets = await asyncio.gather(*asked.values())
    for name, offset_s in zip(asked, offsets, strict=True):
        if offset_s is None:
            section.skip(f"against {name}", "it tells no time")
        elif abs(offset_s) < SKEW_WARN_S:
            section.ok(f"agrees with {name}", f"within {max(1, round(abs(offset_s)))} s")
        else:
            said = f"this clock is {abs(offset_s):.0f} s {'behind' if offset_s > 0 else 'ahead'}"
            tell = section.fail if abs(offset_s) >= SKEW_FAIL_S else section.warn
            tell(f"differs from {name}", said, "set this machine's clock: timedatectl set-ntp true")


async def gateway(settings: Settings, section: Section) -> None:
    """The tokens' secret, and whether a token opens the door at which pods will knock."""
    require(settings, "gateway")
    section.ok("workers' tokens can be signed")
    url, door = settings.worker_url or "", "SUPABASE_URL" if settings.pods_use_supabase else "WORKER_API_URL"
    if _local(url) and not _local(settings.runpod_api_base_url):
        why = f"{url} is an address of this machine, and pods are elsewhere"
        section.fail(f"pods cannot reach {door}", why, f"set {door} to an address that pods can reach")
        return
    look = 'curl -i "$SUPABASE_URL/rest/v1/"' if settings.pods_use_supabase else "python -m orchestrator run"
    try:
        status, code, said = await _nobodys_heartbeat(settings, url)
    except httpx.HTTPError as error:
        section.warn(f"nobody answers at {door}", f"{url}: {type(error).__name__}: {error}", look)
        return
    why = f"{url}: HTTP {status} {code}: {said}"
    if code in {protocol.UNKNOWN_WORKER, protocol.BAD_TOKEN}:
        section.ok(f"{door} lets workers' tokens in", f"{why}; as it should, for a worker that there is not")
    elif status in REFUSED or code.startswith(BAD_JWT):
        section.fail(f"{door} refuses workers' tokens", why, _token_fix(settings, code))
    else:
        section.warn(f"{door} does not answer as the worker RPC does", why, look)


async def _nobodys_heartbeat(settings: Settings, url: str) -> tuple[int, str, str]:
    """HTTP status, code and words of the refusal that a worker hears which does not exist. Raises httpx.HTTPError."""
    from orchestrator.worker_tokens import mint  # noqa: PLC0415  as in Settings.token_keys

    name = f"doctor-{uuid.uuid4().hex}"
    token = mint(settings.token_keys()[0], name, name, time.time(), TOKEN_TTL_S)
    headers = {"Authorization": f"Bearer {token}"}
    if settings.pods_use_supabase:
        headers["apikey"] = settings.supabase_publishable_key or ""
    call = {"p_worker_id": name, "p_nonce": name, "p_tasks": [], "p_health": {}, "p_logs": {}}
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        reply = await client.post(f"{url}/rest/v1/rpc/{protocol.HEARTBEAT}", headers=headers, json=call)
    try:
        body = reply.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):  # a platform's page
        return reply.status_code, "", f"{len(reply.content)} bytes that are not a JSON object"
    return reply.status_code, str(body.get("code") or ""), str(body.get("message") or "")[:SHOWN_CHARS]


def _token_fix(settings: Settings, code: str) -> str:
    if code and not code.startswith(BAD_JWT):  # the signature was right, and the role or its rights are missing
        return MIGRATE
    if not settings.pods_use_supabase:
        return "set WORKER_JWT_SECRET to the one that the service at WORKER_API_URL has"
    return PROJECTS_OWN if code else PUBLIC_KEY  # what stands in front of PostgREST and reads the key has no codes


async def _is_there(blobs: Blobs, key: str) -> None:
    """Raise NoBucket where there is none, before anything is put: some servers then make one of whatever name."""
    try:
        await blobs.get(key)
    except NoBucket:
        raise
    except (NotFound, BlobRefused):
        pass  # a key that may not list the bucket is refused what is not in it; storing will tell


async def is_written_once(blobs: Blobs, key: str, section: Section) -> None:
    """Whether the bucket keeps an object against a second write on condition that there is none."""
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


def _read(name: str, kind: str, undone: tuple[str, ...], section: Section) -> None:
    if undone:
        section.warn(f"{name} is usable, though its text was changed", f"{kind}; undone: {', '.join(undone)}", REPAIR)
    else:
        section.ok(f"{name} can be read", kind)


async def _http_offset(url: str) -> float | None:
    """Seconds by which a server's clock is ahead of ours, by its Date header, whatever else it answers."""
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            sent = time.time()
            said = (await client.get(url)).headers["date"]
        return parsedate_to_datetime(said).timestamp() + 0.5 - (sent + time.time()) / 2  # whole seconds, cut off
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
