"""The services outside the pod for which a running attempt waits: the store, or the orchestrator that signs URLs.

Each try changes the attempt's progress, so a waiting attempt does not count as stuck. Its timeout is paused meanwhile.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_state import AgentState, HeldTask
    from .journal import Journal

STORE, ORCHESTRATOR = "store", "orchestrator"
WHY_CHARS = 300  # characters of the reason in the progress and in the heartbeat


class ServiceWaits:
    """The transfers of one attempt. Used only by the agent's main thread."""

    def __init__(self, held: HeldTask, state: AgentState, journal: Journal) -> None:
        self._held, self._state, self._journal = held, state, journal
        self._open: dict[int, str] = {}  # transfer -> the service that it waits for, "" while bytes move
        self._began = 0.0
        self._paused_s = 0.0
        self._before: dict[str, Any] | None = None  # the last progress that the handler itself reported
        self._waiting = False  # the progress shows a transfer in place of the handler's own progress
        self._awaited = False  # the progress shows the service for which a transfer waits

    def note_transfer(self, message: dict[str, Any]) -> None:
        """Take one message of the handler host: a transfer begins, waits (`why`), or has ended (`service` null)."""
        number, service = message["seq"], message["service"]
        if not self._open:
            self._began = time.monotonic()
        if service is None:
            self._open.pop(number, None)
            if not self._open:
                self._paused_s += time.monotonic() - self._began
        else:
            self._open[number] = service
        if service is not None and message.get("why"):
            self._show(service, message)
        elif self._waiting and not any(self._open.values()):
            self._clear()

    def paused_s(self) -> float:
        """Return for how many seconds the attempt's timeout has been paused so far."""
        return self._paused_s + (time.monotonic() - self._began if self._open else 0.0)

    def note_progress(self, progress: dict[str, Any]) -> None:
        """Take a progress report of the handler."""
        self._before = progress
        if not self._waiting:
            self._held.progress = progress

    def end(self) -> None:
        """End the waits, because the attempt is over."""
        if self._waiting:
            self._clear()

    def _show(self, service: str, message: dict[str, Any]) -> None:
        """Show the service for which the attempt waits, or how far its transfer is."""
        why = self._journal.clean(str(message["why"]), limit=WHY_CHARS)
        if not self._waiting:
            self._before = self._held.progress
        if service and not self._awaited:
            self._awaited = True
            self._journal.log("service_awaited", task=self._held.id, service=service, why=why)
        self._waiting = True
        fraction = (self._before or {}).get("fraction")
        text = f"waits for the {service} since {message['since']}, try {message['tries']}: {why}" if service else why
        self._held.progress = {"fraction": fraction, "message": text}
        if service == STORE:
            self._state.health[STORE] = {"since": message["since"], "why": why}

    def _clear(self) -> None:
        self._waiting = False
        self._held.progress = self._before
        if self._awaited:
            self._awaited = False
            self._state.health.pop(STORE, None)
            self._journal.log("service_answers", task=self._held.id)
