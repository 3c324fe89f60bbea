"""How many workers a pool should have, and which come or go.

    target = clamp(max(ceil(demand / TASKS_PER_GPU_THRESHOLD), busy + MACHINES_TO_KEEP_IDLE, MIN_ACTIVE_GPUS),
                   0, MAX_ACTIVE_GPUS)

Demand is claimable plus running tasks; blocked tasks never scale anything. Up is immediate. Down touches only idle
workers (and spawning ones whose work has gone), never below the target: those beyond what is needed, or beyond the one
that stays warm when nothing is needed, after the overcapacity timeout; the last warm one after the idle timeout.
"""

import hashlib
from datetime import datetime, timedelta
from math import ceil

from orchestrator.core import capacity
from orchestrator.core.actions import Action, Spawn, Terminate, Verdict
from orchestrator.core.model import Demand, Offer, Policy, Pool, Snapshot, Worker
from orchestrator.core.states import READY, ExitCause, State

SPAWNS_PER_TICK = 100  # bounds one tick's burst; the next tick goes on


def plan(pool: Pool, snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str]) -> tuple[list[Action], Verdict]:
    """The spawns and terminations of one pool, with the arithmetic behind them."""
    demand = next((d for d in snapshot.demand if d.pool == pool.name), Demand(pool.name, 0, 0, {}, None))
    here = [w for w in snapshot.workers if w.pool == pool.name and w.id not in leaving]
    ready = [w for w in here if w.state in READY]
    spawning = [w for w in here if w.state is State.SPAWNING]
    busy = sum(1 for w in ready if w.tasks_running)
    going = [w for w in snapshot.workers if w.pool == pool.name and (w.state is State.TERMINATING or w.id in leaving)]
    running = max(0, demand.running - sum(w.tasks_running for w in going))
    wanted = max(ceil((demand.claimable + running) / pool.tasks_per_gpu), busy + pool.keep_idle, pool.min_active)
    target = max(0, min(wanted, pool.max_active))
    rule = (
        f"min(max(ceil(({demand.claimable} claimable + {running} running) / {pool.tasks_per_gpu}), "
        f"{busy} busy + {pool.keep_idle} kept idle, {pool.min_active} min), {pool.max_active} max) = {target}"
    )
    blocked: list[str] = []
    if wanted > target:
        blocked.append(f"{wanted - target} more wanted, MAX_ACTIVE_GPUS={pool.max_active}")
    missing = target - len(ready) - len(spawning)
    actions: list[Action] = []
    if missing > 0:
        actions += _spawns(pool, snapshot, policy, missing, blocked)
    elif missing < 0:
        actions += _terminations(pool, snapshot, policy, ready, spawning, target)
    inputs: dict[str, object] = {
        "claimable": demand.claimable,
        "running": running,
        "blocked": dict(sorted(demand.blocked.items())),
        "ready": len(ready),
        "busy": busy,
        "spawning": len(spawning),
        "terminating": len(going),
    }
    return actions, Verdict(pool.name, rule, target, inputs, tuple(blocked))


def worker_id(fleet_id: str, pool: str, now: datetime, index: int) -> str:
    """`gpu-YYYYMMDD_HHMMSS-<8 hex>`, derived, so that the same snapshot names the same workers."""
    digest = hashlib.sha256(f"{fleet_id}|{pool}|{now.isoformat()}|{index}".encode()).hexdigest()
    return f"gpu-{now:%Y%m%d_%H%M%S}-{digest[:8]}"


def _spawns(pool: Pool, snapshot: Snapshot, policy: Policy, missing: int, blocked: list[str]) -> list[Spawn]:
    if snapshot.paused is not None:
        blocked.append(f"{missing} spawn(s): paused, {snapshot.paused}")
        return []
    spawns: list[Spawn] = []
    offers: list[Offer] = []
    for index in range(min(missing, SPAWNS_PER_TICK)):
        offer = capacity.usable(pool, snapshot, offers)
        if offer is None:
            until = capacity.next_chance(pool, snapshot)
            when = f", next try {until:%H:%M:%S}" if until else ""
            blocked.append(f"{missing - index} spawn(s): every offer was refused lately{when}")
            break
        offers.append(offer)
        name = worker_id(policy.fleet_id, pool.name, snapshot.now, index)
        spawns.append(Spawn(name, pool.name, offer, f"{missing} below target"))
    return spawns


def _terminations(
    pool: Pool, snapshot: Snapshot, policy: Policy, ready: list[Worker], spawning: list[Worker], target: int
) -> list[Terminate]:
    surplus = len(ready) + len(spawning) - target
    last_spawn = snapshot.last_spawn_at.get(pool.name)
    settled = last_spawn is None or snapshot.now - last_spawn >= timedelta(seconds=policy.scale_down_grace_s)
    out: list[Terminate] = []
    for worker in sorted(spawning, key=lambda w: w.created_at, reverse=True):
        age_s = (snapshot.now - worker.created_at).total_seconds()
        if len(out) < surplus and age_s >= policy.spawning_grace_s and worker.id not in snapshot.in_flight:
            why = f"its work has gone: target {target}, still spawning after {age_s:.0f} s"
            out.append(Terminate(worker.id, State.SPAWNING, ExitCause.SCALE_DOWN, None, why))
    idle = [w for w in ready if w.state is State.IDLE and not w.tasks_running and w.id not in snapshot.in_flight]
    beyond_warm = len(ready) - max(target, min(1, pool.max_active))
    for worker in sorted(idle, key=lambda w: w.created_at, reverse=True):
        if len(out) >= surplus:
            break
        idle_s = (snapshot.now - worker.state_since).total_seconds()
        if idle_s >= pool.idle_timeout_s:
            why = f"idle for {idle_s:.0f} s, GPU_IDLE_TIMEOUT_SEC={pool.idle_timeout_s:g}, target {target}"
            out.append(Terminate(worker.id, State.IDLE, ExitCause.IDLE_TIMEOUT, None, why))
            beyond_warm -= 1
        elif beyond_warm > 0 and settled and idle_s >= pool.overcapacity_idle_timeout_s:
            why = f"idle for {idle_s:.0f} s above the target of {target}"
            out.append(Terminate(worker.id, State.IDLE, ExitCause.SCALE_DOWN, None, why))
            beyond_warm -= 1
    return out
