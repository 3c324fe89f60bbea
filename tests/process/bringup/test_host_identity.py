"""Who answers at a new pod's address proves that its host key is the pod's own, before anything of ours is sent."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import asyncssh
import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.states import READY, Stage
from orchestrator.pods import host_identity
from testbed.runpod.fake_tools import write_host_keys, write_programs
from tests.process.bringup.relay import relaying
from tests.process.bringup.rig import DEADLINE_S, Rig, nonce_for
from tests.process.bringup.test_failures import _move_to, fails

OWN, OTHER = (
    " ".join(asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2]) for _ in range(2)
)
NONCE = nonce_for("gpu-0123456789ab")
SHELLS = [name for name in ("sh", "bash", "dash", "busybox") if shutil.which(name)]


def answer_line(key: str, mac: str) -> bytes:
    return f"host-key {key} {mac}\n".encode()


async def test_a_relay_before_the_pod_is_refused_and_named(rig: Rig) -> None:
    """It may pass on each command and each answer: the pod vouches for its own key, and not for the relay's."""
    worker, sshd = await rig.worker()
    async with relaying(sshd.port, rig.key) as relay:
        _move_to(rig, worker, relay.port)
        attempt = await fails(rig, worker, code="HOST_KEY_RELAYED", stage=Stage.IDENTITY)
        shown = " ".join(relay.own_key.export_public_key().decode().split()[:2])
        assert shown in attempt["evidence"]["error"]
        assert sshd.host_key in attempt["evidence"]["error"]
        assert (rig.tokens, relay.sftp, list(sshd.home.iterdir())) == ([], 0, [])


@pytest.mark.parametrize("nonce", [None, "", nonce_for("gpu-another")], ids=["none", "empty", "another pod's"])
async def test_a_machine_without_the_nonce_gets_no_code_and_no_token(rig: Rig, nonce: str | None) -> None:
    """It accepts our key, runs our commands and calls itself by the pod's id; that is no proof."""
    worker, sshd = await rig.worker()
    sshd.env.pop(host_identity.VARIABLE)
    if nonce is not None:
        sshd.env[host_identity.VARIABLE] = nonce
    attempt = await fails(rig, worker, code="HOST_KEY_UNPROVEN", stage=Stage.IDENTITY)
    assert nonce_for(worker.id) not in str(attempt)
    assert (rig.tokens, list(sshd.home.iterdir())) == ([], [])


async def test_the_shown_key_of_a_pod_without_a_nonce_is_accepted(rig: Rig) -> None:
    """Its row says that no nonce was sent with the create call, and its key is pinned as before."""
    worker, sshd = await rig.worker()
    sshd.env.pop(host_identity.VARIABLE)
    worker = await rig.move(worker.id, fields={"metadata": {"bootstrap": False}})
    await asyncio.wait_for(rig.bring_up().bring_up(rig.term, worker), DEADLINE_S)
    row = await rig.row(worker.id)
    assert (row["status"] in READY, row["host_key"]) == (True, sshd.host_key)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_computes_the_same_proof_as_we_do(shell: str, tmp_path: Path) -> None:
    """With nothing but POSIX tools; nonces differ, so that each byte value comes by in the inner digest."""
    write_programs(tmp_path / "bin", "python3")
    write_host_keys(tmp_path, f"{OWN} root@pod", OTHER)
    program = [shell, "sh", "-s"] if shell == "busybox" else [shell, "-s"]
    for number in range(16):
        nonce = nonce_for(f"gpu-{number}")
        env = {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "EMULATED_POD": str(tmp_path),
            host_identity.VARIABLE: nonce,
        }
        done = subprocess.run(
            program, input=host_identity.SCRIPT.encode(), env=env, capture_output=True, timeout=DEADLINE_S, check=True
        )
        assert done.stdout == answer_line(OWN, host_identity.proof(nonce, OWN)) + answer_line(
            OTHER, host_identity.proof(nonce, OTHER)
        )


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (answer_line(OWN, host_identity.proof(NONCE, OWN)), None),
        (
            answer_line(OTHER, host_identity.proof(NONCE, OTHER)) + answer_line(OWN, host_identity.proof(NONCE, OWN)),
            None,
        ),
        (answer_line(OTHER, host_identity.proof(NONCE, OTHER)), FailureCode.HOST_KEY_RELAYED),
        (answer_line(OWN, host_identity.proof(NONCE, OTHER)), FailureCode.HOST_KEY_UNPROVEN),
        (answer_line(OWN, "ö" * 64), FailureCode.HOST_KEY_UNPROVEN),
        (b"no-nonce\n", FailureCode.HOST_KEY_UNPROVEN),
        (b"", FailureCode.HOST_KEY_UNPROVEN),
        (b"\xff\x00 host-key" * 4096, FailureCode.HOST_KEY_UNPROVEN),
        (
            answer_line(OTHER, "0") * 4096 + answer_line(OWN, host_identity.proof(NONCE, OWN)),
            FailureCode.HOST_KEY_UNPROVEN,
        ),
    ],
)
def test_only_the_pods_own_proof_of_the_shown_key_counts(answer: bytes, code: FailureCode | None) -> None:
    """Whatever else it says; an answer without end is not read to its end."""
    refused = host_identity.refusal(answer, NONCE, OWN)
    assert (refused[0] if refused else None) is code


def test_a_nonce_is_known_to_each_replica_and_differs_between_workers_and_keys() -> None:
    """It is derived: nothing has to be stored, and nothing of the private key can be read from it."""
    again, other = host_identity.nonces(b"a private key"), host_identity.nonces(b"another private key")
    assert again("gpu-1") == nonce_for("gpu-1")
    assert len({nonce_for("gpu-1"), nonce_for("gpu-2"), other("gpu-1")}) == 3


async def test_a_tool_that_was_killed_during_the_proof_is_asked_once_more(rig: Rig) -> None:
    """Out of memory for a moment is no forgery."""
    worker, sshd = await rig.worker()
    rig.install(sshd, "sha256sum", 'if mkdir once 2>/dev/null; then kill -9 $$; else exec /usr/bin/sha256sum "$@"; fi')
    await asyncio.wait_for(rig.bring_up().bring_up(rig.term, worker), DEADLINE_S)
    assert (await rig.row(worker.id))["status"] in READY
