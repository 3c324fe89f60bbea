"""The conditions of the fleet as its leader sees them: for metrics, for messages, and recorded in the database.

The gauge is `orchestrator_condition`. Commands and the API show the record. Most conditions follow from a tick. The
leader queries once a minute what no tick reads: the account's balance, how fast S3 answers, tasks that were lost,
failed, cannot show how they ended or have no handler, and why bring-ups failed. Without a new answer, the last one
counts for KEPT_S, so that an outage does not end a condition.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from orchestrator.adapters.cluster_rows import known_clusters
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.fact_sources import of_tick
from orchestrator.diagnostics.facts import NOT_ASKED, Asked, Facts, Outage
from orchestrator.diagnostics.rules import conditions
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import PortError

EVERY_S = 60.0
KEPT_S = 180.0  # an older answer is not used
UNSHOWN = 3  # failures in a row, after which RunPod seems to show no balance
UNSHOWN_S = 3600.0  # until it is asked for again then
RECORD_EVERY_S = 1.0  # how often a change is looked for
RECORD_AGAIN_S = 15.0  # … and how often numbers and times in the texts are brought up to date
RECORDED_FOR_S = 60.0  # a record that is older is not shown
RECORDED = 100  # conditions that are shown, at most
DATED = 1_000  # … and those whose begin is kept, so that one that is shown later has the right one
TEXT_CHARS = 1_000  # of one text
TROUBLES = (
    "waiting_types",
    "unpublished_tasks",
    "lost_tasks",
    "webhooks",
    "schedules",
    "failed_tasks",
    "failed_bringups",
    "schema_problems",
)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sources:
    """What the leader queries."""

    store: SqlStore
    handled: Sequence[str]  # types of task with a handler; empty: not known
    balance_usd: Callable[[], Awaitable[float]]  # raises PortError if RunPod does not show it
    store_s: Callable[[], float]  # how long S3 took for the last probe
    bucket_place: str | None = None  # its region or data centre; None: not known


class ConditionRecord:
    """Keeps the conditions in the database up to date while this process leads."""

    def __init__(self, store: SqlStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self.forget()

    def forget(self) -> None:
        """Forget what was found and what was written, because this process begins or ends to lead."""
        self._found: Sequence[Condition] | None = None  # nothing is known before the first tick
        self._is_all = True
        self._written: object = None
        self._written_s = 0.0

    def note(self, found: Sequence[Condition], *, is_all: bool = True) -> None:
        """Take the conditions of a tick. If there may be others, these keep the time since when they are there."""
        self._found, self._is_all = found, is_all

    async def step(self, term: int) -> None:
        """Write them if others are found than were written, or the texts are old. Raises PortError."""
        if self._found is None:
            return
        found = [(one.kind, one.subject, one.severity) for one in self._found]
        if found == self._written and self._clock() - self._written_s < RECORD_AGAIN_S:
            return
        rows = [_bounded(one.as_json()) for one in self._found[:RECORDED]]
        rows += [{"kind": str(one.kind), "subject": one.subject, "since": one.since and one.since.isoformat(),
                  "dated_only": True} for one in self._found[RECORDED:DATED]]  # fmt: skip
        rows += [] if self._is_all else [{"kind": "*", "dated_only": True}]
        await self._store.note_conditions(term, rows, for_s=RECORDED_FOR_S)
        self._written, self._written_s = found, self._clock()


def _bounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:TEXT_CHARS] if isinstance(value, str) else value for name, value in row.items()}


class LeaderConditions:
    """The conditions of the last tick."""

    def __init__(
        self,
        sources: Sources,
        metrics: Metrics,
        on_conditions: Callable[[Sequence[Condition]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_conditions` also gets the conditions."""
        self._sources, self._metrics, self._on_conditions, self._clock = sources, metrics, on_conditions, clock
        self.record = ConditionRecord(sources.store, clock)
        self.forget()

    def forget(self) -> None:
        """Forget all answers, because this process begins or ends to lead."""
        self._asked_s = self._balance_s = self._troubles_s = -KEPT_S  # the times of the last answers
        self._balance_usd: float | None = None
        self._unshown, self._balance_again_s = 0, 0.0  # failures in a row, and when it is asked for again
        self._troubles: dict[str, Any] = {}
        self._facts: Facts | None = None
        self.record.forget()
        self._failing_s: float | None = None  # since when ticks fail

    async def ask(self) -> None:
        """Query the facts that no tick reads. An outage raises no error."""
        balance_usd, troubles = await asyncio.gather(self._ask_balance(), self._ask_troubles())
        self._asked_s = now_s = self._clock()
        if balance_usd is not None:
            self._balance_usd, self._balance_s = balance_usd, now_s
        if troubles is not None:
            self._troubles, self._troubles_s = troubles, now_s

    def _asked(self) -> Asked:
        """Return the last answers; one that is KEPT_S old counts as unknown."""
        now_s, sources = self._clock(), self._sources
        if now_s - self._asked_s >= KEPT_S:
            return NOT_ASKED
        balance_usd = self._balance_usd if now_s - self._balance_s < KEPT_S else None
        troubles = self._troubles if now_s - self._troubles_s < KEPT_S else {}
        return Asked(balance_usd, sources.store_s(), sources.bucket_place, sources.handled, **troubles)

    def planned(self, snapshot: Snapshot, made: Plan) -> None:
        """Show the conditions of a tick."""
        self._facts, self._failing_s = of_tick(snapshot, made, self._asked()), None
        self._show(self._facts)

    def failed(self, why: str) -> None:
        """Show the conditions of the last tick that did not fail, and that ticks fail."""
        now_s = self._clock()
        self._failing_s = self._failing_s or now_s
        # While nothing is known of the fleet, assume that it has a worker, which costs money.
        facts = self._facts or Facts(datetime.now(UTC), is_led=True, live=1)
        since = facts.now - timedelta(seconds=now_s - self._failing_s)
        self._show(replace(facts, tick_failed=Outage(why, since)))

    def _show(self, facts: Facts) -> None:
        try:
            found = conditions(facts)
        except Exception:  # rules judge data of pods and users: a bug in a rule must not stop a tick
            log.exception("conditions_unknown", fix="report this; health shows the other facts")
            return
        counts = Counter((str(one.kind), one.severity) for one in found)
        self._metrics.found({**{(str(kind), kind.row.level): 0 for kind in ConditionKind}, **counts})
        self.record.note(found, is_all=self._facts is not None)
        if self._on_conditions:
            self._on_conditions(found)

    async def _ask_balance(self) -> float | None:
        if self._unshown >= UNSHOWN and self._clock() < self._balance_again_s:
            return None
        try:
            balance_usd = await self._sources.balance_usd()
        except PortError as error:
            self._unshown, self._balance_again_s = self._unshown + 1, self._clock() + UNSHOWN_S
            log.debug("balance_unknown", error=f"{type(error).__name__}: {error}")
            return None
        self._unshown = 0
        return balance_usd

    async def _ask_troubles(self) -> dict[str, Any] | None:
        try:
            answer = await self._sources.store.task_troubles(self._sources.handled)
        except PortError as error:
            log.info("troubles_unknown", error=f"{type(error).__name__}: {error}")
            return None
        found = {name: answer[name] for name in TROUBLES if name in answer}  # a later version's database returns more
        return found | {"clusters": known_clusters(answer.get("clusters"))}
