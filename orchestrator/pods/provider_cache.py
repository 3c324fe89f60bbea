"""A cache of the provider's prices, network volumes and registry credentials, as far as the policy needs them.

Prices are requested only with a budget, volumes and credentials only if a pool names one.
"""

import asyncio
from collections.abc import Awaitable, Mapping

from orchestrator.core.policy import Policy
from orchestrator.core.provider import Offer, Volume
from orchestrator.observability.logger import LazyLogger
from orchestrator.ports import BadSpec, Cloud, PortError, Unavailable

FRESH_S = 3600.0
AGAIN_S = 60.0  # between two readings, if pods cost something else
CENT = 0.01  # dollars; a smaller difference is rounding
log = LazyLogger()


class Catalog:
    """The last prices, volumes and registry credentials that RunPod has shown."""

    def __init__(self, cloud: Cloud | None, policy: Policy) -> None:
        """Without a cloud, the cache stays empty."""
        self._cloud = cloud
        self._priced = policy.hourly_budget_usd is not None or policy.daily_budget_usd is not None
        self._names = sorted({pool.volume_name for pool in policy.pools if pool.volume_name})
        self._registries = sorted({pool.registry_auth for pool in policy.pools if pool.registry_auth})
        self._registry_ids: dict[str, str] = {}  # name -> id
        self._ids: dict[str, tuple[str, str]] = {}  # volume -> (id, data centre)
        self._read_at_s = self._fresh_until_s = -1e9
        self.prices: Mapping[str, float] = {}
        self.volumes: dict[str, Volume] = {}
        self.registry_problems: dict[str, str] = {}  # name -> why the credentials cannot be used

    @property
    def needed(self) -> bool:
        """Whether the policy needs any of it."""
        return self._cloud is not None and (self._priced or bool(self._names or self._registries))

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
                complete = await self._has(self._look(name)) and complete
            for name in self._registries:
                complete = await self._has(self._look_registry(name)) and complete
        except PortError as error:
            log.warning("catalog_unread", error=f"{type(error).__name__}: {error}")
            return False
        if complete:
            self._read_at_s, self._fresh_until_s = clock_s, clock_s + FRESH_S
        return True

    def compare(self, offer: Offer, usd_per_gpu_hour: float) -> None:
        """Let the next refresh read the catalogue again if a pod costs something else than it says, once a minute."""
        listed = self.prices.get(f"{offer.gpu_type}|{offer.cloud}")
        if listed is not None and abs(listed - usd_per_gpu_hour) > CENT:
            self._fresh_until_s = min(self._fresh_until_s, self._read_at_s + AGAIN_S)

    async def volume(self, name: str) -> tuple[str, str]:
        """Return (id, data centre) of a network volume. Raises the cloud's errors."""
        return self._ids.get(name) or await self._look(name)

    async def registry(self, name: str) -> str:
        """Return the id of registry credentials. Raises the cloud's errors."""
        return self._registry_ids.get(name) or await self._look_registry(name)

    async def _has(self, look: Awaitable[object]) -> bool:
        """Look something up, which notes the problem if it cannot be used."""
        try:
            await look
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

    async def _look_registry(self, name: str) -> str:
        if self._cloud is None:
            raise Unavailable("there is no provider to ask for registry credentials")
        try:
            found = await self._cloud.registry_id(name)
        except BadSpec as error:
            self._registry_ids.pop(name, None)
            self.registry_problems[name] = str(error)
            raise
        self._registry_ids[name] = found
        self.registry_problems.pop(name, None)
        return found
