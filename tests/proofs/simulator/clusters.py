"""The life of a cluster in one seed: up to 50 members, many faults, then none, and then its end.

The laws, by the word that a violation begins with:

    settles   after the last fault, the cluster runs with all its nodes, waits without nodes, or has failed, in time
    reason    a failed cluster says why
    smoke     a cluster runs only after a smoke job from its present controller
    told      an operation that succeeded was done, and one that failed says why
    jobs      no node is taken from a running job before the bound of its drain, or of its cluster's delete
    kept      a node that works and that its cluster wants is not ended, neither by the cluster nor by the fleet; the
              controller of a cluster that goes on is not drained
    two       a cluster has one controller, and one slurmctld on its members
    size      no member joins beyond the wanted nodes; no index or name is used twice
    one       one call at a time to a member
    waits     no operation and no node task is open beyond its deadline
    key       the munge key is in no row, argument, command or line of the log
    refused   the leader asks the database for nothing that it refuses
    crash     no task of the leader's job raises what it should not
"""

from datetime import timedelta
from typing import Any

from orchestrator.core.cluster_states import LIVE_MEMBER, OPEN_OPERATION, ClusterStatus
from orchestrator.core.states import READY, State
from tests.proofs.simulator.cluster_world import BEAT_S, LOOK_S, ClusterWorld
from tests.proofs.simulator.slurm_pods import Slurm
from tests.proofs.simulator.sql.clusters import Row

FIFTY = 5  # every fifth seed has 50 members
SLACK_S = 900.0
TOO_MANY = 3  # clusters of a seed


def bound_s(world: ClusterWorld) -> float:
    """How long a cluster may take to settle: one loss, one allocation, one deployment, one job, and the pauses."""
    policy = world.cluster_policy
    return policy.allocate_s + policy.deploy_s + policy.reconcile_s + policy.cut_off_s + policy.idle_s + SLACK_S


def scenario(world: ClusterWorld) -> None:
    """Run the scenario of one seed."""
    dice, kernel = world.dice, world.kernel
    size = 50 if world.seed % FIFTY == 0 else dice.randint(1, 9)
    fixed = dice.random() < 0.6
    world.limit(dice.choice((size, 64) if fixed else (max(1, size - 1), size, 64)))
    begun = ClusterScenario(world, size, fixed=fixed)
    world.start_leader()
    begun.create()
    kernel.after(LOOK_S, begun.every_second)
    kernel.after(0.5, begun.beat)
    quiet_s = dice.choice((0.0, 400.0))  # at first
    world.faults.active = quiet_s == 0
    kernel.run(lambda: bool(world.violations), quiet_s)
    world.faults.active = True
    begun.next_fault()
    kernel.run(lambda: bool(world.violations), quiet_s + dice.uniform(600, 2_400))
    begun.calm()
    if world.violations:
        return
    limit_s = kernel.now + bound_s(world)
    if not kernel.run(lambda: bool(world.violations) or begun.is_settled(), limit_s) and not world.violations:
        world.broken("settles", f"after {bound_s(world):.0f} s of calm: {begun.state()}")
    world.settled_s = kernel.now - (world.calm_s or 0)
    _end(world, begun)


def _end(world: ClusterWorld, begun: "ClusterScenario") -> None:
    """Delete the cluster, and wait until nothing is left."""
    if world.violations:
        return
    if world.cluster is not None:
        world.operate("delete", world.cluster["id"])
    limit_s = world.kernel.now + world.cluster_policy.delete_s + SLACK_S
    if not world.kernel.run(lambda: bool(world.violations) or begun.is_gone(), limit_s) and not world.violations:
        world.broken("settles", f"deleted, and not gone: {begun.state()}")


class ClusterScenario:
    """The events in the life of a cluster."""

    def __init__(self, world: ClusterWorld, size: int, *, fixed: bool) -> None:
        self.world, self.size, self.fixed = world, size, fixed
        self._created = self._numbers = 0
        self._every_s = world.dice.choice((15.0, 40.0, 90.0))

    def create(self) -> None:
        """Ask for a cluster."""
        self._created += 1
        low = self.size if self.fixed else 0
        args = {"nodes": self.size, "min_nodes": low, "max_nodes": self.size, "pool": "train"}
        self.world.operate("create", f"train{self._created}", **args)

    def beat(self) -> None:
        """The agents' heartbeats."""
        world = self.world
        for name, row in world.rows.workers.items():
            pod = world.rack.pods[name]
            if row["state"] in READY and pod.lives and world.kernel.now >= pod.dumb_s and name not in world.absent:
                row["last_heartbeat"] = world.kernel.moment()
        world.kernel.after(BEAT_S, self.beat)

    def every_second(self) -> None:
        """Check the laws, run jobs, and create another cluster after one that failed."""
        world = self.world
        world.look()
        self._jobs()
        if world.cluster is None and world.calm_s is None and self._created < TOO_MANY:
            self.create()
        world.kernel.after(LOOK_S, self.every_second)

    # --- tasks

    def _jobs(self) -> None:
        world, now = self.world, self.world.kernel.now
        for number, task in list(world.tasks.items()):
            if task["on"] and task["ends_s"] <= now:
                if all(pod.lives and pod.slurmd for pod in task["on"]):
                    del world.tasks[number]
                task["on"] = []
        cluster = world.cluster
        if cluster is None:
            return
        wanted = [task["nodes"] for task in world.tasks.values()]
        demand = {"tasks": len(wanted), "nodes": sum(wanted), "largest": max(wanted, default=0)}
        world.rows.demand = {cluster["id"]: demand}
        waiting = [task for task in world.tasks.values() if not task["on"]]
        if cluster["status"] == ClusterStatus.RUNNING and waiting and len(waiting) == len(world.tasks):
            self._start(cluster, waiting[0])

    def _start(self, cluster: Row, task: Row) -> None:
        world = self.world
        live = world.rows.live_members(cluster["id"])
        first = next((m for m in live if m["role"] == "controller"), None)
        head = None if first is None else world.rack.pods[first["worker_id"]]
        if head is None or head.slurmctld is None or not head.lives:
            return
        idle = [world.rack.by_name[name] for name, state in world.rack.states(head).items() if state == "idle"]
        if len(idle) >= task["nodes"]:
            task["on"], task["ends_s"] = idle[: task["nodes"]], world.kernel.now + task["lasts_s"]
            for pod in task["on"]:
                pod.busy_until_s = task["ends_s"]

    # --- faults

    def next_fault(self) -> None:
        """Inject one fault, and schedule the next."""
        world = self.world
        if world.calm_s is not None:
            return
        name = world.dice.choice(FAULTS)
        if world.faults.often(name) and world.dice.random() < world.faults.often(name) / 3:
            world.say(f"fault {name}")
            world.faults.note(name)
            getattr(self, f"_{name}")()
        world.kernel.after(world.dice.expovariate(1 / self._every_s), self.next_fault)

    def _victim(self) -> Slurm | None:
        cluster = self.world.cluster
        live = [] if cluster is None else self.world.rows.live_members(cluster["id"])
        heads = [m for m in live if m["role"] == "controller"]
        chosen = heads if heads and self.world.dice.random() < 0.3 else live
        return self.world.rack.pods[self.world.dice.choice(chosen)["worker_id"]] if chosen else None

    def _some_s(self) -> tuple[float, float]:
        now = self.world.kernel.now
        return now, now + self.world.dice.choice((5.0, 40.0, 100.0, 400.0, 1_500.0))

    def _pod_dies(self) -> None:  # RunPod still lists it
        if pod := self._victim():
            pod.lives = False

    def _pod_vanishes(self) -> None:
        if pod := self._victim():
            pod.lives = False
            self.world.absent[pod.worker_id] = self.world.kernel.moment() - timedelta(seconds=30)

    def _ssh_lost(self) -> None:
        if pod := self._victim():
            pod.lone_s = self._some_s()

    def _fabric_cut(self) -> None:
        if pod := self._victim():
            pod.cut_s = self._some_s()

    def _all_ssh_lost(self) -> None:
        begins, ends = self.world.kernel.now, self.world.kernel.now + self.world.dice.uniform(5, 200)
        for pod in self.world.rack.pods.values():
            pod.lone_s = (begins, ends)

    def _scripts_hang(self) -> None:
        if pod := self._victim():
            pod.hangs_s = self._some_s()[1]

    def _slurmd_dies(self) -> None:
        if pod := self._victim():
            pod.slurmd = None

    def _slurmctld_dies(self) -> None:
        if pod := self._victim():
            pod.slurmctld = None

    def _munged_dies(self) -> None:
        if pod := self._victim():
            pod.munged = False

    def _pod_restarts(self) -> None:
        if pod := self._victim():
            pod.slurmctld = pod.slurmd = pod.text = pod.key = None
            pod.munged = False
            pod.drained.clear()

    def _key_changes(self) -> None:
        if (pod := self._victim()) and pod.key:
            pod.key = "0" * 64

    def _agent_silent(self) -> None:
        if pod := self._victim():
            pod.dumb_s = self._some_s()[1]

    def _pod_clock_wrong(self) -> None:
        if pod := self._victim():
            pod.ahead_s = self.world.dice.uniform(-600, 600)

    def _leader_clock_steps(self) -> None:
        if self.world.leader is not None:
            self.world.leader.loop.ahead_s += self.world.dice.choice((-7_200, -60, -5, 5, 60, 7_200))

    def _leader_killed(self) -> None:
        world = self.world
        if world.leader is not None:
            world.leader.loop.kill()
            world.leader = None
            world.kernel.after(world.dice.uniform(1, 20), world.start_leader)

    def _leader_frozen(self) -> None:
        world = self.world
        if world.leader is not None:
            world.leader.loop.freeze(world.dice.uniform(5, 100))
            world.leader = None
            world.kernel.after(world.dice.uniform(1, 20), world.start_leader)

    def _leads_again(self) -> None:
        if self.world.leader is not None:
            self.world.rows.term += 1

    def _database_down(self) -> None:
        self.world.db_down_s = self.world.kernel.now + self.world.dice.choice((3.0, 30.0, 120.0))

    def _task(self) -> None:
        self._numbers += 1
        nodes, lasts_s = self.world.dice.randint(1, self.size), self.world.dice.uniform(20, 300)
        self.world.tasks[self._numbers] = {"nodes": nodes, "lasts_s": lasts_s, "on": [], "ends_s": 0.0}

    def _asked(self) -> None:
        """An operator's request."""
        world, cluster, pod = self.world, self.world.cluster, self._victim()
        if cluster is None or pod is None or cluster["status"] == ClusterStatus.DELETING:
            return
        action = world.dice.choice(("drain", "reconcile", "bootstrap_ssh", "reconcile_all", "bootstrap_all"))
        args: dict[str, Any] = {} if action.endswith("_all") else {"worker": pod.worker_id}
        name = {"reconcile_all": "reconcile", "bootstrap_all": "bootstrap_ssh"}.get(action, action)
        world.operate(name, cluster["id"], **args)

    def _scaled(self) -> None:
        world, cluster = self.world, self.world.cluster
        if cluster is not None and cluster["status"] != ClusterStatus.DELETING:
            nodes = world.dice.randint(max(1, self.size - 3), self.size)
            more = {} if self.fixed else {"max_nodes": self.size}
            world.operate("scale", cluster["id"], nodes=nodes, **more)

    # --- the end

    def calm(self) -> None:
        """Stop all faults, and inject no others."""
        world = self.world
        world.calm_s = world.kernel.now
        world.faults.active = False
        world.db_down_s = 0.0
        for pod in world.rack.pods.values():
            pod.lone_s = pod.cut_s = (0.0, 0.0)
            pod.hangs_s = pod.dumb_s = pod.ahead_s = 0.0
        world.say("calm")

    def is_settled(self) -> bool:
        """Whether the cluster is in a state in which it may stay."""
        world, cluster = self.world, self.world.cluster
        if world.overdue() and world.leader is not None and world.kernel.now - (world.calm_s or 0) > 200:
            world.broken("waits", f"{world.overdue()[:3]}")
        if cluster is None:
            return self.is_gone()
        live = world.rows.live_members(cluster["id"])
        asked = [o for o in world.rows.operations.values() if o["status"] in OPEN_OPERATION]
        if any(o["kind"] != "bootstrap_ssh" or o["deadline_at"] <= world.kernel.moment() for o in asked):
            return False
        if cluster["status"] == ClusterStatus.REQUESTED:
            return not live and not world.tasks
        ready = [m for m in live if m["status"] == "ready"]
        sound = all(world.rack.is_well(world.rack.pods[m["worker_id"]]) for m in ready)
        heads = [world.rack.pods[m["worker_id"]] for m in ready if m["role"] == "controller"]
        sound = sound and any(head.slurmctld is not None for head in heads)
        (pool,) = world.policy.pools
        most = min(cluster["nodes"], pool.max_active)
        is_whole = most == cluster["nodes"]  # otherwise the pool allows no more
        status = ClusterStatus.RUNNING if is_whole else ClusterStatus.DEGRADED
        return cluster["status"] == status and len(ready) == len(live) == most and sound

    def is_gone(self) -> bool:
        """Whether nothing is left."""
        world = self.world
        ended = all(w["state"] is State.TERMINATED for w in world.rows.workers.values())
        live = any(m["status"] in LIVE_MEMBER for m in world.rows.members.values())
        opened = any(o["status"] in OPEN_OPERATION for o in world.rows.operations.values())
        return world.cluster is None and ended and not live and not opened

    def state(self) -> str:
        """Return the state that a violation shows."""
        world, cluster = self.world, self.world.cluster
        if cluster is None:
            return f"no cluster; {sum(w['state'] is not State.TERMINATED for w in world.rows.workers.values())} workers"
        live = world.rows.live_members(cluster["id"])
        members = [f"{m['worker_id'][-8:]} {m['role'][:1]} {m['status']} ({m['reason']})" for m in live]
        asked = [f"{o['kind']} {o['status']}" for o in world.rows.operations.values() if o["status"] in OPEN_OPERATION]
        return (f"{cluster['id']} {cluster['status']} {cluster['nodes']} nodes, {len(world.tasks)} tasks, "
                f"{cluster['waiting_for']}: {members[:6]} {asked[:5]}")  # fmt: skip


FAULTS = tuple(name.removeprefix("_") for name in (
    "_pod_dies", "_pod_vanishes", "_ssh_lost", "_fabric_cut", "_all_ssh_lost", "_scripts_hang", "_slurmd_dies",
    "_slurmctld_dies", "_munged_dies", "_pod_restarts", "_key_changes", "_agent_silent", "_pod_clock_wrong",
    "_leader_clock_steps", "_leader_killed", "_leader_frozen", "_leads_again", "_database_down", "_task", "_task",
    "_asked", "_asked", "_scaled",
))  # fmt: skip
