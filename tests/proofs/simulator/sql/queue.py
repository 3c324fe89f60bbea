"""task_* and worker_*: the functions of clients and agents."""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.proofs.simulator.sql.fitness import Fitness
from tests.proofs.simulator.sql.tables import IDS, LIVE_TASK, Row, check_keys, greatest, jsonable, least, refuse
from tests.proofs.simulator.sql.turns import NONE as NO_TURN
from worker import protocol

Json = dict[str, Any]
TASK_KEYS = ("id", "task_type", "params", "pool", "priority", "max_attempts", "run_after", "depends_on", "dedupe_key",
             "timeout_s", "tenant", "concurrency_key", "labels")  # fmt: skip
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
ENDING = ("terminating", "terminated")
PLANNED = ("idle_timeout", "scale_down", "manual", "shutdown", "budget", "superseded", "worker_sick", "stale_code")
MACHINE = ("gpu_fault", "host_fault")
CUT_OFF = "GATEWAY_UNREACHED"
RAISE_EVERY = 32  # claims of one task, between two tries to raise the mark of a pool
LOWERED = 64  # marks, above which a claim raises it
FAULTS = 3  # attempts of a task that machine faults may end without counting
FREE_RETURNS = 2  # times in a row after which a returned task can be claimed at once
POINTS = ("Claiming", "Processing", "Completion")


class Queue(Fitness):
    """The functions; each gets its named arguments, and the clock from `self.now`."""

    def task_submit(self, p_tasks: list[Json]) -> Json:
        keys: dict[str, str] = {}
        ids: list[str] = []
        new: list[bool] = []
        rows: list[Row] = []
        for index, task in enumerate(p_tasks):
            _check_task(task, index)
            found: str | None = None
            key = task.get("dedupe_key")
            if key is not None:
                live = (t["id"] for t in self.tasks.values() if t["dedupe_key"] == key and t["status"] in LIVE_TASK)
                found = keys.get(key) or next(live, None)
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
            self.gate_of_new(row)
            self.tasks[row["id"]] = row
            self.watch("tasks", None, row)
        self.turns_added([row for row in rows if not row["blocked"]])
        inserted = [dict(row) for row in rows]
        gated = [row for row in rows if row["queue_gate"] > 0]
        self.settle([row["id"] for row in rows if row["depends_on"]])
        self.gates_added(gated)
        self.lower_marks(inserted)
        for row in rows:
            if row["status"] == "Queued" and not row["blocked"]:
                self.notify("orchestrator_tasks", row["pool"])
        return {"tasks": [{"id": i, "created": n} for i, n in zip(ids, new, strict=True)]}

    def _reference(self, one: str, ids: list[str], index: int) -> str:
        if re.fullmatch(r"#[0-9]{1,9}", one) and int(one[1:]) < index:
            return ids[int(one[1:])]
        if UUID.fullmatch(one) and (one in ids[:index] or one in self.tasks):
            return one
        refuse("OR007", f"task {index} depends on '{one}', which does not exist")
        raise AssertionError

    def _task_row(self, task: Json, depends: list[str], at: datetime) -> Row:
        declared = self.task_types.get(task["task_type"], {})
        said = {name: task.get(name) for name in ("pool", "max_attempts", "timeout_s")}
        chosen = {name: declared.get(name) if value is None else value for name, value in said.items()}
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
            "pool": chosen["pool"] or "default",
            "pool_by_type": said["pool"] is None,
            "priority": task.get("priority") or 0,
            "max_attempts": chosen["max_attempts"] or 3,
            "uncounted": 0,
            "timeout_s": chosen["timeout_s"],
            "run_after": datetime.fromisoformat(run_after) if run_after else None,
            "depends_on": depends,
            "blocked": bool(depends),
            "dedupe_key": task.get("dedupe_key"),
            "tenant": task.get("tenant"),
            "concurrency_key": task.get("concurrency_key"),
            "queue_gate": 0,
            "labels": task.get("labels"),
            "lease_expires_at": None,
            "progress": None,
            "progress_at": None,
            "cancel_requested_at": None,
            "failure_code": None,
            "failed_at_point": None,
            "queue_turn": NO_TURN,
        }

    def task_cancel(self, p_id: str) -> Json:
        task = self.tasks.get(p_id)
        if task is None:
            return {"outcome": "not_found", "status": None}
        if task["status"] == "Queued":
            self.update_tasks([(task, {"status": "Cancelled", "blocked": False, "cancel_requested_at": self.now})])
            return {"outcome": "cancelled", "status": "Cancelled"}
        if task["status"] == "In Progress":
            if task["cancel_requested_at"] is None:
                self.update_tasks([(task, {"cancel_requested_at": self.now})])
            return {"outcome": "cancelling", "status": "In Progress"}
        return {"outcome": "already", "status": task["status"]}

    def task_retry(self, p_id: str) -> Json:
        task = self.tasks.get(p_id)
        if task is None:
            return {"outcome": "not_found"}
        if task["status"] not in ("Failed", "Cancelled"):
            return {"outcome": "not_ended", "status": task["status"]}
        revived, fresh = {p_id}, {p_id}
        while fresh:
            fresh = {
                t["id"]
                for t in self.tasks.values()
                if t["status"] == "Failed"
                and t["failure_code"] == "DEPENDENCY_FAILED"
                and not fresh.isdisjoint(t["depends_on"])
            } - revived
            revived |= fresh
        ids = sorted(revived)
        live = [t["dedupe_key"] for t in self.tasks.values() if t["status"] in LIVE_TASK and t["dedupe_key"]]
        live += [self.tasks[i]["dedupe_key"] for i in ids if self.tasks[i]["dedupe_key"]]
        if len(set(live)) != len(live):
            refuse("OR007", "a task with the same dedupe_key is already queued or running")
        cleared = ("run_after", "worker_id", "lease_expires_at", "cancel_requested_at", "error_message",
                   "failure_code", "failed_at_point", "progress", "progress_at")  # fmt: skip
        change = {"status": "Queued", **dict.fromkeys(cleared)}
        self.update_tasks(
            [
                (t, change | {"uncounted": t["attempts"], "blocked": bool(t["depends_on"])})
                for t in map(self.tasks.__getitem__, ids)
            ]
        )
        return {"outcome": "requeued", "tasks": ids}

    def task_get(self, p_id: str) -> Json:
        attempts = sorted((a for a in self.task_attempts.values() if a["task_id"] == p_id), key=lambda a: a["attempt"])
        return {"task": jsonable(self.tasks.get(p_id)), "attempts": jsonable(attempts)}

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
        worker = self.caller(p_worker_id, claims)
        want = wanted(worker)
        if worker["nonce"] != p_nonce:
            return {"outcome": "fenced", "wanted": "stop", "tasks": []}
        if p_claim_no < 1 or not 1 <= p_batch <= 100:
            refuse("OR007", "p_claim_no counts from 1 and p_batch is from 1 to 100")
        status = worker["status"]
        mine = [a for a in self.task_attempts.values() if a["worker_id"] == p_worker_id and a["nonce"] == p_nonce]
        asks = want == "run" and status in ("spawning", "active", "idle")
        fresh = p_claim_no >= worker["claim_no"] and all(a["claim_no"] < p_claim_no for a in mine)
        if asks and fresh:
            held = status == "spawning" or (worker["held_back"] is not None and not self.may_claim_again(worker))
            held = held or self._store_outage(worker["fleet"])
            taken = 0 if held else self._take(worker, p_claim_no, p_batch)
            if taken:
                status = "active"
            elif status == "active" and not self.running.get(p_worker_id):
                status = "idle"
            why = f"claimed {taken} of pool {worker['pool']}"
            if status != "active":
                why = f"asked for work of pool {worker['pool']} and there was none"
            claim_no = worker["claim_no"]
            if not taken:
                claim_no = p_claim_no + ((p_wait_s or 0) <= 0)  # an answer without tasks spends the number
            if status != worker["status"] or claim_no != worker["claim_no"]:
                self.update_worker(worker, {"status": status, "claim_no": claim_no}, why, "worker")
        tasks = self._claimed(p_worker_id, p_nonce, p_claim_no)
        answer = {"outcome": "ok", "wanted": want, "pool": worker["pool"], "state": status, "tasks": tasks}
        return answer | {"spent": asks and not fresh and not tasks}

    def _store_outage(self, fleet: str) -> bool:
        """internal_is_store_away."""
        row = self.settings.get((fleet, "store_away"))
        return row is not None and row["expires_at"] > self.now

    def _take(self, worker: Row, claim_no: int, batch: int) -> int:
        ready = [
            t
            for t in self.tasks.values()
            if t["pool"] == worker["pool"]
            and t["status"] == "Queued"
            and not t["blocked"]
            and (t["run_after"] is None or t["run_after"] <= self.now)
        ]
        ready.sort(key=lambda t: (-t["priority"], t["queue_turn"], t["created_at"], t["id"]))
        taken = ready[:batch]
        lowered = len(self.lowered[worker["pool"]]) if worker["pool"] in self.marks else 0
        cleared = ("progress", "run_after", "error_message", "failure_code", "failed_at_point",
                   "generation_processed_at")  # fmt: skip
        lease = self.now + timedelta(seconds=worker["lease_s"])
        change = {
            "status": "In Progress",
            "worker_id": worker["id"],
            "lease_expires_at": lease,
            "progress_at": self.now,
            "generation_started_at": self.now,
            **dict.fromkeys(cleared),
        }
        self.update_tasks([(t, change | {"attempts": t["attempts"] + 1}) for t in taken])
        for task in taken:
            self.task_attempts[task["id"], task["attempts"]] = {
                "task_id": task["id"],
                "attempt": task["attempts"],
                "worker_id": worker["id"],
                "nonce": worker["nonce"],
                "claim_no": claim_no,
                "started_at": self.now,
                "ended_at": None,
                "outcome": None,
                "failure_code": None,
                "exit_class": None,
                "failed_at_point": None,
                "message": None,
                "detail": None,
                "given_back": None,
                "permanent": None,
                "log_first": _handler_bytes(worker, worker["nonce"]),
                "log_last": None,
            }
        if taken and (claim_no % math.ceil(RAISE_EVERY / math.sqrt(batch)) == 0 or lowered > LOWERED):
            self.raise_mark(worker["pool"])
        if shared := [t["priority"] for t in taken if t["tenant"] is not None or t["queue_turn"] < NO_TURN]:
            self.deal_turns(worker["pool"], min(shared), batch)
        return len(taken)

    def _claimed(self, worker_id: str, nonce: str, claim_no: int) -> list[Json]:
        held = [
            t
            for t in self.running.get(worker_id, {}).values()
            if (a := self.task_attempts.get((t["id"], t["attempts"])))
            and (a["worker_id"], a["nonce"], a["claim_no"], a["ended_at"]) == (worker_id, nonce, claim_no, None)
        ]
        held.sort(key=lambda t: (-t["priority"], t["queue_turn"], t["created_at"], t["id"]))
        seen = ("id", "task_type", "output_location", "result_data")
        return [
            {name: jsonable(t.get(name)) for name in protocol.CLAIMED}  # a column without a row in the model is null
            | {"attempt": t["attempts"], "output_prefix": _output_prefix(t, nonce)}
            | {"dependencies": [{k: jsonable(d[k]) for k in seen} for d in self._dependencies(t)]}
            for t in held
        ]

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
        mine = self.running.get(p_worker_id, {})
        held = {n["id"]: n for n in p_tasks if n["id"] in mine and mine[n["id"]]["attempts"] == n["attempt"]}
        lease = self.now + timedelta(seconds=worker["lease_s"])
        renewed = []
        for task_id, named in held.items():
            task, progress = mine[task_id], named.get("progress")
            told = {} if progress is None else {"progress": progress}
            renewed.append((task, {"lease_expires_at": lease, "progress_at": self._alive_at(task, named)} | told))
        renewable = {task["id"] for task in self.renewable([task for task, _ in renewed])}
        self.update_tasks([one for one in renewed if one[0]["id"] in renewable])
        cancel = [i for i in held if self.tasks[i]["cancel_requested_at"] is not None]
        late = timedelta(seconds=self.stuck_s.get(worker["fleet"], float(timedelta.max.days)))
        stuck = [i for i in held if self.tasks[i]["progress_at"] <= self.now - late]
        fenced = [n["id"] for n in p_tasks if n["id"] not in held]
        lead = self.leases.get(worker["fleet"])
        led = lead is not None and lead["expires_at"] > self.now
        answer = {
            "outcome": "ok",
            "wanted": wanted(worker),
            "cancel": cancel,
            "stuck": stuck,
            "fenced": fenced,
            "led": led,
        }
        return answer | _pace(worker)

    def _alive_at(self, task: Row, named: Json) -> datetime | None:
        """The task's last sign of life, by what its agent says of it."""
        still_s, progress = named.get("still_s"), named.get("progress")
        alive = task["progress_at"]
        if still_s is not None:
            alive = self.now - timedelta(seconds=still_s)
        elif progress is not None and progress != task["progress"]:
            alive = self.now
        bound = task["generation_started_at"] + timedelta(seconds=2 * (task["timeout_s"] or 3600))
        if self._store_outage(self.workers[task["worker_id"]]["fleet"]):
            bound = self.now
        return greatest(task["progress_at"], least(bound, alive))

    def _hold(self, worker: Row, nonce: str, task_id: str, attempt: int, outcomes: tuple[str, ...]) -> str:
        if worker["nonce"] != nonce:
            return "fenced"
        task = self.running.get(worker["id"], {}).get(task_id)
        if task is not None and task["attempts"] == attempt:
            return "held"
        ended = self.task_attempts.get((task_id, attempt))
        if ended and ended["worker_id"] == worker["id"] and ended["outcome"] in outcomes:
            return "already"
        return "fenced"

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
        outcome = self._hold(worker, p_nonce, p_task_id, p_attempt, ("complete",))
        if outcome == "held":
            outcome = "ok"
            said = {"output_location": p_output_location, "result_data": p_result_data}
            cleared = dict.fromkeys(("lease_expires_at", "error_message", "failure_code", "progress"))
            ended = {"status": "Complete", "generation_processed_at": self.now}
            attempt = self.task_attempts[p_task_id, p_attempt]
            self.update_tasks([(self.tasks[p_task_id], ended | said | cleared)], minded=True)
            if wanted(worker) != "run":
                self.notify("orchestrator_fleet", p_worker_id)
            last = _handler_bytes(worker, worker["nonce"])
            attempt |= {"ended_at": self.now, "outcome": "complete", "log_last": last}
        return {"outcome": outcome}

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
        ended = self.worker_complete_many(p_worker_id, p_nonce, p_results, claims)
        return ended | self.worker_claim(p_worker_id, p_nonce, p_claim_no, p_batch, 0, claims)

    def give_up(
        self,
        task_id: str,
        outcome: str,
        failure: Mapping[str, Any],
        *,
        counted: bool,
        backoff: bool,
        pause_s: float | None = None,
    ) -> str:
        """internal_give_up."""
        task = self.tasks[task_id]
        holder = self.workers.get(task["worker_id"] or "")
        ending = holder if outcome == "lost" and holder is not None and holder["status"] in ENDING else None
        is_cut_off = ending is not None and ending["failure_code"] == CUT_OFF
        if ending is not None and (is_cut_off or ending["exit_cause"] in MACHINE):
            said = f"The machine of worker {ending['id']} failed: {ending['exit_cause']}"
            said = f"Worker {ending['id']} was ended: its agent reached no gateway" if is_cut_off else said
            fault = CUT_OFF if is_cut_off else "MACHINE_FAULT"
            failure = {"code": fault, "exit_class": "lost", "point": "Processing", "message": said}
            mine = (a for a in self.task_attempts.values() if a["task_id"] == task_id)
            counted = sum(a["failure_code"] == fault for a in mine) >= FAULTS
            outcome = "lost" if counted else "released"
        elif ending is not None and ending["exit_cause"] in PLANNED:
            outcome, counted = "released", False
            failure = {"code": "RELEASED", "message": f"Worker {ending['id']} was ended: {ending['exit_cause']}"}
        used, said, status, run_after = task["attempts"] - task["uncounted"], "requeued", "Queued", None
        if outcome == "lost" and used > 1:
            earlier = (self.task_attempts.get((task_id, number)) for number in range(1, task["attempts"]))
            backoff = any(one is not None and one["outcome"] == "lost" for one in earlier)
        if task["cancel_requested_at"] is not None:
            said, status = "cancelled", "Cancelled"
        elif counted and (used >= task["max_attempts"] or failure.get("retryable") is False):
            said, status = "failed", "Failed"
        elif pause_s is not None:
            run_after = self.now + timedelta(seconds=pause_s)
        elif backoff:
            digest = hashlib.md5(f"{task_id}{task['attempts']}".encode(), usedforsecurity=False).hexdigest()
            jitter = 0.8 + 0.4 * int(digest[:7], 16) / 268435455.0
            backoff_s = 30 if outcome == "lost" else min(30 * 2 ** min(used - 1, 20), 3600)
            run_after = self.now + timedelta(seconds=backoff_s * jitter)
        point, code = failure.get("point"), failure.get("code")
        change = {
            "status": status,
            "run_after": run_after,
            "lease_expires_at": None,
            "uncounted": task["uncounted"] + (0 if counted else 1),
            "worker_id": None if said == "requeued" else task["worker_id"],
            "generation_processed_at": None if said == "requeued" else self.now,
            "error_message": failure.get("message"),
            "failure_code": code,
            "failed_at_point": point if point in POINTS else None,
        }
        attempt = self.task_attempts.get((task_id, task["attempts"]))
        self.update_tasks([(task, change)])
        if attempt is not None and attempt["ended_at"] is None:
            worker = self.workers.get(attempt["worker_id"])
            attempt |= {
                "ended_at": self.now,
                "outcome": "cancelled" if said == "cancelled" else outcome,
                "failure_code": code,
                "exit_class": failure.get("exit_class"),
                "failed_at_point": point,
                "message": failure.get("message"),
                "detail": failure.get("detail"),
                "log_last": _handler_bytes(worker, attempt["nonce"]) if worker else None,
            }
        return said

    def worker_fail(
        self, p_worker_id: str, p_nonce: str, p_task_id: str, p_attempt: int, p_failure: Json, claims: Any = None
    ) -> Json:
        worker = self.caller(p_worker_id, claims)
        check_keys(p_failure, ("code", "message", "point", "exit_class", "retryable", "detail"), "p_failure")
        unable = p_failure.get("code") == "NO_HANDLER"
        ends = ("failed", "cancelled", *(["released"] if unable else []))
        outcome = self._hold(worker, p_nonce, p_task_id, p_attempt, ends)
        release = self._succeeding(worker, self.tasks[p_task_id]["task_type"]) if outcome == "held" and unable else None
        if release is not None:
            outcome = self._hand_back(worker, self.tasks[p_task_id], p_failure, release)
        elif outcome == "held":
            outcome = self.give_up(p_task_id, "failed", p_failure, counted=True, backoff=True)
            if p_failure.get("retryable") is False:
                self.task_attempts[p_task_id, p_attempt]["permanent"] = True
            for task_id in self.hold_back(worker):
                why = f"Worker {p_worker_id} claims no more: its last {worker['held_back']['failures']} tasks failed"
                self.give_up(task_id, "released", {"code": "RELEASED", "message": why}, counted=False, backoff=False)
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

    def _hand_back(self, worker: Row, task: Row, failure: Json, release: str) -> str:
        lacks, mine = task["task_type"], worker["release"]
        why = f"Worker {worker['id']} is of an earlier release, {mine}, which has no handler for {lacks}; "
        why += f"{release} has one"
        told = failure | {"code": "EARLIER_RELEASE", "message": why}
        outcome = self.give_up(task["id"], "released", told, counted=False, backoff=False)
        here = self.is_here(worker["fleet"], worker["pool"], release)
        if not here and task["status"] == "Queued":
            wait_s = 60 * min(2 ** min(task["uncounted"] - 1, 4), 10)
            self.update_tasks([(task, {"run_after": self.now + timedelta(seconds=wait_s)})])
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
        outcome = self._hold(worker, p_nonce, p_task_id, p_attempt, ("released", "cancelled"))
        if outcome == "held":
            times, pause_s = 1 + self._returns(p_task_id, p_attempt), None
            if times > FREE_RETURNS and wanted(worker) == "run":
                pause_s = min(30 * 2 ** min(times - FREE_RETURNS - 1, 10), 3600)
                p_reason = f"returned {times} times in a row: {p_reason}"
            said = {"code": "RELEASED", "message": p_reason}
            self.give_up(p_task_id, "released", said, counted=False, backoff=False, pause_s=pause_s)
            outcome = "ok"
        return {"outcome": outcome}

    def _returns(self, task_id: str, attempt: int) -> int:
        """internal_returns."""
        earlier = (self.task_attempts.get((task_id, number)) for number in range(attempt - 1, 0, -1))
        times = 0
        for one in itertools.islice((one for one in earlier if one is not None), 20):
            launch = [a for a in self.task_attempts.values()
                      if (a["worker_id"], a["nonce"]) == (one["worker_id"], one["nonce"])]  # fmt: skip
            if any(a["claim_no"] == one["claim_no"] and a["outcome"] != "released" for a in launch):
                break
            again = any(a["claim_no"] > one["claim_no"] for a in launch)
            times += again and one["failure_code"] == "RELEASED"
        return times


def wanted(worker: Row) -> str:
    """internal_wanted."""
    if worker["stop_requested_at"] is not None:
        return "stop"
    if worker["status"] == "terminating" and worker["stage"] in ("flushing", "deleting", "gone"):
        return "stop"
    return "drain" if worker["status"] == "terminating" or worker["drain_requested_at"] is not None else "run"


def _pace(worker: Row) -> Json:
    return {"heartbeat_s": worker["heartbeat_s"], "lease_s": worker["lease_s"]}


def _output_prefix(task: Row, nonce: str) -> str:
    """internal_output_prefix."""
    launch = hashlib.md5(nonce.encode(), usedforsecurity=False).hexdigest()[:11]
    return f"outputs/{task['id']}/{task['attempts']}-{launch}/"


def _handler_bytes(worker: Row, nonce: str | None) -> int | None:
    found = worker["log_bytes"].get(nonce, {}).get("handler")
    return None if found is None else int(found)


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
