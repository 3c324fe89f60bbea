"""The rows of webhooks, and the outbox (functions/messages/webhooks.sql and outbox.sql)."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.ports import Db

Row = Mapping[str, Any]


class WebhookStore:
    """The webhooks and the messages of a database. Every `term` is checked by the database (NotLeader)."""

    def __init__(self, db: Db, fleet: str) -> None:
        self._db, self._fleet = db, fleet

    async def _call(self, function: str, **args: Any) -> Any:
        return await self._db.call(function, p_fleet=self._fleet, **args)

    async def put(self, actor: str, webhook: Row) -> bool:
        """Add or replace {name, task_type, url, progress}. Return whether it is new. BadArgument says what is wrong."""
        return bool((await self._call("fleet_webhook_put", p_actor=actor, p_webhook=dict(webhook)))["created"])

    async def remove(self, actor: str, name: str) -> bool:
        """Remove an address with its unsent messages. Return whether there was one."""
        return bool((await self._call("fleet_webhook_remove", p_actor=actor, p_name=name))["found"])

    async def retry(self, actor: str, message_id: str | None) -> int:
        """Make one message, or all that were given up, due for another day. Return how many."""
        return int((await self._call("fleet_webhook_retry", p_actor=actor, p_id=message_id))["due"])

    async def all(self, *, state: str | None = None, task_id: str | None = None, limit: int = 100) -> Row:
        """Return {now, webhooks, troubles, messages}; the messages without body and URL, newest first."""
        return dict(await self._call("fleet_webhooks", p_state=state, p_task_id=task_id, p_limit=limit))

    async def write_progress(self, term: int, every_s: float) -> int:
        """Write messages about the progress of running tasks, one in `every_s` for each. Return how many."""
        return int((await self._call("fleet_webhooks_progress", p_term=term, p_every_s=every_s))["written"])

    async def take(
        self,
        term: int,
        busy: Mapping[str, int],
        owners: Mapping[str, int],
        *,
        per_host: int,
        per_owner: int,
        limit: int,
        lease_s: float,
        after: str | None,
        of_fleet: bool = False,
    ) -> tuple[Sequence[Row], str | None]:
        """Return messages that are due, and where the next call continues.

        They are {id, event, owner, host, url, body, attempts}: about tasks, or with `of_fleet` about the alerts of the
        fleet. Each of them is due again after `lease_s`.
        `busy` counts what is being sent for each host, and `owners` for each owner.
        """
        args = {"p_busy": dict(busy), "p_owners": dict(owners), "p_per_host": per_host, "p_per_owner": per_owner}
        args |= {"p_limit": limit, "p_lease_s": lease_s, "p_after": after}
        answer = await self._call("fleet_messages_take", p_term=term, p_of_fleet=of_fleet, **args)
        return list(answer["messages"]), answer["after"]

    async def close(self, term: int, message_id: str, failure: str | None, retry_s: float | None) -> None:
        """Record how an attempt ended: sent (no failure), to be repeated, or given up (no `retry_s`)."""
        args = {"p_id": message_id, "p_error": failure, "p_retry_s": retry_s}
        await self._call("fleet_message_close", p_term=term, **args)
