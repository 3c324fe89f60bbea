"""A real SSH server for tests: real shells and real files below one directory, and the ways it can go wrong."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from testbed.services.free_port import HOST, free_port

STOP_TIMEOUT_S = 60.0


@dataclass
class Sshd:
    """The SSH server of one pod. `commands` and `logins` record its requests."""

    home: Path
    trusted: asyncssh.SSHKey
    host_keys: list[asyncssh.SSHKey]
    env: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    handshakes: int = 0
    shell: str = "/bin/sh"
    cut_after: str | None = None  # a command with this text in it: the connection goes while it runs, once
    port: int = 0
    acceptor: asyncssh.SSHAcceptor | None = None
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    children: set[asyncio.subprocess.Process] = field(default_factory=set)

    @property
    def host_key(self) -> str:
        """The first host key as the port writes it."""
        return " ".join(self.host_keys[0].export_public_key().decode().split()[:2])

    async def start(self) -> None:
        """Listen, on the port of the last time if there was one."""
        self.acceptor = await asyncssh.listen(
            HOST,
            self.port or free_port(),  # which nobody else takes while it does not listen
            server_factory=lambda: _Login(self),
            server_host_keys=self.host_keys,
            process_factory=self._execute,
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(self.home)),
            encoding=None,
            gss_host=None,
        )
        self.port = self.acceptor.get_port()

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        acceptor, self.acceptor = self.acceptor, None
        if acceptor is not None:
            acceptor.close()
        self.cut()
        for child in tuple(self.children):
            _kill(child)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            if acceptor is not None:
                await acceptor.wait_closed()
            while self.children:  # their handlers see them end
                await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Abort every connection, as a network does."""
        for connection in tuple(self.connections):
            connection.abort()

    async def _execute(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or ""
        self.commands.append(command)
        child = await asyncio.create_subprocess_exec(
            self.shell,
            "-c",
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **self.env},
            start_new_session=True,
        )
        self.children.add(child)
        if self.acceptor is None:  # stopped while the command was started
            _kill(child)
        if self.cut_after and self.cut_after in command:
            self.cut_after = None
            self.cut()
            _kill(child)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.create_task(_feed(process, child.stdin))
        stdout, stderr = await asyncio.gather(child.stdout.read(), child.stderr.read())
        status = await child.wait()
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        self.children.discard(child)
        with contextlib.suppress(OSError):  # the caller has gone
            process.stdout.write(stdout)
            process.stderr.write(stderr)
            if status < 0:
                process.exit_with_signal("KILL")
            else:
                process.exit(status)


def _kill(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter) -> None:
    try:
        stdin.write(await process.stdin.read())
        await stdin.drain()
    except (OSError, asyncssh.Error):
        pass  # the caller has gone, or the command wants no more
    finally:
        stdin.close()


class _Login(asyncssh.SSHServer):
    def __init__(self, sshd: Sshd) -> None:
        self._sshd = sshd

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._sshd.handshakes += 1
        self._sshd.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sshd.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        self._sshd.logins.append(username)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and key.public_data == self._sshd.trusted.public_data


@asynccontextmanager
async def serving(home: Path, trusted: asyncssh.SSHKey, *kinds: str) -> AsyncIterator[Sshd]:
    """A server with one host key of each kind."""
    home.mkdir(parents=True, exist_ok=True)
    sshd = Sshd(home, trusted, [asyncssh.generate_private_key(kind) for kind in kinds or ("ssh-ed25519",)])
    await sshd.start()
    try:
        yield sshd
    finally:
        await sshd.stop()


def pem_of(key: asyncssh.SSHKey) -> str:
    """The private key as an operator's environment has it."""
    return key.export_private_key().decode()
