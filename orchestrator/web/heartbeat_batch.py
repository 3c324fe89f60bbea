"""Heartbeats of idle workers, those of a moment in one statement: a thousand of them beat fifty times a second.

Only a beat that holds no task and says little waits for others; one that no other joins in that moment is called as any
call of an agent is, and so is whatever the database does not answer together with the rest. Two that speak for the same
worker, with another launch or token, are never answered together: answers go by the worker's id.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.ports import PortError, Unavailable, WorkerDb
from orchestrator.worker_tokens import Claims

TOGETHER_S = 0.1  # an agent's next beat with a task comes ten times as long after this one as it took, or after 2.5 s
MOST = 100  # in one statement
SMALL_BYTES = 8 << 10  # of a request


class HeartbeatBatch:
    """Who waits for company."""

    def __init__(self, db: WorkerDb) -> None:
        self._db = db
        self._waiting: dict[asyncio.Future[Any], Mapping[str, Any]] = {}
        self._soon: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def beat(self, claims: Claims, arguments: Mapping[str, Any], size: int) -> Any:
        """The answer, or None: ask alone. Raises Unavailable where the database did not answer."""
        if size > SMALL_BYTES or not _is_plain(arguments):
            return None
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        self._waiting[answered] = {
            "worker_id": claims["sub"],
            "jti": claims["jti"],
            "nonce": arguments.get("p_nonce"),
            "health": arguments["p_health"],
            "logs": arguments["p_logs"],
        }
        if len(self._waiting) >= MOST:
            self._send()
        elif self._soon is None:
            self._soon = loop.call_later(TOGETHER_S, self._send)
        return await answered

    def _send(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self._soon, batch, self._waiting = None, self._waiting, {}
        task = asyncio.create_task(self._ask(batch), name="heartbeats")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, batch: Mapping[asyncio.Future[Any], Mapping[str, Any]]) -> None:
        answers: Mapping[str, Any] = {}
        speakers = Counter(said["worker_id"] for said in batch.values())
        together = [said for said in batch.values() if speakers[said["worker_id"]] == 1]
        try:
            if len(together) > 1:
                answers = await self._db.heartbeats(together)
        except Unavailable as error:
            for answered in batch:
                if not answered.done():
                    answered.set_exception(error)
        except PortError:
            pass  # one of them says something that cannot be: alone, each hears what
        finally:  # nobody waits for ever, whatever went wrong
            for answered, said in batch.items():
                if not answered.done():
                    answered.set_result(answers.get(said["worker_id"]))


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether it holds no task and is complete: everything else is for the database to judge."""
    said = (arguments.get("p_health"), arguments.get("p_logs"))
    return arguments.get("p_tasks") == [] and all(isinstance(one, dict) for one in said)
