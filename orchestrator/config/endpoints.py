"""Addresses that are URLs, and not those that the orchestrator needs: a page of a console, or a URL with a path."""

import base64
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

from orchestrator.config.errors import SettingProblem
from orchestrator.config.settings import Settings

CONSOLES = {
    "supabase.com": "https://<ref>.supabase.co, from the project's settings",
    "app.supabase.com": "https://<ref>.supabase.co, from the project's settings",
    "dash.cloudflare.com": "https://<account>.r2.cloudflarestorage.com",
    "console.aws.amazon.com": "nothing: AWS needs no endpoint",
    "s3.console.aws.amazon.com": "nothing: AWS needs no endpoint",
    "console.runpod.io": "nothing: the default is RunPod's API",
    "www.runpod.io": "nothing: the default is RunPod's API",
    "rest.runpod.io": "nothing: this older API has ended, and the default is its successor",
}
ANON = "anon"  # the role of a legacy public key
JWT_PARTS = 3
PUBLIC_BUCKETS = ".r2.dev"  # R2's address for readers without a key
OWN_PATHS = {
    "SUPABASE_URL": ("/rest/v1", "/auth/v1", "/storage/v1", "/graphql/v1", "/functions/v1"),
    "RUNPOD_API_BASE_URL": ("/v1", "/v2", "/graphql"),
    "WORKER_API_URL": ("/api/v1", "/rest/v1", "/healthz"),
}  # paths that the orchestrator itself puts at the end of these URLs, or never uses


def endpoint_problems(settings: Settings) -> Iterator[SettingProblem]:
    """Yield what is wrong with each address, with the value to set in its place."""
    for name in ("SUPABASE_URL", "RUNPOD_API_BASE_URL", "WORKER_API_URL", "S3_ENDPOINT_URL"):
        if url := getattr(settings, name.lower()):
            yield from _of_url(name, url)
    if settings.s3_endpoint_url and settings.s3_bucket:
        yield from _of_bucket(settings.s3_endpoint_url, settings.s3_bucket)
    if settings.aws_region == "auto" and not settings.s3_endpoint_url:
        why, fix = "auto is a region of R2, and without S3_ENDPOINT_URL the bucket is at AWS", "set S3_ENDPOINT_URL"
        yield SettingProblem("AWS_REGION cannot be used", why, f"{fix} for R2, or AWS_REGION to the bucket's region")
    yield from _of_keys(settings)


def _of_url(name: str, url: str) -> Iterator[SettingProblem]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in CONSOLES:
        yield _problem(name, f"{host} is a website, not an API", f"set {name} to {CONSOLES[host]}")
        return
    for path in OWN_PATHS.get(name, ()):
        if parts.path.startswith(path):
            base = url.partition(path)[0]
            yield _problem(name, f"it has the path {parts.path}, which is not a part of it", f"set {name}={base}")
            return


def _of_bucket(url: str, bucket: str) -> Iterator[SettingProblem]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.path.strip("/") == bucket:
        fix = f"set S3_ENDPOINT_URL={url.removesuffix(parts.path)}"
        yield _problem("S3_ENDPOINT_URL", f"its path is the bucket {bucket}, which S3_BUCKET names", fix)
    elif host.startswith(f"{bucket.lower()}.") and not host.startswith("s3."):
        fix = f"set S3_ENDPOINT_URL={url.replace(f'{bucket.lower()}.', '', 1)}"
        yield _problem("S3_ENDPOINT_URL", f"its host begins with the bucket {bucket}, which S3_BUCKET names", fix)
    elif host.endswith(PUBLIC_BUCKETS):
        fix = "set S3_ENDPOINT_URL=https://<account>.r2.cloudflarestorage.com"
        yield _problem("S3_ENDPOINT_URL", f"{host} is the bucket's public address, where nothing can be stored", fix)


def _of_keys(settings: Settings) -> Iterator[SettingProblem]:
    """Yield a key that stands in the place of another: the public one reaches every pod."""
    secret = settings.supabase_service_role_key
    public = settings.supabase_publishable_key or ""
    if secret and (secret.get_secret_value().startswith("sb_publishable_") or _role(secret.get_secret_value()) == ANON):
        fix = "set SUPABASE_SERVICE_ROLE_KEY to the project's secret key (sb_secret_…)"
        yield _problem("SUPABASE_SERVICE_ROLE_KEY", "it is the project's public key", fix)
    if public.startswith("sb_secret_") or _role(public) == "service_role":
        fix = "set SUPABASE_PUBLISHABLE_KEY=sb_publishable_…, and replace the secret key if a pod had it"
        yield _problem("SUPABASE_PUBLISHABLE_KEY", "it is the project's secret key, and pods would get it", fix)


def _role(key: str) -> object:
    """Return the role that a legacy key of Supabase, a JWT, names; None for another key."""
    parts = key.split(".")
    if len(parts) != JWT_PARTS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims.get("role") if isinstance(claims, dict) else None


def _problem(name: str, why: str, fix: str) -> SettingProblem:
    return SettingProblem(f"{name} cannot be used", why, fix)
