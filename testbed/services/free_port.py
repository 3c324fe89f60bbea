"""Ports for servers that are to be found at the same address after a restart."""

import contextlib
import random
import socket
import sys

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections (Linux 32768, macOS 49152): whatever is free
# here is not taken by another program between our check and the server's bind, or while the server is down. Slurm
# clusters have the ports from 20,000 on (orchestrator/clusters/configuration.py).
PORTS = range(10_000, 20_000)
STRIDE = 7_919  # a prime: steps of it reach every port once
# On Linux a port that was given away stays bound until this process ends: no other process that looks for one finds it
# free before the server binds it, or while the server is down. The server may bind it all the same, because its socket
# and ours have SO_REUSEADDR, and ours does not listen.
_held: list[socket.socket] = []


def free_port() -> int:
    """Return an unused port. Raises OSError if there is none."""
    first = random.SystemRandom().randrange(len(PORTS))  # others do not set its seed
    for number in range(len(PORTS)):
        port = PORTS[(first + number * STRIDE) % len(PORTS)]
        probe = socket.socket()
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if sys.platform == "linux":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _held.append(probe)
            else:
                probe.close()
            return port
        probe.close()
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")
