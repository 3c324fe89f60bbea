"""The protocol of tasks, leases and fences, searched exhaustively in small worlds; and how it fails without each."""

import sys
from dataclasses import fields, replace

import pytest

from tests.proofs.model.explore import explore
from tests.proofs.model.rows import Rules
from tests.proofs.model.world import Scope

LEADERS = Scope(1, 1, brains=2, terms=2, launches=2, claims=1, ready=False)
CROWD = Scope(1, 2, claims=1)
QUEUE = Scope(2, 1, claims=3)
RELAUNCH = replace(LEADERS, brains=1, terms=1)
SCOPES = {"leaders": LEADERS, "crowd": CROWD, "queue": QUEUE}
LEAST_STATES = 200_000

# Without which fence what goes wrong, and in which world it is seen.
PLANTED = [
    ("attempt", "a word about attempt", CROWD),
    ("ended", "a word about attempt", CROWD),
    ("launch", "under one fencing token", RELAUNCH),
    ("replay", "is held by an agent that does not know it", QUEUE),
    ("order", "is held by an agent that does not know it", QUEUE),
    ("spent", "is held by an agent that does not know it", QUEUE),
    ("already", "an accepted completion was answered with fenced", CROWD),
    ("term", "two pods were created for one intent", LEADERS),
    ("token_grows", "under one fencing token", CROWD),
    ("lease", "a task was taken away under a lease that was not over", CROWD),
    ("final", "had completed, and is now Cancelled", CROWD),
    ("rescue", "the end cannot be reached", QUEUE),
    ("ask_once", "two pods were created for one intent", LEADERS),
]


def test_every_state_of_the_protocol_is_sound_and_can_still_end() -> None:
    """At most one accepted completion, no lost task, one pod an intent; from each state the end without more faults."""
    found = {name: explore(Rules(), scope) for name, scope in SCOPES.items()}
    for name, search in found.items():
        sys.stdout.write(f"{name}: {search}\n")
        assert search.wrong is None, search
    assert sum(search.states for search in found.values()) >= LEAST_STATES


@pytest.mark.parametrize(("fence", "wrong", "scope"), PLANTED, ids=[fence for fence, _, _ in PLANTED])
def test_without_any_one_fence_the_protocol_breaks(fence: str, wrong: str, scope: Scope) -> None:
    """The search finds it, and the shortest way to it."""
    found = explore(replace(Rules(), **{fence: False}), scope)
    sys.stdout.write(f"without {fence!r}: {found}\n")
    assert found.wrong is not None
    assert wrong in found.wrong, found


def test_no_fence_is_without_its_proof() -> None:
    """Each of the rules is taken away once."""
    assert {fence for fence, _, _ in PLANTED} == {field.name for field in fields(Rules)}
