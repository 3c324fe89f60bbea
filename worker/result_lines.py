"""What a command prints: reports of progress, and its result, the last JSON object on one line or over several."""

from __future__ import annotations

import json
import re

from .rules import RESULT_BYTES, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRESS = b"progress:"  # begins a line that reports progress
MAX_PRINTED_BYTES = 8 * RESULT_BYTES  # of an object as it is printed, with escapes and indents
ERROR_CHARS = 200
BOM = b"\xef\xbb\xbf"
BEGIN = re.compile(rb"\{(?:\s*[\"}]|\s*$|.*\}$)", re.DOTALL)  # of an object, right or wrong; not "{x} of {y}"

TEXT = re.compile(rb'"[^"]*"')  # within JSON without escaped quotes


class _Refused(ValueError):
    """It is an object, and cannot be a result."""


class ResultLines:
    """Takes standard output and finds its last JSON object.

    An object over several lines ends where its last brace ends a line, or with a line that begins with `}`. Text may
    follow the object.
    """

    def __init__(self, report: Callable[[bytes], None]) -> None:
        """`report` is called with each report of progress."""
        self._report = report
        self._line, self._line_size = bytearray(), 0  # the part that is kept, and the size of all of it
        self._object: bytearray | None = None  # the lines of an object that has not ended
        self._object_size = self._depth = 0
        self._has_own_line = False  # the brace that opens it
        self._found: dict[str, Any] | None = None
        self._refused = ""  # why the last object cannot be the result
        self._broken = ""  # why the last line, which looks like a part of an object, is none
        self.note = ""  # what the last line is in place of an object

    def take(self, block: bytes) -> None:
        """Take the next block of standard output."""
        *whole, rest = block.split(b"\n")
        for line in whole:
            self._add(line)
            self._end_line()
        self._add(rest)

    def result(self) -> tuple[dict[str, Any] | None, str]:
        """Return the result (None: there is none), and why it is refused ("": it is not)."""
        self._end_line()
        return self._found, self._broken or self._refused

    def _add(self, part: bytes) -> None:
        self._line += part[: max(0, MAX_PRINTED_BYTES - len(self._line))]
        self._line_size += len(part)

    def _end_line(self) -> None:
        size = self._line_size
        line = bytes(self._line.removeprefix(BOM)).rstrip().rpartition(b"\r")[2]  # after a progress bar of its own
        self._line, self._line_size = bytearray(), 0
        if line.startswith(PROGRESS):
            self._report(line[len(PROGRESS) :])
            return
        text = line.lstrip()
        if not text:
            return
        self._broken = self.note = ""
        begins = bool(BEGIN.match(text)) and (self._object is None or line[:1] == b"{")
        if begins:
            self._object, self._object_size, self._depth = bytearray(), 0, 0
            self._has_own_line = text == b"{"
        elif self._object is None:
            self._note(text)
            return
        assert self._object is not None  # noqa: S101 for the type checker
        self._object += line[: max(0, MAX_PRINTED_BYTES - len(self._object))] + b"\n"
        self._object_size += size
        self._depth += _opened(line)
        ends = text[-1:] == b"}" and (begins or self._depth == 0)
        if ends or line[:1] == b"}" or self._object_size > MAX_PRINTED_BYTES:
            self._end_object()
        elif begins or self._has_own_line:
            self._broken = "the last object of standard output has no end"

    def _end_object(self) -> None:
        text, why, found = bytes(self._object or b""), "", None
        if self._object_size > MAX_PRINTED_BYTES:
            why = f"it has {self._object_size} bytes, more than {MAX_PRINTED_BYTES}"
        try:
            found = None if why else json.loads(text, object_pairs_hook=_object)
        except _Refused as error:
            why = str(error)
        except RecursionError:
            why = "it is nested too deeply"
        except ValueError as error:
            self._broken = f"the last object of standard output is not JSON: {str(error)[:ERROR_CHARS]}"
            if self._depth <= 0:  # otherwise more lines may complete it
                self._object = None
            return
        self._found, self._refused = found, why and f"the last JSON object of standard output: {why}"
        self._object = None

    def _note(self, text: bytes) -> None:
        if text[:1] == b"[" and text[-1:] == b"]":
            self.note = "the last line is a JSON array, if it is JSON: only an object becomes result_data"


def _opened(line: bytes) -> int:
    """Return how many objects and lists a line opens and leaves open. A text has its begin and its end on one line."""
    outside = TEXT.sub(b"", line.replace(b"\\\\", b"").replace(b'\\"', b""))
    return sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. Raises _Refused for a key that is there twice: one of the values would be lost."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise _Refused(f"the key {shown(name)!a} is there twice")
        made[name] = value
    return made
