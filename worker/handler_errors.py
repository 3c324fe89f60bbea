"""What a handler raised, as a message to the agent. The user's code makes the texts, so making them may fail too."""

from __future__ import annotations

import traceback

from . import output
from .redaction import own_secrets
from .texts import end_of, shortened
from .transfer_errors import TransferError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_CHARS = 7_500  # characters of an error's text; its middle is cut, and the agent adds little
TYPE_CHARS = 200  # characters of the name of an error's type
TRACEBACK_CHARS = 2_000  # characters of a traceback: its innermost end


class Cancelled(BaseException):
    """Raised in the handler's main thread when it must end. Not an Exception, so that few handlers catch it."""


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return the last message of a task whose handler raised the error, and print the traceback."""
    message, text, retryable = _text_of(error), _traceback_of(error), _is_retryable(error)
    name, clean = type.__dict__["__name__"].__get__(type(error)), own_secrets().clean_text
    output.ERR.write(text.encode("utf-8", "backslashreplace"))
    return {
        "op": "failed",
        "type": shortened(clean(name), TYPE_CHARS),
        "message": shortened(clean(message), MESSAGE_CHARS),
        "traceback": end_of(clean(text), TRACEBACK_CHARS),
        "retryable": retryable,
        "point": "Completion" if isinstance(error, TransferError) else "Processing",
        "outage": isinstance(error, TransferError) and error.outage is True,
        "code": error.code if isinstance(error, TransferError) and isinstance(error.code, str) else None,
    }


def _text_of(error: BaseException) -> str:
    """Return the text of an error, which the user's code makes."""
    try:
        return str.__str__(str(error))
    except Cancelled:
        raise
    except BaseException as broken:  # noqa: BLE001 __str__ may raise anything
        return f"(its text cannot be made: {type(broken).__name__})"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Cancelled:
        raise
    except BaseException as broken:  # noqa: BLE001 as above; a chain of causes may be endless
        return f"(the traceback cannot be made: {type(broken).__name__})\n"


def _is_retryable(error: BaseException) -> bool:
    try:
        return bool(getattr(error, "retryable", True))
    except Cancelled:
        raise
    except BaseException:  # noqa: BLE001 as above
        return True
