"""The configured SSH key pair: defects of its text that lose nothing are repaired, others are refused with a reason.

Environment variables put quotes around a key, escape its line breaks, replace them by CR LF or blanks, lose the last
one, add a byte order mark, or hold base64 of the whole. asyncssh reads the formats. Everything that reads a key reads
it here: settings, the SSH adapter, the create call of a pod, `doctor ssh`.
"""

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import asyncssh
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

MAX_CHARS = 64 * 1024  # of one variable; the largest RSA key in use is a fifth of it
RSA_BITS = 2048  # the least that OpenSSH's own tools still make
KINDS = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
PRIVATE = ("RUNPOD_SSH_PRIVATE_KEY", "~/.ssh/id_ed25519")
PUBLIC = ("RUNPOD_SSH_PUBLIC_KEY", "~/.ssh/id_ed25519.pub")
PASTE = 'export {name}="$(cat {path})"; on Railway: railway variables --set "{name}=$(cat {path})"'
DERIVE = "ssh-keygen -y -f ~/.ssh/id_ed25519 prints the public key that belongs to it"
GENERATE = "ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519 -N ''"
UNLOCK = "ssh-keygen -p -N '' -f <a copy of the key>, and paste that"
PEM = re.compile(r"-----BEGIN ((?:[A-Z]+ )?)PRIVATE KEY-----(.*?)-----END \1PRIVATE KEY-----", re.DOTALL)
LINE = re.compile(r"^(?:ssh|ecdsa|sk)-\S+[ \t]+AAAA", re.MULTILINE)
NAMED = re.compile(r"\A\s*[\"']?(?:export )?RUNPOD_SSH_(?:PUBLIC|PRIVATE)_KEY=")  # a whole line of an .env file
OPENSSH = "b3BlbnNzaC1rZXktdjEA"  # base64 of the first bytes by OpenSSH's PROTOCOL.key
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
CHANGED = "it is cut off, or characters in it were changed"
INSTEAD = (
    (re.compile(r"PuTTY-User-Key-File"), "it is in PuTTY's format; puttygen -O private-openssh converts it"),
    (re.compile(r"\*{3}|•{3}|…|\[redacted\]"), "it was masked or shortened by the program that displayed it"),
    (re.compile(r"\$[({A-Z]"), "it is a shell expression that no shell expanded"),
    (re.compile(r"\A(?:file:|~|\.{0,2}/)\S+\Z"), "it is a path; the text of that file is wanted"),
    (re.compile(r"PRIVATE KEY"), CHANGED),
    (re.compile(rf"PUBLIC KEY|{LINE.pattern}", re.MULTILINE), "it is a public key; the private one belongs here"),
)
UNREADABLE = (
    asyncssh.KeyImportError,
    asyncssh.KeyEncryptionError,
    asyncssh.KeyExportError,
    ValueError,
    UnsupportedAlgorithm,
)


class BadKey(Exception):
    """A key that cannot be used: the sub-cause, the repairs that were tried, and the fix; never a part of the key."""

    def __init__(self, cause: str, mangling: str, fix: str) -> None:
        super().__init__(mangling)
        self.cause, self.mangling, self.fix = cause, mangling, fix


@dataclass(frozen=True, slots=True)
class KeyText:
    """Public keys as lines of authorized_keys, and what was undone to get there."""

    text: str
    undone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A private key that can log in."""

    key: asyncssh.SSHKey
    text: str  # as its own tools write it
    undone: tuple[str, ...]  # what had happened to it


@dataclass(frozen=True, slots=True)
class Pair:
    """Both halves; `public` may have further keys."""

    private: PrivateKey
    public: KeyText


def login_pair(private: str, public: str) -> Pair:
    """Return the pair of both variables. Raises BadKey unless the public key belongs to the private key.

    Pods accept everyone who has the private half of a public key.
    """
    ours = private_key(private)
    offered, text = public_keys(public)
    if ours.key.public_data in [key.public_data for key in offered]:
        return Pair(ours, text)
    kind, kinds = ours.key.get_algorithm(), sorted({key.get_algorithm() for key in offered})
    if kind not in kinds:
        raise BadKey("key_type_mix", f"the private key is {kind}, the public key {', '.join(kinds)}", DERIVE)
    theirs = ", ".join(key.get_fingerprint() for key in offered)
    why = f"the private key is {ours.key.get_fingerprint()}, the public key {theirs}"
    raise BadKey("pair_mismatch", why, DERIVE)


def private_key(given: str) -> PrivateKey:
    """The private key in a variable. BadKey."""
    plain, undone = _plain(given, PRIVATE)
    found = PEM.search(plain)
    instead = next((why for pattern, why in INSTEAD if pattern.search(plain)), "it is no private key: no BEGIN line")
    if not found:
        _refuse(PRIVATE, instead)
    body = "".join(found[2].split())
    if "ENCRYPTED" in found[0]:  # in the header of PKCS#8, and in a line of the older forms
        _refuse(PRIVATE, "it is encrypted with a passphrase", UNLOCK)
    text = _rewrapped(found[1], body)
    try:
        key = asyncssh.import_private_key(text if BASE64.fullmatch(body) else "")
    except UNREADABLE as error:
        locked = "assphrase" in str(error)
        _refuse(PRIVATE, *(("it is encrypted with a passphrase", UNLOCK) if locked else (instead,)))
    if body.startswith(OPENSSH) and key.public_data not in base64.b64decode(body):  # both halves are in it
        _refuse(PRIVATE, CHANGED)
    _check_kind(key, PRIVATE)
    if isinstance(key.pyca_key, RSAPrivateKey) and key.pyca_key.key_size < RSA_BITS:
        short = f"it is an RSA key of {key.pyca_key.key_size} bits, and servers refuse fewer than {RSA_BITS}"
        _refuse(PRIVATE, short, GENERATE)
    if not undone and plain.split("\n") != text.strip().split("\n"):
        undone = ["blanks, line breaks or text around it"]
    return PrivateKey(key, text, tuple(undone))


def public_keys(given: str) -> tuple[tuple[asyncssh.SSHKey, ...], KeyText]:
    """The public keys in a variable, one on each line. BadKey."""
    plain, undone = _plain(given, PUBLIC)
    if "PRIVATE KEY" in plain or "PuTTY-User-Key-File" in plain:
        _refuse(PUBLIC, "it is a private key, which must never be here: pods are shown this; replace that key pair")
    try:
        if "PUBLIC KEY" in plain:  # PEM or RFC 4716, which pods do not take
            undone.append("another form")
            plain = asyncssh.import_public_key(plain).export_public_key().decode().strip()
        lines = [" ".join(line.split()) for line in plain.split("\n") if line.strip()]
        keys = tuple(asyncssh.import_public_key(line) for line in lines)
    except UNREADABLE:
        whys = (why for pattern, why in INSTEAD[:-1] if pattern.search(plain))
        _refuse(PUBLIC, CHANGED if LINE.search(plain) else next(whys, "it is not the line of a .pub file"))
    for key in keys:
        _check_kind(key, PUBLIC)
    return keys, KeyText("\n".join(lines), tuple(undone))


def _rewrapped(label: str, body: str) -> str:
    """The text form of a private key, as ssh-keygen and openssl write it."""
    width = 70 if label == "OPENSSH " else 64
    lines = [body[at : at + width] for at in range(0, len(body), width)]
    return "\n".join([f"-----BEGIN {label}PRIVATE KEY-----", *lines, f"-----END {label}PRIVATE KEY-----", ""])


def _plain(given: str, name: tuple[str, str]) -> tuple[str, list[str]]:
    """The text as a file has it, and what was undone except quotes and escaped line breaks: `--repair` prints these."""
    which = "private" if name is PRIVATE else "public"
    if not given.strip():
        raise BadKey(f"no_{which}_key", f"no {which} key is configured", PASTE.format(name=name[0], path=name[1]))
    if len(given) > MAX_CHARS:
        _refuse(name, f"{len(given)} characters are too many for a key")
    text, undone = given, []
    for what, undo in REPAIRS:
        repaired = undo(text)
        if what and repaired != text:
            undone.append(what)
        text = repaired
    return text, undone


def _unescaped(text: str) -> str:
    return re.sub(r"(?:\\+r)?\\+n", "\n", text.strip().strip("\"'")).strip()


def _decoded(text: str) -> str:
    """What base64 was made of, where that is a key's text again."""
    compact = "".join(text.split())
    try:
        inner = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return text
    return inner if " KEY-----" in inner or LINE.search(inner) else text


REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("a byte order mark", lambda text: text.replace("\ufeff", "")),
    ("the name of its variable", lambda text: NAMED.sub("", text)),
    ("", _unescaped),
    ("base64 of the whole", _decoded),
    ("", _unescaped),
    ("CR LF", lambda text: text.replace("\r\n", "\n").replace("\r", "\n")),
)


def _check_kind(key: asyncssh.SSHKey, name: tuple[str, str]) -> None:
    if key.get_algorithm() not in KINDS:
        kind = key.get_algorithm().replace("ssh-dss", "DSA")
        _refuse(name, f"it is a {kind} key, and pods take {', '.join(KINDS)}", GENERATE)


def _refuse(name: tuple[str, str], mangling: str, fix: str | None = None) -> NoReturn:
    cause = "bad_private_key" if name is PRIVATE else "bad_public_key"
    raise BadKey(cause, mangling, fix or PASTE.format(name=name[0], path=name[1]))
