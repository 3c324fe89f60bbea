"""Finds tasks and workers by a filter, or by a part of an id. Rows stay as the database made them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.ports import Db

CANDIDATES = 6  # ids that match a part of an id: enough to tell them apart


class Finder:
    """Searches the tasks of a database, and the workers of one of its fleets."""

    def __init__(self, db: Db, fleet_id: str) -> None:
        self._db = db
        self._fleet = fleet_id

    async def tasks(self, wanted: Mapping[str, Any], limit: int, *, full: bool = False) -> Mapping[str, Any]:
        """Return {now, tasks, next, counts, counts_beyond}, newest first. SQL's task_find() has the keys of `wanted`.

        There are more tasks of the statuses in counts_beyond than were counted. `next` is `before` for the next call.
        Each row has `waits`, what a queued task waits for. Without `full`, rows lack params, results and dependencies.
        """
        return dict(await self._db.call("task_find", p_filter=dict(wanted), p_limit=limit, p_full=full))

    async def task(self, task_id: str) -> Mapping[str, Any] | None:
        """Return the row of one task with `waits`; None if there is none."""
        rows = (await self.tasks({"ids": [task_id]}, 1, full=True))["tasks"]
        return rows[0] if rows else None

    async def task_ids(self, prefix: str) -> Sequence[Mapping[str, Any]]:
        """Return up to CANDIDATES tasks whose id begins so: {id, task_type, status, created_at}."""
        return list((await self._db.call("task_match", p_prefix=prefix, p_limit=CANDIDATES))["tasks"])

    async def workers(self, wanted: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
        """Return {now, workers, counts, beyond} with at most `limit` ended workers. SQL has the keys of `wanted`."""
        answer = await self._db.call("fleet_find_workers", p_fleet=self._fleet, p_filter=dict(wanted), p_limit=limit)
        return dict(answer)

    async def cost_by(self, by: str, since: datetime, limit: int) -> Mapping[str, Any]:
        """Return the highest costs of tasks by "tenant" or "label:KEY": {since, until, lines, of}."""
        window = {"p_since": since, "p_until": None}
        return dict(await self._db.call("fleet_cost_by", p_fleet=self._fleet, **window, p_by=by, p_limit=limit))

    async def worker_ids(self, text: str) -> Sequence[Mapping[str, Any]]:
        """Return up to CANDIDATES workers whose id begins or ends so, or whose pod's id begins so."""
        answer = await self._db.call("fleet_match_workers", p_fleet=self._fleet, p_text=text, p_limit=CANDIDATES)
        return list(answer["workers"])

    async def names(self) -> Mapping[str, Sequence[str]]:
        """Return {pools, types}: those that tasks, workers or the leader's declarations name."""
        return dict(await self._db.call("fleet_names", p_fleet=self._fleet))
