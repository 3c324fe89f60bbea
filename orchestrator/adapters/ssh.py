"""Pods over SSH, by asyncssh: one key, one pinned host key, nothing from this machine's agent or configuration.

The host key is compared before the first byte of authentication, so that a stranger on a reused address learns nothing
but our public key's absence. Whatever leaves the answer open (a broken connection, a deadline) is Unavailable or an
exit status of None, never a guess.
"""

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import cast

import asyncssh
import structlog

from orchestrator.adapters import ssh_flood
from orchestrator.config.ssh_keys import BadKey, login_pair, private_key
from orchestrator.ports import AuthFailed, Completed, HostKeyChanged, NotSsh, Refused, Silent, Unavailable

KEEPALIVE_S = 6.0  # while somebody waits for an answer …
RESTING_S = 60.0  # … and while nobody does: a thousand lines at 6 s would be 170 answers a second
# And one more interval for the last answer, then the connection counts as gone: 24 s after somebody began to wait, also
# where the peer froze while the line was at rest; 4 minutes where nobody uses it.
KEEPALIVES_MISSED = 3
BANNER_BYTES = 4096  # RFC 4253 allows lines before the identification, and 255 bytes for it
OUTPUT_BYTES = 4 * 1024 * 1024  # of one command; ours answer with a line or two
OUTPUT_READS = 4096  # of one command; a peer that sends a byte in each packet is given up long before OUTPUT_BYTES
BLOCK_BYTES = 64 * 1024
SFTP_BLOCK_BYTES = 32 * 1024  # every SFTP server answers so much to one request
SFTP_BLOCKS = 16  # asked for side by side
SHORT_READS = 64  # answers of one read that hold less than was asked for
DIRECTORY_ENTRIES = 1024  # of one directory; ours hold a handful
NAME_BYTES = 255  # of one entry, as in every file system of Linux; longer ones are left out
# Named so that RSA is not asked for first and its SHA-1 form never; OpenSSH offers at least one of these since 2013.
HOST_KEY_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
log = structlog.get_logger()
CIPHERS = "^aes128-gcm@openssh.com"  # first, before asyncssh's other defaults: half the CPU of its ChaCha20


class AsyncSshShell:
    """Shell with one key pair; what is wrong with it is said when it is first needed.

    Where the public key is given too, the two are compared before anybody is called.
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
        """The server's identification line; Refused, Silent, Unavailable or NotSsh."""
        late = Unavailable(f"no TCP connection with {host}:{port} within {timeout_s:g} s")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, limit=BANNER_BYTES)
                late = Silent(f"{host}:{port} accepted the TCP connection and sent no banner within {timeout_s:g} s")
                try:
                    return await _identification(reader, f"{host}:{port}")
                finally:
                    writer.close()
        except TimeoutError:
            raise late from None
        except ConnectionRefusedError as error:
            raise Refused(f"{host}:{port} refuses connections") from error
        except (OSError, ValueError) as error:  # ValueError: the host can be no address
            raise Unavailable(f"{host}:{port}: {error}") from error

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> "AsyncSshSession":
        """Authenticate with our key. HostKeyChanged before anything is sent if the key is not `pinned`."""
        if self._key is None:
            raise AuthFailed(*self._problem)
        where = f"{host}:{port}"
        client = _Client(pinned)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._open(host, port, client, self._key, user or self._username)
        except TimeoutError:
            raise Unavailable(f"no SSH session with {where} within {timeout_s:g} s") from None
        except ConnectionRefusedError as error:
            raise Refused(f"{where} refuses connections") from error
        except asyncssh.HostKeyNotVerifiable as error:
            if pinned is None:
                raise Unavailable(f"{where}: {error}") from error
            said = f"{where} shows {client.shown or 'an unreadable key'}, pinned was {pinned}"
            raise HostKeyChanged(said) from error
        except asyncssh.PermissionDenied as error:
            raise AuthFailed(f"{where} refuses the key {self._key.get_fingerprint()}", "refused") from error
        except asyncssh.ProtocolNotSupported as error:
            raise NotSsh(f"{where}: {error}") from error
        except (asyncssh.Error, OSError, ValueError) as error:  # ValueError: the host can be no address
            raise Unavailable(f"{where}: {type(error).__name__}: {error}") from error
        return AsyncSshSession(connection, client.shown or "", self._key.get_fingerprint())

    async def _open(
        self, host: str, port: int, client: "_Client", key: asyncssh.SSHKey, user: str
    ) -> asyncssh.SSHClientConnection:
        return await asyncssh.connect(
            host,
            port,
            client_factory=lambda: client,
            username=user,
            client_keys=[key],
            known_hosts=([], [], []),  # none: every key goes through _Client
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


class AsyncSshSession:
    """One connection; commands run side by side on it, files go through one SFTP session that is kept."""

    def __init__(self, connection: asyncssh.SSHClientConnection, host_key: str, fingerprint: str) -> None:
        self._connection = connection
        self._host_key = host_key
        self._fingerprint = fingerprint
        self._sftp: asyncssh.SFTPClient | None = None
        self._opening_sftp = asyncio.Lock()
        self._made: set[str] = set()  # directories known to be there
        self._waiting = 0

    @property
    def host_key(self) -> str:
        """The host key presented, in OpenSSH's one-line form without a comment."""
        return self._host_key

    @property
    def evidence(self) -> Mapping[str, str]:
        """Both socket ends and the fingerprint of the key used."""
        ours, theirs = (self._connection.get_extra_info(name, ("?", 0)) for name in ("sockname", "peername"))
        return {
            "local": f"{ours[0]}:{ours[1]}",
            "remote": f"{theirs[0]}:{theirs[1]}",
            "key": self._fingerprint,
            "host_key": asyncssh.import_public_key(self._host_key).get_fingerprint(),
            "server": str(self._connection.get_extra_info("server_version", "?")),
        }

    @property
    def closed(self) -> bool:
        """Whether the connection is known to be gone."""
        return self._connection.is_closed()

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        """Run a shell command; `exit_status` None when a signal ended it or no status came."""
        async with self._answering(timeout_s, "command"):
            process = await self._connection.create_process(command, encoding=None)
            try:
                with contextlib.suppress(BrokenPipeError):  # it ended without reading; its status says the rest
                    process.stdin.write(stdin)
                    process.stdin.write_eof()
                stdout = await _all_of(process.stdout)
                stderr = await _all_of(process.stderr)
                await process.wait_closed()
            finally:
                process.close()
            status = None if process.exit_signal else process.exit_status
            return Completed(status, stdout, stderr)

    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        """Write a file whole (0600, temporary name, then renamed); its parents are made (0700)."""
        async with self._answering(timeout_s, f"put {path}"):
            sftp = await self._files()
            parent = posixpath.dirname(path)
            if parent and parent not in self._made:
                await sftp.makedirs(parent, asyncssh.SFTPAttrs(permissions=0o700), exist_ok=True)
                self._made.add(parent)
            part = f"{path}.{secrets.token_hex(4)}.part"
            async with sftp.open(part, "wb", asyncssh.SFTPAttrs(permissions=0o600)) as file:
                await file.write(content)
            await sftp.posix_rename(part, path)

    async def read(self, path: str, offset: int, limit: int, *, timeout_s: float) -> bytes | None:
        """Up to `limit` bytes from `offset`; b"" at the end of the file, None if there is no such file."""
        async with self._answering(timeout_s, f"read {path}"):
            sftp = await self._files()
            try:
                file = await sftp.open(path, "rb", block_size=0)  # each read is one request: see _range_of
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return None
            async with file:
                # Only what is there before the first block is asked for: blocks are fetched side by side, and one that
                # ran into the end of a growing file would leave a hole before a later one that did not.
                size = (await file.stat()).size or 0
                content = await _range_of(file, path, offset, min(limit, size - offset))
            return content  # noqa: RET504 - for mypy, `async with file` may swallow an exception

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        """Name -> size in bytes of a directory's entries; None if there is no such directory."""
        async with self._answering(timeout_s, f"list {path}"):
            sftp = await self._files()
            try:
                found = cast("AsyncGenerator[asyncssh.SFTPName, None]", sftp.scandir(path))
                async with contextlib.aclosing(found) as entries:
                    return await _sizes_of(entries, path)
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return None

    async def close(self) -> None:
        """End the connection; never raises and never waits for the other side."""
        self._connection.abort()
        await self._connection.wait_closed()

    async def _files(self) -> asyncssh.SFTPClient:
        async with self._opening_sftp:
            if self._sftp is None:
                self._sftp = await self._connection.start_sftp_client()
            return self._sftp

    @contextlib.asynccontextmanager
    async def _answering(self, timeout_s: float, what: str) -> AsyncIterator[None]:
        self._wait(1)
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise Unavailable(f"{what}: no answer within {timeout_s:g} s") from None
        except (asyncssh.Error, OSError) as error:
            raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._wait(-1)

    def _wait(self, change: int) -> None:
        before, self._waiting = self._waiting, self._waiting + change
        if bool(before) != bool(self._waiting) and not self.closed:
            self._connection.set_keepalive(KEEPALIVE_S if self._waiting else RESTING_S)


class _Client(asyncssh.SSHClient):
    """Decides on the host key."""

    def __init__(self, pinned: str | None) -> None:
        self._pinned = pinned
        self._peer = ("?", 0)
        self.shown: str | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Before its first byte."""
        ssh_flood.bound(conn)
        self._peer = conn.get_extra_info("peername")

    def connection_lost(self, exc: Exception | None) -> None:
        """Also while nobody waits for an answer that could name it."""
        if isinstance(exc, ssh_flood.Flood):
            log.warning("ssh_flooded", peer=f"{self._peer[0]}:{self._peer[1]}", message=f"{exc}; it was closed")

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The pinned key's own algorithms first: a server with several keys must show the one we know."""
        kind = self._pinned.split()[0].replace("ssh-rsa", "rsa-sha2") if self._pinned else "ssh-ed25519"
        return tuple(sorted(HOST_KEY_ALGORITHMS, key=lambda name: not name.startswith(kind)))

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self.shown = " ".join(key.export_public_key().decode().split()[:2])
        return self._pinned is None or self.shown == " ".join(self._pinned.split()[:2])


async def _identification(reader: asyncio.StreamReader, where: str) -> str:
    """The first line that begins with "SSH-", if one comes early enough."""
    said = b""
    while len(said) < BANNER_BYTES:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the reader's limit, and thrown away by it
            raise NotSsh(f"{where} answers a line longer than {BANNER_BYTES} bytes") from None
        if line.startswith((b"SSH-2.0-", b"SSH-1.99-")):
            return line.decode("ascii", "replace").strip()
        if not line:
            break
        said += line
    if not said:
        # What a forwarded port does before anything listens behind it.
        raise Unavailable(f"{where} closed the connection without a word")
    raise NotSsh(f"{where} answers {said[:60]!r}")


async def _all_of(reader: asyncssh.SSHReader[bytes]) -> bytes:
    said = bytearray()
    for _ in range(OUTPUT_READS):
        part = await reader.read(BLOCK_BYTES)
        if not part:
            return bytes(said)
        said += part
        if len(said) > OUTPUT_BYTES:
            raise Unavailable(f"command: more than {OUTPUT_BYTES} bytes of output")
    raise Unavailable(f"command: its {len(said)} bytes of output came in more than {OUTPUT_READS} pieces")


async def _sizes_of(entries: AsyncIterator[asyncssh.SFTPName], path: str) -> dict[str, int]:
    """Name -> size; Unavailable for a directory that does not end."""
    sizes: dict[str, int] = {}
    count = 0
    async for entry in entries:
        count += 1
        if count > DIRECTORY_ENTRIES:
            raise Unavailable(f"list {path}: more than {DIRECTORY_ENTRIES} entries")
        name = str(entry.filename)
        if name not in {".", ".."} and len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES:
            sizes[name] = entry.attrs.size or 0
    return sizes


async def _range_of(file: asyncssh.SFTPClientFile, path: str, offset: int, size: int) -> bytes:
    """Exactly `size` bytes from `offset`, a few blocks at a time; Unavailable if they do not come in proper pieces."""
    short = 0

    async def block(first: int, end: int) -> bytes:
        nonlocal short
        got = bytearray()
        while first + len(got) < end:
            wanted = end - first - len(got)
            part = cast("bytes", await file.read(wanted, first + len(got)))
            if not part or len(part) > wanted:
                raise Unavailable(f"read {path}: {len(part)} of {wanted} bytes came: it shrank meanwhile")
            got += part
            short += len(part) < wanted
            if short > SHORT_READS:
                raise Unavailable(f"read {path}: more than {SHORT_READS} answers hold less than was asked for")
        return bytes(got)

    content, end = bytearray(), offset + size
    for first in range(offset, end, SFTP_BLOCKS * SFTP_BLOCK_BYTES):
        starts = range(first, min(end, first + SFTP_BLOCKS * SFTP_BLOCK_BYTES), SFTP_BLOCK_BYTES)
        for part in await asyncio.gather(*(block(at, min(end, at + SFTP_BLOCK_BYTES)) for at in starts)):
            content += part
    return bytes(content)
