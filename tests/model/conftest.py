"""The database of the conformance tests."""

from tests.conformance.conftest import database, db, fleet, hand, migrated, server

__all__ = ["database", "db", "fleet", "hand", "migrated", "server"]
