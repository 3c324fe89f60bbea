"""Real processes under a dozen random faults. `./run soak chaos` runs many."""

import dataclasses
from pathlib import Path

import pytest

from tests.proofs.chaos.faults import RANDOM_FAULTS
from tests.proofs.chaos.run import Options, run

LONG = {"leader_frozen", "leader_cut_off", "both_killed", "agent_frozen"}  # these mostly wait
ONE_OF_EACH = tuple(dataclasses.replace(kind, weight=1) for kind in RANDOM_FAULTS if kind.name not in LONG)


@pytest.mark.full
async def test_nothing_is_lost_doubled_or_leaked_while_everything_is_killed(tmp_path: Path) -> None:
    """A dozen faults of as many kinds are injected within half a minute. Then everything comes to rest."""
    options = Options(0.5, 150, seed=1, every_s=2.2, directory=tmp_path / "chaos", kinds=ONE_OF_EACH)
    summary = await run(options)
    assert summary["wrong"] == []
    assert summary["tasks_done"] == 150
    assert len(summary["injections"]) >= 4, "the others came too late on a busy machine"
