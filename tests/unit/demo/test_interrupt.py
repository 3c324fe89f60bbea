"""The demo can be stopped at any moment."""

import asyncio
from typing import Any

from demo.narrator import Narrator


class LostCancellations:
    """A connection whose queries lose a cancellation, as psycopg's can on Python 3.11."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def execute(self, *_: Any) -> "LostCancellations":
        """Answer at once after the first query, which lasts until it is cancelled."""
        if not self.asked.is_set():
            self.asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return self
        return self

    async def fetchall(self) -> list[Any]:
        """Nothing is new."""
        return []

    async def fetchone(self) -> None:
        """There is no row."""


async def test_ctrl_c_during_a_query_is_not_lost(monkeypatch: Any) -> None:
    """The demo would go on for ever."""
    narrator, connection = Narrator(verbose=False), LostCancellations()
    monkeypatch.setattr(narrator, "_sql", connection)

    async def nothing() -> None:
        """Print no status."""

    monkeypatch.setattr(narrator, "_look_at_status", nothing)

    async def watch() -> None:
        while True:
            await narrator.look()
            await asyncio.sleep(0)

    task = asyncio.create_task(watch())
    await connection.asked.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    assert done
    assert task.cancelled()
