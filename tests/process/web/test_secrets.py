"""Secrets that could be guessed, addresses that could be read, and a secret that follows another."""

import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.config.environment import load
from orchestrator.config.errors import SettingsError
from orchestrator.config.setting import settings_of
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require
from orchestrator.config.weak_secrets import is_readable_on_the_way, weakness
from orchestrator.service.tokens import renewals_of
from orchestrator.worker_tokens import InvalidToken, mint, verifier
from worker.renewal import unseal

GOOD = "8f14e45fceea167a5a36dedd4bea2543" * 2
GIVEN = {
    "worker_jwt_secret": "5f14e45fceea167a5a36dedd4bea2543-signs",
    "worker_api_url": "https://orchestrator.example.com",
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test gives counts."""
    for one in settings_of(Settings):
        for name in one.variables:
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "secret",
    [
        *("a" * 64, "abcd" * 16, "Qx7", "0123456701234567012345670123456701234567", GOOD),
        *("changeme-changeme-please-0123456789abcdef", "super-secret-jwt-token-with-at-least-32-characters-long"),
        *("12345678901234567890123456789012", "key-$(openssl rand -hex 32)-of-production"),
    ],
)
def test_a_weak_secret_stops_the_start(secret: str) -> None:
    """Repeated characters, placeholders, too few bytes; the secret itself is not shown."""
    with pytest.raises(SettingsError) as refused:
        require(Settings.model_validate(GIVEN | {"worker_jwt_secret": secret}), "gateway")
    assert [problem.what for problem in refused.value.problems] == ["WORKER_JWT_SECRET is too weak"]
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "secret", ["your-jwt-secret-of-more-than-32-characters", "<the project's JWT secret, 32 bytes>"]
)
def test_a_placeholder_stops_the_start(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """Of any variable, before anything else is looked at."""
    monkeypatch.setenv("WORKER_JWT_SECRET", secret)
    with pytest.raises(SettingsError, match=r"WORKER_JWT_SECRET.*placeholder") as refused:
        load()
    assert secret not in str(refused.value)


@pytest.mark.parametrize("name", ["metrics_token", "worker_jwt_secret_previous"])
def test_a_token_that_opens_something_is_as_good_as_a_secret(name: str) -> None:
    """Fifteen bytes are too few, and so is a placeholder."""
    for weak in ("fifteen-bytes-1", "changeme" * 5, "$(openssl-rand-hex-32)", "`uuidgen`-`uuidgen`"):
        with pytest.raises(SettingsError, match=name.upper()):
            require(Settings.model_validate(GIVEN | {name: weak}), "gateway")
    require(Settings.model_validate(GIVEN | {name: "5e884898da28047151d0e56f8dc62927"}), "gateway")


@pytest.mark.parametrize("random", ["5e884898da28047151d0e56f8dc62927", "k3J9-pQ_x0Zr8VtLmN2s5Yw7aBcDeFgH"])
def test_a_random_secret_is_good(random: str) -> None:
    """Hexadecimal or of any letters."""
    assert weakness(random, 32) is None


@pytest.mark.parametrize("name", ["worker_api_url", "supabase_url", "s3_endpoint_url", "runpod_api_base_url"])
def test_an_unencrypted_address_stops_the_start(name: str) -> None:
    """Outside of this machine."""
    rest = {"supabase_publishable_key": "sb_publishable_x", "database_url": "postgresql://db/x"}
    with pytest.raises(SettingsError, match=f"{name.upper()} is not encrypted"):
        require(Settings.model_validate(GIVEN | rest | {name: "http://10.1.2.3:9000"}), "gateway")
    require(Settings.model_validate(GIVEN | rest | {name: "http://127.0.0.1:9000"}), "gateway")


def test_names_that_look_like_loopback_are_not_taken_for_it() -> None:
    """An address is compared as an address."""
    within = ("http://localhost:1/x", "http://127.8.0.1", "http://[::1]:80", "https://anything.example")
    beyond = (
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://[::2]",
        "http://u@10.0.0.1",
        "http://",
    )
    assert not any(map(is_readable_on_the_way, within))
    assert all(map(is_readable_on_the_way, beyond))


def test_a_rotation_loses_no_worker() -> None:
    """Tokens of the previous secret are accepted, new ones are signed with the new one; afterwards only those count."""
    old, new = "5e884898da28047151d0e56f8dc62927", "0cc175b9c0f1b6a831c399e269772661"
    rotating = Settings.model_validate({"worker_jwt_secret": new, "worker_jwt_secret_previous": old})
    check = verifier(*rotating.token_keys())
    before, after = (mint(key, "gpu-1", "j", time.time(), 60) for key in (old, rotating.token_keys()[0]))
    assert check(before)["sub"] == check(after)["sub"] == "gpu-1"
    done = verifier(*Settings.model_validate({"worker_jwt_secret": new}).token_keys())
    assert done(after)["sub"] == "gpu-1"
    with pytest.raises(InvalidToken):
        done(before)


SECRET_BEFORE = "5e884898da28047151d0e56f8dc62927"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"worker_jwt_signing_key": "one"},
            {"worker_jwt_signing_key": "two", "worker_jwt_signing_key_previous": "one"},
        ),
        (
            {"worker_jwt_secret": SECRET_BEFORE},
            {"worker_jwt_signing_key": "one", "worker_jwt_secret_previous": SECRET_BEFORE},
        ),
        (
            {"worker_jwt_signing_key": "one"},
            {"worker_jwt_secret": SECRET_BEFORE, "worker_jwt_signing_key_previous": "one"},
        ),
    ],
    ids=["signing key to signing key", "secret to signing key", "signing key to secret"],
)
def test_a_rotation_of_signing_keys_loses_no_worker(before: dict[str, str], after: dict[str, str]) -> None:
    """A token of the key before is verified, and its worker's next token is sealed for it too."""
    made = {name: _signing_key() for name in ("one", "two")}
    first, then = (
        Settings.model_validate({name: made.get(value, value) for name, value in given.items()})
        for given in (before, after)
    )
    old, new = first.token_keys()[0], then.token_keys()[0]
    check = verifier(*then.token_keys())
    assert check(mint(old, "gpu-1", "j", time.time(), 60))["sub"] == "gpu-1"
    sealed = renewals_of(then).sealed("gpu-1", "j", time.time())
    opened = [unseal(renewals_of(first).key_for("gpu-1", "j") or "", one) for one in sealed]
    (found,) = [one for one in opened if one]
    assert verifier(new)(found["token"])["sub"] == "gpu-1"


def _signing_key() -> str:
    key = generate_private_key(SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
