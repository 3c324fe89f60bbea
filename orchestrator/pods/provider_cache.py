"""What the provider says of prices and network volumes, as far as the policy needs it: asked seldom, kept meanwhile.

Without a budget no price is asked for, without a volume no volume; then there is nothing to refresh.
"""

import asyncio
from collections.abc import Mapping

import structlog

from orchestrator.core.model import Policy, Volume
from orchestrator.ports import BadSpec, Cloud, PortError, Unavailable

FRESH_S = 3600.0
log = structlog.get_logger()


class Catalog:
    """The last answers."""

    def __init__(self, cloud: Cloud | None, policy: Policy) -> None:
        """Without a cloud nothing is ever known."""
        self._cloud = cloud
        self._priced = policy.hourly_budget_usd is not None or policy.daily_budget_usd is not None
        self._names = sorted({pool.volume_name for pool in policy.pools if pool.volume_name})
        self._ids: dict[str, tuple[str, str]] = {}  # volume -> (id, data centre)
        self._fresh_until_s = -1e9
        self.prices: Mapping[str, float] = {}
        self.volumes: dict[str, Volume] = {}

    @property
    def needed(self) -> bool:
        """Whether there is anything to know."""
        return self._cloud is not None and (self._priced or bool(self._names))

    async def refresh(self) -> bool:
        """Ask anew once the answers are FRESH_S old, or if one is missing; whether something was learnt."""
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
        """(id, data centre) of a network volume. Raises what the cloud raises."""
        return self._ids.get(name) or await self._look(name)

    async def _has(self, name: str) -> bool:
        """Whether there is one such volume; what is wrong otherwise stands in `volumes`."""
        try:
            await self._look(name)
        except BadSpec:
            return False
        return True

    async def _look(self, name: str) -> tuple[str, str]:
        if self._cloud is None:
            raise Unavailable("nobody can be asked for a volume")
        try:
            found = await self._cloud.volume_id(name)
        except BadSpec as error:
            self._ids.pop(name, None)
            self.volumes[name] = Volume(None, str(error))
            raise
        self._ids[name], self.volumes[name] = found, Volume(found[1], None)
        return found
