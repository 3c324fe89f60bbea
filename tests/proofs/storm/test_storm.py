"""Users write whatever they like while agents work: no agent is refused, and no task is lost or done twice."""

from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.supabase_roles import create_roles
from tests.proofs.storm.storm import storm, wrong

SEED = 1
STORM_S = 15.0  # `./run soak storm` has longer ones


async def test_the_queue_survives_a_storm_of_users_writes(server: EmbeddedPostgres, empty_database: str) -> None:
    """32 sessions: claims, ends and heartbeats among resets, deletions, truncations, triggers and publications."""
    await create_roles(server.url)
    await migrate(empty_database)
    outcome = await storm(empty_database, seed=SEED, seconds=STORM_S)
    assert wrong(outcome) == []
    assert outcome.completed.total() > 0
    assert outcome.users is not None
    assert outcome.users.done > 0
