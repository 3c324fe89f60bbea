"""How tasks share the fleet: weights of tenants and limits (tenants.sql and limits.sql in functions/fleet)."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.ports import Db

Row = Mapping[str, Any]


class SharingStore:
    """The shares of a database. BadArgument says what is wrong with a value."""

    def __init__(self, db: Db) -> None:
        self._db = db

    async def tenants(self) -> Sequence[Row]:
        """Return the tenants with a weight or live tasks: {tenant, weight, ready, waiting, running}."""
        return list((await self._db.call("task_tenants"))["tenants"])

    async def set_weight(self, tenant: str, weight: int) -> None:
        """Set the share of a tenant; 1 is that of every other one."""
        await self._db.call("task_tenant_set", p_tenant=tenant, p_weight=weight)

    async def limits(self) -> Sequence[Row]:
        """Return the limits and the keys in use: {scope, name, most, is_set, running, ready, waiting}."""
        return list((await self._db.call("task_limits"))["limits"])

    async def set_limit(self, scope: str, name: str, most: int | None) -> bool:
        """Set how many tasks of a key or a type run at once; None removes the limit. Return whether there was one."""
        return bool((await self._db.call("task_limit_set", p_kind=scope, p_name=name, p_most=most))["found"])
