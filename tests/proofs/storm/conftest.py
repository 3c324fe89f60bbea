"""The database server of the conformance tests."""

from tests.db.conformance.conftest import empty_database, server

__all__ = ["empty_database", "server"]
