"""Descriptors 0, 1 and 2 of the host, and the objects of sys: a handler may close, redirect or replace them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys

from . import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("stdout", "stderr")
SPARE_FD = 100  # the copies get numbers from here on, which few programs close by number


class StandardStreams:
    """The streams as the agent opened them."""

    def __init__(self) -> None:
        self._copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE_FD) for fd in range(3)]
        self._files = [_file(fd) for fd in range(3)]
        output.take_over()

        self.note_objects()

    def note_objects(self) -> None:
        """Take the present objects as the ones to restore: the module may have replaced them while it was loaded."""
        self._objects = {name: getattr(sys, name, None) for name in NAMES}
        self._stdin = sys.stdin
        self._forms = {name: _form(one) for name, one in self._objects.items()}

    def restore(self) -> bool:
        """Flush and restore the streams. Return False if that is not possible."""
        is_whole = True
        for name, before in self._objects.items():
            _is_usable(getattr(sys, name, None))
            setattr(sys, name, before)
            _reform(before, self._forms[name])
        if not all(_is_usable(one) for one in self._objects.values()):
            output.take_over()
            self.note_objects()
        for fd, file in enumerate(self._files):
            if _file(fd) == file:
                continue
            if _file(self._copies[fd]) == file:
                os.dup2(self._copies[fd], fd)
            else:
                is_whole = False
        sys.stdin = self._stdin
        if getattr(sys.stdin, "closed", True):
            sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 it stays open
        return is_whole


def _file(fd: int) -> tuple[int, int] | None:
    """Return the file behind a descriptor; None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _form(stream: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes that were set on a stream, such as a `write` of somebody's, and how it encodes."""
    options = ("encoding", "errors", "line_buffering", "write_through")
    is_text = type(stream) is io.TextIOWrapper
    return dict(getattr(stream, "__dict__", {})), {name: getattr(stream, name) for name in options} if is_text else {}


def _reform(stream: Any, form: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give a stream the attributes and the encoding back. One that is detached or closed has none."""
    attributes, options = form
    with contextlib.suppress(Exception):
        if _form(stream) != form:
            vars(stream).clear()
            vars(stream).update(attributes)
            stream.reconfigure(**options)


def _is_usable(stream: Any) -> bool:
    """Flush a stream, and return whether it can be written to."""
    try:
        stream.flush()
        is_closed = stream.closed
    except Exception:  # noqa: BLE001 it may be any object of the handler's
        return False
    return not is_closed
