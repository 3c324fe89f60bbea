"""The SSH key pair as it is configured: read whatever was done to it on the way, compared, or refused by name.

Everything that reads a key reads it here: settings, the SSH adapter, what a pod is told, `doctor ssh`.

    wrapping.py  what environment variables, terminals, mail and forms wrap around a text, undone
    private.py   a private key's text, proven whole
    public.py    public keys' text
"""

from dataclasses import dataclass

import asyncssh
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from orchestrator.config.ssh_keys.private import private_text, stated_public
from orchestrator.config.ssh_keys.public import public_text
from orchestrator.config.ssh_keys.unwrap import PRIVATE, PUBLIC, BadKey, KeyText, refused

__all__ = ["BadKey", "KeyText", "Pair", "PrivateKey", "login_pair", "private_key", "public_keys"]
RSA_BITS = 2048  # the least that OpenSSH's own tools still make
DERIVE = "ssh-keygen -y -f ~/.ssh/id_ed25519 prints the public key that belongs to it"
UNREADABLE = (
    asyncssh.KeyImportError,
    asyncssh.KeyEncryptionError,
    asyncssh.KeyExportError,
    ValueError,
    UnsupportedAlgorithm,
)


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


def private_key(given: str) -> PrivateKey:
    """The private key in a variable. BadKey."""
    found = private_text(given)
    try:
        key = asyncssh.import_private_key(found.text)
    except UNREADABLE:
        raise refused(PRIVATE, "it has a key's length and frame, but characters in it were changed") from None
    stated = stated_public(found.text)
    if stated is not None and stated != key.public_data:
        raise refused(PRIVATE, "its two halves do not belong together: characters in it were changed")
    if isinstance(key.pyca_key, RSAPrivateKey) and key.pyca_key.key_size < RSA_BITS:
        short = f"it is an RSA key of {key.pyca_key.key_size} bits, and servers refuse fewer than {RSA_BITS}"
        raise refused(PRIVATE, short, "ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519 -N ''")
    return PrivateKey(key, found.text, found.undone)


def public_keys(given: str) -> tuple[tuple[asyncssh.SSHKey, ...], KeyText]:
    """The public keys in a variable. BadKey."""
    found = public_text(given)
    try:
        return tuple(asyncssh.import_public_key(line) for line in found.text.splitlines()), found
    except UNREADABLE:
        raise refused(PUBLIC, "it has a key's length, but characters in it were changed") from None


def login_pair(private: str, public: str) -> Pair:
    """Both variables, one the other's half: pods let in whoever holds the private half of a public key. BadKey."""
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
