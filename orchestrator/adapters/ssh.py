"""Connections to pods over SSH with asyncssh.

One key, one pinned host key, no SSH agent or configuration of this machine.

The host key is compared before authentication, so another machine at a reused address learns nothing. ssh_session.py
has what an open connection can do.
"""

import asyncio

import asyncssh
import structlog

from orchestrator.adapters import ssh_flood
from orchestrator.adapters.ssh_session import RESTING_S, AsyncSshSession
from orchestrator.config.ssh_keys import BadKey, login_pair, private_key
from orchestrator.ports import AuthFailed, ConnectionRefused, HostKeyChanged, NoBanner, NotSsh, Unavailable

# After one more interval without an answer, the connection counts as lost: 24 s after a call began to wait, even if the
# peer froze earlier; 4 minutes if no call uses it.
KEEPALIVES_MISSED = 3
BANNER_BYTES = 4096  # RFC 4253 allows lines before the identification, and 255 bytes for the identification
# In this order, RSA is not requested first, and never with SHA-1. OpenSSH has offered at least one of these since 2013.
HOST_KEY_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
log = structlog.get_logger()
CIPHERS = "^aes128-gcm@openssh.com"  # before asyncssh's other defaults: half the CPU time of its ChaCha20


class AsyncSshShell:
    """A Shell with one key pair. A fault of the key pair is raised at its first use.

    If the public key is given too, both halves are compared before the first connection.
    """

    def __init__(self, private_key_pem: str, public_key: str | None = None, *, username: str = "root") -> None:
        self._username = username
        self._key: asyncssh.SSHKey | None = None
        self._problem = ("no private key is configured", "no_private_key")
        try:
            pair = login_pair(private_key_pem, public_key).private if public_key is not None else None
            self._key = (pair or private_key(private_key_pem)).key
        except BadKey as error:
            self._problem = (f"{error}; fix: {error.fix}", error.cause)

    async def banner(self, host: str, port: int, *, timeout_s: float) -> str:
        """Return the server's identification line. Raises ConnectionRefused, NoBanner, Unavailable or NotSsh."""
        late = Unavailable(f"no TCP connection with {host}:{port} within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, limit=BANNER_BYTES)
                late = NoBanner(f"{host}:{port} accepted the TCP connection and sent no banner within {timeout_s:g} s")
                try:
                    return await _identification(reader, f"{host}:{port}")
                finally:
                    writer.close()
        except TimeoutError:
            raise late from None
        except ConnectionRefusedError as error:
            raise ConnectionRefused(f"{host}:{port} refuses connections") from error
        except (OSError, ValueError) as error:  # ValueError: the host is not a valid address
            raise Unavailable(f"{host}:{port}: {error}") from error

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> "AsyncSshSession":
        """Connect and authenticate with our key.

        Raises HostKeyChanged, before anything is sent, if the key is not `pinned`.
        """
        if self._key is None:
            raise AuthFailed(*self._problem)
        where = f"{host}:{port}"
        client = _SshClient(pinned)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._open(host, port, client, self._key, user or self._username)
        except TimeoutError:
            raise Unavailable(f"no SSH session with {where} within {timeout_s:g} s") from None
        except ConnectionRefusedError as error:
            raise ConnectionRefused(f"{where} refuses connections") from error
        except asyncssh.HostKeyNotVerifiable as error:
            if pinned is None:
                raise Unavailable(f"{where}: {error}") from error
            why = f"{where} shows {client.shown or 'an unreadable key'}, pinned was {pinned}"
            raise HostKeyChanged(why) from error
        except asyncssh.PermissionDenied as error:
            raise AuthFailed(f"{where} refuses the key {self._key.get_fingerprint()}", "refused") from error
        except asyncssh.ProtocolNotSupported as error:
            raise NotSsh(f"{where}: {error}") from error
        except (asyncssh.Error, OSError, ValueError) as error:  # ValueError: the host is not a valid address
            raise Unavailable(f"{where}: {type(error).__name__}: {error}") from error
        return AsyncSshSession(connection, client.shown or "", self._key.get_fingerprint())

    async def _open(
        self, host: str, port: int, client: "_SshClient", key: asyncssh.SSHKey, user: str
    ) -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            host,
            port,
            client_factory=lambda: client,
            username=user,
            client_keys=[key],
            known_hosts=([], [], []),  # none, so that every key goes through _SshClient
            server_host_key_algs=client.algorithms,
            encryption_algs=CIPHERS,
            compression_algs=None,  # one packet of a hostile peer could expand to 256 MiB
            config=None,
            agent_path=None,
            preferred_auth=("publickey",),
            password_auth=False,
            kbdint_auth=False,
            gss_kex=False,
            gss_auth=False,
            keepalive_interval=RESTING_S,
            keepalive_count_max=KEEPALIVES_MISSED,
        )


class _SshClient(asyncssh.SSHClient):
    """Decides on the host key."""

    def __init__(self, pinned: str | None) -> None:
        self._pinned = pinned
        self._peer = ("?", 0)
        self.shown: str | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Prepare the connection before its first byte."""
        ssh_flood.bound(conn)
        self._peer = conn.get_extra_info("peername")

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the loss of the connection, also while no call waits."""
        if isinstance(exc, ssh_flood.Flood):
            log.warning("ssh_flooded", peer=f"{self._peer[0]}:{self._peer[1]}", message=f"{exc}; it was closed")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Put the pinned key's algorithms first: a server with several keys must show the one that we know."""
        kind = self._pinned.split()[0].replace("ssh-rsa", "rsa-sha2") if self._pinned else "ssh-ed25519"
        return tuple(sorted(HOST_KEY_ALGORITHMS, key=lambda name: not name.startswith(kind)))

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self.shown = " ".join(key.export_public_key().decode().split()[:2])
        return self._pinned is None or self.shown == " ".join(self._pinned.split()[:2])


async def _identification(reader: asyncio.StreamReader, where: str) -> str:
    """Return the first line that begins with "SSH-", if it comes within the limits."""
    received = b""
    while len(received) < BANNER_BYTES:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the reader's limit, which drops it
            raise NotSsh(f"{where} answers a line longer than {BANNER_BYTES} bytes") from None
        if line.startswith((b"SSH-2.0-", b"SSH-1.99-")):
            return line.decode("ascii", "replace").strip()
        if not line:
            break
        received += line
    if not received:
        # A forwarded port closes the connection while no server listens behind it.
        raise Unavailable(f"{where} closed the connection without a word")
    raise NotSsh(f"{where} answers {received[:60]!r}")
