"""A machine in the middle: it accepts any login, shows its own host key, and passes each command to the real pod."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncssh


@dataclass
class Relay:
    """What passed through; `own_key` is what it shows."""

    pod_port: int
    key: asyncssh.SSHKey  # the pod lets the relay in with it
    own_key: asyncssh.SSHKey = field(default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519"))
    passed: list[str] = field(default_factory=list)  # commands
    sftp: int = 0  # file sessions that were asked for
    port: int = 0

    async def _pass_on(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.subsystem:
            self.sftp += 1
            process.exit(1)
            return
        self.passed.append(process.command or "")
        stdin = await process.stdin.read()
        async with asyncssh.connect(
            "127.0.0.1", self.pod_port, username="root", client_keys=[self.key], known_hosts=None, config=None
        ) as pod:
            done = await pod.run(process.command or "", input=stdin, encoding=None)
        with contextlib.suppress(OSError):
            process.stdout.write(done.stdout if isinstance(done.stdout, bytes) else b"")
            process.exit(done.exit_status or 0)


class _LetIn(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True


@asynccontextmanager
async def relaying(pod_port: int, key: asyncssh.SSHKey) -> AsyncIterator[Relay]:
    """A relay before the pod on this port."""
    relay = Relay(pod_port, key)
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_LetIn,
        server_host_keys=[relay.own_key],
        process_factory=relay._pass_on,
        encoding=None,
        gss_host=None,
    )
    relay.port = acceptor.get_port()
    try:
        yield relay
    finally:
        acceptor.close()
        async with asyncio.timeout(60):
            await acceptor.wait_closed()
