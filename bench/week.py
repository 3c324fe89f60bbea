"""A simulated week of one orchestrator: the size of its objects at the end of each day, with the same fleet at rest.

The loop is the product's, in the simulator's virtual time (docs/simulator.md). During the day, tasks arrive every hour,
workers start and end, calls fail, the database, RunPod and S3 have outages, and agents crash. In the evening, there are
no faults. At midnight, all objects that can be reached from the daemon and from the product's modules are measured.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from testbed.stack import ROOT
from tests.proofs.simulator import agents
from tests.proofs.simulator.clock import Kernel, SimLoop
from tests.proofs.simulator.environment import World
from tests.proofs.simulator.faults import Faults
from tests.proofs.simulator.laws import Laws
from tests.proofs.simulator.provider import Provider, SimPod
from tests.proofs.simulator.scenario import Scenario
from tests.proofs.simulator.sql.records import Records

TRIES = 7  # days
GOALS = {"growth": ("<=", 1.1)}  # the outages that it remembers, 500 at most, are 50 KB
SEED = 7
HOUR_S = 3600.0
FAULTS_H, WORK_H, DAY_H = 8, 22, 24  # until when there are faults, and new work
WORK_EVERY_H = 2
ASK_S = 20.0  # an idle agent, as on a real pod, where it is a long poll
FAULT_EVERY_S = 300.0  # between two outages or losses, on average
FLEET = 2  # workers at rest
MOST = 5
OUTSIDE = (type, ModuleType, CodeType, World, SimLoop, Kernel, Faults, Laws, Records, Provider, SimPod, agents.Agent)


async def measure(_directory: Path, tries: int) -> dict[str, Any]:
    """Run the week in a process of its own, with a virtual clock and no other modules."""
    command = [sys.executable, "-m", "bench.week", str(tries)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    figures: dict[str, Any] = json.loads(said)
    return figures


def lived(tries: int) -> dict[str, Any]:
    """Objects and KB of each midnight, and the last against the second."""
    weights: list[tuple[int, int]] = []
    agents.PAUSE_S = ASK_S
    world = World(SEED)
    world.faults.often = _as_usual  # type: ignore[method-assign]
    pool = replace(world.policy.pools[0], min_active=FLEET, max_active=MOST)
    world.policy = replace(world.policy, pools=(pool,), hourly_budget_usd=None, daily_budget_usd=None)
    outcome = world.run(lambda _: Week(world, tries, lambda: weights.append(_weight(_roots(world)))).run())
    figures: dict[str, Any] = {
        "virtual_days": round(outcome.virtual_s / HOUR_S / DAY_H, 1),
        "workers_ever": Week.workers,
        "faults": sum(outcome.faults.values()),
        "law_broken": outcome.violation or "none",
    }
    for day, (objects, size) in enumerate(weights, 1):
        figures[f"day_{day}"] = f"{objects:,} objects, {size / 1e3:,.0f} KB"
    if len(weights) > 1:
        figures["growth"] = round(weights[-1][1] / weights[1][1], 3)
    return figures


def _as_usual(name: str) -> float:  # noqa: ARG001  no kind of fault is left out
    return 1.0


class Week(Scenario):
    """Days of tasks and faults, each with an end without faults."""

    workers = 0  # that there were

    def __init__(self, world: World, days: int, at_midnight: Callable[[], None]) -> None:
        super().__init__(world)
        self._days, self._at_midnight = days, at_midnight
        Week.workers = 0

    def run(self) -> None:
        """All days."""
        self._faults.active = False
        self._world.start_replica(0)
        for _ in range(self._days):
            self._pass_day()

    def _pass_day(self) -> None:
        began_s = self._kernel.now
        self._faults.active = True
        self._kernel.after(FAULT_EVERY_S, self._inject_fault)
        for hour in range(DAY_H):
            if hour < WORK_H and hour % WORK_EVERY_H == 0:
                self._submit()
            if hour == FAULTS_H:
                self._calm_down()
            self._kernel.run(lambda: False, began_s + (hour + 1) * HOUR_S)
        self._at_midnight()
        self._forget()

    def _inject_fault(self) -> None:
        if not self._faults.active:
            return
        away = [self._lose_database, self._lose_provider, self._mangle_lists, self._lose_s3, self._exhaust_stock]
        self._faults.one_of([*away, self._evict, self._disturb_agent, self._show_false_state])()
        self._kernel.after(self._faults.dice.expovariate(1 / FAULT_EVERY_S), self._inject_fault)

    def _calm_down(self) -> None:
        self._faults.active = False
        self._find_database()
        self._world.s3_down = self._world.provider.down = False
        self._world.provider.mangled = None

    def _forget(self) -> None:
        """What the world keeps of what is over, and would look through at every call."""
        db, world = self._world.db, self._world
        gone = {name for name, row in db.workers.items() if row["status"] == "terminated"}
        Week.workers += len(gone)
        db.workers = {name: row for name, row in db.workers.items() if name not in gone}
        db.tasks.clear()
        db.attempts.clear()
        db.tried.clear()
        db.edges.clear()
        db.worker_events.clear()
        db.costs.clear()
        del db.decisions[:-1]
        db.attempts_of = {name: rows for name, rows in db.attempts_of.items() if name not in gone}
        db.log_objects = {key: rows for key, rows in db.log_objects.items() if key[0] not in gone}
        world.kernel.loops[:] = [loop for loop in world.kernel.loops if not loop.dead]
        world.bucket.clear()
        world.outages.clear()
        world.laws.claims.clear()


def _roots(world: World) -> Iterator[Any]:
    """The orchestrator's own: its daemon, what it has under way, and what its modules keep."""
    [replica] = world.replicas
    yield replica.daemon
    yield list(replica.loop.tasks)
    for name, module in sys.modules.items():
        if name.startswith("orchestrator."):
            yield dict(vars(module))


def _weight(roots: Iterable[Any]) -> tuple[int, int]:
    """How many objects can be reached from here, and their bytes."""
    gc.collect()
    todo, seen, size = list(roots), set[int](), 0
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, OUTSIDE):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        # A function leads to all of its module; what it keeps for itself is its closure and its defaults.
        within = (one.__closure__, one.__defaults__, one.__dict__) if isinstance(one, FunctionType) else None
        todo += gc.get_referents(one) if within is None else within
    return len(seen), size


if __name__ == "__main__":
    print(json.dumps(lived(int(sys.argv[1]))))
