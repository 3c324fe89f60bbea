"""Tokens live for hours; the gateway gives each worker the next one in time."""

import time
from typing import Any

import pytest

from orchestrator.core.states import State
from orchestrator.web.token_renewal import Renewals
from orchestrator.worker_tokens import CLOCK_LEEWAY_S, LIFE_S, InvalidToken, SigningKey, mint, verifier, verify
from tests.db.privilege.rig import SIGNING_KEY
from tests.process.web.builders import RENEWALS, SECRET, ServerUnderTest
from worker import protocol
from worker.renewal import lifetime_s, unseal

BEAT: dict[str, Any] = {"p_tasks": [], "p_health": {}, "p_logs": {}}
HOUR_S = 3600.0


@pytest.mark.parametrize(("deadman_s", "life_s"), [(900, 4 * HOUR_S), (3 * HOUR_S, 6 * HOUR_S)])
def test_a_token_is_valid_for_four_hours_or_twice_the_dead_mans_time(deadman_s: float, life_s: float) -> None:
    """A worker that is cut off ends itself before its token ends."""
    assert lifetime_s(Renewals((SECRET,), deadman_s).token("gpu-1", "j", 1e9)) == life_s


def test_a_program_of_the_users_own_keeps_its_token() -> None:
    """It may have read the token once: nothing is renewed, and the row revokes."""
    own = Renewals((SECRET,), 900, own_program=True)
    assert own.key_for("gpu-1", "j") is None
    assert (lifetime_s(own.token("gpu-1", "j", 1e9)) or 0) > 300 * 24 * HOUR_S


async def test_the_gateway_answers_a_renewal_at_once(gateway: ServerUnderTest) -> None:
    """The same jti, a later end; the earlier token stays valid, so a lost answer locks nobody out."""
    worker = await gateway.worker()
    before = worker.token
    said = (await worker.call(protocol.RENEW, token=before)).json()
    opened = unseal(RENEWALS.key_for(worker.id, worker.jti) or "", said["sealed"][0])
    assert opened is not None
    claims = verify(SECRET, opened["token"])
    assert (claims["sub"], claims["jti"]) == (worker.id, worker.jti)
    assert claims["exp"] > time.time() + LIFE_S - 60
    assert opened["renewal_key"] == RENEWALS.key_for(worker.id, worker.jti)
    for token in (before, opened["token"]):
        assert (await worker.call(protocol.HEARTBEAT, token=token, **BEAT)).status_code == 200


async def test_the_token_of_a_worker_that_has_ended_or_was_revoked_is_not_renewed(gateway: ServerUnderTest) -> None:
    """The database says so before a token is made; an earlier launch is fenced."""
    worker = await gateway.worker()
    reply = await worker.call(protocol.RENEW, p_nonce="an earlier launch")
    assert reply.json() == {"outcome": "fenced"}
    await gateway.move(worker, (State.ACTIVE,), State.ACTIVE, token_jti="another")
    reply = await worker.call(protocol.RENEW)
    assert (reply.status_code // 100, reply.json()["code"]) == (4, protocol.BAD_TOKEN)


async def test_an_expired_token_renews_nothing(gateway: ServerUnderTest) -> None:
    """It ends after the leeway for clocks, not before."""
    worker = await gateway.worker()
    late = mint(SECRET, worker.id, worker.jti, time.time() - LIFE_S - CLOCK_LEEWAY_S - 2)
    reply = await worker.call(protocol.RENEW, token=late)
    assert (reply.status_code, reply.json()["code"]) == (401, "PGRST301")
    for skew_s in (CLOCK_LEEWAY_S - 5, -CLOCK_LEEWAY_S - LIFE_S + 5):  # minted by a replica whose clock is off
        token = mint(SECRET, worker.id, worker.jti, time.time() + skew_s)
        assert (await worker.call(protocol.RENEW, token=token)).status_code == 200


@pytest.mark.parametrize("changed", ["wrong key", "changed bytes", "no text", "no key"])
def test_a_sealed_token_opens_only_with_its_key(changed: str) -> None:
    """And never partly."""
    key, sealed = RENEWALS.key_for("gpu-1", "j") or "", RENEWALS.sealed("gpu-1", "j", time.time())[0]
    flipped = sealed[:40] + ("A" if sealed[40] != "A" else "B") + sealed[41:]
    tries = {
        "wrong key": (RENEWALS.key_for("gpu-1", "i") or "", sealed),
        "changed bytes": (key, flipped),
        "no text": (key, "x"),
        "no key": ("zz", sealed),
    }
    assert unseal(*tries[changed]) is None
    assert unseal(key, sealed) is not None
    assert sealed != RENEWALS.sealed("gpu-1", "j", time.time())[0]


@pytest.mark.parametrize("new", ["another secret, also of more than 32 bytes", SIGNING_KEY])
def test_a_renewal_carries_a_worker_over_to_a_new_secret(new: str | SigningKey) -> None:
    """Its key is of the former secret; what it gets is of the new one, and so is its next key."""
    before, after = Renewals((SECRET,), 900), Renewals((new, SECRET), 900)
    key = before.key_for("gpu-1", "j") or ""
    opened = [found for text in after.sealed("gpu-1", "j", time.time()) if (found := unseal(key, text))]
    assert len(opened) == 1
    assert verifier(new)(opened[0]["token"])["jti"] == "j"
    assert opened[0]["renewal_key"] == Renewals((new,), 900).key_for("gpu-1", "j")
    with pytest.raises(InvalidToken):
        verifier(SECRET)(opened[0]["token"])


def test_a_second_rotation_carries_a_worker_over_again() -> None:
    """Each renewal gives the key for the next one: the worker needs no key of the secret before the last."""
    third = "a third secret, also of more than 32 bytes"
    key = Renewals((SECRET,), 900).key_for("gpu-1", "j") or ""
    for new, before in ((SIGNING_KEY, SECRET), (third, SIGNING_KEY)):
        for _ in range(2):  # a worker renews its token more than once between two rotations
            sealed = Renewals((new, before), 900).sealed("gpu-1", "j", time.time())
            (opened,) = [found for text in sealed if (found := unseal(key, text))]
            key = opened["renewal_key"]
            assert verifier(new)(opened["token"])["jti"] == "j"
    assert key == Renewals((third,), 900).key_for("gpu-1", "j")
