"""Clusters in virtual time: the leader's job as it is, over a model of the rows, pods with a simulated Slurm, and laws.

Real: leader_jobs/clusters.py with its prober, executor, plan and commands; the store's calls; the SSH pool; and the
fleet's plan, which rents and ends the workers. Simulated: PostgreSQL, SSH, Slurm, the provider, bring-up, teardown.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import structlog

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.clusters import configuration, execute, node, probing
from orchestrator.clusters.access import Members
from orchestrator.clusters.execute import ClusterExecutor
from orchestrator.clusters.munge import munge_key
from orchestrator.clusters.probing import Prober, ProbeSettings
from orchestrator.core import plan as fleet_plan
from orchestrator.core.actions import SetActivity, Spawn, Terminate
from orchestrator.core.cluster_states import (
    LIVE_CLUSTER,
    LIVE_MEMBER,
    OPEN_NODE_TASK,
    OPEN_OPERATION,
    WANTS_NODES,
    ClusterStatus,
    ClusterSubject,
    MemberRole,
    MemberStatus,
)
from orchestrator.core.clusters.facts import KEPT
from orchestrator.core.clusters.view import ClusterPolicy
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Absence, ClusterNeed, Demand, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.core.provider import Offer, Pod, PodStatus
from orchestrator.core.states import READY, Stage, State, WaitingOn
from orchestrator.leader_jobs.clusters import Clusters
from orchestrator.ports import Completed, NotLeader, PortError, Session, Unavailable
from tests.proofs.simulator import cluster_laws
from tests.proofs.simulator.clock import EPOCH, Kernel, Killed, SimLoop, virtual
from tests.proofs.simulator.environment import Outcome
from tests.proofs.simulator.faults import Faults
from tests.proofs.simulator.slurm_pods import READS, TAKES_S, Rack, Slurm, told
from tests.proofs.simulator.sql.clusters import ClusterTables, Row

FLEET, POOL = "default", "train"
OFFER = Offer("NVIDIA H100", "EU-RO-1", "SECURE")
SECRET = b"the secret of the fleet"
LATENCY_S = {"db": (0.002, 0.02), "ssh": (0.02, 0.12)}
HUNG_S = 40.0  # at most, however long the caller would wait
FLEET_S, BEAT_S, LOOK_S = 5.0, 10.0, 1.0
WELL_S = 120.0  # a node that has been well for so long is not ended
TWO_S = 90.0  # two slurmctld on members of one cluster, at most
SWEPT_S = 60.0  # after a deadline
SPARE_S = 200.0  # with a database that is down, and another leader
RENTED = frozenset({State.SPAWNING, *READY})
FIELDS = (*Worker.__dataclass_fields__,)


class Leader:
    """A process that leads, or assumes that it does."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        self.world, self.name, self.term = world, name, world.rows.term
        self.loop = LeaderLoop(world, name)  # type: ignore[abstract]
        self.latest: dict[str, Worker] = {}
        self.acting: Counter[str] = Counter()
        rows = ClusterStore(Calls(self), FLEET)
        members = Members(SshPool(SlurmShell(self)), self.latest.get)
        prober = Prober(members, ProbeSettings(world.key_of, None, "python3"))
        executor = ClusterExecutor(rows, members, world.key_of, "ssh-ed25519 AAAA", prober.now)
        self.job = Clusters(rows, prober, executor, {POOL: world.cluster_policy})
        self.loop.call_soon(lambda: self.loop.create_task(self._run(), name="main"))

    async def _run(self) -> None:
        fleet_s = 0.0
        while True:
            try:
                if self.loop.time() >= fleet_s:
                    await self.world.carry(self.loop, "db", lambda: self.world.fleet_tick(self), 10)
                    fleet_s = self.loop.time() + FLEET_S
                await self.job.step(self.term)
            except NotLeader:
                await self.job.stop()
                if self.world.leader is not self:
                    return
                self.term = self.world.rows.term
            except PortError as error:
                self.world.say(f"{self.name}: {type(error).__name__}: {error}")
            await asyncio.sleep(LOOK_S)


class LeaderLoop(SimLoop):
    """The event loop of a leader, with a clock of its own. An exception of a task is a violation."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        super().__init__(world.kernel, name)
        self._world, self.ahead_s = world, 0.0

    def create_task(self, coro: Any, **kwargs: Any) -> Any:
        task = super().create_task(coro, **kwargs)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Any) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PortError | Killed):
            self._world.broken("crash", f"{task.get_name()} raised {type(error).__name__}: {error}")


class Calls:
    """The connection of one leader to the database. Each call is one transaction, whose answer may be lost."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def call(self, function: str, /, **args: Any) -> Any:
        world, by = self._leader.world, self._leader.name
        return await world.carry(self._leader.loop, "db", lambda: world.commit(function, args, by), 10)


class SlurmShell:
    """The SSH of one leader."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def banner(self, host: str, port: int, *, timeout_s: float) -> str:
        raise NotImplementedError

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> Session:
        world = self._leader.world

        def answer() -> SlurmSession:
            pod = world.rack.by_address.get((host, port))
            if pod is None or not world.rack.reached(pod):
                raise Unavailable(f"{host}:{port} is not there")
            return SlurmSession(self._leader, pod)

        session: SlurmSession = await world.carry(self._leader.loop, "ssh", answer, timeout_s)
        return session


class SlurmSession:
    """One connection."""

    def __init__(self, leader: Leader, pod: Slurm) -> None:
        self._leader, self._pod, self._closed = leader, pod, False

    @property
    def host_key(self) -> str:
        return "ssh-ed25519 theirs"

    @property
    def evidence(self) -> Mapping[str, str]:
        return {}

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        self._closed = True

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        world, pod, leader = self._leader.world, self._pod, self._leader
        kind, words = told(command)
        world.guard(" ".join(words), f"the command {kind}")
        takes_s = world.faults.between(*TAKES_S[kind])
        if kind not in READS and kind != "drain":
            leader.acting[pod.worker_id] += 1
            if leader.acting[pod.worker_id] > 1:
                world.broken("one", f"two calls to {pod.worker_id} at once: {kind}")

        def on_the_pod() -> Completed:
            if self._closed or not world.rack.reached(pod):
                self._closed = True
                raise Unavailable("the connection is gone")
            if pod.hangs_s > world.kernel.now:
                return Completed(None, b"", b"")
            world.say(f"{leader.name}: {kind} on {pod.worker_id} {words[1:2]}") if kind not in READS else None
            member = world.rows.members.get((words[0], pod.worker_id))
            if kind == "remove" and member is not None:
                cluster_laws.node_released(world, member, "its daemons are stopped")
            done = world.rack.ran(pod, kind, words, stdin)
            if kind in READS and world.faults.happens("answer_cut", 0.02):
                return Completed(done.exit_status, done.stdout[: len(done.stdout) // 2], b"")
            if world.faults.happens("ssh_status_unknown", 0.01):
                return Completed(None, b"", b"")
            return done

        hangs = pod.hangs_s > world.kernel.now
        try:
            lasts_s = timeout_s if hangs else takes_s
            done: Completed = await world.carry(leader.loop, "ssh", on_the_pod, timeout_s, lasts_s)
        except Unavailable:
            self._closed = True
            raise
        else:
            return done
        finally:
            if kind not in READS and kind != "drain" and not leader.loop.dead:
                leader.acting[pod.worker_id] -= 1

    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        raise NotImplementedError

    async def read(self, path: str, offset: int, limit: int, *, timeout_s: float) -> bytes | None:
        raise NotImplementedError

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        raise NotImplementedError


class ClusterWorld:
    """The simulated world of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed, self._trace = seed, trace
        self.kernel, self.faults = Kernel(seed), Faults(seed)
        self.faults.clock = lambda: self.kernel.now
        self.dice = random.Random(f"clusters {seed}")
        self.log: list[str] = []
        self._digest = hashlib.sha256()
        self.violations: list[str] = []
        self.rows = ClusterTables()
        self.rows.watch = self._changed
        self.rack = Rack(EPOCH.timestamp())
        self.rack.now = lambda: self.kernel.now
        self.db_down_s = 0.0
        self.calm_s: float | None = None
        self.tasks: dict[int, Row] = {}  # number -> {nodes, lasts_s, ends_s, on}
        self.absent: dict[str, datetime] = {}  # worker -> since when lists lack its pod
        self.two_since_s: float | None = None
        self.spare_since_s: float | None = None
        self.settled_s = 0.0
        self._secrets: list[str] = []
        self._keys: dict[str, bytes] = {}
        fast = self.dice.random() < 0.5
        self.cluster_policy = ClusterPolicy(
            configuration.conf_sha,
            install_slurm=self.dice.random() < 0.3,
            idle_s=self.dice.choice((120.0, 600.0)),
            allocate_s=600,
            cut_off_s=300 if fast else 900,
        )
        pool = Pool(
            name=POOL, offers=(OFFER,), image="image", gpu_count=1, disk_gb=50, min_memory_gb=32, min_vcpu=8,
            volume_name=None, volume_mount_path="/workspace", min_active=0, max_active=64, tasks_per_gpu=3, keep_idle=0,
            idle_timeout_s=60, overcapacity_idle_timeout_s=30, kind=PoolKind.CLUSTER,
        )  # fmt: skip
        self.policy = Policy(
            FLEET, (pool,), spawning_timeout_s=300, spawning_grace_s=60, scale_down_grace_s=20, drain_grace_s=60,
            max_failure_rate=1.0, deadman_s=self.cluster_policy.cut_off_s,
        )  # fmt: skip
        self.leader: Leader | None = None
        self.started = 0

    # --- what is kept

    def say(self, line: str) -> None:
        """Write a line to the action log."""
        text = f"{self.kernel.now:10.3f} {line}"
        self._digest.update(text.encode())
        if self._trace:
            self.log.append(text)

    def broken(self, law: str, text: str) -> None:
        """Record the violation of a law."""
        self.violations.append(f"{law}: {text} (at {self.kernel.now:.0f} s)")
        self.say(f"BROKEN {law}: {text}")

    def guard(self, text: str, where: str) -> None:
        """Law `key`: the munge key is in no row, argument or line of the log."""
        if any(secret in text for secret in self._secrets):
            self.broken("key", f"the munge key is in {where}")

    def key_of(self, cluster: str) -> bytes:
        """Return the cluster's munge key, and remember it for the law `key`."""
        if cluster in self._keys:
            return self._keys[cluster]
        key = self._keys[cluster] = munge_key(SECRET, cluster)
        shown = [key.hex(), base64.b64encode(key).decode(), key.hex()[:40], base64.b64encode(key).decode()[:40]]
        self._secrets += shown
        return key

    # --- the network

    async def carry(
        self, loop: SimLoop, link: str, act: Callable[[], Any], timeout_s: float, takes_s: float = 0.0
    ) -> Any:
        """Make one call over a link that may fail or lose its answer. `act` runs at the other end."""
        if loop.dead:
            raise Killed
        answer: asyncio.Future[Any] = loop.create_future()
        fate, limit_s = self.faults.fate(link), min(timeout_s, HUNG_S)
        there_s, back_s = (self.faults.between(*LATENCY_S[link]) for _ in range(2))
        if fate in ("hung_before", "hung_after"):
            back_s = limit_s

        def arrive() -> None:
            answered: tuple[Any, Exception | None]
            cut = Unavailable(f"{link} was cut")
            if fate in ("refused", "lost_before", "hung_before", "late") or (link == "db" and self._is_db_down()):
                self.kernel.after(back_s, lambda: deliver(None, cut))
                return
            try:
                answered = act(), None
            except Exception as broken:  # noqa: BLE001 - carried back to the caller
                answered = None, broken
            if fate in ("lost_after", "hung_after"):
                answered = None, cut
            self.kernel.after(back_s, lambda: deliver(*answered))

        def deliver(value: Any, error: Exception | None) -> None:
            if not loop.dead and not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(value)

        self.kernel.after(there_s + min(takes_s, limit_s), arrive)
        return await answer

    def _is_db_down(self) -> bool:
        return self.kernel.now < self.db_down_s

    def commit(self, function: str, args: Mapping[str, Any], by: str) -> Row:
        """One transaction."""
        said = json.dumps(args, default=str)
        self.guard(said, f"an argument of {function}")
        try:
            answer = self.rows.call(function, self.kernel.moment(), args)
        except PortError as refused:
            self.say(f"{by}: {function} refused: {refused}")
            if not isinstance(refused, NotLeader):
                self.broken("refused", f"{function} {said[:200]}: {refused}")
            raise
        if function not in ("fleet_cluster_report", "fleet_cluster_sweep"):
            self.say(f"{by}: {function} {said[:160]} -> {answer['outcome']}")
        return answer

    def operate(self, action: str, cluster: str, **args: Any) -> Row:
        """Run an action of an operator, which is always answered."""
        what = {"p_action": f"cluster.{action}", "p_subject": cluster, "p_args": args}
        said = {"p_fleet": FLEET, "p_actor": "ann", **what}
        answer = self.rows.call("fleet_act", self.kernel.moment(), said)
        self.say(f"ann: {action} {cluster} {args} -> {answer['outcome']}")
        return answer

    # --- the fleet

    @property
    def cluster(self) -> Row | None:
        """The live cluster."""
        return next((c for c in self.rows.clusters.values() if c["status"] in LIVE_CLUSTER), None)

    def fleet_tick(self, leader: Leader) -> None:
        """Run one tick: the real plan, executed at once."""
        if leader.term != self.rows.term:
            raise NotLeader("another leads")
        now = self.kernel.moment()
        live = [w for w in self.rows.workers.values() if w["status"] != "terminated"]
        workers = tuple(Worker(**{name: w[name] for name in FIELDS if name in w}) for w in live)
        leader.latest.clear()
        leader.latest |= {w.id: w for w in workers}
        for action in fleet_plan.plan(self._snapshot(now, workers), self.policy).actions:
            match action:
                case Spawn():
                    self._spawn(action)
                case Terminate():
                    self._terminate(action)
                case SetActivity():
                    self._set(action.worker_id, action.to_state, stage=Stage.PROMOTED)

    def _snapshot(self, now: datetime, workers: tuple[Worker, ...]) -> Snapshot:
        needs = [self._need(c) for c in self.rows.clusters.values() if c["status"] in LIVE_CLUSTER]
        pods = tuple(_pod(w) for w in workers if w.pod_id and w.id not in self.absent)
        absent = {w.pod_id or w.id: Absence(3, since, now, (now - since).total_seconds())
                  for w in workers if (since := self.absent.get(w.id)) is not None}  # fmt: skip
        absent |= {w.id: absent[w.pod_id] for w in workers if w.pod_id in absent}
        count = len(self.tasks)
        return Snapshot(
            now=now, window=ObservationWindow(EPOCH - timedelta(hours=1)), pods=pods, workers=workers,
            demand=(Demand(POOL, count, 0, {}, None),), expired_leases=0, offers={}, absent=absent, orphan_since={},
            in_flight=frozenset(), bringing_up=frozenset(w.id for w in workers if w.state is State.SPAWNING),
            last_spawn_at={}, paused={}, promoted_releases=frozenset({"image@"}), clusters=tuple(needs),
        )  # fmt: skip

    def _need(self, row: Row) -> ClusterNeed:
        mine = (m for m in self.rows.members.values() if m["cluster"] == row["id"])
        members = {m["worker_id"]: MemberStatus(m["status"]) for m in mine}
        heads = (m["worker_id"] for m in self.rows.live_members(row["id"]) if m["role"] == MemberRole.CONTROLLER)
        status, head = ClusterStatus(row["status"]), next(heads, None)
        return ClusterNeed(row["id"], POOL, status, row["nodes"], members, head)

    def _spawn(self, action: Spawn) -> None:
        now, name = self.kernel.moment(), action.worker_id
        pod = self.rack.add(name, installed=self.dice.random() < 0.5 or not self.cluster_policy.install_slurm)
        self.rows.workers[name] = {
            "id": name, "pool": POOL, "state": State.SPAWNING, "status": "spawning", "stage": Stage.POD_RUNNING,
            "state_since": now, "stage_since": now, "created_at": now, "deadline_at": now + timedelta(minutes=5),
            "next_attempt_at": now, "waiting_on": WaitingOn.WORKER, "waiting_for": None, "pod_id": f"pod-{name}",
            "ssh_host": pod.address[0], "ssh_port": pod.address[1], "host_key": "ssh-ed25519 theirs",
            "gpu_type": "NVIDIA H100", "gpu_count": 1, "data_center": "EU-RO-1", "price_usd_per_hour": 2.0,
            "reserved_usd": 0, "nonce": "nonce", "code_sha": None, "token_jti": None, "last_heartbeat": None,
            "drain_requested_at": None, "stop_requested_at": None, "exit_cause": None, "failure_code": None,
            "tasks_running": 0, "own_program": False, "release": "image@", "cluster": action.cluster,
            "promoted_at": None,
        }  # fmt: skip
        self.say(f"spawn {name} for {action.cluster}")
        fails = self.faults.happens("bring_up_failed", 0.05)
        self.kernel.after(self.dice.uniform(20, 120), lambda: self._brought_up(name, fails=fails))

    def _brought_up(self, name: str, *, fails: bool) -> None:
        row = self.rows.workers[name]
        if row["state"] is not State.SPAWNING:
            return
        if fails or not self.rack.pods[name].lives:
            self._end(name, "the bring-up failed")
            return
        self._set(name, State.ACTIVE, stage=Stage.PROMOTED)
        row |= {"promoted_at": self.kernel.moment(), "last_heartbeat": self.kernel.moment()}

    def _set(self, name: str, state: State, **fields: Any) -> None:
        now = self.kernel.moment()
        self.rows.workers[name] |= {"state": state, "status": str(state), "state_since": now, **fields}

    def _terminate(self, action: Terminate) -> None:
        member = self._member_of(action.worker_id)
        if member is not None and action.worker_id not in self.absent:
            self._spared(member, f"the fleet ends it: {action}")
        self._end(action.worker_id, str(action))

    def _end(self, name: str, why: str) -> None:
        self.say(f"end {name}: {why}")
        self._set(name, State.TERMINATING, stage=Stage.FLUSHING)  # nobody asks for an end that waits for jobs
        self.kernel.after(self.dice.uniform(10, 40), lambda: self._gone(name))

    def _gone(self, name: str) -> None:
        self.rack.pods[name].lives = False
        self._set(name, State.TERMINATED, stage=Stage.GONE)

    def _member_of(self, worker_id: str) -> Row | None:
        cluster = self.cluster
        return None if cluster is None else self.rows.members.get((cluster["id"], worker_id))

    # --- the laws

    def _changed(self, subject: ClusterSubject, row: Row, before: str | None) -> None:
        self.guard(json.dumps(row, default=str), f"a row of {subject}")
        match subject:
            case ClusterSubject.MEMBER:
                self._member_changed(row, before)
            case ClusterSubject.CLUSTER:
                cluster_laws.cluster_changed(self, row, before)
            case ClusterSubject.OPERATION:
                cluster_laws.operation_changed(self, row, before)

    def _member_changed(self, row: Row, before: str | None) -> None:
        cluster = self.rows.clusters[row["cluster"]]
        live = self.rows.live_members(row["cluster"])
        if len({m["index_no"] for m in live}) < len(live) or len({m["node_name"] for m in live}) < len(live):
            self.broken("size", f"an index or a name is used twice in {row['cluster']}")
        if sum(m["role"] == MemberRole.CONTROLLER for m in live) > 1:
            self.broken("two", f"{row['cluster']} has two controllers")
        if before is None and sum(m["status"] in KEPT for m in live) > cluster["nodes"]:
            self.broken("size", f"{row['worker_id']} joins beyond the {cluster['nodes']} nodes of {row['cluster']}")
        cluster_laws.controller_kept(self, row, before)
        if row["status"] == MemberStatus.REMOVED and before != MemberStatus.REMOVED:
            cluster_laws.node_released(self, {**row, "status": before}, f"it is removed: {row['reason']}")
        left = row["status"] in ("failed", "removed") and before in KEPT
        if left and cluster["status"] in LIVE_CLUSTER - {ClusterStatus.DELETING, ClusterStatus.REQUESTED}:
            kept = 1 + sum(m["status"] in KEPT for m in live)
            if kept <= cluster["nodes"]:
                self._spared({**row, "status": before}, f"it is {row['status']}: {row['reason']}")

    def _spared(self, member: Row, why: str) -> None:
        """Law `kept`: a node that works, and that its cluster wants, is not ended."""
        cluster, pod = self.rows.clusters[member["cluster"]], self.rack.pods[member["worker_id"]]
        wanted = cluster["status"] in LIVE_CLUSTER - {ClusterStatus.DELETING, ClusterStatus.REQUESTED}
        since_s = pod.well_since_s
        worker = self.rows.workers[member["worker_id"]]
        is_well = since_s is not None and self.kernel.now - since_s > WELL_S and worker["state"] in READY
        if wanted and member["status"] in KEPT and is_well and member["worker_id"] not in self.absent:
            self.broken("kept", f"{member['worker_id']}, {member['status']}, has been well for "
                                f"{self.kernel.now - (since_s or 0):.0f} s, and {why}")  # fmt: skip

    def look(self) -> None:
        """Check the laws, once a second."""
        now = self.kernel.now
        heads = []
        for row in self.rows.members.values():
            if row["status"] not in LIVE_MEMBER:
                continue
            pod = self.rack.pods[row["worker_id"]]
            since_s = now if pod.well_since_s is None else pod.well_since_s
            pod.well_since_s = since_s if self.rack.is_well(pod) else None
            if pod.slurmctld is not None and self.rack.reached(pod) and row["status"] in KEPT:
                heads.append(row["worker_id"])
        self.two_since_s = (now if self.two_since_s is None else self.two_since_s) if len(heads) > 1 else None
        if self.two_since_s is not None and now - self.two_since_s > TWO_S + (0 if self.calm_s else 600):
            self.broken("two", f"slurmctld runs on {heads} since {self.two_since_s:.0f} s")
        self._workers_wanted()
        (pool,) = self.policy.pools
        rented = sum(w["state"] in RENTED for w in self.rows.workers.values())
        if rented > pool.max_active:
            self.broken("size", f"{rented} workers are rented, and the pool may have {pool.max_active}")

    def limit(self, max_active: int) -> None:
        """Let the pool have so many workers."""
        (pool,) = self.policy.pools
        self.policy = replace(self.policy, pools=(replace(pool, max_active=max_active),))

    def _workers_wanted(self) -> None:
        """Law `size`: no worker is rented for long that is no member, and that no place waits for."""
        cluster, now = self.cluster, self.kernel.now
        spare = 0
        if cluster is not None:
            live = self.rows.live_members(cluster["id"])
            wanted = cluster["nodes"] if cluster["status"] in WANTS_NODES else 0
            room = max(0, wanted - sum(m["status"] in KEPT for m in live))
            rented = [w for w in self.rows.workers.values() if w["state"] in RENTED and w["cluster"] == cluster["id"]]
            spare = sum((cluster["id"], w["id"]) not in self.rows.members for w in rented) - room
        self.spare_since_s = (now if self.spare_since_s is None else self.spare_since_s) if spare > 0 else None
        if self.spare_since_s is not None and now - self.spare_since_s > SPARE_S:
            self.broken("size", f"{spare} workers are rented that no place waits for")

    def overdue(self) -> list[str]:
        """Return what is open beyond its deadline."""
        limit = self.kernel.moment() - timedelta(seconds=SWEPT_S)
        late = [f"operation {o['kind']} {o['id']}" for o in self.rows.operations.values()
                if o["status"] in OPEN_OPERATION and o["deadline_at"] < limit]  # fmt: skip
        return late + [f"node task {n['id']}" for n in self.rows.node_tasks.values()
                       if n["status"] in OPEN_NODE_TASK and n["deadline_at"] < limit]  # fmt: skip

    # --- one seed

    def start_leader(self) -> None:
        """Let a new process lead, with a new term and no memory."""
        self.started += 1
        self.rows.term += 1
        self.leader = Leader(self, f"leader-{self.started}")
        self.say(f"{self.leader.name} leads with term {self.rows.term}")

    def run(self, scenario: Callable[["ClusterWorld"], None]) -> Outcome:
        """Run the scenario."""
        structlog.configure(processors=[self._heard], cache_logger_on_first_use=False)
        try:
            with virtual(self.kernel), _clocks(self.kernel):
                scenario(self)
        finally:
            self.kernel.clear()
            structlog.reset_defaults()
        violation = self.violations[0] if self.violations else None
        return Outcome(
            self.seed, violation, self.kernel.now, self.kernel.steps, dict(self.faults.count), self._digest.hexdigest(),
            self.log,
        )  # fmt: skip

    def _heard(self, _: Any, method: str, event: Any) -> Any:
        self.guard(str(event), "the log")
        if self._trace:
            self.log.append(f"{self.kernel.now:10.3f}   log {str(event)[:300]}")
        raise structlog.DropEvent


def _pod(w: Worker) -> Pod:
    return Pod(
        id=w.pod_id or "", name=w.id, status=PodStatus.RUNNING, fleet_id=FLEET, worker_id=w.id, has_runtime=True,
        ssh_host=w.ssh_host, ssh_port=w.ssh_port, gpu_type=w.gpu_type, gpu_count=1, data_center="EU-RO-1",
        machine_id=None, price_usd_per_hour=2.0, created_at=w.created_at,
    )  # fmt: skip


@contextlib.contextmanager
def _clocks(kernel: Kernel) -> Iterator[None]:
    """The wall clock of the process that runs: a leader's may be wrong."""

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            ahead_s = getattr(asyncio._get_running_loop(), "ahead_s", 0.0)
            return (kernel.moment() + timedelta(seconds=ahead_s)).astimezone(tz or UTC)

    modules: tuple[Any, ...] = (node, probing, execute)
    before = [module.datetime for module in modules]
    for module in modules:
        module.datetime = Moment
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.datetime = value
