"""Commands and files over one SSH connection to a pod. Everything that a pod sends is bounded.

If the result is unknown (a broken connection, a deadline), a call raises Unavailable or returns an exit status of None.
"""

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import cast

import asyncssh

from orchestrator.adapters import ssh_stream
from orchestrator.adapters.ssh_stream import Sink
from orchestrator.ports import Completed, Unavailable

KEEPALIVE_S = 6.0  # seconds between keep-alives while a call waits for an answer
RESTING_S = 60.0  # while no call waits: a thousand connections at 6 s would cause 170 answers per second
OUTPUT_BYTES = 4 * 1024 * 1024  # of one command; our commands print a line or two
OUTPUT_READS = 4096  # packets of one command; a peer that sends single bytes reaches this limit first
BLOCK_BYTES = 64 * 1024
SFTP_BLOCK_BYTES = 32 * 1024  # every SFTP server answers so much to one request
SFTP_BLOCKS = 16  # requests at a time
SHORT_READS = 64  # short answers of one read, with less than the requested bytes
DIRECTORY_ENTRIES = 1024  # entries of one directory; our directories hold a few
NAME_BYTES = 255  # of one name, as in every file system of Linux; entries with longer names are left out


class AsyncSshSession:
    """One connection. Commands run on it at the same time; files use one SFTP session, which stays open."""

    def __init__(self, connection: asyncssh.SSHClientConnection, host_key: str, fingerprint: str) -> None:
        self._connection = connection
        self._host_key = host_key
        self._fingerprint = fingerprint
        self._sftp: asyncssh.SFTPClient | None = None
        self._opening_sftp = asyncio.Lock()
        self._made: set[str] = set()  # directories that are known to exist
        self._waiting = 0

    @property
    def host_key(self) -> str:
        """Return the presented host key in OpenSSH's one-line format, without a comment."""
        return self._host_key

    @property
    def evidence(self) -> Mapping[str, str]:
        """Return both ends of the socket, and the fingerprint of our key."""
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
        """Return whether the connection is known to be closed."""
        return self._connection.is_closed()

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        """Run a shell command. `exit_status` is None if a signal ended it or no status arrived."""
        async with self._answering(timeout_s, "command"):
            process = await self._connection.create_process(command, encoding=None)
            try:
                with contextlib.suppress(BrokenPipeError):  # it ended without reading its input
                    process.stdin.write(stdin)
                    process.stdin.write_eof()
                stdout = await _all_of(process.stdout)
                stderr = await _all_of(process.stderr)
                await process.wait_closed()
            finally:
                process.close()
            status = None if process.exit_signal else process.exit_status
            return Completed(status, stdout, stderr)

    async def stream(self, command: str, *, stdout: Sink, stderr: Sink, timeout_s: float) -> int | None:
        """Run a shell command without input and hand its output on; the exit status, None when a signal ended it."""
        async with self._answering(timeout_s, "command"):
            return await ssh_stream.run(self._connection, command, stdout=stdout, stderr=stderr, timeout_s=timeout_s)

    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        """Write a whole file (mode 0600, temporary name, then renamed). Missing parents are made (mode 0700)."""
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
        """Return up to `limit` bytes from `offset`; b"" at the end of the file, None if the file is missing."""
        async with self._answering(timeout_s, f"read {path}"):
            sftp = await self._files()
            try:
                file = await sftp.open(path, "rb", block_size=0)  # each read is one request: see _range_of
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return None
            async with file:
                # The file's size is read first, and only that much is requested: blocks are requested at the same time,
                # and a short block at the end of a growing file would leave a hole before a later full one.
                size = (await file.stat()).size or 0
                content = await _range_of(file, path, offset, min(limit, size - offset))
            return content  # noqa: RET504 - for mypy, `async with file` may swallow an exception

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        """Return name -> size in bytes of a directory's entries; None if the directory is missing."""
        async with self._answering(timeout_s, f"list {path}"):
            sftp = await self._files()
            try:
                found = cast("AsyncGenerator[asyncssh.SFTPName, None]", sftp.scandir(path))
                async with contextlib.aclosing(found) as entries:
                    return await _sizes_of(entries, path)
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return None

    async def close(self) -> None:
        """End the connection. Never raises, and never waits for the peer."""
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


async def _all_of(reader: asyncssh.SSHReader[bytes]) -> bytes:
    output = bytearray()
    for _ in range(OUTPUT_READS):
        part = await reader.read(BLOCK_BYTES)
        if not part:
            return bytes(output)
        output += part
        if len(output) > OUTPUT_BYTES:
            raise Unavailable(f"command: more than {OUTPUT_BYTES} bytes of output")
    raise Unavailable(f"command: its {len(output)} bytes of output came in more than {OUTPUT_READS} pieces")


async def _sizes_of(entries: AsyncIterator[asyncssh.SFTPName], path: str) -> dict[str, int]:
    """Return name -> size. Unavailable for a directory with too many entries."""
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
    """Return exactly `size` bytes from `offset`, a few blocks at a time.

    Unavailable if the peer sends too many short blocks.
    """
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
