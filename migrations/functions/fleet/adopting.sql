-- How tasks that were there before the queue come into it.

-- Adds the open tasks of `tasks` to the queue once, and what agents hold of the queue that lived in its rows.
create or replace function orchestrator.adopt() returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_batch constant int := 10000;
    v_ids uuid[];
begin
    perform orchestrator.keep_launch(w.*) from public.workers w
      where not exists (select from orchestrator.launches l where l.worker_id = w.id);
    if exists (select from orchestrator.audits) then
        return;
    end if;
    insert into orchestrator.audits (rel, next_block, began_at) values ('public.tasks', 0, now());
    v_ids := array(select t.id from public.tasks t where t.status in ('Queued', 'In Progress'));
    for v_n in 0..cardinality(v_ids) / c_batch loop
        perform orchestrator.insert_live(v_ids[v_n * c_batch + 1:(v_n + 1) * c_batch]);
    end loop;
    update orchestrator.live q  -- of a program of the project's own
       set progress_at = coalesce(t.updated_at, q.progress_at),
           lease_expires_at = nullif((to_jsonb(t)->>'lease_expires_at')::timestamptz, 'infinity')
      from public.tasks t where t.id = q.task_id and q.state = 'running';
    if exists (select from orchestrator.attempts a where a.ended_at is null) then
        perform orchestrator.adopt_attempts();
    end if;
end
$$;

-- The attempts that agents hold, with their leases.
create or replace function orchestrator.adopt_attempts() returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    update public.tasks t set published = 2 * t.attempts
      from orchestrator.attempts a
     where a.task_id = t.id and a.attempt = t.attempts and a.ended_at is null and t.status = 'In Progress'
       and a.worker_id = t.worker_id;
    update orchestrator.live q
       set attempt = a.attempt, attempts_shown = t.attempts, shown = 2 * a.attempt, uncounted = t.uncounted,
           nonce = a.nonce, claim_no = a.claim_no, claimed_at = a.started_at, lease_expires_at = t.lease_expires_at,
           progress_at = coalesce(t.progress_at, a.started_at), log_first = a.log_first
      from orchestrator.attempts a join public.tasks t on t.id = a.task_id
     where q.task_id = a.task_id and a.attempt = t.attempts and a.ended_at is null and t.status = 'In Progress'
       and a.worker_id = t.worker_id;
    update orchestrator.launches l set claim_no = greatest(w.claim_no - 1, (
               select max(a.claim_no) from orchestrator.attempts a where a.worker_id = w.id and a.nonce = w.nonce))
      from public.workers w where w.id = l.worker_id and w.nonce is not null and w.claim_no is not null;
    delete from orchestrator.attempts a where a.ended_at is null;
end
$$;
