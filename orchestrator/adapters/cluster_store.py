"""The rows of clusters (migrations/functions/cluster*.sql)."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.adapters.cluster_rows import report_of
from orchestrator.adapters.rows import OPERATOR, storable
from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import ClusterReport
from orchestrator.observability.redaction import redact
from orchestrator.ports import ApiCalls

Row = Mapping[str, Any]


class ClusterStore:
    """The port ClusterRows over the SQL functions."""

    def __init__(self, db: ApiCalls, fleet: str) -> None:
        self._db, self._fleet = db, fleet

    async def _call(self, function: str, /, **args: Any) -> Row:
        return dict(await self._db.call(function, p_fleet=self._fleet, **args))

    async def _lead(self, function: str, term: int, /, **args: Any) -> Row:
        # Errors, evidence and details quote the output of pods.
        shown = {name: storable(redact(value)) if name in _QUOTED else value for name, value in args.items()}
        return await self._call(function, p_term=term, **shown)

    async def _act(self, actor: str, action: str, cluster: str, **args: Any) -> Row:
        """Do an action and note it in the audit log, in one transaction."""
        given = {name: value for name, value in args.items() if value is not None}
        named = {"p_actor": actor, "p_action": f"cluster.{action}", "p_subject": cluster, "p_args": given}
        return await self._call("fleet_act", **named)

    async def report(self, cluster: str | None = None) -> ClusterReport:
        """Return one cluster in any state, or all live ones; of all at once, with shorter histories, without costs."""
        return report_of(await self._call("fleet_cluster_report", p_cluster=cluster))

    async def clusters(self, limit: int = 100) -> Row:
        """Return {now, clusters}: rows of live and ended clusters; `members` counts them by state."""
        return await self._call("fleet_clusters", p_limit=limit)

    async def move(
        self,
        term: int,
        cluster: str,
        from_statuses: Sequence[ClusterStatus],
        status: ClusterStatus,
        reason: str,
        **fields: Any,
    ) -> bool:
        """Move a cluster to a state. Return whether it was in one of `from_statuses`."""
        said = {"p_status": status, "p_reason": reason, "p_fields": fields}
        return _ok(
            await self._lead("fleet_cluster_move", term, p_cluster=cluster, p_from=_words(from_statuses), **said)
        )

    async def wait(self, term: int, cluster: str, **fields: Any) -> bool:
        """Set fields of a live cluster. Return False if it has ended."""
        return _ok(await self._lead("fleet_cluster_wait", term, p_cluster=cluster, p_fields=fields))

    async def join(self, term: int, cluster: str, worker_id: str, role: MemberRole, **fields: Any) -> int | None:
        """Add a pending member. Return its index, or None if it cannot join."""
        who = {"p_cluster": cluster, "p_worker_id": worker_id, "p_role": role}
        answer = await self._lead("fleet_cluster_join", term, **who, p_fields=fields)
        return int(answer["index_no"]) if _ok(answer) else None

    async def move_member(
        self,
        term: int,
        cluster: str,
        worker_id: str,
        from_statuses: Sequence[MemberStatus],
        status: MemberStatus | None,
        reason: str,
        **fields: Any,
    ) -> bool:
        """Move a member to a state (None: it stays). Return whether it was in one of `from_statuses`."""
        who = {"p_cluster": cluster, "p_worker_id": worker_id, "p_from": _words(from_statuses)}
        said = {"p_status": status, "p_reason": reason, "p_fields": fields}
        return _ok(await self._lead("fleet_cluster_member_move", term, **who, **said))

    async def operate(
        self, term: int, cluster: str, worker_id: str | None, kind: OperationKind, *, deadline_s: float
    ) -> int | None:
        """Record an operation, or find the open one. Return its id; None: the cluster cannot have it."""
        args = {"p_cluster": cluster, "p_worker_id": worker_id, "p_kind": kind, "p_deadline_s": deadline_s}
        return _id(await self._lead("fleet_cluster_operate", term, **args))

    async def move_operation(
        self,
        term: int,
        operation_id: int,
        from_statuses: Sequence[OperationStatus],
        status: OperationStatus,
        *,
        error: str | None = None,
        evidence: Row | None = None,
    ) -> bool:
        """Move an operation to a state. Return whether it was in one of `from_statuses`."""
        args = {"p_id": operation_id, "p_from": _words(from_statuses), "p_status": status}
        return _ok(await self._lead("fleet_cluster_operation_move", term, **args, p_error=error, p_evidence=evidence))

    async def node_task(
        self,
        term: int,
        cluster: str,
        worker_id: str,
        *,
        operation_id: int | None,
        kind: NodeTaskKind,
        payload: Row,
        via: NodeTaskVia,
        deadline_s: float,
    ) -> int | None:
        """Queue a node task, or find the same open one. Return its id; None: the cluster or the worker has ended."""
        who = {"p_cluster": cluster, "p_worker_id": worker_id, "p_operation_id": operation_id}
        what = {"p_kind": kind, "p_payload": dict(payload), "p_via": via, "p_deadline_s": deadline_s}
        return _id(await self._lead("fleet_node_task", term, **who, **what))

    async def move_node_task(
        self,
        term: int,
        node_task_id: int,
        from_statuses: Sequence[NodeTaskStatus],
        status: NodeTaskStatus,
        *,
        error: str | None = None,
    ) -> bool:
        """Move a node task to a state. Return whether it was in one of `from_statuses`."""
        args = {"p_id": node_task_id, "p_from": _words(from_statuses), "p_status": status, "p_error": error}
        return _ok(await self._lead("fleet_node_task_move", term, **args))

    async def take_node_task(self, term: int, node_task_id: int) -> bool:
        """Take an open node task from its agent, to do it over SSH. Return whether it was still open."""
        return _ok(await self._lead("fleet_node_task_take", term, p_id=node_task_id))

    async def sweep(self, term: int) -> Mapping[str, int]:
        """Expire overdue operations and node tasks. Return how many: {operations, node_tasks}."""
        return await self._lead("fleet_cluster_sweep", term)

    async def create(
        self,
        cluster: str,
        pool: str,
        *,
        nodes: int,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        actor: str = OPERATOR,
    ) -> Row:
        """Request a cluster: {outcome: created, now, cluster}. BadArgument says why there can be none."""
        size = {"nodes": nodes, "min_nodes": min_nodes, "max_nodes": max_nodes}
        return await self._act(actor, "create", cluster, pool=pool, **size)

    async def scale(
        self,
        cluster: str,
        *,
        nodes: int | None = None,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        actor: str = OPERATOR,
    ) -> Row:
        """Set the size: {outcome: scaled, already or not_found, cluster}."""
        return await self._act(actor, "scale", cluster, nodes=nodes, min_nodes=min_nodes, max_nodes=max_nodes)

    async def delete(self, cluster: str, *, reason: str | None = None, actor: str = OPERATOR) -> Row:
        """Request the end: {outcome: requested, already or not_found, status}."""
        return await self._act(actor, "delete", cluster, reason=reason)

    async def drain(self, cluster: str, worker: str, *, actor: str = OPERATOR) -> Row:
        """Request that a member ends its jobs and leaves: {outcome, operations}."""
        return await self._act(actor, "drain", cluster, worker=worker)

    async def reconcile(self, cluster: str, worker: str | None = None, *, actor: str = OPERATOR) -> Row:
        """Request that each member, or this one, is configured again: {outcome, operations}."""
        return await self._act(actor, "reconcile", cluster, worker=worker)

    async def bootstrap_ssh(self, cluster: str, worker: str | None = None, *, actor: str = OPERATOR) -> Row:
        """Request that each member, or this one, gets the managed SSH key again: {outcome, operations}."""
        return await self._act(actor, "bootstrap_ssh", cluster, worker=worker)


_QUOTED = frozenset({"p_error", "p_evidence", "p_fields", "p_reason"})


def _words(statuses: Sequence[ClusterStatus | MemberStatus | OperationStatus | NodeTaskStatus]) -> list[str]:
    return [status.value for status in statuses]


def _ok(answer: Row) -> bool:
    return bool(answer["outcome"] == "ok")


def _id(answer: Row) -> int | None:
    return None if answer["id"] is None else int(answer["id"])
