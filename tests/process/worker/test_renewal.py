"""The agent asks for its next token from half of a token's life on, and uses it from then on."""

import json
import time

from orchestrator.web.token_renewal import Renewals
from orchestrator.worker_tokens import mint
from tests.process.worker.conftest import PodMaker
from tests.process.worker.scripted import Orchestrator, wait_for
from worker import protocol
from worker.renewal import unseal

WORKER, JTI = "gpu-20260101_000000-0badf00d", "the-jti"
SECRET = "a secret for tests, of more than 32 bytes"
RENEWALS = Renewals((SECRET,), 900)
KEY = RENEWALS.key_for(WORKER, JTI)


def _old(life_s: float = 1) -> str:
    return mint(SECRET, WORKER, JTI, time.time(), life_s)


def test_the_next_token_is_used_and_kept(orchestrator: Orchestrator, make_pod: PodMaker) -> None:
    """By every thread, hidden in every text, and in the configuration for a start without one."""
    token, sealed = _old(), RENEWALS.sealed(WORKER, JTI, time.time())
    orchestrator.sealed = [sealed]
    opened = unseal(str(KEY), sealed[0])
    assert opened is not None
    orchestrator.tokens |= {token, opened["token"]}
    pod = make_pod()
    pod.start(token=token, renewal_key=KEY)
    wait_for(lambda: pod.events("token_renewed"))
    kept = json.loads((pod.run / "config.json").read_text())
    orchestrator.tokens = {kept["token"]}
    assert kept["token"] != token
    assert kept["renewal_key"] == KEY
    for function in (protocol.CLAIM, protocol.HEARTBEAT):
        count = orchestrator.count(function)
        orchestrator.until(lambda: orchestrator.count(function) > count + 1)  # noqa: B023
    assert orchestrator.bearers[-1] == kept["token"]
    assert kept["token"] not in pod.log("agent")
    assert orchestrator.count(protocol.RENEW) == 1


def test_an_answer_that_holds_no_token_changes_nothing(orchestrator: Orchestrator, make_pod: PodMaker) -> None:
    """Nothing, or what another key sealed: the agent goes on with its token, says why, and pauses."""
    token = _old()
    orchestrator.tokens |= {token}
    orchestrator.sealed = [RENEWALS.sealed(WORKER, "another jti", time.time())]
    pod = make_pod()
    pod.start(token=token, renewal_key=KEY)
    wait_for(lambda: pod.events("token_not_renewed"))
    count = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > count + 2)
    assert orchestrator.bearers[-1] == token
    assert orchestrator.count(protocol.RENEW) == 1  # the next try is after RETRY_S, not with the next heartbeat


def test_no_renewal_before_half_of_the_lifetime_or_without_a_key(
    orchestrator: Orchestrator, make_pod: PodMaker
) -> None:
    """A fresh token is left alone; so is that of a program of the user's own."""
    fresh, keyless = _old(3600), _old(1)
    orchestrator.tokens |= {fresh, keyless}
    make_pod(nonce="launch-1").start(token=fresh, renewal_key=KEY)
    make_pod(nonce="launch-2").start(token=keyless, renewal_key=None)
    began = time.monotonic()
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > 10 and time.monotonic() - began > 1)
    assert orchestrator.count(protocol.RENEW) == 0
