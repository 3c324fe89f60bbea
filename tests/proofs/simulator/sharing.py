"""The laws about a shared fleet: no tenant waits behind the backlog of another, and no limit is exceeded."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World

FREE_S = 120.0  # a place may be free for so long while a task waits for it, without any other fault meanwhile
GATES = {1: "key", 2: "type"}
Place = tuple[str, int, str | None]  # pool, priority, tenant
Limit = tuple[str, str]  # scope, name


class SharingLaws:
    """Checks which tasks get workers."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._ready = Counter[Place]()
        # The first ready tasks of their tenants, and what each worker has claimed of each other tenant before them.
        self._first: dict[str, tuple[Place, Counter[tuple[str, str | None]]]] = {}
        self._full_s: dict[Limit, float] = {}  # limits for which tasks wait -> when they last had no free place

    def task_changed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """Check a task that was written."""
        was, now = _place(old), _place(new)
        if self._is_valid(new) and not (old is not None and self._is_valid(old)):
            self._leased(new)
        if old is not None and old["status"] == "Queued" and new["status"] == "In Progress":
            # The tenant has its turn, whichever of its tasks it is.
            self._first = {one: first for one, first in self._first.items() if first[0] != was}
            if new["attempts"] == 1:  # one that comes back from a worker has had its turn already
                self._claimed(new)
        if was == now:
            return
        if was is not None:
            self._ready[was] -= 1
            self._first.pop(new["id"], None)
        if now is not None:
            self._ready[now] += 1
            if self._ready[now] == 1:
                self._first[new["id"]] = now, Counter()

    def look(self, quiet_s: float) -> None:
        """Check, once a second, that a task that waits for a limit is let in when a place is free."""
        now, db = self._world.kernel.now, self._world.db
        waiting: dict[Limit, str] = {}
        for task in db.tasks.values():
            due = task["run_after"] is None or task["run_after"] <= self._world.kernel.moment()
            if task["status"] == "Queued" and task["queue_gate"] in GATES and due:
                scope = GATES[task["queue_gate"]]
                waiting[scope, task["concurrency_key"] if scope == "key" else task["task_type"]] = task["id"]
        self._full_s = {one: self._full_s.get(one, now) if self._has_free_place(one) else now for one in waiting}
        for limit, since_s in self._full_s.items():
            if now - max(since_s, quiet_s) > FREE_S:
                self._world.laws.broken("limit", f"task {waiting[limit]} waits for {limit}, which has a free place")

    def _most(self, limit: Limit) -> int | None:
        """Return how many tasks of a key or type may run; None for any number."""
        return self._world.db.concurrency_limits.get(limit, 1 if limit[0] == "key" else None)

    def _has_free_place(self, limit: Limit) -> bool:
        """Whether fewer tasks run, or are let in, than may."""
        most, gate = self._most(limit), 1 if limit[0] == "key" else 2
        used = sum(
            self._is_valid(task) or (task["status"] == "Queued" and task["queue_gate"] > gate)
            for task in self._world.db.tasks.values()
            if _is_of(task, limit)
        )
        return most is None or used < most

    def _leased(self, task: Mapping[str, Any]) -> None:
        """Check a task with a new lease."""
        for limit in (("key", task["concurrency_key"]), ("type", task["task_type"])):
            most = self._most(limit) if limit[1] is not None else None
            held = (t for tasks in self._world.db.running.values() for t in tasks.values())
            running = sum(self._is_valid(t) for t in held if _is_of(t, limit))
            if most is not None and running > most:
                self._world.laws.broken("limit", f"{running} tasks of {limit} run at once, and {most} may")

    def _is_valid(self, task: Mapping[str, Any]) -> bool:
        until = task["lease_expires_at"]
        return bool(task["status"] == "In Progress" and (until is None or until > self._world.kernel.moment()))

    def _claimed(self, task: Mapping[str, Any]) -> None:
        """Of each other tenant, a worker claims at most one claim's tasks before a tenant's first task.

        Tasks without a tenant get turns only when a claim has met a tenant's task: they wait for one claim more. A task
        that a limit lets in gets the turn after the first one's, which another task may have: that one waits for one
        claim more too.
        """
        pool, worker = self._world.pool(task["pool"]), task["worker_id"]
        most = pool.batch if pool is not None else 1
        was_let_in = task["queue_gate"] > 0
        for first, (place, before) in self._first.items():
            pool_name, priority, tenant = place
            if (pool_name, priority) != (task["pool"], task["priority"]) or tenant == task["tenant"]:
                continue
            before[worker, task["tenant"]] += 1
            if (count := before[worker, task["tenant"]]) > most * (2 if tenant is None or was_let_in else 1):
                what = f"{worker} has claimed {count} tasks of {task['tenant']}"
                self._world.laws.broken("fair", f"{what}, and {first}, the first of {tenant}, waits")


def _place(task: Mapping[str, Any] | None) -> Place | None:
    """Return the place of a ready task in the queue."""
    if task is None or task["status"] != "Queued" or task["blocked"] or task["run_after"] is not None:
        return None
    return task["pool"], task["priority"], task["tenant"]


def _is_of(task: Mapping[str, Any], limit: Limit) -> bool:
    return bool(task["concurrency_key" if limit[0] == "key" else "task_type"] == limit[1])
