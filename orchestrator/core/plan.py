"""One tick's thinking: the phases, in order. Pure: the same snapshot and policy give the same plan.

    lifecycle  what each live worker needs next (adopt, bring up, watch, drain, flush, delete, mark terminated)
    budget     which workers end because the money is used up
    orphans    pods of this fleet that no live row names
    rescue     tasks whose lease is over
    scaling    how many workers each pool should have; spawns and terminations
    capacity   which offer each recorded intent asks for

No two phases act on the same worker: a worker that lifecycle ended or scaling dropped is out of the later phases.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.core import budget, lifecycle, offers, orphans, rescue, scaling, sharing
from orchestrator.core.actions import (
    Action,
    Adopt,
    ContinueBringUp,
    Create,
    MarkTerminated,
    Plan,
    PoolDecision,
    Rescue,
    SetActivity,
    Spawn,
    Terminate,
    UpdateAddress,
    Wait,
)
from orchestrator.core.blocked import Blocked, Kind
from orchestrator.core.exit_causes import FAILURES
from orchestrator.core.model import EndedBringUp, Policy, Snapshot
from orchestrator.core.states import State

ROWS_PER_TICK = 30  # a thousand pods may be found gone at once: the tick must stay short, and the lease be renewed
# A create whose reply is lost is found only by a list, and a bring-up reads its pod from one.
NEED_A_LIST = (Spawn, Create, ContinueBringUp)
WRITTEN = (Adopt, MarkTerminated, UpdateAddress, SetActivity, Spawn, Terminate, Wait)


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide what to do now. Without a pod list: deadlines, budgets, idle timeouts and operator requests only."""
    if snapshot.pods is None:
        snapshot = replace(snapshot, absent={}, orphan_since={})  # earlier lists prove nothing about the present
    actions: list[Action] = [*lifecycle.plan(snapshot, policy), *orphans.plan(snapshot, policy)]
    actions += rescue.plan(snapshot, policy)
    actions = _dropped(actions, budget.plan(snapshot, policy, leaving=_ended(actions)))
    decisions = []
    late = _without_a_list(snapshot)
    for changes, decision in sizes(snapshot, policy, actions):
        actions += changes
        decisions.append(replace(decision, blocked=(*decision.blocked, *late)))
    if snapshot.pods is None:
        # The first list is under way for a few seconds: it may show pods to adopt before their deadlines are judged.
        failed = snapshot.unlisted is not None
        actions = [a for a in actions if isinstance(a, Rescue) or (failed and not isinstance(a, NEED_A_LIST))]
    return Plan(tuple(_bounded(actions)), tuple(decisions))


def sizes(snapshot: Snapshot, policy: Policy, actions: Sequence[Action]) -> list[tuple[list[Action], PoolDecision]]:
    """What each pool's size comes to and what that takes, after `actions`; pools that nobody configured come last."""
    snapshot = _with_ends(snapshot, actions)
    leaving, lost = _ended(actions), _ended(a for a in actions if isinstance(a, Terminate) and a.cause in FAILURES)
    selector = offers.OfferSelector(snapshot, policy)
    sized = {pool.name: scaling.size(pool, snapshot, policy, leaving=leaving) for pool in policy.pools}
    shares = sharing.offers(policy.pools, sized, snapshot, policy, selector)
    plans = []
    for pool in policy.pools:
        mine, share = sized[pool.name], shares[pool.name]
        changes, decision = scaling.plan(pool, mine, snapshot, policy, selector, offers=share, lost=lost)
        chosen, waits = offers.plan(pool, snapshot, policy, selector, leaving=leaving | _ended(changes))
        plans.append(([*changes, *chosen, *waits], decision))
    return plans + scaling.unserved(snapshot, policy, selector, leaving=leaving)


def _without_a_list(snapshot: Snapshot) -> tuple[Blocked, ...]:
    """Return what the decision says about a pod list that is missing or old."""
    if snapshot.pods is None:
        return (Blocked(Kind.NO_POD_LIST, detail={"error": snapshot.unlisted or "none came yet"}),)
    return (Blocked(Kind.OLD_POD_LIST, detail={"error": snapshot.unlisted}),) if snapshot.unlisted else ()


def in_transition(snapshot: Snapshot) -> bool:
    """Whether the next tick should come soon: somebody is coming, going, missing or not ours."""
    moving = any(w.state in (State.SPAWNING, State.TERMINATING) for w in snapshot.workers)
    return moving or snapshot.pods is None or bool(snapshot.absent) or bool(snapshot.orphan_since)


def _dropped(actions: Iterable[Action], ends: Iterable[Terminate]) -> list[Action]:
    """The ends, and what was planned for everybody else: the bring-up of a worker that ends does not go on."""
    gone = _ended(ends)
    return [a for a in actions if getattr(a, "worker_id", None) not in gone] + list(ends)


def _bounded(actions: Iterable[Action]) -> Iterable[Action]:
    """Of those whose rows the tick waits for the first ROWS_PER_TICK, remarks last; the next tick goes on."""
    rows = 0
    for action in sorted(actions, key=lambda action: isinstance(action, Wait)):
        rows += isinstance(action, WRITTEN)
        if rows <= ROWS_PER_TICK or not isinstance(action, WRITTEN):
            yield action


def _with_ends(snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
    """The snapshot with the ends of this tick among the ended bring-ups, so that the breaker counts them at once."""
    rows = {worker.id: worker for worker in snapshot.workers}
    ends = {a.worker_id: a for a in actions if isinstance(a, Terminate)}
    known = [
        replace(bring_up, exit_cause=end.cause, failure_code=end.code, ending_since=snapshot.now)
        if bring_up.promoted and (end := ends.get(bring_up.worker_id))
        else bring_up
        for bring_up in snapshot.ended
    ]
    known += [
        EndedBringUp(
            a.worker_id, rows[a.worker_id].pool, snapshot.now, False, a.cause, a.code, rows[a.worker_id].release
        )
        for a in ends.values()
        if a.from_state is State.SPAWNING
    ]
    return replace(snapshot, ended=tuple(known))


def _ended(actions: Iterable[Action]) -> frozenset[str]:
    return frozenset(a.worker_id for a in actions if isinstance(a, Terminate))
