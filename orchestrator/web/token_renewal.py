"""Renewal of worker tokens: each token is valid for hours, and the worker requests the next one in time.

A renewal keeps the `jti`. So one update of the worker's row revokes all its tokens, a renewal changes no row, and a
lost answer has no effect, because the earlier token stays valid until it expires.

The answer is encrypted for the worker (worker/renewal.py): over PostgREST it waits in a row of `worker_asks`, and the
database must hold no usable secret. The key is derived from the signing key, so every replica knows it. An answer is
encrypted once for each key that may have signed the worker's present token.
"""

import base64
import hashlib
import hmac
import json
import os
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from orchestrator.worker_tokens import LIFE_S, PROGRAM_LIFE_S, Key, mint

PURPOSE = b"gpu-orchestrator token renewal 1"
SECRET_BYTES = 32
SALT_BYTES = 16
SCALAR_BYTES = 32  # of a P-256 private key
DEADMAN_TIMES = 2  # a worker without contact ends long before its token expires


@dataclass(frozen=True, slots=True)
class Renewals:
    """The keys of a fleet's tokens. The first key signs."""

    keys: tuple[Key, ...]
    deadman_s: float
    own_program: bool = (
        False  # a user's own program may keep its token in memory, so the token is valid for as long as any pod may run
    )

    @property
    def life_s(self) -> float:
        """Return the lifetime of a new token, in seconds."""
        return PROGRAM_LIFE_S if self.own_program else max(LIFE_S, DEADMAN_TIMES * self.deadman_s)

    def token(self, worker_id: str, jti: str, now: float) -> str:
        """A new token of a worker."""
        return mint(self.keys[0], worker_id, jti, now, self.life_s)

    def key_for(self, worker_id: str, jti: str) -> str | None:
        """Return the key that decrypts this launch's next token, in hexadecimal. None if tokens are not renewed."""
        return None if self.own_program else _secret(self.keys[0], worker_id, jti).hex()

    def sealed(self, worker_id: str, jti: str, now: float) -> list[str]:
        """The next token and the key for the one after it, once for each key that the worker may have."""
        given = {"token": self.token(worker_id, jti, now), "renewal_key": _secret(self.keys[0], worker_id, jti).hex()}
        return [_seal(_secret(key, worker_id, jti), json.dumps(given).encode()) for key in self.keys]


def _secret(key: Key, worker_id: str, jti: str) -> bytes:
    signs = key.encode() if isinstance(key, str) else key.private.private_numbers().private_value.to_bytes(SCALAR_BYTES)
    root = HKDF(SHA256(), SECRET_BYTES, salt=None, info=PURPOSE).derive(signs)
    return hmac.new(root, f"{worker_id}\0{jti}".encode(), hashlib.sha256).digest()


def _seal(secret: bytes, content: bytes) -> str:
    """Encrypt, then authenticate; HMAC-SHA256 for both, because the agent has the standard library alone."""
    salt = os.urandom(SALT_BYTES)
    stream = b"".join(
        hmac.digest(secret, b"stream" + salt + block.to_bytes(4), "sha256")
        for block in range(len(content) // SHA256.digest_size + 1)
    )
    body = bytes(a ^ b for a, b in zip(content, stream, strict=False))
    tag = hmac.digest(secret, b"tag" + salt + body, "sha256")
    return base64.urlsafe_b64encode(salt + body + tag).decode()
