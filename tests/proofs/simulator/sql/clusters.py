"""The rows of clusters, as functions/clusters/clusters.sql, cluster_members.sql and cluster_operations.sql keep them.

A model of its own: the workers are rows that its owner keeps. tests/db/conformance/test_cluster_model.py makes the same
calls to it and to PostgreSQL. Demand, events, costs and retention are not modelled.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from orchestrator.core.cluster_states import (
    LIVE_CLUSTER,
    LIVE_MEMBER,
    OPEN_NODE_TASK,
    OPEN_OPERATION,
    TRANSITIONS,
    ClusterSubject,
)
from orchestrator.ports import BadArgument, NotLeader

Row = dict[str, Any]
WORKER_KEYS = (
    "id", "status", "stage", "gpu_count", "gpu_type", "data_center", "price_usd_per_hour", "created_at", "promoted_at",
    "last_heartbeat", "drain_requested_at", "pod_id", "ssh_host", "ssh_port", "host_key", "nonce", "token_jti",
    "release", "cluster",
)  # fmt: skip
CLUSTER_FIELDS = frozenset({"nodes", "conf_sha", "deadline_s", "waiting_for", "smoke_at", "smoke_evidence"})
MEMBER_FIELDS = frozenset({"ssh_host", "ssh_port", "fabric_addr", "hostname", "adapter_detail"})
TAKES_MEMBERS = frozenset({"allocating", "deploying", "running", "degraded"})
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
ENDED_SHOWN, HISTORY, LONG_HISTORY = 50, 20, 100
MOST = 64
STALE = {"outcome": "stale"}


class ClusterTables:
    """One fleet's clusters."""

    def __init__(self) -> None:
        self.term = 1
        self.now: datetime
        self.clusters: dict[str, Row] = {}
        self.members: dict[tuple[str, str], Row] = {}
        self.operations: dict[int, Row] = {}
        self.node_tasks: dict[int, Row] = {}
        self.workers: dict[str, Row] = {}
        self.demand: dict[str, Row] = {}  # cluster -> {tasks, nodes, largest}
        self.watch: Callable[[ClusterSubject, Row, str | None], None] = lambda *_: None
        self._ids = {"operation": count(1), "node_task": count(1)}

    def call(self, function: str, now: datetime, args: Mapping[str, Any]) -> Row:
        """One transaction of the function."""
        self.now = now
        answer: Row = getattr(self, function)(**json.loads(json.dumps(args)))
        found: Row = json.loads(json.dumps(answer, default=datetime.isoformat))
        return found

    def live_members(self, cluster: str) -> list[Row]:
        """The members that have not ended."""
        return [m for m in self.members.values() if m["cluster"] == cluster and m["status"] in LIVE_MEMBER]

    # --- the leader's functions

    def fleet_cluster_report(self, p_fleet: str, p_cluster: str | None) -> Row:
        wanted = [c for c in self.clusters.values() if p_cluster in (None, c["id"])]
        shown = [c for c in wanted if p_cluster is not None or c["status"] in LIVE_CLUSTER]
        rows = HISTORY if p_cluster is None else LONG_HISTORY
        return {"now": self.now, "clusters": [self._report(c, rows) for c in sorted(shown, key=lambda c: c["id"])]}

    def fleet_cluster_move(
        self, p_fleet: str, p_term: int, p_cluster: str, p_from: Sequence[str], p_status: str | None, p_reason: str,
        p_fields: Row | None,
    ) -> Row:  # fmt: skip
        if not p_reason or p_status is None:
            raise BadArgument("a move of a cluster needs a state and a reason")
        self._check_term(p_term)
        row = self.clusters.get(p_cluster)
        if row is None or row["status"] not in p_from:
            return STALE
        fresh = dict(row)
        if row["status"] != p_status:
            fresh |= {"deadline_at": None, "waiting_for": None}
        fresh |= {"status": str(p_status), "reason": p_reason[:500]}
        self._write(row, self._with(fresh, p_fields))
        if p_status in ("deleted", "failed"):
            self._ended(p_cluster, f"the cluster is {p_status}: {p_reason}"[:500])
        return {"outcome": "ok", "status": str(p_status)}

    def fleet_cluster_wait(self, p_fleet: str, p_term: int, p_cluster: str, p_fields: Row | None) -> Row:
        self._check_term(p_term)
        row = self.clusters.get(p_cluster)
        if row is None or row["status"] not in LIVE_CLUSTER:
            return STALE
        self._write(row, self._with(dict(row), p_fields))
        return {"outcome": "ok", "status": row["status"]}

    def fleet_cluster_join(
        self, p_fleet: str, p_term: int, p_cluster: str, p_worker_id: str, p_role: str, p_fields: Row | None
    ) -> Row:
        fields = _checked(p_fields, MEMBER_FIELDS | {"index_no", "node_name"})
        self._check_term(p_term)
        cluster, worker = self.clusters.get(p_cluster), self.workers.get(p_worker_id)
        if cluster is None or cluster["status"] not in TAKES_MEMBERS:
            return STALE
        if worker is None or worker["cluster"] != p_cluster or worker["status"] not in ("active", "idle"):
            return STALE
        live = self.live_members(p_cluster)
        taken = {m["index_no"] for m in live}
        index = fields.get("index_no")
        if index is None:
            index = next((n for n in range(MOST) if n not in taken), None)
        if index is None:
            return STALE
        name = fields.get("node_name") or p_worker_id.lower().replace("_", "-")
        second = p_role == "controller" and any(m["role"] == "controller" for m in live)
        if second or index in taken or (p_cluster, p_worker_id) in self.members:
            return STALE
        if any(m["node_name"] == name for m in live):
            return STALE
        row = {
            "cluster": p_cluster, "worker_id": p_worker_id, "role": str(p_role), "status": "pending", "node_name": name,
            "index_no": index, **{key: fields.get(key) for key in sorted(MEMBER_FIELDS)}, "created_at": self.now,
            "status_since": self.now, "reason": None,
        }  # fmt: skip
        row["adapter_detail"] = row["adapter_detail"] or {}
        self.members[p_cluster, p_worker_id] = row
        self.watch(ClusterSubject.MEMBER, row, None)
        return {"outcome": "ok", "index_no": index, "node_name": name}

    def fleet_cluster_member_move(
        self, p_fleet: str, p_term: int, p_cluster: str, p_worker_id: str, p_from: Sequence[str], p_status: str | None,
        p_reason: str, p_fields: Row | None,
    ) -> Row:  # fmt: skip
        if not p_reason:
            raise BadArgument("a move of a member needs a reason")
        fields = _checked(p_fields, MEMBER_FIELDS | {"role"})
        self._check_term(p_term)
        row = self.members.get((p_cluster, p_worker_id))
        if row is None or row["status"] not in p_from:
            return STALE
        fresh = {**row, **fields, "reason": p_reason[:500]}
        fresh["status"] = row["status"] if p_status is None else str(p_status)
        fresh["role"], fresh["adapter_detail"] = str(fresh["role"]), fresh["adapter_detail"] or {}
        self._check_move(ClusterSubject.MEMBER, row, fresh["status"])
        others = [m for m in self.live_members(p_cluster) if m is not row and m["role"] == "controller"]
        if fresh["role"] == "controller" and fresh["status"] in LIVE_MEMBER and others:
            return STALE
        self._change(ClusterSubject.MEMBER, row, fresh)
        return {"outcome": "ok", "status": row["status"]}

    def fleet_cluster_operate(
        self, p_fleet: str, p_term: int, p_cluster: str, p_worker_id: str | None, p_kind: str, p_deadline_s: float
    ) -> Row:
        self._check_term(p_term)
        if not self._may_have(p_cluster, p_worker_id):
            return {"outcome": "stale", "id": None}
        found = self._open_operation(p_cluster, p_worker_id, p_kind)
        if found is None:
            deadline = self.now + timedelta(seconds=p_deadline_s)
            found = self._operation(p_cluster, p_worker_id, p_kind, "orchestrator", deadline)
        return {"outcome": "ok", "id": found["id"]}

    def fleet_cluster_operation_move(
        self, p_fleet: str, p_term: int, p_id: int, p_from: Sequence[str], p_status: str, p_error: str | None,
        p_evidence: Row | None,
    ) -> Row:  # fmt: skip
        self._check_term(p_term)
        row = self.operations.get(p_id)
        if row is None or row["status"] not in p_from:
            return STALE
        self._check_move(ClusterSubject.OPERATION, row, p_status)
        fresh = {**row, "status": str(p_status), "error": None if p_error is None else p_error[:500]}
        fresh["evidence"] = row["evidence"] if p_evidence is None else p_evidence
        self._change(ClusterSubject.OPERATION, row, fresh)
        return {"outcome": "ok"}

    def fleet_node_task(
        self, p_fleet: str, p_term: int, p_cluster: str, p_worker_id: str, p_operation_id: int | None, p_kind: str,
        p_payload: Row | None, p_via: str, p_deadline_s: float,
    ) -> Row:  # fmt: skip
        self._check_term(p_term)
        worker = self.workers.get(p_worker_id)
        if not self._may_have(p_cluster, p_worker_id) or worker is None or worker["status"] == "terminated":
            return {"outcome": "stale", "id": None}
        said: Row = {"cluster": p_cluster, "worker_id": p_worker_id, "operation_id": p_operation_id}
        said |= {"kind": str(p_kind), "payload": p_payload or {}, "via": str(p_via)}
        for one in self.node_tasks.values():
            if one["status"] in OPEN_NODE_TASK and all(one[key] == value for key, value in said.items()):
                return {"outcome": "ok", "id": one["id"]}
        times = {"created_at": self.now, "status_since": self.now}
        row: Row = {"id": next(self._ids["node_task"]), **said, "status": "queued", "error": None, **times}
        row["deadline_at"] = self.now + timedelta(seconds=p_deadline_s)
        self.node_tasks[row["id"]] = row
        self.watch(ClusterSubject.NODE_TASK, row, None)
        return {"outcome": "ok", "id": row["id"]}

    def fleet_node_task_move(
        self, p_fleet: str, p_term: int, p_id: int, p_from: Sequence[str], p_status: str, p_error: str | None
    ) -> Row:
        self._check_term(p_term)
        row = self.node_tasks.get(p_id)
        if row is None or row["status"] not in p_from:
            return STALE
        self._check_move(ClusterSubject.NODE_TASK, row, p_status)
        error = None if p_error is None else p_error[:500]
        self._change(ClusterSubject.NODE_TASK, row, {**row, "status": str(p_status), "error": error})
        return {"outcome": "ok"}

    def fleet_node_task_take(self, p_fleet: str, p_term: int, p_id: int) -> Row:
        self._check_term(p_term)
        row = self.node_tasks.get(p_id)
        if row is None or row["via"] != "agent" or row["status"] not in OPEN_NODE_TASK:
            return STALE
        if row["status"] != "dispatched":
            self._check_move(ClusterSubject.NODE_TASK, row, "dispatched")
        self._change(ClusterSubject.NODE_TASK, row, {**row, "via": "ssh", "status": "dispatched"})
        return {"outcome": "ok"}

    def fleet_cluster_sweep(self, p_fleet: str, p_term: int) -> Row:
        self._check_term(p_term)
        late = "its deadline has passed"
        tasks = [n for n in self.node_tasks.values() if n["status"] in OPEN_NODE_TASK and n["deadline_at"] <= self.now]
        for row in tasks:
            self._change(ClusterSubject.NODE_TASK, row, {**row, "status": "expired", "error": late})
        over = [o for o in self.operations.values() if o["status"] in OPEN_OPERATION and o["deadline_at"] <= self.now]
        for row in over:
            error = late if row["error"] is None else row["error"]
            self._change(ClusterSubject.OPERATION, row, {**row, "status": "expired", "error": error})
        return {"operations": len(over), "node_tasks": len(tasks)}

    # --- operators

    def fleet_act(self, p_fleet: str, p_actor: str, p_action: str, p_subject: str, p_args: Row) -> Row:
        if p_action == "cluster.create":
            return self._create(p_subject, p_args)
        row = self.clusters.get(p_subject)
        if row is None:
            return {"outcome": "not_found"}
        if p_action == "cluster.delete":
            return self._delete(row, p_actor, p_args.get("reason"))
        if row["status"] in ("deleting", "deleted", "failed"):
            raise BadArgument(f"the cluster {p_subject} is {row['status']}")
        if p_action == "cluster.scale":
            return self._scale(row, p_args)
        return self._request(row, p_actor, p_action.removeprefix("cluster."), p_args.get("worker"))

    def _create(self, cluster: str, args: Row) -> Row:
        nodes = args["nodes"]
        low, high = args.get("min_nodes", nodes), args.get("max_nodes", nodes)
        if not NAME.fullmatch(cluster):
            raise BadArgument("the name of the cluster is not valid")
        _check_size(nodes, low, high)
        if cluster in self.clusters:
            raise BadArgument(f"there is a cluster {cluster}, which is {self.clusters[cluster]['status']}")
        if any(c["pool"] == args["pool"] and c["status"] in LIVE_CLUSTER for c in self.clusters.values()):
            raise BadArgument(f"the pool {args['pool']} has a cluster")
        nothing = ("conf_sha", "reason", "failure_code", "waiting_for", "deadline_at", "smoke_at", "smoke_evidence")
        row = {
            "id": cluster, "pool": args["pool"], "status": "requested", "nodes": nodes, "min_nodes": low,
            "max_nodes": high, **dict.fromkeys(nothing), "created_at": self.now, "status_since": self.now,
            "delete_requested_at": None,
        }  # fmt: skip
        self.clusters[cluster] = row
        self.watch(ClusterSubject.CLUSTER, row, None)
        return {"outcome": "created", "now": self.now, "cluster": row}

    def _delete(self, row: Row, actor: str, reason: str | None) -> Row:
        if row["status"] in ("deleting", "deleted", "failed"):
            return {"outcome": "already", "status": row["status"]}
        fresh = {**row, "status": "deleting", "delete_requested_at": self.now, "deadline_at": None, "waiting_for": None}
        self._write(row, {**fresh, "reason": (reason or f"{actor} requested it")[:500]})
        return {"outcome": "requested", "status": "deleting"}

    def _scale(self, row: Row, args: Row) -> Row:
        fixed = row["min_nodes"] == row["max_nodes"] and not {"min_nodes", "max_nodes"} & args.keys()
        nodes: Any = args.get("nodes", row["nodes"])
        low: Any = args.get("min_nodes", nodes if fixed else row["min_nodes"])
        high: Any = args.get("max_nodes", nodes if fixed else row["max_nodes"])
        if "nodes" not in args:
            nodes = min(max(nodes, low), high)
        _check_size(nodes, low, high)
        fresh = {**row, "nodes": nodes, "min_nodes": low, "max_nodes": high}
        if fresh == row:
            return {"outcome": "already", "cluster": row}
        if nodes > row["nodes"] and row["status"] in ("allocating", "deploying"):
            fresh |= {"deadline_at": None, "waiting_for": None}
        self._write(row, fresh)
        return {"outcome": "scaled", "cluster": row}

    def _request(self, row: Row, actor: str, kind: str, worker: str | None) -> Row:
        live = sorted(self.live_members(row["id"]), key=lambda m: m["index_no"])
        names = [m["worker_id"] for m in live if worker in (None, m["worker_id"], m["node_name"])]
        if kind not in ("drain", "reconcile", "bootstrap_ssh"):
            raise BadArgument(f"there is no action 'cluster.{kind}'")
        if kind == "drain" and worker is None:
            raise BadArgument("a drain needs a worker")
        if worker is not None and not names:
            return {"outcome": "not_found"}
        deadline = self.now + (timedelta(days=1) if kind == "drain" else timedelta(minutes=15))
        fresh = [name for name in names if self._open_operation(row["id"], name, kind) is None]
        for name in fresh:
            self._operation(row["id"], name, kind, actor, deadline)
        opened = [o for name in names if (o := self._open_operation(row["id"], name, kind)) is not None]
        outcome = "no_members" if not names else "accepted" if fresh else "already"
        return {"outcome": outcome, "operations": sorted(opened, key=lambda o: o["id"])}

    # --- what they share

    def _check_term(self, term: int) -> None:
        if term != self.term:
            raise NotLeader(f"term {term} does not lead")

    def _check_move(self, subject: ClusterSubject, row: Row, status: str) -> None:
        legal = {(str(old), str(new)) for old, new in TRANSITIONS[subject]}
        if row["status"] != str(status) and (row["status"], str(status)) not in legal:
            raise BadArgument(f"this {subject} cannot go from {row['status']} to {status}")

    def _change(self, subject: ClusterSubject, row: Row, fresh: Row) -> None:
        before = row["status"]
        if fresh["status"] != before:
            fresh["status_since"] = self.now
        row |= fresh
        self.watch(subject, row, before)

    def _write(self, row: Row, fresh: Row) -> None:
        self._check_move(ClusterSubject.CLUSTER, row, fresh["status"])
        if not fresh["min_nodes"] <= fresh["nodes"] <= fresh["max_nodes"]:
            raise BadArgument("cluster_apps_size")
        self._change(ClusterSubject.CLUSTER, row, fresh)

    def _with(self, row: Row, fields: Row | None) -> Row:
        known = _checked(fields, CLUSTER_FIELDS | {"failure_code"})
        if "deadline_s" in known:
            seconds = known.pop("deadline_s")
            row["deadline_at"] = None if seconds is None else self.now + timedelta(seconds=float(seconds))
        if "failure_code" in known and known["failure_code"] is not None:
            known["failure_code"] = str(known["failure_code"])
        return {**row, **known}

    def _may_have(self, cluster: str, worker_id: str | None) -> bool:
        row, worker = self.clusters.get(cluster), self.workers.get(worker_id or "")
        lives = row is not None and row["status"] in LIVE_CLUSTER
        return lives and (worker_id is None or (worker is not None and worker["cluster"] == cluster))

    def _open_operation(self, cluster: str, worker_id: str | None, kind: str) -> Row | None:
        key = (cluster, worker_id, kind)
        for row in self.operations.values():
            if row["status"] in OPEN_OPERATION and (row["cluster"], row["worker_id"], row["kind"]) == key:
                return row
        return None

    def _operation(self, cluster: str, worker_id: str | None, kind: str, actor: str, deadline: datetime) -> Row:
        row: Row = {
            "id": next(self._ids["operation"]), "cluster": cluster, "worker_id": worker_id, "kind": str(kind),
            "status": "accepted", "actor": actor, "error": None, "evidence": None, "created_at": self.now,
            "status_since": self.now, "deadline_at": deadline,
        }  # fmt: skip
        self.operations[row["id"]] = row
        self.watch(ClusterSubject.OPERATION, row, None)
        return row

    def _ended(self, cluster: str, reason: str) -> None:
        for row in self.live_members(cluster):
            self._change(ClusterSubject.MEMBER, row, {**row, "status": "failed", "reason": reason})
        for row in self.operations.values():
            if row["cluster"] == cluster and row["status"] in OPEN_OPERATION:
                self._change(ClusterSubject.OPERATION, row, {**row, "status": "failed", "error": reason})
        for row in self.node_tasks.values():
            if row["cluster"] == cluster and row["status"] in OPEN_NODE_TASK:
                self._change(ClusterSubject.NODE_TASK, row, {**row, "status": "failed", "error": reason})

    def _report(self, row: Row, rows: int) -> Row:
        mine = [m for m in self.members.values() if m["cluster"] == row["id"]]
        live = [m for m in mine if m["status"] in LIVE_MEMBER]
        ended = sorted((m for m in mine if m["status"] not in LIVE_MEMBER), key=lambda m: m["status_since"])
        shown = sorted([*live, *ended[-ENDED_SHOWN:]], key=lambda m: (m["created_at"], m["worker_id"]))
        joined = {m["worker_id"] for m in mine}
        unjoined = [
            w
            for w in self.workers.values()
            if w["cluster"] == row["id"] and w["status"] != "terminated" and w["id"] not in joined
        ]
        return {
            **row,
            "demand": self.demand.get(row["id"], {"tasks": 0, "nodes": 0, "largest": 0}),
            "members": [{**m, "worker": _worker(self.workers.get(m["worker_id"]))} for m in shown],
            "unjoined": [_worker(w) for w in sorted(unjoined, key=lambda w: str(w["id"]))],
            "operations": _history(self.operations, row["id"], OPEN_OPERATION, rows),
            "node_tasks": _history(self.node_tasks, row["id"], OPEN_NODE_TASK, rows),
            "events": [],
            "cost_usd": None,
        }


def _worker(row: Row | None) -> Row | None:
    return None if row is None else {key: row.get(key) for key in WORKER_KEYS}


def _history(table: Mapping[int, Row], cluster: str, opened: frozenset[Any], rows: int) -> list[Row]:
    mine = sorted((one for one in table.values() if one["cluster"] == cluster), key=lambda one: one["id"])
    chosen = {one["id"]: one for one in [one for one in mine if one["status"] in opened][:rows]}
    chosen |= {one["id"]: one for one in mine[-rows:]}
    return sorted(chosen.values(), key=lambda one: -one["id"])


def _checked(fields: Row | None, known: frozenset[str]) -> Row:
    if unknown := (fields or {}).keys() - known:
        raise BadArgument(f"p_fields has unknown keys: {sorted(unknown)}")
    return dict(fields or {})


def _check_size(nodes: Any, low: Any, high: Any) -> None:
    if low < 0 or high < 1 or high > MOST or not low <= nodes <= high:
        raise BadArgument("the size of the cluster is not valid")
