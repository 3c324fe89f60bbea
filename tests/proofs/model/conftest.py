"""The database of the conformance tests."""

from tests.db.conformance.conftest import database, fleet, hand, migrated, server
from tests.db.conformance.conftest import direct as db

__all__ = ["database", "db", "fleet", "hand", "migrated", "server"]
