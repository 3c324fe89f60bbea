"""Two tenants in virtual time: one has thousands of tasks in the queue, and the other hands in its first ten."""

import argparse
import sys
import uuid
from dataclasses import replace

from tests.proofs.simulator.environment import World

FEW = 10
LIMIT_S = 3600.0


class Backlog:
    """A fleet without faults. The law `fair` holds for the first task of the second tenant."""

    def __init__(self, world: World, tasks: int) -> None:
        self._world, self._tasks = world, tasks
        self._few: list[str] = []
        self.taken = 0  # tasks of the first tenant that were claimed while the second one's first task was in the queue

    def live(self) -> None:
        """From the first task to the end of the ten."""
        world = self._world
        world.faults.active = False
        world.policy = replace(world.policy, hourly_budget_usd=None, daily_budget_usd=None)
        world.start_replica(0)
        self._submit("large", self._tasks)
        world.kernel.run(lambda: bool(world.violations) or self._is_busy(), LIMIT_S)
        self._few, before = self._submit("small", FEW), self._claimed()
        world.kernel.run(lambda: bool(world.violations) or self._has_begun(), 2 * LIMIT_S)
        self.taken = self._claimed() - before
        world.kernel.run(lambda: bool(world.violations) or self._is_done(), 3 * LIMIT_S)
        if not world.violations and not self._is_done():
            world.laws.broken("fair", f"the {FEW} tasks are not done")

    def _submit(self, tenant: str, count: int) -> list[str]:
        ids = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{tenant} {number}")) for number in range(count)]
        tasks = [
            {"id": one, "task_type": "t", "params": {"kind": "ok", "work_s": 5}, "max_attempts": 3, "tenant": tenant}
            for one in ids
        ]
        self._world.commit("task_submit", {"p_tasks": tasks}, by="somebody")
        return ids

    def _is_busy(self) -> bool:
        """Whether every worker that the pool may have runs a task."""
        busy = sum(bool(held) for held in self._world.db.running.values())
        return busy >= self._world.policy.pools[0].max_active

    def _claimed(self) -> int:
        return sum(self._world.db.tasks[task_id]["tenant"] == "large" for task_id, _ in self._world.db.task_attempts)

    def _has_begun(self) -> bool:
        return bool(self._world.db.tasks[self._few[0]]["attempts"])

    def _is_done(self) -> bool:
        return all(self._world.db.tasks[one]["status"] == "Complete" for one in self._few)


def main() -> int:
    """Run some seeds and report; 1 if the first task waited for longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for seed in range(args.seeds):
        world = World(seed)
        plot = Backlog(world, args.tasks)
        outcome = world.run(lambda _, plot=plot: plot.live())  # type: ignore[misc]
        workers = world.policy.pools[0].max_active
        print(f"seed {seed}: {outcome.violation or 'no violation'}; {plot.taken} tasks of {args.tasks} were claimed "
              f"first, by {workers} workers of {world.policy.pools[0].batch} a claim, "
              f"in {outcome.virtual_s:.0f} virtual s")  # fmt: skip
        if outcome.violation or plot.taken > workers * world.policy.pools[0].batch:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
