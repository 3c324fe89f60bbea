"""How many tasks of a key or type run at once (functions/limits.sql, concurrency.sql)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from tests.proofs.simulator.sql.tables import ENDED_TASK, LIVE_TASK, Row, refuse
from tests.proofs.simulator.sql.turns import Turns

GATES = {"key": 1, "type": 2}
COLUMNS = {"key": "concurrency_key", "type": "task_type"}
MOST = 10000
SEEN = ("queue_gate", "status", "concurrency_key", "task_type", "run_after", "lease_expires_at")


class Limits(Turns):
    """A task at gate 1 waits for its key, at gate 2 for its type, and at gate 3 it is let in."""

    def gate_of_new(self, task: Row) -> None:
        """The part of internal_task_routed that is about gates."""
        if not task["blocked"]:
            task["queue_gate"] = self._first_gate(task)
            task["blocked"] = task["queue_gate"] > 0

    def gates_added(self, tasks: Sequence[Row]) -> None:
        """The part of internal_tasks_added that is about limits."""
        asking = [t for t in tasks if t["queue_gate"] > 0 and t["run_after"] is None]
        keys = {t["concurrency_key"] for t in asking if t["concurrency_key"] is not None}
        self._changed(keys, Counter(), {t["task_type"] for t in asking if t["queue_gate"] > 1}, Counter())

    def gate_changing(self, old: Row, task: Row, *, gating: bool) -> None:
        """The part of internal_task_changing that is about gates."""
        was_gated = old["status"] == "Queued" and old["queue_gate"] in (1, 2)
        if gating:
            task["blocked"] = task["queue_gate"] < 3
        elif task["status"] not in LIVE_TASK:
            task["blocked"] = task["blocked"] and not was_gated
            task["queue_gate"] = 0
        elif task["status"] == "In Progress":
            task["blocked"] = task["blocked"] and not was_gated
            passed = task["concurrency_key"] is not None or max(old["queue_gate"], task["queue_gate"]) > 0
            task["queue_gate"] = 3 if passed else 0
        else:
            self._gate_of_queued(old, task, was_gated=was_gated)

    def _gate_of_queued(self, old: Row, task: Row, *, was_gated: bool) -> None:
        if was_gated and task["queue_gate"] > 0:
            task["blocked"] = False
        if task["depends_on"] and old["status"] in ENDED_TASK:
            task["blocked"] = True
        if task["blocked"]:
            task["queue_gate"] = 0
        elif (
            old["status"] == "Queued"
            and old["queue_gate"] > 0
            and (old["run_after"] is not None or task["run_after"] is None)
        ):
            task["queue_gate"] = old["queue_gate"]
            task["blocked"] = old["queue_gate"] < 3
        else:
            task["queue_gate"] = self._first_gate(task)
            task["blocked"] = task["queue_gate"] > 0

    def _first_gate(self, task: Row) -> int:
        if task["concurrency_key"] is not None:
            return GATES["key"]
        return GATES["type"] if ("type", task["task_type"]) in self.concurrency_limits else 0

    def gates_changed(self, changes: Iterable[tuple[Row, Row]], *, gating: bool) -> None:
        """The part of internal_tasks_changed that is about limits."""
        new_keys, new_types, free_keys, free_types = set[str](), set[str](), Counter[str](), Counter[str]()
        for old, new in changes:
            claimed = (old["queue_gate"], old["status"], new["status"]) == (3, "Queued", "In Progress")
            same = all(old[name] == new[name] for name in SEEN)
            if same or claimed or not max(old["queue_gate"], new["queue_gate"]):
                continue
            asks_key, frees_key, asks_type, frees_type = self._places(old, new)
            if asks_key and not gating:
                new_keys.add(new["concurrency_key"])
            if frees_key and not gating:
                free_keys[old["concurrency_key"]] += 1
            if asks_type or (frees_type and gating):
                new_types.add(new["task_type"])
            if frees_type and not gating:
                free_types[old["task_type"]] += 1
        self._changed(new_keys, free_keys, new_types, free_types)

    def _places(self, old: Row, new: Row) -> tuple[bool, bool, bool, bool]:
        """internal_places, of a task that keeps its key and type."""
        key = new["concurrency_key"] is not None
        was_queued, is_queued = old["status"] == "Queued", new["status"] == "Queued"
        was_valid, is_valid = was_queued or self._is_valid(old), is_queued or self._is_valid(new)
        had_key = key and old["status"] in LIVE_TASK and old["queue_gate"] >= 2
        has_key = key and new["status"] in LIVE_TASK and new["queue_gate"] >= 2
        had_type = old["status"] in LIVE_TASK and old["queue_gate"] == 3
        has_type = new["status"] in LIVE_TASK and new["queue_gate"] == 3
        due, was_due = is_queued and new["run_after"] is None, was_queued and old["run_after"] is None
        asks_key = (
            (due and new["queue_gate"] == 1 and not (was_due and old["queue_gate"] == 1))
            or (has_key and is_valid and not (had_key and was_valid))
            or (had_key and not was_valid and not has_key)
        )
        asks_type = (
            (due and new["queue_gate"] == 2 and not (was_due and old["queue_gate"] >= 2))
            or (has_type and is_valid and not (had_type and was_valid)
                and not (is_queued and was_queued and old["queue_gate"] == 2))
            or (had_type and not was_valid and not has_type)
        )  # fmt: skip
        return asks_key, had_key and was_valid and not has_key, asks_type, had_type and was_valid and not has_type

    def _is_valid(self, task: Row) -> bool:
        until: datetime | None = task["lease_expires_at"]
        return until is None or until > self.now

    def _changed(
        self, new_keys: set[str], free_keys: Counter[str], new_types: set[str], free_types: Counter[str]
    ) -> None:
        """internal_limits_changed; a set is let in, a count is passed on."""
        self._fill("key", sorted(new_keys), None)
        self._fill("key", sorted(free_keys - Counter(dict.fromkeys(new_keys, MOST))), free_keys)
        limited = {name for scope, name in self.concurrency_limits if scope == "type"}
        new_types = {name for name in new_types if name in limited or self._waiting("type", name)}
        self._fill("type", sorted(new_types), None)
        self._fill("type", sorted((free_types.keys() & limited) - new_types), free_types)

    def _room(self, scope: str, name: str) -> int:
        """internal_rooms."""
        most = self.concurrency_limits.get((scope, name), 1 if scope == "key" else MOST)
        return int(most) - sum(self._has_place(task, scope, name) for task in self.tasks.values())

    def _has_place(self, task: Row, scope: str, name: str) -> bool:
        if task[COLUMNS[scope]] != name or task["queue_gate"] <= GATES[scope] or task["status"] not in LIVE_TASK:
            return False
        return bool(task["status"] == "Queued" or self._is_valid(task))

    def _waiting(self, scope: str, name: str) -> list[Row]:
        """internal_next_waiting: in the order of claims."""
        found = [
            t
            for t in self.tasks.values()
            if t[COLUMNS[scope]] == name
            and t["status"] == "Queued"
            and t["queue_gate"] == GATES[scope]
            and t["run_after"] is None
        ]
        return sorted(found, key=lambda t: (-t["priority"], t["queue_turn"], t["created_at"], t["id"]))

    def _fill(self, scope: str, names: Iterable[str], freed: Counter[str] | None) -> None:
        """internal_fill."""
        letting_in: list[Row] = []
        taking_back: list[Row] = []
        for name in names:
            room = self._room(scope, name)
            waiting = self._waiting(scope, name)
            if room > 0:
                letting_in += waiting[: room if freed is None else min(room, freed[name])]
            elif freed is None:
                taking_back += self._last_let_in(scope, name, -room)
            elif waiting:
                self.concurrency_notes[scope, name] = None
        self._set_gates(scope, taking_back, through=False)
        self._set_gates(scope, letting_in, through=True)

    def _last_let_in(self, scope: str, name: str, count: int) -> list[Row]:
        """internal_take_back."""
        found = [t for t in self.tasks.values() if t["status"] == "Queued" and self._has_place(t, scope, name)]
        found.sort(key=lambda t: (-t["priority"], t["queue_turn"], t["created_at"], t["id"]))
        return found[len(found) - min(count, len(found)) :]

    def _set_gates(self, scope: str, tasks: Sequence[Row], *, through: bool) -> None:
        """internal_change_gates, for the gates of keys and types."""

        def gate(task: Row) -> int:
            if not through:
                return GATES[scope]
            return 2 if scope == "key" and ("type", task["task_type"]) in self.concurrency_limits else 3

        if tasks:
            self.update_tasks([(task, {"queue_gate": gate(task)}) for task in tasks], gating=True)

    def let_in_pending(self) -> None:
        """internal_let_in_pending."""
        live = [t for t in self.tasks.values() if t["queue_gate"] > 0 and t["status"] in LIVE_TASK]
        due = [t for t in live if t["queue_gate"] < 3 and t["run_after"] is not None and t["run_after"] <= self.now]
        due.sort(key=lambda t: t["run_after"])
        self.update_tasks([(t, {"run_after": None} | self._turn_of_due(t)) for t in due])
        names: dict[str, set[str]] = {"key": set(), "type": set()}
        for scope, name in self.concurrency_notes:
            names[scope].add(name)
        self.concurrency_notes.clear()
        for task in live:
            if task["status"] == "In Progress" and task["queue_gate"] == 3 and not self._is_valid(task):
                names["type"].add(task["task_type"])
                if task["concurrency_key"] is not None:
                    names["key"].add(task["concurrency_key"])
        self._changed(names["key"], Counter(), names["type"], Counter())

    def let_in_all(self) -> None:
        """internal_let_in_all; no task here is written without triggers."""
        for task in self.tasks.values():
            if task["status"] == "Queued" and task["queue_gate"] in (1, 2):
                scope = "key" if task["queue_gate"] == 1 else "type"
                self.concurrency_notes[scope, task[COLUMNS[scope]]] = None
        self.let_in_pending()

    def _turn_of_due(self, task: Row) -> dict[str, Any]:
        return {} if task["tenant"] is None else {"queue_turn": self.next_turn(task)}

    def renewable(self, tasks: Iterable[Row]) -> list[Row]:
        """internal_renewable."""
        found, taken = list[Row](), Counter[tuple[str, str]]()
        for task in sorted(tasks, key=lambda t: str(t["id"])):
            limits: list[tuple[str, str]] = []
            if task["queue_gate"] == 3 and not self._is_valid(task):
                if task["concurrency_key"] is not None:
                    limits.append(("key", task["concurrency_key"]))
                if ("type", task["task_type"]) in self.concurrency_limits:
                    limits.append(("type", task["task_type"]))
            if all(self._room(*limit) > taken[limit] for limit in limits):
                taken.update(limits)
                found.append(task)
        return found

    def task_limit_set(self, p_kind: str, p_name: str, p_most: int | None) -> dict[str, Any]:
        if p_kind not in GATES or (p_most is not None and not 0 <= p_most <= 100000):
            refuse("OR007", "the limit is not valid")
        found = True
        if p_most is None:
            found = self.concurrency_limits.pop((p_kind, p_name), None) is not None
        else:
            self.concurrency_limits[p_kind, p_name] = p_most
        if p_kind == "type" and p_most is not None:
            ungated = [t for t in self.tasks.values() if t["task_type"] == p_name and t["queue_gate"] == 0]
            self.update_tasks([(t, {"queue_gate": 3}) for t in ungated if t["status"] == "In Progress"])
            self.update_tasks([(t, {}) for t in ungated if t["status"] == "Queued" and not t["blocked"]])
        self._fill(p_kind, [p_name], None)
        return {"found": found}
