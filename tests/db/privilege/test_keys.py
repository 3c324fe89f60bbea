"""Tokens at both endpoints: two kinds of key, one update that revokes, and an end with the worker's."""

import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.core.states import State
from orchestrator.worker_tokens import InvalidToken, Key, SigningKey, mint, verifier
from tests.db.privilege.rig import ENDPOINTS, SIGNING_KEY, Endpoints, public_jwk
from tests.process.web.builders import SECRET
from worker import protocol

BEAT: dict[str, Any] = {"p_tasks": [], "p_health": None, "p_logs": None}
KEYS: list[Key] = [SECRET, SIGNING_KEY]
PEM = SIGNING_KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("key", KEYS, ids=["HS256", "ES256"])
async def test_a_token_of_either_key_opens_until_it_is_revoked(endpoints: Endpoints, endpoint: str, key: Key) -> None:
    """One update of the row, and the next call is refused; so is every call after the worker's end."""
    worker = endpoints.through(endpoint, await endpoints.gateway.worker())
    token = mint(key, worker.id, worker.jti, time.time())
    assert (await worker.call(protocol.HEARTBEAT, token=token, **BEAT)).json()["outcome"] == "ok"
    await endpoints.gateway.move(worker, (State.ACTIVE,), State.ACTIVE, token_jti="another")
    refused = await worker.call(protocol.HEARTBEAT, token=token, **BEAT)
    assert (refused.status_code, refused.json()["code"]) == (400, protocol.BAD_TOKEN)

    await endpoints.gateway.move(worker, (State.ACTIVE,), State.ACTIVE, token_jti=worker.jti)
    assert (await worker.call(protocol.HEARTBEAT, token=token, **BEAT)).status_code == 200
    await endpoints.gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    assert (await worker.call(protocol.HEARTBEAT, token=token, **BEAT)).json()["wanted"] == "drain"
    await endpoints.gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    refused = await worker.call(protocol.HEARTBEAT, token=token, **BEAT)
    assert (refused.status_code, refused.json()["code"]) == (400, protocol.UNKNOWN_WORKER)


def test_a_signing_key_is_read_as_jwk_and_as_pem() -> None:
    """With its kid, or without; in one line with escaped line ends too."""
    private = {**public_jwk(SIGNING_KEY), "d": _d(SIGNING_KEY)}
    texts = {json.dumps(private): "imported-key", PEM: None, PEM.replace("\n", "\\n"): None}
    for text, kid in texts.items():
        key = SigningKey.parse(text)
        assert key.kid == kid
        assert verifier(SIGNING_KEY)(mint(key, "gpu-1", "j", time.time()))["sub"] == "gpu-1"


@pytest.mark.parametrize("text", ["", "x", "{}", '{"kty":"EC"}', "-----BEGIN PRIVATE KEY-----"])
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    """The text of the error never holds the value."""
    with pytest.raises(ValueError, match="private") as caught:
        SigningKey.parse(text)
    assert len(text) < 3 or text not in str(caught.value)


def test_a_key_of_another_kind_is_refused() -> None:
    """RSA, another curve, and a public half."""
    made: list[Any] = [rsa.generate_private_key(65_537, 2_048), ec.generate_private_key(ec.SECP384R1())]
    texts = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode() for key in made]
    for text in (*texts, json.dumps(public_jwk(SIGNING_KEY))):
        with pytest.raises(ValueError, match="private"):
            SigningKey.parse(text)


def test_one_key_can_follow_another() -> None:
    """Pods with tokens of both are let in while both are known, and those of the first no more when it is gone."""
    old, new = mint(SECRET, "gpu-1", "j", time.time()), mint(SIGNING_KEY, "gpu-1", "j", time.time())
    both, only = verifier(SIGNING_KEY, SECRET), verifier(SIGNING_KEY)
    assert both(old)["sub"] == both(new)["sub"] == only(new)["sub"] == "gpu-1"
    with pytest.raises(InvalidToken):
        only(old)


def _d(key: SigningKey) -> str:
    return str(jwt.algorithms.ECAlgorithm.to_jwk(key.private, as_dict=True)["d"])
