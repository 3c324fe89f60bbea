"""The demo's closing summary: it fits 80 columns, and says what comes next only if something does."""

from io import StringIO
from typing import Any

import pytest

from demo.scenario import what_was_submitted
from demo.summary import show

SUMMARY: dict[str, Any] = {
    "ok": True, "wrong": [], "tasks_done": 40, "tasks_submitted": 40, "tasks_failed": 0, "tasks_lost": 0,
    "tasks_doubled": 0, "tasks_requeued": 12, "first_claim_s": 12.34, "pods_created": 14, "pods_killed": 1,
    "pods_leaked": 0, "pod_seconds": {"booting": 101.0, "busy": 1_204.0, "idle": 100.0, "draining": 12.0},
    "dollars": 12.3456, "dollars_booked": 12.3457, "log_bytes_produced": 123_456_789, "log_bytes_shipped": 123_456_000,
    "log_bytes_declared_lost": 789_000, "log_bytes_missing": 0, "video": f"/{'long/' * 30}travel.mp4",
    "video_seconds": 36.0, "video_frames": 864, "seconds": 61.0,
}  # fmt: skip


def shown(*, keeps: bool, **changes: Any) -> list[str]:
    """The lines of the summary in a pipe."""
    stream = StringIO()
    show(SUMMARY | changes, stream, keeps=keeps)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_no_line_is_wrapped_or_longer_than_80_columns() -> None:
    """Only the path of the video may be longer: it can be copied as one line."""
    lines = shown(keeps=False)
    assert [line for line in lines if len(line) > 80] == [f"The video is in {SUMMARY['video']}"]
    assert sum(line.startswith("  ") for line in lines) == 9, lines


@pytest.mark.parametrize("keeps", [True, False])
def test_the_next_step_is_not_the_one_that_was_just_taken(keeps: bool) -> None:
    """With --keep the hints follow, and the summary has none."""
    text = "\n".join(shown(keeps=keeps))
    assert ("next: ./run demo --keep" in text) is not keeps
    assert "Nothing was lost" in text


def test_what_should_be_zero_and_is_not_is_named() -> None:
    """And nothing is praised."""
    text = "\n".join(shown(keeps=False, ok=False, wrong=["tasks_lost"], tasks_lost=1))
    assert "wrong: tasks_lost" in text
    assert "Nothing was lost" not in text


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        (1, "submitted 2 tasks: 1 video, and one that joins them"),
        (5, "submitted 6 tasks: 5 videos, and one that joins"),
    ],
)
def test_one_video_is_one_video(segments: int, said: str) -> None:
    """Singular and plural."""
    assert what_was_submitted(segments).startswith(said)
