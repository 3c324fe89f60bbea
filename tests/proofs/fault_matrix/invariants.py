"""The invariants of a fleet, judged by rows, the provider's ledger and the bytes in S3 once all is over."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.core.exit_causes import FAILURES, ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.diagnostics.workers import UNEXPLAINED
from orchestrator.ports import Blobs
from testbed.audit import compare_logs
from tests.proofs.fault_matrix.environment import EVER_S, Environment
from tests.proofs.fault_matrix.secret_scan import leaks

UNOWNED_S = 120.0  # I1: the longest that a pod may live without a live row
NAMED_S = 10.0  # how soon a row must name the cause
CLUSTER_NAMED_S = 15.0  # … of a fault of a cluster: its members are probed every 10 s
ROUNDING_USD = 1e-6
Codes = Collection[FailureCode | ExitCause]
REASONLESS = "select count(*) as n from worker_events where coalesce(reason, '') = '' or coalesce(actor, '') = ''"
# I7, and the fencing of a leader that came back: no write of an older term after one of a newer.
STALE = """
    select count(*) as n from (select term, max(term) over (order by id) as newest from worker_events
                                where term is not null) writes where term < newest
"""
DOUBLED = """
    select count(*) as n from (select task_id from task_attempts where outcome = 'complete'
                                group by task_id having count(*) > 1) twice
"""
TASKS = """
    select count(*) filter (where status = 'Complete') as done, count(*) filter (where status = 'Failed') as failed,
           count(*) filter (where status not in ('Complete', 'Failed', 'Cancelled')) as lost,
           extract(epoch from max(updated_at))::float as last
      from tasks
"""
FAILED_WORKERS = "select id, coalesce(failure_code, exit_cause) as code from workers where exit_cause = any(%s)"
MET = "select distinct failure_code as code from worker_attempts where failure_code is not null"
# I4: what each worker reserved while it lived, and what was booked.
RESERVED = """
    select extract(epoch from created_at)::float as began, extract(epoch from terminated_at)::float as ended,
           coalesce(price_usd_per_hour, reserved_usd_per_hour)::float as usd_per_hour, reserved_usd::float as usd
      from workers
"""
BOOKED = """
    select extract(epoch from from_at)::float as began, extract(epoch from to_at)::float as ended, usd::float from costs
"""
WORKERS = "select id, pod_id, extract(epoch from terminated_at)::float as ended from workers"


async def check(
    env: Environment,
    ledger: Mapping[str, Any],
    blobs: Blobs,
    *,
    ends_as: Codes,
    may_end_as: Codes,
    meets: Codes,
    keeps_logs: bool,
) -> "Findings":
    """Every invariant, and that what happened to workers has its name; `keeps_logs` is asked where no host was lost."""
    tasks, [doubled] = (await env.rows(TASKS))[0], await env.rows(DOUBLED)
    [reasonless], [stale] = await env.rows(REASONLESS), await env.rows(STALE)
    homes = [Path(pod["home"]) for pod in ledger["pods"]]
    async with await env.stack.connect() as sql:
        logs = await compare_logs(sql, homes, blobs)
    unowned = unowned_s(ledger["pods"], await env.rows(WORKERS))
    names = Counter(pod["name"] for pod in ledger["pods"])
    wrong = {
        f"{tasks['lost']} task(s) lost": tasks["lost"],
        f"{doubled['n']} task(s) completed twice": doubled["n"],
        f"{ledger['alive']} pod(s) left running": ledger["alive"],
        f"{unowned:.0f} s of a pod without a live row": unowned > UNOWNED_S,
        f"{logs.missing} log byte(s) missing": logs.missing,
        f"{reasonless['n']} event(s) without a reason": reasonless["n"],
        f"{stale['n']} write(s) of a term that was over": stale["n"],
        f"a worker asked for twice: {names.most_common(1)}": max(names.values(), default=0) > 1,
    }
    if keeps_logs:
        wrong[f"{logs.declared_lost} log byte(s) declared lost, and no host was"] = logs.declared_lost
    failed, met = await env.rows(FAILED_WORKERS, sorted(FAILURES)), await env.rows(MET)
    failed_as = {row["id"]: row["code"] for row in failed}
    wrong |= dict.fromkeys(misnamed(failed_as, ends_as, may_end_as), True)
    wrong |= dict.fromkeys(unexplained(failed_as, await env.explain_workers(EVER_S)), True)
    wrong |= {f"no attempt met {code}": code not in {row["code"] for row in met} for code in meets}
    hourly_usd, daily_usd = committed(await env.rows(RESERVED), await env.rows(BOOKED))
    for name, usd in (("MAX_HOURLY_COST_USD", hourly_usd), ("DAILY_BUDGET_USD", daily_usd)):
        wrong[f"${usd:.4f} committed, {name}={env.stack.environment[name]}"] = (
            usd > float(env.stack.environment[name]) + ROUNDING_USD
        )
    wrong |= dict.fromkeys(await leaks(env), True)
    wrong |= dict.fromkeys(sorted(env.observer.waits), True)
    said = [name for name, bad in wrong.items() if bad]
    return Findings(tasks, len(ledger["pods"]), unowned, logs.declared_lost, said)


class Findings:
    """What the rows, the ledger and the bytes say."""

    def __init__(
        self, tasks: Mapping[str, Any], pods: int, unowned_s: float, declared_lost: int, wrong: list[str]
    ) -> None:
        self.done, self.failed, self.last_task_at = int(tasks["done"]), int(tasks["failed"]), float(tasks["last"] or 0)
        self.pods, self.unowned_s, self.declared_lost, self.wrong = pods, unowned_s, declared_lost, wrong


def misnamed(failed: Mapping[str, str], ends_as: Codes, may_end_as: Codes = ()) -> list[str]:
    """What is wrong with how workers (id -> code) failed: each as one of the codes, and each of `ends_as` by one."""
    known = {*ends_as, *may_end_as}
    strange = [f"{worker} ended as {code}" for worker, code in sorted(failed.items()) if code not in known]
    return strange + [f"no worker ended as {code}" for code in ends_as if code not in failed.values()]


def unexplained(failed: Mapping[str, str], told: Mapping[str, Sequence[str]]) -> list[str]:
    """Failed workers (id -> code) whose explanation (id -> lines) does not say what the code means."""
    said = {worker: re.compile(rf"ENDED {code}(/\w+)?: (?!{UNEXPLAINED})") for worker, code in failed.items()}
    return [
        f"{worker} ended as {failed[worker]}, and explain does not say what that is"
        for worker, words in said.items()
        if not any(words.match(line) for line in told.get(worker, ()))
    ]


def committed(workers: Sequence[Mapping[str, Any]], booked: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The most that an hour cost, and that was spent and reserved together, in dollars, whenever a worker was recorded.

    What a worker spends while it ends counts twice, as spent and as reserved: that is less than a cent.
    """
    most_hourly = most = 0.0
    for at in (worker["began"] for worker in workers):
        live = [w for w in workers if w["began"] <= at and (w["ended"] is None or w["ended"] > at)]
        spent = sum(b["usd"] * _share(b, at) for b in booked)
        most_hourly = max(most_hourly, sum(worker["usd_per_hour"] for worker in live))
        most = max(most, spent + sum(worker["usd"] for worker in live))
    return most_hourly, most


def _share(booked: Mapping[str, Any], at: float) -> float:
    """How much of what was booked had been spent by then."""
    if not booked["began"] < at < booked["ended"]:
        return float(at >= booked["ended"])
    return float(at - booked["began"]) / float(booked["ended"] - booked["began"])


def unowned_s(pods: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]]) -> float:
    """The longest that any pod lived with no live row standing for it."""
    rows = {worker["id"]: worker for worker in workers}
    worst = 0.0
    for pod in pods:
        born, died = _epoch(pod["created_at"]), _epoch(pod["ended_at"])
        row = rows.get(pod["name"])
        if died is None or born is None:
            continue  # still there: that is said already
        owned = row is not None and row["pod_id"] in (None, pod["id"])
        from_at = born if row is None or not owned else row["ended"] or died
        worst = max(worst, died - max(born, from_at))
    return worst


def _epoch(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
