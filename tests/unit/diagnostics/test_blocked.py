"""What blocks a pool is explained by its kind, whatever the words in it say."""

import ast
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.blocked import Blocked, BlockedReason, from_json, line, text, why
from orchestrator.core.model import Pause
from orchestrator.core.plan import plan
from orchestrator.diagnostics import scaling
from tests.unit.core.build import NOW, policy, snapshot

CORE = Path(__file__).resolve().parents[3] / "orchestrator" / "core"
ADD_A_KIND = (
    'Add `{name} = "{value}", BlockedRow(means, who, then, fix, words=("… {{fact}} …",))` to BlockedReason in '
    "orchestrator/core/blocked.py: the kind in one sentence, who must act, what happens then, a command or setting as "
    "the fix, and the words with the facts of `detail`. `explain`, `plan` and `diagnose` read it from there."
)
NOTHING: dict[str, Any] = {"now": NOW.isoformat(), "offers": [], "blocks": {}, "decisions": {}, "waiting": []}
REASONS = ("no list of pods since yesterday", "the store is away", "over budget", "MAX_ACTIVE_GPUS is wrong", "breaker")


@pytest.mark.parametrize("reason", REASONS)
def test_an_operators_pause_is_a_pause_whatever_reason_was_given(reason: str) -> None:
    """The operator wrote the reason; `resume` ends the pause."""
    seen = snapshot(claimable=9, paused={"default": Pause(reason, None)})
    (told,) = scaling.explained(NOTHING, plan(seen, policy()).decisions, policy())
    (blocked,) = told.blocked
    assert reason in blocked.text
    assert (blocked.who, blocked.fix) == ("operator", "python -m orchestrator resume")


def used() -> dict[str, str]:
    """Each `BlockedReason.NAME` that the core uses, and where."""
    found = {}
    for path in sorted(CORE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "BlockedReason"
            ):
                found[node.attr] = f"orchestrator/core/{path.name}:{node.lineno}"
    return found


def test_every_kind_that_the_planner_uses_is_in_the_catalogue() -> None:
    """A limit that only the planner knows would have no explanation; one that it does not use explains nothing."""
    unknown = [
        f"{where} uses BlockedReason.{name}. {ADD_A_KIND.format(name=name, value=name.lower())}"
        for name, where in used().items()
        if name not in BlockedReason.__members__
    ]
    assert not unknown, "\n".join(unknown)
    assert set(BlockedReason.__members__) == set(used())


def test_a_reason_is_the_same_after_it_was_stored() -> None:
    """Every field."""
    reason = Blocked(BlockedReason.HALTED, 3, detail={"code": "QUOTA"}, until=NOW)
    assert from_json(reason.as_json()) == reason
    assert line(reason) == (
        "3 spawns blocked: RunPod refuses. The account may not rent more, because of a quota or a spending limit "
        "(QUOTA). Next try at 12:00:00."
    )


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ("1 spawn(s): none to be had", "1 spawn(s): none to be had"),
        ({"kind": "tomorrow", "detail": {"limit": 2}}, "tomorrow {'limit': 2}"),
        ({"kind": "paced", "detail": {"pace_s": "?"}}, "The last worker failed. {'pace_s': '?'}"),
    ],
)
def test_what_another_release_stored_is_shown_too(stored: object, said: str) -> None:
    """A sentence, a kind that this release does not know, a fact of another type."""
    assert text(from_json(stored)) == said


def test_numbers_and_times_make_no_other_reason_and_words_do() -> None:
    """A queue that shrinks by one is no new decision; another failure code is one."""
    one = Blocked(BlockedReason.PACED, 3, detail={"bring_up_code": "NO_RUNTIME", "pace_s": 10}, until=NOW)
    same = Blocked(BlockedReason.PACED, 2, detail={"bring_up_code": "NO_RUNTIME", "pace_s": 20})
    assert one.identity == same.identity
    assert one.identity != Blocked(BlockedReason.PACED, 3, detail={"bring_up_code": "POD_ERROR", "pace_s": 10}).identity
    assert why(one) == "The last start of a worker failed (NO_RUNTIME). One worker is started in 10 s."
