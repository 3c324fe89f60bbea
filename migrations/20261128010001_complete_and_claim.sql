-- What an agent does between two short tasks, in one commit: ends the attempts that worker_complete_many would end, then
-- claims as a worker_claim that may not wait. Both halves can be repeated, apart or together: an end that was heard is
-- 'already', and a claim's number brings what it brought.
--
-- And what both cost, once more: the planner's settings are those of the function that was called, as one that sets none is
-- entered the quicker; an update of tasks has two triggers instead of four, and words that only these functions write are not
-- checked against a list, as each condition and list is read anew for every statement.

create function public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_log_last bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
    v_set text;
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- no list, or something in it is no id or number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    v_set := set_config('orchestrator.minded', 'on', true);  -- who waits and who listens are seen to below
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = p_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = p_now
          from (select * from unnest(v_ids, v_attempts, v_data) u (id, attempt, result_data) order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker.id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = p_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select array_agg(d.id) into v_held from done d;
    v_set := set_config('orchestrator.minded', '', true);
    if v_held is not null then
        perform public.internal_settle_dependants(v_held);
        if public.internal_wanted(p_worker) <> 'run' then
            perform pg_notify('orchestrator_fleet', p_worker.id);
        end if;
    end if;
    if cardinality(v_held) = cardinality(v_ids) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when (r->>'task_id')::uuid = any (v_held) and t.attempts = (r->>'attempt')::int then 'ok'
                   when exists (select from public.task_attempts a
                                 where a.task_id = (r->>'task_id')::uuid and a.attempt = (r->>'attempt')::int
                                   and a.worker_id = p_worker.id and a.outcome = 'complete') then 'already'
                   else 'fenced' end order by n)
          from jsonb_array_elements(p_results) with ordinality e (r, n)
          left join public.tasks t on t.id = (r->>'task_id')::uuid));
end
$$;

create function public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric,
    p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_wanted text := public.internal_wanted(p_worker);
    v_tasks jsonb;
    v_status text := p_worker.status;
    v_claim_no bigint := p_worker.claim_no;
    v_spent boolean := false;
begin
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted <> 'run' or p_worker.status not in ('spawning', 'active', 'idle') then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
    elsif p_claim_no < v_claim_no
       or p_claim_no <= (select max(a.claim_no) from public.task_attempts a
                          where a.worker_id = p_worker.id and a.nonce = p_nonce) then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
        v_spent := v_tasks = '[]';
    else
        if p_worker.status <> 'spawning' then
            v_tasks := public.internal_take(p_worker, p_claim_no, p_batch, p_now);
            if v_tasks is not null then
                v_status := 'active';
            elsif p_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is null then
            v_claim_no := p_claim_no;
            if coalesce(p_wait_s, 0) <= 0 or public.internal_is_pod() and public.internal_is_over_postgrest() then
                v_claim_no := p_claim_no + 1;
            end if;
        end if;
        if v_status <> p_worker.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', jsonb_array_length(v_tasks), p_worker.pool)
                else format('asked for work of pool %s and there was none', p_worker.pool) end);
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker.id;
        elsif v_claim_no <> p_worker.claim_no then
            update public.workers w set claim_no = v_claim_no where w.id = p_worker.id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', p_worker.pool, 'state', v_status,
                              'tasks', coalesce(v_tasks, '[]'), 'spent', v_spent);
end
$$;

create or replace function public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
    return public.internal_complete_many(public.internal_caller(p_worker_id, false), p_nonce, p_results, public.internal_clock(p_now));
end
$$;

create or replace function public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric,
    p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
begin
    return public.internal_claim(public.internal_caller(p_worker_id, true), p_nonce, p_claim_no, p_batch, p_wait_s,
                                 public.internal_clock(p_now));
end
$$;

create function public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch int,
    p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    -- Locked before any task is: the order in which a heartbeat locks them.
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_ended jsonb := public.internal_complete_many(v_worker, p_nonce, p_results, v_now);
begin
    return v_ended || public.internal_claim(v_worker, p_nonce, p_claim_no, p_batch, 0, v_now);
end
$$;

alter function public.internal_take(public.workers, bigint, int, timestamptz)
    reset enable_seqscan reset plan_cache_mode;
alter function public.internal_mark(text, timestamptz)
    reset enable_seqscan reset plan_cache_mode;

create or replace function public.internal_tasks_counted() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_counts;
    elsif tg_op = 'INSERT' then
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, count(*)
          from added a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from added a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    else
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, -count(*)
          from removed a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
    end if;
    return null;
end
$$;

create or replace function public.internal_tasks_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_ended uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
begin
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status <> b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on <> b.depends_on or b.status <> 'Queued' and a.depends_on <> '{}')),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status <> 'Queued' or b.blocked
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status <> 'In Progress')
      into v_ended, v_waiting, v_pools, v_workers
      from changed a join was b on b.id = a.id;
    if v_ended is not null and coalesce(current_setting('orchestrator.settling', true), '') = '' then
        perform public.internal_settle_dependants(v_ended);
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w where w is not null;
    insert into public.task_counts (pool, kind, n)
    select c.pool, c.kind, sum(c.n)
      from (select a.pool, case when a.blocked then 'blocked' when a.run_after is not null then 'timed'
                                else 'plain' end as kind, 1 as n
              from changed a where a.status = 'Queued'
            union all
            select b.pool, case when b.blocked then 'blocked' when b.run_after is not null then 'timed'
                                else 'plain' end, -1
              from was b where b.status = 'Queued') c
     group by 1, 2 having sum(c.n) <> 0;
    insert into public.task_marks (pool, place, created_at, id)
    select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
      from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    return null;
end
$$;

create function public.internal_task_changing() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if new.updated_at is not distinct from old.updated_at then
        new.updated_at := public.internal_now();
    end if;
    if new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    return new;
end
$$;

alter table public.task_attempts drop constraint task_attempts_outcome_check;
alter table public.task_counts drop constraint task_counts_kind_check;
-- The same names as before: a bounded repetition took ten times as long, on every update of the row.
alter table public.tasks drop constraint tasks_pool_named,
    add constraint tasks_pool_named check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(pool) <= 63);
alter table public.workers drop constraint workers_fleet_named, drop constraint workers_pool_named,
    add constraint workers_fleet_named check (fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(fleet) <= 63),
    add constraint workers_pool_named check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(pool) <= 63);
drop trigger tasks_counted_changed on public.tasks;
drop trigger tasks_rerouted on public.tasks;
drop trigger tasks_touched on public.tasks;
drop function public.internal_task_rerouted();
drop function public.internal_task_touched();
create trigger tasks_changing before update on public.tasks for each row
    when (current_setting('orchestrator.minded', true) is distinct from 'on') execute function public.internal_task_changing();

do $$
declare
    v_role name;
    v_function text;
begin
    foreach v_function in array array['internal_complete_many(public.workers, text, jsonb, timestamptz)',
                                      'internal_claim(public.workers, text, bigint, int, numeric, timestamptz)',
                                      'internal_task_changing()',
                                      'worker_complete_and_claim(text, text, jsonb, bigint, int, timestamptz)'] loop
        execute format('revoke all on function public.%s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%s from %I', v_function, v_role);
        end loop;
    end loop;
    execute format('grant execute on function public.%s to gpu_worker', v_function);
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function public.%s to service_role', v_function);
    end if;
end
$$;
