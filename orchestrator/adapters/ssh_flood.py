"""Limits on the packets of an SSH server. If a server sends more than its work needs, its connection is closed.

A packet costs about 40 µs of the event loop, however small it is. SSH allows some packets at any time, so a pod could
delay everything else in this process by seconds. asyncssh limits neither their number nor the bytes of one read, and
has no hook for it: this module wraps two methods of its connection, and tests/process/bringup/test_ssh_floods.py
notices if they change.
"""

# ruff: noqa: SLF001  asyncssh does not expose its packets

import time
from typing import Any

import asyncssh

READ_BYTES = 32 << 10  # of one turn of the event loop: 900 packets of the smallest size
SMALL_PACKET_BYTES = 1024  # file blocks come in packets of 16 KiB or more
ALLOWED_BY_BYTES = 8 << 10  # of a large packet; a block of 32 KiB may come with three small packets
# Small packets of all kinds: the output of a command may take 4,096, a file operation needs a few.
SMALL_PACKETS, SMALL_PACKETS_PER_S = 5_000.0, 1_000.0
# Packets outside of any channel and key exchange, of any size: keep-alives, requests of the server, invalid ones.
STRAY_PACKETS, STRAY_PACKETS_PER_S = 200.0, 10.0
IGNORE = 2  # RFC 4253 §11.2; a server of asyncssh sends an empty one before each packet


class Flood(asyncssh.ProtocolError):
    """The server sends more packets than its work needs."""


class _Allowance:
    """A token bucket: so many packets at once, and so many per second."""

    def __init__(self, kind: str, burst: float, per_s: float) -> None:
        self._kind, self._burst, self._per_s = kind, burst, per_s
        self._left, self._since_s = burst, time.monotonic()

    def give_back(self, count: int) -> None:
        """Allow so many more packets."""
        self._left = min(self._burst, self._left + count)

    def take(self) -> None:
        """Count one packet. Raises Flood."""
        self._left -= 1
        if self._left >= 0:
            return
        now_s = time.monotonic()
        self._left += min(self._burst + 1, (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        if self._left < 0:
            most = f"more than {self._burst:.0f} {self._kind} packets at once and {self._per_s:.0f} a second"
            raise Flood(f"the SSH server floods the connection: {most}")


def bound(connection: asyncssh.SSHClientConnection) -> None:
    """Apply the limits to this connection. A flood ends it; calls that wait for an answer raise Flood."""
    wire: Any = connection
    begin_packet, process_packet = wire._recv_pkthdr, wire.process_packet
    small = _Allowance("small", SMALL_PACKETS, SMALL_PACKETS_PER_S)
    stray = _Allowance("stray", STRAY_PACKETS, STRAY_PACKETS_PER_S)

    def counted_begin() -> bool:
        has_begun: bool = begin_packet()
        if has_begun:
            if wire._pktlen < SMALL_PACKET_BYTES:
                small.take()
            else:
                small.give_back(max(1, wire._pktlen // ALLOWED_BY_BYTES))
        return has_begun

    def counted_stray(kind: int, number: int, packet: Any) -> Any:
        if kind != IGNORE or wire._pktlen >= SMALL_PACKET_BYTES:
            stray.take()
        return process_packet(kind, number, packet)

    wire._recv_pkthdr, wire.process_packet = counted_begin, counted_stray
    wire._transport.max_size = READ_BYTES  # of asyncio's own event loop; other loops have no such attribute
