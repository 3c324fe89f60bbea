"""The database of the conformance tests."""

from tests.db.conformance.conftest import database, empty_database, migrated, server

__all__ = ["database", "empty_database", "migrated", "server"]
