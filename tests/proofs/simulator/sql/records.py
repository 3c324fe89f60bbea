"""fleet_*: what the orchestrator writes down as it goes: attempts, offers, hosts, decisions, pools, the log ledger."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.proofs.simulator.sql.queue import Json
from tests.proofs.simulator.sql.scaling import Scaling
from tests.proofs.simulator.sql.tables import Row, check_keys, greatest, jsonable, refuse

DECISION_KEYS = ("pool", "rule", "target", "inputs", "actions", "blocked")
RETAINED = (
    "decisions", "worker_events", "worker_attempts", "attempts", "audit_log", "costs", "log_objects", "pool_minutes",
    "tasks", "workers",
)  # fmt: skip
LEDGER = {"first_byte": "first", "last_byte": "last"}


class Records(Scaling):
    """The whole database."""

    def fleet_attempt_open(self, p_fleet: str, p_term: int, p_worker_id: str, p_stage: str) -> Json:
        self._check_term(p_fleet, p_term, "fleet_attempt_open")
        self._known(p_fleet, p_worker_id)
        self._lose_attempts(p_worker_id)
        earlier = self.attempts_of.setdefault(p_worker_id, [])
        number = len(self.worker_attempts) + 1
        row: Row = {
            "id": number,
            "worker_id": p_worker_id,
            "stage": str(p_stage),
            "attempt": sum(a["stage"] == p_stage for a in earlier) + 1,
            "term": p_term,
            "started_at": self.now,
            **dict.fromkeys(("ended_at", "outcome", "failure_code", "exception_type", "evidence")),
        }
        earlier.append(row)
        self.worker_attempts[number] = row
        return {"id": number}

    def fleet_attempt_close(
        self,
        p_fleet: str,
        p_term: int,
        p_id: int,
        p_outcome: str,
        p_failure_code: str | None,
        p_exception_type: str | None,
        p_evidence: Mapping[str, Any] | None,
    ) -> Json:
        self._check_term(p_fleet, p_term, "fleet_attempt_close")
        row = self.worker_attempts.get(p_id)
        if row is None:
            refuse("OR007", f"there is no attempt {p_id}")
        assert row is not None
        if row["ended_at"] is None:
            row |= {"ended_at": self.now, "outcome": p_outcome, "exception_type": p_exception_type}
            row |= {"failure_code": p_failure_code, "evidence": jsonable(p_evidence)}
        return {}

    def fleet_attempt_note(
        self, p_fleet: str, p_term: int, p_id: int, p_failure_code: str | None, p_evidence: Mapping[str, Any]
    ) -> Json:
        self._check_term(p_fleet, p_term, "fleet_attempt_note")
        row = self.worker_attempts.get(p_id)
        noted = row is not None and row["ended_at"] is None
        if row is not None and noted:
            row |= {"failure_code": p_failure_code, "evidence": jsonable(p_evidence)}
        return {"noted": noted}

    def fleet_note_offer(self, p_fleet: str, p_term: int, p_key: str, p_refused: bool, p_code: str | None) -> Json:
        self._check_term(p_fleet, p_term, "fleet_note_offer")
        fresh = {"key": p_key, "refusals": 0, "probe_budget": None, "cooldown_until": None}
        fresh |= dict.fromkeys(("last_refusal", "last_code", "last_success"))
        offer = self.offers.setdefault((p_fleet, p_key), fresh)
        if p_refused:
            wait_s = min(30 * 2 ** min(offer["refusals"], 10), 600)
            offer |= {"refusals": offer["refusals"] + 1, "cooldown_until": self.now + timedelta(seconds=wait_s)}
            offer |= {"probe_budget": 1, "last_refusal": self.now, "last_code": p_code or offer["last_code"]}
        else:
            budget = offer["probe_budget"]
            offer |= {"refusals": 0, "cooldown_until": None, "last_success": self.now}
            offer["probe_budget"] = None if budget is None else min(budget * 2, 1024)
        return {}

    def fleet_strike(
        self,
        p_fleet: str,
        p_term: int,
        p_key: str,
        p_code: str,
        p_evidence: Mapping[str, Any] | None,
        p_avoid_s: float,
        p_after: int,
        p_memory_s: float,
    ) -> Json:
        self._check_term(p_fleet, p_term, "fleet_strike")
        what = jsonable(p_evidence or {}) | {"code": p_code, "at": self.now.isoformat()}
        host = self.hosts.get((p_fleet, p_key))
        if host is None:
            host = {"key": p_key, "strikes": 1, "evidence": [what], "last_failure": self.now, "avoid_until": None}
            self.hosts[p_fleet, p_key] = host
        else:
            forgotten = host["last_failure"] < self.now - timedelta(seconds=p_memory_s)
            host |= {"strikes": 1 if forgotten else host["strikes"] + 1, "last_failure": self.now}
            host["evidence"] = [what, *host["evidence"]][:10]
        if host["strikes"] >= p_after:
            host["avoid_until"] = greatest(host["avoid_until"], self.now + timedelta(seconds=p_avoid_s))
        return {"strikes": host["strikes"], "avoid_until": jsonable(host["avoid_until"])}

    def fleet_record_decision(self, p_fleet: str, p_term: int, p_decision: Json) -> Json:
        self._check_term(p_fleet, p_term, "fleet_record_decision")
        check_keys(p_decision, DECISION_KEYS, "p_decision")
        told: Json = jsonable(p_decision)
        row: Row = {name: told.get(name) or [] for name in ("actions", "blocked")}
        row |= {"fleet": p_fleet, "pool": told["pool"], "rule": told["rule"], "target": told["target"]}
        last = next((d for d in reversed(self.decisions) if (d["fleet"], d["pool"]) == (p_fleet, row["pool"])), None)
        if last is not None and all(last[name] == row[name] for name in ("rule", "target", "actions", "blocked")):
            return {"id": None}
        row |= {"id": len(self.decisions) + 1, "term": p_term, "at": self.now, "inputs": told.get("inputs") or {}}
        self.decisions.append(row)
        return {"id": row["id"]}

    def fleet_declare_pools(self, p_fleet: str, p_term: int, p_pools: list[Json] | None) -> Json:
        self._check_term(p_fleet, p_term, "fleet_declare_pools")
        told = p_pools or []
        for one in told:
            check_keys(one, ("task_type", "pool", "timeout_s", "max_attempts"), "p_pools")
        before = {name: one.get("pool") or "default" for name, one in self.task_types.items()}
        names = {one["task_type"] for one in told}
        kept = {n: t for n, t in self.task_types.items() if t["fleet"] != p_fleet or n in names}
        self.task_types = kept | {one["task_type"]: dict(one) | {"fleet": p_fleet} for one in told}
        after = {name: one.get("pool") or "default" for name, one in self.task_types.items()}
        elsewhere = {name for name in before | after if before.get(name, "default") != after.get(name, "default")}
        moved = [row for row in self.live.values() if self._follows_type(self.tasks[row["id"]], elsewhere)]
        for row in moved:
            self.respecify(row)
        return {"declared": len(told), "rerouted": len(moved)}

    @staticmethod
    def _follows_type(task: Row, names: set[str]) -> bool:
        return task["task_type"] in names and task["pool"] is None

    def fleet_declare_programs(self, p_fleet: str, p_term: int, p_pools: list[str], p_stuck_s: float) -> Json:
        """In here every task In Progress has a lease, so nothing depends on the pools."""
        self._check_term(p_fleet, p_term, "fleet_declare_programs")
        self.stuck_s[p_fleet] = p_stuck_s
        return {"declared": len(p_pools)}

    def fleet_declare_release(
        self, p_fleet: str, p_term: int, p_releases: Mapping[str, str], p_task_types: list[str]
    ) -> Json:
        self._check_term(p_fleet, p_term, "fleet_declare_release")
        said = {"term": p_term, "releases": dict(p_releases), "task_types": list(p_task_types)}
        self.declared[p_fleet] = said
        return {"declared": True}

    def fleet_metrics(self, p_fleet: str, p_since: datetime | None) -> Json:
        until = self.now - timedelta(seconds=2)
        since = greatest(p_since or until, until - timedelta(hours=1))
        assert since is not None
        names = {w["id"] for w in self.workers.values() if w["fleet"] == p_fleet}
        held = [row["claimed_at"] for name in names for row in self.running.get(name, {}).values()]
        ours = [a for name in names for a in self.tried.get(name, ())]
        began = [*held, *(a["started_at"] for a in ours)]
        ended = Counter((a["outcome"], a["failure_code"]) for a in ours if since < a["ended_at"] <= until)
        return {
            "until": until.isoformat(),
            "claimed": sum(since < at <= until for at in began),
            "ended": [{"outcome": outcome, "code": code, "n": n} for (outcome, code), n in ended.items()],
            "log_bytes_pending": 0,  # a figure for people: nothing is decided by it
            "unpublished": {"n": 0, "oldest_s": 0},
        }

    def fleet_retain(self, p_fleet: str, p_term: int, p_every_s: float, p_days: Json | None = None) -> Json:
        self._check_term(p_fleet, p_term, "fleet_retain")  # no simulation lasts the thirty days
        done_at = self.retained_at.get(p_fleet)
        if done_at is not None and done_at > self.now - timedelta(seconds=p_every_s):
            return {"deleted": None}
        self.retained_at[p_fleet] = self.now
        return {"deleted": dict.fromkeys(RETAINED, 0)}

    # --- the log ledger

    def fleet_log_begin(self, **piece: Any) -> Json:
        row, pieces = self._ledger("fleet_log_begin", piece)
        boot = f"{row['boot_id']}/{row['stream']}"
        known = next((p for p in pieces if p["seq"] == row["seq"]), None)
        if known is not None:
            if any(known[n] != row[n] for n in ("first_byte", "last_byte", "sha256", "key")):
                refuse("OR002", f"piece {row['seq']} of {boot} is another one")
            return {}
        last = pieces[-1] if pieces else None
        if last is None:
            follows = row["first_byte"] == 0 and row["seq"] in (0, 1)
        else:
            follows = row["seq"] == last["seq"] + 1 and row["first_byte"] == last["last_byte"]
        if not follows:
            refuse("OR002", f"piece {row['seq']} of {boot} does not follow the one before")
        pieces.append(row | {"begun_at": self.now, "shipped_at": None, "declared_lost": False, "reason": None})
        return {}

    def _ledger(self, function: str, piece: Json, *, of_ours: bool = True) -> tuple[Row, list[Row]]:
        self._check_term(piece["p_fleet"], piece["p_term"], function)
        if of_ours:
            self._known(piece["p_fleet"], piece["p_worker_id"])
        row = {name.removeprefix("p_"): value for name, value in piece.items() if name not in ("p_fleet", "p_term")}
        row["first_byte"], row["last_byte"] = row.pop("first"), row.pop("last")
        return row, self.log_objects.setdefault((row["worker_id"], row["boot_id"], row["stream"]), [])

    def fleet_log_shipped(self, **piece: Any) -> Json:
        row, pieces = self._ledger("fleet_log_shipped", piece, of_ours=False)
        same = ("seq", "first_byte", "last_byte", "sha256", "key")
        known = next((p for p in pieces if all(p[n] == row[n] for n in same) and not p["declared_lost"]), None)
        if known is None:
            refuse("OR002", f"piece {row['seq']} of {row['boot_id']}/{row['stream']} was not begun like this")
        assert known is not None
        known["shipped_at"] = known["shipped_at"] or self.now
        return {}

    def fleet_log_pieces(self, p_fleet: str, p_worker_id: str) -> Json:
        owner = self.workers.get(p_worker_id)
        if owner is None or owner["fleet"] != p_fleet:
            return {"pieces": []}
        found = [
            {LEDGER.get(name, name): jsonable(value) for name, value in piece.items() if name != "worker_id"}
            for (worker_id, _, _), pieces in sorted(self.log_objects.items())
            if worker_id == p_worker_id
            for piece in pieces
        ]
        return {"pieces": found}

    def fleet_log_ends(self, p_fleet: str, p_worker_id: str) -> Json:
        found = self.fleet_log_pieces(p_fleet, p_worker_id)["pieces"]
        last = {(p["boot_id"], p["stream"]): p for p in found}
        arrived = {(p["boot_id"], p["stream"]): p for p in found if p["shipped_at"] is not None}
        return {"pieces": [p for p in found if p in last.values() or p in arrived.values()]}

    def fleet_log_lost(self, **said: Any) -> Json:
        row, pieces = self._ledger("fleet_log_lost", said)
        shipped = max((p["last_byte"] for p in pieces if p["shipped_at"] is not None), default=0)
        if row["first_byte"] != shipped:
            refuse("OR002", f"{row['boot_id']}/{row['stream']} has arrived up to byte {shipped}")
        reason = row["reason"] or "no reason given"
        for piece in pieces:
            if piece["shipped_at"] is None and not piece["declared_lost"]:
                piece |= {"declared_lost": True, "reason": reason}
        end = pieces[-1] if pieces else None
        if end is not None and end["last_byte"] is None:
            return {}
        known, last = (end["last_byte"] if end else 0), row["last_byte"]
        if last is None or last > known:
            gone = {"seq": end["seq"] + 1 if end else 0, "first_byte": known, "last_byte": last}
            gone |= {"sha256": None, "key": None, "begun_at": self.now, "shipped_at": None, "declared_lost": True}
            named = {name: row[name] for name in ("worker_id", "boot_id", "stream")}
            pieces.append(named | gone | {"reason": reason})
        return {}
