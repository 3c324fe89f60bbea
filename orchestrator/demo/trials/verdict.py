"""The invariants of a fleet, judged by rows, the provider's ledger and the bytes in S3 once all is over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.demo.tally import compare_logs
from orchestrator.demo.trials.scene import Scene
from orchestrator.ports import Blobs

UNOWNED_S = 120.0  # I1: the longest that a pod may live without a live row
NAMED_S = 10.0  # how soon a row must name the cause
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
FAILED_WORKERS = """
    select id || ' ended as ' || concat_ws(', ', exit_cause, failure_code) as said from workers
     where exit_cause in ('spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault', 'pod_lost',
                          'stale_code', 'agent_crashed')
"""
WORKERS = "select id, pod_id, extract(epoch from terminated_at)::float as ended from workers"


async def judge(scene: Scene, ledger: Mapping[str, Any], blobs: Blobs, *, spares: bool, keeps_logs: bool) -> "Judged":
    """Every invariant; what `spares` and `keeps_logs` add is asked only where no host was lost."""
    tasks, [doubled] = (await scene.rows(TASKS))[0], await scene.rows(DOUBLED)
    [reasonless], [stale] = await scene.rows(REASONLESS), await scene.rows(STALE)
    homes = [Path(pod["home"]) for pod in ledger["pods"]]
    async with await scene.stack.connect() as sql:
        logs = await compare_logs(sql, homes, blobs)
    unowned = unowned_s(ledger["pods"], await scene.rows(WORKERS))
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
    if spares:
        wrong |= {row["said"]: True for row in await scene.rows(FAILED_WORKERS)}
    wrong |= dict.fromkeys(sorted(scene.witness.waits), True)
    wrong |= {f"{name} took {took_s:g} s, not {most_s:g} s": took_s > most_s for name, took_s, most_s in scene.figures}
    said = [name for name, bad in wrong.items() if bad]
    return Judged(tasks, len(ledger["pods"]), unowned, logs.declared_lost, said)


class Judged:
    """What the rows, the ledger and the bytes say."""

    def __init__(
        self, tasks: Mapping[str, Any], pods: int, unowned_s: float, declared_lost: int, wrong: list[str]
    ) -> None:
        self.done, self.failed, self.last_task_at = int(tasks["done"]), int(tasks["failed"]), float(tasks["last"] or 0)
        self.pods, self.unowned_s, self.declared_lost, self.wrong = pods, unowned_s, declared_lost, wrong


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
