"""SSH keys as they arrive: what lost nothing logs in over real SSH, what lost something is refused by name."""

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.config.ssh_keys import BadKey, login_pair, private_key, public_keys
from tests.process.bringup.sshd import Sshd, serving
from tests.process.secrets.manglings import LOSSLESS, LOST

SOON_S = 30.0
ED25519, RSA, EC = (asyncssh.generate_private_key(kind) for kind in ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256"))
# Each form in which a tool writes a private key.
FORMS = {
    "OpenSSH, Ed25519": (ED25519, ED25519.export_private_key("openssh").decode()),
    "OpenSSH, RSA": (RSA, RSA.export_private_key("openssh").decode()),
    "OpenSSH, ECDSA": (EC, EC.export_private_key("openssh").decode()),
    "PKCS#8, Ed25519": (ED25519, ED25519.export_private_key("pkcs8-pem").decode()),
    "PKCS#8, RSA": (RSA, RSA.export_private_key("pkcs8-pem").decode()),
    "PKCS#1, RSA": (RSA, RSA.export_private_key("pkcs1-pem").decode()),
    "SEC 1, ECDSA": (EC, EC.export_private_key("pkcs1-pem").decode()),
}
PUB = ED25519.export_public_key().decode().strip()


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Sshd]]:
    """An SSH server for each of the three keys, which lets in that key alone."""
    home: Path = tmp_path_factory.mktemp("servers")
    async with (
        serving(home / "ed", ED25519) as ed25519,
        serving(home / "rsa", RSA) as rsa,
        serving(home / "ec", EC) as ec,
    ):
        yield {key.get_fingerprint(): server for key, server in ((ED25519, ed25519), (RSA, rsa), (EC, ec))}


@pytest.mark.parametrize("name", LOSSLESS)
async def test_a_mangled_key_logs_in_if_nothing_was_lost(servers: dict[str, Sshd], name: str) -> None:
    """Every form of it comes out as its own tool wrote it; one logs in."""
    for _, pem in FORMS.values():
        assert private_key(LOSSLESS[name](pem)).text == pem
    key, pem = list(FORMS.values())[list(LOSSLESS).index(name) % len(FORMS)]
    shell = AsyncSshShell(LOSSLESS[name](pem), key.export_public_key().decode())
    port = servers[key.get_fingerprint()].port
    await (await shell.connect("127.0.0.1", port, pinned=None, timeout_s=SOON_S)).close()


@pytest.mark.parametrize(
    ("name", "undone"),
    [
        ("untouched", ()),
        ("escaped newlines", ()),
        ("double quotes", ()),
        ("CR LF", ("CR LF",)),
        ("base64 of the whole", ("base64 of the whole",)),
        ("byte order mark", ("a byte order mark",)),
        ("blanks for newlines", ("blanks, line breaks or text around it",)),
    ],
)
def test_what_was_undone_is_named_except_the_form_in_one_line(name: str, undone: tuple[str, ...]) -> None:
    """The form that `doctor ssh --repair` prints is no fault."""
    assert private_key(LOSSLESS[name](FORMS["OpenSSH, Ed25519"][1])).undone == undone


@pytest.mark.parametrize("cut_off", range(1, 9))
def test_a_key_that_is_cut_off_anywhere_is_called_so(cut_off: int) -> None:
    """In the middle of a byte too, where the characters left are as many as no encoding gives."""
    for _, pem in FORMS.values():
        with pytest.raises(BadKey, match="cut off"):
            private_key(pem[: len(pem) * 2 // 3 - cut_off])


@pytest.mark.parametrize("name", LOST)
def test_a_mangled_key_is_refused_by_name_if_something_was_lost(name: str) -> None:
    """With the words that say what to do, and without a piece of the key."""
    mangle, says = LOST[name]
    for _, pem in FORMS.values():
        with pytest.raises(BadKey, match=says) as caught:
            private_key(mangle(pem))
        assert caught.value.cause == "bad_private_key"
        assert caught.value.fix
        shown = f"{caught.value} {caught.value.fix}"
        assert not any(line in shown for line in pem.split("\n") if re.fullmatch(r"[A-Za-z0-9+/=]{16,}", line))


def test_a_key_that_cannot_log_in_by_itself_is_named() -> None:
    """A passphrase, DSA, too short an RSA, and nothing at all."""
    for style in ("openssh", "pkcs8-pem", "pkcs1-pem"):
        locked = RSA.export_private_key(style, passphrase="secret", rounds=8).decode()
        with pytest.raises(BadKey, match="passphrase"):
            private_key(locked.replace("\n", "\\n"))
    old = dsa.generate_private_key(1024).private_bytes(  # noqa: S505  weak is the point
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    with pytest.raises(BadKey, match="DSA"):
        private_key(old.decode())
    short = asyncssh.generate_private_key("ssh-rsa", key_size=1024)
    with pytest.raises(BadKey, match="1024 bits"):
        private_key(short.export_private_key().decode())
    for empty in ("", " \n", "\t"):
        with pytest.raises(BadKey) as caught:
            private_key(empty)
        assert caught.value.cause == "no_private_key"


def test_one_changed_letter_never_passes() -> None:
    """If any letter of the secret part is replaced, the key is refused, or is the same key (its padding)."""
    _, pem = FORMS["OpenSSH, Ed25519"]
    for at in range(40, len(pem) - 40, 3):
        changed = pem[:at] + ("A" if pem[at] != "A" else "B") + pem[at + 1 :]
        if pem[at] in "\n-= ":
            continue
        try:
            key = private_key(changed).key
        except BadKey:
            continue
        assert key.public_data == ED25519.public_data


PUBLIC = {
    "untouched": PUB,
    "a final newline": f"{PUB}\n",
    "CR LF": f"{PUB}\r\n",
    "quotes": f'"{PUB}"',
    "escaped newline": f"{PUB}\\n",
    "base64 of the whole": base64.b64encode(PUB.encode()).decode(),
    "tab": PUB.replace(" ", "\t"),
    "byte order mark": f"\ufeff{PUB}",
    "SSH2": ED25519.export_public_key("rfc4716").decode(),
    "PEM": ED25519.export_public_key("pkcs8-pem").decode(),
    "a comment": f"{PUB} user@host",
    "a JSON string": f'"{PUB}\\n"',
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_mangled_public_key_is_repaired(name: str) -> None:
    """A blob says itself what it is, and how long."""
    (key,), text = public_keys(PUBLIC[name])
    assert key.public_data == ED25519.public_data
    assert text.text.split()[:2] == PUB.split()[:2]
    assert login_pair(FORMS["OpenSSH, Ed25519"][1], PUBLIC[name]).public.text == text.text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (PUB[:-8], "cut off"),
        (PUB.split()[0], "not the line"),
        (FORMS["PKCS#8, RSA"][1], "private key"),
        (FORMS["OpenSSH, Ed25519"][1].replace("\n", "\\n"), "private key"),
        (f'from="10.0.0.1" {PUB}', "not the line"),
        (PUB.split()[1], "not the line"),
        ("SHA256:abcdefgh", "not the line"),
        ("~/.ssh/id_ed25519.pub", "path"),
        ("$(cat ~/.ssh/id_ed25519.pub)", "shell expression"),
        ("ssh-ed25519 AAAAmangled", "cut off"),
        ("words", "not the line"),
        ("*****", "masked"),
    ],
    ids=[  # the keys are new in each process, and a test has one name in all of them
        *("without its end", "without its second part", "a private RSA key", "a private Ed25519 key", "with options"),
        *("without its type", "a fingerprint", "a path", "a command", "a mangled blob", "words", "stars"),
    ],
)
def test_an_invalid_public_key_is_refused_by_name(given: str, says: str) -> None:
    """A private key in its place above all: pods are shown the public one."""
    with pytest.raises(BadKey, match=says) as caught:
        public_keys(given)
    assert caught.value.cause == "bad_public_key"


def test_several_public_keys_are_several_lines() -> None:
    """An operator's own key may be next to the orchestrator's."""
    both = f"{PUB}\\n{RSA.export_public_key().decode()}"
    keys, text = public_keys(both)
    assert [key.public_data for key in keys] == [ED25519.public_data, RSA.public_data]
    assert len(text.text.splitlines()) == 2
    assert login_pair(FORMS["PKCS#1, RSA"][1], both).private.key.public_data == RSA.public_data


@pytest.mark.parametrize(
    ("private", "public", "cause"),
    [
        (RSA, ED25519, "key_type_mix"),
        (asyncssh.generate_private_key("ssh-ed25519"), ED25519, "pair_mismatch"),
    ],
)
def test_halves_of_two_key_pairs_are_an_error(private: asyncssh.SSHKey, public: asyncssh.SSHKey, cause: str) -> None:
    """By fingerprint, or by their kinds."""
    with pytest.raises(BadKey) as caught:
        login_pair(private.export_private_key().decode(), public.export_public_key().decode())
    assert caught.value.cause == cause
