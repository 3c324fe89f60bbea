-- What a claim and a completion cost, apart from their rows. The rules stay the tables': whoever edits a row by hand goes
-- through the same triggers as before. A function that does itself what a trigger would do says so (orchestrator.minded,
-- until the end of its statement), and the trigger is not called.
--
-- Called in every request, and several times: as SQL functions, which cannot be inlined (security definer, search_path),
-- each of these took longer than a row.

create or replace function public.internal_is_pod() returns boolean
language plpgsql stable security definer set search_path = '' as $$
begin
    -- Inside a security definer function current_user is the owner; the role that the request runs under is still here.
    return coalesce(current_setting('role', true), '') = 'gpu_worker' or session_user = 'gpu_worker';
end
$$;

create or replace function public.internal_now() returns timestamptz
language plpgsql volatile security definer set search_path = '' as $$
begin
    return coalesce(nullif(current_setting('orchestrator.now', true), '')::timestamptz, clock_timestamp());
end
$$;

create or replace function public.internal_wanted(p_worker public.workers) returns text
language plpgsql immutable set search_path = '' as $$
begin
    return case when p_worker.stop_requested_at is not null then 'stop'
                when p_worker.status = 'terminating' and p_worker.stage in ('flushing', 'deleting', 'gone') then 'stop'
                when p_worker.status = 'terminating' or p_worker.drain_requested_at is not null then 'drain'
                else 'run' end;
end
$$;

-- Who has set updated_at needs nobody to set it.
drop trigger tasks_touched on public.tasks;
create trigger tasks_touched before update on public.tasks
    for each row when (new.updated_at is not distinct from old.updated_at)
    execute function public.internal_task_touched();

drop trigger tasks_changed on public.tasks;
create trigger tasks_changed after update on public.tasks
    referencing old table as was new table as changed for each statement
    when (current_setting('orchestrator.minded', true) is distinct from 'on')
    execute function public.internal_tasks_changed();

-- An attempt is ended in place: its end is in no index, and its page has room.
alter table public.task_attempts set (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- Takes tasks for a worker, and answers with them; sequential scans and sorts are off, so that a plan made while the queue
-- was short cannot stay on when it is long; and it is made once, since making it takes longer than claiming a task.
drop function public.internal_take(public.workers, bigint, int, timestamptz);
create function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz)
returns jsonb language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan as $$
declare
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
begin
    perform set_config('orchestrator.minded', 'on', true);  -- nothing waits for a start, nobody is told of one
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, attempts = t.attempts + 1, updated_at = p_now,
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (array(
                   select q.ctid from public.tasks q
                    where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
                      and (q.run_after is null or q.run_after <= p_now)
                    order by q.priority desc, q.created_at, q.id
                    limit p_batch for update skip locked))
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first from taken k
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
    return v_tasks;
end
$$;

-- A claim number stands for one claim: repeated, it gets the same tasks; after a higher one it gets nothing new, and one
-- that was answered with nothing is spent: a copy of it that the network kept must not take a task, of which its agent,
-- which has heard the answer and asks under the next number, would never know. Only the gateway holds a question open and
-- asks again under its number, and p_wait_s tells how long it still will.
create or replace function public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int,
                                               p_wait_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_wanted text := public.internal_wanted(v_worker);
    v_tasks jsonb;
    v_status text := v_worker.status;
    v_claim_no bigint := v_worker.claim_no;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted <> 'run' or v_worker.status not in ('spawning', 'active', 'idle') or p_claim_no < v_claim_no
       or p_claim_no = v_claim_no and exists (
              select from public.task_attempts a
               where a.worker_id = p_worker_id and a.nonce = p_nonce and a.claim_no = p_claim_no) then
        v_tasks := public.internal_claimed(p_worker_id, p_nonce, p_claim_no);
    else
        v_claim_no := p_claim_no;
        if v_worker.status <> 'spawning' then
            v_tasks := public.internal_take(v_worker, p_claim_no, p_batch, v_now);
            if v_tasks is not null then
                v_status := 'active';
            elsif v_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is null and (coalesce(p_wait_s, 0) <= 0
                                or public.internal_is_pod() and public.internal_is_over_postgrest()) then
            v_claim_no := p_claim_no + 1;
        end if;
        if v_status <> v_worker.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', jsonb_array_length(v_tasks), v_worker.pool)
                else format('asked for work of pool %s and there was none', v_worker.pool) end);
        end if;
        if v_status <> v_worker.status or v_claim_no <> v_worker.claim_no then
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker_id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', v_worker.pool, 'state', v_status,
                              'tasks', coalesce(v_tasks, '[]'));
end
$$;

create or replace function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int,
                                       p_output_location text, p_result_data jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_started_at timestamptz;
    v_outcome text;
    v_answer jsonb;
    -- Commits that notify go one by one through the whole server. The end of a task that took no longer than this is told
    -- only of a worker that is wanted gone: any other claims again at once, and is idle, which is told, or has the next.
    c_moment constant interval := '20 milliseconds';
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
    end if;
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']);
    if v_outcome = 'held' and p_output_location like 's3://%'
       and public.internal_is_pod() and public.internal_is_over_postgrest() then
        v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, v_now);
        if v_answer is null then
            return jsonb_build_object('outcome', 'pending');
        elsif v_answer->'found' = 'false' then
            return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
        end if;
    end if;
    if v_outcome = 'held' then
        perform set_config('orchestrator.minded', 'on', true);  -- who waits and who listens are seen to below
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id;
        perform set_config('orchestrator.minded', '', true);
        update public.task_attempts a
           set ended_at = v_now, outcome = 'complete',
               log_last = (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint
         where a.task_id = p_task_id and a.attempt = p_attempt returning a.started_at into v_started_at;
        perform public.internal_settle_dependants(array[p_task_id]);
        if v_started_at < v_now - c_moment or public.internal_wanted(v_worker) <> 'run' then
            perform pg_notify('orchestrator_fleet', p_worker_id);
        end if;
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_take(public.workers, bigint, int, timestamptz) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_take(public.workers, bigint, int, timestamptz) from %I', v_role);
    end loop;
end
$$;
