"""A cache of the provider's prices and network volumes, as far as the policy needs them.

Prices are requested only with a budget, volumes only if a pool names one.
"""

import asyncio
from collections.abc import Mapping

from orchestrator.core.policy import Policy
from orchestrator.core.provider import Volume
from orchestrator.observability.logger import LazyLogger
from orchestrator.ports import BadSpec, Cloud, PortError, Unavailable

FRESH_S = 3600.0
log = LazyLogger()


class Catalog:
    """The last prices and volumes that RunPod has shown."""

    def __init__(self, cloud: Cloud | None, policy: Policy) -> None:
        """Without a cloud, the cache stays empty."""
        self._cloud = cloud
        self._priced = policy.hourly_budget_usd is not None or policy.daily_budget_usd is not None
        self._names = sorted({pool.volume_name for pool in policy.pools if pool.volume_name})
        self._ids: dict[str, tuple[str, str]] = {}  # volume -> (id, data centre)
        self._fresh_until_s = -1e9
        self.prices: Mapping[str, float] = {}
        self.volumes: dict[str, Volume] = {}

    @property
    def needed(self) -> bool:
        """Whether the policy needs any of it."""
        return self._cloud is not None and (self._priced or bool(self._names))

    async def refresh(self) -> bool:
        """Refresh answers that are older than FRESH_S, or missing. Return whether something has changed."""
        clock_s = asyncio.get_running_loop().time()
        if self._cloud is None or not self.needed or clock_s < self._fresh_until_s:
            return False
        complete = True
        try:
            if self._priced:
                self.prices = await self._cloud.prices()
            for name in self._names:
                complete = await self._has(name) and complete
        except PortError as error:
            log.warning("catalog_unread", error=f"{type(error).__name__}: {error}")
            return False
        if complete:
            self._fresh_until_s = clock_s + FRESH_S
        return True

    async def volume(self, name: str) -> tuple[str, str]:
        """Return (id, data centre) of a network volume. Raises the cloud's errors."""
        return self._ids.get(name) or await self._look(name)

    async def _has(self, name: str) -> bool:
        """Look the volume up. `volumes` gets the problem if it cannot be used."""
        try:
            await self._look(name)
        except BadSpec:
            return False
        return True

    async def _look(self, name: str) -> tuple[str, str]:
        if self._cloud is None:
            raise Unavailable("there is no provider to ask for a volume")
        try:
            found = await self._cloud.volume_id(name)
        except BadSpec as error:
            self._ids.pop(name, None)
            self.volumes[name] = Volume(None, str(error))
            raise
        self._ids[name], self.volumes[name] = found, Volume(found[1], None)
        return found
