"""The worker's token: a JWT for the role `gpu_worker` that says one thing, who the worker is.

The signature and the expiry are checked here; whether the `jti` is still the worker's is the database's business, on
each call, so that revoking is one update of its row.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jwt

from orchestrator.core.model import ID_PATTERN

ALGORITHM = "HS256"
ISSUER = "orchestrator"
ROLE = "gpu_worker"
CLAIMS = ("sub", "role", "jti", "iat", "exp", "iss")  # a token without one of them is no token
MAX_TOKEN_CHARS = 4_096
MAX_KNOWN_TOKENS = 4_096
CLOCK_LEEWAY_S = 30  # replicas mint and verify on their own clocks

Claims = Mapping[str, Any]


class InvalidToken(Exception):
    """The token proves nothing; the text says why, without the token."""


def mint(secret: str, worker_id: str, jti: str, now: float, ttl_s: float) -> str:
    """A token for one worker that expires `ttl_s` seconds after `now`, in seconds since the epoch."""
    if not ID_PATTERN.fullmatch(worker_id) or not jti:
        raise ValueError(f"not a worker id and a jti: {worker_id!r}, {jti!r}")
    issued, expires = math.floor(now), math.ceil(now + ttl_s)
    claims = {"sub": worker_id, "role": ROLE, "jti": jti, "iat": issued, "exp": expires, "iss": ISSUER}
    return jwt.encode(claims, secret, algorithm=ALGORITHM)


def verify(secret: str, token: str) -> Claims:
    """The claims of a token that we signed and that has not expired. Raises InvalidToken."""
    if len(token) > MAX_TOKEN_CHARS:
        raise InvalidToken(f"the token is longer than {MAX_TOKEN_CHARS} characters")
    try:
        claims = jwt.decode(
            token,
            secret,
            algorithms=[ALGORITHM],
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
    if not ID_PATTERN.fullmatch(claims["sub"]) or not claims["jti"] or not isinstance(claims["jti"], str):
        raise InvalidToken("JWT refused: sub and jti do not name a worker and its token")
    return claims


def verifier(secret: str) -> Callable[[str], Claims]:
    """`verify` with the secret filled in, for `build_app`; a token seen before is only looked at for its expiry.

    An agent with a task calls every few seconds with the one token it has: a thousand of them make checking the same
    signatures a fifth of the gateway's work.
    """
    known = lru_cache(MAX_KNOWN_TOKENS)(partial(verify, secret))

    def check(token: str) -> Claims:
        claims = known(token)
        if claims["exp"] <= time.time() - CLOCK_LEEWAY_S:
            raise InvalidToken("JWT expired")
        return claims

    return check
