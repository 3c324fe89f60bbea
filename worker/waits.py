"""What a running attempt waits for outside its pod: the store, or the orchestrator that signs its URLs.

Waiting for a service is a sign of life: each try changes the attempt's progress, and the attempt's clock stands still.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .journal import Journal
    from .life import Held, Life

STORE, ORCHESTRATOR = "store", "orchestrator"
WHY_CHARS = 300  # of the reason that the progress and the heartbeat show


class Waits:
    """The transfers of one attempt; belongs to the agent's main thread."""

    def __init__(self, held: Held, life: Life, journal: Journal) -> None:
        self._held, self._life, self._journal = held, life, journal
        self._open: dict[int, str] = {}  # transfer -> the service that it waits for, "" while bytes move
        self._began = 0.0
        self._stood_s = 0.0
        self._before: dict[str, Any] | None = None  # what the handler itself last said of its progress
        self._waiting = False

    def told(self, message: dict[str, Any]) -> None:
        """Take in one message of the handler host: a transfer begins, waits (`why`), or has ended (`service` null)."""
        number, service = message["seq"], message["service"]
        if not self._open:
            self._began = time.monotonic()
        if service is None:
            self._open.pop(number, None)
            if not self._open:
                self._stood_s += time.monotonic() - self._began
        else:
            self._open[number] = service
        if service and message.get("why"):
            self._show(service, message)
        elif self._waiting and not any(self._open.values()):
            self._clear()

    def stood_s(self) -> float:
        """For how long the attempt's clock has stood still so far."""
        return self._stood_s + (time.monotonic() - self._began if self._open else 0.0)

    def progressed(self, progress: dict[str, Any]) -> None:
        """The handler itself reports progress."""
        self._before = progress
        if not self._waiting:
            self._held.progress = progress

    def end(self) -> None:
        """The attempt is over."""
        if self._waiting:
            self._clear()

    def _show(self, service: str, message: dict[str, Any]) -> None:
        why = self._journal.clean(str(message["why"]), limit=WHY_CHARS)
        if not self._waiting:
            self._before = self._held.progress
            self._journal.log("service_awaited", task=self._held.id, service=service, why=why)
        self._waiting = True
        fraction = (self._before or {}).get("fraction")
        text = f"waits for the {service} since {message['since']}, try {message['tries']}: {why}"
        self._held.progress = {"fraction": fraction, "message": text}
        if service == STORE:
            self._life.health[STORE] = {"since": message["since"], "why": why}

    def _clear(self) -> None:
        self._waiting = False
        self._held.progress = self._before
        self._life.health.pop(STORE, None)
        self._journal.log("service_answers", task=self._held.id)
