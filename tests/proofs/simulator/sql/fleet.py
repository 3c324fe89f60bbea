"""fleet_*: the functions of the orchestrator. `call` is the whole database as a transport sees it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.proofs.simulator.sql.queue import Json, Queue, shown_attempt
from tests.proofs.simulator.sql.tables import DATABASE, Row, check_id, check_keys, greatest, jsonable, refuse

SPAWN_KEYS = ("id", "pool", "gpu_type", "gpu_count", "data_center", "release", "reserved_usd", "reserved_usd_per_hour",
              "budget", "heartbeat_s", "lease_s", "own_program", "deadline_s", "actor", "reason",
              "metadata", "cluster")  # fmt: skip
COLUMNS = ("pod_id", "ssh_host", "ssh_port", "host_key", "nonce", "code_sha", "token_jti", "price_usd_per_hour",
           "gpu_type", "data_center", "machine_id", "release", "reserved_usd", "reserved_usd_per_hour", "waiting_on",
           "waiting_for", "exit_cause", "failure_code")  # fmt: skip
MOVE_KEYS = (*COLUMNS, "budget", "metadata", "deadline_s", "next_attempt_s", "unbilled_s", "billed_s")
EMPTY = ("last_heartbeat", "terminated_at", "exit_cause", "failure_code", "drain_requested_at", "stop_requested_at",
         "pod_id", "ssh_host", "ssh_port", "host_key", "machine_id", "price_usd_per_hour", "billing_since", "nonce",
         "code_sha", "token_jti", "agent", "health", "bringup_ended_at", "promoted_at", "ending_since", "held_back",
         "billing_until", "waiting_for")  # fmt: skip
PLANNED = ("idle_timeout", "scale_down", "manual", "shutdown", "budget", "superseded", "worker_sick", "stale_code")
MACHINE = ("gpu_fault", "host_fault")
CUT_OFF = "GATEWAY_UNREACHED"
FAULTS = 3  # attempts of a task that machine faults may end without counting
BRINGUPS = 100
MOST_WORKERS, LONGEST_LIMIT_S = 100_000, 31_536_000
TRIED = 100  # attempts of a worker that are looked at


class Database(Queue):
    """All functions of the schema that the orchestrator, the agents and submitters call."""

    def call(
        self, function: str, now: datetime, args: Mapping[str, Any], claims: Mapping[str, Any] | None = None
    ) -> Json:
        """One transaction: the answer, or the port's error with nothing changed."""
        self.now, self.notified = now, {}
        named = {name: value for name, value in args.items() if name != "p_now"}
        if function.startswith("worker_"):
            named["claims"] = claims
        answer: Json = getattr(self, function)(**named)
        return answer

    def _check_term(self, fleet: str, term: int | None, what: str) -> None:
        known = self.leases.get(fleet, {}).get("term")
        if term is None or known != term:
            refuse("OR001", f"{what} refused: term {term} does not lead fleet {fleet}")

    def _known(self, fleet: str, worker_id: str) -> Row:
        row = self.workers.get(worker_id)
        if row is None or row["fleet"] != fleet:
            refuse("OR005", f"no worker {worker_id} in fleet {fleet}")
        assert row is not None
        return row

    # --- the lease

    def fleet_lead(self, p_fleet: str, p_holder: str, p_ttl_s: float) -> Json:
        check_id(p_fleet, "p_fleet")
        if not p_holder or not 0 < p_ttl_s <= 3600:
            refuse("OR007", "p_holder must be named and p_ttl_s be from 0 to 3600 seconds")
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        fresh = {"holder": "", "term": 0, "expires_at": epoch, "since": epoch, "unled_from": None}
        lease = self.leases.setdefault(p_fleet, fresh)
        until = self.now + timedelta(seconds=p_ttl_s)
        if lease["expires_at"] <= self.now:
            gap = {"unled_from": lease["expires_at"] if lease["term"] else None}
            lease |= {"holder": p_holder, "term": lease["term"] + 1, "since": self.now, "expires_at": until} | gap
        elif lease["holder"] == p_holder:
            lease["expires_at"] = until
        shown = {name: value for name, value in lease.items() if name != "unled_from"}
        answer: Json = jsonable({"leader": lease["holder"] == p_holder, **shown})
        return answer

    def fleet_resign(self, p_fleet: str, p_holder: str, p_term: int) -> Json:
        lease = self.leases.get(p_fleet)
        if lease is None or (lease["holder"], lease["term"]) != (p_holder, p_term) or lease["expires_at"] <= self.now:
            return {"resigned": False}
        lease["expires_at"] = self.now
        self.notify("orchestrator_fleet", "")
        return {"resigned": True}

    # --- money

    def spent(self, fleet: str, without: str | None) -> dict[str, float]:
        """internal_spent."""
        began = self.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        today = committed = hourly = 0.0
        for cost in self.costs:
            if cost["fleet"] != fleet or cost["to_at"] <= began:
                continue
            share = 1.0
            if cost["from_at"] < began:
                share = (cost["to_at"] - began) / (cost["to_at"] - cost["from_at"])
            today += cost["usd"] * share
        for row in self.workers.values():
            if row["fleet"] != fleet or row["status"] == "terminated":
                continue
            price = row["price_usd_per_hour"]
            rate = row["reserved_usd_per_hour"] if price is None else price
            if row["billing_since"] is not None:
                since = max(row["state_since"], row["billing_since"], began)
                today += rate * (self.now - since).total_seconds() / 3600
            if row["id"] == without:
                continue
            used = rate * (self.now - row["state_since"]).total_seconds() / 3600
            per_hour = row["reserved_usd_per_hour"]
            reserved = row["reserved_usd"] * (max(1.0, rate / per_hour) if per_hour else 1.0)
            committed += max(reserved - (used if row["status"] == "terminating" else 0.0), 0.0)
            hourly += rate
        return {"today_usd": today, "committed_usd": committed, "hourly_usd": hourly}

    def _check_budget(self, fleet: str, worker_id: str, usd: float, per_hour: float, budget: Any) -> None:
        budget = budget or {}
        hourly, daily = budget.get("hourly_usd"), budget.get("daily_usd")
        if hourly is None and daily is None:
            return
        spent = self.spent(fleet, worker_id)
        if hourly is not None and spent["hourly_usd"] + per_hour > hourly + 1e-9:
            refuse("OR003", f"{worker_id} is over the hourly budget")
        wanted = usd + (budget.get("useful_usd") or 0)
        if daily is not None and spent["today_usd"] + spent["committed_usd"] + wanted > daily + 1e-9:
            refuse("OR003", f"{worker_id} is over the budget of the day")

    # --- workers

    def fleet_spawn(self, p_fleet: str, p_term: int | None, p_worker: Json) -> Json:
        check_id(p_fleet, "p_fleet")
        check_keys(p_worker, SPAWN_KEYS, "p_worker")
        check_id(p_worker.get("id"), "the worker id")
        said = {name: value for name, value in p_worker.items() if value is not None}
        check_id(said.get("pool", "default"), "the pool")
        if p_term is not None:
            self._check_term(p_fleet, p_term, "fleet_spawn")
        if said["id"] in self.workers:
            return {"created": False}
        usd, per_hour = said.get("reserved_usd", 0), said.get("reserved_usd_per_hour", 0)
        self._check_budget(p_fleet, said["id"], usd, per_hour, said.get("budget"))
        row: Row = dict.fromkeys(EMPTY) | {
            "id": said["id"],
            "instance_type": said.get("gpu_type", "unknown"),
            "status": "spawning",
            "metadata": dict(said.get("metadata") or {}),
            "created_at": self.now,
            "fleet": p_fleet,
            "pool": said.get("pool", "default"),
            "stage": "intent",
            "waiting_on": "orchestrator",
            "deadline_at": self.now + timedelta(seconds=said.get("deadline_s", 30)),
            "next_attempt_at": self.now,
            "gpu_type": said.get("gpu_type"),
            "gpu_count": said.get("gpu_count", 1),
            "data_center": said.get("data_center"),
            "reserved_usd": usd,
            "claim_no": 0,
            "own_program": said.get("own_program", False),
            "heartbeat_s": said.get("heartbeat_s", 20),
            "lease_s": said.get("lease_s", 60),
            "log_bytes": {},
            "release": said.get("release"),
            "reserved_usd_per_hour": per_hour,
            "cluster": said.get("cluster"),
        }
        actor = said.get("actor", "operator" if p_term is None else "orchestrator")
        self.insert_worker(row, said.get("reason", "spawn requested"), actor, p_term)
        self.watch("workers", None, row)
        return {"created": True}

    def fleet_move(
        self,
        p_fleet: str,
        p_term: int,
        p_worker_id: str,
        p_from: Iterable[str],
        p_to: str | None,
        p_stage: str | None,
        p_reason: str,
        p_fields: Json | None,
    ) -> Json:
        fields = p_fields or {}
        check_keys(fields, MOVE_KEYS, "p_fields")
        if not p_reason:
            refuse("OR007", "a move needs a reason")
        self._check_term(p_fleet, p_term, "fleet_move")
        row = self._known(p_fleet, p_worker_id)
        if row["status"] not in [str(state) for state in p_from]:
            refuse("OR002", f"{p_worker_id} is {row['status']}")
        to = str(p_to) if p_to else row["status"]
        change: Row = {name: fields[name] for name in COLUMNS if name in fields}
        change |= {name: str(value) for name, value in change.items() if isinstance(value, str)}
        stage = str(p_stage) if p_stage else "gone" if to == "terminated" and p_to else row["stage"]
        new = row | change
        if to in ("terminating", "terminated") and new["exit_cause"] is None:
            refuse("OR007", f"{p_worker_id} cannot be {to} without an exit_cause")
        budget = fields.get("budget")
        self._check_budget(p_fleet, p_worker_id, new["reserved_usd"], new["reserved_usd_per_hour"], budget)
        if row["pod_id"] is None and new["pod_id"] is not None:
            change["billing_since"] = self.now - timedelta(seconds=float(fields.get("billed_s") or 0))
        elif row["status"] == "spawning" and row["billing_since"] is not None and fields.get("unbilled_s") is not None:
            change["billing_since"] = max(
                row["billing_since"], self.now - timedelta(seconds=float(fields["unbilled_s"]))
            )
        for name, column in (("deadline_s", "deadline_at"), ("next_attempt_s", "next_attempt_at")):
            if fields.get(name) is not None:
                change[column] = self.now + timedelta(seconds=float(fields[name]))
        change["metadata"] = row["metadata"] | dict(fields.get("metadata") or {})
        was, change = row["status"], change | {"status": to, "stage": stage, "state_reason": p_reason}
        if to != "terminated" and any(new[name] is None for name in ("waiting_on",)):
            refuse("23514", "workers_live_waits")
        self.update_worker(row, change, p_reason, "orchestrator", p_term)
        if to == "terminated" != was:
            self.rescue(p_worker_id)
            self._lose_attempts(p_worker_id)
        return {"worker": self._worker_json(row)}

    def _worker_json(self, row: Row) -> Json:
        answer: Json = jsonable(row)
        return answer | {"tasks_running": len(self.running.get(row["id"], ()))}

    def _lose_attempts(self, worker_id: str) -> None:
        for attempt in self.attempts_of.get(worker_id, ()):
            if attempt["ended_at"] is None:
                attempt |= {"ended_at": self.now, "outcome": "lost"}

    def _is_lost(self, row: Row, over_s: float = 0) -> bool:
        """Whether a running task has had no valid lease for so long."""
        return bool(row["lease_expires_at"] <= self.now - timedelta(seconds=over_s))

    def rescue(self, worker_id: str | None, over_s: float = 0) -> list[Json]:
        """Take tasks back from a worker, or those whose lease has ended."""
        if worker_id is not None:
            lost = list(self.running.get(worker_id, {}).values())
        else:
            lost = [row for held in self.running.values() for row in held.values() if self._is_lost(row, over_s)]
        found = []
        for row in sorted(lost, key=lambda row: str(row["id"])):
            told = {"id": row["id"], "worker_id": row["worker_id"]}
            found.append(told | {"outcome": self._rescue_one(row, is_gone=worker_id is not None)})
        return found

    def _rescue_one(self, row: Row, *, is_gone: bool) -> str:
        worker, until, still = self.workers[row["worker_id"]], row["lease_expires_at"], None
        who, ending = f"Worker {worker['id']}", worker["status"] in ("terminating", "terminated")
        if worker["exit_cause"] == "task_stuck":
            still = self.now - row["progress_at"]
        is_cut_off = worker["failure_code"] == CUT_OFF
        if ending and (is_cut_off or worker["exit_cause"] in MACHINE):
            why = f"The machine of worker {worker['id']} failed: {worker['exit_cause']}"
            said = {"code": "MACHINE_FAULT", "exit_class": "lost", "point": "Processing", "message": why}
            if is_cut_off:
                said |= {"code": CUT_OFF, "message": f"{who} was ended: its agent reached no gateway"}
            counted = sum(a["failure_code"] == said["code"] for a in self.attempts.get(row["id"], ())) >= FAULTS
            outcome, backoff = "lost" if counted else "released", counted and self._was_lost(row)
            return self.give_up(row, outcome, said, counted=counted, backoff=backoff)
        if ending and worker["exit_cause"] in PLANNED:
            said = {"code": "RELEASED", "message": f"{who} was ended: {worker['exit_cause']}"}
            return self.give_up(row, "released", said)
        if still is None and self._in_outage(row):
            why = f"{who} could not renew its lease, which ended {until}: the database or the orchestrator was away"
            return self.give_up(row, "released", {"code": "RELEASED", "message": why})
        said = {"code": "LEASE_EXPIRED", "message": f"{who} did not renew its lease, which ended {until}"}
        said |= {"point": "Processing", "exit_class": "lost"}
        if still is not None and still >= timedelta(seconds=worker["metadata"].get("stuck_s", 0)):
            why = f"No sign of life for {still // timedelta(seconds=1)} s; worker {worker['id']} was ended for that"
            said |= {"code": "TASK_STUCK", "exit_class": "timeout", "message": why}
        elif is_gone:
            said |= {"code": "WORKER_LOST", "message": f"{who} is gone"}
        return self.give_up(row, "lost", said, counted=True, backoff=self._was_lost(row))

    def _was_lost(self, row: Row) -> bool:
        since = row["uncounted"]  # a retry begins at zero
        return any(a["outcome"] == "lost" and a["attempt"] > since for a in self.attempts.get(row["id"], ()))

    def _in_outage(self, row: Row) -> bool:
        """internal_is_outage."""
        worker = self.workers[row["worker_id"]]
        lease = self.leases.get(worker["fleet"])
        if not lease or lease["unled_from"] is None:
            return False
        until, lease_s = row["lease_expires_at"], float(worker["lease_s"])
        away = lease["since"] - lease["unled_from"]
        return bool(
            away >= timedelta(seconds=max(lease_s - 20, lease_s / 2))
            and until - timedelta(seconds=lease_s) >= lease["unled_from"] - timedelta(seconds=60)
            and lease["unled_from"] < until < lease["since"] + timedelta(seconds=30)
        )

    def fleet_keep_tasks(self, p_fleet: str, p_term: int, p_worker_id: str) -> Json:
        self._check_term(p_fleet, p_term, "fleet_keep_tasks")
        worker = self.workers.get(p_worker_id)
        if worker is None or worker["fleet"] != p_fleet or worker["status"] == "terminated":
            return {"tasks": 0}
        held = self.running.get(p_worker_id, {}).values()
        for row in held:
            row["lease_expires_at"] = self.now + timedelta(seconds=worker["lease_s"])
        return {"tasks": len(held)}

    def fleet_rescue_overdue(self, p_fleet: str, p_term: int, p_over_s: float) -> Json:
        self._check_term(p_fleet, p_term, "fleet_rescue_overdue")
        return {"tasks": self.rescue(None, p_over_s)}

    def fleet_rescue(self, p_fleet: str, p_term: int, p_worker_id: str | None) -> Json:
        self._check_term(p_fleet, p_term, "fleet_rescue")
        return {"tasks": self.rescue(p_worker_id)}

    def fleet_request_termination(
        self, p_fleet: str, p_worker_id: str, p_reason: str | None, p_now_not_drain: bool
    ) -> Json:
        row = self.workers.get(p_worker_id)
        if row is None or row["fleet"] != p_fleet:
            return {"outcome": "not_found"}
        drain, stop = row["drain_requested_at"], row["stop_requested_at"]
        new_stop = (stop or self.now) if p_now_not_drain else stop
        asked = drain is not None or row["status"] == "terminating"
        if row["status"] == "terminated" or (new_stop == stop and asked):
            return {"outcome": "already", "status": row["status"]}
        self.update_worker(row, {"drain_requested_at": drain or self.now, "stop_requested_at": new_stop})
        reason = f"termination requested{' at once' if p_now_not_drain else ''}: {p_reason or 'no reason given'}"
        self.add_event(row, row["status"], row["stage"], reason, "operator", None, {})
        return {"outcome": "requested", "status": row["status"]}

    def fleet_worker(self, p_fleet: str, p_worker_id: str) -> Json:
        row = self.workers.get(p_worker_id)
        if row is None or row["fleet"] != p_fleet:
            return {"worker": None, "events": [], "attempts": [], "tasks": [], "left_out": {}, "states": {}}
        held = map(self.running_attempt, self.running.get(p_worker_id, {}).values())
        tasks = [*map(shown_attempt, self.tried.get(p_worker_id, ())), *held]
        tasks.sort(key=lambda a: (a["started_at"], a["task_id"]))
        events = [e for e in self.worker_events if e["worker_id"] == p_worker_id]
        return {
            "worker": self._worker_json(row),
            "events": jsonable(events),
            "attempts": jsonable(self.attempts_of.get(p_worker_id, [])),
            "tasks": jsonable(tasks),
            "states": self._states(events),
        }

    def _states(self, events: Sequence[Row]) -> Json:
        moves = [(e["to_state"], e["at"]) for e in events if e["from_state"] != e["to_state"]]
        ends = [at for _, at in moves[1:]] + [self.now]
        seconds: dict[str, float] = {}
        for (state, at), end in zip(moves, ends, strict=True):
            if state != "terminated":
                seconds[state] = seconds.get(state, 0.0) + (end - at).total_seconds()
        return seconds

    # --- what one observation reads

    def fleet_maintain(self, p_fleet: str, p_term: int) -> Json:
        self._check_term(p_fleet, p_term, "fleet_maintain")
        self.maintain()
        return {}

    def fleet_observe(self, p_fleet: str) -> Json:
        paused = self._pauses(p_fleet)
        live = [w for w in self.workers.values() if w["fleet"] == p_fleet and w["status"] != "terminated"]
        rows = [
            jsonable(w)
            | self._held(w)
            | {"second_opinion": self.second_opinion(w), "claim_no": self.launches.get(w["id"], 0)}
            for w in sorted(live, key=lambda w: str(w["id"]))
        ]
        ended = sum(self._is_lost(row) for held in self.running.values() for row in held.values())
        spawned: dict[str, datetime] = {}
        for worker in self.workers.values():
            if worker["fleet"] == p_fleet and worker["stage"] is not None:
                spawned[worker["pool"]] = max(worker["created_at"], spawned.get(worker["pool"], worker["created_at"]))
        day, month = self.now - timedelta(days=1), self.now - timedelta(days=30)
        return {
            "now": self.now.isoformat(),
            "workers": rows,
            "demand": self._demand(paused),
            "scale_limits": self.scale_limits(p_fleet),
            "scaling_policies": self.scaling_policies(p_fleet),
            "expired_leases": ended,
            "offers": [jsonable(o) for (f, _), o in sorted(self.offers.items()) if f == p_fleet],
            "last_spawn_at": jsonable(spawned),
            "ended": self._bringups(p_fleet, day),
            "pod_prices": self._pod_prices(p_fleet, day),
            "promoted_releases": sorted(r for (f, r), at in self.releases.items() if f == p_fleet and at > month),
            "faults": self._faults(p_fleet),
            "spent": self.spent(p_fleet, None),
            "avoid": {
                key: h["avoid_until"].isoformat()
                for (f, key), h in sorted(self.hosts.items())
                if f == p_fleet and h["avoid_until"] is not None and h["avoid_until"] > self.now
            },
            "paused": paused,
            "clusters": [],  # no simulation has one
            "database_id": DATABASE,
            "queued_total": sum(row["state"] != "running" for row in self.live.values()),
        }

    def _faults(self, fleet: str) -> list[Json]:
        hour = self.now - timedelta(hours=1)
        rows = [w for w in self.workers.values() if w["fleet"] == fleet and w["exit_cause"] in MACHINE]
        lately = [w for w in rows if w["ending_since"] is not None and w["ending_since"] > hour]
        newest = sorted(lately, key=lambda w: w["ending_since"], reverse=True)[:BRINGUPS]
        return [
            jsonable({"worker_id": w["id"], "failure_code": w["failure_code"], "at": w["ending_since"]}) for w in newest
        ]

    def _held(self, worker: Row) -> Json:
        held = self.running.get(worker["id"], {}).values()
        if not held:
            empty, since = worker["status"] == "active", None
            if empty:
                newest = self._newest(worker["id"], TRIED)
                since = jsonable(greatest(worker["state_since"], *(a["ended_at"] for a in newest)))
            return {"tasks_running": 0, "progress_at": None, "slowest_task": None, "empty_since": since}
        slowest = min(held, key=lambda row: (row["progress_at"], row["id"]))
        moved = (min if worker["own_program"] else max)(row["progress_at"] for row in held)
        said = {"tasks_running": len(held), "progress_at": moved.isoformat(), "slowest_task": slowest["id"]}
        return said | {"empty_since": None}

    def _demand(self, paused: Mapping[str, Any]) -> list[Json]:
        counts: dict[str, Counter[str]] = {}
        oldest: dict[str, datetime] = {}
        for row in self.live.values():
            count, state = counts.setdefault(row["pool"], Counter()), row["state"]
            if state == "running":
                is_live = self.workers[row["worker_id"]]["status"] != "terminated"
                count[state] += is_live and row["lease_expires_at"] > self.now
                continue
            if state == "waits_for_time" and row["run_after"] <= self.now:
                state = "ready"
            count[state] += 1
            if state == "ready":
                oldest[row["pool"]] = min(row["created_at"], oldest.get(row["pool"], row["created_at"]))
        found = []
        for pool, count in sorted(counts.items()):
            held = "*" in paused or pool in paused
            blocked = {"dependencies": count["waits_for_tasks"], "scheduled": count["waits_for_time"], "concurrency": 0}
            found.append(
                {
                    "pool": pool,
                    "claimable": 0 if held else count["ready"],
                    "running": count["running"],
                    "blocked": blocked | {"paused": count["ready"] if held else 0},
                    "oldest_claimable_at": jsonable(oldest.get(pool)),
                }
            )
        return found

    def _pod_prices(self, fleet: str, since: datetime) -> list[Json]:
        by_offer: dict[str, list[tuple[Any, ...]]] = {}
        for w in self.workers.values():
            offer = w["metadata"].get("offer")
            brought_up = w["fleet"] == fleet and w["bringup_ended_at"] is not None and w["bringup_ended_at"] > since
            if brought_up and offer and w["price_usd_per_hour"] is not None and w["gpu_count"]:
                ended = w["bringup_ended_at"] if w["promoted_at"] is None else w["ending_since"]
                usd, for_budget = w["price_usd_per_hour"] / w["gpu_count"], w["exit_cause"] == "budget"
                by_offer.setdefault(offer, []).append((w["created_at"], usd, ended, for_budget))
        found = []
        for offer, rows in sorted(by_offer.items()):
            created_at, usd, ended, _ = max(rows, key=lambda row: row[:2])
            kept_at = max((row[0] for row in rows if not row[3]), default=None)
            in_a_row = sum(row[3] and (kept_at is None or row[0] > kept_at) for row in rows)
            found.append(
                {
                    "offer": offer,
                    "usd_per_gpu_hour": usd,
                    "created_at": created_at.isoformat(),
                    "ended_at": jsonable(ended),
                    "ended_for_budget": in_a_row,
                }
            )
        return found

    def _bringups(self, fleet: str, since: datetime) -> list[Json]:
        ended = [
            w
            for w in self.workers.values()
            if w["fleet"] == fleet and w["bringup_ended_at"] is not None and w["bringup_ended_at"] > since
        ]
        ended.sort(key=lambda w: (-w["bringup_ended_at"].timestamp(), w["id"]))
        kept, seen = [], Counter[str]()
        for worker in ended:
            seen[worker["pool"]] += 1
            if seen[worker["pool"]] <= BRINGUPS:
                kept.append(worker)
        kept.sort(key=lambda w: (w["bringup_ended_at"], w["id"]))
        return [
            {
                "worker_id": w["id"],
                "pool": w["pool"],
                "at": w["bringup_ended_at"].isoformat(),
                "promoted": w["promoted_at"] is not None,
                "exit_cause": w["exit_cause"],
                "failure_code": w["failure_code"],
                "release": w["release"],
                "boot_s": None
                if w["promoted_at"] is None
                else (w["bringup_ended_at"] - w["created_at"]).total_seconds(),
                "ending_since": None if w["promoted_at"] is None else jsonable(w["ending_since"]),
                "offer": w["metadata"].get("offer"),
                "worked": w["promoted_at"] is not None and self._worked(w["id"]),
            }
            for w in kept
        ]

    def _worked(self, worker_id: str) -> bool:
        first = sorted(self.tried.get(worker_id, ()), key=lambda a: a["started_at"])[:TRIED]
        return any(attempt["outcome"] == "complete" for attempt in first)

    def fleet_note_tick(self, p_fleet: str, p_term: int, p_error: str | None, p_for_s: float) -> Json:
        self._check_term(p_fleet, p_term, "fleet_note_tick")
        self.settings.pop((p_fleet, "tick_failed"), None)
        if p_error is not None:
            until = self.now + timedelta(seconds=float(p_for_s))
            self.settings[p_fleet, "tick_failed"] = {"reason": p_error, "expires_at": until}
        return {"noted": p_error is not None}

    def fleet_store_away(
        self, p_fleet: str, p_term: int, p_reason: str | None, p_since: Any, p_for_s: float | None
    ) -> Json:
        self._check_term(p_fleet, p_term, "fleet_store_away")
        if p_reason is None:
            if self.settings.pop((p_fleet, "store_away"), None) is not None:
                here = [w for w in self.workers.values() if w["fleet"] == p_fleet and w["status"] in ("active", "idle")]
                for pool in sorted({w["pool"] for w in here}):
                    self.notify("orchestrator_tasks", pool)
        else:
            if p_since is None or p_for_s is None or not 0 < p_for_s <= 3600:
                refuse("OR007", "p_since must be given, and p_for_s be from 0 to 3600 seconds")
            until = self.now + timedelta(seconds=float(p_for_s or 0))
            self.settings[p_fleet, "store_away"] = {"reason": p_reason, "expires_at": until}
        return {"away": p_reason is not None}

    def _pauses(self, fleet: str) -> Json:
        found = {}
        for (owner, name), row in sorted(self.settings.items()):
            if (
                owner == fleet
                and name.startswith("paused")
                and (row["expires_at"] is None or row["expires_at"] > self.now)
            ):
                pool = name.removeprefix("paused").removeprefix(":") or "*"
                found[pool] = {"reason": row["reason"], "until": jsonable(row["expires_at"])}
        return found

    def scaling_policies(self, fleet: str) -> Json:
        """Return the operators' choices of a rule; see scaling.py."""
        raise NotImplementedError

    def scale_limits(self, fleet: str) -> Json:
        """Return the limits of workers in force."""
        found = {}
        for (owner, name), row in sorted(self.settings.items()):
            if owner == fleet and name.startswith("limited") and row["expires_at"] > self.now:
                pool = name.removeprefix("limited").removeprefix(":") or "*"
                found[pool] = {"most": row["most"], "reason": row["reason"], "until": jsonable(row["expires_at"])}
        return found

    def fleet_scale_limit(
        self, p_fleet: str, p_pool: str | None, p_most: int | None, p_reason: str | None, p_for_s: float | None
    ) -> Json:
        check_id(p_fleet, "p_fleet")
        if p_pool is not None:
            check_id(p_pool, "p_pool")
        name = "limited" if p_pool is None else f"limited:{p_pool}"
        if p_most is None:
            limited = [key for key in self.settings if key[0] == p_fleet and key[1].startswith("limited")]
            for key in [key for key in limited if p_pool is None or key[1] == name]:
                del self.settings[key]
        else:
            if not 1 <= p_most <= MOST_WORKERS:
                refuse("OR007", f"a limit is a number from 1 to {MOST_WORKERS}")
            lasts_s = p_for_s or 0.0
            if not 0 < lasts_s <= LONGEST_LIMIT_S:
                refuse("OR007", "a limit lasts for more than nothing and at most a year")
            until = self.now + timedelta(seconds=lasts_s)
            self.settings[p_fleet, name] = {"most": p_most, "reason": p_reason, "expires_at": until}
        self.notify("orchestrator_fleet", "")
        return {"limits": self.scale_limits(p_fleet)}

    def fleet_pause(self, p_fleet: str, p_pool: str | None, p_reason: str | None, p_for_s: float | None) -> Json:
        check_id(p_fleet, "p_fleet")
        if p_pool is not None:
            check_id(p_pool, "p_pool")
        if p_for_s is not None and p_for_s <= 0:
            refuse("OR007", "a pause must last longer than nothing")
        name = "paused" if p_pool is None else f"paused:{p_pool}"
        if p_reason is None:
            paused = [key for key in self.settings if key[0] == p_fleet and key[1].startswith("paused")]
            ends = [key for key in paused if p_pool is None or key[1] == name]
            for key in ends:
                del self.settings[key]
        else:
            until = None if p_for_s is None else self.now + timedelta(seconds=p_for_s)
            self.settings[p_fleet, name] = {"reason": p_reason, "expires_at": until}
        self.notify("orchestrator_fleet", "")
        return {"paused": self._pauses(p_fleet)}
