"""The usual key pair is recognised without asyncssh; every other text is left to it."""

import base64
import random

import asyncssh
import pytest

from orchestrator.config import plain_key_pair

KEY, RSA = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-rsa")


def halves(key: asyncssh.SSHKey) -> tuple[str, str]:
    return key.export_private_key().decode(), key.export_public_key().decode()


def test_a_pair_of_ssh_keygen_has_the_fingerprint_that_asyncssh_shows() -> None:
    """With a comment or without, and with or without the last line break."""
    private, public = halves(KEY)
    for given in (public, public.strip(), f"{public.strip()} me@laptop\n"):
        assert plain_key_pair.fingerprint(private, given) == KEY.get_fingerprint()
        assert plain_key_pair.fingerprint(private.strip(), given) == KEY.get_fingerprint()


def unusual() -> dict[str, tuple[str, str]]:
    """Pairs that are not one plain pair of ssh-keygen: private half, public half."""
    (private, public), other, rsa = halves(KEY), halves(asyncssh.generate_private_key("ssh-ed25519")), halves(RSA)
    return {
        "another key": (private, other[1]),
        "another kind": (private, rsa[1]),
        "RSA": rsa,
        "encrypted": (KEY.export_private_key(passphrase="secret", rounds=8).decode(), public),
        "PKCS 8": (KEY.export_private_key("pkcs8-pem").decode(), public),
        "cut off": (private[:120], public),
        "escaped line breaks": (private.replace("\n", "\\n"), public),
        "three public keys": (private, public + other[1] * 2),
        "no public key": (private, ""),
        "no private key": ("", public),
        "huge": (private * 10_000, public),
    }


UNUSUAL = unusual()


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_not_the_usual_pair_is_left_to_asyncssh(what: str) -> None:
    """Also if nothing is wrong with it."""
    assert plain_key_pair.fingerprint(*UNUSUAL[what]) is None


def test_no_changed_byte_of_the_pair_is_overlooked() -> None:
    """Neither in the public half nor in the seed; only the comment and the padding say nothing about the pair."""
    private, public = halves(KEY)
    lines = private.strip().splitlines()
    body = base64.b64decode("".join(lines[1:-1]))
    meaningful = body.index(KEY.public_data) + 2 * len(KEY.public_data) + 4 + 8 + 4 + 64
    dice = random.Random(7)
    for at in range(meaningful):
        changed = bytearray(body)
        changed[at] ^= dice.randrange(1, 256)
        text = "\n".join([lines[0], base64.b64encode(changed).decode(), lines[-1]])
        known = plain_key_pair.fingerprint(text, public)
        assert known is None, f"byte {at}"
