"""Ports for servers that are to be found at the same address after a restart."""

import contextlib
import itertools
import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
# Below the range from which systems take ports for outgoing connections (Linux 32768, macOS 49152): whatever is free
# here is not taken by a passer-by between our look and the server's bind, nor while the server is down.
PORTS = range(20_000, 32_000)
BLOCK = 300  # ports that one process has for itself: another one must not find a port that is only about to be bound
_blocks: list[socket.socket] = []  # what shows other processes that a block is taken, until this one ends


def free_port() -> int:
    """Return an unused port, each time another one. Raises OSError if there is none."""
    for port in itertools.islice(_ports, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")


def _given() -> Iterator[int]:
    """Yield the ports of a block of this process's own, again and again; all ports if there is no such block."""
    blocks = [PORTS[at : at + BLOCK] for at in range(0, len(PORTS), BLOCK)]
    own = next((block for block in random.sample(blocks, len(blocks)) if _takes(block)), PORTS)
    while True:
        yield from random.sample(own, len(own))


def _takes(block: range) -> bool:
    """Whether the block was nobody's. Its mark is a name in Linux's abstract namespace, which ends with the process."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0gpu-orchestrator-ports-{block.start}")
    except OSError:  # another process has it, or the system knows no such names
        mark.close()
        return False
    _blocks.append(mark)
    return True


_ports = _given()
