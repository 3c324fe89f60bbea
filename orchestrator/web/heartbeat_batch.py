"""Combines simultaneous heartbeats of idle workers into one statement: a thousand workers send fifty per second.

Only a small heartbeat without a task waits for others. A heartbeat that no other joins is sent like any call, and so is
one that the database does not answer with the rest. Two heartbeats of the same worker, with different launches or
tokens, are never combined, because answers are assigned by the worker's id.
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
    """The heartbeats that wait for others."""

    def __init__(self, db: WorkerDb) -> None:
        self._db = db
        self._waiting: dict[asyncio.Future[Any], Mapping[str, Any]] = {}
        self._soon: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()

    async def beat(self, claims: Claims, arguments: Mapping[str, Any], size: int) -> Any:
        """Return the answer, or None: send it alone. Raises Unavailable if the database did not answer."""
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
        speakers = Counter(heartbeat["worker_id"] for heartbeat in batch.values())
        together = [heartbeat for heartbeat in batch.values() if speakers[heartbeat["worker_id"]] == 1]
        try:
            if len(together) > 1:
                answers = await self._db.heartbeats(together)
        except Unavailable as error:
            for answered in batch:
                if not answered.done():
                    answered.set_exception(error)
        except PortError:
            pass  # one of them is invalid: sent alone, each gets its own answer
        finally:  # no caller may wait forever, also after an error
            for answered, heartbeat in batch.items():
                if not answered.done():
                    answered.set_result(answers.get(heartbeat["worker_id"]))


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether it holds no task and is complete. The database checks everything else."""
    has_health = "p_health" in arguments and isinstance(arguments["p_health"], dict | None)  # None: unchanged
    return arguments.get("p_tasks") == [] and has_health and isinstance(arguments.get("p_logs"), dict)
