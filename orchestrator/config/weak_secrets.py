"""Secrets and addresses with which the service refuses to start: an outsider could guess or read them."""

import ipaddress
import re
import urllib.parse

MIN_SECRET_BYTES = 32  # of an HS256 secret: RFC 7518 §3.2
MIN_TOKEN_BYTES = 16  # of one that only opens /metrics
MIN_DISTINCT = 10  # characters of a secret that differ; 32 random hexadecimal digits have 14
PLACEHOLDER = re.compile(
    r"change.?(?:me|this|it)|placeholder|example|replace.?(?:me|this)|your[-_ ](?:jwt|secret|token|key)"
    r"|(?:secret|password|token|key)[-_ ]?(?:here|goes)|super[-_ ]?secret|password|^<.*>$|^\$\{?\w+\}?$"
    r"|openssl rand|uuidgen|/dev/u?random|\$\(",
    re.IGNORECASE,
)


def weakness(secret: str, min_bytes: int) -> str | None:
    """Return why a secret could be guessed, without the secret itself; None if it seems strong."""
    if len(secret.encode()) < min_bytes:
        return f"it is shorter than {min_bytes} bytes"
    if PLACEHOLDER.search(secret):
        return "it is a placeholder, not a secret"
    period = next(n for n in range(1, len(secret) + 1) if secret.startswith(secret[n:]))
    if period <= len(secret) / 2 or len(set(secret)) < MIN_DISTINCT:
        return "it repeats a few characters"
    return None


def is_readable_on_the_way(url: str) -> bool:
    """Whether requests to this URL leave the machine unencrypted."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
