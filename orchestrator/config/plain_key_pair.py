"""Recognises the usual SSH key pair, so that a command that only reports on it need not import asyncssh."""

import base64
import binascii
import hashlib
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TYPE = b"ssh-ed25519"
BEGIN, END = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
UNLOCKED = b"openssh-key-v1\0" + b"\0\0\0\4none\0\0\0\4none\0\0\0\0\0\0\0\1"  # no cipher, no passphrase, one key
BLOB_BYTES = 4 + len(TYPE) + 4 + 32  # of the public key
SEED_BYTES = 32
SECRET_BYTES = 2 * SEED_BYTES  # the seed and the public key
MAX_CHARS = 2_048  # of such a key: about 400


def fingerprint(private: str, public: str) -> str | None:
    """Return the fingerprint of an Ed25519 pair whose halves belong together, each as ssh-keygen writes it.

    None: it is another kind or form, or something is wrong; `ssh_keys.login_pair` says what.
    """
    given, words = private.strip(), public.split()
    if len(given) > MAX_CHARS or len(public) > MAX_CHARS or public.count("\n") > 1 or len(words) < 2:  # noqa: PLR2004
        return None
    if not (given.startswith(BEGIN) and given.endswith(END) and words[0] == TYPE.decode()):
        return None
    try:
        blob = base64.b64decode(words[1], validate=True)
        body = base64.b64decode("".join(given[len(BEGIN) : -len(END)].split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(blob) != BLOB_BYTES or not blob.startswith(_string(TYPE)) or not _holds(body, blob):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _holds(body: bytes, blob: bytes) -> bool:
    """Whether the private key is complete and is the other half of `blob`, by OpenSSH's PROTOCOL.key."""
    head = UNLOCKED + _string(blob)
    head += struct.pack(">I", max(0, len(body) - len(head) - 4))  # the length of the private part, which is the rest
    check = body[len(head) : len(head) + 8]
    secret = body[len(head) + 8 + len(blob) + 4 :][:SECRET_BYTES]
    whole = head + check + blob + struct.pack(">I", SECRET_BYTES) + secret
    if len(secret) < SECRET_BYTES or check[:4] != check[4:] or not body.startswith(whole):
        return False
    seed, theirs = secret[:SEED_BYTES], secret[SEED_BYTES:]
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() == theirs == blob[-SEED_BYTES:]


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
