"""The worker's token."""

import time

import jwt
import pytest

from orchestrator.worker_tokens import CLOCK_LEEWAY_S, InvalidToken, mint, verifier, verify

SECRET = "a secret for tests, of more than 32 bytes"
WORKER = "gpu-20261120_223104-18865e9b"
GOOD = {"sub": WORKER, "role": "gpu_worker", "jti": "j", "iss": "orchestrator"}


def _signed(secret: str = SECRET, algorithm: str = "HS256", **changes: object) -> str:
    now = int(time.time())
    claims = {**GOOD, "iat": now, "exp": now + 60, **changes}
    return jwt.encode({k: v for k, v in claims.items() if v is not None}, secret, algorithm=algorithm)


def test_a_minted_token_verifies() -> None:
    """What we sign says who the worker is and until when."""
    claims = verify(SECRET, mint(SECRET, WORKER, "j-1", time.time(), 60))
    assert (claims["sub"], claims["role"], claims["jti"]) == (WORKER, "gpu_worker", "j-1")
    assert claims["exp"] - claims["iat"] in {60, 61}


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        "ü.ü.ü",
        "." * 5_000,
        _signed(secret="another secret, also of more than 32 bytes"),
        _signed(secret=SECRET * 2, algorithm="HS512"),
        jwt.encode({**GOOD, "iat": 1, "exp": 9e9}, "", algorithm="none"),
        _signed(exp=int(time.time()) - CLOCK_LEEWAY_S - 1),
        _signed(exp=None),
        _signed(sub=None),
        _signed(jti=None),
        _signed(role=None),
        _signed(iss=None),
        _signed(iss="somebody"),
        _signed(role="service_role"),
        _signed(role="authenticated"),
        _signed(sub=""),
        _signed(sub="../../etc"),
        _signed(sub="a" * 64),
        _signed(jti=""),
        _signed(exp=str(int(time.time()) + 60)),
        _signed(exp=True),
        _signed(exp=[9e9]),
        _signed(exp=float("nan")),
        _signed(exp=1e400),
        _signed(iat="1"),
        _signed(sub=5),
        _signed(sub=["gpu-1"]),
        _signed(nbf=int(time.time()) + 86_400),
        _signed(iat=int(time.time()) + 86_400),
    ],
)
def test_any_other_token_is_refused(token: str) -> None:
    """Forged, unsigned, expired, early, incomplete, or for another role or issuer."""
    with pytest.raises(InvalidToken) as caught:
        verifier(SECRET)(token)
    assert token == "" or token not in str(caught.value)


def test_an_expired_token_is_distinguished() -> None:
    """The agent and the operator learn that it is a matter of time."""
    with pytest.raises(InvalidToken, match="expired"):
        verify(SECRET, mint(SECRET, WORKER, "j", time.time() - 3_600, 60))


def test_a_token_that_was_good_once_still_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """That its signature is not checked again keeps nobody in."""
    check, token, now = verifier(SECRET), _signed(), time.time()
    assert check(token)["sub"] == WORKER
    monkeypatch.setattr(time, "time", lambda: now + 60 + CLOCK_LEEWAY_S)
    with pytest.raises(InvalidToken, match="expired"):
        check(token)


def test_no_token_is_minted_for_something_that_is_no_worker() -> None:
    """Ids are validated at every entry."""
    with pytest.raises(ValueError, match="not a worker id"):
        mint(SECRET, "a b", "j", time.time(), 60)
