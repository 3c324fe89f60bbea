"""The prober's clock: the database's time, whatever the clock of this machine does."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator.clusters import probing
from orchestrator.clusters.access import Members
from orchestrator.clusters.probing import Prober, ProbeSettings

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


async def test_a_step_of_the_local_clock_moves_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of the future would count as fresh, and its member would not be asked again until then."""
    local = NOW

    class Clock(datetime):
        @classmethod
        def now(cls, _: Any = None) -> datetime:  # type: ignore[override]
            return local

    monkeypatch.setattr(probing, "datetime", Clock)
    members = Members(None, lambda _: None)  # type: ignore[arg-type]
    prober = Prober(members, ProbeSettings(lambda _: b"", None, "python3"))
    prober.set_clock(NOW)
    local += timedelta(hours=2)
    await asyncio.sleep(0.01)
    assert timedelta(0) < prober.now() - NOW < timedelta(minutes=1)
