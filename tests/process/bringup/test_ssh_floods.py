"""A pod that floods an open SSH connection loses it; one that does what was asked of it keeps it at any speed."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.packet import Boolean, String, UInt32

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_session import AsyncSshSession
from orchestrator.ports import Unavailable
from tests.process.bringup.relay import _LetIn
from tests.process.bringup.sshd import pem_of

DEADLINE_S = 20.0
FLOOD_PACKETS = 200_000  # 8 s of an event loop's time
GLOBAL_REQUEST, IGNORE, UNKNOWN, WINDOW_ADJUST, KEXINIT = 80, 2, 197, 93, 20
Say = Callable[[asyncssh.SSHServerConnection], None]

FLOODS: dict[str, Say] = {
    "global requests": lambda c: c.send_packet(GLOBAL_REQUEST, String(b"keepalive@openssh.com"), Boolean(True)),
    "packets to ignore": lambda c: c.send_packet(IGNORE, String(b"")),
    "large packets to ignore": lambda c: c.send_packet(IGNORE, String(b"x" * 30_000)),
    "packets of an unknown kind": lambda c: c.send_packet(UNKNOWN, String(b"")),
    "window adjustments of an open channel": lambda c: c.send_packet(WINDOW_ADJUST, UInt32(0), UInt32(0)),
}


class Pod(_LetIn):
    """A server that any key opens; it knows its connection."""

    connection: asyncssh.SSHServerConnection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        Pod.connection = conn


@asynccontextmanager
async def pod(root: Path) -> AsyncIterator[AsyncSshSession]:
    """A session with it, whose SFTP channel is open."""

    async def execute(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(b"done\n")
        process.exit(0)

    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Pod, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=os.fsencode(root)),
        process_factory=execute, encoding=None, gss_host=None,
    )  # fmt: skip
    shell = AsyncSshShell(pem_of(asyncssh.generate_private_key("ssh-ed25519")))
    session = await shell.connect("127.0.0.1", server.get_port(), pinned=None, timeout_s=20)
    try:
        await session.list("/", timeout_s=DEADLINE_S)
        yield session
    finally:
        await session.close()
        server.close()


async def _flood(say: Say) -> int:
    """How many packets went out until the connection was gone."""
    sent = 0
    transport: Any = Pod.connection._transport
    while sent < FLOOD_PACKETS and not transport.is_closing():
        for _ in range(200):
            say(Pod.connection)
        sent += 200
        while transport.get_write_buffer_size() > 1 << 20 and not transport.is_closing():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    return sent


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_while_no_command_runs_ends_the_connection(tmp_path: Path, what: str) -> None:
    """Whatever it consists of, and long before it has cost a second."""
    async with pod(tmp_path) as session, asyncio.timeout(DEADLINE_S):
        sent = await _flood(FLOODS[what])
        assert session.closed
        assert sent < FLOOD_PACKETS
        with pytest.raises(Unavailable):
            await session.run("true", timeout_s=DEADLINE_S)


async def test_a_flood_ends_the_operation_under_way_and_is_named(tmp_path: Path) -> None:
    """The attempt's row says what the pod did."""
    async with pod(tmp_path) as session, asyncio.timeout(DEADLINE_S):
        (tmp_path / "log").write_bytes(b"x" * 100_000)
        with contextlib.suppress(asyncssh.Error):
            for _ in range(5_000):
                FLOODS["global requests"](Pod.connection)
        with pytest.raises(Unavailable, match="flood"):
            await session.read("/log", 0, 100_000, timeout_s=DEADLINE_S)


async def test_one_turn_of_the_event_loop_takes_a_bounded_part_of_a_flood(tmp_path: Path) -> None:
    """7,000 packets fit into one read of the usual size."""
    turns: list[int] = []
    async with pod(tmp_path) as session, asyncio.timeout(DEADLINE_S):
        connection: Any = session._connection
        receive = connection.data_received

        def measured(data: bytes) -> None:
            turns.append(len(data))
            receive(data)

        connection.data_received = measured
        await _flood(FLOODS["window adjustments of an open channel"])
        assert session.closed
    assert 0 < max(turns) <= 32 << 10


async def test_requested_output_arrives_at_full_speed(tmp_path: Path) -> None:
    """Logs by the megabyte, and many small operations in a row."""
    content = os.urandom(1 << 20) * 128
    (tmp_path / "log").write_bytes(content)
    async with pod(tmp_path) as session:
        piece = 4 << 20
        for first in range(0, len(content), piece):
            assert await session.read("/log", first, piece, timeout_s=DEADLINE_S) == content[first : first + piece]
        for number in range(200):
            await session.put(f"/files/{number % 10}", b"x", timeout_s=DEADLINE_S)
        for _ in range(50):
            assert (await session.run("true", timeout_s=DEADLINE_S)).stdout == b"done\n"
        assert not session.closed
