"""A Db whose calls are timed and counted."""

import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

from orchestrator.observability.metrics import Metrics
from orchestrator.ports import (
    HEARTBEATS,
    BadArgument,
    BadToken,
    Db,
    LostRace,
    NotLeader,
    OverBudget,
    PortError,
    UnknownWorker,
    WorkerDb,
)

# clear answers: the database is reachable
ANSWERS = (NotLeader, LostRace, OverBudget, UnknownWorker, BadToken, BadArgument)


class MeteredDb:
    """A Db that measures the calls of another one."""

    def __init__(self, db: Db, metrics: Metrics) -> None:
        self._db, self._metrics = db, metrics

    async def call(self, function: str, /, **args: Any) -> Any:
        """See ports.Db."""
        return await _timed(self._metrics, function, args, self._db.call(function, **args))

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """See ports.Db."""
        return self._db.notifications()

    async def close(self) -> None:
        """See ports.Db."""
        await self._db.close()


class MeteredWorkerDb:
    """The WorkerDb of the agents' calls, measured."""

    def __init__(self, db: WorkerDb, metrics: Metrics) -> None:
        self._db, self._metrics = db, metrics

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """See ports.WorkerDb."""
        return await _timed(self._metrics, function, args, self._db.call_as_worker(claims, function, args))

    async def heartbeats(self, batch: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """See ports.WorkerDb."""
        answers: Mapping[str, Any] = await _timed(self._metrics, HEARTBEATS, {}, self._db.heartbeats(batch))
        return answers


async def _timed(metrics: Metrics, function: str, args: Mapping[str, Any], call: Awaitable[Any]) -> Any:
    began_s = time.monotonic()
    try:
        answer = await call
    except PortError as error:
        metrics.unanswered(function, error, away=not isinstance(error, ANSWERS))
        raise
    metrics.asked(function, args, answer, time.monotonic() - began_s)
    return answer
