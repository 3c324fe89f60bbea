"""Runs a command over an SSH connection and hands its output on as it comes, without keeping it."""

import asyncio
from collections.abc import Callable

import asyncssh

BLOCK_BYTES = 65_536

Sink = Callable[[bytes], None]


async def run(
    connection: asyncssh.SSHClientConnection, command: str, *, stdout: Sink, stderr: Sink, timeout_s: float
) -> int | None:
    """Return the exit status; None if a signal ended the command. The command reads an empty stdin.

    A slow sink slows the command down. Raises TimeoutError, asyncssh.Error or OSError; then the command's channel is
    closed.
    """
    async with asyncio.timeout(timeout_s):
        process = await connection.create_process(command, encoding=None)
        try:
            process.stdin.write_eof()
            await asyncio.gather(_pump(process.stdout, stdout), _pump(process.stderr, stderr))
            await process.wait_closed()
        finally:
            process.close()
        return None if process.exit_signal else process.exit_status


async def _pump(reader: "asyncssh.SSHReader[bytes]", sink: Sink) -> None:
    while part := await reader.read(BLOCK_BYTES):
        sink(part)
