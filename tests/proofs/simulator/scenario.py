"""The events of one seed: tasks arrive, faults occur for a while, then they stop, and everything must come to rest."""

import math
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.stored import as_json
from orchestrator.core.guards import ALARM_WORKERS
from tests.proofs.simulator.environment import World
from tests.proofs.simulator.faults import BURST, CALM, HANGS_S, LASTS_S
from tests.proofs.simulator.laws import STANDS
from tests.proofs.simulator.provider import FLEET, MANGLED

LIMIT_S = 10_800.0  # of the liveness phase: a budget may stop the work for an hour, and five attempts take half of one
SETTLE_S = 5.0
QUIET_S = 200.0  # of work without a report: longer than TASK_STUCK_TIMEOUT_SEC and HEARTBEAT_TIMEOUT_SEC together
FLICKERS = 0.2  # of the seeds: in these, the database is never available for long
MOVES = 0.25  # of the seeds: in these, the provider changes the SSH address of a pod now and then, until the end
DEPLOYS = 0.25  # of the seeds: in these, another release is deployed, with tasks that only it can run
SICK = 0.35  # of the seeds: in these, every task fails on one worker, or on all, or inputs are bad, or a disk is full
SICKNESSES = (
    "tasks_fail_on_one",
    "tasks_fail_on_one",
    "tasks_fail_everywhere",
    "bad_inputs",
    "bad_inputs",
    "disk_fills",
)
BAD_RUNS = (1, 4, 6, 12, 25)  # lengths of runs of bad inputs
FOUND = 0.4  # of the others: in these, an agent reports a finding, or all agents report the same one
SILENT = 0.5  # of those without either: in these, all agents of a pool send heartbeats and claim nothing
XID_79: dict[str, Any] = {"u": 22, "code": "XID_79", "severity": "C", "evidence": "fallen off the bus"}
INODES: dict[str, Any] = {"u": 7, "code": "INODES_FULL", "severity": "H", "evidence": "no inodes"}
REPORTS: dict[str, tuple[Any, ...]] = {
    "finding_c": (XID_79,),
    "finding_h": (INODES,),
    "finding_unknown": ({"u": 99, "code": "GPU_SINGS", "severity": "M", "evidence": "la"}, XID_79 | {"severity": "Z"}),
    "finding_garbage": (None, 7, {"code": 5}, {"code": "XID_79"}, XID_79 | {"severity": ["C"]}, "XID_79"),
}
CUT_OFF = 0.3  # of those without any of these: in these, no agent reaches a gateway for a while
POLICY_CHOSEN, STATISTICS_DAMAGED = 0.2, 0.5  # of the acts of an operator
DAMAGED: tuple[Any, ...] = (
    *(None, "text", [], {"form": 1}, {"form": 1, "boot_s": "x", "gaps": [[[]]]}),
    *map(as_json, (Statistics(60.0, rate=0.01, rate_at=4e9), Statistics(60.0, run_s=1e9), Statistics(1e9, rate=1e300))),
)
AT_REGISTRATION, MOMENT_S = 0.5, 0.02  # of these; an answer is on its way for longer
OFFLINE = 0.4  # of these: in these, the orchestrators reach neither pods nor the provider meanwhile
KINDS = ("ok",) * 16 + ("fail", "fatal", "crash", "quiet", *STANDS)


def scenario(world: World) -> None:
    """Run the scenario of one seed."""
    Scenario(world).run()


class Scenario:
    """The events of one seed."""

    def __init__(self, world: World) -> None:
        self._world, self._faults, self._kernel = world, world.faults, world.kernel
        self._ids = random.Random(f"tasks of {world.seed}")
        self._flicker = random.Random(f"flicker of {world.seed}")
        self._deploys = random.Random(f"release of {world.seed}")
        self._moves = random.Random(f"addresses of {world.seed}")
        self._sick = random.Random(f"sick workers of {world.seed}")
        self._guards = random.Random(f"findings of {world.seed}")
        self._silence = random.Random(f"silent agents of {world.seed}")
        self._scaling = random.Random(f"choices of a rule of {world.seed}")
        self._path = random.Random(f"path of {world.seed}")
        self._tasks: list[str] = []
        self._over = False

    def run(self) -> None:
        """Run the safety phase, then the liveness phase."""
        world, dice = self._world, self._faults.dice
        world.start_replica(0)
        world.start_replica(1)
        world.kernel.after(1.0, self._look)
        for _ in range(dice.randint(2, 5)):
            self._kernel.after(dice.uniform(0, 300), self._submit)
        self._submit()
        if self._deploys.random() < DEPLOYS:
            self._kernel.after(self._deploys.uniform(60, 250), self._deploy)
        if self._moves.random() < MOVES:
            self._kernel.after(self._moves.uniform(20, 90), self._move_ssh)
        ends_s = dice.uniform(300, 600)
        self._kernel.after(dice.expovariate(1 / 6), self._next_fault)
        self._kernel.after(dice.uniform(5, 60), self._burst)
        self._kernel.run(lambda: bool(world.violations), ends_s)
        self._stop_faults()
        self._over = False
        done = self._kernel.run(lambda: bool(world.violations) or self._over, ends_s + LIMIT_S)
        if not world.violations:
            if done:
                self._kernel.run(lambda: bool(world.violations), self._kernel.now + SETTLE_S)
            world.laws.at_the_end()

    def _look(self) -> None:
        self._world.laws.look()
        self._over = self._is_over()
        self._kernel.after(1.0, self._look)

    def _is_over(self) -> bool:
        db = self._world.db
        return (
            all(t["status"] in ("Complete", "Failed", "Cancelled") for t in db.tasks.values())
            and all(w["status"] == "terminated" for w in db.workers.values())
            and not any(True for _ in self._world.provider.own())
            and not self._world.provider.coming
        )

    # --- work

    def _submit(self) -> None:
        dice = self._faults.dice
        tasks: list[dict[str, Any]] = []
        for index in range(dice.randint(1, 8)):
            params: dict[str, Any] = {"kind": dice.choice(KINDS), "work_s": dice.choice((2, 5, 10, 20, 45))}
            if params["kind"] == "quiet":
                params["work_s"] = QUIET_S
            task: dict[str, Any] = {
                "id": str(uuid.UUID(int=self._ids.getrandbits(128), version=4)),
                "task_type": "t",
                "params": params,
                "max_attempts": 2 if params["kind"] in ("crash", *STANDS) else dice.choice((3, 5)),
                "priority": dice.choice((0, 0, 5)),
            }
            if len(self._world.policy.pools) > 1 and self._ids.random() < 0.5:
                task["pool"] = self._world.policy.pools[1].name
            if index and dice.random() < 0.2:
                task["depends_on"] = [f"#{dice.randrange(index)}"]
            tasks.append(task)
        self._tasks += [task["id"] for task in tasks]
        self._world.commit("task_submit", {"p_tasks": tasks}, by="somebody")

    def _deploy(self) -> None:
        """Replace both replicas by another release once a worker is ready and has many tasks."""
        world = self._world
        ready = any(w["status"] in ("active", "idle") for w in world.db.workers.values())
        if world.db_down or not (ready or self._over):
            self._kernel.after(1.0, self._deploy)
            return
        self._faults.count["another_release"] += 1
        world.say("another release is deployed")
        world.policy = replace(world.policy, code_sha="c0de2", handled=("t", "u"))
        for slot, replica in enumerate(world.replicas):
            replica.loop.kill()
            self._restart(slot, self._deploys.uniform(0.5, 5))
        self._hand_in("t", 6, 45)
        self._submit_new()

    def _submit_new(self) -> None:
        if self._world.db_down or "u" not in self._world.db.declared.get(FLEET, {}).get("task_types", ()):
            self._kernel.after(1.0, self._submit_new)
            return
        self._hand_in("u", self._deploys.randint(1, 6), 10)

    def _hand_in(self, task_type: str, count: int, work_s: float, *, kind: str = "ok") -> None:
        tasks: list[dict[str, Any]] = [
            {
                "id": str(uuid.UUID(int=self._deploys.getrandbits(128), version=4)),
                "task_type": task_type,
                "params": {"kind": kind, "work_s": work_s},
                "max_attempts": self._deploys.choice((1, 5)) if task_type == "u" or kind != "ok" else 5,
                "priority": 9 if task_type == "u" else 0,
            }
            for _ in range(count)
        ]
        self._tasks += [task["id"] for task in tasks]
        self._world.commit("task_submit", {"p_tasks": tasks}, by="somebody")

    # --- what goes wrong

    def _burst(self) -> None:
        self._faults.level = BURST if self._faults.level == CALM else CALM
        low, high = (5, 25) if self._faults.level == BURST else (20, 90)
        self._kernel.after(self._faults.between(low, high), self._burst)

    def _next_fault(self) -> None:
        if not self._faults.active:
            return
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (5, self._kill),
            (5, self._freeze),
            (4, self._replace),
            (5, self._lose_database),
            (4, self._lose_provider),
            (3, self._mangle_lists),
            (4, self._lose_s3),
            (6, self._exhaust_stock),
            (1, self._no_money),
            (6, self._evict),
            (10, self._disturb_agent),
            (5, self._show_false_state),
            (4, self._operator),
        )
        dice = self._faults.dice
        weights = [weight * self._faults.often(act.__name__) for weight, act in acts]
        if any(weights):
            dice.choices([act for _, act in acts], weights)[0]()
        self._kernel.after(dice.expovariate(1 / 6), self._next_fault)

    def _note(self, name: str) -> None:
        self._faults.note(name, LASTS_S)
        self._world.say(f"fault: {name}")

    def _kill(self) -> None:
        slot = self._faults.dice.randrange(2)
        self._note("replica_killed")
        self._world.replicas[slot].loop.kill()
        self._restart(slot, self._faults.between(0.5, 25))

    def _restart(self, slot: int, after_s: float) -> None:
        def begin() -> None:
            old = self._world.replicas[slot]
            if old.loop.dead or old.ended:
                self._world.start_replica(slot)

        self._kernel.after(after_s, begin)

    def _freeze(self) -> None:
        self._note("replica_frozen")
        self._world.replicas[self._faults.dice.randrange(2)].loop.freeze(self._faults.one_of((3.0, 12.0, 20.0, 60.0)))

    def _replace(self) -> None:
        slot = self._faults.dice.randrange(2)
        old = self._world.replicas[slot]
        self._note("replica_terminated")
        old.terminate()

        def sigkill() -> None:
            old.loop.kill()
            self._restart(slot, 0.5)

        self._kernel.after(self._faults.one_of((0.0, 0.3, 5.0, 15.0)), sigkill)

    def _lose_database(self) -> None:
        if not self._world.db_down:
            self._note("database_down")
            self._cut_off_database(self._faults.one_of((1.0, 5.0, 20.0, 50.0)))

    def _cut_off_database(self, for_s: float) -> None:
        self._world.db_down = True
        self._world.outages.append((self._kernel.now, math.inf))
        self._kernel.after(for_s, self._find_database)

    def _find_database(self) -> None:
        """Make the database available again. Listeners on their own connection learn it at once."""
        if self._world.db_down:
            self._world.outages[-1] = (self._world.outages[-1][0], self._kernel.now)
        self._world.db_down = False
        for replica in self._world.replicas if self._faults.active else ():
            replica.hears("connected", "")

    def _lose_provider(self) -> None:
        self._note("provider_down")
        self._world.provider.down = True
        self._kernel.after(self._faults.between(3, 40), lambda: setattr(self._world.provider, "down", False))

    def _mangle_lists(self) -> None:
        self._note("lists_mangled")
        self._world.provider.mangled = self._faults.one_of(MANGLED)
        self._kernel.after(self._faults.between(5, 40), lambda: setattr(self._world.provider, "mangled", None))

    def _lose_s3(self) -> None:
        self._note("s3_down")
        self._world.s3_down = True
        self._kernel.after(self._faults.between(3, 60), lambda: setattr(self._world, "s3_down", False))

    def _exhaust_stock(self) -> None:
        offer = self._faults.one_of(self._world.policy.pools[0].offers)
        self._note("market_dry")
        self._world.provider.dry[offer.key] = self._kernel.now + self._faults.between(20, 200)

    def _no_money(self) -> None:
        self._note("account_empty")
        self._world.provider.broke = True
        for pod in list(self._world.provider.own()):
            self._world.provider.vanish(pod, "the account is at $0")
        self._kernel.after(self._faults.between(10, 120), lambda: setattr(self._world.provider, "broke", False))

    def _evict(self) -> None:
        pods = [pod for pod in self._world.provider.own() if pod.dead_s is None]
        if pods:
            pod = self._faults.one_of(pods)
            self._note("pod_evicted")
            if self._faults.dice.random() < 0.5:
                self._world.provider.die(pod)
            else:
                self._world.provider.vanish(pod, "evicted")

    def _disturb_agent(self) -> None:
        agents = [a for p in self._world.provider.own() for a in p.agents.values() if a.lives]
        if not agents:
            return
        agent, how = self._faults.one_of(agents), self._faults.one_of(("crashed", "frozen", "cut"))
        self._note(f"agent_{how}")
        if how == "crashed":
            agent.loop.kill()
        elif how == "frozen":
            agent.loop.freeze(self._faults.one_of((5.0, 40.0, 100.0, 200.0)))
        else:
            agent.cut_until_s = self._kernel.now + self._faults.between(5, 120)

    def _sicken(self) -> None:
        """Once a worker is ready without other faults, let tasks fail on it or everywhere, or fill its disk.

        While there is work, wait for another worker of the pool that has completed a task: only then can an earlier
        success be mistaken for a second opinion.
        """
        world = self._world
        agents = [a for p in world.provider.own() for a in p.agents.values() if a.well and a.spoke]
        ready = {w["id"] for w in world.db.workers.values() if w["status"] in ("active", "idle")}
        agents = [agent for agent in agents if agent.worker_id in ready]
        beside = [agent for agent in agents if self._is_beside_success(agent.worker_id)]
        waiting = any(row["state"] in ("ready", "waits_for_time") for row in world.db.live.values())
        if not agents or (not beside and waiting):
            self._kernel.after(1.0, self._sicken)
            return
        self._hand_in("t", 20, 4)
        what, pod = self._sick.choice(SICKNESSES), self._sick.choice(beside or agents).pod
        self._faults.count[what] += 1
        world.say(f"fault: {what} ({pod.id})")
        if what == "tasks_fail_on_one":
            pod.fails_tasks = True
        elif what == "bad_inputs":
            for _ in range(self._sick.randint(1, 4)):
                self._hand_in("t", self._sick.choice(BAD_RUNS), 2, kind=self._sick.choice(("fail", "fail", "fatal")))
                self._hand_in("t", self._sick.randint(1, 8), 4)
        elif what == "tasks_fail_everywhere":
            world.bad_release_s, world.was_bad_release = self._kernel.now, True
            self._kernel.after(self._sick.uniform(30, 300), self._correct)
        else:
            pod.full_s = self._kernel.now

    def _is_beside_success(self, worker_id: str) -> bool:
        """Whether another ready worker of its pool has completed a task."""
        db = self._world.db
        others = (
            w["id"]
            for w in db.workers.values()
            if w["pool"] == db.workers[worker_id]["pool"] and w["status"] in ("active", "idle") and w["id"] != worker_id
        )
        return any(a["outcome"] == "complete" for name in others for a in db.tried.get(name, ()))

    def _report(self, what: str) -> None:
        """Once workers are ready, let an agent report a finding, or let all agents of healthy machines report one."""
        world, now = self._world, self._kernel.now
        ready = {w["id"] for w in world.db.workers.values() if w["status"] in ("active", "idle")}
        agents = [a for p in world.provider.own() for a in p.agents.values() if a.well and a.worker_id in ready]
        if len(agents) < (ALARM_WORKERS if what == "false_alarm" else 1):
            if not self._over:
                self._kernel.after(1.0, lambda: self._report(what))
            return
        self._faults.count[what] += 1
        world.say(f"fault: {what}")
        since = {"since": world.kernel.moment().timestamp()}
        if what == "false_alarm":
            world.alarm = XID_79 | since
            self._kernel.after(self._guards.uniform(100, 400), lambda: setattr(world, "alarm", None))
        else:
            pod = self._guards.choice(agents).pod
            pod.findings = tuple(one | since if isinstance(one, dict) else one for one in REPORTS[what])
            world.say(f"it is {pod.id} at {now:.0f} s")

    def _silence_pool(self) -> None:
        """Once the default pool has all its workers, let their agents claim nothing while tasks wait."""
        world, pool = self._world, self._world.policy.pools[0]
        workers = world.db.workers.values()
        here = {w["id"] for w in workers if w["pool"] == pool.name and w["status"] in ("active", "idle")}
        agents = [a for p in world.provider.own() for a in p.agents.values() if a.well and a.worker_id in here]
        if len(agents) < pool.max_active:
            if not self._over:
                self._kernel.after(1.0, self._silence_pool)
            return
        self._faults.count["agents_claim_nothing"] += 1
        world.say("fault: agents_claim_nothing")
        for agent in agents:
            agent.silent_s = self._kernel.now
        self._hand_in("t", 10, 10)

    def _cut_off_agents(self, at_registration: bool) -> None:
        """Once all agents of ready workers are healthy and one is busy, cut all off from the gateways for a while.

        At a registration, its agent does not learn that the database has it: the answer is cut off too.
        """
        world = self._world
        busy = [w["id"] for w in world.db.workers.values() if w["status"] == "active" and world.db.running.get(w["id"])]
        if not busy or self._faults.over_s > self._kernel.now or (at_registration and not self._is_registering()):
            if not self._over:
                again_s = MOMENT_S if at_registration else 1.0
                self._kernel.after(again_s, partial(self._cut_off_agents, at_registration))
            return
        lasts_s = self._path.uniform(1.2, 4.0) * world.policy.heartbeat_timeout_s
        self._faults.count["agents_cut_off"] += 1
        world.say(f"fault: agents_cut_off for {lasts_s:.0f} s" + ", at a registration" * at_registration)
        world.path_cut = (self._kernel.now, self._kernel.now + lasts_s)
        if self._path.random() < OFFLINE:
            self._faults.note("orchestrators_offline", lasts_s)
            world.say("fault: orchestrators_offline")
            world.offline_until_s = world.path_cut[1]

    def _is_registering(self) -> bool:
        """Whether a first call has arrived, and its answer has not."""
        agents = [agent for pod in self._world.provider.own() for agent in pod.agents.values() if agent.well]
        rows = ((agent, self._world.db.workers.get(agent.worker_id)) for agent in agents if agent.beaten_s is None)
        return any(row is not None and row["last_heartbeat"] is not None for _, row in rows)

    def _correct(self) -> None:
        self._world.bad_release_s = None

    def _move_ssh(self) -> None:
        """Change the SSH address of a pod, as after a restart. Lists show it. No law allows an exception for it."""
        pods = [pod for pod in self._world.provider.own() if pod.dead_s is None]
        if pods:
            pod = self._moves.choice(pods)
            self._faults.count["ssh_moved"] += 1
            self._world.provider.move(pod, self._moves)
        self._kernel.after(self._moves.uniform(40, 120), self._move_ssh)

    def _show_false_state(self) -> None:
        pods = list(self._world.provider.own())
        if pods:
            self._faults.one_of(pods).lies += self._faults.dice.randint(1, 3)

    def _operator(self) -> None:
        dice, world = self._faults.dice, self._world
        live = [w["id"] for w in world.db.workers.values() if w["status"] not in ("terminating", "terminated")]
        what = dice.choice(("cancel", "retry", "drain", "stop", "pause", "limit"))
        self._choose_policy()
        self._note(f"operator_{what}")
        if what in ("cancel", "retry"):
            world.commit(f"task_{what}", {"p_id": dice.choice(self._tasks)}, by="operator")
        elif what == "pause":
            args = {"p_fleet": FLEET, "p_pool": None, "p_reason": "a look", "p_for_s": dice.uniform(5, 60)}
            world.commit("fleet_pause", args, by="operator")
        elif what == "limit":
            self._limit_workers(dice)
        elif live:
            args = {"p_fleet": FLEET, "p_worker_id": dice.choice(live), "p_reason": "a wish"}
            world.commit("fleet_request_termination", args | {"p_now_not_drain": what == "stop"}, by="operator")

    def _choose_policy(self) -> None:
        """Choose a rule of scaling, or damage what is stored of what it knows: it is learned again."""
        dice, db = self._scaling, self._world.db
        pool, rule = dice.choice((None, "default")), dice.choice((None, "fixed", "learned"))
        what = dice.random()
        if what < POLICY_CHOSEN:
            args = {"p_fleet": FLEET, "p_pool": pool, "p_policy": rule}
            self._world.commit("fleet_scaling_policy", args, by="operator")
        elif what < STATISTICS_DAMAGED and db.statistics:
            self._faults.count["statistics_damaged"] += 1
            db.statistics[FLEET, "default"] = {"statistics": dice.choice(DAMAGED), "until": 0.0}

    def _limit_workers(self, dice: random.Random) -> None:
        pools = [None, *(one.name for one in self._world.policy.pools)]
        args = {"p_fleet": FLEET, "p_pool": dice.choice(pools), "p_most": dice.randint(1, 3), "p_reason": "a look"}
        self._world.commit("fleet_scale_limit", args | {"p_for_s": dice.uniform(20, 240)}, by="operator")

    def _stop_faults(self) -> None:
        """Stop injecting faults. Faults within pods stay."""
        world = self._world
        self._faults.active = False
        self._faults.over_s = max(self._faults.over_s, self._kernel.now + HANGS_S)
        world.say("the faults stop")
        self._find_database()
        self._limit_workers(self._moves)  # without faults meanwhile, the limit must hold
        world.s3_down = world.provider.down = world.provider.broke = False
        world.provider.dry.clear()
        world.provider.mangled = None
        for slot, replica in enumerate(world.replicas):
            if replica.loop.dead or replica.ended:
                world.start_replica(slot)
            replica.hears("connected", "")
        flickers = self._flicker.random() < FLICKERS
        if self._sick.random() < SICK:
            self._hand_in("t", 30, 4)
            self._sicken()
        elif self._guards.random() < FOUND:
            self._hand_in("t", 60, 4)
            many = sum(pool.max_active for pool in world.policy.pools) >= ALARM_WORKERS
            self._report("false_alarm" if many and self._guards.random() < 0.6 else self._guards.choice([*REPORTS]))
        elif not flickers and self._silence.random() < SILENT:  # a heartbeat without an answer counts as a question
            self._hand_in("t", 30, 20)
            self._silence_pool()
        elif not flickers and self._path.random() < CUT_OFF:
            self._hand_in("t", 20, 45)
            self._cut_off_agents(self._path.random() < AT_REGISTRATION)
        if flickers:
            self._drop_out(self._flicker.uniform(0.3, 0.9) * world.policy.heartbeat_timeout_s)

    def _drop_out(self, every_s: float) -> None:
        """Make the database unavailable for some seconds, again and again, more often than the heartbeat timeout."""
        self._faults.count["database_flickers"] += 1
        self._cut_off_database(self._flicker.uniform(0.1, 0.3) * every_s)
        self._kernel.after(every_s, lambda: self._drop_out(every_s))
