"""One tick's planning: the phases, in order. Pure: the same snapshot and policy give the same plan.

    lifecycle  the next action of each live worker (adopt, bring up, watch, drain, flush, delete, mark terminated)
    orphans    pods of this fleet that no live row names
    rescue     tasks whose lease has expired
    budget     which workers end because the money is used up
    scaling    how many workers each pool should have, by the settings or as learned; spawns and terminations
    offers     the offer for each recorded intent

A phase skips the workers that an earlier one ends. If budget ends a worker, its other actions are dropped; if scaling
ends it, the calls to its pod are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.core import (
    budget,
    learned_scaling,
    lifecycle,
    offers,
    orphans,
    rescue,
    scale_limits,
    scaling,
    scheduled_sizes,
    sharing,
    silence,
)
from orchestrator.core.actions import (
    Action,
    Adopt,
    AskPod,
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
from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.exit_causes import ABRUPT
from orchestrator.core.model import EndedBringUp, Snapshot
from orchestrator.core.policy import Policy
from orchestrator.core.states import READY, State

ROWS_PER_TICK = 30  # a thousand pods may vanish at once: the tick must stay short, because the lease must be renewed
QUESTIONS_AT_ONCE = 100  # to pods: a worker whose question waits in a queue could not be ended meanwhile
CALLS_TO_A_POD = (ContinueBringUp, AskPod)  # useless for a worker that ends
# These actions need a pod list: only a list finds the pod of a lost reply, and a bring-up reads its pod from a list.
NEED_A_LIST = (Spawn, Create, ContinueBringUp)
WRITTEN = (Adopt, MarkTerminated, UpdateAddress, SetActivity, Spawn, Terminate, Wait)


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide what to do now.

    After a failed pod list, nothing is spawned, created or brought up, and nothing counts as absent. What the database
    alone shows still acts: deadlines, budgets, idle time, requests, silence, findings and expired leases. Before the
    first list, only the rescue of tasks acts.
    """
    if snapshot.pods is None:
        snapshot = replace(snapshot, absent={}, orphan_since={})  # earlier lists say nothing about the present
    policy = scheduled_sizes.in_force(policy, snapshot.now)
    limited = scale_limits.in_force(policy, snapshot)
    actions: list[Action] = [*lifecycle.plan(snapshot, limited), *orphans.plan(snapshot, policy)]
    actions += rescue.plan(snapshot, policy)
    actions = _replaced(actions, budget.plan(snapshot, policy, leaving=_ended(actions)))
    decisions = []
    list_reasons = _list_reasons(snapshot)
    for changes, decision in plan_pools(snapshot, policy, actions):
        ended = _ended(changes)
        actions = [a for a in actions if not isinstance(a, CALLS_TO_A_POD) or a.worker_id not in ended]
        actions += changes
        decisions.append(replace(decision, blocked=(*decision.blocked, *list_reasons)))
    if snapshot.pods is None:
        # The first list takes a few seconds. It may show pods to adopt, so deadlines wait for it.
        failed = snapshot.unlisted is not None
        actions = [a for a in actions if isinstance(a, Rescue) or (failed and not isinstance(a, NEED_A_LIST))]
    return Plan(tuple(_bounded(actions, snapshot)), tuple(decisions))


def plan_pools(
    snapshot: Snapshot, policy: Policy, actions: Sequence[Action]
) -> list[tuple[list[Action], PoolDecision]]:
    """Return the actions and the decision of each pool, after `actions`. Pools that are not configured come last."""
    snapshot = _with_ends(snapshot, actions)
    policy = learned_scaling.in_force(scheduled_sizes.in_force(policy, snapshot.now), snapshot.scaling_policies)
    leaving, lost = _ended(actions), _ended(a for a in actions if isinstance(a, Terminate) and a.cause in ABRUPT)
    policy = scale_limits.in_force(policy, snapshot, leaving=leaving)
    selector = offers.OfferSelector(snapshot, policy, leaving=leaving)
    sizes = {pool.name: scaling.size_of(pool, snapshot, policy, leaving=leaving) for pool in policy.pools}
    shares = sharing.offers(policy.pools, sizes, snapshot, policy, selector)
    plans = []
    for pool in policy.pools:
        size, share = sizes[pool.name], shares[pool.name]
        changes, decision = scaling.plan(pool, size, snapshot, policy, selector, offers=share, lost=lost)
        chosen, waits = offers.plan(pool, snapshot, policy, selector, leaving=leaving | _ended(changes))
        plans.append(([*changes, *chosen, *waits], decision))
    return plans + scaling.unserved(snapshot, policy, selector, leaving=leaving)


def _list_reasons(snapshot: Snapshot) -> tuple[Blocked, ...]:
    """Return the blocked reason of a missing or old pod list."""
    if snapshot.pods is None:
        return (Blocked(BlockedReason.NO_POD_LIST, detail={"error": snapshot.unlisted or "none came yet"}),)
    return (Blocked(BlockedReason.OLD_POD_LIST, detail={"error": snapshot.unlisted}),) if snapshot.unlisted else ()


def in_transition(snapshot: Snapshot) -> bool:
    """Whether the next tick should come soon: a worker starts, ends or is silent, or a pod is missing or an orphan."""
    moving = any(w.state in (State.SPAWNING, State.TERMINATING) for w in snapshot.workers)
    moving = moving or silence.has_open_question(snapshot)
    return moving or snapshot.pods is None or bool(snapshot.absent) or bool(snapshot.orphan_since)


def _replaced(actions: Iterable[Action], ends: Iterable[Terminate]) -> list[Action]:
    """Replace all other actions on the workers that end: a worker's bring-up stops when the worker ends."""
    ending = _ended(ends)
    return [a for a in actions if getattr(a, "worker_id", None) not in ending] + list(ends)


def _bounded(actions: Iterable[Action], snapshot: Snapshot) -> Iterable[Action]:
    """Keep the first actions that write rows, and the most urgent questions. The next tick continues.

    Ends come first: a worker that is started in the place of another one must not be there before that one ends.
    Remarks come last.
    """
    rows, questions = 0, sum(one.id in snapshot.in_flight for one in snapshot.workers if one.state in READY)

    def place(action: Action) -> tuple[int, float]:
        """Return the place of an action.

        Of the questions, a pod that SSH did not reach is first, because its tries belong together. Then follows the
        one with the oldest answer.
        """
        answer = snapshot.pod_answers.get(action.worker_id) if isinstance(action, AskPod) else None
        if answer is None or (answer.calls_unanswered is None and answer.has_network):
            rank = 0 if isinstance(action, Terminate) else 2 if isinstance(action, Wait) else 1
            return rank, 0.0 if answer is None else -1.0
        return 1, answer.at.timestamp()

    for action in sorted(actions, key=place):
        rows += isinstance(action, WRITTEN)
        questions += isinstance(action, AskPod)
        if isinstance(action, WRITTEN):
            is_allowed = rows <= ROWS_PER_TICK
        else:
            is_allowed = not isinstance(action, AskPod) or questions <= QUESTIONS_AT_ONCE
        if is_allowed:
            yield action


def _with_ends(snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
    """Add this tick's ends to the snapshot's ended bring-ups, so that the breaker counts them at once."""
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
