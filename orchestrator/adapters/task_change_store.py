"""The rows of actions on all tasks that fit a filter (functions/api/bulk_changes.sql)."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.ports import ApiCalls

Row = Mapping[str, Any]


class TaskChangeStore:
    """The changes of a fleet. A filter is {status, task_type, tenant, pool, labels: [{key: value}], since}."""

    def __init__(self, db: ApiCalls, fleet: str) -> None:
        self._db, self._fleet = db, fleet

    async def preview(self, holder: TokenHolder, action: str, wanted: Row) -> Row:
        """What `cancel` or `retry` would change: {now, filter, tasks, looked, is_all, by, groups, usd}.

        `is_all`: no older task was left out. BadArgument says what is wrong with the filter.
        """
        args = {"p_scope": holder.restriction(), "p_action": action, "p_filter": wanted}
        return dict(await self._db.call("task_changes_preview", p_fleet=self._fleet, **args))

    async def start(self, holder: TokenHolder, action: str, wanted: Row, *, key: str | None) -> Row:
        """Start a change, once for a key: {outcome: started, repeated or key_reused, id}."""
        args = {"p_actor": holder.name, "p_scope": holder.restriction(), "p_action": action, "p_filter": wanted}
        return dict(await self._db.call("task_changes_start", p_fleet=self._fleet, p_key=key, **args))

    async def all(self, holder: TokenHolder, limit: int) -> Row:
        """The newest changes that a holder sees: {now, changes}."""
        args = {"p_scope": holder.restriction(), "p_id": None, "p_limit": limit}
        return dict(await self._db.call("task_changes", p_fleet=self._fleet, **args))

    async def one(self, holder: TokenHolder, change_id: int) -> Row | None:
        """One change with the time `now`; None if there is none for this holder."""
        args = {"p_scope": holder.restriction(), "p_id": change_id, "p_limit": 1}
        found = await self._db.call("task_changes", p_fleet=self._fleet, **args)
        changes: Sequence[Row] = found["changes"]
        return {**changes[0], "now": found["now"]} if changes else None

    async def stop(self, holder: TokenHolder, change_id: int) -> Row:
        """End a change: {outcome: stopped, already or not_found}. What it has changed stays changed."""
        args = {"p_actor": holder.name, "p_scope": holder.restriction(), "p_id": change_id}
        return dict(await self._db.call("task_changes_stop", p_fleet=self._fleet, **args))

    async def step(self, term: int) -> Row:
        """Change some tasks of the oldest open change: {id, outcome, looked, changed, refused, more}. NotLeader."""
        return dict(await self._db.call("fleet_change_tasks", p_fleet=self._fleet, p_term=term))
