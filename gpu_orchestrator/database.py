"""Alias of `orchestrator.database`."""

from orchestrator.database import DatabaseClient

__all__ = ["DatabaseClient"]
