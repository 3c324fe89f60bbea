"""The leader's side of alerts: it compares conditions with alerts, writes messages to the outbox, and delivers them.

A message is written in one transaction with the state of its alert, and delivered afterwards. If the leader dies in
between, the next one delivers it with the same id. A receiver may get a message twice, and drops an id that it knows.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from orchestrator.adapters.alert_sender import AlertSender
from orchestrator.adapters.posting import WebhookRefused
from orchestrator.adapters.store import SqlStore
from orchestrator.diagnostics.alerts import Alert, AlertPolicy, checked
from orchestrator.diagnostics.conditions import Condition
from orchestrator.ports import PortError

EVERY_S = 15.0
FRESH_S = 120.0  # conditions of an older tick are not compared
URL_NAME = "ALERT_WEBHOOK_URL"
BATCH = 10
LEASE_S = 60.0  # of a message that is being sent; more than a request can take
RETRY_S, RETRY_MOST_S, GIVE_UP_S = 5.0, 900.0, 86_400.0
log = structlog.get_logger()


class Alerts:
    """Alerts of one fleet, sent to one address."""

    def __init__(self, store: SqlStore, sender: AlertSender, policy: AlertPolicy) -> None:
        self._store, self._sender, self._policy = store, sender, policy
        self._found: Sequence[Condition] | None = None
        self._found_s = 0.0

    def note_conditions(self, found: Sequence[Condition]) -> None:
        """Keep the conditions of a tick. If ticks fail, these are the last known ones and the failure."""
        self._found, self._found_s = found, time.monotonic()

    async def step(self, term: int) -> None:
        """Compare and deliver. Raises PortError if the database does not answer."""
        found = self._found if time.monotonic() - self._found_s < FRESH_S else None
        if found is not None:
            known = await self._store.alerts()
            now, rows = datetime.fromisoformat(known["now"]), map(Alert.from_row, known["alerts"])
            made = checked(found, rows, self._policy, now, sent_1h=known["sent_1h"])
            if made.alerts or made.messages or known["alerts"]:
                messages = [{**one, "url_name": URL_NAME} for one in made.messages]
                await self._store.note_alerts(term, [one.as_row() for one in made.alerts], messages)
        await self._deliver(term)

    async def _deliver(self, term: int) -> None:
        taken = await self._store.outbox_take(term, URL_NAME, limit=BATCH, lease_s=LEASE_S)
        now = datetime.fromisoformat(taken["now"])
        await asyncio.gather(*(self._send(term, message, now) for message in taken["messages"]))

    async def _send(self, term: int, message: Mapping[str, Any], now: datetime) -> None:
        failure, retry_s = None, None
        try:
            await self._sender.send(message["id"], message["body"])
        except PortError as error:
            failure = str(error)
            age_s = (now - datetime.fromisoformat(message["created_at"])).total_seconds()
            if not isinstance(error, WebhookRefused) and age_s < GIVE_UP_S:
                retry_s = min(RETRY_S * 2 ** min(message["attempts"], 10), RETRY_MOST_S)
            log.warning("alert_unsent", id=message["id"], why=failure, retry_s=retry_s)
        await self._store.outbox_close(term, message["id"], failure, retry_s)


def test_body(fleet: str) -> Mapping[str, Any]:
    """Return the message of `alerts test`."""
    text = "This is a test: messages about alerts arrive here."
    return {"event": "test", "fleet": fleet, "at": datetime.now(UTC).isoformat(), "severity": "LOW", "text": text}
