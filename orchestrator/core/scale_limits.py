"""Operators' limits for a time: at most so many workers in a pool, or in the whole fleet.

A limit only lowers: MAX_ACTIVE_GPUS, budgets and the breaker apply too. It ends no busy worker. Starting workers beyond
it end at once, ready ones when they are idle, as above any other target.

The limit of the whole fleet is divided by what is there: busy workers first, then ready ones, then starting ones, one
pool after the other. Each pool may grow by the room that is left; offers.py counts the spawns of all pools.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.model import EVERY_POOL, ScaleLimit, Snapshot, Worker
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.states import READY, State

NOBODY: frozenset[str] = frozenset()


def in_force(policy: Policy, snapshot: Snapshot, *, leaving: frozenset[str] = NOBODY) -> Policy:
    """Return the policy with the limit of each pool. The workers `leaving` end in this tick."""
    if not snapshot.scale_limits:
        return policy
    fleet = snapshot.scale_limits.get(EVERY_POOL)
    shares = _shares(fleet, policy, snapshot, leaving) if fleet else {}

    def limited(pool: Pool) -> Pool:
        limits = [snapshot.scale_limits.get(pool.name), shares.get(pool.name)]
        lowest = min(filter(None, limits), key=lambda limit: limit.most, default=None)
        return replace(pool, scale_limit=lowest if lowest and lowest.most < pool.max_active else None)

    return replace(policy, pools=tuple(map(limited, policy.pools)))


def room(snapshot: Snapshot, *, leaving: frozenset[str] = NOBODY) -> int | None:
    """Return how many more workers the limit of the whole fleet allows. None: it has no limit."""
    fleet = snapshot.scale_limits.get(EVERY_POOL)
    return max(0, fleet.most - len(_live(snapshot, leaving))) if fleet else None


def reason(limit: ScaleLimit, count: int, unit: str) -> Blocked:
    """Return what a limit blocks."""
    detail = {"limit": limit.allowed, "where": limit.where, "reason": limit.reason}
    return Blocked(BlockedReason.SCALE_LIMIT, count, unit, detail, limit.until)


def most_text(pool: Pool) -> str:
    """Return how many workers a pool may have, for the rule of a decision: `4 max`."""
    limit = pool.scale_limit
    return f"{pool.max_active} max" + (f", {limit.allowed} by an operator in {limit.where}" if limit else "")


def _shares(fleet: ScaleLimit, policy: Policy, snapshot: Snapshot, leaving: frozenset[str]) -> Mapping[str, ScaleLimit]:
    """Return the most that each pool may have now within the limit of the whole fleet."""
    live = _live(snapshot, leaving)
    here = {pool.name: [worker for worker in live if worker.pool == pool.name] for pool in policy.pools}
    left = max(0, fleet.most - sum(worker.pool not in here for worker in live))
    shares = dict.fromkeys(here, 0)
    tiers: tuple[Callable[[Worker], bool], ...] = (lambda w: w.tasks_running > 0, lambda w: w.state in READY, bool)
    for belongs in tiers:
        due = {name: sum(map(belongs, workers)) for name, workers in here.items()}
        while left and (short := [name for name in here if shares[name] < due[name]][:left]):
            shares |= {name: shares[name] + 1 for name in short}
            left -= len(short)
    return {name: replace(fleet, most=share + left, fleet_most=fleet.most) for name, share in shares.items()}


def _live(snapshot: Snapshot, leaving: frozenset[str]) -> list[Worker]:
    states = {State.SPAWNING, *READY}
    return [worker for worker in snapshot.workers if worker.state in states and worker.id not in leaving]
