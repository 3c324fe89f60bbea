"""Final errors of a transfer: the handler gets them, and the agent reports their codes."""

from __future__ import annotations

from . import protocol


class TransferError(Exception):
    """A transfer failed. The text never contains a presigned URL."""

    code: str | None = None  # the failure's code; None: the code of a handler's own error
    retryable = True
    outage = False  # a service outside the pod is the cause: the task is released, and the attempt does not count


class Unserved(TransferError):
    """A service was unavailable for longer than this pod can wait."""

    outage = True


class Unsent(TransferError):
    """A call of the task object after the end of the task, or in another process than the handler's."""


class Exists(TransferError):
    """The same attempt stored another file under this name."""

    code = protocol.OUTPUT_EXISTS


class Unstored(TransferError):
    """The store acknowledged a file, but has other bytes or nothing."""

    code = protocol.OUTPUT_MISSING


class ResultRefused(TransferError):
    """The handler returned a result that the orchestrator does not take (rules.py)."""

    code = "RESULT_REFUSED"
    retryable = False


class OutputRefused(TransferError):
    """A file cannot be stored as an output: its name, its kind or its size. Another attempt would make it again."""

    code = "OUTPUT_REFUSED"
    retryable = False


class Replaced(TransferError):
    """A dependency's output is not the object with which the dependency was completed."""

    code = protocol.OUTPUT_REPLACED
    retryable = False
