"""A database whose calls are timed and counted: the one door through which every fact of the fleet goes."""

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

ANSWERS = (NotLeader, LostRace, OverBudget, UnknownWorker, BadToken, BadArgument)  # clear ones: the database is there


class MeteredDb:
    """A Db like the one that it is made over."""

    def __init__(self, db: Db, metrics: Metrics) -> None:
        self._db, self._metrics = db, metrics

    async def call(self, function: str, /, **args: Any) -> Any:
        """As the Db's own."""
        return await _timed(self._metrics, function, args, self._db.call(function, **args))

    def notifications(self) -> AsyncIterator[tuple[str, str]]:
        """As the Db's own."""
        return self._db.notifications()

    async def close(self) -> None:
        """As the Db's own."""
        await self._db.close()


class MeteredWorkerDb:
    """The agents' way to the database."""

    def __init__(self, db: WorkerDb, metrics: Metrics) -> None:
        self._db, self._metrics = db, metrics

    async def call_as_worker(self, claims: Mapping[str, Any], function: str, args: Mapping[str, Any]) -> Any:
        """As the WorkerDb's own."""
        return await _timed(self._metrics, function, args, self._db.call_as_worker(claims, function, args))

    async def heartbeats(self, beats: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """As the WorkerDb's own."""
        answers: Mapping[str, Any] = await _timed(self._metrics, HEARTBEATS, {}, self._db.heartbeats(beats))
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
