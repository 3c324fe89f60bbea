"""Rules about tasks: tasks that no worker takes, that failed, or that were lost with their workers."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.core import moments
from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import EndedBringUp
from orchestrator.core.plurals import BoundedCount, queued
from orchestrator.diagnostics import causes, heartbeat_loss
from orchestrator.diagnostics.condition_kinds import ConditionKind, Impact
from orchestrator.diagnostics.conditions import Condition, of_type
from orchestrator.diagnostics.facts import Facts, Row

SHOWN_S = 900.0  # for which an attempt that was lost is worth a line
NAMED = 5  # tasks or workers that a line names
DONE = frozenset({"Complete", "Failed", "Cancelled"})


def _tasks(facts: Facts) -> Iterator[Condition]:
    """Find tasks that no worker takes although an orchestrator leads, and tasks that failed."""
    blocked = facts.queued and not any(pool.ready_tasks or pool.demand.running for pool in facts.pools)
    if facts.is_led and blocked:
        held = [pool.demand.blocked for pool in facts.pools]
        counts = {why: sum(one.get(why, 0) for one in held) for why in ("dependencies", "concurrency", "scheduled")}
        due = min((pool.next_due_at for pool in facts.pools if pool.next_due_at), default=None)
        evidence = ", ".join(f"{queued(n)} by {why}" for why, n in counts.items() if n or why != "concurrency")
        if counts["scheduled"]:  # then their dependants continue too
            evidence += f"; the next is due {due:%Y-%m-%d %H:%M:%S} UTC" if due else ""
            yield Condition(
                ConditionKind.RETRIES_WAIT, detail={"count": queued(counts["scheduled"])}, evidence=evidence, until=due
            )
        else:
            yield Condition(ConditionKind.TASKS_BLOCKED, detail={"count": queued(facts.queued)}, evidence=evidence)
    if facts.expired_leases:
        impact = Impact.NONE if facts.is_led else Impact.LOSS
        yield Condition(ConditionKind.NO_HOLDER, detail={"count": facts.expired_leases}, impact=impact)
    for row in facts.waiting_types:
        if facts.handled and row["task_type"] not in facts.handled:
            count = BoundedCount(row["n"]) if facts.is_sampled(row["pool"]) else row["n"]
            detail = {"count": count, "task_type": row["task_type"], "ready": row.get("ready", row["n"])}
            kind, evidence = ConditionKind.NO_HANDLER, f"pool {row['pool']}"
            subject = of_type(row["pool"], row["task_type"])
            yield Condition(kind, subject, detail, evidence, Impact.WAIT, pools=(row["pool"],))
    for row in facts.unpublished_tasks:
        detail = {"count": row["n"], "pool": row["pool"], "task": row["task_id"]}
        subject, since = f"{row['pool']} {row['task_id']}", moments.moment(row["since"])
        yield Condition(ConditionKind.TASKS_UNPUBLISHED, subject, detail, row["reason"], since=since)
    for row in facts.failed_tasks:
        detail = {"count": row["n"], "task_type": row["task_type"], "task": row["last_task"], "code": row["code"]}
        if row["no_segments"]:
            detail["message"] = row["message"]
            evidence = f"code {row['code']}, last at {row['last_at']}"
            yield Condition(ConditionKind.SEGMENTS_MISSING, row["task_type"], detail, evidence)
        else:
            detail["within"] = facts.failed_within
            subject = f"{row['task_type']} {row['code']}"
            yield Condition(ConditionKind.TASKS_FAILED, subject, detail, row["message"] or "")


def _applications(facts: Facts) -> Iterator[Condition]:
    """Find webhook messages that were not delivered, and schedules that submit no task."""
    if lost := facts.webhooks.get("undeliverable"):
        detail = {"count": lost, "host": facts.webhooks["host"]}
        yield Condition(ConditionKind.WEBHOOKS_UNDELIVERABLE, detail=detail, evidence=facts.webhooks["failure"] or "")
    if late := facts.webhooks.get("late"):
        yield Condition(ConditionKind.WEBHOOKS_LATE, detail={"count": late})
    for row in facts.schedules:
        yield Condition(ConditionKind.SCHEDULE_FAILS, row["name"], {"name": row["name"]}, row["why"])


def _lost(facts: Facts) -> Iterator[Condition]:
    """Find tasks that were lost with their workers, by worker; and tasks that ended several workers."""
    by_worker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in facts.lost_tasks:
        if row["workers"] > 1 and row["status"] not in DONE:
            cause, code = _loss(row)
            detail = {"task": row["task_id"], "task_type": row["task_type"], "count": row["workers"], "code": code}
            means = cause.means if cause else ""
            yield Condition(ConditionKind.POISON_TASK, row["task_id"], detail, means, Impact.LOSS)
        if row["status"] not in DONE and facts.ago_s(moments.moment(row["last_at"])) < SHOWN_S:
            by_worker[row["worker_id"]].append(row)
    for worker, rows in by_worker.items():
        cause, code = _loss(rows[0])
        last = max(moments.moment(row["last_at"]) for row in rows)
        evidence = f"worker {worker}; " + ", ".join(f"{row['task_id']} {row['status']}" for row in rows[:NAMED])
        detail = {"count": len(rows), "code": code, **_words(cause, worker)}
        # The attempt is lost, and the task is not: it waits in the queue, or runs again.
        yield Condition(ConditionKind.TASKS_LOST, worker, detail, evidence, Impact.NONE, last)


def _loss(row: Row) -> tuple[causes.Cause | None, str]:
    """Return why a task was lost with its worker, and the code."""
    code = row["code"] or row["exit_cause"] or "WORKER_LOST"
    if row["exit_cause"] == ExitCause.HEARTBEAT_LOST and code != FailureCode.GATEWAY_UNREACHED:
        seen = heartbeat_loss.subcause(row["look"])
        return causes.silence(seen), causes.named(code, seen)
    return causes.of(code) or causes.ending(code), code


def _failed(facts: Facts) -> Iterator[Condition]:
    """Find workers that failed in service, by pool and code."""
    failed: defaultdict[tuple[str, str], list[EndedBringUp]] = defaultdict(list)
    for one in facts.ended:
        if one.promoted and one.exit_cause in FAILURES and one.ending_since and facts.ago_s(one.ending_since) < SHOWN_S:
            failed[one.pool, str(one.failure_code or one.exit_cause)].append(one)
    for (pool, code), workers in failed.items():
        silent = all(one.exit_cause is ExitCause.HEARTBEAT_LOST for one in workers)
        silent = silent and code != FailureCode.GATEWAY_UNREACHED
        cause = causes.silence(None) if silent else causes.of(code) or causes.ending(code)
        detail = {"count": len(workers), "code": code, **_words(cause, workers[-1].worker_id)}
        evidence = f"pool {pool}: " + ", ".join(one.worker_id for one in workers[:NAMED])
        yield Condition(
            ConditionKind.WORKERS_FAILED, f"{pool} {code}", detail, evidence, since=workers[-1].ending_since
        )


def _words(cause: causes.Cause | None, worker: str) -> dict[str, Any]:
    """Return the meaning of a cause, and its fix."""
    if cause is None:
        return {"means": "not explained yet", "fix": f"python -m orchestrator explain {worker}"}
    return {"means": cause.means, "fix": cause.about(worker=worker).fix, "then": cause.then}


RULES: tuple[Callable[[Facts], Iterator[Condition]], ...] = (_tasks, _applications, _lost, _failed)
