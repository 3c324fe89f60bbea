"""How many workers a pool should have, and which ones start or end.

    target = clamp(max(ceil(demand / TASKS_PER_GPU_THRESHOLD), busy + MACHINES_TO_KEEP_IDLE, MIN_ACTIVE_GPUS),
                   0, MAX_ACTIVE_GPUS - ready workers that claim no more)

An operator's limit for a time takes the place of MAX_ACTIVE_GPUS while it is lower (scale_limits.py).

Demand is claimable plus running tasks; blocked tasks never scale anything. A pool grows at once, as far as pause,
breaker, offers and budgets allow (sharing.py divides what pools share); core/blocked.py has the reasons for which it
does not. It shrinks by idle workers, and by spawning workers that exceed the limit, or whose work is gone and whose
boot costs more than it can still save. It never shrinks below the target. Workers beyond the target end after the
overcapacity timeout, but one worker stays warm until the idle timeout. If tasks wait for a handler that only the
present release has, the first worker of that release is started beyond the target (rollout.py).

With SCALING_POLICY=learned, learned_scaling.py decides what is wanted and which idle workers end.
The size of a cluster pool is the number of nodes that its Slurm cluster wants (cluster_scaling.py).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil

from orchestrator.core import (
    boots,
    breaker,
    cluster_scaling,
    decision_text,
    fitness,
    learned_scaling,
    rollout,
    scale_limits,
    scheduled_sizes,
    store_outage,
)
from orchestrator.core.actions import Action, PoolDecision, Spawn, Terminate
from orchestrator.core.blocked import INTENTS, SPAWNS, TASKS, WORKERS, Blocked, BlockedReason
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.meanings import BUDGET
from orchestrator.core.model import EVERY_POOL, Demand, Pause, Snapshot, Worker
from orchestrator.core.offers import OfferSelector
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.core.pool_size import Size
from orchestrator.core.provider import Offer
from orchestrator.core.states import READY, Stage, State

SPAWNS_PER_TICK = 100  # bounds the plan; plan.ROWS_PER_TICK bounds the execution


def size_of(pool: Pool, snapshot: Snapshot, policy: Policy, *, leaving: frozenset[str]) -> Size:
    """Calculate the size of a pool. The workers `leaving` end in this tick, so they do not count."""
    if pool.kind is PoolKind.CLUSTER:
        return cluster_scaling.size(pool, snapshot, policy, leaving=leaving)
    demand = next((d for d in snapshot.demand if d.pool == pool.name), Demand(pool.name, 0, 0, {}, None))
    if snapshot.store_outage:  # queued tasks are no demand while no worker may claim: idle workers end as usual
        demand = replace(demand, claimable=0, blocked={**demand.blocked, "store": demand.claimable})
    here = [w for w in snapshot.workers if w.pool == pool.name and w.id not in leaving]
    ready = [w for w in here if w.state in READY and w.is_fit]
    unfit = [w for w in here if w.state in READY and not w.is_fit]
    spawning = [w for w in here if w.state is State.SPAWNING]
    busy = sum(1 for w in ready if w.tasks_running)
    ending = [w for w in snapshot.workers if w.pool == pool.name and (w.state is State.TERMINATING or w.id in leaving)]
    running = max(0, demand.running - sum(w.tasks_running for w in ending))
    kept = [one for one in fitness.kept(pool, snapshot, policy) if one not in leaving]
    warm = max(busy + pool.keep_idle, pool.min_active) - len(kept)
    learned = None
    if learned_scaling.decides(pool, snapshot):
        bounds = {"warm": warm, "most": pool.most - len(unfit)}
        learned = learned_scaling.size(pool, snapshot, policy, demand, ready, spawning, **bounds)
    wanted = max(learned.wanted if learned else ceil((demand.claimable + running) / pool.tasks_per_gpu), warm)
    awaited = rollout.awaited(pool, policy, [*here, *ending], demand)
    replacement = next((w for w in spawning if awaited and w.release == policy.release(pool)), None)
    target = max(0, min(wanted, pool.most - len(unfit)))  # ending workers have pods until they are terminated
    counted = demand, ready, spawning, ending, busy, running, wanted, target
    return Size(*counted, awaited, replacement, suspects=len(kept), unfit=unfit, learned=learned, warm=warm)


def allowed(pool: Pool, size: Size, snapshot: Snapshot, policy: Policy) -> int:
    """Return how many of the wanted spawns a pause, an outage of the object store and the breaker allow."""
    if size.asked <= 0 or size.refused or snapshot.pause_of(pool.name) or snapshot.store_outage:
        return 0
    limit = breaker.spawn_limit(pool, snapshot, policy, len(size.spawning))
    return min(size.asked, SPAWNS_PER_TICK, limit.spawns if limit else SPAWNS_PER_TICK)


def plan(
    pool: Pool,
    size: Size,
    snapshot: Snapshot,
    policy: Policy,
    selector: OfferSelector,
    *,
    offers: Sequence[Offer] = (),
    lost: frozenset[str] = frozenset(),
) -> tuple[list[Action], PoolDecision]:
    """Return the spawns and terminations of one pool, with its decision.

    `offers` is the pool's share of the offers in this tick. Ending workers in `lost` complete no more tasks.
    """
    if pool.kind is PoolKind.CLUSTER:
        return _of_cluster(pool, size, snapshot, policy, selector, offers)
    demand, target = size.demand, size.target
    rule = learned_scaling.rule(pool, size) if size.learned else _formula(pool, size)
    rule += decision_text.reviewed(learned_scaling.reviewed(pool, snapshot)) + scheduled_sizes.text(pool)
    if size.suspects:
        rule += f"; {size.suspects} fewer, because as many suspects stay warm until tasks come"
    if size.awaited:
        rule += f"; 1 more, {size.awaited}"
    reasons = _blocked(pool, size, snapshot) + _failing(pool, size, snapshot, policy)
    actions: list[Action] = []
    if size.asked > 0:
        spawns = _spawns(pool, size, snapshot, policy, selector, offers, reasons)
        if size.awaited is None or size.replacement or (spawns and size.live + len(size.unfit) < pool.most):
            why = None if size.missing > 0 else size.awaited
            actions += [replace(spawn, reason=why) for spawn in spawns] if why else spawns
        elif spawns or _lacks_room(pool, size, snapshot, policy, selector):
            actions += rollout.place(pool, snapshot, policy, [*size.unfit, *size.ready], size.awaited)
    if size.missing < 0 and not any(isinstance(action, Terminate) for action in actions):
        # The tasks of lost workers will be queued again soon, so idle workers stay for them.
        kept = ceil(sum(w.tasks_running for w in size.ending if w.id in lost) / pool.tasks_per_gpu)
        others = [w for w in size.spawning if w is not size.replacement]  # its start was not part of the target
        ends = learned_scaling.terminations if size.learned else _terminations
        actions += ends(pool, snapshot, policy, size, others, min(target + kept, pool.most))
    inputs: dict[str, object] = {
        "claimable": demand.claimable,
        "running": size.running,
        "blocked": dict(sorted(demand.blocked.items())),
        "ready": len(size.ready),
        "busy": size.busy,
        "spawning": len(size.spawning),
        "terminating": len(size.ending),
        "wanted": size.wanted,
        "tasks_per_gpu": pool.tasks_per_gpu,
        "keep_idle": pool.keep_idle,
        "min_active": pool.min_active,
        "max_active": pool.max_active,
    } | ({"awaited": size.awaited} if size.awaited else {})
    if pool.scale_limit:
        inputs["scale_limit"] = pool.scale_limit.allowed
    if size.learned:
        inputs |= size.learned.inputs
    if snapshot.scaling_policies.keys() & {pool.name, EVERY_POOL}:
        inputs |= {"policy": pool.scaling_policy.value, "policy_by": "operator"}
    if found := learned_scaling.reviewed(pool, snapshot):
        inputs["reviewed"] = found.value
    review_at = learned_scaling.review_at(size.learned) if size.learned else None
    return actions, PoolDecision(pool.name, rule, target, inputs, tuple(reasons), review_at)


def _formula(pool: Pool, size: Size) -> str:
    return (
        f"min(max(ceil(({size.demand.claimable} ready + {size.running} running) / {pool.tasks_per_gpu}), "
        f"{size.busy} busy + {pool.keep_idle} kept idle, {pool.min_active} min), "
        f"{scale_limits.most_text(pool)}) = {size.target}"
    )


def _of_cluster(
    pool: Pool, size: Size, snapshot: Snapshot, policy: Policy, selector: OfferSelector, offers: Sequence[Offer]
) -> tuple[list[Action], PoolDecision]:
    size = replace(size, refused=size.refused or selector.unpaid.get(pool.name))
    ends, decision = cluster_scaling.plan(pool, size, snapshot)
    reasons = list(decision.blocked)
    spawns = _spawns(pool, size, snapshot, policy, selector, offers, reasons) if size.asked > 0 else []
    return [*spawns, *ends], replace(decision, blocked=tuple(reasons))


def _blocked(pool: Pool, size: Size, snapshot: Snapshot) -> list[Blocked]:
    """Return the blocked reasons of the limit, a pause, and an outage of the store."""
    reasons = []
    within = max(size.target, min(size.wanted, pool.max_active - len(size.unfit)))
    if size.wanted > within:
        reasons.append(scheduled_sizes.most_reason(pool, size.wanted - within, snapshot.now))
    if pool.scale_limit and within > size.target:
        reasons.append(scale_limits.reason(pool.scale_limit, within - size.target, WORKERS))
    pause, blocked = snapshot.pause_of(pool.name), size.demand.blocked
    if pause and blocked.get("paused"):
        reasons.append(_paused(pause, blocked["paused"], TASKS))
    if blocked.get("concurrency"):
        reasons.append(Blocked(BlockedReason.CONCURRENCY, blocked["concurrency"], TASKS))
    if snapshot.store_outage and blocked["store"]:
        reasons.append(store_outage.reason(snapshot.store_outage, blocked["store"], TASKS))
    recorded = [w for w in size.spawning if w.stage is Stage.INTENT and w.id not in snapshot.in_flight]
    intents = sum(1 for w in recorded if not w.metadata.asked_for)
    if pause and intents:
        reasons.append(_paused(pause, intents, INTENTS))
    return reasons


def _failing(pool: Pool, size: Size, snapshot: Snapshot, policy: Policy) -> list[Blocked]:
    """Return why tasks wait although no worker is missing: the last ones failed on every worker."""
    if size.asked > 0 or not size.demand.claimable:  # the breaker's limit of the spawns has the same reason
        return []
    failing = breaker.failing(pool, policy.release(pool), snapshot, len(size.spawning))
    return [replace(failing.reason, count=size.demand.claimable, unit=TASKS)] if failing else []


def _paused(pause: Pause, count: int, unit: str) -> Blocked:
    return Blocked(BlockedReason.PAUSED, count, unit, {"reason": pause.reason}, pause.until)


def unserved(
    snapshot: Snapshot, policy: Policy, selector: OfferSelector, *, leaving: frozenset[str]
) -> list[tuple[list[Action], PoolDecision]]:
    """Decide for pools that are not configured: their idle workers end, and a blocked reason shows their tasks."""
    known = {pool.name for pool in policy.pools}
    tasks = {d.pool: d.claimable for d in snapshot.demand if d.pool not in known}
    names = sorted(tasks.keys() | {w.pool for w in snapshot.workers if w.pool not in known})
    plans = []
    for name in names:
        off = replace(policy.pools[0], min_active=0, max_active=0, keep_idle=0, scale_limit=None, sized_by=None)
        pool = replace(off, name=name, scaling_policy=ScalingPolicy.FIXED)
        actions, decision = plan(pool, size_of(pool, snapshot, policy, leaving=leaving), snapshot, policy, selector)
        blocked = (Blocked(BlockedReason.POOL_UNKNOWN, tasks[name], TASKS, {"pool": name}),) if tasks.get(name) else ()
        plans.append((actions, replace(decision, rule=f"no pool {name!r} is configured: 0", blocked=blocked)))
    return plans


def worker_id(fleet_id: str, pool: str, now: datetime, index: int) -> str:
    """`gpu-YYYYMMDD_HHMMSS-<8 hex>` in UTC, derived, so that the same snapshot gives the same ids."""
    digest = hashlib.sha256(f"{fleet_id}|{pool}|{now.isoformat()}|{index}".encode()).hexdigest()
    return f"gpu-{now.astimezone(UTC):%Y%m%d_%H%M%S}-{digest[:8]}"


def _spawns(
    pool: Pool,
    size: Size,
    snapshot: Snapshot,
    policy: Policy,
    selector: OfferSelector,
    offers: Sequence[Offer],
    reasons: list[Blocked],
) -> list[Spawn]:
    pause = snapshot.pause_of(pool.name)
    if pause:
        reasons.append(_paused(pause, size.asked, SPAWNS))
        return []
    if snapshot.store_outage:
        reasons.append(store_outage.reason(snapshot.store_outage, size.asked, SPAWNS))
        return []
    if size.refused is not None:  # the decision has this reason already
        return []
    limit = breaker.spawn_limit(pool, snapshot, policy, len(size.spawning))
    if limit and limit.spawns < size.asked:
        reasons.append(replace(limit.reason, count=size.asked - limit.spawns))
    reasons += selector.passed_over(pool)
    if len(offers) < allowed(pool, size, snapshot, policy):
        reasons.append(replace(selector.obstacle(pool), count=size.asked - len(offers)))
    return [
        Spawn(
            worker_id(policy.fleet_id, pool.name, snapshot.now, index),
            pool.name,
            offer,
            learned_scaling.why(size) or f"{size.asked} below target",
            selector.room.price(pool, offer),
            size.cluster.id if size.cluster else None,
        )
        for index, offer in enumerate(offers)
    ]


def _lacks_room(pool: Pool, size: Size, snapshot: Snapshot, policy: Policy, selector: OfferSelector) -> bool:
    """Whether only the budget or the limit of the whole fleet blocks a spawn."""
    if not allowed(pool, size, snapshot, policy):
        return False
    kind = selector.obstacle(pool).kind
    return kind is BlockedReason.SCALE_LIMIT or kind.row.who == BUDGET


def _terminations(
    pool: Pool, snapshot: Snapshot, policy: Policy, size: Size, spawning: list[Worker], target: int
) -> list[Terminate]:
    ready = size.ready
    surplus = len(ready) + len(spawning) - target
    beyond_limit = len(ready) + len(spawning) - pool.most
    last_spawn = snapshot.last_spawn_at.get(pool.name)
    settled = last_spawn is None or snapshot.now - last_spawn >= timedelta(seconds=policy.scale_down_grace_s)
    out = boots.cancelled(pool, snapshot, policy, spawning, surplus=surplus, target=target, over=beyond_limit)
    idle = [w for w in ready if w.state is State.IDLE and not w.tasks_running and w.id not in snapshot.in_flight]
    beyond_warm = len(ready) - max(target, min(1, pool.most))
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
