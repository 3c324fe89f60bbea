"""Spans are made of rows that users can write: an invalid row has no spans, and affects no other."""

from typing import Any

import pytest

from orchestrator.core.task_spans import spans_of

AT = "2026-01-01T00:00:00+00:00"
ROW = {
    "task_id": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "attempt": 1, "traceparent": None, "created_at": AT,
    "started_at": AT, "ended_at": AT, "outcome": "complete", "previous_end": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"created_at": "infinity"},
        {"created_at": "-infinity"},
        {"created_at": "0044-03-15T00:00:00+00:00 BC"},
        {"created_at": "0001-01-01T00:00:00+00:00"},
        {"created_at": "9999-01-01T00:00:00+00:00"},
        {"created_at": "294276-01-01T00:00:00+00:00"},
        {"ended_at": "9999-01-01T00:00:00+00:00"},
        {"traceparent": "00-x-y-z"},
        {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"},
        {"task_id": "00000000-0000-0000-0000-000000000000"},
    ],
    ids=str,
)
def test_an_inconsistent_row_has_no_spans(wrong: dict[str, Any]) -> None:
    """A collector takes times from 1970 on, in 64 bits of nanoseconds, and ids other than zero."""
    assert spans_of(ROW | wrong) == ()
    assert [span.name for span in spans_of(ROW)] == ["submit", "queued", "attempt"]


def test_no_span_ends_before_it_begins() -> None:
    """Also if the clock of the database was set back."""
    later = "2026-01-01T01:00:00+00:00"
    for row in (ROW | {"created_at": later}, ROW | {"started_at": later}, ROW | {"previous_end": later}):
        assert all(span.start <= span.end for span in spans_of(row))


def test_an_upload_is_a_span_inside_its_attempt() -> None:
    """From its first request to the last byte; an attempt that reports none has no such span."""
    times = {"started_at": AT, "ended_at": "2026-01-01T00:10:00+00:00"}
    upload = {"upload_started_at": "2026-01-01T00:08:00+00:00", "upload_ended_at": "2026-01-01T00:09:30+00:00"}
    *_, attempt, span = spans_of(ROW | times | upload)
    assert (span.name, span.parent_id, span.failed) == ("upload", attempt.span_id, None)
    assert (span.end - span.start).total_seconds() == 90
    assert attempt.start <= span.start <= span.end <= attempt.end
    for part in upload:
        assert [one.name for one in spans_of(ROW | times | upload | {part: None})] == ["submit", "queued", "attempt"]


def test_an_upload_never_leaves_its_attempt() -> None:
    """Users write rows too."""
    times = {"started_at": AT, "ended_at": "2026-01-01T00:10:00+00:00"}
    before, after = "2025-12-31T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    for begins, ends in ((before, after), (after, before), (after, after), (before, before)):
        *_, attempt, span = spans_of(ROW | times | {"upload_started_at": begins, "upload_ended_at": ends})
        assert attempt.start <= span.start <= span.end <= attempt.end
