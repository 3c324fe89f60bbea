"""A page: an address, the facts that it shows, and a template."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.web.api.operations import Api
from orchestrator.web.dashboard.shared import Shared

Facts = Mapping[str, Any]
KEPT_S = 10.0  # of what is recorded once a minute, and is long
RECORDED = frozenset({"history", "worker_minutes", "usage"})
READ = frozenset({TokenScope.READ})


@dataclass(frozen=True, slots=True)
class View:
    """One look at a page."""

    holder: TokenHolder
    path: Mapping[str, str]  # the parameters in the address
    query: Mapping[str, str]


class Reads:
    """What pages ask of the database, shared for a second by all who may see the same. Raises PortError."""

    def __init__(self, api: Api, shared: Shared, view: View) -> None:
        self.api, self._shared, self._view = api, shared, view

    async def get(self, name: str, *args: Any, **named: Any) -> Any:
        """The answer of a method of `api.rows` that says the same to everybody."""
        method = getattr(self.api.rows, name)
        key, kept_s = (name, args, tuple(sorted(named.items()))), KEPT_S if name in RECORDED else None
        return await self._shared.get(key, lambda: method(*args, **named), kept_s)

    async def seen(self, name: str, *args: Any, **named: Any) -> Any:
        """The answer of a method whose first argument is the holder: what this holder sees."""
        holder, method = self._view.holder, getattr(self.api.rows, name)
        key = (name, holder.pools, holder.tenant, args, tuple(sorted(named.items())))
        return await self._shared.get(key, lambda: method(holder, *args, **named))

    async def once_a_second(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Any other answer, by a name that says what was asked and who may see it."""
        return await self._shared.get(name, ask)


@dataclass(frozen=True, slots=True)
class Page:
    """One row of the table in routes.py."""

    path: str
    title: str  # in the navigation; "" for a page that is reached from another one
    template: str
    facts: Callable[[Reads, View], Awaitable[Facts]]
    command: Callable[[View], str]  # the same in a terminal
    scopes: frozenset[TokenScope] = READ
    is_fleets: bool = False  # about the whole fleet: not for a token that is restricted to pools
    look_s: float = 1.0  # between two looks of a page that is open
    parent: str = field(default="")  # the page of the navigation to which it belongs
