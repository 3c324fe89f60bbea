"""What must hold of the queue after any statement of anybody and a few seconds of the leader's work."""

from collections.abc import Mapping
from typing import Any, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import DictRow

SECONDS = 6  # of the leader's work: a task may wait for a key, then for a type
MOST_SECONDS = 30  # on a slow machine, on which a second's work is stopped early
LEFT = "select from orchestrator.publications where reason is null limit 1"
# Each finds rows only if something is wrong.
LAWS: Mapping[str, LiteralString] = {
    "an end is still pending": "select task_id, no, status, reason from orchestrator.publications",
    "a row of live has no open task": """
        select q.task_id, q.state from orchestrator.live q left join tasks t on t.id = q.task_id
         where t.id is null or t.status not in ('Queued', 'In Progress')""",
    "an open task has no row of live": """
        select t.id, t.status from tasks t left join orchestrator.live q on q.task_id = t.id
         where q.task_id is null and t.status in ('Queued', 'In Progress')""",
    "tasks shows another state": """
        select t.id, t.status, q.state, q.attempt, t.published from tasks t join orchestrator.live q on q.task_id = t.id
         where (t.status = 'In Progress') <> (q.state = 'running')
            or q.state = 'running' and t.worker_id is distinct from q.worker_id or t.published > 2 * q.attempt + 1""",
    "live does not follow the specification": """
        select s.task_id from orchestrator.specified s join orchestrator.live q using (task_id)
         where (s.place, s.created_at, s.tenant, s.max_attempts, s.has_needs, s.cancel_requested_at)
               is distinct from (q.place, q.created_at, q.tenant, q.max_attempts, q.has_needs, q.cancel_requested_at)
            or q.state <> 'running' and (s.pool, s.concurrency_key, s.task_type)
               is distinct from (q.pool, q.concurrency_key, q.task_type)
            or q.type_limited <> exists (
                   select from concurrency_limits l where l.scope = 'type' and l.name = q.task_type)""",
    "an edge is wrong": """
        select q.task_id, q.state, e.needs, e.is_met, orchestrator.need_status(e.needs)
          from orchestrator.live q join orchestrator.edges e using (task_id)
         where q.state <> 'running' and (e.is_met <> (orchestrator.need_status(e.needs) = 'Complete')
                                         or orchestrator.need_status(e.needs) in ('Failed', 'Cancelled'))""",
    "an edge is missing": """
        select q.task_id, n.id from orchestrator.live q join tasks t on t.id = q.task_id
         cross join unnest(t.depends_on) n (id)
         where not exists (select from orchestrator.edges e where e.task_id = q.task_id and e.needs = n.id)""",
    "an edge is left": """
        select e.* from orchestrator.edges e left join orchestrator.live q using (task_id)
          left join tasks t on t.id = e.task_id
         where q.task_id is null and t.failure_code is distinct from 'DEPENDENCY_FAILED'""",
    "a task waits for the wrong thing": """
        select q.task_id, q.state from orchestrator.live q
         where q.state <> 'running'
           and ((q.state = 'waits_for_tasks') <> exists (
                    select from orchestrator.edges e where e.task_id = q.task_id and not e.is_met)
                or q.state = 'waits_for_key' and q.concurrency_key is null
                or q.state = 'waits_for_type' and not q.type_limited)""",
    "a task waits at a limit with room": """
        select w.scope, w.name from (
            select distinct 'key' as scope, q.concurrency_key as name from orchestrator.live q
             where q.state = 'waits_for_key'
            union select 'type', q.task_type from orchestrator.live q where q.state = 'waits_for_type') w
         where (orchestrator.free_slots(w.scope, array[w.name]))[1] > 0""",
    "ready tasks exceed a limit": """
        select w.scope, w.name from (
            select distinct 'key' as scope, q.concurrency_key as name from orchestrator.live q
             where q.concurrency_key is not null and q.state in ('ready', 'waits_for_type')
            union select 'type', q.task_type from orchestrator.live q where q.type_limited and q.state = 'ready') w
         where (orchestrator.free_slots(w.scope, array[w.name]))[1] < 0""",
    "a claim begins behind a ready task": """
        select q.task_id from orchestrator.live q cross join lateral orchestrator.claim_start(q.pool) m
         where q.state = 'ready'
           and (q.place, q.turn, q.created_at, q.task_id) < (m.place, m.turn, m.created_at, m.task_id)""",
    "a running attempt has ended": """
        select a.task_id, a.attempt from orchestrator.attempts a join orchestrator.live q
            on q.task_id = a.task_id and q.attempt = a.attempt and q.state = 'running' and q.nonce is not null""",
}


async def broken(hand: AsyncConnection[DictRow]) -> Mapping[str, list[Any]]:
    """The laws that do not hold, with the rows that show it."""
    for second in range(MOST_SECONDS):
        if second >= SECONDS and not await (await hand.execute(LEFT)).fetchall():
            break
        await hand.execute("select orchestrator.maintain(clock_timestamp())")
    found = {name: await (await hand.execute(law)).fetchall() for name, law in LAWS.items()}
    return {name: rows for name, rows in found.items() if rows}


async def consistent(hand: AsyncConnection[DictRow]) -> None:
    """No law is broken."""
    assert await broken(hand) == {}
