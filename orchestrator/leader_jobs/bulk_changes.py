"""Actions on all tasks that fit a filter: the leader's step that changes some of them at a time.

Each call of the database changes some tasks and saves its place in one transaction. A leader that ends between two
calls loses nothing, and the next one goes on from there.
"""

import asyncio

import structlog

from orchestrator.adapters.task_change_store import TaskChangeStore

EVERY_S = 3.0  # while there is nothing to do
GAP_S = 0.05  # between two calls: somebody may want to stop the change
CALLS = 1_000  # in one step; the next step continues
log = structlog.get_logger()


class BulkChanges:
    """Carries out the changes, the oldest first."""

    def __init__(self, store: TaskChangeStore) -> None:
        self._store = store

    async def step(self, term: int) -> None:
        """Change tasks until nothing is left, or CALLS calls are made. Raises PortError."""
        for _ in range(CALLS):
            done = await self._store.step(term)
            if done["id"] is not None and done["outcome"] is not None:
                counts = {name: done[name] for name in ("looked", "changed", "refused")}
                log.info("bulk_change_ended", change=done["id"], outcome=done["outcome"], **counts)
            if not done["more"]:
                return
            await asyncio.sleep(GAP_S)
