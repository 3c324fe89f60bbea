"""What happens to a key's text on its way through an environment variable, undone layer by layer.

A key's text is base64, which has no character in common with what wraps it; so a layer is undone without a guess, or
left alone.
"""

import base64
import binascii
import html
import quopri
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

MAX_CHARS = 64 * 1024  # of one variable; the largest RSA key in use is a fifth of it
MAX_LAYERS = 8  # wrappings inside one another
PRIVATE = ("RUNPOD_SSH_PRIVATE_KEY", "~/.ssh/id_ed25519")
PUBLIC = ("RUNPOD_SSH_PUBLIC_KEY", "~/.ssh/id_ed25519.pub")
PASTE = 'export {name}="$(cat {path})"; on Railway: railway variables --set "{name}=$(cat {path})"'

DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
INVISIBLE = re.compile("\ufeff|ï»¿|[\u00ad\u200b-\u200f\u2060\x00]")
ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|[a-zA-Z]{2,8});")
TAG = re.compile(r"</?(?:br|p|pre|code|div|span)\b[^<>]*>", re.IGNORECASE)
NEWLINE = re.compile(r"\\+r\\+n|\\+(?:u000[adAD9]|x0[adAD9]|01[25])|\\+[nrt]|\\+\r?\n")
CHARACTER = re.compile(r"\\+u([0-9a-fA-F]{4})")
DECORATION = re.compile(
    "[\"'`\u2018-\u201f\u00ab\u00bb,;:>|\\[\\]{}()$]+"
)  # quotes, brackets, e-mail's and YAML's marks
MASK = re.compile(r"\*{3,}|•{3,}|…|\[redacted\]|<hidden>|x{16,}", re.IGNORECASE)
ASSIGNED = re.compile(r"^\s*(?:export\s+|set\s+|env\s+|-e\s+)?[A-Za-z_][A-Za-z0-9_]*\s*[=:](?=\s*[^\s=])")
PUBLIC_TYPE = re.compile(r"\b(?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-nistp\d+|sk-[\w@.-]+)\s+AAAA")


class BadKey(Exception):
    """A key that cannot be used: the sub-cause, what was done to it, and how to mend it; never a part of it."""

    def __init__(self, cause: str, mangling: str, fix: str) -> None:
        super().__init__(mangling)
        self.cause, self.mangling, self.fix = cause, mangling, fix


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key in the form that its own tools write, and what was undone to get there."""

    text: str
    undone: tuple[str, ...]


def refused(name: tuple[str, str], mangling: str, fix: str | None = None) -> BadKey:
    """A refusal for one of the two variables."""
    cause = "bad_private_key" if name is PRIVATE else "bad_public_key"
    return BadKey(cause, mangling, fix or PASTE.format(name=name[0], path=name[1]))


def bounded(given: str, name: tuple[str, str], which: str) -> None:
    if not given.strip():
        raise BadKey(f"no_{which}_key", f"no {which} key is configured", PASTE.format(name=name[0], path=name[1]))
    if len(given) > MAX_CHARS:
        raise refused(name, f"{len(given)} characters are too many for a key")


def unwrapped(given: str) -> tuple[str, list[str]]:
    """The text without what wraps it, the outermost layer first, and the layers' names."""
    text, undone = given, []
    for _ in range(MAX_LAYERS):
        before = text
        for name, peel in LAYERS:
            peeled = peel(text)
            if peeled != text:
                undone.append(name)
                text = peeled
        if text == before:
            return text, undone
    return text, undone


def _invisible(text: str) -> str:
    return INVISIBLE.sub("", text)


def _form(text: str) -> str:
    if re.search(r"(?:BEGIN|END)\+(?:[A-Z]+\+)*(?:PRIVATE|PUBLIC)\+KEY", text) or re.match(
        r"\s*(ssh|ecdsa)-\S+\+AAAA", text
    ):
        text = text.replace("+", " ")  # application/x-www-form-urlencoded: a real plus is %2B
    return urllib.parse.unquote(text) if re.search(r"%(?:0[AaDd]|20|2[BbFfDd]|3[Dd])", text) else text


def _entities(text: str) -> str:
    return TAG.sub("\n", html.unescape(text) if ENTITY.search(text) else text)


def _printable(text: str) -> str:
    if not re.search(r"=(?:3D|0A|0D|2B|2F|20)", text):
        return text
    return quopri.decodestring(text.encode()).decode("utf-8", "replace")


def _escapes(text: str) -> str:
    text = CHARACTER.sub(lambda found: chr(int(found[1], 16)), NEWLINE.sub("\n", text))
    return re.sub(r"\\+(?=[/+= \"'-])", "", text)


def _dashes(text: str) -> str:
    return DASHES.sub("-", text)


def _whole(text: str) -> str:
    """What base64 or hexadecimal was made of, where that is a key's text again."""
    if "BEGIN" in text or PUBLIC_TYPE.search(text):
        return text
    compact = "".join(DECORATION.sub("", ASSIGNED.sub("", text)).split())
    padded = compact.replace("+", "-").replace("/", "_").rstrip("=") + "=" * (-len(compact.rstrip("=")) % 4)
    for decode, encoded in ((bytes.fromhex, compact), (base64.urlsafe_b64decode, padded)):
        try:
            inner = decode(encoded)
        except (ValueError, binascii.Error):
            continue
        for encoding in ("utf-16",) if inner[:2] in {b"\xff\xfe", b"\xfe\xff"} else ("utf-8", "utf-16-le"):
            said = inner.decode(encoding, "replace")
            if "PRIVATE KEY" in said or "PUBLIC KEY" in said or PUBLIC_TYPE.search(said) or _nested(said):
                return said
    return text


def _nested(said: str) -> bool:
    """Whether decoding gave base64 of a key once more."""
    try:
        inner = base64.b64decode("".join(said.split()), validate=True)
    except (ValueError, binascii.Error):
        return False
    return b" KEY-----" in inner or PUBLIC_TYPE.search(inner.decode("ascii", "replace")) is not None


LAYERS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("a byte order mark or invisible characters", _invisible),
    ("base64 or hexadecimal of the whole", _whole),
    ("URL-encoding", _form),
    ("HTML entities or tags", _entities),
    ("quoted-printable (e-mail)", _printable),
    ("escaped line breaks or characters", _escapes),
    ("typographic dashes", _dashes),
)
