"""What can be read off an image's name, and off the log of its pull."""

import re

CUDA = re.compile(r"cu(?:da)?[:_-]?(1\d)\.?(\d)")  # cuda12.4.1, nvidia/cuda:12.4.1-base, cu124, cu1281
PULLING = re.compile(
    r"\b(pulling|downloading|extracting|waiting|verifying checksum|download complete)\b", re.IGNORECASE
)
PULLED = re.compile(
    r"image pulled|status: downloaded|image is up to date|start(ing)? container|container started|error", re.IGNORECASE
)


def cuda_of(image: str | None) -> tuple[int, int] | None:
    """The CUDA version that an image's name tells, as (major, minor); None if it tells none."""
    found = CUDA.search(image or "")
    return (int(found[1]), int(found[2])) if found else None


def is_pulling(log: str) -> bool:
    """Whether the last thing that a pod's system log tells of its image is that it is still coming."""
    pulling = False
    for line in log.splitlines():
        if PULLED.search(line):
            pulling = False
        elif PULLING.search(line):
            pulling = True
    return pulling
