"""Two tenants in virtual time: one has thousands of tasks in the queue, and the other submits its first ten.

A call of the simulated database is one step, so the bound is exact: before the n-th of the ten, claims take at most
(n - 1) / weight + 1 tasks of the other tenant, whatever the number of workers.
"""

import argparse
import sys
import uuid
from collections import Counter
from dataclasses import replace

from tests.proofs.simulator.environment import World

FEW = 10
LIMIT_S = 3600.0


class Backlog:
    """A fleet without faults. The law `fair` holds for the first task of the second tenant."""

    def __init__(self, world: World, tasks: int, weight: int) -> None:
        self._world, self._tasks, self._weight = world, tasks, weight
        self._large: list[str] = []
        self._few: list[str] = []
        self.before: list[int] = []  # tasks of the first tenant claimed since the ten came and before each of these

    def run(self) -> None:
        """Run from the first task until the ten have ended."""
        world = self._world
        world.faults.active = False
        world.policy = replace(world.policy, hourly_budget_usd=None, daily_budget_usd=None)
        world.start_replica(0)
        world.commit("task_tenant_set", {"p_tenant": "small", "p_weight": self._weight}, by="operator")
        self._large = self._submit("large", self._tasks)
        world.kernel.run(lambda: bool(world.violations) or self._is_busy(), LIMIT_S)
        self._few, claimed = self._submit("small", FEW), len(world.db.task_attempts)
        world.kernel.run(lambda: bool(world.violations) or self._is_done(), 2 * LIMIT_S)
        if world.violations:
            return
        if not self._is_done():
            world.laws.broken("fair", f"the {FEW} tasks are not done")
            return
        self._judge([task_id for task_id, _ in world.db.task_attempts], claimed)
        sizes = Counter((row["nonce"], row["claim_no"]) for row in world.db.task_attempts.values())
        if set(sizes.values()) != {world.policy.pools[0].batch}:
            world.laws.broken("fair", f"claims got {sorted(set(sizes.values()))} tasks, although enough were ready")

    def _judge(self, claims: list[str], since: int) -> None:
        """All claimed tasks in the order of claims, and how many were claimed when the ten came."""
        few = set(self._few)
        places = [place for place, task_id in enumerate(claims) if task_id in few]
        self.before = [place - since - number for number, place in enumerate(places)]
        bounds = [number // self._weight + 1 for number in range(FEW)]
        if any(taken > bound for taken, bound in zip(self.before, bounds, strict=True)):
            self._world.laws.broken("fair", f"{self.before} tasks were claimed before the {FEW}, and {bounds} may be")
        if [one for one in claims if one in few] != self._few:
            self._world.laws.broken("fair", "the ten are not claimed in their order")
        if (large := [one for one in claims if one not in few]) != self._large[: len(large)]:
            self._world.laws.broken("fair", "the tasks of the backlog are not claimed in their order")

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

    def _is_done(self) -> bool:
        return all(self._world.db.tasks[one]["status"] == "Complete" for one in self._few)


def main() -> int:
    """Run some seeds and print the result. Return 1 if one of the ten waited too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="tasks in one claim")
    parser.add_argument("--weight", type=int, default=1, help="of the tenant with the ten tasks")
    args = parser.parse_args()
    for seed in range(args.seeds):
        world = World(seed)
        world.policy = replace(world.policy, pools=tuple(replace(one, batch=args.batch) for one in world.policy.pools))
        fleet = Backlog(world, args.tasks, args.weight)
        outcome = world.run(lambda _, fleet=fleet: fleet.run())  # type: ignore[misc]
        workers = world.policy.pools[0].max_active
        print(f"seed {seed}: {outcome.violation or 'no violation'}; {fleet.before} of {args.tasks} tasks were claimed "
              f"before the {FEW} of weight {args.weight}, by {workers} workers of {args.batch} a claim, "
              f"in {outcome.virtual_s:.0f} virtual s")  # fmt: skip
        if outcome.violation:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
