"""Kills a process at every outside call, before and after the call's effect, and lets the others continue.

Between two calls, a process changes nothing outside. So a kill at any moment equals a kill before the next call, or
after the last one. The product's own code makes the calls in the simulator, and they are counted there: a new call in
the product is a new point without a change of this file.
"""

import asyncio
import gc
import inspect
import re
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.policy import Policy
from tests.proofs.simulator.clock import Killed, SimLoop
from tests.proofs.simulator.environment import Outcome, World
from tests.proofs.simulator.provider import FLEET

SEED = 3
RESTART_S = 0.5
LIMIT_S = 3600.0  # of virtual time, for everything to have ended
DRAIN_S = 1.0  # after the begin of the first task, its worker must drain
WORK_S = 2
KINDS = ("ok", "ok", "fail")
NUMBERED = re.compile(r"[-:.].*")


@dataclass(frozen=True)
class Point:
    """One call of a run without faults."""

    number: int
    operation: str  # the part that calls: an action of the loop, its tick, a shipment, or an agent
    call: str


class CrashWorld(World):
    """A world without faults in which one process is killed at one point."""

    def __init__(self, kill_at: int = 0, *, after: bool = False) -> None:
        super().__init__(SEED)
        self.faults.active = False
        self.points: list[Point] = []
        self._kill_at, self._after, self._calls = kill_at, after, 0

    async def carry(self, loop: SimLoop, link: str, act: Callable[[], Any], *, timeout_s: float) -> Any:
        """Count the call, and make it. At the chosen call, its process is killed."""
        if loop.dead:  # a coroutine of a killed process is being closed
            raise Killed
        self._calls += 1
        if not self._kill_at:  # names cost more than the simulation
            self.points.append(Point(self._calls, _operation(link, act), f"{link} {_name(act)}"))
        if self._calls != self._kill_at:
            return await super().carry(loop, link, act, timeout_s=timeout_s)
        if not self._after:
            self._end(loop)
            return await loop.create_future()  # a killed process runs no `finally`

        def last_act() -> Any:
            try:
                return act()
            finally:
                self._end(loop)

        return await super().carry(loop, link, last_act, timeout_s=timeout_s)

    def _end(self, loop: SimLoop) -> None:
        self.say(f"{loop.name} is killed")
        loop.kill()
        if any(replica.loop is loop for replica in self.replicas):
            self.kernel.after(RESTART_S, lambda: self.start_replica(0))

    def live(self) -> Outcome:
        """Run tasks of every kind, with a drain in the middle, until everything has ended."""
        return self.run(_scenario)


def _scenario(world: World) -> None:
    ids = iter(range(1, 100))
    tasks = [
        {
            "id": str(uuid.UUID(int=next(ids))),
            "task_type": "t",
            "params": {"kind": kind, "work_s": WORK_S},
            "max_attempts": 1,
        }
        for kind in KINDS
    ]
    world.start_replica(0)
    world.commit("task_submit", {"p_tasks": tasks}, by="somebody")

    def drain() -> None:
        busy = [worker_id for worker_id, number in world.db.running.items() if number]
        if not busy:
            world.kernel.after(1.0, drain)
            return
        args = {"p_fleet": FLEET, "p_worker_id": busy[0], "p_reason": "a wish", "p_now_not_drain": False}
        world.kernel.after(DRAIN_S, lambda: world.commit("fleet_request_termination", args, by="operator"))

    def look() -> None:
        world.laws.look()
        world.kernel.after(1.0, look)

    world.kernel.after(1.0, drain)
    world.kernel.after(1.0, look)
    if not world.kernel.run(lambda: bool(world.violations) or _is_over(world), LIMIT_S):
        world.laws.broken("I2", "not everything has ended")
    world.laws.at_the_end()


def walk() -> list[Point]:
    """Return every point of a run without a kill."""
    world = CrashWorld()
    outcome = world.live()
    if outcome.violation:
        raise AssertionError(outcome.violation)
    return world.points


def killed_at(point: Point, *, after: bool) -> str | None:
    """Return the law that a kill at this point breaks; None if it breaks none."""
    gc.disable()
    try:
        violation = CrashWorld(point.number, after=after).live().violation
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            gc.collect()  # what the killed left open is closed here and now: later it would be in somebody else's way
    finally:
        gc.enable()
    return violation


class Terminated(World):
    """A world without faults whose orchestrator gets SIGTERM while it writes the next decision."""

    def __init__(self) -> None:
        super().__init__(SEED)
        self.faults.active = False
        self.armed = False
        self.told_s: float | None = None

    def _policy(self) -> Policy:
        policy = super()._policy()
        pool = replace(policy.pools[0], max_active=2, tasks_per_gpu=1, scaling_policy=ScalingPolicy.FIXED)
        return replace(policy, pools=(pool,), hourly_budget_usd=None)

    async def carry(self, loop: SimLoop, link: str, act: Callable[[], Any], *, timeout_s: float) -> Any:
        """Make the call. Once the world is armed, the first decision on its way brings SIGTERM."""
        if self.armed and self.told_s is None and _name(act).startswith("fleet_record_decision"):
            self.told_s = self.kernel.now
            self.replicas[0].terminate()
        return await super().carry(loop, link, act, timeout_s=timeout_s)


def spawned_at_sigterm() -> tuple[int, float]:
    """How many workers a process intends that is told to end while it decides on two, and how long its end took.

    One worker has come and gone before: a release that was promoted needs no canary.
    """
    world = Terminated()
    before: list[str] = []

    def submit(first: int, last: int) -> None:
        ids = (str(uuid.UUID(int=number)) for number in range(first, last + 1))
        tasks = [{"id": one, "task_type": "t", "params": {"kind": "ok", "work_s": WORK_S}} for one in ids]
        world.commit("task_submit", {"p_tasks": tasks}, by="somebody")

    def scenario(_: World) -> None:
        world.start_replica(0)
        submit(1, 1)
        world.kernel.run(lambda: _is_over(world), LIMIT_S)
        before.extend(world.db.workers)
        world.armed = True
        submit(2, 5)
        world.kernel.run(lambda: world.replicas[0].ended, LIMIT_S)

    world.run(scenario)
    assert world.told_s is not None
    return len(world.db.workers) - len(before), world.kernel.now - world.told_s


def _is_over(world: World) -> bool:
    return (
        all(task["status"] in ("Complete", "Failed", "Cancelled") for task in world.db.tasks.values())
        and bool(world.db.workers)
        and all(worker["status"] == "terminated" for worker in world.db.workers.values())
        and not any(True for _ in world.provider.own())
    )


def _name(act: Callable[[], Any]) -> str:
    known = inspect.getclosurevars(act).nonlocals
    if "function" not in known:
        return act.__qualname__.replace(".<locals>", "").replace(".<lambda>", "")
    args = known.get("args") or {}
    where = args.get("p_to") or args.get("p_stage")  # a move, or an attempt at a stage
    return f"{known['function']} {where}" if where else str(known["function"])


def _operation(link: str, act: Callable[[], Any]) -> str:
    if link == "rpc":
        return _name(act).removeprefix("worker_")
    task = asyncio.current_task()
    name = task.get_name() if task else ""
    return NUMBERED.sub("", name).lower() if ":" in name else "tick"
