"""A text that is cut says by how much, and a report of a failure always fits."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.web.request_bodies import MAX_BYTES, parsed
from worker import handler_errors, journal, protocol, runner
from worker.journal import Journal
from worker.texts import end_of, in_short, shortened, storable

DATABASE_BYTES = 64 << 10  # of a failure: worker_fail in migrations/functions/fleet/failing.sql


@pytest.mark.parametrize("cut", [shortened, end_of])
def test_a_cut_says_how_many_characters_are_left_out(cut: Any) -> None:
    """One beyond the limit already; the rest of the text stays as it is."""
    text = "".join(map(str, range(1_000)))
    assert cut(text, len(text)) == text
    for most in (len(text) - 1, 100):
        made = cut(text, most)
        begin, _, end = made.partition(f"[… {len(text) - most} characters left out …]")
        assert len(begin.rstrip("\n")) + len(end.lstrip("\n")) == most
        assert text.startswith(begin.rstrip("\n"))
        assert text.endswith(end.lstrip("\n"))


def test_a_text_that_cannot_be_stored_is_made_storable() -> None:
    """With a mark in the place of what is no text. Line breaks and tabs stay."""
    assert storable("a\0b\x1b[31m\ud800\n\té😀\x7f") == "a�b�[31m?\n\té😀�"


@pytest.mark.parametrize("letter", ["x", "é", "😀", "\x01", '"', "\\", "\n", "\ud800"])
def test_the_longest_failure_fits_into_its_call(letter: str, tmp_path: Path) -> None:
    """Whatever characters it has: a failure that is refused would be lost."""
    log = Journal(str(tmp_path / "agent.log"), [])
    most = (journal.MAX_TEXT * 2, handler_errors.TRACEBACK_CHARS * 2, runner.DETAIL_CHARS)
    message, traceback, tail = (log.clean(letter * count) for count in most)
    detail = {
        "type": "x" * handler_errors.TYPE_CHARS,
        "traceback": end_of(traceback, handler_errors.TRACEBACK_CHARS),
        "log": tail,
        "status": 1,
    }
    failure = {
        "code": "X" * 60,
        "message": message,
        "point": "Processing",
        "exit_class": "exception",
        "retryable": True,
    }
    call = {"p_worker_id": "w" * 63, "p_nonce": "n" * 63, "p_task_id": "t" * 36, "p_attempt": 1}
    body = json.dumps({**call, "p_failure": {**failure, "detail": detail}}, ensure_ascii=False).encode()
    assert len(body) < MAX_BYTES[protocol.FAIL]
    assert len(json.dumps(parsed(body)["p_failure"], ensure_ascii=False).encode()) < DATABASE_BYTES


def test_a_long_fact_leaves_its_line_in_the_log_readable(tmp_path: Path) -> None:
    """An answer of a proxy may have megabytes."""
    log = Journal(str(tmp_path / "agent.log"), [])
    log.log("call_refused", why="x\n" * 1_000_000)
    (line,) = (tmp_path / "agent.log").read_text().splitlines()
    assert "characters left out" in json.loads(line)["why"]


def test_a_short_text_that_is_cut_ends_with_an_ellipsis() -> None:
    """Within its limit."""
    assert [in_short("x" * count, 10) for count in (9, 10, 11)] == ["x" * 9, "x" * 10, "x" * 9 + "…"]


def test_keys_that_become_equal_without_their_secrets_keep_their_values(tmp_path: Path) -> None:
    """Both values are the user's."""
    log = Journal(str(tmp_path / "agent.log"), ["sesame-one", "sesame-two"])
    found = log.clean_result({"sesame-one": 1, "sesame-two": 2, "a": {"b": 3}})
    assert found == {"[redacted]": 1, "[redacted] 1": 2, "a": {"b": 3}}
