"""The laws `sick`, `guard` and `claims`: when a worker may end because its tasks fail, its machine or its silence."""

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.core.fitness import DISK_FULL_S, UNCLAIMED_S
from orchestrator.core.guards import ALARM_WORKERS, LASTS_S, WITHOUT_FINDING_S
from orchestrator.core.lifecycle import ACTIVE_WITHOUT_CLAIM_S
from tests.proofs.simulator.provider import SimPod
from worker.protocol import DISK, FINDINGS

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World

RACE_S = 25.0  # decisions made before a refusal was written down, and writes that were late on the wire
OVERDUE_S = 120.0
LATE_S = 40.0  # writes that were late on the wire
GUARD_CODES = ("XID_79", "INODES_FULL")
GUARD_BOUNDS_S = {("XID_79", "C"): 0.0, ("INODES_FULL", "H"): LASTS_S}


class MachineLaws:
    """Checks workers whose tasks fail, that report faults, or that claim nothing."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._failing: defaultdict[str, dict[str, float]] = defaultdict(dict)  # worker -> task -> when it failed there
        self._failing_since: dict[str, datetime] = {}  # worker -> its first failure since its last success
        self._told: dict[str, tuple[float, float]] = {}  # worker -> since when it reports a fault, and the last time
        self._faults: list[tuple[float, int]] = []  # when workers ended because of their machines, and of how many
        self._bad: dict[tuple[str, str], float] = {}  # pool, release -> when its last worker ended as release_bad
        self._moving_s: dict[str, float] = {}  # pool -> when no task last waited behind a silent worker

    def _broken(self, law: str, what: str) -> None:
        self._world.laws.broken(law, what)

    def look(self, quiet: float) -> None:
        """Check, once a second, that no such worker stays for too long; `quiet`: when the last fault was over."""
        self._unfit(quiet)
        self._unclaimed(quiet)
        self._faulty(quiet)

    def committed(self, function: str, args: Mapping[str, Any], answer: Any) -> None:
        """Check that a worker takes few tasks while all of them fail, and that a bad release blames no host."""
        if completed_by(function, args, answer):
            self._failing.pop(args["p_worker_id"], None)
            self._failing_since.pop(args["p_worker_id"], None)
            done = self._world.db.workers[args["p_worker_id"]]
            self._bad.pop((done["pool"], done["release"]), None)
        if function == "worker_fail" and answer["outcome"] in ("requeued", "failed"):
            self._failing_since.setdefault(args["p_worker_id"], self._world.db.now)
            self._failed(args["p_worker_id"], args["p_task_id"], args["p_failure"])
        bad_s = self._world.bad_release_s
        if function == "fleet_strike" and bad_s is not None and args["p_code"] == "TASKS_FAIL_HERE":
            if min(self._failing[args["p_evidence"]["worker"]].values()) < bad_s:
                return  # it began to fail before the others
            self._broken("sick", f"{args['p_key']} is blamed for {args['p_code']} while every task fails everywhere")

    def _failed(self, worker_id: str, task_id: str, failure: Mapping[str, Any]) -> None:
        if failure["code"] == "NO_HANDLER" or not failure["retryable"]:
            return
        failing, row = self._failing[worker_id], self._world.db.workers[worker_id]
        failing[task_id] = self._world.kernel.now
        pool = self._world.pool(row["pool"])
        most = self._world.policy.max_failures + (pool.batch if pool else 1)
        if len(failing) > most:
            self._broken("sick", f"{len(failing)} different tasks failed in a row on {worker_id}, more than {most}")

    def asked(self, new: Mapping[str, Any]) -> None:
        """After a release was found bad, a worker of it is asked for only while no other one is on its way.

        A tick may end one and ask for the next. Their rows are written at the same time.
        """
        now, bad_s = self._world.kernel.now, self._bad.get((new["pool"], new["release"]))
        if bad_s is None or not RACE_S < now - bad_s < self._world.policy.failure_window_s:
            return
        others = [
            w["id"]
            for w in self._world.db.workers.values()
            if w["status"] == "spawning" and (w["pool"], w["release"]) == (new["pool"], new["release"])
        ]
        lately = [d for d in self._world.db.decisions if d["at"] > self._world.db.now - timedelta(seconds=LATE_S)]
        ending = {
            one for one in others for d in lately for text in d["actions"] if text.startswith(f"terminate {one}:")
        }
        if set(others) - {new["id"]} - ending:
            self._broken("sick", f"{new['id']} is asked for beside {others}, and its release is bad")

    def ended_with_tasks(self, row: Mapping[str, Any]) -> None:
        """A worker ends because its tasks failed: those that are not done have one attempt back, once."""
        if row["exit_cause"] == "release_bad":
            self._bad[row["pool"], row["release"]] = self._world.kernel.now
        if row["exit_cause"] != "worker_sick":
            return
        db = self._world.db
        if row["failure_code"] == "TASKS_FAIL_HERE" and not self._done_elsewhere(row):
            self._broken(
                "sick", f"{row['id']} was ended as sick, and no other worker completed a task begun since then"
            )
        for task_id in self._failing[row["id"]]:
            given = sum(bool(a.get("given_back")) for (one, _), a in db.task_attempts.items() if one == task_id)
            live = db.tasks[task_id]["status"] in ("Queued", "In Progress", "Failed")
            if given > 1 or (live and not given):
                self._broken("sick", f"task {task_id}, which failed on the sick {row['id']}, got {given} attempts back")

    def _done_elsewhere(self, row: Mapping[str, Any]) -> bool:
        """Whether another worker of the pool completed a task that began after this worker's tasks began to fail."""
        db, since = self._world.db, self._failing_since.get(row["id"])
        return since is not None and any(
            a["outcome"] == "complete"
            and a["worker_id"] != row["id"]
            and a["started_at"] >= since
            and db.workers[a["worker_id"]]["pool"] == row["pool"]
            for a in db.task_attempts.values()
        )

    def faults_of(self, task_id: str) -> int:
        ended = (a for (one, _), a in self._world.db.task_attempts.items() if one == task_id)
        return sum(a["failure_code"] == "MACHINE_FAULT" for a in ended)

    def heard(self, row: Mapping[str, Any]) -> None:
        """Check a recorded heartbeat."""
        if _reports_fault(row):
            self._told[row["id"]] = (self._told.get(row["id"], (self._world.kernel.now,))[0], self._world.kernel.now)
        elif self._world.kernel.now - self._told.get(row["id"], (0.0, 0.0))[1] > RACE_S:
            self._told.pop(row["id"], None)

    def ended_by_finding(self, old: Mapping[str, Any], new: Mapping[str, Any], pod: SimPod | None) -> None:
        """Check the end by a finding: its agent reports it, for long enough, and a false alarm ends few workers."""
        if old["status"] == "spawning" or new["failure_code"] not in GUARD_CODES:
            return
        now, moment = self._world.kernel.now, self._world.kernel.moment().timestamp()
        if new["failure_code"] == "INODES_FULL":
            since = next((one["since"] for one in (pod.findings if pod else ()) if _code(one) == "INODES_FULL"), moment)
            if moment - since < LASTS_S:
                self._broken("guard", f"{new['id']} was ended by INODES_FULL, reported for {moment - since:.0f} s")
            return
        if new["id"] not in self._told:
            self._broken("guard", f"{new['id']} was ended by {new['failure_code']}, which its agent does not report")
        ready = sum(w["status"] in ("active", "idle") for w in self._world.db.workers.values()) + 1
        self._faults = [(at, size) for at, size in self._faults if now - at < WITHOUT_FINDING_S - 1]
        size = max([ready + len(self._faults), *(size for _, size in self._faults)])
        if size >= ALARM_WORKERS and len(self._faults) * 2 > size:
            ended = len(self._faults) + 1
            self._broken("guard", f"{ended} of {size} workers ended within {WITHOUT_FINDING_S:g} s by one finding")
        self._faults.append((now, size))

    def _faulty(self, quiet: float) -> None:
        """Check that a worker on a faulty machine ends within its bound, unless all workers report the same."""
        moment = self._world.kernel.moment().timestamp()
        for row in self._world.db.workers.values():
            pod = self._world.provider.pods.get(row["pod_id"] or "")
            if row["status"] not in ("active", "idle") or pod is None or self._world.alarm:
                continue
            for one in pod.findings:
                bound_s = GUARD_BOUNDS_S.get((str(_code(one)), str(_severity(one))), math.inf)
                late_s = moment - one["since"] - bound_s if bound_s < math.inf else 0.0
                if min(late_s, self._world.kernel.now - quiet) > OVERDUE_S:
                    self._broken("guard", f"{row['id']} is still {row['status']}, and its agent reports {one['code']}")

    def _unfit(self, quiet: float) -> None:
        """Check that the cause of a worker that claims nothing is known within its bound."""
        moment = self._world.kernel.moment()
        for row in self._world.db.workers.values():
            if row["status"] not in ("active", "idle"):
                continue
            since = row["held_back"] and datetime.fromisoformat(row["held_back"]["since"])
            held_s = (moment - since).total_seconds() if since else 0.0
            bound_s = self._world.policy.spawning_timeout_s
            if not since and isinstance(row["health"], Mapping) and DISK in row["health"]:
                if self._world.db.running.get(row["id"]):
                    continue
                ended = (a["ended_at"] for a in self._world.db.task_attempts.values() if a["worker_id"] == row["id"])
                at_rest_s = max((at.timestamp() for at in ended if at), default=0.0)  # it may finish its tasks
                held_s = moment.timestamp() - max(row["health"][DISK]["since"], at_rest_s)
                bound_s = DISK_FULL_S
            if min(held_s - bound_s, self._world.kernel.now - quiet) > OVERDUE_S:
                self._broken("sick", f"{row['id']} claims no more, and is still {row['status']} after {held_s:.0f} s")

    def ended_unclaiming(self, new: Mapping[str, Any], pod: SimPod | None) -> None:
        """Check the end of a worker that claims nothing: that is true, and it is the only such end in its pool."""
        if new["failure_code"] != "NOT_CLAIMING":
            return
        agent = pod.agents.get(new["nonce"]) if pod else None
        ago_s = self._world.kernel.now - agent.claimed_s if agent is not None and agent.lives else math.inf
        if ago_s < UNCLAIMED_S - 1:
            self._broken("claims", f"{new['id']} was ended as NOT_CLAIMING; a claim was answered {ago_s:.0f} s ago")
        for other in self._world.db.workers.values():
            same = (other["pool"], other["failure_code"]) == (new["pool"], "NOT_CLAIMING")
            if same and other["status"] == "terminating" and other["id"] != new["id"]:
                self._broken("claims", f"{new['id']} was ended as NOT_CLAIMING while {other['id']} is being replaced")

    def _unclaimed(self, quiet: float) -> None:
        """Check that tasks wait behind workers that claim nothing only until this is certain."""
        now, db = self._world.kernel.now, self._world.db
        silent = {a.worker_id for p in self._world.provider.own() for a in p.agents.values() if a.silent_s is not None}
        for pool in self._world.policy.pools:
            here = [w for w in db.workers.values() if w["pool"] == pool.name]
            waits = any(_is_ready(t, db.now) for t in db.tasks.values() if t["pool"] == pool.name)
            empty = [w for w in here if w["status"] in ("active", "idle") and not db.running.get(w["id"])]
            held = waits and any(w["id"] in silent for w in empty)
            if not held or any(w["status"] in ("spawning", "terminating") for w in here):
                self._moving_s[pool.name] = now
            waited_s = now - max(self._moving_s.get(pool.name, now), quiet)
            if waited_s > ACTIVE_WITHOUT_CLAIM_S + UNCLAIMED_S + OVERDUE_S:
                self._broken("claims", f"tasks of {pool.name} wait for {waited_s:.0f} s behind silent workers")


def _is_ready(task: Mapping[str, Any], now: datetime) -> bool:
    due = task["run_after"] is None or task["run_after"] <= now
    return bool(task["status"] == "Queued" and not task["blocked"] and due)


def _code(one: Any) -> Any:
    return one.get("code") if isinstance(one, dict) else None


def _severity(one: Any) -> Any:
    return one.get("severity") if isinstance(one, dict) else None


def _reports_fault(row: Mapping[str, Any]) -> bool:
    """Whether the last heartbeat of a worker said that its GPU failed."""
    found = row["health"].get(FINDINGS, ()) if isinstance(row["health"], Mapping) else ()
    return any(isinstance(one, dict) and (one.get("code"), one.get("severity")) == ("XID_79", "C") for one in found)


def completed_by(function: str, args: Mapping[str, Any], answer: Any) -> list[str]:
    """The tasks that this call completed."""
    said = []
    if function == "worker_complete":
        said = [(args["p_task_id"], answer["outcome"])]
    elif "p_results" in args:
        said = [(one["task_id"], outcome) for one, outcome in zip(args["p_results"], answer["outcomes"], strict=True)]
    return [task_id for task_id, outcome in said if outcome == "ok"]
