"""While users write to `tasks` in every way, no agent is refused, and no task is lost or done twice."""

import pytest

from orchestrator.migrate import migrate
from tests.proofs.storm.storm import storm, wrong

SEED = 1


@pytest.mark.parametrize("storm_s", [7, pytest.param(15, marks=pytest.mark.full)])  # `./run soak storm` has longer ones
async def test_the_queue_survives_a_storm_of_users_writes(empty_database: str, storm_s: float) -> None:
    """32 sessions: claims, ends and heartbeats among resets, deletions, truncations, triggers and publications."""
    await migrate(empty_database)
    outcome = await storm(empty_database, seed=SEED, seconds=storm_s)
    assert wrong(outcome) == []
    assert outcome.completed.total() > 0
    assert outcome.users is not None
    assert outcome.users.done > 0
