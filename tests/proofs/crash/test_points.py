"""If a process is killed at any of its calls, the next process repairs what it left."""

import sys

import pytest

from tests.proofs.crash.points import Point, killed_at, spawned_at_sigterm, walk

PARTS = 8
OPERATIONS = {
    "tick", "spawn", "continuebringup", "ship", "flush", "delete", "claim", "heartbeat", "complete",
    "complete_and_claim", "fail",
}  # fmt: skip


def _of_each_kind(points: list[Point]) -> list[Point]:
    """Return the first point of each kind: its operation and its call."""
    return list({(point.operation, point.call): point for point in reversed(points)}.values())


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, PARTS))])
def test_a_kill_at_every_kind_of_call_is_repaired(part: int) -> None:
    """Before its effect and after it: an eighth of both, the others with --full; `./run soak crash` has every call."""
    points = walk()
    chosen = _of_each_kind(points)
    assert {point.operation for point in points} >= OPERATIONS
    broken = [
        (point, "after" if after else "before", violation)
        for number, point in enumerate(chosen)
        for after in (False, True)
        if (number + 4 * after) % PARTS == part and (violation := killed_at(point, after=after))
    ]
    sys.stdout.write(f"{len(chosen)} kinds of {len(points)} points, {2 * len(chosen) // PARTS} kills\n")
    assert not broken


def test_a_process_that_is_terminated_finishes_the_writes_of_its_tick() -> None:
    """SIGTERM while it decides on two workers: both intents are written, the lease is given back, within 1 s."""
    spawned, took_s = spawned_at_sigterm()
    assert spawned == 2
    assert took_s < 1
