"""The lines of the demo."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from demo import narrator
from demo.narrator import Narrator


@pytest.mark.parametrize(("expected", "counts"), [(1, ["task 1 of 1", "task 2"]), (0, ["task 1", "task 2"])])
async def test_a_visitors_task_is_not_one_of_the_demos(
    expected: int, counts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --keep, own tasks come after those of the demo: "task 7 of 6" would be a riddle."""
    task = {"task_type": "travel_segment", "attempt": 1, "outcome": "complete", "seconds": 1.0, "worker_id": "w"}
    ended = [{**task, "id": "a", "n": "0"}, {**task, "id": "b", "n": None}]
    subject = Narrator()
    monkeypatch.setattr(subject, "_tasks", expected)

    async def rows(query: str, *_: object) -> Sequence[Mapping[str, Any]]:
        await asyncio.sleep(0)
        return ended if query == narrator.ENDED else []

    monkeypatch.setattr(subject, "_rows", rows)
    monkeypatch.setattr(subject, "_look_at_status", lambda: asyncio.sleep(0))
    await subject.look()
    said = [line.split("  ")[-1].partition(" done:")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == counts
