"""No secret leaves in words: by value in every encoding, by shape, by name, through every sink of this process."""

import asyncio
import base64
import io
import json
import logging
import re
import subprocess
import sys
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest
import structlog

from orchestrator.observability.logging import configure
from orchestrator.observability.redaction import Redactor
from worker.redaction import HIDDEN
from worker.secret_values import passwords

ROOT = Path(__file__).resolve().parents[3]
CANARY = 'c4n/ry+s3cret="with\\odd signs"&more-0123456789'
KEY = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJncHUtMSJ9.c2lnbmF0dXJlLXRoYXQtaXMtbG9uZw"

ENCODINGS: dict[str, Callable[[str], str]] = {
    "raw": lambda s: s,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64, one byte in": lambda s: base64.b64encode(b"x" + s.encode() + b"yz").decode(),
    "base64, two bytes in": lambda s: base64.b64encode(b"xy" + s.encode() + b"z").decode(),
    "base64, URL-safe": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "URL": lambda s: urllib.parse.quote(s, safe=""),
    "URL, slashes kept": urllib.parse.quote,
    "URL, small letters": lambda s: re.sub("%..", lambda code: code[0].lower(), urllib.parse.quote(s, safe="")),
    "form": urllib.parse.quote_plus,
    "JSON": json.dumps,
    "JSON in JSON": lambda s: json.dumps({"a": s}),
    "repr": repr,
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("secret", [CANARY, "0123456789abcdef", "pässwörter-sind-geheim"])
def test_a_secret_is_hidden_in_every_encoding(name: str, secret: str) -> None:
    """Whatever stands around it stays."""
    said = Redactor([secret]).redact(f"before {ENCODINGS[name](secret)} after")
    assert HIDDEN in said
    assert said.startswith("before ")
    assert said.endswith(" after")
    assert secret not in said


@pytest.mark.parametrize("cut", [slice(None), slice(1, 3), slice(2, -1)])
def test_a_keys_lines_are_hidden_without_their_newlines(cut: slice) -> None:
    """Joined, alone, escaped, in base64."""
    hidden, lines = Redactor([KEY]), KEY.strip().split("\n")[cut]
    secret = [line for line in lines if not line.startswith("-")]
    for said in (
        "".join(lines),
        " ".join(lines),
        "\\n".join(lines),
        base64.b64encode("\n".join(lines).encode()).decode(),
    ):
        shown = hidden.redact(f"a key: {said}")
        assert not any(line in shown for line in secret)
        assert not any(base64.b64encode(line.encode()).decode()[3:-4] in shown for line in secret)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"token {TOKEN} refused", f"token {HIDDEN} refused"),
        (f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {HIDDEN}"),
        ("AUTHORIZATION: BEARER abcdefghijkl", f"AUTHORIZATION: BEARER {HIDDEN}"),
        ("authorization: Basic dXNlcjpwYXNzd29yZA== refused", f"authorization: Basic {HIDDEN} refused"),
        ('{"Authorization": "basic dXNlcjpwYXNzd29yZA=="}', f'{{"Authorization": "basic {HIDDEN}"}}'),
        ("'proxy-authorization', 'BASIC dXNlcjpwYXNzd29yZA'", f"'proxy-authorization', 'BASIC {HIDDEN}'"),
        ("basic information, and Basic functionality", "basic information, and Basic functionality"),
        ("postgresql://user:pa55word@db:5432/x refused", f"postgresql://user:{HIDDEN}@db:5432/x refused"),
        (
            "PUT http://s3/b/k?X-Amz-Credential=AKIA%2F2026&X-Amz-Signature=0123abcd&x=1",
            f"PUT http://s3/b/k?X-Amz-Credential={HIDDEN}&X-Amz-Signature={HIDDEN}&x=1",
        ),
        ("put /k?X-AMZ-SIGNATURE=0123abcd&x=1", f"put /k?X-AMZ-SIGNATURE={HIDDEN}&x=1"),
        ("x-amz-credential: x-amz-credential%3dAKIA%2f2026", f"x-amz-credential: x-amz-credential%3d{HIDDEN}"),
        (f"KEY:\n{KEY.lower()}end", f"KEY:\n{HIDDEN}\nend"),
        ("RPA_ABCDEFGHIJKLMNOPQRSTUVWXYZ SB_SECRET_ABCDEFGHIJKLMNOP", f"{HIDDEN} {HIDDEN}"),
        (f"key:\n{KEY}end", f"key:\n{HIDDEN}\nend"),
        ("rpa_ABCDEFGHIJKLMNOPQRSTUVWXYZ", HIDDEN),
        ("http://host:8080/path says no", "http://host:8080/path says no"),
        ("secret of no kind", "secret of no kind"),
    ],
)
def test_what_is_made_at_run_time_is_known_by_its_shape(said: str, shown: str) -> None:
    """Nobody configured it, and nothing else looks like it."""
    assert Redactor().redact(said) == shown
    for before in (b"", b"x", b"xy"):
        assert TOKEN[40:] not in Redactor().redact(base64.b64encode(before + TOKEN.encode()).decode())


def test_keys_that_become_equal_keep_their_values() -> None:
    """A result is the user's: one value would be lost without a word."""
    found = Redactor([CANARY, TOKEN]).redact({CANARY: 1, TOKEN: [{"a": 2}], "b": 3})
    assert found == {HIDDEN: 1, f"{HIDDEN} 1": [{"a": 2}], "b": 3}


def test_a_structure_keeps_its_shape() -> None:
    """Numbers stay numbers; keys are text too; by name only where asked for."""
    hidden = Redactor([CANARY])
    given = {"a": [1, 2.5, None, True, (CANARY,)], CANARY: {"b": CANARY.encode()}, "api_key": "x", "token_jti": "j"}
    assert hidden.redact(given) == {
        "a": [1, 2.5, None, True, [HIDDEN]],
        HIDDEN: {"b": HIDDEN},
        "api_key": "x",
        "token_jti": "j",
    }
    cleaned = hidden.redact(given, by_name=True)
    assert CANARY not in json.dumps(cleaned)
    assert (cleaned["api_key"], cleaned["token_jti"]) == (HIDDEN, "j")
    assert cleaned["a"][:4] == [1, 2.5, None, True]


@pytest.mark.parametrize("content", ["x", 1234, 0.5, ["x"], ("x", "y"), {"user": "x"}, [{"a": ["x"]}], b"x"], ids=repr)
def test_the_value_of_a_secret_name_is_hidden_completely(content: object) -> None:
    """Of any type, at any depth."""
    given = {"a": [{"password": content, "b": 1}], "tokens": content}
    assert Redactor().redact(given, by_name=True) == {"a": [{"password": HIDDEN, "b": 1}], "tokens": HIDDEN}


def test_short_words_are_never_redacted() -> None:
    """A password `x` would hide half of every log."""
    assert Redactor(["x", "", "   ", "abc"]).redact("x abc") == "x abc"
    assert list(passwords("postgresql://postgres:postgres@h/db")) == []
    assert set(passwords("a https://u:p%40ss@h/x b")) == {"p%40ss", "p@ss"}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Logging set up as the daemon does it, and what it writes; afterwards as before."""
    root, hooks = logging.getLogger(), (sys.excepthook, sys.unraisablehook)
    before = (root.level, list(root.handlers))
    stream = io.StringIO()
    configure("DEBUG", [CANARY, KEY], stream)
    yield stream
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    sys.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    structlog.reset_defaults()


def fail(text: str) -> None:
    raise ValueError(text)


class Says:
    def __str__(self) -> str:
        return f"object with {CANARY}"


@pytest.mark.parametrize(
    "name", ["asyncssh", "httpx", "botocore", "boto3", "uvicorn.error", "apscheduler", "psycopg", "any"]
)
def test_third_party_loggers_are_redacted(written: io.StringIO, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Message, arguments, tracebacks with causes, and extra fields."""
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "propagate", True)  # the simulator keeps the scheduler's to itself
    logger.error("said %s and %r", CANARY, {"key": CANARY})
    try:
        try:
            fail(CANARY)
        except ValueError as error:
            raise RuntimeError(f"because of {CANARY}") from error
    except RuntimeError:
        logger.exception("failed", extra={"x": CANARY})
    logger.error("an object: %s", Says())
    said = written.getvalue()
    assert said.count("\n") == 3
    assert HIDDEN in said
    assert not leaks(said)


def leaks(said: str) -> list[str]:
    return [name for name, encode in ENCODINGS.items() if encode(CANARY) in said or CANARY[:20] in said]


def test_a_job_that_a_shutdown_cuts_off_is_no_error(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler cancels what runs when it ends; what goes wrong by itself is told as ever."""
    monkeypatch.setattr(logging.getLogger("apscheduler"), "propagate", True)
    jobs = logging.getLogger("apscheduler.executors.default")
    for error in (asyncio.CancelledError(), ValueError("its own")):
        jobs.error("Error running job tick", exc_info=(type(error), error, None))
    assert written.getvalue().count("\n") == 1
    assert "its own" in written.getvalue()


def test_events_are_redacted_by_value_and_by_name(written: io.StringIO) -> None:
    """Facts, nested ones, objects, names that tell."""
    structlog.get_logger().error(
        "thing_failed",
        why=CANARY,
        nested={"deep": [CANARY, {"x": Says()}]},
        error=ValueError(CANARY),
        worker_token="short",
        token_jti="j1",
    )
    line = json.loads(written.getvalue())
    assert not leaks(written.getvalue())
    assert (line["worker_token"], line["token_jti"], line["level"]) == (HIDDEN, "j1", "error")


async def test_an_uncaught_exception_is_redacted(written: io.StringIO) -> None:
    """A task's exception, a callback's, a thread's, a warning, an unraisable one, and Python's last words."""
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"callback with {CANARY}", "exception": ValueError(CANARY)})
    warnings.warn(f"beware {CANARY}", stacklevel=1)
    try:
        fail(CANARY)
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
        sys.unraisablehook(Unraisable(error))  # type: ignore[arg-type]
    assert written.getvalue().count(HIDDEN) >= 4
    assert not leaks(written.getvalue())


class Unraisable:
    def __init__(self, error: Exception) -> None:
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = "ignored", None


def test_a_record_that_cannot_be_written_does_not_show_its_arguments(
    written: io.StringIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complaint of Python's own logging quotes them."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [one for one in root.handlers if "orchestrator" in type(one).__module__])
    root.error("%d", CANARY)
    said = written.getvalue() + capsys.readouterr().err
    assert "logging_failed: TypeError" in said
    assert not leaks(said)


SCRIPT = """
import logging, sys
def state():
    root = logging.getLogger()
    return root.level, list(root.handlers), root.filters, logging.raiseExceptions, sys.excepthook
before = state()
{imports}
assert state() == before, state()
"""


@pytest.mark.parametrize(
    "imports", ["import runpod", "import orchestrator.adapters.runpod", "import orchestrator.service"]
)
def test_importing_the_sdk_leaves_the_root_logger_alone(imports: str) -> None:
    """A library that configures logging on import would undo redaction."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imports=imports)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_python_itself_prints_at_an_error_is_redacted() -> None:
    """A bug in a command shows a traceback; the settings' secrets are not in it."""
    script = f"""
from orchestrator.observability.redaction import hide, redact_uncaught_errors
import logging, threading, warnings
redact_uncaught_errors(); hide([{CANARY!r}])
logging.getLogger("x").warning("said %s", {CANARY!r})
warnings.warn({CANARY!r})
def fail(): raise ValueError({CANARY!r})
thread = threading.Thread(target=fail); thread.start(); thread.join()
secret = {CANARY!r}
exec("raise ValueError(secret)")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count(HIDDEN) >= 4
    assert not leaks(done.stderr)


def test_redacting_a_thousand_lines_costs_little() -> None:
    """Twelve secrets, a log line each: a fraction of a millisecond."""
    hidden = Redactor([*(f"secret-number-{n:04}-{'x' * 30}" for n in range(11)), KEY])
    line = json.dumps(
        {"event": "worker_promoted", "worker": "gpu-20261120_223104-18865e9b", "took_s": 1.5, "pod": "p" * 14}
    )
    began = time.thread_time()
    for _ in range(1_000):
        hidden.redact(line)
    assert time.thread_time() - began < 1.0
