"""Secrets kept out of everything that leaves this process in words: logs, rows, answers, reports, error messages.

By value: each secret that was configured, as it is and in the encodings in which it travels. By shape: what is made at
run time and looks like nothing else (workers' tokens, signed URLs, passwords in URLs, private keys). By the name of its
key, where asked for. `redact` is the one function that every sink calls; `hide` tells it the secrets.
"""

import base64
import json
import logging
import re
import sys
import threading
import traceback
import urllib.parse
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

HIDDEN = "[redacted]"
SHORTEST = 8  # characters of a secret or of an encoding of it; what is shorter would hide words
LINE = 16  # characters of a line that is a secret by itself: a private key's
SECRET_NAMES = re.compile(
    r"secret|passw|token|api_?key|private_?key|signing_?key|service_role|authorization|database_url|cookie|credential",
    re.IGNORECASE,
)
PUBLIC_NAMES = frozenset({"token_jti"})
PLAIN = (bool, int, float, type(None))

# Something that must be there, what is looked for then, and what stays of it; capital or small letters are one.
SHAPES = tuple(
    (marker, re.compile(pattern, re.IGNORECASE | re.DOTALL), stays)
    for marker, pattern, stays in (
        ("private key-", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
        ("eyj", r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{16,}", HIDDEN),
        # A token that begins with {"alg": in base64 once more, at its three places within a group of three bytes.
        ("", r"(?-i:ZXlKaGJHY2lPa|V5SmhiR2NpT2l|leUpoYkdjaU9p)[\w+/=-]{16,}", HIDDEN),
        ("://", r"(?<=://)([^\s/:@\"']{0,64}):[^\s/@\"']{1,256}@", rf"\1:{HIDDEN}@"),
        ("mz-", r"(X-Amz-(?:Signature|Credential|Security-Token)(?:=|%3D))[\w%./+-]+", rf"\1{HIDDEN}"),
        ("bearer", r"\b(Bearer\s+)[\w.~+/=-]{8,}", rf"\1{HIDDEN}"),
        ("basic", r"(authorization\W{1,8}(?:b\W)?Basic\s+)[\w+/=-]{4,}", rf"\1{HIDDEN}"),  # `basic` is a word, too
        ("rpa_", r"\brpa_\w{16,}", HIDDEN),
        ("sb_secret_", r"\bsb_secret_[\w-]{16,}", HIDDEN),
    )
)
PRIVATE_KEYS = SHAPES[:1]  # what stays hidden even where an operator asks for secrets


class Redactor:
    """Hides secrets in text and in whatever is made of lists, mappings and text."""

    def __init__(self, secrets: Iterable[str] = (), shapes: tuple[Any, ...] = SHAPES) -> None:
        self._shapes = shapes
        self._secrets: frozenset[str] = frozenset()
        self._needles: tuple[str, ...] = ()
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Hide these too, from now on."""
        added = {part for secret in secrets for part in _parts(secret)} - self._secrets
        if added:
            self._secrets |= added
            needles = {needle for secret in self._secrets for needle in encodings(secret) if len(needle) >= SHORTEST}
            self._needles = tuple(sorted(needles, key=len, reverse=True))

    def redact(self, value: Any, *, by_name: bool = False, by_shape: bool = True) -> Any:
        """The value without secrets; an object that would show one becomes text."""
        redact = partial(self.redact, by_name=by_name, by_shape=by_shape)
        if isinstance(value, str):
            return self._text(value, by_shape=by_shape)
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Mapping):
            return {
                redact(key) if isinstance(key, str) else key: HIDDEN
                if by_name and content and _named_secret(key)
                else redact(content)
                for key, content in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [redact(part) for part in value]
        if isinstance(value, (bytes, bytearray)):
            return redact(bytes(value).decode("utf-8", "backslashreplace"))
        return redact(str(value)) if redact(shown := f"{value!s} {value!r}") != shown else value

    def _text(self, text: str, *, by_shape: bool) -> str:
        if len(text) < SHORTEST:
            return text
        for needle in self._needles:
            if needle in text:
                text = text.replace(needle, HIDDEN)
        small = text.lower() if by_shape else ""
        for marker, shape, stays in self._shapes if by_shape else ():
            if marker in small:
                text = shape.sub(stays, text)
        return text


_shared = Redactor()
hide = _shared.hide
redact = _shared.redact


def encodings(secret: str) -> Iterator[str]:
    """The secret as it stands in text, JSON, URLs, a repr and base64, wherever in a longer text it began."""
    yield secret
    yield from (json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    yield repr(secret)[1:-1]
    for quoted in (urllib.parse.quote(secret), urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)):
        yield quoted
        yield re.sub("%..", lambda escape: escape[0].lower(), quoted)
    raw = secret.encode()
    for before, first in ((0, 0), (1, 2), (2, 3)):  # bytes in front; the first character that they have no part in
        whole = (before + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * before + raw).decode()[first:whole]


def passwords(text: str) -> Iterator[str]:
    """The passwords of the URLs in a text, as they stand there and decoded; not one that is the user's own name."""
    for user, password in re.findall(r"://([^\s/:@]*):([^\s/@]+)@", text):
        if password != user:
            yield password
            yield urllib.parse.unquote(password)


def guard_last_words() -> None:
    """Redact what Python itself writes to stderr: uncaught exceptions of any thread, logging that nobody set up."""
    sys.excepthook = _excepthook
    sys.unraisablehook = lambda said: _excepthook(said.exc_type, said.exc_value, said.exc_traceback)
    threading.excepthook = lambda said: _excepthook(said.exc_type, said.exc_value, said.exc_traceback)
    warnings.showwarning = _show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Plain())


def last_words(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> str:
    """A traceback, redacted."""
    return str(redact("".join(traceback.format_exception(kind, error, trace))))


def _excepthook(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    sys.stderr.write(last_words(kind, error, trace))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    (file or sys.stderr).write(redact(warnings.formatwarning(message, category, filename, lineno, line)))


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return str(redact(super().format(record)))


def _parts(secret: str) -> Iterator[str]:
    """A secret, and each of its lines where they are secrets by themselves."""
    secret = secret.strip()
    if len(secret) >= SHORTEST:
        yield secret
    lines = [line.strip() for line in secret.replace("\\n", "\n").splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= LINE and not line.startswith("-----"))


def _named_secret(key: object) -> bool:
    return isinstance(key, str) and key not in PUBLIC_NAMES and SECRET_NAMES.search(key) is not None
