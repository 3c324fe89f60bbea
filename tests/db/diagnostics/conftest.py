"""The database of the conformance suite, with a clock that the test moves."""

from tests.db.conformance.conftest import database, db, fleet, hand, migrated, postgrest, server, transports

__all__ = ["database", "db", "fleet", "hand", "migrated", "postgrest", "server", "transports"]
