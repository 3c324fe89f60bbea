"""The transport to the SQL functions, and its errors."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.ports.errors import PortError, Unavailable


class NotLeader(PortError):
    """OR001: the term is stale; another orchestrator leads."""


class LostRace(PortError):
    """OR002: the row is no longer in one of the states that the caller named."""


class OverBudget(PortError):
    """OR003."""


class UnknownWorker(PortError):
    """OR005: no such worker, or it has terminated."""


class BadToken(PortError):
    """OR006."""


class BadArgument(PortError):
    """OR007: an error of the caller. The text has what, why and the fix."""


class DatabaseAuth(BadToken):
    """The database, or Supabase's API, refuses our key or our role."""


class MissingRight(PortError):
    """Our login lacks a right that only an administrator of the database can give. The text has the SQL."""


class TooManyConnections(Unavailable):
    """The database or its pooler has no connection left, until other clients close theirs."""


class SchemaMismatch(PortError):
    """The database lacks a function this version calls, or is newer than this version."""


class Db(Protocol):
    """One transport to the SQL functions."""

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded. Raises the errors above, by SQLSTATE."""
        ...

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """Yield (channel, payload) of notifications, and reconnect forever; ("connected", "") after each gap."""
        ...

    async def close(self) -> None: ...


class ApiCalls(Protocol):
    """The database for the API: calls of SQL functions as the orchestrator."""

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded. Raises PortError."""
        ...


HEARTBEATS = "fleet_heartbeats"
TASKS_CHANNEL = "orchestrator_tasks"  # payload: the pool in which tasks became ready to run
FLEET_CHANNEL = "orchestrator_fleet"  # payload: the worker whose row has changed
ASKS_CHANNEL = "orchestrator_asks"  # payload: the worker that asks something of the leader


@dataclass(frozen=True, slots=True)
class EncodedTasks:
    """The claimed tasks as the database wrote them: decoding and encoding 32 MiB would hold the event loop."""

    json: bytes

    def __bool__(self) -> bool:
        return self.json != b"[]"


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """An argument that is JSON already: encoding a large one would hold the event loop."""

    text: str


class WorkerDb(Protocol):
    """The database for the gateway: calls as the worker in the token's claims."""

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """The function's jsonb, decoded, except the `tasks` of a claim (EncodedTasks). Raises PortError.

        A value of `args` may be EncodedJson.
        """
        ...

    async def heartbeats(self, batch: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The answers of `worker_heartbeat` by worker id, as far as there are any. Raises PortError."""
        ...
