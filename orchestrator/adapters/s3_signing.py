"""Presigned URLs (AWS Signature Version 4, in the query): the holder of such a URL may send one request.

boto3 makes the same URLs in half a millisecond each, and a task with 10,000 files needs 20,000 of them. A test compares
the results.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, urlsplit

ALGORITHM = "AWS4-HMAC-SHA256"


def origins(endpoint_url: str | None, bucket: str, region: str) -> str:
    """Return the origins that presigned URLs of a bucket can have, as a Content-Security-Policy lists them."""
    if endpoint_url:
        parts = urlsplit(endpoint_url)
        return f"{parts.scheme}://{parts.netloc}"
    hosts = (f"s3.{region}.amazonaws.com", "s3.amazonaws.com")  # the second one: of us-east-1
    if "." in bucket:  # its name is a part of the path: the certificate of AWS does not cover such a host
        return " ".join(f"https://{host}" for host in hosts)
    return " ".join(f"https://{bucket}.{host}" for host in hosts)


def presigned(
    method: str,
    url: str,
    *,
    keys: tuple[str, str],
    region: str,
    expires_s: int,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    now: datetime | None = None,
) -> str:
    """Return `url` (path quoted, no query) with the signature of a request with exactly these `headers`.

    `keys`: access key, secret key. The body is signed only as far as the headers describe it.
    """
    parts = urlsplit(url)
    at = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    signed = {"host": parts.netloc, **{name.lower(): " ".join(value.split()) for name, value in headers.items()}}
    names = ";".join(sorted(signed))
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    asked = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys[0]}/{scope}",
        "X-Amz-Date": at,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": names,
        **query,
    }
    sorted_query = "&".join(sorted(f"{_quoted(name)}={_quoted(value)}" for name, value in asked.items()))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = f"{method}\n{parts.path}\n{sorted_query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    text = f"{ALGORITHM}\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.new(_key(keys[1], at[:8], region), text.encode(), hashlib.sha256).hexdigest()
    return f"{url}?{sorted_query}&X-Amz-Signature={signature}"


@lru_cache(maxsize=256)  # almost all names and values repeat, and `quote` takes most of the time of a URL
def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


@lru_cache(maxsize=8)
def _key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
