"""Rules about pools: why no worker starts, and when the queue will be finished."""

from collections.abc import Callable, Iterator, Mapping

from orchestrator.core.blocked import Blocked, text
from orchestrator.core.blocked import BlockedReason as Reason
from orchestrator.core.breaker import OF_THE_ACCOUNT, OF_THE_SPEC
from orchestrator.core.exit_causes import FAILURES
from orchestrator.core.failures import UNTRIED
from orchestrator.core.model import EndedBringUp
from orchestrator.core.plurals import counted
from orchestrator.diagnostics import causes
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.evidence import evidence_text
from orchestrator.diagnostics.facts import RECENT_S, Facts, PoolFacts, minutes

BACKLOG_S = 900.0  # seconds that the oldest task of a backlog has waited
# Kind of condition -> seconds in which it is no trouble: a new leader gets RunPod's prices with its first lists.
SETTLES_S: Mapping[ConditionKind, float] = {ConditionKind.PRICE_UNKNOWN: 60.0}
# Blocked reason of a pool -> the condition. Pauses, the pod list and the store have conditions of their own.
BLOCKED: Mapping[Reason, ConditionKind] = {
    Reason.HALTED: ConditionKind.HALTED,
    Reason.DAILY_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.HOURLY_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.CLUSTER_BUDGET: ConditionKind.BUDGET_SPENT,
    Reason.NO_CLUSTER: ConditionKind.NO_CLUSTER,
    Reason.PRICE_UNKNOWN: ConditionKind.PRICE_UNKNOWN,
    Reason.OFFERS_REFUSED: ConditionKind.SOLD_OUT,
    Reason.NO_OFFER_AT_VOLUME: ConditionKind.OFFERS_UNUSABLE,
    Reason.VOLUME_UNUSABLE: ConditionKind.OFFERS_UNUSABLE,
    Reason.POOL_UNKNOWN: ConditionKind.POOL_UNKNOWN,
    Reason.BREAKER_OPEN: ConditionKind.BREAKER_OPEN,
}
LIMITS = frozenset(
    {ConditionKind.PAUSED, ConditionKind.BUDGET_SPENT}
)  # set on purpose: no impact while the pool's workers continue
OF_CLUSTERS = frozenset({ConditionKind.CLUSTER_FAILED, ConditionKind.CLUSTER_DEGRADED})
WAITS = {
    "capacity": ConditionKind.SOLD_OUT,
    "budget": ConditionKind.BUDGET_SPENT,
}  # the party that a recorded worker waits for -> the condition
# Conditions of the fleet that prevent every pool from starting workers or claiming tasks.
EVERYWHERE = frozenset(
    {
        ConditionKind.NO_LEADER,
        ConditionKind.TICKS_FAIL,
        ConditionKind.STORE_DOWN,
        ConditionKind.NO_MONEY,
        ConditionKind.API_KEY_REFUSED,
    }
)


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
        kind = BLOCKED.get(reason.kind)
        if kind is None or not reason.count or _is_settling(facts, pool, reason, kind):
            continue
        if kind is ConditionKind.NO_CLUSTER and any(one.pool == pool.name for one in facts.clusters):
            continue  # it has failed, which cluster_rules.py says
        since = pool.since.get(reason.kind) if pool.since else None
        detail = {"pool": pool.name, "count": reason.count} | _meaning(reason)
        yield Condition(kind, pool.name, detail, text(reason), _impact(facts, pool, kind), since, reason.until)


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
    return {"code": code, "means": cause.means if cause else row.means, "fix": cause.fix if cause else row.fix}


def _refused(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find a refusal that a person must correct, also while a recorded worker waits for the next try."""
    last = next((one for one in reversed(facts.ended) if one.pool == pool.name), None)
    if last is None or last.promoted or last.failure_code not in OF_THE_ACCOUNT | OF_THE_SPEC:
        return
    granted = (offer.last_success for offer in facts.offers.values() if offer.last_success)
    if not any(at > last.at for at in granted):
        reason = Blocked(Reason.HALTED, detail={"code": str(last.failure_code)})
        detail = {"pool": pool.name, **_meaning(reason)}
        evidence = _evidence(facts, pool, str(last.failure_code))
        yield Condition(
            ConditionKind.HALTED, pool.name, detail, evidence, _impact(facts, pool, ConditionKind.HALTED), last.at
        )


def _waiting(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find recorded workers that wait for an offer or for money."""
    for worker in facts.workers:
        if worker.pool == pool.name and worker.state == "spawning" and (kind := WAITS.get(worker.waiting_on)):
            detail = {"pool": pool.name}
            yield Condition(kind, pool.name, detail, worker.waiting_for, _impact(facts, pool, kind), worker.state_since)


def _bringups(facts: Facts, pool: PoolFacts) -> Iterator[Condition]:
    """Find the newest bring-ups if they failed one after the other."""
    failed: list[EndedBringUp] = []
    for one in reversed([one for one in facts.ended if one.pool == pool.name]):
        if one.promoted:
            break
        if one.exit_cause in FAILURES and one.failure_code not in UNTRIED:
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
    yield Condition(
        ConditionKind.BRINGUPS_FAIL,
        pool.name,
        detail,
        _evidence(facts, pool, code) or failed[0].worker_id,
        impact,
        failed[-1].at,
    )


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
        limit = next((one for one in pool.blocked if one.kind is Reason.MAX_ACTIVE), None)
        cause = _cause(facts, pool, found)
        if not waiting or (waited_s < BACKLOG_S and not limit and not cause):
            continue
        capacity = facts.capacity(pool.name)
        if cause:
            limited, fix = cause.text, cause.fix
        elif limit and (capacity or not pool.decision or not pool.decision.target):
            limited, fix = text(limit), limit.kind.row.fix
        elif limit or not capacity:
            limited, fix = "its workers are not ready yet", "none needed; python -m orchestrator list"
        else:
            limited = f"the {counted(capacity, 'worker')} that it has"
            fix = "none needed; or lower TASKS_PER_GPU_THRESHOLD"
        never = not capacity and (cause or (limit and not limit.detail.get("limit")))
        stands = never or (cause and cause.kind is ConditionKind.STORE_DOWN)  # then no ready worker claims
        detail = {"pool": pool.name, "count": waiting, "oldest": minutes(waited_s), "fix": fix}
        evidence = f"limited by: {limited}; {_end(pool, waiting, capacity, never=bool(stands))}"
        yield Condition(
            ConditionKind.BACKLOG, pool.name, detail, evidence, Impact.WAIT if never else Impact.NONE, oldest
        )


def _end(pool: PoolFacts, waiting: int, capacity: int, *, never: bool) -> str:
    """Return when the queue will be finished, at the last day's rate."""
    if never:
        return "it will never be finished while that lasts"
    if pool.since is None and not pool.mean_task_s:
        return "orchestrator health says when it will be finished"
    if not pool.mean_task_s:
        return "no ETA: no task of this pool was completed within a day"
    at_once = max(1, pool.demand.running, capacity)
    return f"ETA {minutes((waiting + pool.demand.running) * pool.mean_task_s / at_once)}"


def _cause(facts: Facts, pool: PoolFacts, found: list[Condition]) -> Condition | None:
    """Return the first condition that prevents the pool from having workers; MAX_ACTIVE_GPUS does not count."""
    for one in found:
        blocks = one.kind in BLOCKED.values() and one.subject == pool.name
        fails = one.kind is ConditionKind.BRINGUPS_FAIL and one.subject == pool.name
        paused = one.kind is ConditionKind.PAUSED and one.subject in ("*", pool.name)
        cluster = one.kind in OF_CLUSTERS and one.detail["pool"] == pool.name
        unheard = one.kind is ConditionKind.GATEWAY_UNREACHED and facts.lacks_workers(pool.name)
        if blocks or (one.impact & Impact.WAIT and (fails or paused or cluster or unheard or one.kind in EVERYWHERE)):
            return one
    return None


RULES: tuple[Callable[[Facts], Iterator[Condition]], ...] = (_pools,)
