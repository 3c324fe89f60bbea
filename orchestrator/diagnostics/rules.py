"""What is wrong with a fleet: `conditions(facts)`, a pure function. condition_kinds.py has the texts.

Conditions that come from what agents report of their machines belong into worker_rules.py, as one more rule there.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from orchestrator.core.places import are_far
from orchestrator.diagnostics import causes, cluster_rules, database_errors, pool_rules, task_rules, worker_rules
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition, in_order
from orchestrator.diagnostics.facts import Facts
from orchestrator.errors import REACHED

SLOW_S = 2.0  # a report of the database, or a request to S3
FAILING_S = 10.0  # a tick that fails once may be an accident
EXPENSIVE = 2.0  # times a usual day
DEAR_USD = 1.0  # below it nothing is an anomaly
LAZY_SHARE = 0.1  # of a worker's money that bought work …
LAZY_USD = 1.0  # … once it has cost this much
KEYS = {  # what is wrong with the SSH keys, by cause
    "bad_private_key": "RUNPOD_SSH_PRIVATE_KEY is mangled",
    "bad_public_key": "RUNPOD_SSH_PUBLIC_KEY is mangled",
    "key_type_mix": "SSH keys are of different types (RSA and Ed25519)",
    "pair_mismatch": "RUNPOD_SSH_PRIVATE_KEY does not match RUNPOD_SSH_PUBLIC_KEY",
}
Rule = Callable[[Facts], Iterator[Condition]]


def conditions(facts: Facts) -> list[Condition]:
    """Return the conditions of a fleet. Those that affect work or money come first."""
    found = in_order(one for rule in ALL for one in rule(facts))
    return in_order([*found, *pool_rules.backlog(facts, found)])


def _settings(facts: Facts) -> Iterator[Condition]:
    """An orchestrator with such settings starts no worker, so that tasks wait."""
    given = facts.environment
    if missing := given.get("missing_critical"):
        yield Condition(ConditionKind.SETTINGS_MISSING, evidence=", ".join(missing), impact=Impact.WAIT, pools=None)
    for problem in given.get("problems", ()):
        why = problem["why"]
        yield Condition(ConditionKind.SETTING_UNUSABLE, detail=problem, evidence=why, impact=Impact.WAIT, pools=None)
    pair = given.get("ssh_keys") or {}
    code = pair.get("cause")
    if code and code != "no_private_key":  # that one is missing, and said already
        cause = causes.of("AUTH_FAILED", code)
        fix = pair.get("fix") or (cause.fix if cause else "python -m orchestrator doctor")
        detail = {"what": KEYS.get(code, f"SSH keys cannot be used ({code})"), "fix": fix}
        kind, error = ConditionKind.SSH_KEYS_UNUSABLE, pair["error"]
        yield Condition(kind, detail=detail, evidence=error, impact=Impact.WAIT, pools=None)


def _database(facts: Facts) -> Iterator[Condition]:
    if error := facts.database_error:  # what waits and what runs is not known; nothing can be claimed or completed
        kind = ConditionKind.SCHEMA_MISMATCH if error.startswith("SchemaMismatch") else ConditionKind.DATABASE_DOWN
        what, fix = database_errors.meaning(error, REACHED[facts.environment.get("database", "DATABASE_URL")])
        detail, impact = {"what": what, "fix": fix}, Impact.WAIT | Impact.LOSS
        yield Condition(kind, detail=detail, evidence=error, impact=impact, pools=None)
    impact = Impact.WAIT if facts.ready_tasks() else Impact.NONE
    if facts.database_s > SLOW_S:
        yield Condition(ConditionKind.DATABASE_SLOW, detail={"seconds": facts.database_s})
    broken = {name: test for name, test in facts.functions.items() if test["status"] != "ok"}
    if claim := broken.pop("worker_claim", None):
        evidence = claim.get("probe", claim["status"])
        yield Condition(ConditionKind.CLAIMING_BROKEN, evidence=evidence, impact=impact, pools=None)
    for one in facts.schema_problems:
        detail = {"what": one["what"], "fix": one["fix"]}
        kind, harm = ConditionKind.SCHEMA_CHANGED, Impact.WAIT | Impact.LOSS
        yield Condition(kind, one["what"], detail, one["why"], harm, pools=None)
    if broken:
        missing = ", ".join(sorted(broken))
        yield Condition(ConditionKind.FUNCTIONS_MISSING, evidence=missing, impact=impact, pools=None)


def _provider(facts: Facts) -> Iterator[Condition]:
    """Without RunPod, no pod is created, and none is deleted."""
    if error := facts.provider_error:
        refused = error.startswith("ApiAuth")
        ending = any(worker.state == "terminating" for worker in facts.workers)
        impact = Impact.MONEY if ending or (refused and facts.live) else Impact.NONE
        short = [pool for pool in facts.pools if pool.decision and pool.decision.target > facts.capacity(pool.name)]
        if any(pool.ready_tasks for pool in short):
            impact |= Impact.WAIT
        kind = ConditionKind.API_KEY_REFUSED if refused else ConditionKind.PROVIDER_DOWN
        yield Condition(kind, evidence=error, impact=impact, pools=[pool.name for pool in short])
    if facts.provider_unseen:
        yield Condition(ConditionKind.PROVIDER_UNSEEN, evidence=facts.provider_unseen)
    if facts.balance_usd is not None and facts.balance_usd <= 0:
        impact = (Impact.WAIT if facts.ready_tasks() else Impact.NONE) | (Impact.LOSS if facts.live else Impact.NONE)
        detail = {"balance_usd": facts.balance_usd}
        yield Condition(ConditionKind.NO_MONEY, detail=detail, impact=impact, pools=None)


def _leader(facts: Facts) -> Iterator[Condition]:
    waits = Impact.WAIT if facts.ready_tasks() else Impact.NONE
    if facts.is_led is False:
        evidence = f"queued tasks: {facts.queued}, live workers: {facts.live}, leader: none"
        impact = waits | (Impact.MONEY if facts.live else Impact.NONE)
        yield Condition(ConditionKind.NO_LEADER, evidence=evidence, impact=impact, pools=None)
    if facts.leader_silent:
        yield Condition(ConditionKind.LEADER_SILENT, detail={"what": facts.leader_silent})
    if (failed := facts.tick_failed) and failed.since and facts.ago_s(failed.since) > FAILING_S:
        impact = waits | (Impact.MONEY if facts.live else Impact.NONE)
        yield Condition(ConditionKind.TICKS_FAIL, evidence=failed.why, impact=impact, since=failed.since, pools=None)
    for pool, pause in facts.paused.items():
        where = "every pool" if pool == "*" else f"pool {pool}"
        evidence = f"{pause.reason}; until {pause.until.isoformat() if pause.until else 'it is resumed'}"
        paused = [one for one in facts.pools if pool in ("*", one.name)]
        held = [one for one in paused if not facts.capacity(one.name)]
        impact = Impact.WAIT if any(one.ready_tasks for one in held) else Impact.NONE
        names, fix = [one.name for one in held], "resume" if pool == "*" else f"resume --pool {pool}"
        detail = {"where": where, "fix": f"python -m orchestrator {fix}"}
        yield Condition(ConditionKind.PAUSED, pool, detail, evidence, impact, until=pause.until, pools=names)


def _store(facts: Facts) -> Iterator[Condition]:
    if away := facts.store_away:
        impact = Impact.WAIT if facts.ready_tasks() else Impact.NONE
        results = [one.store_wait_since for one in facts.workers if one.store_wait_since]
        impact |= Impact.MONEY if any(facts.ago_s(one) > worker_rules.STORE_WAIT_S for one in results) else Impact.NONE
        yield Condition(ConditionKind.STORE_DOWN, evidence=away.why, impact=impact, since=away.since, pools=None)
    elif facts.store_unseen:
        yield Condition(ConditionKind.STORE_UNSEEN, evidence=facts.store_unseen)
    elif facts.store_s > SLOW_S:
        yield Condition(ConditionKind.STORE_SLOW, detail={"seconds": facts.store_s})
    far = Counter(one.data_center for one in facts.workers if are_far(one.data_center, facts.bucket_place))
    for place, count in sorted(far.items(), key=str):
        yield Condition(
            ConditionKind.BUCKET_FAR, str(place), {"count": count, "place": place, "bucket": facts.bucket_place}
        )


def _drift(facts: Facts) -> Iterator[Condition]:
    """Pods without rows, rows without pods, and pods of another database."""
    found = facts.drift
    if found.orphans:
        cost = {"count": len(found.orphans), "cost": found.cost}
        pods = ", ".join(orphan.pod_id for orphan in found.orphans)
        yield Condition(ConditionKind.PODS_WITHOUT_ROWS, detail=cost, evidence=pods, impact=Impact.MONEY)
    if found.bereft:
        evidence = ", ".join(f"{row.worker_id} ({row.pod_status or 'not listed'})" for row in found.bereft)
        gone = {row.worker_id for row in found.bereft}
        lost = not facts.is_led or any(worker.tasks_running for worker in facts.workers if worker.id in gone)
        impact = Impact.LOSS if lost else Impact.NONE
        yield Condition(ConditionKind.ROWS_WITHOUT_PODS, detail={"count": len(gone)}, evidence=evidence, impact=impact)
    for theirs in found.foreign_pods:
        detail = {"what": theirs.what, "fix": theirs.fix}
        yield Condition(ConditionKind.FOREIGN_PODS, theirs.database_id, detail, theirs.why)


def _cost(facts: Facts) -> Iterator[Condition]:
    spent, usual = facts.last_day_usd, facts.usual_day_usd
    if usual is not None and spent > DEAR_USD and spent > EXPENSIVE * usual:
        yield Condition(ConditionKind.DEAR_DAY, detail={"usd": spent, "usual_usd": usual})
    for worker in facts.workers:
        share = worker.busy_share
        if share is not None and share < LAZY_SHARE and worker.usd > LAZY_USD:
            detail = {"worker": worker.id, "usd": worker.usd, "share": share}
            yield Condition(ConditionKind.IDLE_MONEY, worker.id, detail)


def _surroundings(facts: Facts) -> Iterator[Condition]:
    for place, answer in facts.unreachable.items():
        detail = {"place": place, "url": answer["url"]}
        yield Condition(ConditionKind.PLACE_UNREACHABLE, place, detail, answer.get("error", ""))
    if stale := facts.other_code:
        yield Condition(ConditionKind.OTHER_CODE, detail={"count": len(stale)}, evidence=", ".join(stale))


RULES: tuple[Rule, ...] = (
    _settings, _database, _provider, _leader, _store, _drift, _cost, _surroundings
)  # fmt: skip
ALL = (*RULES, *pool_rules.RULES, *cluster_rules.RULES, *task_rules.RULES, *worker_rules.RULES)
