"""internal_hold_back, internal_review_hold, internal_second_opinion and internal_worker_sick."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log

from tests.proofs.simulator.sql.live import Live
from tests.proofs.simulator.sql.tables import Row, jsonable

LOOK = 200
TRIED_ELSEWHERE = 20
WAIT = timedelta(minutes=15)


@dataclass(frozen=True)
class Failure:
    """One row of internal_failures."""

    task_id: str
    codes: frozenset[str]
    first_at: datetime
    last_at: datetime
    permanent: bool
    done: bool
    own: bool
    waits: bool


@dataclass(frozen=True)
class Tried:
    """One row of internal_tried_elsewhere."""

    ended_at: datetime
    first: bool
    done: bool
    fails_at_first: bool  # if it is the first try


class Fitness(Live):
    """Workers whose tasks fail one after the other."""

    def _newest(self, worker_id: str, most: int = LOOK) -> list[Row]:
        return sorted(self.tried.get(worker_id, ()), key=lambda a: a["started_at"], reverse=True)[:most]

    def _failed_since_success(self, worker_id: str) -> list[Row]:
        newest = self._newest(worker_id)
        done = max((a["ended_at"] for a in newest if a["outcome"] == "complete"), default=None)
        return [a for a in newest if a["outcome"] == "failed" and (done is None or a["ended_at"] > done)]

    def _failures(self, worker: Row) -> list[Failure]:
        failed: dict[str, list[Row]] = {}
        for attempt in self._failed_since_success(worker["id"]):
            failed.setdefault(attempt["task_id"], []).append(attempt)
        return [self._failure(worker, i, all_of) for i, all_of in failed.items() if not self._is_unable(worker, all_of)]

    def _failure(self, worker: Row, task_id: str, failed: list[Row]) -> Failure:
        done = elsewhere = False
        last = max(a["attempt"] for a in failed)
        for attempt in self.attempts[task_id][:-21:-1]:
            other = self.workers[attempt["worker_id"]]
            if other["id"] == worker["id"] or other["release"] != worker["release"]:
                continue
            here = other["machine_id"] is not None and other["machine_id"] == worker["machine_id"]
            done = done or (attempt["outcome"] == "complete" and last > attempt["uncounted"])
            elsewhere = elsewhere or (attempt["outcome"] == "failed" and not here)
        ends, waits = [a["ended_at"] for a in failed], self.tasks[task_id]["status"] in ("Queued", "In Progress")
        codes = frozenset(a["failure_code"] for a in failed if a["failure_code"] is not None)
        permanent = all(a["permanent"] for a in failed)
        return Failure(task_id, codes, min(ends), max(ends), permanent, done, done or not elsewhere, waits)

    def _is_unable(self, worker: Row, failed: list[Row]) -> bool:
        """Whether the declared release has no handler for it either."""
        task, said = self.tasks[failed[0]["task_id"]], self.declared.get(worker["fleet"])
        unable = all(a["failure_code"] == "NO_HANDLER" for a in failed)
        if not unable or said is None or not said["task_types"]:
            return False
        return task["task_type"] not in said["task_types"]

    @staticmethod
    def _is_suspect(worker: Row, failures: list[Failure]) -> bool:
        limit = max(1, worker["metadata"].get("max_failures", 5))
        own, done = sum(f.own for f in failures), sum(f.done for f in failures)
        shared = len(failures) - own
        return own >= limit and not (2 * shared >= limit and shared > done)

    @staticmethod
    def _pause(trials: int) -> timedelta:
        return timedelta(seconds=min(20 * 2 ** min(max(trials, 0), 10), 300))

    def hold_back(self, worker: Row) -> list[Row]:
        """The tasks that are given back, once the worker is held back."""
        if worker["own_program"] or worker["status"] not in ("active", "idle"):
            return []
        before, trials, until = worker["held_back"], 0, None
        if before is not None:
            until = before["until"] and datetime.fromisoformat(before["until"])
            if until is None or until > self.now:
                return []
            trials = before["trials"] + 1
        failures = self._failures(worker)
        if sum(until is None or f.last_at > until for f in failures) < max(
            1, worker["metadata"].get("max_failures", 5)
        ):
            return []
        suspect = self._is_suspect(worker, failures)
        codes = sorted({code for f in failures for code in f.codes})[:5]
        held = {
            "since": self.now.isoformat(),
            "first": jsonable(min(f.first_at for f in failures)),
            "failures": len(failures),
            "types": sorted({self.tasks[f.task_id]["task_type"] for f in failures})[:5],
            "codes": codes,
            "suspect": suspect,
            "trials": trials,
            "until": None if suspect else jsonable(self.now + self._pause(trials)),
        }
        if all(f.permanent for f in failures) and self.done_elsewhere(worker | {"held_back": held}) is None:
            return []
        worked = bool(before and before.get("worked")) or self._release_works(worker | {"held_back": held})
        held["worked"] = worked
        why = (
            f"another worker to try its tasks: it claims no more after {len(failures)} different tasks failed in a row"
        )
        if not suspect:
            why = f"its pause to end: {len(failures)} different tasks failed in a row, on other workers too"
        waits = {"waiting_on": "orchestrator", "waiting_for": f"{why} ({', '.join(codes)})"}
        self.update_worker(worker, {"held_back": held, **waits})
        self.notify("orchestrator_fleet", worker["id"])
        return sorted(self.running.get(worker["id"], {}).values(), key=lambda row: str(row["id"]))

    def review_holds(self) -> None:
        """Decide again about each worker that is held back."""
        for worker in sorted(self.workers.values(), key=lambda w: str(w["id"])):
            if worker["status"] in ("active", "idle") and worker["held_back"]:
                self._review_hold(worker)

    def _review_hold(self, worker: Row) -> None:
        held, limit = worker["held_back"], max(1, worker["metadata"].get("max_failures", 5))
        since = datetime.fromisoformat(held["since"])
        until = held["until"] and datetime.fromisoformat(held["until"])
        failures = self._failures(worker)
        if len(failures) < limit:
            self.update_worker(worker, {"held_back": None, "waiting_on": "worker", "waiting_for": "tasks"})
            self.notify("orchestrator_fleet", worker["id"])
            return
        suspect = self._is_suspect(worker, failures)
        if not suspect and held["suspect"]:
            until = self.now if until is None else min(until, self.now)
        elif (
            suspect
            and until is None
            and 2 * sum(f.done for f in failures) >= limit
            and not self._compared(worker)["meanwhile"]
        ):
            until = self.now
        elif suspect and until is None and self.now >= since + self._pause(held["trials"]):
            waits = any(f.own and f.waits and not f.done for f in failures) and self._others_may_try(worker)
            if self.now >= since + WAIT or (not waits and 2 * sum(f.done for f in failures) < limit):
                until = self.now
        elif not suspect and until is not None and until > self.now and self.done_elsewhere(worker) is not None:
            until = self.now
        again = held | {"suspect": suspect, "until": until and jsonable(until)}
        if again != held:
            self.update_worker(worker, {"held_back": again})
            self.notify("orchestrator_fleet", worker["id"])
        elif until is not None and until <= self.now and not self.may[worker["id"]]:
            self.keep_launch(worker)
            self.notify("orchestrator_fleet", worker["id"])

    def _others_may_try(self, worker: Row) -> bool:
        return any(
            all(other[name] == worker[name] for name in ("fleet", "pool"))
            and other["id"] != worker["id"]
            and other["status"] in ("spawning", "active", "idle")
            and not (other["held_back"] and other["held_back"]["suspect"])
            for other in self.workers.values()
        )

    def second_opinion(self, worker: Row) -> Row | None:
        """What the planner knows of a worker that is held back."""
        if worker["held_back"] is None:
            return None
        failures = self._failures(worker)
        counts = {"done": sum(f.done for f in failures), "shared": sum(not f.own for f in failures)}
        return counts | self._compared(worker) | {"works": self._release_works(worker)}

    def _release_works(self, worker: Row) -> bool:
        types, found = set(worker["held_back"]["types"]), False
        alike = [w for w in self.workers.values() if all(w[n] == worker[n] for n in ("fleet", "pool", "release"))]
        for other in sorted(alike, key=lambda w: w["created_at"], reverse=True)[:20]:
            held = other["held_back"] or {}
            done = (self.tasks[a["task_id"]] for a in self._newest(other["id"]) if a["outcome"] == "complete")
            found = found or (held.get("worked", False) and not types.isdisjoint(held["types"]))
            found = found or any(task["task_type"] in types for task in done)
        return found

    def done_elsewhere(self, worker: Row) -> datetime | None:
        """When another worker of the release last completed a task of the types that this one failed."""
        return max((one.ended_at for one in self._tried_elsewhere(worker) if one.done), default=None)

    def _compared(self, worker: Row) -> Row:
        tried, failures = self._tried_elsewhere(worker), self._failures(worker)
        done, at_first = ([one.ended_at for one in tried if one.done and (one.first or any_)] for any_ in (True, False))
        at_once = sum(one.first and one.fails_at_first for one in tried)
        failed = at_once if any(f.done for f in failures) else sum(one.first and not one.done for one in tried)
        last = max((f.last_at for f in failures), default=None)
        own = sum(f.done or (f.own and not f.waits) for f in failures)
        odds = log((len(at_first) + failed + 2) / (failed + 1))
        well = last is not None and bool(at_first) and min(at_first) <= last
        world = last is not None and bool(done) and min(done) <= last
        return {
            "meanwhile": well and own * odds > log(10000) if failed else world,
            "alike": at_once > 0,
            "unlike": well and sum(f.done for f in failures) * odds > log(10000),
        }

    def _tried_elsewhere(self, worker: Row) -> list[Tried]:
        held = worker["held_back"]
        after = datetime.fromisoformat(held["first"])
        found: list[Tried] = []
        for other in self.workers.values():
            same = all(other[name] == worker[name] for name in ("fleet", "pool", "release"))
            if not same or other["status"] == "terminated" or other["id"] == worker["id"]:
                continue
            for attempt in self._newest(other["id"], TRIED_ELSEWHERE):
                task = self.tasks[attempt["task_id"]]
                ended = attempt["outcome"] in ("complete", "failed") and attempt["started_at"] >= after
                if ended and task["task_type"] in held["types"]:
                    found.append(self._tried(attempt, task))
        return found

    def _tried(self, attempt: Row, task: Row) -> Tried:
        before = (one for one in self.attempts[task["id"]] if one["attempt"] < attempt["attempt"])
        first = not any(one["outcome"] == "failed" for one in before)
        done = attempt["outcome"] == "complete"
        may_succeed = task["status"] in ("Queued", "In Progress", "Complete")
        return Tried(attempt["ended_at"], first, done, not done and may_succeed)

    def give_attempts_back(self, worker: Row) -> None:
        """The end of a sick worker."""
        last: dict[str, Row] = {}
        for attempt in self._failed_since_success(worker["id"]):
            known = last.get(attempt["task_id"])
            given = any(one["given_back"] for one in self.attempts[attempt["task_id"]])
            if not given and (known is None or known["attempt"] < attempt["attempt"]):
                last[attempt["task_id"]] = attempt
        for attempt in last.values():
            attempt["given_back"] = True
        self.give_back(sorted(last))
