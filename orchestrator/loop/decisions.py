"""Records a tick: its decisions as rows, and the cycle summary, whose phrases operators search for."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog

from orchestrator.core import decision_text
from orchestrator.core.actions import Plan, PoolDecision, Rescue, Spawn, Terminate, kind_of
from orchestrator.core.blocked import line
from orchestrator.core.exit_causes import ABRUPT
from orchestrator.core.model import Snapshot
from orchestrator.core.provider import place_of
from orchestrator.core.states import READY, State
from orchestrator.observability import log_phrases
from orchestrator.ports import Store

LOG_EVERY_S = 30.0  # the summary is logged at least so often, also if nothing was done
log = structlog.get_logger()


class DecisionRecorder:
    """Remembers the last records, so that only changes are written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorded: dict[str, tuple[int, tuple[tuple[object, ...], ...]]] = {}
        self._before: tuple[frozenset[str], frozenset[str]] | None = None  # ready and terminating at the last tick
        self._logged_at_s = -LOG_EVERY_S

    async def record(self, term: int, snapshot: Snapshot, plan: Plan) -> None:
        """Write a decision row for each pool with actions, or with a changed target or blocked reason."""
        pool_of = {worker.id: worker.pool for worker in snapshot.workers}
        changes = [(a.pool if isinstance(a, Spawn) else pool_of.get(a.worker_id), a)
                   for a in plan.actions if isinstance(a, Spawn | Terminate)]  # fmt: skip
        for decision in plan.decisions:
            await self._record(term, decision, [action for pool, action in changes if pool == decision.pool])

    async def _record(self, term: int, decision: PoolDecision, changes: Sequence[Spawn | Terminate]) -> None:
        # A smaller count, or a later time, is no new decision.
        gist = (decision.target, tuple(reason.identity for reason in decision.blocked))
        if not changes and self._recorded.get(decision.pool) == gist:
            return
        described = [_described(a) for a in changes]
        row = {"pool": decision.pool, "rule": decision.rule, "target": decision.target, "inputs": decision.inputs}
        row |= {"actions": described, "blocked": [reason.as_json() for reason in decision.blocked]}
        await self._store.record_decision(term, row)
        self._recorded[decision.pool] = gist
        reasons = [line(reason) for reason in decision.blocked]
        sentence = decision_text.row_sentence(row).replace("→", "->")  # JSON would escape the arrow
        message = f"{decision.pool}: {sentence}"
        log.info("decision_recorded", message=message, actions=described, blocked=reasons)
        log.debug("decision_computed", message=f"{decision.pool}: {decision.rule}")

    def sum_up(self, snapshot: Snapshot, plan: Plan, *, tick_s: float, observe_s: float) -> None:
        """Log the cycle summary."""
        ready = frozenset(w.id for w in snapshot.workers if w.state in READY)
        failing = frozenset(w.id for w in snapshot.workers if w.state is State.TERMINATING and w.exit_cause in ABRUPT)
        # the first snapshot of a process shows no change
        before, self._before = self._before or (ready, failing), (ready, failing)
        kinds = Counter(type(a) for a in plan.actions)
        states = Counter(w.state for w in snapshot.workers)
        did = {
            "workers_promoted": len(ready - before[0]),
            "workers_failed": len(failing - before[1]),
            "workers_spawned": kinds[Spawn],
            "workers_terminated": kinds[Terminate],
            "tasks_reset": snapshot.expired_leases if Rescue in kinds else 0,
        }
        status: dict[str, Any] = {"queued_tasks": sum(d.queued for d in snapshot.demand)}
        status |= {f"{s}_workers": states[s] for s in State if s is not State.TERMINATED}
        status["total_workers"] = len(snapshot.workers)
        now_s = time.monotonic()
        is_logged = any(did.values()) or now_s - self._logged_at_s >= LOG_EVERY_S
        self._logged_at_s = now_s if is_logged else self._logged_at_s
        level = log.info if is_logged else log.debug
        planned = {kind_of(kind): number for kind, number in kinds.items()}
        took = {"tick_s": round(tick_s, 3), "observe_s": round(observe_s, 3)}
        facts = {"actions": did, "status": status, "planned": planned, "pods": len(snapshot.pods or ()), **took}
        level("cycle_ended", message=log_phrases.CYCLE, **facts)


def _described(action: Spawn | Terminate) -> str:
    if isinstance(action, Spawn):
        return f"spawn {action.worker_id} on {place_of(action.offer.key)}: {action.reason}"
    return f"terminate {action.worker_id}: {action.reason}"
