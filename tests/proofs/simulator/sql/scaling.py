"""fleet_*: what the learned rule of scaling reads and keeps, and the operators' choices of a rule."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.proofs.simulator.sql.fleet import Database
from tests.proofs.simulator.sql.queue import Json
from tests.proofs.simulator.sql.tables import Row, check_id, refuse

DAYS = timedelta(days=14)
HOUR = timedelta(hours=1)
RUNS, MANY_RUNS = 5000, 10_000  # since a moment of the last hour, and since an earlier one
WAITING = 100


class Scaling(Database):
    """The functions of scaling_facts.sql and scaling_policies.sql."""

    def fleet_scaling_facts(self, p_fleet: str, p_pools: Json) -> Json:
        facts = {pool: self._facts(p_fleet, pool, since) for pool, since in p_pools.items()}
        return {"now": self.now.timestamp(), "pools": facts}

    def _facts(self, fleet: str, pool: str, since_s: float | None) -> Json:
        stored = self.statistics.get((fleet, pool)) if since_s is None else None
        since = self.now - DAYS
        known_s = stored["until"] if stored else since_s
        if known_s is not None:
            since = min(max(since, datetime.fromtimestamp(known_s, UTC)), self.now)
        runs = self._runs(fleet, pool, since)
        most = RUNS if since > self.now - HOUR else MANY_RUNS
        if len(runs) >= most:
            runs = runs[-most:]
            since = runs[0]["ended_at"]
        shown = []
        for run in runs:
            moments = (self._arrival_of(run), run["started_at"], run["ended_at"])
            shown.append([*(moment.timestamp() for moment in moments), run["worker_id"]])
        known: Json = {"since": since.timestamp(), "runs": shown, "is_stored": stored is not None}
        known["reviewed"] = None
        return known | {"stored": stored["statistics"] if stored else None, **self._open(fleet, pool, since)}

    def _runs(self, fleet: str, pool: str, since: datetime) -> list[Row]:
        workers = (w for w in self.workers.values() if w["fleet"] == fleet and w["pool"] == pool)
        runs = [a for w in workers for a in self.tried.get(w["id"], ()) if since < a["ended_at"] <= self.now]
        return sorted(runs, key=lambda a: (a["ended_at"], a["task_id"], a["attempt"]))

    def _arrival_of(self, run: Row) -> datetime:
        started: datetime = run["started_at"]
        task = self.tasks.get(run["task_id"])
        return min(started, self._arrival(task, run["run_after"], run["attempt"])) if task else started

    def _arrival(self, task: Row, run_after: datetime | None, number: int) -> datetime:
        """From when a worker could have run an attempt of this number."""
        before = [a["ended_at"] for a in self.attempts.get(task["id"], ()) if a["attempt"] < number]
        ends = [self.attempts[one][-1]["ended_at"] for one in task["depends_on"] if one in self.attempts]
        moments = [before[-1]] if before else [task["created_at"], *ends]
        arrived: datetime = max(*moments, run_after) if run_after else max(moments)
        return arrived

    def _open(self, fleet: str, pool: str, since: datetime) -> Json:
        running = [
            row
            for worker in self.workers.values()
            if worker["fleet"] == fleet and worker["pool"] == pool and worker["status"] != "terminated"
            for row in self.running.get(worker["id"], {}).values()
        ]
        ready = [row for row in self.live.values() if row["pool"] == pool and self._is_ready(row)]
        waiting = [self._arrival_open(row, self.now, row["attempt"] + 1) for row in ready]
        arrivals = [self._arrival_open(row, row["claimed_at"], row["attempt"]) for row in running] + waiting
        busy: dict[str, float] = {}
        for row in running:
            at_s = row["claimed_at"].timestamp()
            busy[row["worker_id"]] = min(at_s, busy.get(row["worker_id"], at_s))
        return {
            "open": len(arrivals),
            "opened": sorted(at.timestamp() for at in arrivals if at > since),
            "waiting": sorted(at.timestamp() for at in waiting)[:WAITING],
            "busy": busy,
        }

    def _is_ready(self, row: Row) -> bool:
        due = row["state"] == "waits_for_time" and row["run_after"] <= self.now
        return bool(row["state"] == "ready" or due)

    def _arrival_open(self, row: Row, before: datetime, number: int) -> datetime:
        run_after = row["run_after"] if row["run_after"] and row["run_after"] <= before else None
        return min(before, self._arrival(self.tasks[row["id"]], run_after, number))

    def fleet_learn(self, p_fleet: str, p_term: int, p_rows: list[Json]) -> Json:
        self._check_term(p_fleet, p_term, "fleet_learn")
        for row in p_rows:
            kept = {"statistics": row["statistics"], "until": row["until"]}
            self.statistics[p_fleet, row["pool"]] = kept
        return {"stored": len(p_rows)}

    def scaling_policies(self, fleet: str) -> dict[str, Any]:
        """Return the operators' choices of a rule."""
        found = {}
        for (owner, name), row in sorted(self.settings.items()):
            if owner == fleet and name.startswith("scaling"):
                found[name.removeprefix("scaling").removeprefix(":") or "*"] = row["value"]
        return found

    def fleet_scaling_policy(self, p_fleet: str, p_pool: str | None, p_policy: str | None) -> Json:
        check_id(p_fleet, "p_fleet")
        if p_pool is not None:
            check_id(p_pool, "p_pool")
        name = "scaling" if p_pool is None else f"scaling:{p_pool}"
        if p_policy is None:
            chosen = [key for key in self.settings if key[0] == p_fleet and key[1].startswith("scaling")]
            for key in [key for key in chosen if p_pool is None or key[1] == name]:
                del self.settings[key]
        elif p_policy not in ("fixed", "learned"):
            refuse("OR007", "the rule of scaling is fixed or learned")
        else:
            self.settings[p_fleet, name] = {"value": p_policy, "reason": "chosen by an operator", "expires_at": None}
        self.notify("orchestrator_fleet", "")
        return {"policies": self.scaling_policies(p_fleet)}
