"""The laws `sick`, `guard` and `claims`: when a worker may end because its tasks fail, its machine or its silence."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.core.fitness import DISK_FULL_S, UNCLAIMED_S, UNTRIED_S
from orchestrator.core.guards import ALARM_WORKERS, LASTS_S, WITHOUT_FINDING_S
from orchestrator.core.lifecycle import ACTIVE_WITHOUT_CLAIM_S
from tests.proofs.simulator.provider import DEAREST, FLEET, SimPod
from tests.proofs.simulator.sql.fleet import FAULTS
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
        self._held_s: dict[str, float] = {}  # worker -> when it was last held back
        self._told: dict[str, tuple[float, float]] = {}  # worker -> since when it reports a fault, and the last time
        self._faults: list[tuple[float, int]] = []  # when workers ended because of their machines, and of how many
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
            self._held_s.pop(args["p_worker_id"], None)
        if function == "worker_fail" and answer["outcome"] in ("requeued", "failed"):
            self._failed(args["p_worker_id"], args["p_task_id"], args["p_failure"])
            self._held(args["p_worker_id"])
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
        held_s = self._held_s.get(worker_id, -math.inf)
        now_failing = sum(at > held_s for at in failing.values())
        if now_failing > most:
            self._broken("sick", f"{now_failing} different tasks failed in a row on {worker_id}, more than {most}")

    def _held(self, worker_id: str) -> None:
        held = self._world.db.workers[worker_id]["held_back"]
        if held and datetime.fromisoformat(held["since"]) == self._world.db.now:  # by any failure, also a permanent one
            self._held_s[worker_id] = self._world.kernel.now

    def asked(self, new: Mapping[str, Any]) -> None:
        """While tasks fail on every ready worker of a release, and not only there, none of it is asked for."""
        same = [
            w for w in self._world.db.workers.values() if (w["pool"], w["release"]) == (new["pool"], new["release"])
        ]
        held = [w["held_back"] for w in same if w["status"] in ("active", "idle")]
        if not held or any(one is None or one["suspect"] for one in held):
            return
        now = self._world.db.now
        times = [datetime.fromisoformat(one[key]) for one in held for key in ("since", "until")]
        paused_at = max(at for at in times if at <= now)
        if paused_at <= now - timedelta(seconds=RACE_S + LATE_S):
            self._broken("sick", f"{new['id']} is asked for, and tasks fail on every worker of its release")

    def ended_with_tasks(self, row: Mapping[str, Any]) -> None:
        """A worker ends because its tasks failed: those that are not done have one attempt back, once."""
        if row["exit_cause"] == "release_bad":
            self._judged(row)
        if row["exit_cause"] != "worker_sick":
            return
        db = self._world.db
        self._judged(row)
        for task_id in self._failing[row["id"]]:
            given = sum(bool(a["given_back"]) for a in db.attempts[task_id])
            live = db.tasks[task_id]["status"] in ("Queued", "In Progress", "Failed")
            if given > 1 or (live and not given):
                self._broken("sick", f"task {task_id}, which failed on the sick {row['id']}, got {given} attempts back")
            if task_id in db.live and db.live[task_id]["uncounted"] < given:
                self._broken("sick", f"task {task_id} got an attempt of {row['id']} back, and the attempt still counts")

    def _judged(self, row: Mapping[str, Any]) -> None:
        """Check that bad inputs end no worker, and that its own tasks speak against one that is ended as sick."""
        if row["failure_code"] not in ("TASKS_FAIL_HERE", "TASKS_FAIL_UNJUDGED", "TASKS_FAIL_EVERYWHERE"):
            return
        pod = self._world.provider.pods.get(row["pod_id"] or "")
        if pod is not None and not pod.fails_tasks and not self._world.was_bad_release and self._has_room(row):
            self._broken("sick", f"{row['id']} was ended by {row['failure_code']}, and only inputs are bad")
        if row["failure_code"] != "TASKS_FAIL_HERE":
            return
        attempts = self._world.db.attempts
        done = [
            task_id
            for task_id in self._failing[row["id"]]
            if any(a["outcome"] == "complete" and a["worker_id"] != row["id"] for a in attempts[task_id])
        ]
        if 2 * len(done) < self._world.policy.max_failures:
            self._broken(
                "sick", f"{row['id']} was ended as sick; others completed {len(done)} of the tasks that it failed"
            )

    def _has_room(self, row: Mapping[str, Any]) -> bool:
        """Whether its pool may have a worker on another machine: otherwise a successor has to try the tasks."""
        pool, policy, spent = self._world.pool(row["pool"]), self._world.policy, self._world.db.spent(FLEET, None)
        hourly, daily = policy.hourly_budget_usd, policy.daily_budget_usd
        if hourly is not None and spent["hourly_usd"] + DEAREST > hourly:
            return False
        if daily is not None and spent["today_usd"] + spent["committed_usd"] + DEAREST > daily:
            return False
        here = [
            w
            for w in self._world.db.workers.values()
            if w["status"] in ("spawning", "active", "idle") and w["machine_id"] == row["machine_id"]
        ]
        if pool is None or self._is_limited(row["pool"]):
            return False
        return len({row["id"], *(w["id"] for w in here)}) < pool.max_active

    def _is_limited(self, pool: str) -> bool:
        """Whether an operator allows no more workers than there are."""
        db = self._world.db
        live = Counter(w["pool"] for w in db.workers.values() if w["status"] in ("spawning", "active", "idle"))
        limits = db.scale_limits(FLEET).items()
        return any((live.total() if name == "*" else live[pool]) + 1 >= one["most"] for name, one in limits
                   if name in ("*", pool))  # fmt: skip

    def faults_count(self, task_id: str) -> bool:
        """Whether the last attempt of a task counts, and its machine failed as those of few before."""
        *earlier, last = self._world.db.attempts[task_id]
        faults = sum(a["failure_code"] == "MACHINE_FAULT" for a in earlier)
        before = earlier[-1]["uncounted"] if earlier else 0
        return faults < FAULTS and bool(last["uncounted"] <= before)

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
            held = row["held_back"] if row["held_back"] and not row["held_back"]["until"] else None
            since = held and datetime.fromisoformat(held["since"])
            held_s = (moment - since).total_seconds() if since else 0.0
            pool = self._world.pool(row["pool"])
            bound_s = UNTRIED_S + (pool.idle_timeout_s if pool else 0)
            if not since and isinstance(row["health"], Mapping) and DISK in row["health"]:
                if self._world.db.running.get(row["id"]):
                    continue
                ended = (a["ended_at"] for a in self._world.db.tried.get(row["id"], ()))
                at_rest_s = max((at.timestamp() for at in ended), default=0.0)  # it may finish its tasks
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
        waiting = {row["pool"] for row in db.live.values() if _is_ready(row, db.now)} if silent else ()
        for pool in self._world.policy.pools:
            here = [w for w in db.workers.values() if w["pool"] == pool.name] if pool.name in waiting else []
            empty = (w for w in here if w["status"] in ("active", "idle") and not db.running.get(w["id"]))
            held = any(w["id"] in silent for w in empty)
            if not held or any(w["status"] in ("spawning", "terminating") for w in here):
                self._moving_s[pool.name] = now
            waited_s = now - max(self._moving_s.get(pool.name, now), quiet)
            if waited_s > ACTIVE_WITHOUT_CLAIM_S + UNCLAIMED_S + OVERDUE_S:
                self._broken("claims", f"tasks of {pool.name} wait for {waited_s:.0f} s behind silent workers")


def _is_ready(row: Mapping[str, Any], now: datetime) -> bool:
    return bool(row["state"] == "ready" or (row["state"] == "waits_for_time" and row["run_after"] <= now))


def _code(one: Any) -> Any:
    return one.get("code") if isinstance(one, dict) else None


def _severity(one: Any) -> Any:
    return one.get("severity") if isinstance(one, dict) else None


def _reports_fault(row: Mapping[str, Any]) -> bool:
    """Whether the last heartbeat of a worker said that its GPU failed."""
    found = row["health"].get(FINDINGS, ()) if isinstance(row["health"], Mapping) else ()
    return any(isinstance(one, dict) and (one.get("code"), one.get("severity")) == ("XID_79", "C") for one in found)


def completed_by(function: str, args: Mapping[str, Any], answer: Any) -> dict[str, int]:
    """The tasks that this call completed, and of each the attempt."""
    said = []
    if function == "worker_complete":
        said = [(args["p_task_id"], args["p_attempt"], answer["outcome"])]
    elif "p_results" in args:
        results = zip(args["p_results"], answer["outcomes"], strict=True)
        said = [(one["task_id"], one["attempt"], outcome) for one, outcome in results]
    return {task_id: attempt for task_id, attempt, outcome in said if outcome == "ok"}
