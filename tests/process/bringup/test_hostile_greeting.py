"""A peer that never comes to the point before authentication costs a bounded number of bytes and seconds."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncssh
import pytest

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.ports import PortError, Unavailable
from tests.process.bringup.relay import _LetIn
from tests.process.bringup.sshd import pem_of

PATIENCE_S = 30.0
AT_MOST_BYTES = 8 * 1024 * 1024  # of which nearly all is in the buffers of the two sockets
VERSION = b"SSH-2.0-OpenSSH_9.6\r\n"
BLOCK = 64 * 1024


@dataclass
class Talker:
    """A server that says one thing, then another without end."""

    first: bytes
    then: bytes
    port: int = 0
    said: int = 0

    async def talk(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak until nobody takes any more."""
        with contextlib.suppress(OSError):
            writer.write(self.first)
            while not writer.is_closing():
                writer.write(self.then)
                await writer.drain()
                self.said += len(self.then)
        writer.close()


@asynccontextmanager
async def talking(first: bytes, then: bytes) -> AsyncIterator[Talker]:
    """It, on loopback."""
    talker = Talker(first, then)
    server = await asyncio.start_server(talker.talk, "127.0.0.1", 0)
    talker.port = server.sockets[0].getsockname()[1]
    try:
        yield talker
    finally:
        server.close()


def _packet(payload: bytes) -> bytes:
    """An SSH packet before any key exchange: neither encrypted nor authenticated."""
    pad = 8 - (len(payload) + 5) % 8
    pad += 8 if pad < 4 else 0
    return struct.pack(">IB", len(payload) + pad + 1, pad) + payload + bytes(pad)


ENDLESS = {
    "a line without an end": (b"", b"x" * BLOCK),
    "lines without an end": (b"", b"hello\r\n" * (BLOCK // 7)),
    "empty lines without an end": (b"", b"\n" * BLOCK),
    "an identification without an end": (b"SSH-2.0-", b"x" * BLOCK),
}
ENDLESS_AFTER = {
    "a packet of four gigabytes": (VERSION + b"\xff\xff\xff\xf0", b"x" * BLOCK),
    "packets of an unknown kind": (VERSION, _packet(b"\xc0" + b"x" * 1_000) * 64),
    "packets to ignore": (VERSION, _packet(b"\x02" + struct.pack(">I", 10) + b"x" * 10) * 64),
    "large packets to ignore": (VERSION, _packet(b"\x02" + struct.pack(">I", 2_000) + b"x" * 2_000) * 16),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("call", ["banner", "connect"])
async def test_an_endless_greeting_is_given_up(what: str, call: str) -> None:
    """By the number of its bytes, and not by the clock."""
    await _is_given_up(*ENDLESS[what], call)


@pytest.mark.parametrize("what", ENDLESS_AFTER)
async def test_endless_packets_before_the_key_exchange_are_given_up(what: str) -> None:
    """Neither is a long packet gathered, nor does a stream of them hold the connection."""
    await _is_given_up(*ENDLESS_AFTER[what], "connect")


async def test_nothing_that_a_peer_has_compressed_is_expanded() -> None:
    """A packet of 256 KiB may expand to 256 MiB: no compression is offered, and a server that insists is refused."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=_LetIn, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        compression_algs=["zlib@openssh.com", "zlib"], gss_host=None,
    )  # fmt: skip
    try:
        with pytest.raises(Unavailable, match="compression"):
            await AsyncSshShell(pem_of(key)).connect("127.0.0.1", server.get_port(), pinned=None, timeout_s=PATIENCE_S)
    finally:
        server.close()


async def _is_given_up(first: bytes, then: bytes, call: str) -> None:
    shell = AsyncSshShell(pem_of(asyncssh.generate_private_key("ssh-ed25519")))
    calls: dict[str, Callable[[int], object]] = {
        "banner": lambda port: shell.banner("127.0.0.1", port, timeout_s=PATIENCE_S),
        "connect": lambda port: shell.connect("127.0.0.1", port, pinned=None, timeout_s=PATIENCE_S),
    }
    async with talking(first, then) as talker:
        with pytest.raises(PortError) as refused:
            await calls[call](talker.port)  # type: ignore[misc]
        assert "within" not in str(refused.value)  # the deadline did not have to end it
        assert talker.said < AT_MOST_BYTES
