"""The size of a pool with SCALING_POLICY=learned: the rule of core/economics on the workers and tasks that are there.

The rule is asked as in a replay: first each idle worker takes a ready task, the one whose last task ended last first.
While idle workers are left, it decides which of them end; otherwise, how many start. Limits, pauses, the breaker,
budgets, offers and rollouts apply afterwards, as for any other pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from orchestrator.core import boots, scale_limits
from orchestrator.core.actions import Terminate
from orchestrator.core.economics.learned import MAX_STARTS, ColdStartRule, LearnedRule
from orchestrator.core.economics.policies import ReviewCandidate, ScalingPolicy
from orchestrator.core.economics.rule import IdleWorker, PoolView
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import EVERY_POOL, Demand, LearnedPool, Snapshot, Worker
from orchestrator.core.plurals import counted
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.core.pool_size import LearnedSize, Size
from orchestrator.core.states import State

FIRST_BOOT_S = 120.0  # the boot time to expect until a worker of the pool was promoted
SHOWN = 3  # idle workers whose time is in the text of a decision


def in_force(policy: Policy, chosen: Mapping[str, ScalingPolicy]) -> Policy:
    """Return the policy with the operators' choices of a rule, by pool or EVERY_POOL."""
    if not chosen:
        return policy

    def decided(pool: Pool) -> Pool:
        wanted = chosen.get(pool.name) or chosen.get(EVERY_POOL) or pool.scaling_policy
        return pool if wanted is pool.scaling_policy else replace(pool, scaling_policy=wanted)

    return replace(policy, pools=tuple(map(decided, policy.pools)))


def is_learned(pool: Pool) -> bool:
    """Whether the rule `learned` decides the size of a pool. That of a cluster pool follows from its cluster."""
    return pool.scaling_policy is ScalingPolicy.LEARNED and pool.kind is PoolKind.QUEUE


def decides(pool: Pool, snapshot: Snapshot) -> bool:
    """Whether it decides now. It does not if the last review found that the fixed settings would be cheaper."""
    return is_learned(pool) and _reviewed(pool, snapshot) is not ReviewCandidate.FIXED


def reviewed(pool: Pool, snapshot: Snapshot) -> ReviewCandidate | None:
    """Return the candidate of the last review that decides instead of the learned rule. None: no other one."""
    found = _reviewed(pool, snapshot) if is_learned(pool) else None
    return None if found is ReviewCandidate.LEARNED else found


def size(
    pool: Pool,
    snapshot: Snapshot,
    policy: Policy,
    demand: Demand,
    ready: Sequence[Worker],
    spawning: Sequence[Worker],
    *,
    warm: int,
    most: int,
) -> LearnedSize:
    """Ask the rule. `ready` and `spawning` are the workers of the pool that count, at least `warm`, at most `most`."""
    facts = snapshot.learned.get(pool.name) or LearnedPool(Statistics(FIRST_BOOT_S))
    known = replace(facts.known, boot_s=_boot_s(pool, snapshot, facts.known))
    kind = ColdStartRule if facts.reviewed is ReviewCandidate.COLD_START else LearnedRule
    rule = kind(known, pool.wait_price, pool.max_wait_s)
    idle = [worker for worker in ready if not worker.tasks_running]
    idle.sort(key=lambda w: (w.release == policy.release(pool), _idle_since(w, facts), w.id))
    view = _view(snapshot, facts, demand, [w for w in ready if w.tasks_running], spawning, idle, most)
    decision = rule.decide(view)
    ends, kept, due = _of_idle(rule, view, idle, snapshot)
    ends, held = ends[: max(0, view.live - warm)], ends[max(0, view.live - warm) :]
    starts, wanted = decision.starts, len(ready) - len(ends) + min(len(spawning), view.queued)
    text = [decision.why] if starts else [f"end {len(ends)}: {ends[-1][1]}"] if ends else []
    if view.queued and view.live + starts >= most:  # how many more it wants, for the reason of the limit
        unlimited = rule.decide(replace(view, most=view.live + MAX_STARTS))
        if unlimited.starts > starts:
            starts, text = unlimited.starts, [unlimited.why]
    if starts:
        wanted = view.live + starts
    inputs: dict[str, object] = {"policy": ScalingPolicy.LEARNED.value, "boot_s": round(known.boot_s), "why": ""}
    inputs |= {"run_s": round(known.run_s, 1), "arrivals_per_min": round(known.arrivals_per_s(view.now) * 60, 1)}
    if held:
        stay = "stay" if len(held) > 1 else "stays"
        text.append(f"{counted(len(held), 'idle worker')} {stay} in any case: at least {counted(warm, 'worker')}")
    inputs["why"] = "; ".join([*text, *_summed(kept)])
    return LearnedSize(decision, wanted, tuple(ends), due if view.idle else decision.review_at, inputs)


def rule(pool: Pool, size: Size) -> str:
    """Return the arithmetic of a decision."""
    learned, target = size.learned, size.target
    assert learned is not None  # noqa: S101
    text = str(learned.inputs["why"])
    if not text:
        queued = size.demand.claimable
        text = (
            f"{counted(queued, 'task')} ready; one more worker saves less than it costs" if queued else "no task waits"
        )
    if target > learned.wanted:
        text += f"; at least {counted(size.warm, 'worker')}: {size.busy} busy + {pool.keep_idle} kept idle, "
        text += f"{pool.min_active} min"
    elif target < learned.wanted:
        text += f"; {scale_limits.most_text(pool)}"
    return f"{text}; target {target}"


def why(size: Size) -> str | None:
    """Return why workers start, if the rule starts any."""
    return size.learned.decision.why if size.learned and size.learned.decision.starts else None


def review_at(learned: LearnedSize) -> datetime | None:
    """Return when the rule must be asked again, if nothing happens before."""
    at = learned.review_at
    return None if at is None else datetime.fromtimestamp(at, UTC)


def terminations(
    pool: Pool, snapshot: Snapshot, policy: Policy, size: Size, spawning: Sequence[Worker], target: int
) -> list[Terminate]:
    """Return which workers end, down to the target: boots as for any rule, and idle workers whose window is over.

    Idle workers beyond the limit end at once.
    """
    assert size.learned is not None  # noqa: S101
    surplus = len(size.ready) + len(spawning) - target
    over = len(size.ready) + len(spawning) - pool.most
    out = boots.cancelled(pool, snapshot, policy, spawning, surplus=surplus, target=target, over=over)
    ends = {worker.id: text for worker, text in size.learned.ends if worker.id not in snapshot.in_flight}
    for worker in _by_age(size.ready, snapshot):
        if len(out) >= surplus:
            break
        if worker.id in ends:
            out.append(Terminate(worker.id, State.IDLE, ExitCause.IDLE_TIMEOUT, None, ends[worker.id]))
        elif len(out) < over:
            text = f"idle, and more than {scale_limits.most_text(pool)}"
            out.append(Terminate(worker.id, State.IDLE, ExitCause.SCALE_DOWN, None, text))
    return out


def _reviewed(pool: Pool, snapshot: Snapshot) -> ReviewCandidate | None:
    facts = snapshot.learned.get(pool.name)
    return facts.reviewed if facts else None


def _by_age(ready: Sequence[Worker], snapshot: Snapshot) -> list[Worker]:
    """Return the idle workers on which no action runs, the one that has been idle longest first."""
    idle = [w for w in ready if w.state is State.IDLE and not w.tasks_running and w.id not in snapshot.in_flight]
    return sorted(idle, key=lambda w: (w.state_since, w.id))


def _view(
    snapshot: Snapshot,
    facts: LearnedPool,
    demand: Demand,
    busy: Sequence[Worker],
    spawning: Sequence[Worker],
    idle: Sequence[Worker],
    most: int,
) -> PoolView:
    now = snapshot.now.timestamp()
    placed = min(len(idle), demand.claimable)
    left = idle[: len(idle) - placed]
    return PoolView(
        now=now,
        waiting=facts.waiting[placed : demand.claimable],
        queued=demand.claimable - placed,
        busy=[*(min(now, facts.busy_since.get(w.id, now)) for w in busy), *[now] * placed],
        booting=[min(now, w.created_at.timestamp()) for w in spawning],
        idle=[IdleWorker(w.created_at.timestamp(), _idle_since(w, facts)) for w in left],
        most=most,
    )


def _of_idle(
    rule: LearnedRule, view: PoolView, idle: Sequence[Worker], snapshot: Snapshot
) -> tuple[list[tuple[Worker, str]], list[str], float | None]:
    """Return the idle workers that end, each with the arithmetic; why the others stay; when the next one is due."""
    ends, kept, dues = [], [], []
    for worker, seen, one in zip(idle, view.idle, rule.kept(view), strict=False):
        due = seen.since + one.kept_s
        if due > view.now:
            dues.append(due)
            until = datetime.fromtimestamp(due, UTC)
            kept.append(f"kept {one.kept_s:.0f} s at level {one.level} until {until:%H:%M:%S}")
        elif worker.state is State.IDLE and worker.id not in snapshot.in_flight:
            ends.append((worker, one.text(view.now - seen.since)))
    return ends, kept, min(dues, default=None)


def _summed(kept: Sequence[str]) -> list[str]:
    if not kept:
        return []
    more = f", and {len(kept) - SHOWN} more" if len(kept) > SHOWN else ""
    return [
        f"{counted(len(kept), 'idle worker')} {'stay' if len(kept) > 1 else 'stays'}: {', '.join(kept[:SHOWN])}{more}"
    ]


def _idle_since(worker: Worker, facts: LearnedPool) -> float:
    """Return when a worker was last in use. Its row may miss a short task, the record of the runs does not."""
    since = worker.state_since if worker.state is State.IDLE else worker.empty_since or worker.state_since
    return max(since.timestamp(), facts.last_end.get(worker.id, 0.0))


def _boot_s(pool: Pool, snapshot: Snapshot, known: Statistics) -> float:
    """Return the usual boot time of the offer that the pool would take now; if it is unknown, of the pool."""
    states = snapshot.offers
    free = (
        offer.key
        for offer in pool.offers
        if (state := states.get(offer.key)) is None or not state.cooldown_until or state.cooldown_until <= snapshot.now
    )
    of_offer = boots.usual_boot_s(pool.name, snapshot.ended, next(free, None))
    return of_offer or boots.usual_boot_s(pool.name, snapshot.ended) or known.boot_s
