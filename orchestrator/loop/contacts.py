"""Remembers between snapshots how this process last heard of its workers, besides their heartbeats."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.model import PodAnswer, Worker
from orchestrator.core.silence import NotedAnswer

IN_A_ROW_S = 60.0  # tries to reach a pod with a longer pause between them do not count as one outage
SILENT_HEARTBEATS = 2  # heartbeats without which a worker is silent
Moment = Callable[[float], datetime]  # from the loop's clock to the database's


@dataclass(frozen=True, slots=True)
class _PodAnswer:
    """A `PodAnswer` on the loop's clock."""

    at_s: float
    address: tuple[str | None, int | None]
    calls_unanswered: bool | None
    unreached_since_s: float | None
    has_network: bool

    def on(self, moment: Moment) -> PodAnswer:
        unreached_s = 0.0 if self.unreached_since_s is None else self.at_s - self.unreached_since_s
        return PodAnswer(moment(self.at_s), self.address, self.calls_unanswered, unreached_s, self.has_network)


class Contacts:
    """Unanswered calls of workers, and answers of silent workers' pods. Times are on the loop's clock."""

    def __init__(self) -> None:
        self._unanswered_s: dict[str, float] = {}  # worker id -> when
        self._pod_answers: dict[str, _PodAnswer] = {}  # by worker id
        self._silent: frozenset[str] = frozenset()  # workers without a recent heartbeat at the last snapshot
        self._heard_again_at: Mapping[str, datetime] = {}

    def note_unanswered(self, worker_id: str) -> None:
        """Note a worker whose call the gateway could not answer: the worker is alive."""
        self._unanswered_s[worker_id] = asyncio.get_running_loop().time()

    def note_pod_answer(self, worker: Worker, calls_unanswered: bool | None, *, has_network: bool) -> NotedAnswer:
        """Note what the pod of a silent worker answered: see `PodAnswer`."""
        now_s, address = asyncio.get_running_loop().time(), (worker.ssh_host, worker.ssh_port)
        before, since_s = self._pod_answers.get(worker.id), now_s
        if before and before.unreached_since_s is not None and now_s - before.at_s < IN_A_ROW_S:
            is_alike = (before.address, before.has_network) == (address, has_network)
            since_s = before.unreached_since_s if is_alike else now_s
        unreached_since_s = since_s if calls_unanswered is None else None
        self._pod_answers[worker.id] = _PodAnswer(now_s, address, calls_unanswered, unreached_since_s, has_network)
        may_be_well = not has_network if calls_unanswered is None else calls_unanswered
        return NotedAnswer(before is None or before.calls_unanswered != calls_unanswered, may_be_well)

    def forget_answers(self) -> None:
        """Forget what pods answered, because another process may have led."""
        self._pod_answers = {}

    def keep(self, live: Iterable[str]) -> None:
        """Forget all workers but these."""
        ids = frozenset(live)
        self._unanswered_s = {name: at_s for name, at_s in self._unanswered_s.items() if name in ids}
        self._pod_answers = {name: one for name, one in self._pod_answers.items() if name in ids}

    def unanswered_at(self, moment: Moment) -> dict[str, datetime]:
        """Return when each worker's last call got no answer."""
        return {name: moment(at_s) for name, at_s in self._unanswered_s.items()}

    def pod_answers(self, moment: Moment) -> dict[str, PodAnswer]:
        """Return the last answer of each pod that was asked."""
        return {name: one.on(moment) for name, one in self._pod_answers.items()}

    def heard_again_at(self, workers: Iterable[Worker], now: datetime, heartbeat_s: float) -> Mapping[str, datetime]:
        """Return for each worker that was silent at an earlier snapshot when it was first heard again."""
        silent, found = set(), {}
        for worker in workers:
            beat = worker.last_heartbeat
            if beat is None:
                continue
            if (now - beat).total_seconds() > SILENT_HEARTBEATS * heartbeat_s:
                silent.add(worker.id)
            elif worker.id in self._silent:
                found[worker.id] = beat
            elif worker.id in self._heard_again_at:
                found[worker.id] = self._heard_again_at[worker.id]
        self._silent, self._heard_again_at = frozenset(silent), found
        return found
