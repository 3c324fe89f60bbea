"""Rules about pools: why no worker starts, and when the queue will be finished."""

from collections.abc import Callable, Iterator, Mapping

from orchestrator.core.blocked import Blocked, number, text
from orchestrator.core.blocked import BlockedReason as Reason
from orchestrator.core.blocked import fix as fix_of
from orchestrator.core.breaker import OF_THE_ACCOUNT, OF_THE_SPEC
from orchestrator.core.exit_causes import FAILURES
from orchestrator.core.failures import FailureCode
from orchestrator.core.meanings import NOBODY
from orchestrator.core.model import EndedBringUp
from orchestrator.core.plurals import BoundedCount, counted, queued
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.evidence import evidence_text
from orchestrator.diagnostics.facts import HEAD, RECENT_S, Facts, PoolFacts, minutes

BACKLOG_S = 900.0  # seconds that the oldest task of a backlog has waited
# Kind of condition -> seconds in which it is no trouble: a new leader gets RunPod's prices with its first lists.
SETTLES_S: Mapping[ConditionKind, float] = {ConditionKind.PRICE_UNKNOWN: 60.0}
# Blocked reason of a pool -> the condition. Pauses, the pod list and the store have conditions of their own.
BLOCKED: Mapping[Reason, ConditionKind] = {
    Reason.HALTED: ConditionKind.HALTED,
    Reason.DAILY_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.HOURLY_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.CLUSTER_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.DEAR_PODS: ConditionKind.DEAR_PODS,
    Reason.NO_CLUSTER: ConditionKind.NO_CLUSTER,
    Reason.PRICE_UNKNOWN: ConditionKind.PRICE_UNKNOWN,
    Reason.OFFERS_REFUSED: ConditionKind.SOLD_OUT,
    Reason.NO_OFFER_AT_VOLUME: ConditionKind.OFFERS_UNUSABLE,
    Reason.VOLUME_UNUSABLE: ConditionKind.OFFERS_UNUSABLE,
    Reason.REGISTRY_UNUSABLE: ConditionKind.OFFERS_UNUSABLE,
    Reason.POOL_UNKNOWN: ConditionKind.POOL_UNKNOWN,
    Reason.BREAKER_OPEN: ConditionKind.BREAKER_OPEN,
    Reason.SCALE_LIMIT: ConditionKind.SCALE_LIMITED,
}
LIMITS = frozenset(
    {ConditionKind.PAUSED, ConditionKind.SCALE_LIMITED, ConditionKind.BUDGET_SPENT}
)  # set on purpose: no impact while the pool's workers continue
WAITS = {
    "capacity": ConditionKind.SOLD_OUT,
    "budget": ConditionKind.BUDGET_SPENT,
}  # the party that a recorded worker waits for -> the condition
# Conditions that stop a queue: it is shown as a backlog at once, and it is never finished while they last.
STOPS = frozenset(
    {
        *BLOCKED.values(),
        ConditionKind.POOL_OFF,
        ConditionKind.NO_LEADER,
        ConditionKind.TICKS_FAIL,
        ConditionKind.STORE_DOWN,
        ConditionKind.API_KEY_REFUSED,
        ConditionKind.NO_MONEY,
        ConditionKind.CLUSTER_FAILED,
        ConditionKind.CLUSTER_DEGRADED,
        ConditionKind.BRINGUPS_FAIL,
        ConditionKind.GATEWAY_UNREACHED,
        ConditionKind.PAUSED,
    }
)
# Conditions because of which no more workers are started. Ready workers continue.
NO_MORE_WORKERS = frozenset(
    {
        *BLOCKED.values(),
        ConditionKind.POOL_OFF,
        ConditionKind.PAUSED,
        ConditionKind.BRINGUPS_FAIL,
        ConditionKind.NO_LEADER,
        ConditionKind.TICKS_FAIL,
        ConditionKind.NO_MONEY,
        ConditionKind.API_KEY_REFUSED,
        ConditionKind.PROVIDER_DOWN,
    }
)
# Codes of bring-ups that have conditions of their own: HALTED and SOLD_OUT.
REFUSALS = OF_THE_ACCOUNT | OF_THE_SPEC | {FailureCode.NO_CAPACITY}


# The reasons for which a pool has no more workers, because of its own size.
MOST = frozenset({Reason.MAX_ACTIVE, Reason.SCHEDULED_SIZE})


def _pools(facts: Facts) -> Iterator[Condition]:
    """Find what prevents each pool from having the workers that it wants."""
    for pool in facts.pools:
        found = {one.kind: one for one in (*_refused(facts, pool), *_blocked(facts, pool), *_waiting(facts, pool))}
        yield from found.values()
        yield from _bringups(facts, pool)


def _impact(facts: Facts, pool: PoolFacts, kind: ConditionKind) -> Impact:
    """Return whether ready tasks of the pool wait because of a condition of this kind."""
    if not pool.ready_tasks:
        return Impact.NONE
    return Impact.NONE if kind in LIMITS and facts.capacity(pool.name) else Impact.WAIT


def _blocked(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find the planner's reasons for workers that are not started."""
    for reason in pool.blocked:
        is_off = reason.kind is Reason.MAX_ACTIVE and not reason.detail.get("limit")
        kind = ConditionKind.POOL_OFF if is_off else BLOCKED.get(reason.kind)
        if kind is None or not reason.count or _is_settling(facts, pool, reason, kind):
            continue
        if kind is ConditionKind.NO_CLUSTER and any(one.pool == pool.name for one in facts.clusters):
            continue  # it has failed, which cluster_rules.py says
        since = pool.since.get(reason.kind) if pool.since else None
        detail, impact = {"pool": pool.name, "count": number(reason)} | _meaning(reason), _impact(facts, pool, kind)
        # What a refusal means is in the condition's own text.
        evidence = f"{counted(number(reason), reason.unit)} blocked" if reason.kind is Reason.HALTED else text(reason)
        yield Condition(kind, pool.name, detail, evidence, impact, since, reason.until, (pool.name,))


def _is_settling(facts: Facts, pool: PoolFacts, reason: Blocked, kind: ConditionKind) -> bool:
    """Return whether the reason is too new to be shown. A reason that no recorded decision names is new."""
    if pool.since is None or kind not in SETTLES_S:
        return False
    since = pool.since.get(reason.kind)
    return since is None or facts.ago_s(since) < SETTLES_S[kind]


def _meaning(reason: Blocked) -> dict[str, str]:
    """Return the meaning of the reason and its fix, by the failure code that it names or by its kind."""
    code = str(reason.detail.get("code") or reason.detail.get("tried_after") or "")
    cause, row = causes.of(code), reason.kind.row
    source = cause or row
    return {"code": code, "means": source.means, "fix": source.fix, "who": source.who, "then": source.then}


def _refused(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find what RunPod refused last, also while the next try is under way and the planner blocks nothing."""
    last = next((one for one in reversed(facts.ended) if one.pool == pool.name), None)
    if last is None or last.promoted or last.failure_code not in REFUSALS:
        return
    of_account = last.failure_code in OF_THE_ACCOUNT  # then any pool's success shows that the refusal is over
    own = {one.offer for one in facts.ended if one.pool == pool.name}
    known = [offer for key, offer in facts.offers.items() if of_account or key in own]
    if any(offer.last_success and offer.last_success > last.at for offer in known):
        return
    if not pool.ready_tasks and facts.ago_s(last.at) > RECENT_S:
        return  # nothing is asked for, so nobody knows
    if last.failure_code == FailureCode.NO_CAPACITY:
        if facts.lacks_workers(pool.name) and facts.ago_s(last.at) < RECENT_S:
            evidence = f"the last of them {minutes(facts.ago_s(last.at))} ago"
            yield Condition(
                ConditionKind.SOLD_OUT, pool.name, {"pool": pool.name}, evidence, Impact.WAIT, pools=(pool.name,)
            )
    else:
        reason = Blocked(Reason.HALTED, detail={"code": str(last.failure_code)})
        detail = {"pool": pool.name, **_meaning(reason)}
        kind, evidence = ConditionKind.HALTED, _evidence(facts, pool, str(last.failure_code))
        impact = _impact(facts, pool, kind)
        yield Condition(kind, pool.name, detail, evidence, impact, last.at, pools=(pool.name,))


def _waiting(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find recorded workers that wait for an offer or for money."""
    for worker in facts.workers:
        if worker.pool == pool.name and worker.state == "spawning" and (kind := WAITS.get(worker.waiting_on)):
            detail, impact, since = {"pool": pool.name}, _impact(facts, pool, kind), worker.state_since
            yield Condition(kind, pool.name, detail, worker.waiting_for, impact, since, pools=(pool.name,))


def _bringups(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find the newest bring-ups if they failed one after the other."""
    failed: list[EndedBringUp] = []
    for one in reversed([one for one in facts.ended if one.pool == pool.name]):
        if one.promoted:
            break
        if one.exit_cause in FAILURES and one.failure_code not in REFUSALS:
            failed.append(one)
    if not failed or facts.ago_s(failed[0].at) > RECENT_S:
        return
    code = str(failed[0].failure_code or failed[0].exit_cause)
    row = next((row for row in facts.failed_bringups if (row["code"], row["pool"]) == (code, pool.name)), {})
    cause, some = causes.of(code, row.get("cause")) or causes.ending(code), facts.capacity(pool.name)
    cause = cause.about(worker=failed[0].worker_id) if cause else None
    detail = {"what": "Bring-ups fail" if some else "No worker comes up", "pool": pool.name, "count": len(failed)}
    detail |= {"code": code, "means": cause.means if cause else "not explained yet"}
    detail["fix"] = cause.fix if cause else f"python -m orchestrator explain {failed[0].worker_id}"
    impact = Impact.WAIT if pool.ready_tasks and not some else Impact.NONE
    evidence, since = _evidence(facts, pool, code) or failed[0].worker_id, failed[-1].at
    pools = () if some else (pool.name,)
    yield Condition(ConditionKind.BRINGUPS_FAIL, pool.name, detail, evidence, impact, since, pools=pools)


def _evidence(facts: Facts, pool: PoolFacts, code: str) -> str:
    """Return the evidence of the newest attempt that failed with this code."""
    rows = (row for row in facts.failed_bringups if (row["code"], row["pool"]) == (code, pool.name))
    row = next(iter(rows), None)
    return f"{row['stage']}: {evidence_text(row['evidence'])}" if row and row.get("evidence") else ""


def backlog(facts: Facts, found: list[Condition]) -> Iterator[Condition]:
    """Find queues that do not drain, with the time when each will be finished, or why it never will be."""
    for pool in facts.pools:
        oldest, waiting = pool.demand.oldest_claimable_at, pool.ready_tasks
        waited_s = facts.ago_s(oldest) if oldest else 0
        limit = next((one for one in pool.blocked if one.kind in MOST), None)
        cause = _first_of(found, pool)
        stops = cause is not None and cause.kind in STOPS
        if not waiting or (waited_s < BACKLOG_S and not limit and not stops):
            continue
        capacity = facts.capacity(pool.name)
        limited, acts = _limit(pool, capacity, cause, limit)
        never = not capacity and stops
        stands = never or (cause and cause.kind is ConditionKind.STORE_DOWN)  # then no ready worker claims
        detail = {"pool": pool.name, "count": queued(waiting), "oldest": minutes(waited_s), **acts}
        evidence = f"limited by: {limited.rstrip('.')}. {_end(pool, waiting, capacity, never=bool(stands))}"
        impact = Impact.WAIT if never else Impact.NONE
        yield Condition(ConditionKind.BACKLOG, pool.name, detail, evidence, impact, oldest)  # an effect


def _limit(
    pool: PoolFacts, capacity: int, cause: Condition | None, limit: Blocked | None
) -> tuple[str, dict[str, str]]:
    """Return what limits a pool's queue, and who must act, what happens by itself and the fix."""
    if cause:
        said = cause.as_json()
        return cause.text, {"who": said["who"], "then": said["then"], "fix": cause.fix}
    if limit and (capacity or not pool.decision or not pool.decision.target):
        row = limit.kind.row
        return text(limit), {"who": row.who, "then": row.then, "fix": fix_of(limit)}
    if limit or not capacity:
        then = "the tasks are claimed as soon as its workers are ready"
        fix = "none needed; python -m orchestrator list"
        return "its workers are not ready yet", {"who": NOBODY, "then": then, "fix": fix}
    fix = "none needed; or lower TASKS_PER_GPU_THRESHOLD"
    return f"the {counted(capacity, 'worker')} that it has", {"who": NOBODY, "fix": fix}


def _first_of(found: list[Condition], pool: PoolFacts) -> Condition | None:
    """Return the first condition because of which the pool's tasks wait. A missing handler holds up its types only."""
    here = [one for one in found if one.pools is None or pool.name in one.pools]
    unhandled = sum(one.detail["ready"] for one in here if one.kind is ConditionKind.NO_HANDLER)
    if unhandled < min(pool.ready_tasks, HEAD):
        here = [one for one in here if one.kind is not ConditionKind.NO_HANDLER]
    return next(iter(here), None)


def _end(pool: PoolFacts, waiting: int, capacity: int, *, never: bool) -> str:
    """Return when the queue will be finished, at the last day's rate."""
    if never:
        return "The queue does not move until this is fixed."
    if pool.since is None and not pool.mean_task_s:
        return "orchestrator health says when it will be finished."
    if not pool.mean_task_s:
        return "No ETA: no task of this pool was completed within a day."
    at_once = max(1, pool.demand.running, capacity)
    least = "at least " if isinstance(queued(waiting), BoundedCount) else ""
    return f"ETA {least}{minutes((waiting + pool.demand.running) * pool.mean_task_s / at_once)}."


RULES: tuple[Callable[[Facts], Iterator[Condition]], ...] = (_pools,)
