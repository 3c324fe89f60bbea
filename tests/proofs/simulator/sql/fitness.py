"""internal_hold_back, internal_done_elsewhere and internal_worker_sick."""

from datetime import datetime

from tests.proofs.simulator.sql.limits import Limits
from tests.proofs.simulator.sql.tables import Row, jsonable

LOOK = 200


class Fitness(Limits):
    """Workers whose tasks fail one after the other."""

    def _failed_since_success(self, worker_id: str) -> list[Row]:
        mine = [a for a in self.task_attempts.values() if a["worker_id"] == worker_id]
        newest = sorted(mine, key=lambda a: a["started_at"], reverse=True)[:LOOK]
        done = max((a["ended_at"] for a in newest if a["outcome"] == "complete"), default=None)
        return [a for a in newest if a["outcome"] == "failed" and (done is None or a["ended_at"] > done)]

    def hold_back(self, worker: Row) -> list[str]:
        """The tasks that are given back, once the worker is held back."""
        if worker["held_back"] is not None or worker["own_program"] or worker["status"] not in ("active", "idle"):
            return []
        failed = [a for a in self._failed_since_success(worker["id"]) if not self._is_of_unknown_type(worker, a)]
        ids = {a["task_id"] for a in failed}
        if len(ids) < max(1, worker["metadata"].get("max_failures", 5)):
            return []
        codes = sorted({a["failure_code"] for a in failed if a["failure_code"] is not None})[:5]
        types = sorted({self.tasks[i]["task_type"] for i in ids if i in self.tasks})[:5]
        first = jsonable(min(a["ended_at"] for a in failed))
        held = {"since": self.now.isoformat(), "first": first, "failures": len(ids), "types": types, "codes": codes}
        permanent = all(a.get("permanent") for a in failed)
        if permanent and self.done_elsewhere(worker | {"held_back": held}) is None:
            return []
        why = f"a second opinion: it claims no more after {len(ids)} different tasks failed in a row"
        waits = {"waiting_on": "orchestrator", "waiting_for": f"{why} ({', '.join(codes)})"}
        self.update_worker(worker, {"held_back": held, **waits})
        self.notify("orchestrator_fleet", worker["id"])
        return sorted(self.running.get(worker["id"], {}))

    def _is_of_unknown_type(self, worker: Row, attempt: Row) -> bool:
        """Whether the declared release has no handler for it either."""
        task, said = self.tasks.get(attempt["task_id"]), self.declared.get(worker["fleet"])
        if attempt["failure_code"] != "NO_HANDLER" or task is None or said is None or not said["task_types"]:
            return False
        return task["task_type"] not in said["task_types"]

    def done_elsewhere(self, worker: Row) -> str | None:
        """When another worker last completed a task of the types that this one failed."""
        held = worker["held_back"]
        if held is None:
            return None
        after = datetime.fromisoformat(held.get("first", held["since"]))
        found: list[datetime] = []
        for other in self.workers.values():
            same = all(other[name] == worker[name] for name in ("fleet", "pool"))
            if not same or other["status"] == "terminated" or other["id"] == worker["id"]:
                continue
            theirs = [a for a in self.task_attempts.values() if a["worker_id"] == other["id"]]
            for attempt in sorted(theirs, key=lambda a: a["started_at"], reverse=True)[:20]:
                task = self.tasks.get(attempt["task_id"])
                done = attempt["outcome"] == "complete" and attempt["started_at"] >= after
                if done and task is not None and task["task_type"] in held["types"]:
                    found.append(attempt["ended_at"])
        return jsonable(max(found)) if found else None

    def give_attempts_back(self, worker: Row) -> None:
        """The end of a sick worker."""
        given = {a["task_id"] for a in self.task_attempts.values() if a.get("given_back")}
        last: dict[str, Row] = {}
        for attempt in self._failed_since_success(worker["id"]):
            known = last.get(attempt["task_id"])
            if attempt["task_id"] not in given and (known is None or known["attempt"] < attempt["attempt"]):
                last[attempt["task_id"]] = attempt
        cleared = dict.fromkeys(
            ("run_after", "worker_id", "lease_expires_at", "error_message", "failure_code", "failed_at_point",
             "progress", "progress_at", "generation_processed_at")
        )  # fmt: skip
        changes: list[tuple[Row, Row]] = []
        revived: set[str] = set()
        for task_id, attempt in sorted(last.items()):
            task = self.tasks.get(task_id)
            if task is None or task["status"] not in ("Queued", "In Progress", "Failed"):
                continue
            if task["uncounted"] >= task["attempts"]:
                continue
            attempt["given_back"] = True
            more = {"uncounted": task["uncounted"] + 1}
            if task["status"] != "Failed":
                changes.append((task, more))
            elif task["attempts"] - task["uncounted"] >= task["max_attempts"] and not self._again(task):
                changes.append((task, more | {"status": "Queued"} | cleared))
            revived.add(task_id)
        self.update_tasks(changes)
        self._revive({i for i in revived if self.tasks[i]["status"] == "Queued"})

    def _again(self, task: Row) -> bool:
        live = (t for t in self.tasks.values() if t["status"] in ("Queued", "In Progress") and t is not task)
        return task["dedupe_key"] is not None and any(t["dedupe_key"] == task["dedupe_key"] for t in live)

    def _revive(self, fresh: set[str]) -> None:
        cleared = ("run_after", "error_message", "failure_code", "failed_at_point", "generation_processed_at")
        while fresh:
            rows = [
                t
                for t in self.tasks.values()
                if (t["status"], t["failure_code"]) == ("Failed", "DEPENDENCY_FAILED")
                and not fresh.isdisjoint(t["depends_on"])
                and not self._again(t)
            ]
            self.update_tasks([(t, {"status": "Queued", "blocked": True, **dict.fromkeys(cleared)}) for t in rows])
            fresh = {t["id"] for t in rows}
