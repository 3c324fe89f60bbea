"""The munge key of a cluster, derived: another orchestrator with the same secret finds the same key."""

import hashlib
import hmac

KEY_BYTES = 128
INFO = b"munge key"


def munge_key(secret: bytes, cluster: str) -> bytes:
    """Return the 128 bytes of a cluster's munge key. It travels over SSH's stdin only, and is never shown."""
    seed = hmac.digest(secret, f"munge|{cluster}".encode(), "sha256")
    key, block, counter = b"", b"", 0
    while len(key) < KEY_BYTES:  # HKDF-Expand (RFC 5869)
        counter += 1
        block = hmac.digest(seed, block + INFO + bytes([counter]), "sha256")
        key += block
    return key[:KEY_BYTES]


def fingerprint(key: bytes) -> str:
    """Return the SHA-256 (hex) of a key, by which a pod's key is compared without being read."""
    return hashlib.sha256(key).hexdigest()
