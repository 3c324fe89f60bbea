"""Options that several commands share: spans of time, labels, params, and a confirmation given in advance."""

import contextlib
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import click

from orchestrator.cli.program import suggestion
from orchestrator.core import moments
from orchestrator.errors import BAD_ARGUMENT, Failure

SPAN = re.compile(r"(\d{1,5})([smhdw])")
UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
MAX_LABELS = 16
EXAMPLE = """'{"name": "you"}'"""
KINDS: dict[type, str] = {
    list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null",
    dict: "an object",
}  # fmt: skip
MAX_PARAMS_BYTES = 1 << 20

verbose_option = click.option("-v", "--verbose", is_flag=True, help="Also the formula of each decision.")
force_option = click.option("--force", "--yes", "force", is_flag=True, help="Do not ask.")


class Choice(click.Choice[str]):
    """One of several words. The error names them as they are declared, and suggests the most similar one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the error."""
        known = [str(one) for one in self.choices]
        return f"{value!r} is not one of {', '.join(map(repr, known))}.{suggestion(str(value), known)}"


def since(text: str, now: datetime, name: str = "--since") -> datetime:
    """Return a time in the past, from a span before now (90m, 24h, 7d, 2w) or ISO 8601. Raises Failure."""
    found = _moment(text, now, sign=-1)
    if found is None or found > now:
        raise Failure(BAD_ARGUMENT, why=f"{name} {text!r} is neither a span (90m, 24h, 7d, 2w) nor a time in the past")
    return found


def later(text: str, now: datetime, name: str) -> datetime:
    """Return a time, from a span after now (30m, 2h) or ISO 8601. Raises Failure."""
    found = _moment(text, now, sign=1)
    if found is None:
        raise Failure(BAD_ARGUMENT, why=f"{name} {text!r} is neither a span (30s, 10m, 2h, 1d) nor a time (ISO 8601)")
    return found


def labels(given: Sequence[str], name: str = "--label", most: int = MAX_LABELS) -> dict[str, str]:
    """Return the labels, or other pairs, of KEY=VALUE texts. Raises Failure."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Failure(BAD_ARGUMENT, why=f"{name} {text!r} is not KEY=VALUE")
        found[key] = value
    if len(found) > most:
        raise Failure(BAD_ARGUMENT, why=f"{name} is given for {len(found)} keys; a task has at most {most}")
    return found


def no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and no database stores."""
    raise ValueError(f"{name} is not JSON")


def params(text: str) -> dict[str, Any]:
    """Read a JSON object from the text of an option, or from the file that it names. Raises Failure."""
    source = "--params"
    if text.startswith("@"):
        source = "stdin" if text == "@-" else text[1:]
        text = file_text(text[1:], "the params", MAX_PARAMS_BYTES)
    try:
        found = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        what = f"{_named(source)} must be a JSON object, for example {EXAMPLE}"
        raise Failure(BAD_ARGUMENT, what=what, why=f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or len(text) > MAX_PARAMS_BYTES:
        kind = KINDS[type(found)] if len(text) <= MAX_PARAMS_BYTES else f"longer than {MAX_PARAMS_BYTES} bytes"
        what = f"{_named(source)} must be a JSON object, for example {EXAMPLE}"
        raise Failure(BAD_ARGUMENT, what=what, why=f"it is {kind}")
    return found


def _named(source: str) -> str:
    return source if source == "--params" else f"--params from {source}"


def file_text(path: str, what: str, most_bytes: int, fix: str | None = None) -> str:
    """Return the text of a file, or of stdin for `-`. However large it is, little more than allowed is read.

    Raises Failure. `fix` is for a text that is too long.
    """
    named = "stdin" if path == "-" else path
    try:
        with _opened(path) as file:
            text = file.read(most_bytes + 1)
        size = len(text.encode())
    except (OSError, UnicodeError) as error:
        raise Failure(BAD_ARGUMENT, what=f"{what} cannot be read", why=f"{named}: {error}") from None
    if size > most_bytes:
        why = f"{named} is longer than {most_bytes >> 10} KiB"
        raise Failure(BAD_ARGUMENT, what=f"{what} cannot be used", why=why, fix=fix)
    return text.removeprefix("\ufeff")  # which spreadsheets write first


def _opened(path: str) -> contextlib.AbstractContextManager[TextIO]:
    return contextlib.nullcontext(sys.stdin) if path == "-" else Path(path).open(encoding="utf-8")


def _moment(text: str, now: datetime, sign: int) -> datetime | None:
    match = SPAN.fullmatch(text.strip())
    try:
        return now + sign * int(match[1]) * UNITS[match[2]] if match else moments.parsed(text)
    except (ValueError, OverflowError):
        return None
