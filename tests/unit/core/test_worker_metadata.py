"""A worker's metadata: decoded once, and written only under keys that have a reader."""

from dataclasses import fields
from typing import Any

import pytest

from orchestrator.core.worker_metadata import READ_BY_SQL, WorkerMetadata, metadata

GIVEN: dict[str, Any] = {
    "offer": "L4 EU-1",
    "asked_for": "operator",
    "database_id": "d1",
    "bootstrap": True,
    "ssh_user": "ubuntu",
    "image_pull_extended": True,
    "user_code": "abc",
    "launches": ["one", "two"],
    "lacks": "sing",
    "logs_late": "Refused: nobody there",
    "last_snapshot": {"known": False},
    "deletes": 2,
    "unreached": 3,
}


def test_every_key_is_decoded() -> None:
    """Each field has the value of the key of its name; further keys are ignored."""
    decoded = WorkerMetadata.of({**GIVEN, "legacy_status": "running"})
    assert {one.name: getattr(decoded, one.name) for one in fields(decoded)} == {**GIVEN, "launches": ("one", "two")}


@pytest.mark.parametrize("stored", [None, [], "x", {}, dict.fromkeys(GIVEN), dict.fromkeys(GIVEN, 1.5)], ids=repr)
def test_an_unreadable_value_counts_as_absent(stored: object) -> None:
    """Users can write to the table."""
    assert WorkerMetadata.of(stored) == WorkerMetadata()


def test_an_unknown_key_is_not_written() -> None:
    """A misspelt key would be lost without a word."""
    assert metadata(lacks="sing", stuck_s=5) == {"lacks": "sing", "stuck_s": 5}
    assert not READ_BY_SQL & {one.name for one in fields(WorkerMetadata)}
    with pytest.raises(TypeError, match="lack"):
        metadata(lack="sing")
