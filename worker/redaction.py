"""The removal of secrets from text that leaves the pod. `secret_values` says which values are secrets.

Only values of at least MIN_SECRET characters are removed: "1" or "true" would also hide ordinary words. A secret is
found as it is and in the encodings that programs print it in. A search costs time in proportion to the text, whatever
the number of secrets: one pass over aligned blocks of the text finds which of them it may contain.
"""

from __future__ import annotations

import binascii
import json
import os
import re
import sys

from .secret_values import raw_bytes, secrets_of

TYPE_CHECKING = False  # typing is not imported on the pod: it would take a tenth of the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HIDDEN = "[redacted]"
MIN_SECRET = 6  # characters of a secret
MIN_ENCODED = 8  # characters of an encoding that is not the secret itself
MIN_LINE = 16  # characters of a line that is a secret by itself: a private key's
PIECE_CHARS = 1_024  # a longer secret is removed in pieces of at most this length
BLOCK_BYTES = 8  # of a text, compared with the beginnings of secrets at once
WHOLE_BLOCK_BYTES = 2 * BLOCK_BYTES - 1  # a text of this length contains an aligned block at any offset
WRAPPED_AT = (64, 76)  # columns at which programs wrap base64
URL_SAFE = b"-._~ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# What else programs leave as it is: none, paths, JavaScript (a part, a whole URL), forms, requests, users of httpx.
URL_SAFE_TOO = (b"", b"/", b"!*'()", b"!*'();/?:@&=+$,#", b"*", b"!#$%&'()*+,/:;=?@[]", b"!$&'()*+,")


def parts(secret: str, least: int = MIN_SECRET) -> Iterator[str]:
    """Yield a secret in pieces of at most PIECE_CHARS, and each of its lines that is a secret by itself."""
    secret = secret.strip()
    if len(secret) >= least:
        count = -(-len(secret) // PIECE_CHARS)
        size = -(-len(secret) // count)
        yield from (secret[first : first + size] for first in range(0, len(secret), size))
    lines = [line.strip() for line in secret.replace("\\n", "\n").splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE and not line.startswith("-----"))


def encodings(secret: str) -> Iterator[str]:
    """Yield the forms of a secret: text, JSON, repr, CSV, shell, HTML, URL, hex, base64 at each offset."""
    yield secret
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1].replace("/", "\\/")
        yield json.dumps(json.dumps(secret, ensure_ascii=ascii_only))[3:-3]
        yield _without_markup(json.dumps(secret, ensure_ascii=ascii_only)[1:-1])
        yield repr(json.dumps(secret, ensure_ascii=ascii_only))[2:-2]
    raw = raw_bytes(secret)
    yield re.sub(r"\\u....", lambda escape: "\\u" + escape[0][2:].upper(), json.dumps(secret)[1:-1])
    yield repr(secret)[1:-1]
    yield repr(repr(secret))[2:-2].removeprefix("\\").removesuffix("\\")
    yield json.dumps(repr(secret))[2:-2]
    yield ascii(secret)[1:-1]
    yield repr(raw)[2:-1]
    yield secret.replace("'", "''")
    yield secret.replace('"', '""')
    yield secret.replace("'", "'\"'\"'")
    yield secret.replace("'", "'\\''")
    yield re.sub(r'(["$`\\])', r"\\\1", secret)
    yield re.sub(r"([!-~])(?<![\w%+,./:=@-])", r"\\\1", secret).replace(" ", "\\ ")
    for quote in ('"', "&quot;", "&#34;"):
        html = secret.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', quote)
        for form in (html, html.replace("'", "&#x27;"), html.replace("'", "&#39;")):
            yield from (form, form.replace("+", "&#43;"))
    for safe in URL_SAFE_TOO:
        quoted = "".join(chr(byte) if byte in URL_SAFE + safe else f"%{byte:02X}" for byte in raw)
        for form in (quoted, quoted.replace("%20", "+"), quoted.replace("~", "%7E"), quoted.replace("%", "%25")):
            yield from (form, re.sub("%..", lambda escape: escape[0].lower(), form)) if "%" in form else (form,)
    for digits in (raw.hex(), raw.hex(":"), raw.hex(" "), raw.hex("-"), "%" + raw.hex("%")):
        yield from (digits, digits.upper())
    yield "".join(f"\\x{byte:02x}" for byte in raw)
    for before, first in ((0, 0), (1, 2), (2, 3)):  # bytes in front; the first character that they have no part in
        whole = (before + len(raw)) * 8 // 6
        text = binascii.b2a_base64(b"\0" * before + raw, newline=False).decode()
        for form in (text[first:whole], text[first:].rstrip("="), text[first:]):  # what follows it decides on its end
            yield from (form, form.replace("+", "-").replace("/", "_"))
            for columns in WRAPPED_AT if before == 0 else ():
                yield "\n".join(form[start : start + columns] for start in range(0, len(form), columns))


def _without_markup(text: str) -> str:
    """Escape what Go and PHP escape in JSON, so that it can be a part of HTML."""
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


class KnownSecrets:
    """Removes secrets from text and from bytes."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = {part for secret in secrets for part in parts(secret)}
        self._renewed: tuple[str, ...] = ()
        self._build()

    def renew(self, token: str) -> None:
        """Also remove a renewed token. The previous one is still valid for a while, so it stays removed."""
        self._renewed = (token, *self._renewed[:1])
        self._build()

    def _build(self) -> None:
        needles: set[bytes] = set()
        for secret in {*self._secrets, *(part for token in self._renewed for part in parts(token))}:
            needles |= {raw_bytes(form) for form in encodings(secret) if form == secret or len(form) >= MIN_ENCODED}
        starts: dict[bytes, tuple[bytes, ...]] = {}
        for needle in needles:
            for size in range(1, min(BLOCK_BYTES, len(needle) - 1) + 1):
                starts[needle[:size]] = (*starts.get(needle[:size], ()), needle)
        blocks: dict[int, tuple[bytes, ...]] = {}
        for needle in needles:
            for offset in range(BLOCK_BYTES if len(needle) >= WHOLE_BLOCK_BYTES else 0):
                block = int.from_bytes(needle[offset : offset + BLOCK_BYTES], sys.byteorder)
                blocks[block] = (*blocks.get(block, ()), needle)
        short = tuple(needle for needle in needles if len(needle) < WHOLE_BLOCK_BYTES)
        self.longest = max(map(len, needles), default=0)
        # One assignment: another thread may search meanwhile.
        self._search = (tuple(needles), starts, short, blocks, frozenset(blocks))

    def clean_text(self, text: str) -> str:
        """Return the text without secrets."""
        data = text.encode("utf-8", "surrogatepass")
        found = self.clean(data)
        return text if found is data else found.decode("utf-8", "surrogatepass")

    def clean(self, data: bytes) -> bytes:
        """Return the bytes without secrets."""
        kept, at = [], 0
        for first, last in self.places(data):
            kept.append(data[at:first])
            at = last
        return HIDDEN.encode().join([*kept, data[at:]]) if kept else data

    def places(self, data: bytes) -> list[tuple[int, int]]:
        """Return where secrets begin and end, in order. Those that overlap make one place."""
        found: list[tuple[int, int]] = []
        for needle in self._present(data):
            places: list[tuple[int, int]] = []
            at = data.find(needle)
            while at >= 0:
                _join(places, at, at + len(needle))
                following = data.find(needle, at + 1)
                shift = following - at
                leap = (len(needle) - 1) // shift * shift if shift > 0 else 0
                if leap and data.startswith(needle, at + leap):  # it repeats itself: what lies between is covered
                    following = at + leap
                at = following
            found += places
        joined: list[tuple[int, int]] = []
        for first, last in sorted(found):
            _join(joined, first, last)
        return joined

    def find(self, data: bytes) -> int | None:
        """Return where a secret begins; None if there is none."""
        return min((data.find(needle) for needle in self._present(data)), default=None)

    def _present(self, data: bytes) -> list[bytes]:
        """Return the forms of secrets that the bytes contain."""
        _, _, short, blocks, beginnings = self._search
        present = [needle for needle in short if needle in data]
        aligned = memoryview(data)[: len(data) // BLOCK_BYTES * BLOCK_BYTES].cast("Q")
        if not beginnings.isdisjoint(aligned):
            found = {needle for block in beginnings.intersection(aligned) for needle in blocks[block]}
            present += [needle for needle in found if needle in data]
        return present

    def open_bytes(self, data: bytes) -> int:
        """Return how many bytes at the end may be the beginning of a secret that the next bytes complete."""
        starts = self._search[1]
        end = data[max(0, len(data) - self.longest + 1) :]
        for at in range(len(end)):
            possible = starts.get(end[at : at + BLOCK_BYTES])
            if possible and any(len(needle) > len(end) - at and needle.startswith(end[at:]) for needle in possible):
                return len(end) - at
        return 0


def _join(places: list[tuple[int, int]], first: int, last: int) -> None:
    """Add the next place in order, or lengthen the last one that it overlaps."""
    if places and first < places[-1][1]:
        places[-1] = (places[-1][0], max(last, places[-1][1]))
    else:
        places.append((first, last))


_own: KnownSecrets | None = None


def own_secrets() -> KnownSecrets:
    """Return the secrets in the environment of this process, as it was at the first call.

    A text that is shortened must be cleaned first: afterwards half of a secret may be left, which nobody recognizes.
    """
    global _own  # noqa: PLW0603 one environment
    if _own is None:
        _own = KnownSecrets(secrets_of(os.environ))
    return _own


class SecretFilter:
    """Removes secrets from a stream of bytes, also those that are split over its pieces: as from the whole of it."""

    def __init__(self, secrets: KnownSecrets) -> None:
        self._secrets = secrets
        self._held = b""  # the end of the stream, which may be the beginning of a secret
        self._done = 0  # of these bytes, those that were shown or hidden already
        self._hidden = 0  # of these, those that belong to a secret that was hidden

    @property
    def holds(self) -> bool:
        """Whether bytes are held back."""
        return len(self._held) > self._done

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown now."""
        data = self._held + data
        cut = len(data) - self._secrets.open_bytes(data)
        shown = self._show(data, cut)
        self._held = data[cut:]
        self._done, self._hidden = max(0, self._done - cut), max(0, self._hidden - cut)
        return shown

    def flush(self) -> bytes:
        """Return what was held back. If the next bytes complete a secret, these will be removed all the same."""
        return self._show(self._held, len(self._held))

    def _show(self, data: bytes, end: int) -> bytes:
        shown = []
        for first, last in self._secrets.places(data):
            if first >= max(end, self._hidden):
                break
            if last <= self._done:
                continue
            if first >= self._hidden:
                shown += [data[self._done : first], HIDDEN.encode()]
            self._done = self._hidden = last
        shown.append(data[self._done : end])
        self._done = max(self._done, end)
        return b"".join(shown)
