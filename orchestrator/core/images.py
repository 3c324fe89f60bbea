"""Facts from an image's name, and from the log of its pull."""

import re

CUDA = re.compile(r"cu(?:da)?[:_-]?(1\d)\.?(\d)")  # cuda12.4.1, nvidia/cuda:12.4.1-base, cu124, cu1281
PULLING = re.compile(
    r"\b(pulling|downloading|extracting|waiting|verifying checksum|download complete)\b", re.IGNORECASE
)
PULLED = re.compile(
    r"image pulled|status: downloaded|image is up to date|start(ing)? container|container started|error", re.IGNORECASE
)


DIGEST = re.compile(r"\bdigest: (sha256:[0-9a-f]{64})\b", re.IGNORECASE)


def has_digest(image: str) -> bool:
    """Whether an image is named by its content. A tag may name another image tomorrow (guard U30)."""
    return re.search(r"@sha256:[0-9a-f]{64}$", image) is not None


def digest_of(log: str) -> str | None:
    """Return the digest that a pod's system log shows for the image that was pulled, or None."""
    found = DIGEST.findall(log)
    return str(found[-1]).lower() if found else None


def cuda_of(image: str | None) -> tuple[int, int] | None:
    """Return the CUDA version in an image's name as (major, minor), or None."""
    found = CUDA.search(image or "")
    return (int(found[1]), int(found[2])) if found else None


def is_pulling(log: str) -> bool:
    """Whether the last line about the image in a pod's system log shows that the pull is in progress."""
    pulling = False
    for line in log.splitlines():
        if PULLED.search(line):
            pulling = False
        elif PULLING.search(line):
            pulling = True
    return pulling
