"""The database of the conformance suite, with a clock that the test moves."""

from pathlib import Path

import pytest

from tests.db.conformance.conftest import database, db, fleet, hand, migrated, postgrest, server, transports

__all__ = ["database", "db", "fleet", "hand", "migrated", "postgrest", "server", "transports"]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Explanations depend on rows alone: each over one of the transports, by turns, and over the other with --full."""
    turns: dict[str, int] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE) and "db" in item.fixturenames:
            transport = str(item.callspec.params["db"])
            turn = turns.setdefault(item.nodeid.replace(transport, "", 1), len(turns)) % 2
            if transport != ("direct", "supabase")[turn]:
                item.add_marker(pytest.mark.full)
