"""What must hold of the queue after any statement of anybody, as queries that find the exceptions."""

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

# Each finds rows only if something is wrong.
RULES: Mapping[str, str] = {
    "the counts are those of the rows": """
        select pool, kind, sum(n) as difference from (
            select pool, kind, n from task_counts
            union all
            select pool, case when blocked and queue_gate = 0 then 'blocked' when run_after is not null then 'timed'
                              when blocked then 'gated' else 'plain' end, -1
              from tasks where status = 'Queued') c
         group by pool, kind having sum(n) <> 0""",
    "no mark hides a task that can be claimed": """
        select t.id from tasks t, internal_claim_start(t.pool, now()) m
         where t.status = 'Queued' and not t.blocked and (t.run_after is null or t.run_after <= now())
           and (~t.priority, t.queue_turn, t.created_at, t.id) < (m.place, m.queue_turn, m.created_at, m.id)""",
    "a queued task waits exactly while a dependency is not complete": """
        select t.id, t.blocked from tasks t
         where t.status = 'Queued' and (t.blocked and t.queue_gate = 0) is distinct from exists (
                   select from unnest(t.depends_on) n (id) left join internal_results(array[n.id]) r on r.id = n.id
                                                           left join tasks d on d.id = n.id
                    where r.id is null or d.status is distinct from 'Complete' and d.id is not null)""",
    "no queued task waits for one that failed or was cancelled": """
        select t.id from tasks t join tasks d on d.id = any (t.depends_on)
         where t.status = 'Queued' and d.status in ('Failed', 'Cancelled')""",
    "an attempt is open exactly while its worker holds the task": """
        select a.task_id, a.attempt, a.worker_id, t.status, t.attempts, t.worker_id as holder
          from task_attempts a left join tasks t on t.id = a.task_id
         where a.ended_at is null
           and (t.status = 'In Progress' and t.attempts = a.attempt and t.worker_id = a.worker_id) is not true""",
    "nothing is left to be settled": "select no, task_ids from tasks_unsettled",
}


async def broken(hand: AsyncConnection[DictRow]) -> Mapping[str, list[Any]]:
    """The rules that do not hold, with the rows that show it."""
    found = {rule: await (await hand.execute(query.encode())).fetchall() for rule, query in RULES.items()}
    return {rule: rows for rule, rows in found.items() if rows}


async def consistent(hand: AsyncConnection[DictRow]) -> None:
    """No count and no mark is wrong."""
    for name in ("the counts are those of the rows", "no mark hides a task that can be claimed"):
        assert await (await hand.execute(RULES[name].encode())).fetchall() == [], name
