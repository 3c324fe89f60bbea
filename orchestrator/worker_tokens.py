"""The worker's token: a JWT for the role `gpu_worker` that identifies the worker.

This module checks the signature and the expiry. The database checks on each call whether the `jti` is still the
worker's, so that one update of its row revokes the token. web/token_renewal.py has the lifetime and the renewal of
tokens.

Two kinds of key sign: the project's JWT secret (HS256) and a private key that was imported into the project as a
signing key (ES256). For the latter, verifiers need only the public half.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Self

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from orchestrator.core.model import ID_PATTERN

ISSUER = "orchestrator"
ROLE = "gpu_worker"
CLAIMS = ("sub", "role", "jti", "iat", "exp", "iss")  # a token without one of them is no token
LIFE_S = 4 * 3600.0
PROGRAM_LIFE_S = 365 * 86_400.0  # longer than a pod exists
MAX_TOKEN_CHARS = 4_096
MAX_KNOWN_TOKENS = 4_096
CLOCK_LEEWAY_S = 30  # replicas mint and verify on their own clocks

Claims = Mapping[str, Any]


class InvalidToken(Exception):
    """The token proves nothing; the text says why, without the token."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private P-256 key with the name under which verifiers know its public half."""

    private: EllipticCurvePrivateKey
    kid: str | None  # None: PEM has no room for it, and a verifier with one key needs none

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a private JWK (`supabase gen signing-key --algorithm ES256`) or PEM; ValueError says what is wrong."""
        text = text.strip().replace("\\n", "\n")  # a PEM in one line of an environment file
        try:
            if text.startswith("{"):
                given = json.loads(text)
                key: Any = jwt.PyJWK.from_dict(given, algorithm="ES256").key
                kid = given.get("kid")
            else:
                key, kid = load_pem_private_key(text.encode(), password=None), None
        except (ValueError, TypeError, UnsupportedAlgorithm, jwt.PyJWTError) as error:
            raise ValueError(f"not a private key in JWK or PEM form: {type(error).__name__}") from None
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ValueError("ES256 needs the private half of an EC P-256 key")  # noqa: TRY004  a value, of the wrong kind
        return cls(key, kid)


Key = str | SigningKey  # the project's JWT secret, or a signing key


def mint(key: Key, worker_id: str, jti: str, now: float, ttl_s: float = LIFE_S) -> str:
    """A token for one worker that expires `ttl_s` seconds after `now`, in seconds since the epoch."""
    if not ID_PATTERN.fullmatch(worker_id) or not jti:
        raise ValueError(f"not a worker id and a jti: {worker_id!r}, {jti!r}")
    issued, expires = math.floor(now), math.ceil(now + ttl_s)
    claims = {"sub": worker_id, "role": ROLE, "jti": jti, "iat": issued, "exp": expires, "iss": ISSUER}
    if isinstance(key, str):
        return jwt.encode(claims, key, algorithm="HS256")
    return jwt.encode(claims, key.private, algorithm="ES256", headers={"kid": key.kid} if key.kid else None)


def verify(key: Key, token: str) -> Claims:
    """The claims of a token that this key signed and that has not expired. Raises InvalidToken."""
    if len(token) > MAX_TOKEN_CHARS:
        raise InvalidToken(f"the token is longer than {MAX_TOKEN_CHARS} characters")
    # One algorithm for one kind of key. The token's header does not choose it: a public half must never be a secret.
    checks, algorithm = (key, "HS256") if isinstance(key, str) else (key.private.public_key(), "ES256")
    try:
        claims = jwt.decode(
            token,
            checks,
            algorithms=[algorithm],
            issuer=ISSUER,
            leeway=CLOCK_LEEWAY_S,
            options={"require": list(CLAIMS), "verify_aud": False},
        )
    except jwt.ExpiredSignatureError:
        raise InvalidToken("JWT expired") from None
    except jwt.PyJWTError as error:
        raise InvalidToken(f"JWT refused: {type(error).__name__}") from None
    if claims["role"] != ROLE:
        raise InvalidToken(f"JWT refused: the role is not {ROLE}")
    if any(type(claims[name]) not in {int, float} for name in ("iat", "exp")):  # PyJWT reads a text as a number
        raise InvalidToken("JWT refused: iat and exp are not numbers")
    if not ID_PATTERN.fullmatch(claims["sub"]) or not claims["jti"] or not isinstance(claims["jti"], str):
        raise InvalidToken("JWT refused: sub and jti do not name a worker and its token")
    return claims


def verifier(*keys: Key) -> Callable[[str], Claims]:
    """`verify` with any of these keys, for `build_app`; of a token seen before only the expiry is looked at.

    An agent with a task calls every few seconds with the one token it has: a thousand of them make checking the same
    signatures a fifth of the gateway's work. Several keys let one follow the other while pods of both are out there.
    """
    known = lru_cache(MAX_KNOWN_TOKENS)(partial(_verify_any, keys))

    def check(token: str) -> Claims:
        claims = known(token)
        if claims["exp"] <= time.time() - CLOCK_LEEWAY_S:
            raise InvalidToken("JWT expired")
        return claims

    return check


def _verify_any(keys: tuple[Key, ...], token: str) -> Claims:
    refused = InvalidToken("JWT refused: there is no key to check it with")
    for key in keys:
        try:
            return verify(key, token)
        except InvalidToken as error:
            refused = error
            if str(error) == "JWT expired":  # the signature was right
                break
    raise refused
