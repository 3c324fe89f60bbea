"""A model of the tables and their triggers in the migrations: the effects of each change.

Rows are dicts of Python values; `jsonable` makes of them what to_jsonb would. A function checks all that it may refuse
before it writes anything: there is no rolling back.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator.adapters.functions import refusal
from orchestrator.core.states import TRANSITIONS

Row = dict[str, Any]
DATABASE = "11111111-2222-4333-8444-555555555555"  # this one's identity
KINDS = {"spawning": "booting", "active": "busy", "idle": "idle", "terminating": "draining"}
IDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
PLAIN = frozenset({str, int, float, bool, type(None)})
GIVES_BACK = ("worker_sick", "gpu_fault", "host_fault")
LEGAL = {(str(a), str(b)) for a, b in TRANSITIONS}


def refuse(code: str, what: str, why: str = "", fix: str = "") -> None:
    """Raise what the transport would raise for this SQLSTATE."""
    raise refusal(code, what, why or None, fix or None)


def greatest(*values: datetime | None) -> datetime | None:
    """SQL's greatest: nulls do not count."""
    return max((v for v in values if v is not None), default=None)


def least(*values: datetime | None) -> datetime | None:
    """SQL's least."""
    return min((v for v in values if v is not None), default=None)


def jsonable(value: Any) -> Any:
    """What to_jsonb makes of a value; always a copy."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return {key: one if type(one) in PLAIN else jsonable(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return [jsonable(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: jsonable(one) for key, one in value.items()}
    return value


def check_id(value: Any, what: str) -> None:
    """internal_check_id."""
    if not isinstance(value, str) or not IDS.fullmatch(value):
        refuse("OR007", f"{what} is not a valid id")


def wanted(worker: Row) -> str:
    """internal_wanted."""
    if worker["stop_requested_at"] is not None:
        return "stop"
    if worker["status"] == "terminating" and worker["stage"] in ("flushing", "deleting", "gone"):
        return "stop"
    return "drain" if worker["status"] == "terminating" or worker["drain_requested_at"] is not None else "run"


def check_keys(value: Any, allowed: Iterable[str], what: str) -> None:
    """internal_check_keys."""
    if not isinstance(value, Mapping):
        refuse("OR007", f"{what} must be a JSON object")
    unknown = sorted(set(value) - set(allowed))
    if unknown:
        refuse("OR007", f"{what} has an unknown key '{unknown[0]}'")


class Tables:
    """All rows of one database, and its clock in the present call."""

    def __init__(self) -> None:
        self.now = datetime(2000, 1, 1, tzinfo=UTC)
        self.tasks: dict[str, Row] = {}  # as they are shown, also if their end is not published yet
        self.live: dict[str, Row] = {}  # of each open task
        self.running: dict[str, dict[str, Row]] = {}  # worker -> its rows of `live`
        self.launches: dict[str, int] = {}  # worker -> the highest claim number of its launch that was answered
        self.may: dict[str, bool] = {}  # worker -> whether it may claim, as its launch says
        self.edges: dict[str, list[str]] = {}  # task -> those that name it in depends_on
        self.publications: dict[str, tuple[int, datetime]] = {}  # task -> its number, and since when it waits
        self.attempts: dict[str, list[Row]] = {}  # task -> its attempts that have ended, in their order
        self.tried: dict[str, list[Row]] = {}  # worker -> the same
        self.workers: dict[str, Row] = {}
        self.worker_events: list[Row] = []
        self.worker_attempts: dict[int, Row] = {}
        self.attempts_of: dict[str, list[Row]] = {}  # worker -> its rows of worker_attempts
        self.costs: list[Row] = []
        self.leases: dict[str, Row] = {}
        self.retained_at: dict[str, datetime] = {}  # fleet -> when retention was last done
        self.decisions: list[Row] = []
        self.offers: dict[tuple[str, str], Row] = {}
        self.hosts: dict[tuple[str, str], Row] = {}
        self.log_objects: dict[tuple[str, str, str], list[Row]] = {}
        self.settings: dict[tuple[str, str], Row] = {}
        self.statistics: dict[tuple[str, str], Row] = {}  # (fleet, pool) -> what the learned rule knows
        self.releases: dict[tuple[str, str], datetime] = {}
        self.task_types: dict[str, Row] = {}
        self.declared: dict[str, Row] = {}  # fleet -> what its leader says that workers would run now
        self.stuck_s: dict[str, float] = {}  # fleet -> after how long its tasks are stuck
        self.notified: dict[tuple[str, str], None] = {}  # of the present transaction, each once
        self.watch: Callable[[str, Row | None, Row], None] = lambda *_: None  # (table, old, new) of every change

    def notify(self, channel: str, payload: str) -> None:
        """pg_notify."""
        self.notified[channel, payload] = None

    # --- workers

    def give_attempts_back(self, worker: Row) -> None:
        """internal_worker_sick; see fitness.py."""
        raise NotImplementedError

    def release_is_here(self, worker: Row) -> None:
        """What becomes due with the first ready worker of a release; see live.py."""
        raise NotImplementedError

    def insert_worker(self, row: Row, reason: str, actor: str, term: int | None) -> None:
        """An intent."""
        row |= {"state_since": self.now, "stage_since": self.now, "state_reason": reason}
        self.workers[row["id"]] = row
        self.keep_launch(row)
        self._worker_changed(None, row, reason, actor, term)

    def update_worker(
        self, row: Row, changes: Mapping[str, Any], reason: str = "", actor: str = "", term: int | None = None
    ) -> Row:
        """Change a row, with all that its triggers do; in place."""
        old = dict(row)
        row |= changes
        if "status" in changes and row["status"] != old["status"]:
            if (old["status"], row["status"]) not in LEGAL:
                row.clear()
                row |= old
                refuse("OR007", f"{old['id']} cannot go from {old['status']} to {changes['status']}")
            self._end_billing(old, row)
            row |= {"state_since": self.now, "state_reason": reason}
            if row["status"] == "terminated":
                row |= {"terminated_at": self.now, "token_jti": None}
            elif row["status"] == "terminating":
                row["ending_since"] = self.now
        if row["stage"] != old["stage"]:
            row["stage_since"] = self.now
        if row["nonce"] != old["nonce"]:
            row["last_heartbeat"] = None
            self.launches.pop(row["id"], None)
        if old["status"] == "spawning" and row["status"] != "spawning":
            self._bringup_ended(row)
        if row["exit_cause"] in GIVES_BACK and row["exit_cause"] != old["exit_cause"]:
            self.give_attempts_back(row)
        watched = ("status", "stage", "drain_requested_at", "stop_requested_at", "ssh_host", "ssh_port")
        if any(old[name] != row[name] for name in watched):
            self._worker_changed(old, row, reason, actor, term)
        self.keep_launch(row)
        self.watch("workers", old, row)
        return row

    def keep_launch(self, row: Row) -> None:
        """Whether it may claim, by its row and the time."""
        until = (row["held_back"] or {}).get("until")
        fit = row["held_back"] is None or (until is not None and datetime.fromisoformat(until) <= self.now)
        self.may[row["id"]] = wanted(row) == "run" and row["status"] in ("active", "idle") and fit

    def _bringup_ended(self, row: Row) -> None:
        row["bringup_ended_at"] = self.now
        if row["status"] == "active":
            row["promoted_at"] = self.now
            if row["release"] is not None:
                key = (row["fleet"], row["release"])
                known = self.releases.get(key)
                if known is None or known < self.now - timedelta(minutes=1):
                    self.releases[key] = self.now
                if not self.is_here(row["fleet"], row["pool"], row["release"], but=row):
                    self.release_is_here(row)

    def is_here(self, fleet: str, pool: str, release: str, but: Row | None = None) -> bool:
        """internal_is_here; `but` is a row that is just being changed."""
        wanted = (fleet, pool, release, None)
        named = ("fleet", "pool", "release", "drain_requested_at")
        ready = (w for w in self.workers.values() if w["status"] in ("active", "idle") and w is not but)
        return any(tuple(w[name] for name in named) == wanted for w in ready)

    def _end_billing(self, old: Row, new: Row) -> None:
        if new["billing_since"] is None or new["status"] not in ("terminating", "terminated"):
            return
        done = [a for a in self.attempts_of.get(new["id"], ()) if a["outcome"] == "ok"]
        proven = greatest(*(a["ended_at"] for a in done if a["stage"] != "deleting"))
        deletes = (a for a in done if a["stage"] == "deleting" and (a["evidence"] or {}).get("known") is True)
        deleted = greatest(*(a["ended_at"] for a in deletes))
        if new["failure_code"] == "POD_MISSING" and new["billing_until"] is None:
            claimed = old["state_since"] if old["status"] in ("active", "idle") else None
            said = new["metadata"].get("listed_at")
            listed = datetime.fromisoformat(said) if said else None
            new["billing_until"] = greatest(new["billing_since"], new["last_heartbeat"], proven, claimed, listed)
        if new["status"] == "terminated":
            new["billing_until"] = least(new["billing_until"], deleted)

    def _worker_changed(self, old: Row | None, new: Row, reason: str, actor: str, term: int | None) -> None:
        if old is not None and old["status"] != new["status"] and new["billing_since"] is not None:
            self._book(old, new)
        before = old or {"status": None, "stage": None, "ssh_host": None, "ssh_port": None}
        where = ("ssh_host", "ssh_port")
        moved = before["ssh_host"] is not None and any(before[name] != new[name] for name in where)
        if moved or before["status"] != new["status"] or before["stage"] != new["stage"]:
            address = ":".join(str(new[name]) for name in where if new[name] is not None) if moved else None
            self._event(before, new, reason or "changed by hand", actor, term, address)
        self.notify("orchestrator_fleet", new["id"])

    def _event(
        self, old: Mapping[str, Any], new: Row, reason: str, actor: str, term: int | None, address: str | None
    ) -> None:
        detail = {name: new[name] for name in ("exit_cause", "failure_code", "pod_id", "waiting_for")}
        detail |= {"ssh": address}
        self.add_event(
            new, old["status"], old["stage"], reason, actor, term, {k: v for k, v in detail.items() if v is not None}
        )

    def add_event(
        self, row: Row, from_state: Any, from_stage: Any, reason: str, actor: str, term: int | None, detail: Row
    ) -> None:
        """A row of worker_events."""
        event = {
            "id": len(self.worker_events) + 1,
            "worker_id": row["id"],
            "fleet": row["fleet"],
            "from_state": from_state,
            "to_state": row["status"],
            "from_stage": from_stage,
            "to_stage": row["stage"],
            "reason": reason,
            "term": term,
            "actor": actor,
            "at": self.now,
            "detail": detail,
        }
        self.worker_events.append(event)
        self.watch("worker_events", None, event)

    def _book(self, old: Row, new: Row) -> None:
        began = greatest(old["state_since"], new["billing_since"])
        assert began is not None
        ended, until = new["state_since"], new["billing_until"]
        if not began < ended or (until is not None and began >= until):
            return
        price = new["price_usd_per_hour"]
        rate = new["reserved_usd_per_hour"] if price is None else price
        usd = rate * (ended - began).total_seconds() / 3600
        if until is not None and ended > until:
            usd, ended = usd * (until - began) / (ended - began), until
        self.costs.append(
            {
                "worker_id": old["id"],
                "fleet": old["fleet"],
                "kind": KINDS[old["status"]],
                "from_at": began,
                "to_at": ended,
                "usd": usd,
            }
        )
