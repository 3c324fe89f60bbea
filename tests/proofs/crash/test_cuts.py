"""Commit unknown: whether the line was cut before or after it, asking again gives the right answer once."""

import sys

import psycopg
import pytest

from orchestrator.migrate import migrate, read_migrations
from orchestrator.ports import Unavailable
from tests.db.conformance.builders import START
from tests.proofs.crash.cuts import Line, cut_often

CUTS = 54
MIGRATION_CUTS = (2, 5, 9, 40, 110)  # messages of a migration's client


async def test_a_cut_before_or_after_a_commit_is_resolved_right(database: str) -> None:
    """Claims, ends, submissions and what the loop writes, each with as many cuts of both kinds."""
    resolved = await cut_often(database, CUTS, START)
    sys.stdout.write(f"{resolved}\n")
    assert sum(resolved.values()) == 2 * CUTS


@pytest.mark.parametrize("after", [False, True])
async def test_a_migration_that_was_cut_goes_on_where_it_stopped(empty_database: str, after: bool) -> None:
    """File by file: each is in the ledger if and only if it was applied."""
    async with Line(empty_database) as line:
        for message in MIGRATION_CUTS:
            line.arm(after=after, message=message)
            with pytest.raises(Unavailable):
                await migrate(line.url)
    await migrate(empty_database)
    async with await psycopg.AsyncConnection.connect(empty_database) as connection:
        rows = await (await connection.execute("select version from schema_migrations order by version")).fetchall()
    assert [row[0] for row in rows] == [migration.version for migration in read_migrations()]
