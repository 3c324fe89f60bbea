-- An answer to a claim has a size that an agent can read and a database can make. A task with many dependencies whose results
-- are large was asked for by every worker of its pool, before all else: no claim got past it (54000, or 57014), no task behind
-- it was done, and no worker of the pool was ever idle. Now a claim takes what fits, and what would never fit fails.

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_from record;
    v_rows tid[];
    v_plain int;
    v_heavy boolean;
    v_first tid;
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    c_least constant int := -2147483648;
    c_raise_every constant int := 32;  -- tasks that a worker claims, between two of its tries to raise the mark
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
    c_light constant int := 2000;  -- bytes of params, as stored: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: what an agent reads, and what is made well within a call's deadline
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    loop
        select array_agg(l.ctid), count(*) filter (where l.run_after is null), bool_or(l.heavy)
          into v_rows, v_plain, v_heavy from (
            select q.ctid, q.run_after, q.depends_on <> '{}' or pg_column_size(q.params) > c_light as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for update skip locked) l;
        exit when not v_heavy;
        if v_heavy then
            v_first := v_rows[1];
            select array_agg(f.ctid), count(*) filter (where f.run_after is null) into v_rows, v_plain from (
                select t.ctid, t.run_after, sum(octet_length(t.params::text)
                           + coalesce((select sum(octet_length(d.result_data::text))
                                         from public.tasks d where d.id = any (t.depends_on)), 0))
                           over (order by ~t.priority, t.created_at, t.id) as upto
                  from public.tasks t where t.ctid = any (v_rows)) f where f.upto <= c_bytes;
            exit when v_rows is not null;
            -- No claim can carry it, and every worker's next one would begin with it again.
            update public.tasks t
               set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
                   failure_code = 'INPUTS_TOO_LARGE',
                   error_message = format('Its params and the results of the %s tasks that it depends on are more than %s MiB',
                                          cardinality(t.depends_on), c_bytes / 1048576)
             where t.ctid = v_first;
            continue;
        end if;
        -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task waits
        -- for ever for that: it is looked everywhere before a worker is sent away.
        if v_from.place = c_least
           or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0) <= 0 then
            return null;
        end if;
        perform public.internal_raise_mark(p_worker.pool, p_now, true);
        v_from.place := c_least;
        v_from.created_at := '-infinity';
    end loop;
    perform set_config('orchestrator.minded', 'on', true);  -- counted here; nothing waits for a start, nobody is told of one
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, attempts = t.attempts + 1, updated_at = p_now,
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (v_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first from taken k
    ), counted as (
        insert into public.task_counts (pool, kind, n)
        select p_worker.pool, c.kind, -c.n
          from (values ('plain', v_plain), ('timed', cardinality(v_rows) - v_plain)) c (kind, n) where c.n > 0
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', 'outputs/' || k.id || '/' || k.attempts || '/',
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.tasks d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k;
    perform set_config('orchestrator.minded', '', true);
    if p_claim_no % c_raise_every * p_batch % c_raise_every < p_batch or v_from.lowered > c_lowered then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
end
$$;
