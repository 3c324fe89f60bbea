"""A hostile SSH peer cannot make the orchestrator hold or do without bound: each operation ends early, as unknown."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import asyncssh
import pytest

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_session import OUTPUT_READS, AsyncSshSession, _all_of
from orchestrator.ports import Unavailable
from tests.process.bringup.relay import _LetIn
from tests.process.bringup.sshd import pem_of

PATIENCE_S = 10.0  # far longer than any of these may take: it is a bound that ends them, and not the deadline


class Hostile(asyncssh.SFTPServer):
    """A directory without an end, and a file that comes byte by byte."""

    asked = 0

    def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return asyncssh.SFTPAttrs(size=1 << 40, permissions=0o100600)

    lstat = stat

    def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
        return self.stat(b"")

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        return object()

    def close(self, file_obj: object) -> None:
        pass

    def read(self, file_obj: object, offset: int, size: int) -> bytes:
        Hostile.asked += 1
        return b"x"

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        number = 0
        while True:
            number += 1
            Hostile.asked += 1
            yield asyncssh.SFTPName(b"n%d" % number, attrs=asyncssh.SFTPAttrs(size=1))


@asynccontextmanager
async def hostile() -> AsyncIterator[AsyncSshSession]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    Hostile.asked = 0
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=_LetIn, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=Hostile, encoding=None, gss_host=None,
    )  # fmt: skip
    session = await AsyncSshShell(pem_of(key)).connect("127.0.0.1", server.get_port(), pinned=None, timeout_s=20)
    try:
        yield session
    finally:
        await session.close()
        server.close()


async def test_an_endless_directory_is_given_up() -> None:
    """Its names are not gathered until the deadline."""
    async with hostile() as session:
        with pytest.raises(Unavailable, match="more than 1024 entries"):
            await session.list("/any", timeout_s=PATIENCE_S)
        assert Hostile.asked < 4 * 1024


async def test_a_transfer_of_single_bytes_is_aborted() -> None:
    """Four million requests for one piece of a log are not made."""
    async with hostile() as session:
        with pytest.raises(Unavailable, match="less than was asked for"):
            await session.read("/any", 0, 4 << 20, timeout_s=PATIENCE_S)
        assert Hostile.asked < 200


class Drips:
    """A reader whose every packet holds one byte."""

    asked = 0

    async def read(self, size: int) -> bytes:
        self.asked += 1
        return b"x"[:size]


async def test_output_that_comes_byte_by_byte_is_given_up() -> None:
    """After a fixed number of pieces, however small they are."""
    drips = Drips()
    with pytest.raises(Unavailable, match="pieces"):
        await _all_of(cast("asyncssh.SSHReader[bytes]", drips))
    assert drips.asked == OUTPUT_READS
