"""Ports for servers that are to be found at the same address after a restart."""

import contextlib
import random
import socket

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections (Linux 32768, macOS 49152): whatever is free
# here is not taken by a passer-by between our look and the server's bind, nor while the server is down.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return an unused port. Raises OSError if there is none."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")
