"""A small world for the plan of a cluster: pods with Slurm, a fleet that follows core/plan.py, and a leader.

The leader's probes may be slow, may fail and may say nothing; its actions take time. The world checks every action
against the promises that hold always, and carries it out.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core import plan as fleet_plan
from orchestrator.core.actions import Flush, SetActivity, Spawn, Terminate
from orchestrator.core.cluster_states import (
    CLUSTER_TRANSITIONS,
    LIVE_CLUSTER,
    LIVE_MEMBER,
    MEMBER_TRANSITIONS,
    ClusterStatus,
    MemberRole,
    MemberStatus,
    OperationStatus,
)
from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.plan import backoff_s, plan
from orchestrator.core.clusters.readings import Reading, observe
from orchestrator.core.clusters.rows import ClusterDemand, ClusterRow, MemberOperation, MemberRow, MemberWorker
from orchestrator.core.clusters.view import ClusterPolicy, ClusterView
from orchestrator.core.model import ClusterNeed, Worker
from orchestrator.core.policy import PoolKind
from orchestrator.core.provider import Offer
from orchestrator.core.states import READY, Stage, State
from tests.unit.core import build
from tests.unit.core.clusters.pods import Leader, Pod, node_states, reading_of, sha_of

H100 = Offer("NVIDIA H100", "EU-RO-1", "SECURE")
NONE = ClusterDemand(0, 0, 0)
ACTIONS_ON_A_POD = (
    act.Configure, act.Reconfigure, act.StartController, act.StartNode, act.Smoke, act.DrainNode, act.RemoveNode,
    act.ReconcileAuthorizedKey,
)  # fmt: skip


def tasks(*nodes: int) -> ClusterDemand:
    return ClusterDemand(len(nodes), sum(nodes), max(nodes, default=0))


def member_worker(w: Worker) -> MemberWorker:
    return MemberWorker(
        w.id, w.state, w.stage, 1, w.gpu_type, w.data_center, w.price_usd_per_hour, w.created_at, w.state_since,
        w.last_heartbeat, None, w.pod_id, w.ssh_host, w.ssh_port, w.nonce, None, w.cluster,
    )  # fmt: skip


class World:
    """One cluster, its pool, and all that happens to them."""

    def __init__(self, nodes: int, *, min_nodes: int = 0, max_nodes: int = 64, seed: int = 1, **policy: Any) -> None:
        self.now, self.random = build.NOW, random.Random(seed)
        self.row = ClusterRow(
            "train", "train", ClusterStatus.REQUESTED, nodes, min_nodes, max_nodes, None, None, None, None, None,
            self.now, self.now, None, None, None, NONE, (), (), (), (), (), 0,
        )  # fmt: skip
        self.members: dict[str, MemberRow] = {}
        self.workers: dict[str, Worker] = {}
        self.ready_at: dict[str, datetime] = {}
        self.gone_at: dict[str, datetime] = {}
        self.pods: dict[str, Pod] = {}
        self.leader = Leader()
        self.capacity = 1_000
        self.statuses = [self.row.status]
        self.told: list[act.ClusterAction] = []
        self.lost: set[str] = set()  # that something really happened to
        self.installed = True
        self.reads: Callable[[Reading], Reading] = lambda reading: reading
        self.slow_s = 0.0
        self.steps = 0
        self._states: dict[str, str] = {}
        self._states_at: datetime | None = None
        self.policy = replace(ClusterPolicy(sha_of), **policy)
        pool = {"name": "train", "kind": PoolKind.CLUSTER, "offers": (H100,), "max_active": 80, "idle_timeout_s": 5}
        self.fleet = build.policy(pool=pool, max_failure_rate=1.0)

    def run(self, seconds: float, step_s: float = 5) -> None:
        for _ in range(int(seconds / step_s)):
            self.now += timedelta(seconds=step_s)
            self.steps += 1
            if self.steps % 3 == 0:
                self._fleet()
            self._probe()
            self._finish()
            self._plan()

    def until(self, status: ClusterStatus, within_s: float = 3_600) -> None:
        left_s = within_s
        while self.row.status is not status:
            assert left_s > 0, f"still {self.row.status} ({self.row.reason}): {self.counts()}"
            self.run(5)
            left_s -= 5

    def counts(self) -> dict[str, int]:
        found = [str(m.status) for m in self.members.values()]
        return {status: found.count(status) for status in sorted(set(found))}

    def of(self, status: MemberStatus) -> list[str]:
        return sorted(name for name, m in self.members.items() if m.status is status)

    @property
    def controller(self) -> str:
        live = [m for m in self.members.values() if m.status in LIVE_MEMBER]
        return next(m.worker_id for m in live if m.role is MemberRole.CONTROLLER)

    @property
    def live_workers(self) -> list[str]:
        return sorted(name for name, w in self.workers.items() if w.state is not State.TERMINATED)

    def change(self, **changes: Any) -> None:
        self.row = replace(self.row, **changes)

    def kill(self, worker_id: str) -> None:
        self.pods[worker_id].alive = False
        self.lost.add(worker_id)

    def terminate(self, worker_id: str, *, at_once: bool = False) -> None:
        """An operator asks for the end of a worker."""
        stop_at = self.now if at_once else None
        worker = self.workers[worker_id]
        self.workers[worker_id] = replace(worker, drain_requested_at=self.now, stop_requested_at=stop_at)

    def another_leader(self) -> None:
        self.leader = Leader()

    def ask(self, operation: MemberOperation) -> None:
        self.change(operations=(operation, *self.row.operations))

    def _fleet(self) -> None:
        for name, worker in list(self.workers.items()):
            if worker.state is State.SPAWNING and self.ready_at[name] <= self.now:
                self.workers[name] = replace(worker, state=State.ACTIVE, stage=Stage.PROMOTED, state_since=self.now)
            if worker.state is State.TERMINATING and self.gone_at.get(name, build.NEVER) <= self.now:
                self.workers[name] = replace(worker, state=State.TERMINATED)
                self.pods[name].alive = False
            if self.pods[name].alive:
                self.workers[name] = replace(self.workers[name], last_heartbeat=self.now)
        live = [w for w in self.workers.values() if w.state is not State.TERMINATED]
        statuses = {n: m.status for n, m in self.members.items()}
        controller = next(iter(self._controllers()), None)
        need = ClusterNeed("train", "train", self.row.status, self.row.nodes, statuses, controller)
        seen = build.snapshot(*live, clusters=(need,) if self.row.status in LIVE_CLUSTER else ())
        pods = tuple(build.pod_of(w, ssh_host=w.ssh_host, ssh_port=w.ssh_port) for w in live)
        seen = replace(seen, now=self.now, pods=pods)
        for action in fleet_plan.plan(seen, self.fleet).actions:
            if isinstance(action, Spawn) and len(live) < self.capacity:
                self._spawn(action)
                live.append(self.workers[action.worker_id])
            if isinstance(action, Terminate):
                self._terminate(action)
            if isinstance(action, Flush):
                self._flush(action)
            if isinstance(action, SetActivity):  # agents of members that claim nothing
                name = action.worker_id
                self.workers[name] = replace(self.workers[name], state=action.to_state, state_since=self.now)

    def _spawn(self, action: Spawn) -> None:
        assert action.cluster == "train"
        name, number = action.worker_id, len(self.workers) + 1
        self.workers[name] = build.spawning(
            name, pool="train", cluster="train", created_at=self.now, state_since=self.now, stage_since=self.now,
            deadline_at=self.now + timedelta(hours=1), ssh_host="203.0.113.9", ssh_port=10_000 + number,
        )  # fmt: skip
        self.ready_at[name] = self.now + timedelta(seconds=self.random.uniform(30, 120))
        self.pods[name] = Pod(f"10.0.{number // 250}.{number % 250 + 1}", installed=self.installed)

    def _terminate(self, action: Terminate) -> None:
        name = action.worker_id
        member = self.members.get(name)
        kept = member is not None and member.status in LIVE_MEMBER and self.row.status in LIVE_CLUSTER
        worker = self.workers[name]
        assert not kept or worker.drain_requested_at is not None, f"the fleet ends a live member: {action}"
        self.workers[name] = replace(
            worker, state=State.TERMINATING, stage=Stage.DRAINING, state_since=self.now, exit_cause=action.cause
        )

    def _flush(self, action: Flush) -> None:
        """The worker no longer drains: nothing runs on it any more, or its bound is over."""
        name = action.worker_id
        self.workers[name] = replace(self.workers[name], stage=Stage.FLUSHING)
        self.lost.add(name)  # a member that is live now is cut off
        self.gone_at.setdefault(name, self.now + timedelta(seconds=20))

    def _probe(self) -> None:
        leader = self.leader
        for name, member in self.members.items():
            if member.status not in LIVE_MEMBER or name in leader.running:
                leader.probes.pop(name, None)
                continue
            due = leader.probes.setdefault(name, self.now + timedelta(seconds=self.random.uniform(0, self.slow_s)))
            if due <= self.now:
                del leader.probes[name]
                leader.observed[name] = observe(leader.observed.get(name), self.reads(self._reading(name)), self.now)

    def _reading(self, name: str) -> Reading:
        heads = self._controllers()
        up = next((n for n in heads if self.pods[n].alive and self.pods[n].slurmctld), None)
        if up is not None and self._states_at != self.now:  # once for all members
            self._states, self._states_at = node_states(self.pods[up], self.pods), self.now
        is_cut = up not in (None, name) and (self.pods[up].cut or self.pods[name].cut)
        return reading_of(self.pods[name], None if up is None or is_cut else self._states, is_controller=name in heads)

    def _controllers(self) -> list[str]:
        live = (m for m in self.members.values() if m.status in LIVE_MEMBER)
        return [m.worker_id for m in live if m.role is MemberRole.CONTROLLER]

    def view(self) -> ClusterView:
        members = tuple(replace(m, worker=self._worker(m.worker_id)) for m in self.members.values())
        unjoined = [w for w in self.workers.values() if w.id not in self.members and w.state is not State.TERMINATED]
        row = replace(self.row, members=members, unjoined=tuple(self._worker(w.id) for w in unjoined))
        return ClusterView(
            row, self.now, dict(self.leader.observed), frozenset(self.leader.running), dict(self.leader.retry_at)
        )

    def _worker(self, name: str) -> MemberWorker:
        return member_worker(self.workers[name])

    def _plan(self) -> None:
        view = self.view()
        made = plan(view, self.policy)
        assert self.random.random() > 0.05 or made == plan(view, self.policy)
        named = [one.worker_id for one in made if isinstance(one, act.OnMember)]
        assert len(named) == len(set(named)), "two actions on one member"
        assert not set(named) & view.in_flight, "an action on a member with a running one"
        assert sum(isinstance(one, act.OnCluster) for one in made) <= 1
        self.told += made
        for action in made:
            self._take(action)

    def _take(self, action: act.ClusterAction) -> None:
        match action:
            case act.Allocate():
                self._status(ClusterStatus.ALLOCATING, action.why, nodes=action.nodes, deadline_s=action.deadline_s)
            case act.MoveCluster():
                assert self.row.status is action.from_status
                self._status(action.to_status, action.why, **action.fields)
            case act.Fail():
                self._status(ClusterStatus.FAILED, action.why)
                self.change(failure_code=str(action.code))
            case act.Dissolve():
                assert not self.live_workers
                self._status(ClusterStatus.DELETED, action.why)
            case act.Scale():
                self.change(nodes=action.nodes, deadline_at=None, waiting_for=None)
            case act.Remark():
                self._remark(waiting_for=action.waiting_for, deadline_s=action.deadline_s)
            case act.RecordConfiguration():
                self.change(conf_sha=action.conf_sha)
            case act.Join():
                assert self.workers[action.worker_id].state in READY
                taken = {m.index_no for m in self.members.values() if m.status in LIVE_MEMBER}
                assert action.index not in taken
                assert len(taken) < 64
                self.members[action.worker_id] = MemberRow(
                    "train", action.worker_id, action.role, MemberStatus.PENDING, action.node_name.text, action.index,
                    None, None, None, None, {}, self.now, self.now, None, None,
                )  # fmt: skip
            case act.MoveMember():
                assert self.members[action.worker_id].status is action.from_status
                self._member(action.worker_id, action.to_status, action.why, **action.fields)
            case act.UpdateMember():
                assert self.members[action.worker_id].status is action.status
                self.members[action.worker_id] = replace(self.members[action.worker_id], **action.fields)
                assert len(self._controllers()) <= 1
            case act.RefuseOperation():
                self._operation(action.operation_id, OperationStatus.FAILED, action.why)
            case _:
                self._start(action)

    def _start(self, action: Any) -> None:
        assert isinstance(action, ACTIONS_ON_A_POD)
        key = "train" if isinstance(action, act.Smoke) else action.worker_id
        self.leader.observed.pop(action.worker_id, None)
        self.leader.running[key] = (action, self.now + timedelta(seconds=self.random.uniform(1, 15)))
        number = getattr(action, "operation_id", None)
        if number is not None:
            self._operation(number, OperationStatus.RUNNING, None)

    def _finish(self) -> None:
        for key, (action, at) in list(self.leader.running.items()):
            if at > self.now:
                continue
            del self.leader.running[key]
            if self._carry_out(action):
                self.leader.failures.pop(key, None)
            else:
                self.leader.failures[key] = self.leader.failures.get(key, 0) + 1
                self.leader.retry_at[key] = self.now + timedelta(seconds=backoff_s(self.leader.failures[key]))

    def _carry_out(self, action: Any) -> bool:
        name, pod = action.worker_id, self.pods[action.worker_id]
        works = pod.alive and pod.reachable
        head = next((self.pods[n] for n in self._controllers()), None)
        match action:
            case act.Configure() | act.Reconfigure() if works:
                pod.installed = pod.installed or getattr(action, "install", False)
                pod.configuration = action.configuration
            case act.StartController() if works:
                pod.slurmctld = True
            case act.StartNode() if works:
                pod.slurmd = True
            case act.DrainNode() if works and head is not None and head.alive and head.slurmctld:
                head.drained.add(self.members[name].node_name)
                if self.members[name].status is MemberStatus.READY:
                    self._member(name, MemberStatus.DRAINING, action.why)
            case act.RemoveNode() if works:
                assert not pod.busy
                if self.members[name].status is MemberStatus.DRAINING:
                    self._member(name, MemberStatus.REMOVED, action.why)
            case act.Smoke() if works and head is pod:
                idle = [s for s in node_states(pod, self.pods).values() if s == "idle"] if pod.slurmctld else []
                if len(idle) >= action.nodes:
                    self.change(smoke_at=self.now, smoke_evidence={"controller": name})
                works = len(idle) >= action.nodes
            case act.ReconcileAuthorizedKey():
                pass
            case _:
                works = False
        if getattr(action, "operation_id", None) is not None:
            self._operation(action.operation_id, OperationStatus.SUCCEEDED if works else OperationStatus.FAILED, None)
        return works

    def _status(self, status: ClusterStatus, why: str, **fields: Any) -> None:
        assert (self.row.status, status) in CLUSTER_TRANSITIONS, (self.row.status, status)
        self.statuses.append(status)
        self.change(status=status, reason=why, status_since=self.now)
        self._remark(**fields)

    def _remark(self, **fields: Any) -> None:
        if "deadline_s" in fields:
            seconds = fields.pop("deadline_s")
            fields["deadline_at"] = None if seconds is None else self.now + timedelta(seconds=seconds)
        self.change(**fields)

    def _member(self, name: str, status: MemberStatus, why: str, **fields: Any) -> None:
        before = self.members[name]
        assert (before.status, status) in MEMBER_TRANSITIONS, (before.status, status)
        if status is MemberStatus.FAILED and self.row.status in LIVE_CLUSTER:
            assert name in self.lost, f"{name} was well: {why}"
        self.members[name] = replace(before, status=status, status_since=self.now, reason=why, **fields)

    def _operation(self, number: int, status: OperationStatus, error: str | None) -> None:
        operations = tuple(
            replace(one, status=status, error=error) if one.id == number else one for one in self.row.operations
        )
        self.change(operations=operations)
