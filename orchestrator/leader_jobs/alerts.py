"""The leader's side of alerts: it compares conditions with alerts, writes messages to the outbox, and sends them.

A message is written in one transaction with the state of its alert, and sent afterwards (`outbox.py`).
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.adapters.store import SqlStore
from orchestrator.diagnostics.alerts import Alert, AlertPolicy, checked
from orchestrator.diagnostics.conditions import Condition
from orchestrator.leader_jobs.outbox import Outbox

EVERY_S = 15.0
FRESH_S = 120.0  # conditions of an older tick are not compared
URL_NAME = "ALERT_WEBHOOK_URL"


class Alerts:
    """Alerts of one fleet, sent to one address."""

    def __init__(self, store: SqlStore, outbox: Outbox, policy: AlertPolicy) -> None:
        self._store, self._outbox, self._policy = store, outbox, policy
        self._found: Sequence[Condition] | None = None
        self._found_s = 0.0

    def note_conditions(self, found: Sequence[Condition]) -> None:
        """Keep the conditions of a tick. If ticks fail, these are the last known ones and the failure."""
        self._found, self._found_s = found, time.monotonic()

    async def step(self, term: int) -> None:
        """Compare and send. Raises PortError if the database does not answer."""
        found = self._found if time.monotonic() - self._found_s < FRESH_S else None
        if found is not None:
            known = await self._store.alerts()
            now, rows = datetime.fromisoformat(known["now"]), map(Alert.from_row, known["alerts"])
            made = checked(found, rows, self._policy, now, sent_1h=known["sent_1h"])
            if made.alerts or made.messages or known["alerts"]:
                messages = [{**one, "url_name": URL_NAME} for one in made.messages]
                await self._store.note_alerts(term, [one.as_row() for one in made.alerts], messages)
        await self._outbox.step(term)


def test_body(fleet: str) -> Mapping[str, Any]:
    """Return the message of `alerts test`."""
    text = "This is a test: messages about alerts arrive here."
    return {"event": "test", "fleet": fleet, "at": datetime.now(UTC).isoformat(), "severity": "LOW", "text": text}
