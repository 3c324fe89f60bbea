"""The database of the conformance tests, and the workers' gateway of the web tests over a database of its own."""

from tests.db.conformance.conftest import database, fleet, hand, migrated, server
from tests.db.conformance.conftest import direct as db
from tests.process.web.conftest import blobs, gateway, postgres, s3

__all__ = ["blobs", "database", "db", "fleet", "gateway", "hand", "migrated", "postgres", "s3", "server"]
