"""The removal of secrets on the pod: which values are secrets, in which forms they are found, split over any writes."""

import base64
import html
import json
import os
import re
import shlex
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.output_log import OutputLog
from worker.redaction import HIDDEN, MIN_SECRET, PIECE_CHARS, KnownSecrets, SecretFilter
from worker.secret_values import secrets_of

PLAIN = "hf_abcdefghijklmnop0123456789"
ODD = 'c4n/ry+s3cret="w\'ith\\odd $igns<>"&more-0123456789`x`'
LONG = "".join(f"{n:x}-" for n in range(2_000))
FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64, one byte in": lambda s: base64.b64encode(b"x" + s.encode() + b"yz").decode(),
    "base64, two bytes in": lambda s: base64.b64encode(b"xy" + s.encode() + b"z").decode(),
    "base64, URL-safe": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "base64, wrapped": lambda s: base64.encodebytes(s.encode()).decode(),
    "hex": lambda s: s.encode().hex(),
    "hex, capital letters": lambda s: s.encode().hex().upper(),
    "hex, with colons": lambda s: s.encode().hex(":"),
    "every byte of a URL": lambda s: "".join(f"%{byte:02X}" for byte in s.encode()),
    "JSON with escaped slashes": lambda s: json.dumps(s).replace("/", "\\/"),
    "ascii": ascii,
    "YAML": lambda s: "'" + s.replace("'", "''") + "'",
    "URL": lambda s: urllib.parse.quote(s, safe=""),
    "URL, slashes kept": urllib.parse.quote,
    "form": urllib.parse.quote_plus,
    "JSON": json.dumps,
    "JSON in JSON": lambda s: json.dumps(json.dumps({"a": s})),
    "repr": repr,
    "repr of bytes": lambda s: repr(s.encode()),
    "shell": shlex.quote,
    "printf %q": lambda s: re.sub(r"([^\w%+,./:=@-])", r"\\\1", s),
    "CSV": lambda s: s.replace('"', '""'),
    "HTML": html.escape,
    "HTML of Go": lambda s: html.escape(s).replace("&quot;", "&#34;").replace("&#x27;", "&#39;").replace("+", "&#43;"),
    "HTML with quotes": lambda s: html.escape(s, quote=False),
    "JSON of Go": lambda s: re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(s, ensure_ascii=False)),
    "JSON, capital letters": lambda s: re.sub(r"\\u....", lambda code: "\\u" + code[0][2:].upper(), json.dumps(s)),
    "JSON of a repr": lambda s: json.dumps(repr(s)),
    "repr of JSON": lambda s: repr(json.dumps(s)),
    "repr of a repr": lambda s: repr(repr(s)),
    "encodeURIComponent": lambda s: urllib.parse.quote(s, safe="!*'()"),
    "encodeURI": lambda s: urllib.parse.quote(s, safe="!*'();/?:@&=+$,#"),
    "URL of requests": lambda s: urllib.parse.quote(s, safe="!#$%&'()*+,/:;=?@[]"),
    "form of a browser": lambda s: urllib.parse.quote_plus(s, safe="*").replace("~", "%7E"),
    "URL in a URL": lambda s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe=""),
    "escaped bytes": lambda s: "".join(f"\\x{byte:02x}" for byte in s.encode()),
    "hex, with hyphens": lambda s: s.encode().hex("-"),
}


@pytest.mark.parametrize("secret", [PLAIN, ODD, "pässwörter-sind-geheim", "pa!ss(w)ord/*x~1"])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_removed_in_every_form_and_at_every_split(form: str, secret: str) -> None:
    """One stream, two writes, cut at each byte: what is around the secret stays, and no half of it appears."""
    shown = FORMS[form](secret)
    text = f"before {shown} after\n".encode()
    known = KnownSecrets([secret])
    whole = known.clean(text)
    assert HIDDEN.encode() in whole
    assert shown[4:-4].encode() not in whole
    assert whole.startswith(b"before ")
    assert whole.endswith(b" after\n")
    for cut in range(len(text) + 1):
        stream = SecretFilter(known)
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.flush() == whole, cut


def test_a_stream_that_comes_byte_by_byte_shows_no_secret() -> None:
    """Only bytes that may begin a secret are held back."""
    stream = SecretFilter(KnownSecrets([PLAIN, ODD]))
    text = f"a {PLAIN} and {ODD}; hf_abc".encode()
    shown = b"".join(stream.feed(text[at : at + 1]) for at in range(len(text)))
    assert shown == f"a {HIDDEN} and {HIDDEN}; ".encode()
    assert stream.flush() == b"hf_abc"


@pytest.mark.parametrize(
    ("secrets", "text", "whole"),
    [
        (["abcabcabcab"], "x abcabcabcabcabcab y", f"x {HIDDEN} y"),
        (["xxxxxxxx"], "x" * 21, HIDDEN),
        (["abcdef123", "f12345678"], "abcdef12345678", HIDDEN),
        (["secret-one", "secret-one-and-more", "and-more"], "(secret-one-and-more)", f"({HIDDEN})"),
        (["redacted", PLAIN], f"{PLAIN} redacted", f"{HIDDEN} {HIDDEN}"),
        ([PLAIN], f"{PLAIN}{PLAIN}{PLAIN[:4]}", f"{HIDDEN}{HIDDEN}{PLAIN[:4]}"),
        (["bbabba", "abababb", "bbabba\nabababbabababbabababb"], "bbabba\nabababbabababbabababbabababb", HIDDEN),
    ],
)
def test_secrets_that_repeat_or_overlap_leave_nothing_at_any_split(secrets: list[str], text: str, whole: str) -> None:
    """A stream shows what the whole text would show, however it comes, and after a pause no more of a secret."""
    known = KnownSecrets(secrets)
    assert known.clean_text(text) == whole
    for size in range(1, len(text)):
        stream = SecretFilter(known)
        pieces = [text[at : at + size].encode() for at in range(0, len(text), size)]
        assert b"".join([*map(stream.feed, pieces), stream.flush()]) == whole.encode(), size


@pytest.mark.parametrize("cut", range(1, len(PLAIN)))
def test_the_rest_of_a_secret_is_removed_after_its_beginning_was_given_away(cut: int) -> None:
    """A handler that pauses in the middle of a secret shows the first part of it at most."""
    stream = SecretFilter(KnownSecrets([PLAIN]))
    first = stream.feed(b"x " + PLAIN[:cut].encode()) + stream.flush()
    second = stream.feed(PLAIN[cut:].encode() + b" y") + stream.flush()
    assert (first, second) == (f"x {PLAIN[:cut]}".encode(), f"{HIDDEN} y".encode())


def test_other_text_after_a_beginning_stays() -> None:
    """What looked like a secret and was none is complete in the log."""
    stream = SecretFilter(KnownSecrets([PLAIN]))
    parts = [
        stream.feed(b"x hf_abc"),
        stream.flush(),
        stream.feed(b"d"),
        stream.flush(),
        stream.feed(b"!"),
        stream.flush(),
    ]
    assert b"".join(parts) == b"x hf_abcd!"


def test_a_long_secret_and_each_line_of_a_key_are_removed() -> None:
    """A secret of many kilobytes costs no memory of this size at the end of each write."""
    body = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"]
    known = KnownSecrets([LONG, "\n".join(body)])
    assert len(LONG) > 4 * PIECE_CHARS
    assert LONG[1000:1100] not in known.clean_text(f"it is {LONG}.")
    assert known.longest < 8 * PIECE_CHARS
    assert known.clean_text(f"a {body[1]} b") == f"a {HIDDEN} b"
    assert known.clean_text(body[0]) == body[0]


def test_a_short_value_is_no_secret() -> None:
    """Otherwise "1" or "true" would be removed everywhere."""
    values = ["1", "true", "x" * (MIN_SECRET - 1)]
    text = f"{' '.join(values)} stays"
    assert KnownSecrets(values).clean_text(text) == text
    assert KnownSecrets(["s" * MIN_SECRET]).clean_text(f"a{'s' * MIN_SECRET}b") == f"a{HIDDEN}b"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "DB_PASSWORD", "DB_PASS", "PGPASSWORD", "MYSQL_PWD", "OPENAI_API_KEY", "APIKEY",
     "STRIPE_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GITHUB_PAT", "SENTRY_DSN", "SLACK_WEBHOOK_URL",
     "S3_CREDS",
     "SIGNING_KEY", "SSH_PASSPHRASE", "BASIC_AUTH", "JWT", "DB_CONN_STR", "REPUBLIC_TOKEN"],
)  # fmt: skip
def test_the_name_says_that_a_value_is_secret(name: str) -> None:
    assert list(secrets_of({name: "some-value-of-it"})) == ["some-value-of-it"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HOME", "/workspace/huggingface"), ("TOKENIZERS_PARALLELISM", "false"), ("MAX_NEW_TOKENS", "100000"),
        ("KEYBOARD", "us-international"), ("NEXT_PUBLIC_SUPABASE_KEY", "an-anonymous-one"), ("COMPASS", "north"),
        ("MODEL", "meta-llama/Llama-3.1-8B-Instruct"), ("URL", "https://example.com/path?x=1"),
        ("FEED", "https://example.com:8080/path?by=me@example.com"), ("RUN", "task-runner-long-name"),
    ],
)  # fmt: skip
def test_ordinary_variables_are_no_secrets(name: str, value: str) -> None:
    """Their values stay readable in logs."""
    assert list(secrets_of({name: value})) == []


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("postgresql://app:p%40ssw0rd@db/x", "p@ssw0rd"),
        (PLAIN, PLAIN),
        ("sk-proj-0123456789abcdefghij", "sk-proj-0123456789abcdefghij"),
        ('{"type": "service_account", "private_key": "MIIEvQIBADANBgkq", "x": 1}', "MIIEvQIBADANBgkq"),
        ("amqp://app:p@ss/w0rd#1@queue:5672/x", "p@ss/w0rd#1"),
        ("https://ghp_0123456789abcdefghij@github.com/a/b", "ghp_0123456789abcdefghij"),
        ('{"auths": {"ghcr.io": [{"auth": "dXNlcjpwYXNz"}]}}', "dXNlcjpwYXNz"),
        ('[{"name": "x", "password": "hunter2-2"}]', "hunter2-2"),
        ('{"inner": "{\\"client_secret\\": \\"c-s-value\\"}"}', "c-s-value"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"),
    ],
)
def test_the_value_itself_says_that_it_is_secret(value: str, secret: str) -> None:
    """Under any name."""
    assert secret in list(secrets_of({"ANYTHING": value}))


def test_every_process_writes_to_the_log_without_secrets(tmp_path: Path) -> None:
    """Two writers of one pipe; a written prefix is in the log once the output is settled."""
    log = OutputLog(str(tmp_path / "log"), KnownSecrets([PLAIN]))
    other = os.dup(log.fd)
    os.write(log.fd, f"one {PLAIN[:10]}".encode())
    assert log.copy(1.0)
    os.write(other, f"{PLAIN[10:]} two\n".encode())
    os.write(other, f"three {PLAIN[:5]}".encode())
    log.settle()
    assert (tmp_path / "log").read_text() == f"one {HIDDEN} two\nthree {PLAIN[:5]}"
    log.end_own_writing()
    assert log.copy(0)  # nothing to read, and a writer that lives
    os.close(other)
    assert not log.copy(1.0)


def test_a_program_that_makes_the_pipe_non_blocking_loses_no_output(tmp_path: Path) -> None:
    """Node.js does this to its standard output, which others share."""
    log = OutputLog(str(tmp_path / "log"), KnownSecrets())
    os.set_blocking(log.fd, False)
    os.write(log.fd, b"x")
    log.settle()
    assert os.get_blocking(log.fd)
