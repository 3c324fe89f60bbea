"""How many workers a pool should have, and which come or go.

    target = clamp(max(ceil(demand / TASKS_PER_GPU_THRESHOLD), busy + MACHINES_TO_KEEP_IDLE, MIN_ACTIVE_GPUS),
                   0, MAX_ACTIVE_GPUS)

Demand is claimable plus running tasks; blocked tasks never scale anything. Up is immediate, as far as pause, breaker,
offers and budgets let it. Down touches only idle workers (and spawning ones whose work has gone, or that are more than
the limit), never below the target: those beyond what is needed, or beyond the one that stays warm when nothing is
needed, after the overcapacity timeout; the last warm one after the idle timeout. Where tasks wait for a handler that
only the present release has, its first worker comes beyond the target (succession.py).
"""

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from orchestrator.core import breaker, succession
from orchestrator.core.actions import Action, Spawn, Terminate, Verdict
from orchestrator.core.capacity import Market
from orchestrator.core.model import Demand, Policy, Pool, Snapshot, Worker
from orchestrator.core.states import READY, ExitCause, Stage, State, WaitingOn

SPAWNS_PER_TICK = 100  # bounds what is thought of; plan.ROWS_PER_TICK is what is done


@dataclass(slots=True)
class Held:
    """What was wanted and not done, and until when, where that is known."""

    why: list[str] = field(default_factory=list)
    until: dict[str, datetime] = field(default_factory=dict)

    def note(self, why: str, until: datetime | None = None) -> None:
        """Add a reason."""
        self.why.append(why)
        if until is not None:
            self.until[why] = until


def plan(
    pool: Pool,
    snapshot: Snapshot,
    policy: Policy,
    market: Market,
    *,
    leaving: frozenset[str],
    lost: frozenset[str] = frozenset(),
) -> tuple[list[Action], Verdict]:
    """The spawns and terminations of one pool, with the arithmetic behind them.

    `leaving` end in this tick; those of them who are `lost` finish nothing.
    """
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
    held = Held()
    if wanted > target:
        held.note(f"{wanted - target} more wanted, MAX_ACTIVE_GPUS={pool.max_active}")
    pause = snapshot.pause_of(pool.name)
    if pause and demand.blocked.get("paused"):
        held.note(f"{demand.blocked['paused']} task(s): paused, {pause.reason}", pause.until)
    recorded = [w for w in spawning if w.stage is Stage.INTENT and w.id not in snapshot.in_flight]
    intents = sum(1 for w in recorded if not w.metadata.get("asked_for"))
    if pause and intents:
        held.note(f"{intents} intent(s): paused, {pause.reason}", pause.until)
    missing = target - len(ready) - len(spawning)
    actions: list[Action] = []
    awaited = succession.awaited(pool, policy, [*here, *going], demand)
    heir = next((w for w in spawning if awaited and w.release == policy.release(pool)), None)
    if awaited:
        rule += f"; 1 more, {awaited}"
    if missing > 0 or (awaited and heir is None):
        spawns = _spawns(pool, snapshot, policy, market, max(missing, 1), len(spawning), held)
        if awaited is None or heir or (spawns and len(ready) + len(spawning) < pool.max_active):
            actions += spawns if missing > 0 else [replace(spawn, reason=awaited or spawn.reason) for spawn in spawns]
        elif spawns or _only_money(pool, snapshot, policy, market, len(spawning)):
            actions += succession.place(pool, snapshot, policy, ready, awaited)
    if missing < 0 and not any(isinstance(action, Terminate) for action in actions):
        # What the lost ones ran is queued again in a moment: whoever is free stays for it.
        again = ceil(sum(w.tasks_running for w in going if w.id in lost) / pool.tasks_per_gpu)
        others = [w for w in spawning if w is not heir]  # who was not begun for the target is not too many for it
        actions += _terminations(pool, snapshot, policy, ready, others, min(target + again, pool.max_active))
    inputs: dict[str, object] = {
        "claimable": demand.claimable,
        "running": running,
        "blocked": dict(sorted(demand.blocked.items())),
        "ready": len(ready),
        "busy": busy,
        "spawning": len(spawning),
        "terminating": len(going),
    }
    return actions, Verdict(pool.name, rule, target, inputs, tuple(held.why), held.until)


def unserved(
    snapshot: Snapshot, policy: Policy, market: Market, *, leaving: frozenset[str]
) -> list[tuple[list[Action], Verdict]]:
    """Pools that are not configured (any more): their idle workers go, and their tasks wait where it can be seen."""
    known = {pool.name for pool in policy.pools}
    tasks = {d.pool: d.claimable for d in snapshot.demand if d.pool not in known}
    names = sorted(tasks.keys() | {w.pool for w in snapshot.workers if w.pool not in known})
    plans = []
    for name in names:
        pool = replace(policy.pools[0], name=name, min_active=0, max_active=0, keep_idle=0)
        actions, verdict = plan(pool, snapshot, policy, market, leaving=leaving)
        blocked = (f"{tasks[name]} task(s): no pool {name!r} is configured",) if tasks.get(name) else ()
        plans.append((actions, replace(verdict, rule=f"no pool {name!r} is configured: 0", blocked=blocked)))
    return plans


def worker_id(fleet_id: str, pool: str, now: datetime, index: int) -> str:
    """`gpu-YYYYMMDD_HHMMSS-<8 hex>`, derived, so that the same snapshot names the same workers."""
    digest = hashlib.sha256(f"{fleet_id}|{pool}|{now.isoformat()}|{index}".encode()).hexdigest()
    return f"gpu-{now:%Y%m%d_%H%M%S}-{digest[:8]}"


def _spawns(
    pool: Pool, snapshot: Snapshot, policy: Policy, market: Market, missing: int, coming: int, held: Held
) -> list[Spawn]:
    pause = snapshot.pause_of(pool.name)
    if pause:
        held.note(f"{missing} spawn(s): paused, {pause.reason}", pause.until)
        return []
    allowed = min(missing, SPAWNS_PER_TICK)
    brake = breaker.brake(pool, snapshot, policy, coming)
    if brake and brake.limit < missing:
        held.note(f"{missing - brake.limit} spawn(s): {brake.why}", brake.until)
        allowed = min(allowed, brake.limit)
    for passed_over in market.passed_over(pool):
        held.note(passed_over)
    spawns: list[Spawn] = []
    for index in range(allowed):
        offer = market.choose(pool)
        if offer is None:
            _, why, until = market.obstacle(pool)
            held.note(f"{missing - index} spawn(s): {why}", until)
            break
        name = worker_id(policy.fleet_id, pool.name, snapshot.now, index)
        spawns.append(Spawn(name, pool.name, offer, f"{missing} below target", market.purse.price(pool, offer)))
    return spawns


def _only_money(pool: Pool, snapshot: Snapshot, policy: Policy, market: Market, coming: int) -> bool:
    """Whether a spawn waits for nothing but the budget."""
    brake = breaker.brake(pool, snapshot, policy, coming)
    may = snapshot.pause_of(pool.name) is None and (brake is None or brake.limit > 0)
    return may and market.obstacle(pool)[0] is WaitingOn.BUDGET


def _terminations(
    pool: Pool, snapshot: Snapshot, policy: Policy, ready: list[Worker], spawning: list[Worker], target: int
) -> list[Terminate]:
    surplus = len(ready) + len(spawning) - target
    beyond_limit = len(ready) + len(spawning) - pool.max_active
    last_spawn = snapshot.last_spawn_at.get(pool.name)
    settled = last_spawn is None or snapshot.now - last_spawn >= timedelta(seconds=policy.scale_down_grace_s)
    out: list[Terminate] = []
    for worker in sorted(spawning, key=lambda w: w.created_at, reverse=True):
        age_s = (snapshot.now - worker.created_at).total_seconds()
        if len(out) >= surplus or worker.id in snapshot.in_flight:
            continue
        if len(out) < beyond_limit:
            why = f"more than MAX_ACTIVE_GPUS={pool.max_active}, and not ready yet"
            out.append(Terminate(worker.id, State.SPAWNING, ExitCause.SCALE_DOWN, None, why))
        elif age_s >= policy.spawning_grace_s and not worker.metadata.get("asked_for"):
            why = f"its work has gone: target {target}, still spawning after {age_s:.0f} s"
            out.append(Terminate(worker.id, State.SPAWNING, ExitCause.SCALE_DOWN, None, why))
    idle = [w for w in ready if w.state is State.IDLE and not w.tasks_running and w.id not in snapshot.in_flight]
    beyond_warm = len(ready) - max(target, min(1, pool.max_active))
    for worker in sorted(idle, key=lambda w: (w.release != policy.release(pool), w.created_at), reverse=True):
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
