"""The leader's side of the outbox: it sends the messages that are due, a few at once to each host and for each owner.

A message stays a row until its receiver has accepted it. If the leader crashes while it sends, the next one sends again
with the same id, so a receiver may get a message twice. A host that does not answer is not called for a while, so it
costs neither time nor places of the others. An owner (a row of `webhooks`, or a tenant) with many slow hosts leaves
places for the other owners, and owners that wait for the same place take turns. Messages about tasks and about alerts
have an outbox each, so that neither waits for the other.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import structlog

from orchestrator.adapters.posting import ReceiverFailed, WebhookRefused
from orchestrator.adapters.webhook_store import WebhookStore
from orchestrator.ports import PortError

PER_HOST, AT_ONCE = 4, 64  # messages that are being sent
ROUND = 8  # that begin within GAP_S: their encryption must not keep the loop from its ticks
LEASE_S = 60.0  # of a message that is being sent; more than sending can take
RETRY_S, RETRY_MOST_S = 5.0, 900.0  # until the database gives the message up
REST_S, REST_MOST_S = 2.0, 60.0  # of a host that does not answer
REFUSED_REST_S = 1.0  # of one that answers, and did not take a message
LOOK_S, GAP_S = 1.0, 0.05  # between two calls of the database, with and without something that has ended
MAX_HOSTS = 1_000  # that are remembered as failing
Message = Mapping[str, Any]
log = structlog.get_logger()


class Outbox:
    """The messages about tasks or, with `of_fleet`, about the alerts of the fleet."""

    def __init__(
        self,
        store: WebhookStore,
        send: Callable[[Message], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
        *,
        of_fleet: bool = False,
    ) -> None:
        """`send` sends one message, or raises WebhookRefused, ReceiverFailed or Unavailable."""
        self._store, self._send, self._clock, self._of_fleet = store, send, clock, of_fleet
        self._calls = asyncio.Lock()  # one connection of the leader's at most
        self._after: str | None = None  # whose turn was last
        self._failing: dict[str, tuple[int, float]] = {}  # host -> failures in a row, when it is tried again

    async def step(self, term: int) -> None:
        """Send until nothing is due. Raises PortError if the database does not answer, or another process leads."""
        sending: dict[asyncio.Task[None], Message] = {}
        try:
            while True:
                room = min(ROUND, AT_ONCE - len(sending))
                taken, is_all = await self._take(term, sending.values(), room)
                for message in taken:
                    task = asyncio.create_task(self._deliver(term, message), name="message")
                    sending[task] = message
                if not sending and is_all:
                    return
                await asyncio.sleep(GAP_S)
                if sending and is_all:
                    await asyncio.wait(sending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for done in [one for one in sending if one.done()]:
                    del sending[done]
                    done.result()
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _take(self, term: int, sending: Collection[Message], room: int) -> tuple[list[Message], bool]:
        """Return messages that are due, and whether there are no more for now."""
        if room == 0:
            return [], True
        now_s = self._clock()
        busy = dict(Counter(one["host"] for one in sending))
        owners = Counter(one["owner"] for one in sending)
        share = AT_ONCE // (len(owners) + 1)  # so many places always remain for an owner that has none
        for host, (failures, until_s) in self._failing.items():
            if now_s < until_s:
                busy[host] = PER_HOST
            elif failures:  # after its rest, one message shows whether the host answers again
                busy[host] = max(busy.get(host, 0), PER_HOST - 1)
        async with self._calls:
            taken, after = await self._store.take(
                term,
                busy,
                owners,
                per_host=PER_HOST,
                per_owner=max(share, 1),
                limit=room,
                lease_s=LEASE_S,
                after=self._after,
                of_fleet=self._of_fleet,
            )
        is_all = self._after is None and after is None
        if is_all and taken:  # the next call begins behind the last one of them
            after = json.dumps([taken[-1]["owner"], taken[-1]["host"]])
        self._after = after
        return list(taken), is_all

    async def _deliver(self, term: int, message: Message) -> None:
        failure, retry_s, host = None, None, message["host"]
        try:
            await self._send(message)
            self._failing.pop(host, None)
        except PortError as error:
            failure = str(error)
            if not isinstance(error, WebhookRefused):
                self._rest(host, answers=isinstance(error, ReceiverFailed))
                if message["event"] != "task.progress":
                    retry_s = min(RETRY_S * 2 ** min(message["attempts"] - 1, 10), RETRY_MOST_S)
            note = log.warning if self._of_fleet else log.info
            note("message_unsent", id=message["id"], host=host, why=failure, retry_s=retry_s)
        async with self._calls:
            await self._store.close(term, message["id"], failure, retry_s)

    def _rest(self, host: str, *, answers: bool) -> None:
        failures, until_s = self._failing.pop(host, (0, 0.0))
        if failures and self._clock() < until_s:  # another message of the same moment failed too
            self._failing[host] = failures, until_s
            return
        rest_s = REFUSED_REST_S if answers else min(REST_S * 2 ** min(failures, 10), REST_MOST_S)
        self._failing[host] = (0 if answers else failures + 1, self._clock() + rest_s)
        if len(self._failing) > MAX_HOSTS:
            del self._failing[next(iter(self._failing))]
