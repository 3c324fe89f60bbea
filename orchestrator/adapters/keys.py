"""Our SSH key pair as environment variables carry it: what is wrong with it is told before anybody is called."""

import binascii
import re

import asyncssh

from orchestrator.ports import AuthFailed

HEAD = re.compile(r"-----BEGIN [A-Z0-9 ]+-----$", re.MULTILINE)


def login_key(private_key_pem: str, public_key: str | None) -> asyncssh.SSHKey:
    """The private key; AuthFailed with the sub-cause if it cannot be read, or is not the public key's other half.

    Pods let in whoever holds the other half of `public_key` (one or more authorized_keys lines; None: not compared).
    """
    pem = _normalised(private_key_pem)
    if not pem:
        raise AuthFailed("no private key is configured", "no_private_key")
    if not HEAD.match(pem):  # asyncssh would make a regular expression of whatever stands there
        raise AuthFailed("the private key does not begin with -----BEGIN … PRIVATE KEY-----", "bad_private_key")
    try:
        key = asyncssh.import_private_key(pem)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise AuthFailed(f"the private key cannot be read: {error}", "bad_private_key") from error
    if public_key is None:
        return key
    lines = [line.strip() for line in public_key.replace("\\n", "\n").splitlines() if line.strip()]
    offered = [found for found in map(_public, lines) if found is not None]
    if not offered:
        raise AuthFailed("the public key cannot be read: it is not a line of authorized_keys", "bad_public_key")
    if key.public_data in [found.public_data for found in offered]:
        return key
    ours, kinds = key.get_algorithm(), sorted({found.get_algorithm() for found in offered})
    if ours not in kinds:
        raise AuthFailed(f"the private key is {ours}, the public key {', '.join(kinds)}", "key_type_mix")
    theirs = ", ".join(found.get_fingerprint() for found in offered)
    raise AuthFailed(f"the private key is {key.get_fingerprint()}, the public key {theirs}", "pair_mismatch")


def _public(line: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(line)
    except (asyncssh.KeyImportError, binascii.Error, ValueError):
        return None


def _normalised(pem: str) -> str:
    """A key as environment variables carry it: newlines escaped, CR LF, no final newline. Base64 has no backslash."""
    text = pem.replace("\\r", "").replace("\\n", "\n").replace("\r\n", "\n").replace("\r", "\n").strip()
    return f"{text}\n" if text else ""
