"""A frozen peer is detected, a changed key is always refused, an unknown status is no success."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from orchestrator.adapters.ssh import KEEPALIVES_MISSED, AsyncSshShell
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.adapters.ssh_session import KEEPALIVE_S
from orchestrator.pods import agent_control
from orchestrator.ports import Completed, HostKeyChanged, Session, Unavailable
from tests.process.bringup.builders import a_worker
from tests.process.bringup.sshd import Sshd, pem_of, serving

KEY = asyncssh.generate_private_key("ssh-ed25519")
SOON_S = 30.0
NOTICED_S = 30.0  # the longest that a frozen peer may pass for a living one
# A server in a process of its own, which can be stopped like a machine that hangs.
SERVER = """
import asyncio, sys, asyncssh
class AcceptingServer(asyncssh.SSHServer):
    def begin_auth(self, username): return False
async def main():
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=AcceptingServer,
                                   process_factory=lambda process: process.stdin.read())
    print(server.get_port(), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
async def frozen_soon() -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """An SSH server's port, and its process."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    port = int(await asyncio.wait_for(process.stdout.readline(), 60))
    yield port, process
    process.kill()
    await process.wait()


@pytest.mark.parametrize("rests", [False, True], ids=["while somebody waits", "while the line rests"])
async def test_a_frozen_peer_is_noticed(
    frozen_soon: tuple[int, asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    """After SIGSTOP no byte comes and no connection breaks; keepalive ends it, and who waits hears Unavailable.

    Where nobody waited yet, it counts from the next use on. The bar is 30 s; here the interval is a tenth of the real
    one, so that the same count of misses takes a tenth. At rest the interval is the real one.
    """
    assert KEEPALIVE_S * (KEEPALIVES_MISSED + 1) <= 0.9 * NOTICED_S
    monkeypatch.setattr("orchestrator.adapters.ssh_session.KEEPALIVE_S", KEEPALIVE_S / 10)
    port, process = frozen_soon
    session = await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", port, pinned=None, timeout_s=SOON_S)
    if rests:
        with pytest.raises(Unavailable, match="no answer"):  # the line is used, and rests again
            await session.run("anything", timeout_s=0.1)
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(KEEPALIVE_S / 10)
        assert not session.closed
    waiting = asyncio.create_task(session.run("anything", timeout_s=2 * NOTICED_S))
    await asyncio.sleep(0)
    os.kill(process.pid, signal.SIGSTOP)
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(outcome, Unavailable) or (isinstance(outcome, Completed) and outcome.exit_status is None)
    assert session.closed  # by the keepalive: the command's own limit would not close it
    os.kill(process.pid, signal.SIGCONT)


class NoStatus:
    """A session whose command's end nobody saw."""

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        """Output that looks like success, and no exit status."""
        return Completed(None, b'{"stopped": true}', b"")


async def test_no_exit_status_is_neither_success_nor_failure() -> None:
    """The output does not matter: the caller must check again."""
    session: Session = NoStatus()  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="unknown"):
        await agent_control.run(session, "true", timeout_s=1)
    with pytest.raises(Unavailable, match="unknown"):
        await agent_control.stop(session, python="python3", agent_sha="a" * 64, nonce="n", grace_s=1)


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[Sshd]:
    async with serving(tmp_path / "home", KEY) as server:
        yield server


async def test_an_outsider_on_the_address_of_a_promoted_worker_learns_nothing(sshd: Sshd) -> None:
    """Shipping and last looks go over the same lines: the row's pin holds there too, before any login."""
    outsider = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    ssh_pool = SshPool(AsyncSshShell(pem_of(KEY)))
    worker = a_worker(ssh_host="127.0.0.1", ssh_port=sshd.port, host_key=" ".join(outsider.split()[:2]))
    for _ in range(3):
        with pytest.raises(HostKeyChanged):
            async with ssh_pool.session(worker, timeout_s=SOON_S):
                pass
    assert (sshd.logins, sshd.commands) == ([], [])
    await ssh_pool.close()
