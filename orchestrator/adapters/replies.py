"""Decodes the database's JSON. A value that cannot be decoded in a user's row must not hide the other values."""

import json
import re
from typing import Any

MAX_LEVELS = 100  # levels of nesting; a task has at most 64, a reply adds a few
MAX_DIGITS = 4_300  # digits of a number; Python refuses to convert more
TOO_DEEP = '"(nested too deeply to be shown)"'
TOO_LONG = "(a number too long to be shown)"
TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')


def loads(reply: str | bytes) -> Any:
    """Return the decoded value, with a text in place of each part that Python cannot decode. Raises JSONDecodeError."""
    try:
        return json.loads(reply)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        text = reply if isinstance(reply, str) else reply.decode()
        return json.loads(_flattened(text), parse_int=_int)


def _flattened(text: str) -> str:
    """Return the JSON with a text in place of each value below MAX_LEVELS. Linear time."""
    kept, level, done, cut = [], 0, 0, 0
    for token in TOKENS.finditer(text):
        mark = token[0]
        if mark in ("[", "{"):
            level += 1
            if level == MAX_LEVELS + 1:
                cut = token.start()
        elif mark in ("]", "}"):
            if level == MAX_LEVELS + 1:
                kept += [text[done:cut], TOO_DEEP]
                done = token.end()
            level -= 1
    return "".join([*kept, text[done:]])


def _int(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else TOO_LONG
