"""What of WORKER_CODE_DIR is sent to pods: no secret, no key, no cache, and the same list for everybody who asks."""

import base64
import io
import json
import os
import socket
import urllib.parse
import zipfile
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from orchestrator.config import code_files as module
from orchestrator.config.code_files import BadCode, Code, code_files
from orchestrator.config.environment import load
from orchestrator.config.handler_check import handler_problems
from orchestrator.diagnostics.doctor import code as doctor_code
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.pods.bundle import build_bundle, bundle_of

SECRET = 's3cr/t+value "of" 0123456789'
ED, EC = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ecdsa-sha2-nistp256")
RSA = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
PRIVATE = ED.export_private_key().decode()
KEYS = {
    "OpenSSH": PRIVATE,
    "PKCS#8": "-----BEGIN PRIVATE KEY-----\r\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\r\n",
    "encrypted": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n" + "A" * 64,
    "PGP": "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n" + "lQOYBF" + "x" * 58,
    "PuTTY": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
    "in JSON": json.dumps({"type": "service_account", "private_key": PRIVATE}),
    "in Python": f'KEY = """{PRIVATE}"""\n',
    "in a comment": "".join(f"# {line}\n" for line in PRIVATE.splitlines()),
    "in a log": "".join(f"2026-01-01T00:00:00Z stdout F {line}\n" for line in PRIVATE.splitlines()),
    "in JSON in JSON": json.dumps({"creds": json.dumps({"private_key": PRIVATE})}),
    "in a URL": urllib.parse.quote(PRIVATE),
    "in XML": PRIVATE.replace("\n", "&#10;"),
    "RSA without a header": f"privateKey={base64.b64encode(RSA.export_private_key('pkcs8-der')).decode()}\n",
    "EC without a header": base64.b64encode(EC.export_private_key("pkcs8-der")).decode(),
    "Ed25519 without a header": base64.b64encode(ED.export_private_key("pkcs8-der")).decode(),
    "RSA with a passphrase": base64.b64encode(RSA.export_private_key("pkcs8-der", "secret")).decode(),
    "the JSON of AWS": '{"AccessKey": {"SecretAccessKey": "' + "wJalrXUt" * 5 + '"}}',
    "AWS in YAML": "secretAccessKey: " + "wJalrXUt" * 5 + "\n",
    "AWS": "[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = " + "wJalrXUt" * 5 + "\n",
    "in base64": f"data:\n  key: {base64.b64encode(PRIVATE.encode()).decode()}\n",
    "JWK": '{"kty": "EC", "crv": "P-256", "x": "abc", "d": "870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE"}',
    "age": "AGE-SECRET-KEY-1QQPQYQ\n",
    "Kubernetes": "apiVersion: v1\nkind: Config\nusers:\n- user:\n    client-key-data: LS0tLS1CRUdJTi\n",
}
BINARY_KEYS = {
    "PKCS#8 of RSA": RSA.export_private_key("pkcs8-der"),
    "PKCS#8 of an elliptic curve": EC.export_private_key("pkcs8-der"),
    "PKCS#8 of Ed25519": ED.export_private_key("pkcs8-der"),
    "PKCS#1": RSA.export_private_key("pkcs1-der"),
    "SEC 1": EC.export_private_key("pkcs1-der"),
    "UTF-16": b"\xff\xfe" + PRIVATE.encode("utf-16-le"),
}


def write(root: Path, *names: str, content: str = "x = 1\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def sent(root: Path) -> set[str]:
    """The names in the archive for pods, which must be those of the list."""
    archive = build_bundle(root).code
    assert archive is not None
    names = zipfile.ZipFile(io.BytesIO(archive)).namelist()
    assert names == list(code_files(root).files)
    return set(names)


@pytest.mark.parametrize(
    "name",
    [
        ".env", "prod.env", "x.tfstate",
        ".env.local", ".ENV", "deep/er/.env.production", ".envrc", "id_rsa", "keys/id_ed25519", "me.ppk",
        "c.p12",
        ".git/config", "sub/.git", ".venv/lib/x.py", "venv/x.py", "mine/pyvenv.cfg", "node_modules/a/index.js",
        "__pycache__/a.pyc", "a.pyc", ".mypy_cache/x", ".ruff_cache/x", ".cache/pip/x", ".ssh/config",
        ".aws/credentials",
        ".netrc", ".git-credentials", ".pypirc", ".docker/config.json", "kubeconfig", ".kube/config", ".DS_Store",
        ".orchestratorignore",
        ".config/gcloud/application_default_credentials.json", ".huggingface/token", "a/.streamlit/secrets.toml",
        ".kaggle/kaggle.json", ".vscode/settings.json", ".terraform/x", "prod.env.bak", ".flaskenv", "secrets.yaml",
        "client_secret_123.json", "rclone.conf", ".bash_history", ".netrc.bak", ".pg_service.conf", "prod.tfvars",
    ],
)  # fmt: skip
def test_what_is_never_sent_by_its_name(tmp_path: Path, name: str) -> None:
    """At any depth; the list says why."""
    write(tmp_path, "handler.py", "environment.py", "id_rsa.pub", "tokens.py", name)
    if name.startswith(".orchestratorignore"):
        (tmp_path / name).write_text("")
    assert sent(tmp_path) == {"handler.py", "environment.py", "id_rsa.pub", "tokens.py"}
    assert code_files(tmp_path).why_not(name)


@pytest.mark.parametrize("kind", KEYS)
def test_a_private_key_is_never_sent_under_any_name(tmp_path: Path, kind: str) -> None:
    """It is recognized by its content. The handler check names the reason if a handler is in such a file."""
    write(tmp_path, "handler.py")
    write(tmp_path, "settings.py", content=KEYS[kind])
    assert sent(tmp_path) == {"handler.py"}
    assert "settings.py is not sent" in (code_files(tmp_path).why_not("settings.py") or "")


@pytest.mark.parametrize("kind", BINARY_KEYS)
def test_a_private_key_that_is_no_text_is_never_sent(tmp_path: Path, kind: str) -> None:
    """DER, and what PowerShell writes."""
    write(tmp_path, "handler.py")
    (tmp_path / "key.bin").write_bytes(BINARY_KEYS[kind])
    assert sent(tmp_path) == {"handler.py"}


@pytest.mark.parametrize(
    "content",
    [
        'aws_secret_access_key = os.environ["AWS_SECRET_ACCESS_KEY_OF_THE_BUCKET_FOR_MODELS"]\n',
        'MAGIC = b"b3BlbnNzaC1rZXktdjE"  # how a private key of OpenSSH begins\n',
        "cert = " + base64.b64encode(bytes.fromhex("30820377308202") + bytes(60)).decode(),
        pytest.param(RSA.export_public_key("pkcs8-pem").decode(), id="public pkcs8"),
        pytest.param(RSA.export_public_key("pkcs1-pem").decode(), id="public pkcs1"),
        pytest.param("-----BEGIN PRIVATE KEY-----" + "A: " * 2_000, id="many headers"),
        'HEADER = "-----BEGIN PRIVATE KEY-----"\nif text.startswith(HEADER):\n    raise ValueError("a private key")\n',
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx me@home\n",
        '{"kty": "EC", "crv": "P-256", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5"}',
        "cert = " + base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0B").decode(),
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0B\n-----END CERTIFICATE-----\n",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKC\n",
    ],
)
def test_what_only_looks_like_a_key_is_sent(tmp_path: Path, content: str) -> None:
    """Code that checks keys, public keys, certificates."""
    write(tmp_path, "a.py", content=content)
    assert sent(tmp_path) == {"a.py"}


def test_links_count_as_what_they_point_to(tmp_path: Path) -> None:
    """A link may neither leave the directory nor rename what is not sent."""
    root, outside = tmp_path / "code", tmp_path / "outside"
    write(root, "handler.py", ".env", ".venv/x.py", "data/a.txt")
    write(outside, "b.txt")
    for name, target in {
        "good.py": "handler.py", "up.txt": "../outside/b.txt", "absolute": str(outside / "b.txt"), "renamed": ".env",
        "package.py": ".venv/x.py", "folder": str(outside), "inner": "data", "gone": "nothing", "self": "self",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    assert sent(root) == {"handler.py", "good.py", "data/a.txt"}
    left_out = code_files(root).left_out
    assert left_out["up.txt"] == left_out["absolute"] == left_out["folder"] == "a link that leaves the directory"
    assert left_out["renamed"] == "a link to .env: settings and secrets"
    assert left_out["package.py"] == "a link to .venv/x.py: installed packages"
    assert {"inner", "gone", "self"} <= left_out.keys()


def test_what_is_no_file_is_not_sent_and_holds_nothing_up(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for."""
    write(tmp_path, "handler.py")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        assert sent(tmp_path) == {"handler.py"}
    assert code_files(tmp_path).left_out == {"pipe": "no regular file", "socket": "no regular file"}


def test_the_ignore_file_names_what_is_not_sent(tmp_path: Path) -> None:
    """A name at any depth, a path from the top, a directory with all that it contains."""
    write(
        tmp_path, "handler.py", "data/big.bin", "lib/data/x.py", "notes.md", "lib/notes.md", "build/out.o", "lib/build"
    )
    write(tmp_path, ".orchestratorignore", content="# comment\n\n*.bin\n/notes.md\nbuild/\n./lib/data\n")
    assert sent(tmp_path) == {"handler.py", "lib/notes.md", "lib/build"}
    assert code_files(tmp_path).why_not("build/out.o") == "build/ is not sent: .orchestratorignore names it"


@pytest.mark.parametrize("content", ["!keep.py\n", "a/**/b\n", "x" * 300, "a\n" * 300, "a\\ b\n", "x" * (70 << 10)])
def test_a_pattern_that_would_not_do_what_it_seems_to_is_refused(tmp_path: Path, content: str) -> None:
    """Otherwise a secret that it names would be sent."""
    write(tmp_path, "handler.py")
    write(tmp_path, ".orchestratorignore", content=content)
    with pytest.raises(BadCode, match="orchestratorignore"):
        code_files(tmp_path)


@pytest.mark.parametrize(
    "encoded",
    [
        str, json.dumps, lambda s: s.encode().hex(), lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.b64encode(b"x" + s.encode()).decode(), lambda s: urllib.parse.quote(s, safe=""),
    ],
)  # fmt: skip
def test_a_file_with_a_secret_refuses_the_start(tmp_path: Path, encoded: Callable[[str], str]) -> None:
    """With its name and line, and without the secret."""
    write(
        tmp_path,
        "lib/config.py",
        content=f"a = 1\nTOKEN = {encoded(SECRET)}\n" if encoded is not str else f"\n{SECRET}",
    )
    with pytest.raises(BadCode) as refused:
        build_bundle(tmp_path, [SECRET])
    (problem,) = refused.value.problems
    assert "lib/config.py line 2 contains" in problem.why
    assert SECRET not in str(refused.value)
    write(tmp_path, ".orchestratorignore", content="config.py\n")
    assert build_bundle(tmp_path, [SECRET]).code is not None


def test_an_ordinary_word_as_a_password_refuses_nothing(tmp_path: Path) -> None:
    """A development database often has the password `postgres`."""
    write(tmp_path, "a.py", content='engine = "postgres"; secret = password\n')
    assert code_files(tmp_path, ["postgres", "password", "secret", ""]).files


def test_each_bound_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, entries, depth; a name and a file that cannot be read."""
    write(tmp_path, "a.py", "b.py", "c/d/e/f.py")
    for name, value, says in (
        ("MAX_FILES", 2, "more than 2 files"), ("MAX_ENTRIES", 3, "more than 3 entries"),
        ("MAX_DEPTH", 2, "more than 2 directories in each other"), ("MAX_CODE_BYTES", 10, r"counted up to b\.py"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            with pytest.raises(BadCode, match=says):
                code_files(tmp_path)
    with open(os.fsencode(tmp_path) + b"/\xff.py", "wb"), pytest.raises(BadCode, match="not UTF-8"):  # noqa: PTH123
        code_files(tmp_path)


def test_every_secret_of_the_settings_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the start, by the handler check, and by doctor, with the same words."""
    for name in os.environ:
        monkeypatch.delenv(name)
    given = {
        "RUNPOD_API_KEY": "rpa_0123456789abcdef", "AWS_SECRET_ACCESS_KEY": "aws/secret+0123456789",
        "DATABASE_URL": "postgresql://app:pa55w0rd@db/x", "HF_TOKEN": "hf_0123456789abcdef", "WORKER_ENV": "HF_TOKEN",
        "WORKER_CODE_DIR": str(tmp_path), "WORKER_HANDLERS": "a=a:f",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for leaked in ("rpa_0123456789abcdef", "aws/secret+0123456789", "pa55w0rd", "hf_0123456789abcdef"):
        write(tmp_path, "a.py", content=f"def f(p, t): ...\nX = {leaked!r}\n")
        with pytest.raises(BadCode) as refused:
            bundle_of(load())
        assert [one.problem for one in handler_problems(load())] == list(refused.value.problems)
        assert leaked not in str(refused.value)
    write(tmp_path, "a.py", content="def f(p, t): ...\n")
    assert handler_problems(load()) == []


def test_a_handler_in_a_file_that_is_not_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check looks at what pods get, not at the disk; a second handler that is sent is accepted."""
    for name in os.environ:
        monkeypatch.delenv(name)
    write(tmp_path, "mine/job.py", "mine/pyvenv.cfg", "good.py", "drafts/job.sh", content="def f(p, t): ...\n")
    write(tmp_path, ".orchestratorignore", content="drafts/\n")
    monkeypatch.setenv("WORKER_CODE_DIR", str(tmp_path))
    monkeypatch.setenv("WORKER_HANDLERS", "a=mine.job:f,b=good:f,c=cmd:./drafts/job.sh")
    found = handler_problems(load())
    assert [one.problem.why for one in found] == [
        "mine/ is not sent: installed packages",
        "drafts/ is not sent: .orchestratorignore names it",
    ]
    assert all(one.is_certain for one in found)


async def test_doctor_shows_the_list_with_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest files first, the rest as a sum, and what is not sent with the reason."""
    for name in os.environ:
        monkeypatch.delenv(name)
    for number in range(25):
        write(tmp_path, f"m{number:02}.py", content="x" * (100 + number))
    write(tmp_path, "big.py", content="x" * 2048)
    write(tmp_path, ".env", "id_rsa")
    monkeypatch.setenv("WORKER_CODE_DIR", str(tmp_path))
    section = Section("code")
    await doctor_code.code(load(), section)
    lines = [(one.what, one.why) for one in section.findings]
    assert lines[0] == (f"26 files of {tmp_path} are sent to each pod", "4.7 KiB in 26 files; 2 not sent")
    assert lines[1:3] == [("big.py: 2.0 KiB", ""), ("m24.py: 124 B", "")]
    assert lines[21:] == [
        ("6 smaller files: 615 B", ""),
        ("not sent (a private key):", "id_rsa"),
        ("not sent (settings and secrets):", ".env"),
    ]
    assert isinstance(code_files(tmp_path), Code)
