"""Carries out one action of a cluster's plan: rows in the database, and calls to a member over SSH.

Each action is a compare-and-set or can be repeated, so an action of an outdated plan has no effect.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from orchestrator.clusters import node
from orchestrator.clusters.access import Members
from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.actions import ClusterAction
from orchestrator.core.clusters.addresses import NodeName
from orchestrator.core.clusters.operations import is_heard
from orchestrator.core.clusters.rows import ClusterRow, MemberRow
from orchestrator.core.clusters.view import Configuration, Node
from orchestrator.ports import PortError
from orchestrator.ports.clusters import ClusterRows

ADD_S = 1_800.0  # until a new member is ready
KEY_S = 300.0  # for a managed key: two heartbeats of an idle agent, and a retry

ROWS_ONLY = (
    act.Join | act.MoveMember | act.UpdateMember | act.RefuseOperation | act.Allocate | act.MoveCluster | act.Scale
    | act.Remark | act.RecordConfiguration | act.Dissolve | act.Fail
)  # fmt: skip
Calls = (
    act.Configure | act.Reconfigure | act.StartController | act.StartNode | act.Smoke | act.DrainNode | act.RemoveNode
    | act.ReconcileAuthorizedKey | act.TakeOverKey
)  # fmt: skip


class ClusterExecutor:
    """Executes the actions of one leader."""

    def __init__(
        self,
        rows: ClusterRows,
        members: Members,
        key_of: Callable[[str], bytes],
        managed_key: str | None,
        now: Callable[[], datetime],
    ) -> None:
        """`key_of`: cluster id -> its munge key. `managed_key`: "type base64" of the fleet's own SSH key.

        `now` returns the database's time.
        """
        self._rows, self._members, self._key_of, self._managed_key = rows, members, key_of, managed_key
        self._now = now

    async def write(self, term: int, row: ClusterRow, action: ClusterAction) -> None:
        """Execute an action that changes rows only. Raises PortError."""
        match action:
            case act.Join():
                fields = {"index_no": action.index, "node_name": action.node_name.text}
                if await self._rows.join(term, row.id, action.worker_id, action.role, **fields) is not None:
                    await self._rows.operate(term, row.id, action.worker_id, OperationKind.ADD, deadline_s=ADD_S)
            case act.MoveMember():
                await self._move(term, row, action.worker_id, action.from_status, action.to_status, action)
            case act.UpdateMember():
                await self._move(term, row, action.worker_id, action.status, None, action)
            case act.RefuseOperation():
                waiting = [OperationStatus.ACCEPTED, OperationStatus.DISPATCHED]
                await self._rows.move_operation(
                    term, action.operation_id, waiting, OperationStatus.FAILED, error=action.why
                )
            case _:
                await self._write_cluster(term, row, action)

    async def _move(
        self,
        term: int,
        row: ClusterRow,
        worker_id: str,
        before: MemberStatus,
        after: MemberStatus | None,
        action: act.MoveMember | act.UpdateMember,
    ) -> None:
        await self._rows.move_member(term, row.id, worker_id, [before], after, action.why, **action.fields)

    async def _write_cluster(self, term: int, row: ClusterRow, action: ClusterAction) -> None:
        rows = self._rows
        match action:
            case act.Allocate():
                fields = {"nodes": action.nodes, "deadline_s": action.deadline_s, "waiting_for": "its nodes"}
                await rows.move(term, row.id, [row.status], ClusterStatus.ALLOCATING, action.why, **fields)
            case act.MoveCluster():
                await rows.move(term, row.id, [action.from_status], action.to_status, action.why, **action.fields)
            case act.Fail():
                code = {"failure_code": action.code}
                await rows.move(term, row.id, [action.from_status], ClusterStatus.FAILED, action.why, **code)
            case act.Dissolve():
                await rows.move(term, row.id, [ClusterStatus.DELETING], ClusterStatus.DELETED, action.why)
            case act.Scale():
                await rows.wait(term, row.id, nodes=action.nodes)
            case act.Remark():
                await rows.wait(term, row.id, waiting_for=action.waiting_for, deadline_s=action.deadline_s)
            case act.RecordConfiguration():
                await rows.wait(term, row.id, conf_sha=action.conf_sha)
            case _:
                raise AssertionError(f"{action} is no action on rows")

    async def call(self, term: int, row: ClusterRow, action: Calls) -> bool:
        """Execute an action that calls a member. Return False if it waits in Slurm, and is to be called again.

        Raises PortError (the result is unknown) or NodeFailed.
        """
        cluster, name = row.id, action.worker_id
        match action:
            case act.Configure() | act.Reconfigure():
                await self._configure(cluster, action)
            case act.StartController():
                async with self._members.session(name) as session:
                    await node.start_controller(session, cluster)
            case act.StartNode():
                async with self._members.session(name) as session:
                    await node.start_node(session, cluster, _node(action.configuration, name).name)
            case act.Smoke():
                return await self._smoke(term, row, action)
            case act.DrainNode():
                member = _member(row, name)
                async with self._members.session(action.controller_id) as session:
                    await node.drain(session, cluster, NodeName(member.node_name), action.why)
                ready, draining = [MemberStatus.READY], MemberStatus.DRAINING
                await self._rows.move_member(term, cluster, name, ready, draining, action.why)
            case act.RemoveNode():
                async with self._members.session(name) as session:
                    await node.remove(session, cluster)
                leaving, removed = [MemberStatus.DRAINING], MemberStatus.REMOVED
                await self._rows.move_member(term, cluster, name, leaving, removed, action.why)
            case act.ReconcileAuthorizedKey():
                await self._reconcile_key(term, row, action)
            case act.TakeOverKey():
                if await self._rows.take_node_task(term, action.node_task_id):
                    await self._key_over_ssh(term, row, name, action.node_task_id)
            case _:
                assert_never(action)
        return True

    async def _configure(self, cluster: str, action: act.Configure | act.Reconfigure) -> None:
        one = _node(action.configuration, action.worker_id)
        write = node.configure if isinstance(action, act.Configure) else node.reconfigure
        async with self._members.session(action.worker_id) as session:
            if isinstance(action, act.Configure) and action.install:
                await node.install(session, cluster)
            await write(session, action.configuration, one, self._key_of(cluster))

    async def _smoke(self, term: int, row: ClusterRow, action: act.Smoke) -> bool:
        clock = asyncio.get_running_loop().time
        async with self._members.session(action.worker_id) as session:
            done = await node.smoke(session, action.configuration, action.nodes, clock=clock)
        if done.error is not None:
            raise node.NodeFailed("SMOKE_FAILED", done.error)
        if done.waits is not None:
            why = f"the smoke job, which waits in Slurm's queue: {done.waits}"
            await self._rows.wait(term, row.id, waiting_for=why)
            return False
        evidence = {"controller": action.worker_id, "nodes": list(done.nodes), "seconds": done.seconds}
        await self._rows.wait(term, row.id, smoke_at=self._now().isoformat(), smoke_evidence=evidence)
        return True

    async def _reconcile_key(self, term: int, row: ClusterRow, action: act.ReconcileAuthorizedKey) -> None:
        """Put the managed key on a pod: by its agent if the agent is heard, which works without SSH, or over SSH."""
        if self._managed_key is None:
            raise node.NodeFailed("NO_MANAGED_KEY", "this orchestrator has no SSH key")
        member = next((one for one in row.members if one.worker_id == action.worker_id), None)
        heard = is_heard(member.worker if member else None, self._now())
        via = NodeTaskVia.AGENT if heard else NodeTaskVia.SSH
        task_id = await self._rows.node_task(
            term, row.id, action.worker_id,
            operation_id=action.operation_id, kind=NodeTaskKind.AUTHORIZED_KEY, payload={"key": self._managed_key},
            via=via, deadline_s=KEY_S,
        )  # fmt: skip
        if task_id is None or via is NodeTaskVia.AGENT:
            return
        await self._rows.move_node_task(term, task_id, [NodeTaskStatus.QUEUED], NodeTaskStatus.DISPATCHED)
        await self._key_over_ssh(term, row, action.worker_id, task_id)

    async def _key_over_ssh(self, term: int, row: ClusterRow, worker_id: str, task_id: int) -> None:
        """Write the managed line of a node task that this leader has taken. Raises PortError or NodeFailed."""
        if self._managed_key is None:
            raise node.NodeFailed("NO_MANAGED_KEY", "this orchestrator has no SSH key")
        dispatched = [NodeTaskStatus.DISPATCHED]
        try:
            async with self._members.session(worker_id) as session:
                await node.set_authorized_key(session, row.id, self._managed_key)
        except (PortError, node.NodeFailed) as error:
            await self._rows.move_node_task(term, task_id, dispatched, NodeTaskStatus.FAILED, error=str(error))
            raise
        await self._rows.move_node_task(term, task_id, dispatched, NodeTaskStatus.COMPLETED)


def _node(configuration: Configuration, worker_id: str) -> Node:
    return next(one for one in configuration.nodes if one.worker_id == worker_id)


def _member(row: ClusterRow, worker_id: str) -> MemberRow:
    return next(one for one in row.members if one.worker_id == worker_id)
