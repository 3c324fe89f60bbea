"""What the packets of one SSH server may cost: a server that sends more of them than its work needs is hung up on.

A packet costs about 40 µs of the event loop, however little it says. SSH allows some packets at any time, so a pod
could delay everything else in this process by seconds. asyncssh bounds neither their number nor what one read may
bring, and has no hook for it: this module wraps two of its connection's methods, and
tests/process/bringup/test_ssh_floods.py notices if they change.
"""

# ruff: noqa: SLF001  asyncssh shows its packets to nobody

import time
from typing import Any

import asyncssh

READ_BYTES = 32 << 10  # of one turn of the event loop: 900 packets of the smallest size
SMALL_PACKET_BYTES = 1024  # file blocks come in packets of 16 KiB or more
# Small packets of all kinds: a command's output may come in 4,096, a file operation needs a handful.
SMALL_PACKETS, SMALL_PACKETS_PER_S = 5_000.0, 1_000.0
# Packets that belong to no channel and no key exchange, of any size: keep-alives, requests of the server, nonsense.
STRAY_PACKETS, STRAY_PACKETS_PER_S = 200.0, 10.0
IGNORE = 2  # RFC 4253 §11.2; a server of asyncssh sends an empty one before each packet


class Flood(asyncssh.ProtocolError):
    """The server sends more packets than its work needs."""


class _Allowance:
    """So many packets at once, and so many a second."""

    def __init__(self, kind: str, burst: float, per_s: float) -> None:
        self._kind, self._burst, self._per_s = kind, burst, per_s
        self._left, self._since_s = burst, time.monotonic()

    def give_back(self) -> None:
        """One more may come."""
        self._left = min(self._burst, self._left + 1)

    def take(self) -> None:
        """Count one. Raises Flood."""
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
    """Have this connection end itself when its peer floods it; what waits for an answer raises Flood."""
    wire: Any = connection
    begin_packet, process_packet = wire._recv_pkthdr, wire.process_packet
    small = _Allowance("small", SMALL_PACKETS, SMALL_PACKETS_PER_S)
    stray = _Allowance("stray", STRAY_PACKETS, STRAY_PACKETS_PER_S)

    def counted_begin() -> bool:
        has_begun: bool = begin_packet()
        if has_begun:
            (small.take if wire._pktlen < SMALL_PACKET_BYTES else small.give_back)()
        return has_begun

    def counted_stray(kind: int, number: int, packet: Any) -> Any:
        if kind != IGNORE or wire._pktlen >= SMALL_PACKET_BYTES:
            stray.take()
        return process_packet(kind, number, packet)

    wire._recv_pkthdr, wire.process_packet = counted_begin, counted_stray
    wire._transport.max_size = READ_BYTES  # of asyncio's own event loop; another one has no such attribute
