"""Removes secrets from all text that leaves this process: logs, rows, answers, reports, error messages.

By value: each configured secret, plain and in the usual encodings. By shape: values that are made at run time and have
a clear form (workers' tokens, presigned URLs, passwords in URLs, private keys). By the name of the key, on request.
Every output calls `redact`; `hide` adds secrets.
"""

import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from worker.redaction import HIDDEN, encodings, parts

SHORTEST = 8  # characters of a secret or of its encoding; a shorter one would also hide ordinary words
SECRET_NAMES = re.compile(
    r"secret|passw|token|api_?key|private_?key|signing_?key|service_role|authorization|database_url|cookie|credential",
    re.IGNORECASE,
)
PUBLIC_NAMES = frozenset({"token_jti"})
PLAIN = (bool, int, float, type(None))

# The separator of texts that are searched together. No pattern may replace it.
SEPARATOR = "\0"
BLOCK_BYTES = 8  # of a text, compared with the beginnings of secrets at once
WHOLE_BLOCK_BYTES = 2 * BLOCK_BYTES - 1  # a text of this length contains an aligned block at any offset

# Something that must be there, what is looked for then, and what stays of it; capital or small letters are one. Each
# pattern takes linear time: it starts only where a run of its characters starts, and never gives back what it took.
SHAPES = tuple(
    (marker, re.compile(pattern, re.IGNORECASE | re.DOTALL), stays)
    for marker, pattern, stays in (
        (
            "private key-",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\0]*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\0)|\Z)",
            HIDDEN,
        ),
        ("eyj", r"(?<![\w-])((?>[\w-]*?(?=eyJ)))[\w-]{11,}+\.eyJ[\w-]{8,}+\.[\w-]{16,}", rf"\1{HIDDEN}"),
        # A token that begins with {"alg": in base64 of base64, at its three places within a group of three bytes.
        ("", r"(?-i:ZXlKaGJHY2lPa|V5SmhiR2NpT2l|leUpoYkdjaU9p)[\w+/=-]{16,}", HIDDEN),
        ("://", r"(?<=://)([^\s/:@\"'\0]{0,64}):[^\s/@\"'\0]{1,256}@", rf"\1:{HIDDEN}@"),
        ("mz-", r"(X-Amz-(?:Signature|Credential|Security-Token)(?:=|%3D))[\w%./+-]+", rf"\1{HIDDEN}"),
        ("bearer", r"\b(Bearer\s+)[\w.~+/=-]{8,}", rf"\1{HIDDEN}"),
        ("basic", r"(authorization\W{1,8}(?:b\W)?Basic\s+)[\w+/=-]{4,}", rf"\1{HIDDEN}"),  # `basic` is a word, too
        ("rpa_", r"\brpa_\w{16,}", HIDDEN),
        ("gpo_", r"\bgpo_[\w-]{16,}", HIDDEN),  # a token of our API
        ("sb_secret_", r"\bsb_secret_[\w-]{16,}", HIDDEN),
    )
)
PRIVATE_KEYS = SHAPES[:1]  # stays hidden even if an operator asks for secrets


class Redactor:
    """Hides secrets in text, and in lists and mappings of text."""

    def __init__(self, secrets: Iterable[str] = (), shapes: tuple[Any, ...] = SHAPES) -> None:
        self._shapes = shapes
        self._secrets: frozenset[str] = frozenset()
        self._short: tuple[str, ...] = ()  # needles that may lie between two blocks
        self._beginnings: frozenset[int] = frozenset()
        self._blocks: dict[int, tuple[str, ...]] = {}  # a block -> the needles that have it within their beginning
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Also hide these from now on."""
        added = {part for secret in secrets for part in parts(secret, SHORTEST)} - self._secrets
        if added:
            self._secrets |= added
            needles = {needle for secret in self._secrets for needle in encodings(secret) if len(needle) >= SHORTEST}
            self._short = tuple(needle for needle in needles if len(needle.encode()) < WHOLE_BLOCK_BYTES)
            self._blocks = _blocks(needles.difference(self._short))
            self._beginnings = frozenset(self._blocks)

    def redact(self, value: Any, *, by_name: bool = False, by_shape: bool = True) -> Any:
        """Return the value without secrets. An object that would show one becomes text.

        All texts of a value are searched together, because each search has a fixed cost.
        """
        if isinstance(value, str):
            return self._text(value, by_shape=by_shape)
        texts: list[str] = []

        def collected(text: str) -> str:
            if SEPARATOR in text:
                return self._text(text, by_shape=by_shape)
            texts.append(text)
            return text

        copy = self._rebuilt(value, collected, by_name=by_name)
        together = SEPARATOR.join(texts)
        cleaned = self._text(together, by_shape=by_shape)
        if cleaned == together:
            return copy
        parts = iter(cleaned.split(SEPARATOR))
        return self._rebuilt(
            value,
            lambda text: self._text(text, by_shape=by_shape) if SEPARATOR in text else next(parts),
            by_name=by_name,
        )

    def _rebuilt(self, value: Any, text: Callable[[str], str], *, by_name: bool) -> Any:
        """A copy with each of its texts replaced, in one fixed order."""
        if isinstance(value, str):
            return text(value)
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Mapping):
            made: dict[Any, Any] = {}
            for key, content in value.items():
                name = text(key) if isinstance(key, str) else key
                if name in made:  # two keys that differ in a secret only: both values stay
                    name = f"{name} {len(made)}"
                is_hidden = by_name and content and _named_secret(key)
                made[name] = HIDDEN if is_hidden else self._rebuilt(content, text, by_name=by_name)
            return made
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._rebuilt(part, text, by_name=by_name) for part in value]
        if isinstance(value, (bytes, bytearray)):
            return text(bytes(value).decode("utf-8", "backslashreplace"))
        shown = f"{value!s} {value!r}"
        return text(str(value)) if self._text(shown, by_shape=True) != shown else value

    def _text(self, text: str, *, by_shape: bool) -> str:
        if len(text) < SHORTEST:
            return text
        for needle in self._present(text):
            text = text.replace(needle, HIDDEN)
        small = text.lower() if by_shape else ""
        for marker, shape, stays in self._shapes if by_shape else ():
            if marker in small:
                text = shape.sub(stays, text)
        return text

    def _present(self, text: str) -> list[str]:
        """The needles that the text contains, longest first.

        One pass over the text's aligned blocks finds the candidates. A search for each of a thousand needles would take
        hundreds of milliseconds in a text of 1 MiB.
        """
        encoded = text.encode("utf-8", "surrogatepass")
        blocks = memoryview(encoded)[: len(encoded) // BLOCK_BYTES * BLOCK_BYTES].cast("Q")
        candidates = set(self._short)
        if not self._beginnings.isdisjoint(blocks):
            for block in self._beginnings.intersection(blocks):
                candidates.update(self._blocks[block])
        return sorted((needle for needle in candidates if needle in text), key=len, reverse=True)


_shared = Redactor()
hide = _shared.hide
redact = _shared.redact


def plain(text: str) -> str:
    """Remove control characters from a text: escape sequences, C1 controls, bidi marks."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)


def redact_uncaught_errors() -> None:
    """Redact Python's own output to stderr: uncaught exceptions of all threads, and unconfigured logging."""
    sys.excepthook = _excepthook
    sys.unraisablehook = lambda hooked: _excepthook(hooked.exc_type, hooked.exc_value, hooked.exc_traceback)
    threading.excepthook = lambda hooked: _excepthook(hooked.exc_type, hooked.exc_value, hooked.exc_traceback)
    warnings.showwarning = _show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Plain())


def uncaught_error_text(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> str:
    """A traceback, redacted."""
    return plain(str(redact("".join(traceback.format_exception(kind, error, trace)))))


def _excepthook(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    sys.stderr.write(uncaught_error_text(kind, error, trace))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    (file or sys.stderr).write(plain(redact(warnings.formatwarning(message, category, filename, lineno, line))))


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain(str(redact(super().format(record))))


def _blocks(needles: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Return each block that an occurrence of a needle may show first, at each offset in a text."""
    found: dict[int, tuple[str, ...]] = {}
    for needle in needles:
        start = needle.encode()[:WHOLE_BLOCK_BYTES]
        for offset in range(BLOCK_BYTES):
            block = int.from_bytes(start[offset : offset + BLOCK_BYTES], sys.byteorder)
            found[block] = (*found.get(block, ()), needle)
    return found


def _named_secret(key: object) -> bool:
    return isinstance(key, str) and key not in PUBLIC_NAMES and SECRET_NAMES.search(key) is not None
