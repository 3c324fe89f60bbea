"""Signatures of webhooks, as Standard Webhooks (https://www.standardwebhooks.com) defines them.

Each receiver has a key of its own, derived from the one secret and the origin of the receiver's URL. So no receiver can
sign messages for another one.
"""

import base64
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL. Raises ValueError if it has no host, or a port that is none."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("it names no host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def receiver_key(secret: str, url: str) -> str:
    """Return the key with which the receiver of this URL verifies messages: `whsec_…`. Raises ValueError."""
    return PREFIX + base64.b64encode(_key(secret, url)).decode()


def headers(secrets: Sequence[str], url: str, message_id: str, at_s: int, body: bytes) -> Mapping[str, str]:
    """Return the headers of a message. With several secrets, it has a signature for each. Raises ValueError."""
    signed = f"{message_id}.{at_s}.".encode() + body
    made = (hmac.digest(_key(secret, url), signed, hashlib.sha256) for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in made),
    }


def _key(secret: str, url: str) -> bytes:
    return hmac.digest(secret.encode(), f"webhook key for {origin_of(url)}".encode(), hashlib.sha256)
