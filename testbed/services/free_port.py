"""Ports for servers that are to be found at the same address after a restart."""

import contextlib
import random
import socket
from collections import deque

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections (Linux 32768, macOS 49152): whatever is free
# here is not taken by a passer-by between our look and the server's bind, nor while the server is down.
PORTS = range(20_000, 32_000)
GUARDED = 64  # of the ports that were given last; a server binds its own within seconds
# A UDP socket of ours keeps away a process that looks for a port before the server has bound this one. TCP servers do
# not see it.
_guards: deque[socket.socket] = deque()


def free_port() -> int:
    """Return an unused port, which no other process gets from here soon. Raises OSError if there is none."""
    for port in random.sample(PORTS, len(PORTS)):
        guard = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe, contextlib.suppress(OSError):
            guard.bind((HOST, port))
            probe.bind((HOST, port))
            _guards.append(guard)
            while len(_guards) > GUARDED:
                _guards.popleft().close()
            return port
        guard.close()
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")
