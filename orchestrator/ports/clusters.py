"""The rows of clusters, as the leader and operators read and write them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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


class ClusterRows(Protocol):
    """The clusters of one fleet. Every `term` is checked by the database (NotLeader).

    A move returns False if the row is no longer in one of the states that the caller names; then nothing was changed.
    BadArgument: a transition or a field that the database refuses.
    """

    async def report(self, cluster: str | None = None) -> ClusterReport:
        """One cluster in any state, or all live ones; of all at once, with shorter histories and without costs."""
        ...

    async def clusters(self, limit: int = 100) -> Mapping[str, Any]:
        """{now, clusters}: the rows, live ones first, also of ended clusters; `members` counts them by state."""
        ...

    async def move(
        self,
        term: int,
        cluster: str,
        from_statuses: Sequence[ClusterStatus],
        status: ClusterStatus,
        reason: str,
        **fields: Any,
    ) -> bool:
        """Fields: nodes, conf_sha, deadline_s, waiting_for, smoke_at, smoke_evidence, failure_code.

        A deadline and what a cluster waits for end with its state, unless the move has new ones.
        """
        ...

    async def wait(self, term: int, cluster: str, **fields: Any) -> bool:
        """Set the same fields without a change of the state. False: the cluster has ended."""
        ...

    async def join(self, term: int, cluster: str, worker_id: str, role: MemberRole, **fields: Any) -> int | None:
        """Add a pending member; its index, or None if it cannot join (any more).

        Fields: index_no, node_name (both have defaults), and those of `move_member` without role.
        """
        ...

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
        """Status None: it stays. Fields: role, ssh_host, ssh_port, fabric_addr, hostname, adapter_detail."""
        ...

    async def operate(
        self, term: int, cluster: str, worker_id: str | None, kind: OperationKind, *, deadline_s: float
    ) -> int | None:
        """Record an operation, or find the open one; its id. None: the cluster has ended or lacks the worker."""
        ...

    async def move_operation(
        self,
        term: int,
        operation_id: int,
        from_statuses: Sequence[OperationStatus],
        status: OperationStatus,
        *,
        error: str | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> bool: ...

    async def node_task(
        self,
        term: int,
        cluster: str,
        worker_id: str,
        *,
        operation_id: int | None,
        kind: NodeTaskKind,
        payload: Mapping[str, Any],
        via: NodeTaskVia,
        deadline_s: float,
    ) -> int | None:
        """Queue a node task, or find the same open one; its id. None: the cluster or the worker has ended."""
        ...

    async def move_node_task(
        self,
        term: int,
        node_task_id: int,
        from_statuses: Sequence[NodeTaskStatus],
        status: NodeTaskStatus,
        *,
        error: str | None = None,
    ) -> bool: ...

    async def take_node_task(self, term: int, node_task_id: int) -> bool:
        """Take an open node task from its agent, to do it over SSH. Return whether it was still open."""
        ...

    async def sweep(self, term: int) -> Mapping[str, int]:
        """Expire overdue operations and node tasks: {operations, node_tasks}."""
        ...

    async def create(
        self,
        cluster: str,
        pool: str,
        *,
        nodes: int,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        actor: str,
    ) -> Mapping[str, Any]:
        """{outcome: created, now, cluster}. Without bounds, the size is fixed. BadArgument says what is wrong."""
        ...

    async def scale(
        self,
        cluster: str,
        *,
        nodes: int | None = None,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        actor: str,
    ) -> Mapping[str, Any]:
        """{outcome: scaled, already or not_found, cluster}. BadArgument: the size, or the cluster is ending."""
        ...

    async def delete(self, cluster: str, *, reason: str | None = None, actor: str) -> Mapping[str, Any]:
        """{outcome: requested, already or not_found, status}."""
        ...

    async def drain(self, cluster: str, worker: str, *, actor: str) -> Mapping[str, Any]:
        """{outcome: accepted, already or not_found, operations}; by the worker's id or the node's name."""
        ...

    async def reconcile(self, cluster: str, worker: str | None = None, *, actor: str) -> Mapping[str, Any]:
        """{outcome: accepted, already, no_members or not_found, operations}: one for each member, or for this one."""
        ...

    async def bootstrap_ssh(self, cluster: str, worker: str | None = None, *, actor: str) -> Mapping[str, Any]:
        """The same, for the managed SSH key."""
        ...
