"""A private key's text: found, put together again, proven whole by the lengths it carries, or refused by name."""

import base64
import binascii
import re
from collections.abc import Iterator

from orchestrator.config.ssh_keys.unwrap import (
    ASSIGNED,
    DECORATION,
    MASK,
    MAX_CHARS,
    PRIVATE,
    PUBLIC_TYPE,
    KeyText,
    bounded,
    refused,
    unwrapped,
)

MAGIC = b"openssh-key-v1\0"  # OpenSSH's PROTOCOL.key
LINE_CHARS = {"OPENSSH": 70}  # in a line of the body; all others have PEM's
PEM_LINE_CHARS = 64  # RFC 7468
SEQUENCE, INTEGER, OCTETS = 0x30, 0x02, 0x04  # DER tags
UNLOCK = "ssh-keygen -p -N '' -f <a copy of the key>, and paste that"

MARK = re.compile(
    r"(?:-+\s*)?\b(BEGIN|END)[\s+]*((?:OPENSSH|RSA|EC|DSA|ENCRYPTED)?)[\s+]*PRIVATE[\s+]*KEY(?:[ \t]*-+)?"
)
CIPHERS = re.compile(rb"aes|chacha|3des|blowfish|cast|arcfour")  # of a passphrase
ALPHABET = re.compile(r"[A-Za-z0-9+/]+={0,2}")
LEGACY = re.compile(r"Proc-Type:|DEK-Info:", re.IGNORECASE)


def private_text(given: str) -> KeyText:
    """A private key as PEM. BadKey where something was lost, or where it is something else."""
    bounded(given, PRIVATE, "private")
    text, undone = unwrapped(given)
    _is_private(text)
    body, around = _body(text)
    blob, more = _blob(body)
    label = _label(blob)
    text = pem(label, blob)
    undone += around + more
    if not undone and given != text:
        undone.append("no final newline" if given + "\n" == text else "line breaks, blanks or its label changed")
    return KeyText(text, tuple(dict.fromkeys(undone)))


def pem(label: str, blob: bytes) -> str:
    """The text form of a private key, as ssh-keygen and openssl write it."""
    encoded, width = base64.b64encode(blob).decode(), LINE_CHARS.get(label, PEM_LINE_CHARS)
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
    name = f"{label} PRIVATE KEY".strip()
    return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""])


def _is_private(text: str) -> None:
    """BadKey for the many things that are pasted in a private key's place."""
    stripped = text.strip().strip("\"'")
    if "PuTTY-User-Key-File" in text:
        raise refused(
            PRIVATE, "it is in PuTTY's format", "puttygen key.ppk -O private-openssh -o id_ed25519, and paste that"
        )
    if MARK.search(text):
        if MASK.search(text):
            raise refused(PRIVATE, "it was masked or shortened by whatever displayed it")
        return
    if "PUBLIC KEY" in text or PUBLIC_TYPE.search(text):
        raise refused(PRIVATE, "it is a public key; the private one belongs here, the file without .pub")
    if re.search(r"\$\(|\$\{|\$[A-Z_]{3,}|^<\s*[~/.]", stripped):
        raise refused(PRIVATE, "it is a shell expression that no shell expanded")
    if MASK.search(text):
        raise refused(PRIVATE, "it was masked or shortened by whatever displayed it")
    if re.fullmatch(r"(?:file:|~|\.{0,2}/)\S{1,255}|\S{1,255}\.(?:pem|key|pub|ppk)", stripped):
        raise refused(PRIVATE, "it is a path; the text of that file is wanted")
    if re.search(r"BEGIN [A-Z ]*PRIVATE KEY", text.upper()):
        raise refused(PRIVATE, "its letters' case was changed, which loses the key")


def _body(text: str) -> tuple[str, list[str]]:
    """What stands between the markers, once, and what stood around it."""
    marks = list(MARK.finditer(text))
    if not marks:
        said = ["no header"] if len(text) > PEM_LINE_CHARS else []
        return ASSIGNED.sub("", text), said
    said = []
    if LEGACY.search(text) or any(mark[2] == "ENCRYPTED" for mark in marks):
        raise refused(PRIVATE, "it is encrypted with a passphrase", UNLOCK)
    pieces = [text[one.end() : two.start()] for one, two in zip(marks, [*marks[1:], None], strict=True) if two]
    bodies = {"".join(piece.split()): piece for piece in pieces if "".join(piece.split())}
    before, after = text[: marks[0].start()], text[marks[-1].end() :]
    if marks[-1][1] == "BEGIN":
        bodies["".join(after.split())], after = after, ""
        said.append("no footer")
    if marks[0][1] == "END":
        bodies["".join(before.split())], before = before, ""
        said.append("no header")
    bodies = {compact: body for compact, body in bodies.items() if compact}
    if len(bodies) > 1:
        raise refused(PRIVATE, f"it holds {len(bodies)} private keys, or one with a marker in its middle")
    if not bodies:
        raise refused(PRIVATE, "there is nothing between its header and its footer")
    if len(marks) > 2:  # noqa: PLR2004  a header and a footer
        said.append("a header, a footer or the whole twice")
    if DECORATION.sub("", before).strip():
        said.append("a name or other text before the key" if ASSIGNED.match(before) else "text before the key")
    if DECORATION.sub("", after).strip():
        said.append("text after the key")
    return next(iter(bodies.values())), said


def _blob(body: str) -> tuple[bytes, list[str]]:
    """The key's bytes, by the first reading under which its own length comes out right."""
    short = None
    for name, compact in _readings(body):
        if not compact or not ALPHABET.fullmatch(compact):
            continue
        if len(compact) % 4 == 1:
            compact = compact[:-1]  # noqa: PLW2901  no encoding gives so many: cut off, and in the middle of a byte
        try:
            blob = base64.b64decode(compact + "=" * (-len(compact) % 4))
        except binascii.Error:
            continue
        missing = shortage(blob)
        if missing == 0:
            return blob, [name] if name else []
        short = missing if short is None else short
    strange = sorted(set(re.sub(r"[A-Za-z0-9+/=\s_-]", "", DECORATION.sub("", body))))
    if strange:
        raise refused(PRIVATE, f"it has characters that no key has: {' '.join(map(ascii, strange[:5]))}")
    if short is not None and short > 0:
        raise refused(PRIVATE, f"it is cut off: at least {short} bytes are missing")
    if short is not None and short < 0:
        raise refused(PRIVATE, f"it has {-short} bytes too many in its middle")
    raise refused(PRIVATE, "what is there is no private key: characters were lost or changed")


def _readings(body: str) -> Iterator[tuple[str, str]]:
    """Ways to read a body as base64, the plainest first."""
    lines = body.split("\n")
    plain = "".join(body.split())
    blanks = len(plain) > PEM_LINE_CHARS and "\n" not in body.strip().replace("\r", "\n")
    yield ("blanks or nothing for line breaks" if blanks else "", plain)
    clean = "".join(DECORATION.sub("", body).split())
    yield "quotes, brackets or marks around lines", clean
    yield "URL-safe base64", clean.replace("-", "+").replace("_", "/")
    yield "blanks for plus signs", "".join(line.rstrip("\r").replace(" ", "+") for line in lines)
    for width in (70, PEM_LINE_CHARS):  # "\n" that lost its backslash: an n in each line's place
        parts = [plain[at : at + width + 1] for at in range(0, len(plain), width + 1)]
        if plain.startswith("n") and all(part.startswith("n") for part in parts):
            last = parts[-1].removesuffix("n") if len(parts[-1]) > 1 else ""
            yield "the letter n for line breaks", "".join(part[1:] for part in [*parts[:-1], last])


def shortage(blob: bytes) -> int | None:
    """How many bytes lack to the key's own length (negative: too many); None if it does not begin like a key."""
    if blob.startswith(MAGIC):
        return _openssh_shortage(blob)
    if len(blob) < 4 or blob[0] != 0x30:  # noqa: PLR2004  a DER sequence and its length
        return None
    first = blob[1]
    if first < 0x80:  # noqa: PLR2004  X.690 §8.1.3.4
        return 2 + first - len(blob)
    octets = first & 0x7F
    if octets not in {1, 2}:
        return None
    return 2 + octets + int.from_bytes(blob[2 : 2 + octets], "big") - len(blob)


def _openssh_shortage(blob: bytes) -> int | None:
    """OpenSSH's PROTOCOL.key: cipher, kdf, its options, a count, the public key, the private part."""
    at = len(MAGIC)
    for field in ("cipher", "kdf", "options", "count", "public", "private"):
        if len(blob) < at + 4:
            return at + 4 - len(blob)
        size = 0 if field == "count" else int.from_bytes(blob[at : at + 4], "big")
        if size > MAX_CHARS:
            return None
        if field == "cipher" and CIPHERS.match(blob[at + 4 : at + 4 + size]):
            raise refused(PRIVATE, "it is encrypted with a passphrase", UNLOCK)
        at += 4 + size
    return at - len(blob)


def stated_public(text: str) -> bytes | None:
    """The public half that an OpenSSH key states beside its secret one; None in the other forms."""
    blob = base64.b64decode("".join(text.strip().split("\n")[1:-1]))
    if not blob.startswith(MAGIC):
        return None
    at = len(MAGIC)
    for _ in ("cipher", "kdf", "options"):
        at += 4 + int.from_bytes(blob[at : at + 4], "big")
    at += 4  # the count of keys
    return blob[at + 4 : at + 4 + int.from_bytes(blob[at : at + 4], "big")]


def _label(blob: bytes) -> str:
    """The header's word, from the content: PKCS#8 has none."""
    if blob.startswith(MAGIC):
        return "OPENSSH"
    at = 2 + (blob[1] & 0x7F if blob[1] & 0x80 else 0)
    if blob[at] == 0x30:  # noqa: PLR2004  an algorithm first: EncryptedPrivateKeyInfo
        raise refused(PRIVATE, "it is encrypted with a passphrase", UNLOCK)
    after = blob[at + 3]
    kinds = {0x30: "", 0x04: "EC", 0x02: "RSA"}  # algorithm, octet string, integer
    if blob[at : at + 2] != b"\x02\x01" or after not in kinds:
        raise refused(PRIVATE, "it is no private key, but something else in its wrapping")
    if kinds[after] == "RSA" and _integers(blob, at) < 9:  # noqa: PLR2004  RFC 8017 A.1.2; DSA has six
        raise refused(
            PRIVATE, "it is a DSA key, which OpenSSH no longer takes", "ssh-keygen -t ed25519 makes one that it takes"
        )
    return kinds[after]


def _integers(blob: bytes, at: int) -> int:
    """How many DER integers follow one another."""
    count = 0
    while at < len(blob) - 1 and blob[at] == 0x02:  # noqa: PLR2004
        size, head = blob[at + 1], 2
        if size & 0x80:
            octets = size & 0x7F
            size, head = int.from_bytes(blob[at + 2 : at + 2 + octets], "big"), 2 + octets
        at, count = at + head + size, count + 1
    return count
