"""The database of the conformance tests, and the workers' door of the web tests over a database of its own."""

from tests.db.conformance.conftest import database, fleet, hand, migrated, server
from tests.db.conformance.conftest import direct as db
from tests.process.web.conftest import blobs, door, postgres

__all__ = ["blobs", "database", "db", "door", "fleet", "hand", "migrated", "postgres", "server"]
