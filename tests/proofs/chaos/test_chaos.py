"""Real processes under a small shower of harms; `./run soak chaos` has the large one."""

import dataclasses
from pathlib import Path

import pytest

from tests.proofs.chaos.faults import DECK
from tests.proofs.chaos.run import Options, run

LONG = {"leader_frozen", "leader_cut_off", "both_killed", "agent_frozen"}  # what they take is mostly waiting
ONE_OF_EACH = tuple(dataclasses.replace(description, cards=1) for description in DECK if description.name not in LONG)


@pytest.mark.full
async def test_nothing_is_lost_doubled_or_leaked_while_everything_is_killed(tmp_path: Path) -> None:
    """A dozen harms of as many kinds within half a minute; then everything comes to rest."""
    options = Options(0.5, 150, seed=1, every_s=2.2, directory=tmp_path / "chaos", deck=ONE_OF_EACH)
    summary = await run(options)
    assert summary["wrong"] == []
    assert summary["tasks_done"] == 150
    assert len(summary["blows"]) >= 8
