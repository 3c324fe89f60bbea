"""The queue beside `tasks` (functions/queue): the states of open tasks, their attempts, and what follows from an end.

No call meets a lock, a limit, a turn or a user's trigger: the property walk in tests/db has these. An end that nobody
ran waits for fleet_maintain; its task is shown as it will be then, as the SQL functions do.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from tests.proofs.simulator.sql.tables import Row, Tables, wanted

POINTS = ("Claiming", "Processing", "Completion")
BAD_ENDS = ("Failed", "Cancelled")
EARLIER = re.compile(r"^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )", re.DOTALL)
IDLE = dict.fromkeys(("worker_id", "nonce", "claim_no", "claimed_at", "lease_expires_at", "progress_at", "log_first"))
ENDED = dict.fromkeys(("exit_class", "failed_at_point", "message", "detail", "given_back", "permanent"))
NO_FAILURE = dict.fromkeys(("error_message", "failure_code", "failed_at_point"))


class Live(Tables):
    """The rows of `live`, and their effects on `tasks`."""

    def show(self, task: Row, change: Mapping[str, Any]) -> None:
        """Write to `tasks`."""
        old = dict(task)
        task |= change
        self.watch("tasks", old, task)

    def last(self, task_id: str) -> Row | None:
        """The last attempt that has ended."""
        return self.attempts[task_id][-1] if task_id in self.attempts else None

    def specified(self, task: Row) -> Row:
        """What it asks for, with the values of its type."""
        declared = self.task_types.get(task["task_type"], {})
        defaults = {"pool": "default", "max_attempts": 3, "timeout_s": None}
        chosen = {name: task[name] or declared.get(name) or default for name, default in defaults.items()}
        return {"run_after": task["run_after"], "cancel_requested_at": task["cancel_requested_at"], **chosen}

    # --- states

    def enter(self, ids: Iterable[str]) -> None:
        """insert_live, of tasks that are Queued."""
        fresh = list(ids)
        for task_id in fresh:
            task, last = self.tasks[task_id], self.last(task_id)
            number = max(last["attempt"] if last else 0, task["published"] // 2)
            uncounted = (last["uncounted"] if last else 0) + number - task["attempts"]
            self.live[task_id] = {
                **self.specified(task), **IDLE, "id": task_id, "state": "waits_for_tasks", "attempt": number,
                "uncounted": min(number, max(uncounted, 0)), "priority": task["priority"],
                "created_at": task["created_at"], "dedupe_key": task["dedupe_key"],
            }  # fmt: skip
        bad = {n for i in fresh for n in self.tasks[i]["depends_on"] if self.tasks[n]["status"] in BAD_ENDS}
        self.fail_dependants(bad)
        self.advance(fresh)

    def advance(self, ids: Iterable[str]) -> None:
        """Move on those that are not running."""
        for task_id in ids:
            row = self.live.get(task_id)
            if row is None or row["state"] == "running":
                continue
            row["state"] = self._next_state(row)
            if row["state"] == "ready":
                self.notify("orchestrator_tasks", row["pool"])

    def _next_state(self, row: Row) -> str:
        if any(self.tasks[i]["status"] != "Complete" for i in self.tasks[row["id"]]["depends_on"]):
            return "waits_for_tasks"
        return "waits_for_time" if row["run_after"] is not None and row["run_after"] > self.now else "ready"

    def advance_due(self, pool: str, most: int) -> None:
        """Move on those whose time has come."""
        waiting = (r for r in self.live.values() if r["state"] == "waits_for_time" and r["pool"] == pool)
        due = sorted((r for r in waiting if r["run_after"] <= self.now), key=lambda r: r["run_after"])
        self.advance([row["id"] for row in due[:most]])

    def respecify(self, row: Row) -> None:
        """Follow a changed specification (reconcile)."""
        new, old = self.specified(self.tasks[row["id"]]), dict(row)
        row |= new
        if row["state"] == "running":
            row |= {"pool": old["pool"], "run_after": old["run_after"]}
        if any(old[name] != row[name] for name in ("pool", "run_after")):
            self.advance([row["id"]])

    def release_is_here(self, worker: Row) -> None:
        """What becomes due with the first ready worker of a release."""
        for row in list(self.live.values()):
            task = self.tasks[row["id"]]
            waits = (row["pool"], row["state"]) == (worker["pool"], "waits_for_time")
            if waits and task["failure_code"] == "EARLIER_RELEASE":
                task["run_after"] = None
                self.respecify(row)

    # --- ends

    def leave(self, row: Row) -> None:
        """Remove a row."""
        del self.live[row["id"]]
        self._drop(row)

    def _drop(self, row: Row) -> None:
        if row["state"] == "running":
            del self.running[row["worker_id"]][row["id"]]

    def fail_dependants(self, ids: Iterable[str]) -> None:
        """These tasks ended as Failed or Cancelled: those that need them fail, at any depth."""
        causes = set(ids)
        while causes:
            behind = sorted({i for cause in causes for i in self.edges.get(cause, ()) if i in self.live})
            for task_id in behind:
                task, row = self.tasks[task_id], self.live[task_id]
                cause = min(i for i in task["depends_on"] if i in causes)
                self.leave(row)
                self.publications[task_id] = (2 * row["attempt"] + 3, self.now)
                told = {"failure_code": "DEPENDENCY_FAILED", "error_message": _because(self.tasks[cause])}
                ends = {"status": "Failed", "run_after": None, "failed_at_point": None}
                self.show(task, ends | told | {"updated_at": self.now, "generation_processed_at": self.now})
            causes = set(behind)

    def meet(self, ids: Iterable[str]) -> None:
        """These tasks are Complete: those that need no other one go on."""
        self.advance([i for one in ids for i in self.edges.get(one, ()) if i in self.live])

    def publish_due(self, most: int) -> None:
        """Publish what could not be published at once."""
        for task_id in list(self.publications)[:most]:
            self.tasks[task_id]["published"] = self.publications.pop(task_id)[0]

    def note_attempt(self, row: Row, outcome: str, **more: Any) -> None:
        """Insert the row of an attempt that ends."""
        worker = self.workers[row["worker_id"]]
        copied = ("worker_id", "nonce", "claim_no", "log_first", "attempt", "uncounted", "run_after")
        ended = {"task_id": row["id"], **{name: row[name] for name in copied}, "started_at": row["claimed_at"]}
        ended |= {"ended_at": self.now, "outcome": outcome, "failure_code": None, **ENDED}
        ended |= {"log_last": handler_bytes(worker, row["nonce"])} | more
        self.attempts.setdefault(row["id"], []).append(ended)
        self.tried.setdefault(row["worker_id"], []).append(ended)

    def complete(self, row: Row, location: str | None, data: Any) -> None:
        """End the attempt of a running task, whose result is there."""
        self.leave(row)
        self.note_attempt(row, "complete")
        if wanted(self.workers[row["worker_id"]]) != "run":
            self.notify("orchestrator_fleet", row["worker_id"])
        said = {"output_location": location, "result_data": data, "progress": None, "run_after": None, **NO_FAILURE}
        self.show(self.tasks[row["id"]], self._end_of(row, "Complete") | said)

    def _end_of(self, row: Row, status: str) -> Row:
        return {
            "status": status, "published": 2 * row["attempt"] + 1, "attempts": row["attempt"], "updated_at": self.now,
            "worker_id": row["worker_id"], "generation_started_at": row["claimed_at"],
            "generation_processed_at": self.now,
        }  # fmt: skip

    def give_up(
        self,
        row: Row,
        outcome: str,
        failure: Mapping[str, Any],
        *,
        counted: bool = False,
        backoff: bool = False,
        pause_s: float | None = None,
    ) -> str:
        """End the attempt of a running task that did not complete."""
        used, permanent = row["attempt"] - row["uncounted"], failure.get("retryable") is False
        said, run_after, worker_id = "requeued", None, row["worker_id"]
        if row["cancel_requested_at"] is not None:
            said = "cancelled"
        elif counted and (used >= row["max_attempts"] or permanent):
            said = "failed"
        point, code, message = failure.get("point"), failure.get("code"), failure.get("message")
        self._drop(row)
        self.note_attempt(
            row, "cancelled" if said == "cancelled" else outcome, failure_code=code, failed_at_point=point,
            exit_class=failure.get("exit_class"), message=message, detail=failure.get("detail"),
            uncounted=row["uncounted"] + (not counted), permanent=permanent or None,
        )  # fmt: skip
        end = self._end_of(row, said.capitalize())
        end |= {"error_message": message, "failure_code": code, "failed_at_point": point if point in POINTS else None}
        if said == "requeued":
            if pause_s is None and backoff:
                pause_s = _backoff_s(row, outcome, used)
            run_after = None if pause_s is None else self.now + timedelta(seconds=pause_s)
            end |= {"status": "Queued", "worker_id": None, "generation_processed_at": None}
            row |= {**self.specified(self.tasks[row["id"]]), **IDLE, "state": "waits_for_tasks", "run_after": run_after}
            row["uncounted"] += not counted
            self.advance([row["id"]])
        else:
            del self.live[row["id"]]
        if wanted(self.workers[worker_id]) != "run":
            self.notify("orchestrator_fleet", worker_id)
        self.show(self.tasks[row["id"]], end | {"run_after": run_after})
        if said != "requeued":
            self.fail_dependants([row["id"]])
        return said

    # --- ended tasks that are queued again

    def failed_with(self, task_id: str) -> list[str]:
        """failed_dependants: this task and those that failed only because of it, in the order of levels."""
        found = [task_id]
        for one in found:
            behind = (i for i in self.edges.get(one, ()) if self.tasks[i]["failure_code"] == "DEPENDENCY_FAILED")
            found += [i for i in behind if i not in found]
        return found

    def has_double(self, task: Row) -> bool:
        """Whether an open task has its dedupe key."""
        key = task["dedupe_key"]
        return key is not None and any(row["dedupe_key"] == key for row in self.live.values())

    def give_back(self, ids: Iterable[str]) -> None:
        """These tasks failed on a worker that is sick, and get one attempt back."""
        given = list(ids)
        for task_id in given:
            task, last = self.tasks[task_id], self.last(task_id)
            assert last is not None
            used, most = last["attempt"] - last["uncounted"], self.specified(task)["max_attempts"]
            failed = task["status"] == "Failed" and last["outcome"] == "failed"
            for one in self.failed_with(task_id) if failed and not last["permanent"] and used >= most else ():
                self._queue_again(self.tasks[one])
        for row in (self.live[i] for i in given if i in self.live):
            row["uncounted"] += row["uncounted"] < row["attempt"]

    def _queue_again(self, task: Row) -> None:
        """write_each."""
        if task["status"] != "Failed" or self.has_double(task):
            return
        self.publications.pop(task["id"], None)
        cleared = dict.fromkeys(("run_after", "worker_id", "progress", "generation_processed_at"))
        self.show(task, {"status": "Queued", **cleared, **NO_FAILURE})
        self.enter([task["id"]])


def handler_bytes(worker: Row, nonce: str | None) -> int | None:
    """How much the log of its handler had, by its last heartbeat."""
    found = worker["log_bytes"].get(nonce, {}).get("handler")
    return None if found is None else int(found)


def _backoff_s(row: Row, outcome: str, used: int) -> float:
    digest = hashlib.md5(f"{row['id']}{row['attempt']}".encode(), usedforsecurity=False).hexdigest()
    jitter = 0.8 + 0.4 * int(digest[:7], 16) / 268435455.0
    return jitter * (30 if outcome == "lost" else min(30 * 2 ** min(used - 1, 20), 3600))


def _because(bad: Row) -> str:
    """Why a dependant fails."""
    code, message = bad["failure_code"], bad["error_message"]
    if code == "DEPENDENCY_FAILED" and message is not None:
        message = EARLIER.sub(r"\1", message, count=1)
    head = f"Dependency {bad['id']} ({bad['task_type']}) ended as {bad['status']}"
    parts = [head, None if code == "DEPENDENCY_FAILED" else code, message]
    return ": ".join(part for part in parts if part is not None)[:4000]
