"""What blocks a pool is explained by its kind, whatever the words in it say."""

from typing import Any

import pytest

from orchestrator.core.model import Pause
from orchestrator.core.plan import plan
from orchestrator.diagnostics import scaling
from tests.unit.core.build import NOW, policy, snapshot

NOTHING: dict[str, Any] = {"now": NOW.isoformat(), "offers": [], "blocks": {}, "decisions": {}, "waiting": []}
REASONS = ("no list of pods since yesterday", "the store is away", "over budget", "MAX_ACTIVE_GPUS is wrong", "breaker")


@pytest.mark.parametrize("reason", REASONS)
def test_an_operators_pause_is_a_pause_whatever_reason_was_given(reason: str) -> None:
    """The operator wrote the reason; `resume` ends the pause."""
    seen = snapshot(claimable=9, paused={"default": Pause(reason, None)})
    (told,) = scaling.explained(NOTHING, plan(seen, policy()).verdicts, policy())
    (blocked,) = told.blocked
    assert reason in blocked.text
    assert (blocked.who, blocked.fix) == ("operator", "python -m orchestrator resume")
