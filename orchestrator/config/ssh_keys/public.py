"""Public keys' text: every key in it, found by the blob, which says itself what it is and how long."""

import base64
import re
from collections.abc import Iterator

import asyncssh

from orchestrator.config.ssh_keys.unwrap import MASK, PUBLIC, PUBLIC_TYPE, KeyText, bounded, refused, unwrapped

START = re.compile(r"(?<![A-Za-z0-9+/=])AAAA[A-Za-z0-9+/]")
PEM_BLOCK = re.compile(r"-+\s*BEGIN (RSA )?PUBLIC KEY\s*-+(.*?)-+\s*END (?:RSA )?PUBLIC KEY\s*-+", re.DOTALL)
OPTIONS = re.compile(r"\b(?:from=|command=|no-pty|no-port|restrict|permitopen=|environment=|cert-authority)")
FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}
MAX_FIELD_BYTES = 4096
COMMENT = re.compile(r"[ \t]+([\w@.+:-]{1,100})[ \t]*(?:\n|$)")


def public_text(given: str) -> KeyText:
    """Public keys as lines of authorized_keys. BadKey where one lost something, or is something else."""
    bounded(given, PUBLIC, "public")
    text, undone = unwrapped(given)
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        raise refused(
            PUBLIC, "it is a private key, which must never be here: pods are shown this; replace that key pair"
        )
    if OPTIONS.search(text):
        raise refused(PUBLIC, "it begins with options of authorized_keys; the plain line of the .pub file is wanted")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [*_pems(text), *(_line(text, start.start()) for start in START.finditer(text))]
    if not lines:
        raise refused(PUBLIC, _instead(text))
    lines = list(dict.fromkeys(lines))
    canonical = "\n".join(lines)
    if not undone and "".join(canonical.split()) != "".join(given.split()):
        undone.append("another form, or text around the key")
    elif not undone and canonical != given.strip():
        undone.append("line breaks or blanks changed")
    return KeyText(canonical, tuple(dict.fromkeys(undone)))


def _pems(text: str) -> Iterator[str]:
    """Keys in PEM, which pods do not take, in OpenSSH's form."""
    for block in PEM_BLOCK.finditer(text):
        label, body = f"{block[1] or ''}PUBLIC KEY", "".join(block[2].split())
        try:
            key = asyncssh.import_public_key(f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
        except (asyncssh.KeyImportError, ValueError):
            raise refused(PUBLIC, "its PEM text is cut off or changed") from None
        yield " ".join(key.export_public_key().decode().split()[:2])


def _line(text: str, start: int) -> str:
    """`type blob [comment]` of the key that begins there."""
    blob, end = b"", start
    for number, (end, compact) in enumerate(_prefixes(text, start)):
        blob = base64.b64decode(compact)
        size, kind = _size(blob)
        if kind is not None and kind not in FIELDS:
            raise refused(PUBLIC, _unusable(kind))
        if size is not None and size <= len(blob):
            if size < len(blob):
                raise refused(PUBLIC, "it has something too much in its middle")
            comment = COMMENT.match(text, end)
            return " ".join(filter(None, (kind, compact, comment[1] if comment else "")))
        if number > MAX_FIELD_BYTES:
            break
    raise refused(PUBLIC, "it is cut off")


def _prefixes(text: str, start: int) -> Iterator[tuple[int, str]]:
    """(end, the first 4, 8, 12 … characters of base64), blanks and line breaks between them left out."""
    taken: list[str] = []
    for at in range(start, len(text)):
        if text[at] in " \t\n'\",\\":
            continue
        if not re.match(r"[A-Za-z0-9+/=]", text[at]):
            return
        taken.append(text[at])
        if len(taken) % 4 == 0:
            yield at + 1, "".join(taken)


def _size(blob: bytes) -> tuple[int | None, str | None]:
    """How many bytes the blob should have, and its type, as far as these bytes tell."""
    at, kind, fields = 0, None, 1
    while fields:
        if len(blob) < at + 4:
            return None, kind
        size = int.from_bytes(blob[at : at + 4], "big")
        if size > MAX_FIELD_BYTES:
            raise refused(PUBLIC, "characters in it were lost or changed")
        field = blob[at + 4 : at + 4 + size]
        at, fields = at + 4 + size, fields - 1
        if kind is None:
            if len(field) < size:
                return None, None
            kind = field.decode("ascii", "replace")
            fields = FIELDS.get(kind, 0)
    return at, kind


def _unusable(kind: str) -> str:
    if kind == "ssh-dss":
        return "it is a DSA key, which OpenSSH no longer takes"
    if kind.startswith("sk-"):
        return "it belongs to a hardware token, which a service cannot touch"
    return "it is a certificate, not a key" if "-cert-" in kind else f"{kind[:40]!a} is no type of key that pods take"


def _instead(text: str) -> str:
    if MASK.search(text):
        return "it was masked or shortened by whatever displayed it"
    if "$(" in text or "${" in text:
        return "it is a shell expression that no shell expanded"
    if text.strip().startswith("SHA256:"):
        return "it is a fingerprint; the key itself is wanted"
    if PUBLIC_TYPE.search(text) or "ssh-" in text:
        return "it has a type and no whole key after it: it is cut off or mangled"
    if text.strip().startswith(("/", "~", "./")):
        return "it is a path; the text of that file is wanted"
    return "it is not a line of authorized_keys"
