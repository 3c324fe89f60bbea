"""The turns of tenants (functions/fairness.sql)."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.proofs.simulator.sql.tables import Row, Tables, is_ready, refuse

NONE = 9_007_199_254_740_991
STEP = 1_000_000  # of a tenant with the weight 1
MOST = 1000  # a weight
AHEAD = 50


class Turns(Tables):
    """The order of tenants in a pool and priority."""

    def next_turn(self, task: Row, *, front: bool = False) -> int:
        """internal_next_turn."""
        place, mark = self.marks.get(task["pool"], (None, NONE))
        mark = mark if place == task["priority"] and mark < NONE else 0
        ready = [t for t in self._ready(task["pool"], task["priority"]) if t is not task]
        shared = [t for t in ready if mark - STEP <= t["queue_turn"] < NONE]
        last: int | None = max((t["queue_turn"] for t in shared if t["tenant"] == task["tenant"]), default=None)
        if last is not None and not front:
            return last + self._step(task["tenant"])
        head: int | None = min((t["queue_turn"] for t in shared), default=None)
        if head is not None:
            return head if front else head + 1
        return NONE if front and task["tenant"] is None else max(mark, STEP)

    def raise_mark(self, pool: str, *, anew: bool = False) -> None:
        """internal_raise_mark; of the lowered marks, one keeps those of its own transaction, unless it starts anew."""
        ready = (t for t in self.tasks.values() if t["pool"] == pool and is_ready(t))
        first = min(((-t["priority"], t["queue_turn"]) for t in ready), default=None)
        self.marks[pool] = (0, NONE) if first is None else (-first[0], first[1])
        self.lowered[pool] = [] if anew else [call for call in self.lowered.get(pool, []) if call == self.calls]

    def turns_added(self, tasks: Iterable[Row]) -> None:
        """Of new tasks that are ready."""
        for task in tasks:
            self.turn_changing(task | {"status": "Complete"}, task)

    def turn_changing(self, old: Row, task: Row) -> None:
        """The part of internal_task_changing that is about turns."""
        used = task["tenant"] is not None or old["queue_turn"] < NONE
        if task["status"] != "Queued" or task["blocked"] or not used:
            return
        if task["run_after"] is not None:
            if old["status"] != "Queued" or old["run_after"] is None:
                task["queue_turn"] = NONE
            return
        waited = old["status"] == "Queued" and old["run_after"] is not None
        if old["status"] == "In Progress":
            task["queue_turn"] = self.next_turn(task, front=True)
        elif old["status"] != "Queued" or old["blocked"] or waited or old["pool"] != task["pool"]:
            task["queue_turn"] = NONE if task["tenant"] is None else self.next_turn(task)

    def deal_turns(self, pool: str, priority: int, batch: int) -> None:
        """internal_deal_turns."""
        ready = [t for t in self._ready(pool, priority, timed=True) if t["queue_turn"] == NONE]
        ahead = [t for t in self._ready(pool, priority) if t["tenant"] is None and t["queue_turn"] < NONE]
        if not ready or len(ahead) >= 2 * batch:
            return
        first = sorted((t for t in ready if t["run_after"] is None), key=lambda t: (t["created_at"], t["id"]))
        first = first[: max(4 * batch, AHEAD)]
        every = (t for t in self.tasks.values() if t["pool"] == pool and t["status"] == "Queued" and not t["blocked"])
        due = sorted((t for t in every if t["run_after"] and t["run_after"] <= self.now), key=lambda t: t["run_after"])
        for task in [*(t for t in first if t["tenant"] is not None), *due[:batch]]:
            turn = task["queue_turn"] if task["tenant"] is None else self.next_turn(task)
            self.update_tasks([(task, {"run_after": None, "queue_turn": turn})])
        turns = [t for t in first if t["tenant"] is None]
        if turns:
            turn = self.next_turn({"pool": pool, "priority": priority, "tenant": None})
            self.update_tasks([(t, {"queue_turn": turn + n * STEP}) for n, t in enumerate(turns)])

    def level_turns(self) -> None:
        """internal_level_turns."""
        with_turns = [t for t in self.tasks.values() if t["queue_turn"] < NONE]
        for pool, priority in {(t["pool"], t["priority"]): None for t in with_turns}:
            ready = [t for t in self._ready(pool, priority) if t["queue_turn"] < NONE]
            ready.sort(key=lambda t: (t["queue_turn"], t["created_at"], t["id"]))
            places = Counter[str | None]()
            changes: list[tuple[Row, Row]] = []
            for task in ready:
                turn = ready[0]["queue_turn"] + places[task["tenant"]] * self._step(task["tenant"])
                places[task["tenant"]] += 1
                if abs(task["queue_turn"] - turn) > STEP:
                    changes.append((task, {"queue_turn": turn}))
            self.update_tasks(changes)

    def task_tenant_set(self, p_tenant: str | None, p_weight: int | None) -> dict[str, Any]:
        if not p_tenant or p_weight is None or not 1 <= p_weight <= MOST:
            refuse("OR007", "the weight is not valid")
            raise AssertionError
        self.tenants[p_tenant] = p_weight
        self.level_turns()
        return {"tenant": p_tenant, "weight": p_weight}

    def _step(self, tenant: str | None) -> int:
        return STEP // (self.tenants.get(tenant, 1) if tenant is not None else 1)

    def _ready(self, pool: str, priority: int, *, timed: bool = False) -> Iterable[Row]:
        return (
            t
            for t in self.tasks.values()
            if t["pool"] == pool
            and t["priority"] == priority
            and t["status"] == "Queued"
            and not t["blocked"]
            and (timed or t["run_after"] is None)
        )
