"""Why a worker's logs cannot be read now, in words for a person."""

import re

RUN_DIR = re.compile(r"(?<!\S)\S*\.orchestrator/run/[0-9a-f]{16,}/")  # the agent's directory on the pod
BROKEN = re.compile(r"ConnectionLost|ConnectionReset|ConnectionAborted|BrokenPipe|NoConnection|closed the connection")
LATE = re.compile(r"no answer within|within [\d.]+ s$|^TimeoutError")


def delay_of(error: str) -> str:
    """Return the cause in an error's text, such as `Unavailable: list …/logs: SFTPConnectionLost`, in words."""
    if BROKEN.search(error):
        return "the SSH connection broke"
    if LATE.search(error):
        return "the pod does not answer in time"
    kind, colon, text = error.partition(": ")
    return RUN_DIR.sub("", text if colon and kind.isidentifier() else error)
