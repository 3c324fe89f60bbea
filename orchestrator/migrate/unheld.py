"""Tasks In Progress without a worker: a migration reports them, and queues them again on request."""

from orchestrator.migrate.ledger import Connection

# Without the lease of a claim, and without a live worker.
UNHELD = """
from orchestrator.live q join public.tasks t on t.id = q.task_id
 where q.state = 'running' and q.nonce is null
   and not exists (select from public.workers w where w.id = t.worker_id and w.status <> 'terminated')
"""
STALE = "q.lease_expires_at is not distinct from '-infinity'"
LIST = f"""
select t.id::text, t.task_type, q.pool, count(*) over (), count(*) filter (where {STALE}) over () {UNHELD}
 order by t.updated_at, t.id limit %s"""
REQUEUE = f"""
with unheld as (select t.id {UNHELD} for update of t)
update public.tasks t set status = 'Queued', worker_id = null from unheld u where t.id = u.id
"""  # noqa: S608
NAMED = 20  # tasks that a note names; the others are counted


async def note_unheld(connection: Connection, *, requeue: bool) -> tuple[str, ...]:
    """Return the note about tasks In Progress without a worker. With `requeue`, they are queued again."""
    found = await (await connection.execute(LIST, (NAMED,))).fetchall()
    if not found:
        return ()
    total, stale = found[0][3:]
    named = ", ".join(f"{task_id} ({task_type}, pool {pool})" for task_id, task_type, pool, *_ in found)
    listed = named + (f", and {total - len(found)} more" if total > len(found) else "")
    if requeue:
        done = await connection.execute(REQUEUE.encode())
        return (f"{done.rowcount} tasks that no worker held are queued again: {listed}",)
    then = "They are queued again TASK_STUCK_TIMEOUT_SEC after a change, except in pools with WORKER_START_COMMAND"
    if stale:
        then += f", and except {stale} that had not changed for a day when the schema was made"
    now = "now: python -m orchestrator migrate --requeue-held"
    return (f"{total} tasks are In Progress and no worker holds them: {listed}. {then}; {now}",)
