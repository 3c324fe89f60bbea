"""task_* and worker_*: the functions of clients and agents."""

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.proofs.simulator.sql.fitness import Fitness
from tests.proofs.simulator.sql.live import ENDED, NO_FAILURE, handler_bytes
from tests.proofs.simulator.sql.tables import IDS, Row, check_keys, greatest, jsonable, least, refuse, wanted
from worker import protocol

Json = dict[str, Any]
TASK_KEYS = ("id", "task_type", "params", "pool", "priority", "max_attempts", "run_after", "depends_on", "dedupe_key",
             "timeout_s", "tenant", "concurrency_key", "labels")  # fmt: skip
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
ATTEMPT_ENDS = ("ended_at", "outcome", "failure_code", "log_last", *ENDED)
FREE_RETURNS = 2  # times in a row after which a returned task can be claimed at once
DUE, PUBLISHED = 1000, 1000  # at most, by one call of maintenance


class Queue(Fitness):
    """The functions; each gets its named arguments, and the clock from `self.now`."""

    def task_submit(self, p_tasks: list[Json]) -> Json:
        keys: dict[str, str] = {}
        ids: list[str] = []
        new: list[bool] = []
        rows: list[Row] = []
        for index, task in enumerate(p_tasks):
            _check_task(task, index)
            key = task.get("dedupe_key")
            found = None if key is None else keys.get(key) or self._open_with(key)
            if found is None and (task["id"] in self.tasks or task["id"] in ids):
                found = task["id"]
            new.append(found is None)
            ids.append(found or task["id"])
            if key is not None:
                keys[key] = ids[-1]
            if found is None:
                depends = [self._reference(one, ids, index) for one in task.get("depends_on") or ()]
                rows.append(self._task_row(task, depends, self.now + timedelta(microseconds=index)))
        for row in rows:
            self.tasks[row["id"]] = row
            for one in dict.fromkeys(row["depends_on"]):
                self.edges.setdefault(one, []).append(row["id"])
            self.watch("tasks", None, row)
        self.enter([row["id"] for row in rows])
        return {"tasks": [{"id": i, "created": n} for i, n in zip(ids, new, strict=True)]}

    def _open_with(self, key: str) -> str | None:
        return next((row["id"] for row in self.live.values() if row["dedupe_key"] == key), None)

    def _reference(self, one: str, ids: list[str], index: int) -> str:
        if re.fullmatch(r"#[0-9]{1,9}", one) and int(one[1:]) < index:
            return ids[int(one[1:])]
        if UUID.fullmatch(one) and (one in ids[:index] or one in self.tasks):
            return one
        refuse("OR007", f"task {index} depends on '{one}', which does not exist")
        raise AssertionError

    def _task_row(self, task: Json, depends: list[str], at: datetime) -> Row:
        run_after = task.get("run_after")
        return {
            "id": task["id"],
            "task_type": task["task_type"],
            "params": task.get("params") or {},
            "status": "Queued",
            "worker_id": None,
            "attempts": 0,
            "output_location": None,
            "result_data": None,
            "error_message": None,
            "created_at": at,
            "updated_at": self.now,
            "generation_started_at": None,
            "generation_processed_at": None,
            "pool": task.get("pool"),
            "priority": task.get("priority") or 0,
            "max_attempts": task.get("max_attempts"),
            "timeout_s": task.get("timeout_s"),
            "run_after": datetime.fromisoformat(run_after) if run_after else None,
            "depends_on": depends,
            "dedupe_key": task.get("dedupe_key"),
            "tenant": task.get("tenant"),
            "concurrency_key": task.get("concurrency_key"),
            "labels": task.get("labels"),
            "progress": None,
            "cancel_requested_at": None,
            "failure_code": None,
            "failed_at_point": None,
            "published": 0,
        }

    def task_cancel(self, p_id: str) -> Json:
        task = self.tasks.get(p_id)
        if task is None:
            return {"outcome": "not_found", "status": None}
        if task["status"] == "Queued":
            self.leave(self.live[p_id])
            times = dict.fromkeys(("cancel_requested_at", "updated_at", "generation_processed_at"), self.now)
            self.show(task, {"status": "Cancelled", **times})
            self.fail_dependants([p_id])
            return {"outcome": "cancelled", "status": "Cancelled"}
        if task["status"] == "In Progress":
            if task["cancel_requested_at"] is None:
                task["cancel_requested_at"] = self.live[p_id]["cancel_requested_at"] = self.now
            return {"outcome": "cancelling", "status": "In Progress"}
        return {"outcome": "already", "status": task["status"]}

    def task_retry(self, p_id: str) -> Json:
        task = self.tasks.get(p_id)
        if task is None:
            return {"outcome": "not_found"}
        if task["status"] not in ("Failed", "Cancelled"):
            return {"outcome": "not_ended", "status": task["status"]}
        ids = sorted(self.failed_with(p_id))
        keys = [key for i in ids if (key := self.tasks[i]["dedupe_key"]) is not None]
        if len(set(keys)) != len(keys) or any(self.has_double(self.tasks[i]) for i in ids):
            refuse("OR007", "a task with the same dedupe_key is already queued or running")
        cleared = dict.fromkeys(
            ("run_after", "worker_id", "cancel_requested_at", "progress", "generation_processed_at")
        )
        for one in ids:
            self.publications.pop(one, None)
            self.show(
                self.tasks[one], {"status": "Queued", "attempts": 0, "updated_at": self.now, **cleared, **NO_FAILURE}
            )
        self.enter(ids)
        return {"outcome": "requeued", "tasks": ids}

    def task_get(self, p_id: str) -> Json:
        return {"task": self._task_json(p_id), "attempts": self._attempts_json(p_id)}

    def _task_json(self, task_id: str) -> Json | None:
        if task_id not in self.tasks:
            return None
        task = self.tasks[task_id]
        row, last = self.live.get(task_id), self.last(task_id)
        shown = dict.fromkeys(("state", "progress_at", "lease_expires_at")) | self.specified(task)
        used = task["attempts"] if last is None else last["attempt"] - last["uncounted"]
        if row is not None:
            names = ("pool", "max_attempts", "state", "progress_at", "lease_expires_at")
            shown |= {name: row[name] for name in names}
            used = row["attempt"] - row["uncounted"]
        shown |= {"uncounted": max(0, task["attempts"] - used), "blocked": shown["state"] == "waits_for_tasks"}
        answer: Json = jsonable(task | shown)
        del answer["published"]
        return answer

    def _attempts_json(self, task_id: str) -> list[Json]:
        row = self.live.get(task_id)
        now = [self.running_attempt(row)] if row is not None and row["state"] == "running" else []
        return [jsonable(attempt) for attempt in (*map(shown_attempt, self.attempts.get(task_id, ())), *now)]

    @staticmethod
    def running_attempt(row: Row) -> Row:
        """A running row, as the view task_attempts shows it."""
        named = {name: row[name] for name in ("attempt", "worker_id", "nonce", "claim_no", "log_first")}
        return {"task_id": row["id"], **named, "started_at": row["claimed_at"], **dict.fromkeys(ATTEMPT_ENDS)}

    # --- the pods

    def caller(self, worker_id: str, claims: Mapping[str, Any] | None) -> Row:
        """internal_caller."""
        if claims is not None and claims.get("sub") != worker_id:
            refuse("OR006", "the token is not of this worker")
        worker = self.workers.get(worker_id)
        if worker is None or worker["status"] == "terminated":
            refuse("OR005", "no such worker, or it has terminated", "", "stop")
        assert worker is not None
        if claims is not None and (worker["token_jti"] is None or claims.get("jti") != worker["token_jti"]):
            refuse("OR006", "the token was revoked")
        return worker

    def worker_register(self, p_worker_id: str, p_nonce: str, p_agent: Json, claims: Any = None) -> Json:
        worker = self.caller(p_worker_id, claims)
        if worker["nonce"] != p_nonce:
            return {"outcome": "fenced", "wanted": "stop"}
        self.update_worker(worker, {"last_heartbeat": self.now, "agent": p_agent | {"nonce": p_nonce}})
        self.notify("orchestrator_fleet", p_worker_id)
        return {"outcome": "ok", "wanted": wanted(worker), **_pace(worker)}

    def worker_claim(
        self, p_worker_id: str, p_nonce: str, p_claim_no: int, p_batch: int, p_wait_s: float, claims: Any = None
    ) -> Json:
        _check_claim(p_claim_no, p_batch)
        worker = self.caller(p_worker_id, claims)
        if worker["nonce"] != p_nonce:
            return {"outcome": "fenced", "wanted": "stop", "tasks": []}
        return self._claim(worker, p_claim_no, p_batch, waits=(p_wait_s or 0) > 0)

    def _claim(self, worker: Row, claim_no: int, batch: int, *, waits: bool) -> Json:
        want, status, running = wanted(worker), worker["status"], self.running.setdefault(worker["id"], {})
        may = self.may[worker["id"]]
        fresh = claim_no > self.launches.get(worker["id"], 0)
        taken: list[Row] = []
        if not fresh:
            same = (worker["nonce"], claim_no)
            taken = sorted((r for r in running.values() if (r["nonce"], r["claim_no"]) == same), key=_place)
        else:
            if may and not self._store_outage(worker["fleet"]):
                taken = self._take(worker, claim_no, batch)
            why = f"claimed {len(taken)} of pool {worker['pool']}"
            if taken:
                status = "active"
            elif status == "active" and may and not running:
                status, why = "idle", f"asked for work of pool {worker['pool']} and there was none"
            if taken or not waits:
                self.launches[worker["id"]] = claim_no
            if status != worker["status"]:
                self.update_worker(worker, {"status": status}, why, "worker")
        answer = {"outcome": "ok", "wanted": want, "pool": worker["pool"], "state": status, "may": may}
        return answer | {"tasks": [self._for_agent(row) for row in taken], "spent": not fresh and not taken}

    def _store_outage(self, fleet: str) -> bool:
        """internal_is_store_away."""
        row = self.settings.get((fleet, "store_away"))
        return row is not None and row["expires_at"] > self.now

    def _ready(self, pool: str, batch: int) -> list[Row]:
        return sorted((r for r in self.live.values() if r["state"] == "ready" and r["pool"] == pool), key=_place)[
            :batch
        ]

    def _take(self, worker: Row, claim_no: int, batch: int) -> list[Row]:
        taken = self._ready(worker["pool"], batch)
        claim = {"worker_id": worker["id"], "nonce": worker["nonce"], "claim_no": claim_no, "state": "running"}
        claim |= {"claimed_at": self.now, "progress_at": self.now, "log_first": handler_bytes(worker, worker["nonce"])}
        claim["lease_expires_at"] = self.now + timedelta(seconds=worker["lease_s"])
        shown = {"status": "In Progress", "worker_id": worker["id"], "updated_at": self.now, "run_after": None}
        shown |= {"generation_started_at": self.now, "generation_processed_at": None, "progress": None, **NO_FAILURE}
        for row in taken:
            row.update(claim)
            row["attempt"] += 1
            self.running[worker["id"]][row["id"]] = row
            number = {"attempts": row["attempt"], "published": 2 * row["attempt"]}
            self.show(self.tasks[row["id"]], shown | number)
        return taken

    def _for_agent(self, row: Row) -> Json:
        task, named = self.tasks[row["id"]], ("id", "task_type", "output_location", "result_data")
        told = {name: jsonable(task.get(name)) for name in protocol.CLAIMED}  # what has no column here is null
        told |= {"attempt": row["attempt"], "max_attempts": row["max_attempts"], "timeout_s": row["timeout_s"]}
        needs = [self.tasks[i] for i in dict.fromkeys(task["depends_on"])]
        told["dependencies"] = [{name: jsonable(one[name]) for name in named} for one in needs]
        return told | {"output_prefix": _output_prefix(row)}

    def maintain(self) -> None:
        """The work of a second: by the leader, or else by heartbeats."""
        for pool in sorted({row["pool"] for row in self.live.values() if row["state"] == "waits_for_time"}):
            self.advance_due(pool, DUE)
        self.review_holds()
        self.publish_due(PUBLISHED)

    def worker_heartbeat(
        self, p_worker_id: str, p_nonce: str, p_tasks: list[Json], p_health: Any, p_logs: Any, claims: Any = None
    ) -> Json:
        worker = self.caller(p_worker_id, claims)
        if worker["nonce"] != p_nonce:
            return {"outcome": "fenced", "wanted": "stop", "cancel": [], "fenced": []}
        first = worker["last_heartbeat"] is None
        change: Row = {"last_heartbeat": self.now}
        if p_health is not None:
            change["health"] = p_health
        if p_logs is not None:
            change["log_bytes"] = worker["log_bytes"] | {p_nonce: p_logs}
        if (worker["agent"] or {}).get("nonce") != p_nonce:
            change["agent"] = (worker["agent"] or {}) | {"nonce": p_nonce}
        if worker["status"] in ("active", "idle"):
            change["deadline_at"] = self.now + timedelta(seconds=worker["lease_s"])
            change["next_attempt_at"] = self.now + timedelta(seconds=worker["heartbeat_s"])
        self.update_worker(worker, change)
        if first:
            self.notify("orchestrator_fleet", p_worker_id)
        mine, held, fenced = self.running.get(p_worker_id, {}), [], []
        lease = self.now + timedelta(seconds=worker["lease_s"])
        for named in p_tasks:
            row = mine.get(named["id"])
            if row is None or (row["attempt"], row["nonce"]) != (named["attempt"], p_nonce):
                fenced.append(named["id"])
                continue
            held.append(row)
            row |= {"lease_expires_at": lease, "progress_at": self._alive_at(row, named)}
            if named.get("progress") not in (None, self.tasks[row["id"]]["progress"]):
                self.tasks[row["id"]] |= {"progress": named["progress"], "updated_at": self.now}
        cancel = [row["id"] for row in held if row["cancel_requested_at"] is not None]
        late = timedelta(seconds=self.stuck_s.get(worker["fleet"], float(timedelta.max.days)))
        stuck = [row["id"] for row in held if row["progress_at"] <= self.now - late]
        lead = self.leases.get(worker["fleet"])
        led = lead is not None and lead["expires_at"] > self.now
        if not led:
            self.maintain()
        answer = {
            "outcome": "ok",
            "wanted": wanted(worker),
            "cancel": cancel,
            "stuck": stuck,
            "fenced": fenced,
            "led": led,
        }
        return answer | _pace(worker)

    def _alive_at(self, row: Row, named: Json) -> datetime | None:
        """The last sign of life, by what the agent says of it."""
        still_s, progress = named.get("still_s"), named.get("progress")
        alive = None
        if still_s is not None:
            alive = self.now - timedelta(seconds=still_s)
        elif progress is not None and progress != self.tasks[row["id"]]["progress"]:
            alive = self.now
        bound = row["claimed_at"] + timedelta(seconds=2 * (row["timeout_s"] or 3600))
        if self._store_outage(self.workers[row["worker_id"]]["fleet"]):
            bound = self.now
        return greatest(row["progress_at"], alive and least(bound, alive))

    def _hold(self, worker: Row, nonce: str, task_id: str, attempt: int, outcomes: tuple[str, ...]) -> Row | str:
        """The running row, or what became of the attempt."""
        if worker["nonce"] != nonce:
            return "fenced"
        row = self.running.get(worker["id"], {}).get(task_id)
        if row is not None and (row["attempt"], row["nonce"]) == (attempt, nonce):
            return row
        ended = next((a for a in self.attempts.get(task_id, ()) if a["attempt"] == attempt), None)
        mine = ended is not None and ended["worker_id"] == worker["id"] and ended["outcome"] in outcomes
        return "already" if mine else "fenced"

    def worker_complete(
        self,
        p_worker_id: str,
        p_nonce: str,
        p_task_id: str,
        p_attempt: int,
        p_output_location: str | None,
        p_result_data: Any,
        claims: Any = None,
    ) -> Json:
        worker = self.caller(p_worker_id, claims)
        held = self._hold(worker, p_nonce, p_task_id, p_attempt, ("complete",))
        if isinstance(held, str):
            return {"outcome": held}
        self.complete(held, p_output_location, p_result_data)
        self.meet([p_task_id])
        return {"outcome": "ok"}

    def worker_complete_many(
        self, p_worker_id: str, p_nonce: str, p_results: list[Mapping[str, Any]], claims: Any = None
    ) -> Json:
        fenced = self.caller(p_worker_id, claims)["nonce"] != p_nonce
        said = [
            self.worker_complete(p_worker_id, p_nonce, r["task_id"], r["attempt"], None, r["result_data"], claims)
            for r in p_results
        ]
        return {"outcome": "fenced" if fenced else "ok", "outcomes": [one["outcome"] for one in said]}

    def worker_complete_and_claim(
        self,
        p_worker_id: str,
        p_nonce: str,
        p_results: list[Mapping[str, Any]],
        p_claim_no: int,
        p_batch: int,
        claims: Any = None,
    ) -> Json:
        self.caller(p_worker_id, claims)
        _check_claim(p_claim_no, p_batch)
        ended = self.worker_complete_many(p_worker_id, p_nonce, p_results, claims)
        return ended | self.worker_claim(p_worker_id, p_nonce, p_claim_no, p_batch, 0, claims)

    def worker_fail(
        self, p_worker_id: str, p_nonce: str, p_task_id: str, p_attempt: int, p_failure: Json, claims: Any = None
    ) -> Json:
        worker = self.caller(p_worker_id, claims)
        check_keys(p_failure, ("code", "message", "point", "exit_class", "retryable", "detail"), "p_failure")
        unable = p_failure.get("code") == "NO_HANDLER"
        ends = ("failed", "cancelled", *(["released"] if unable else []))
        held = self._hold(worker, p_nonce, p_task_id, p_attempt, ends)
        if isinstance(held, str):
            return {"outcome": held}
        release = self._succeeding(worker, self.tasks[p_task_id]["task_type"]) if unable else None
        if release is not None:
            return {"outcome": self._hand_back(worker, held, p_failure, release)}
        outcome = self.give_up(held, "failed", p_failure, counted=True, backoff=True)
        for row in self.hold_back(worker):
            why = f"Worker {p_worker_id} claims no more: its last {worker['held_back']['failures']} tasks failed"
            self.give_up(row, "released", {"code": "RELEASED", "message": why})
        return {"outcome": outcome}

    def _succeeding(self, worker: Row, task_type: str) -> str | None:
        said, lease = self.declared.get(worker["fleet"]), self.leases.get(worker["fleet"])
        if said is None or lease is None:
            return None
        if said["term"] != lease["term"] and lease["since"] <= self.now - timedelta(seconds=60):
            return None
        release: str | None = said["releases"].get(worker["pool"])
        if release is None or worker["release"] in (None, release) or task_type not in said["task_types"]:
            return None
        return release

    def _hand_back(self, worker: Row, row: Row, failure: Json, release: str) -> str:
        lacks, mine = self.tasks[row["id"]]["task_type"], worker["release"]
        why = f"Worker {worker['id']} is of an earlier release, {mine}, which has no handler for {lacks}; "
        told = failure | {"code": "EARLIER_RELEASE", "message": f"{why}{release} has one"}
        here = self.is_here(worker["fleet"], worker["pool"], release)
        pause_s = None if here else 60 * min(2 ** min(row["uncounted"], 4), 10)
        outcome = self.give_up(row, "released", told, pause_s=pause_s)
        change: Row = {"metadata": worker["metadata"] | {"lacks": lacks}}
        if here and worker["drain_requested_at"] is None:
            change["drain_requested_at"] = self.now
        self.update_worker(worker, change)
        self.notify("orchestrator_fleet", worker["id"])
        return outcome

    def worker_release(
        self, p_worker_id: str, p_nonce: str, p_task_id: str, p_attempt: int, p_reason: str, claims: Any = None
    ) -> Json:
        worker = self.caller(p_worker_id, claims)
        held = self._hold(worker, p_nonce, p_task_id, p_attempt, ("released", "cancelled"))
        if isinstance(held, str):
            return {"outcome": held}
        times, pause_s = 1 + self._returns(p_task_id, p_attempt), None
        if times > FREE_RETURNS and wanted(worker) == "run":
            pause_s = min(30 * 2 ** min(times - FREE_RETURNS - 1, 10), 3600)
            p_reason = f"returned {times} times in a row: {p_reason}"
        self.give_up(held, "released", {"code": "RELEASED", "message": p_reason}, pause_s=pause_s)
        return {"outcome": "ok"}

    def _returns(self, task_id: str, attempt: int) -> int:
        """internal_returns."""
        times = 0
        for one in self.attempts.get(task_id, [])[:-21:-1]:
            launch = [a for a in self.tried[one["worker_id"]] if a["nonce"] == one["nonce"]]
            if any(a["claim_no"] == one["claim_no"] and a["outcome"] != "released" for a in launch):
                break
            held = self.running.get(one["worker_id"], {}).values()
            later = any(a["claim_no"] > one["claim_no"] for a in (*launch, *held) if a["nonce"] == one["nonce"])
            times += later and one["failure_code"] == "RELEASED"
        return times


def shown_attempt(attempt: Row) -> Row:
    """A row of `attempts`, as the view task_attempts shows it."""
    return {name: value for name, value in attempt.items() if name not in ("uncounted", "run_after")}


def _place(row: Row) -> tuple[Any, ...]:
    return -row["priority"], row["created_at"], row["id"]


def _check_claim(claim_no: int, batch: int) -> None:
    if claim_no < 1 or not 1 <= batch <= 100:
        refuse("OR007", "p_claim_no counts from 1 and p_batch is from 1 to 100")


def _pace(worker: Row) -> Json:
    return {"heartbeat_s": worker["heartbeat_s"], "lease_s": worker["lease_s"]}


def _output_prefix(row: Row) -> str:
    """internal_output_prefix."""
    launch = hashlib.md5(row["nonce"].encode(), usedforsecurity=False).hexdigest()[:11]
    return f"outputs/{row['id']}/{row['attempt']}-{launch}/"


def _check_task(task: Json, index: int) -> None:
    what = f"task {index}"
    check_keys(task, TASK_KEYS, what)
    if not task.get("task_type"):
        refuse("OR007", f"{what} has no task_type")
    fine: dict[str, Callable[[Any], Any]] = {
        "max_attempts": lambda v: isinstance(v, int) and 1 <= v <= 100,
        "pool": lambda v: isinstance(v, str) and IDS.fullmatch(v),
        "priority": lambda v: isinstance(v, int),
        "timeout_s": lambda v: isinstance(v, int | float) and 0.001 <= v <= 2592000,
        "dedupe_key": lambda v: isinstance(v, str) and 1 <= len(v) <= 500,
        "params": lambda v: isinstance(v, dict),
    }
    for name, value in sorted(task.items()):
        if value is not None and name in fine and not fine[name](value):
            refuse("OR007", f"{what}: {name} is not valid")
