"""The queue beside the users' table: whatever is written and called, its rows follow `tasks`, and nothing is lost."""

import psycopg
import pytest

from tests.db.conformance.walk import Walk

STEPS = 100


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 24), marks=pytest.mark.full)])
async def test_after_each_write_and_call_the_queue_follows_from_the_tasks(database: str, seeds: range) -> None:
    """Each attempt ends once, numbers rise, nobody waits for what has happened, and nothing stays pending."""
    with psycopg.connect(database, autocommit=True) as connection:
        for seed in seeds:
            walk = Walk.begin(connection, seed)
            for number in range(STEPS):
                step = walk.dice.choice(walk.steps())
                try:
                    step()
                    walk.check()
                except (AssertionError, psycopg.Error) as error:
                    raise AssertionError(f"seed {seed}, step {number}, {step.__name__}: {error}") from error
