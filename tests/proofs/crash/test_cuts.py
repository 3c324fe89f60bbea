"""An unknown COMMIT: a repeated call gives the right answer once, after a cut before or after the COMMIT."""

import sys

import pytest

from tests.db.conformance.builders import START
from tests.proofs.crash.cuts import cut_often
from tests.proofs.crash.upgrades import BEFORE, cut_migrations

CUTS = 54
EVERY = 180  # of so many messages of a migration's client one is cut; with --full twice as many are


async def test_a_cut_before_or_after_a_commit_is_resolved_right(database: str) -> None:
    """Claims, ends, submissions and what the loop writes, each with as many cuts of both kinds."""
    resolved = await cut_often(database, CUTS, START)
    sys.stdout.write(f"{resolved}\n")
    assert sum(resolved.values()) == 2 * CUTS


@pytest.mark.parametrize(
    ("before", "every"),
    [("users", EVERY), *(pytest.param(name, EVERY // 2, marks=pytest.mark.full) for name in BEFORE)],
)
async def test_a_migration_that_was_cut_continues_where_it_stopped(before: str, every: int) -> None:
    """The database has a user's tables; with --full also nothing."""
    assert await cut_migrations([before], every=every) >= 2
