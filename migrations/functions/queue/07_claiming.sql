-- How a worker takes tasks.
--
-- (task id, attempt number) is the fencing token of a claim and part of the keys of its outputs. It never repeats: a row of
-- `live` counts on from the attempts of its task, which outlive a deleted task.

-- These functions answered jsonb once, and the type of an answer cannot be replaced.
do $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid::regprocedure from pg_catalog.pg_proc p
                       where p.pronamespace = 'public'::regnamespace and p.prorettype = 'jsonb'::regtype
                         and p.proname in ('worker_claim', 'worker_complete_many', 'worker_complete_and_claim') loop
        execute format('drop function %s', v_function);
    end loop;
end
$$;

-- A claim number identifies one claim. A repeated claim returns the same tasks. A number below the highest one takes
-- nothing new. A number that was answered with no task is spent: the network may deliver a copy of the request late, when
-- the agent already asks under the next number. It must not take a task of which the agent would never know. Only the
-- gateway waits for a task and asks again under the same number; p_wait_s says for how long.
create or replace function public.worker_claim(
    p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric, p_now timestamptz default null
) returns json
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
set lock_timeout = '3s' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_launch orchestrator.launches;
    v_before bigint;
begin
    perform orchestrator.check_claim(p_claim_no, p_batch);
    v_launch := orchestrator.caller(p_worker_id, p_nonce);
    if v_launch.nonce is distinct from p_nonce then
        return json_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::json);
    end if;
    return orchestrator.claim(v_launch, p_claim_no, p_batch, v_now,
        coalesce(p_wait_s, 0) > 0 and not (public.internal_is_pod() and public.internal_is_over_postgrest()));
end
$$;

create or replace function orchestrator.check_claim(p_claim_no bigint, p_batch int) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
end
$$;

-- The caller's launch, locked. A pod must be the worker that it names (sub) and hold the one current token (jti).
create or replace function orchestrator.caller(p_worker_id text, p_nonce text) returns orchestrator.launches
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_claims jsonb;
    v_launch orchestrator.launches;
begin
    if public.internal_is_pod() then
        v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
        if v_claims->>'sub' is null or v_claims->>'sub' is distinct from p_worker_id then
            perform public.internal_refuse('OR006', 'the token is not of this worker');
        end if;
    end if;
    -- Other calls lock a worker before its launch. A claim that may change the worker does so too.
    select * into v_launch from orchestrator.launches l where l.worker_id = p_worker_id;
    if v_launch.status <> 'active' or not v_launch.may then
        perform from public.workers w where w.id = p_worker_id for no key update;
    end if;
    select * into v_launch from orchestrator.launches l where l.worker_id = p_worker_id for no key update;
    if v_launch.worker_id is null or v_launch.status = 'terminated' then
        perform public.internal_refuse('OR005', 'no such worker, or it has terminated', '', 'stop');
    end if;
    if v_claims is not null and (v_launch.jti is null or v_claims->>'jti' is distinct from v_launch.jti) then
        perform public.internal_refuse('OR006', 'the token was revoked');
    end if;
    return v_launch;
end
$$;

-- One claim of a locked launch. p_may_wait: the caller asks again under this number if there is no task.
create or replace function orchestrator.claim(
    p_launch orchestrator.launches, p_claim_no bigint, p_batch int, p_now timestamptz, p_may_wait boolean
) returns json
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_tasks json;
    v_status text := p_launch.status;
    v_is_spent boolean := false;
    v_may boolean := p_launch.may;
begin
    if p_claim_no <= p_launch.claim_no then
        v_tasks := orchestrator.tasks_of_claim(p_launch, p_claim_no);
        v_is_spent := v_tasks is null;
    else
        v_may := v_may or orchestrator.may_claim(p_launch, p_now);
        if v_may and not public.internal_is_store_away(p_launch.fleet, p_now) then
            v_tasks := orchestrator.take(p_launch, p_claim_no, p_batch, p_now);
        end if;
        if v_tasks is not null then
            v_status := 'active';
        elsif v_status = 'active' and p_launch.wanted = 'run' and (v_may or p_launch.cluster is not null) and not exists (
                select from orchestrator.live q where q.worker_id = p_launch.worker_id and q.state = 'running') then
            perform from public.workers w where w.id = p_launch.worker_id for no key update skip locked;
            if found then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is not null or not p_may_wait then
            update orchestrator.launches l set claim_no = p_claim_no where l.worker_id = p_launch.worker_id;
        end if;
        if v_status <> p_launch.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', json_array_length(v_tasks), p_launch.pool)
                else format('asked for work of pool %s and there was none', p_launch.pool) end);
            update public.workers w set status = v_status where w.id = p_launch.worker_id;
        end if;
    end if;
    return json_build_object('outcome', 'ok', 'wanted', p_launch.wanted, 'pool', p_launch.pool, 'state', v_status,
        'tasks', coalesce(v_tasks, '[]'), 'spent', v_is_spent,
        'reserved', p_launch.cluster is not null and not v_may);
end
$$;

-- Whether a worker may claim that is held back or reserved for a cluster.
create or replace function orchestrator.may_claim(p_launch orchestrator.launches, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_worker public.workers;
begin
    if p_launch.wanted <> 'run' or p_launch.status not in ('active', 'idle') then
        return false;
    end if;
    select * into v_worker from public.workers w where w.id = p_launch.worker_id for no key update;
    return (v_worker.held_back is null or public.internal_may_claim_again(v_worker, p_now))
       and (v_worker.cluster is null or public.internal_is_controller(v_worker));
end
$$;

-- Takes tasks for a launch and returns them as JSON; null for none. The statements read by index only: a plan that was made
-- while the queue was short must not be used when it is long.
create or replace function orchestrator.take(
    p_launch orchestrator.launches, p_claim_no bigint, p_batch int, p_now timestamptz
) returns json
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_least constant int := -2147483648;
    c_none constant bigint := 9007199254740991;
    -- Claims between two tries to raise the mark. A claim of n tasks counts as n, and the number shrinks by the root of
    -- n: a try costs as much as reading past the tasks of that many claims.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; a claim does not read more of them again and again
    c_due_every constant int := 16;  -- claims between two looks for tasks whose time has come
    c_looks constant int := 20;  -- rounds, if a claim finds only tasks that must fail
    v_from record;
    v_ids uuid[];
    v_attempts int[];
    v_is_odd boolean;
    v_shared int;  -- the place of a task of a tenant
    v_tasks json;
begin
    if p_claim_no % c_due_every = 0 then
        perform orchestrator.let_due(p_launch.pool, p_batch);
    end if;
    v_from := orchestrator.claim_start(p_launch.pool);
    for v_look in 1..c_looks loop
        with taken as (
            update orchestrator.live q
               set state = 'running', attempt = q.attempt + 1, attempts_shown = q.attempt + 1, shown = 2 * (q.attempt + 1),
                   worker_id = p_launch.worker_id,
                   nonce = p_launch.nonce, claim_no = p_claim_no, claimed_at = p_now, progress_at = p_now,
                   lease_expires_at = p_now + p_launch.lease, log_first = p_launch.log_bytes
             where q.ctid = any (array(
                       select c.ctid from orchestrator.live c
                        where c.pool = p_launch.pool and c.state = 'ready'
                          and (c.place, c.turn, c.created_at, c.task_id)
                              >= (v_from.place, v_from.turn, v_from.created_at, v_from.task_id)
                        order by c.place, c.turn, c.created_at, c.task_id limit p_batch for update skip locked))
            returning q.task_id, q.attempt, q.place, q.turn, q.created_at, q.tenant,
                      q.is_heavy or q.has_needs or p_launch.cluster is not null as is_odd
        )
        select array_agg(k.task_id order by k.place, k.turn, k.created_at, k.task_id),
               array_agg(k.attempt order by k.place, k.turn, k.created_at, k.task_id), bool_or(k.is_odd),
               max(case when k.tenant is not null or k.turn < c_none then k.place end)
          into v_ids, v_attempts, v_is_odd, v_shared from taken k;
        if v_ids is not null then
            if v_is_odd then
                select f.ids, f.attempts into v_ids, v_attempts from orchestrator.keep_fitting(p_launch, v_ids) f;
                continue when v_ids is null;
            end if;
            v_tasks := orchestrator.hand_out(p_launch, v_ids, v_attempts, p_now);
            exit when v_tasks is not null;
        elsif v_from.place = c_least then
            exit when v_look > 1 or p_claim_no % c_due_every = 0;
            perform orchestrator.let_due(p_launch.pool, p_batch);
        else
            -- Other claims take them now, or a mark is wrong: so that no task waits forever, the whole index is read.
            perform orchestrator.let_due(p_launch.pool, p_batch);
            exit when (select q.task_id from orchestrator.live q where q.pool = p_launch.pool and q.state = 'ready'
                        order by q.pool, q.place, q.turn, q.created_at, q.task_id limit 1) is null;
            perform orchestrator.raise_mark(p_launch.pool, true);
            v_from.place := c_least;
            v_from.turn := 0;
            v_from.created_at := '-infinity';
        end if;
    end loop;
    if v_tasks is not null and (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered) then
        perform orchestrator.raise_mark(p_launch.pool, false);
    end if;
    if v_shared is not null then
        perform orchestrator.give_turns(p_launch.pool, v_shared, p_batch);
    end if;
    return v_tasks;
end
$$;

-- The JSON of taken tasks. The statement that publishes In Progress reads them too. A task that cannot be published now is
-- handed out nevertheless, and shown later.
create or replace function orchestrator.hand_out(
    p_launch orchestrator.launches, p_ids uuid[], p_attempts int[], p_now timestamptz
) returns json
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_tasks json;
begin
    begin
        v_tasks := orchestrator.write_running(p_launch, p_ids, p_attempts, p_now);
        if json_array_length(v_tasks) = cardinality(p_ids) then
            return v_tasks;
        end if;
    exception when others or assert_failure or query_canceled then
        perform orchestrator.refusal(sqlstate, sqlerrm);
    end;
    v_tasks := orchestrator.hand_out_singly(p_launch, p_ids, p_attempts, p_now);
    insert into orchestrator.rechecks (kind, name)
    select 'show', q.task_id::text from orchestrator.live q
     where q.task_id = any (p_ids) and q.state = 'running' and q.shown < 2 * q.attempt;
    return v_tasks;
end
$$;

-- Publishes In Progress of these attempts, and returns their JSON in this order.
create or replace function orchestrator.write_running(
    p_launch orchestrator.launches, p_ids uuid[], p_attempts int[], p_now timestamptz
) returns json
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_tasks json;
begin
    perform orchestrator.begin_publishing();
    with written as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_launch.worker_id, attempts = p_attempts[array_position(p_ids, t.id)],
               published = 2 * p_attempts[array_position(p_ids, t.id)], updated_at = p_now, generation_started_at = p_now,
               generation_processed_at = null, run_after = null, progress = null, error_message = null, failure_code = null,
               failed_at_point = null
         where t.id = any (p_ids) and t.published < 2 * p_attempts[array_position(p_ids, t.id)]
           and t.status in ('Queued', 'In Progress')
        returning t.id, orchestrator.for_agent(t.*, p_launch.nonce, p_attempts[array_position(p_ids, t.id)]) as task,
                  t.status = 'In Progress' and t.published = 2 * p_attempts[array_position(p_ids, t.id)] as is_shown
    )
    select json_agg(w.task order by array_position(p_ids, w.id)) into v_tasks from written w where w.is_shown;
    perform orchestrator.end_publishing();
    return v_tasks;
end
$$;

-- The JSON of a task for an agent. Add a column that agents need here and nowhere else.
create or replace function orchestrator.for_agent(p_task public.tasks, p_nonce text, p_attempt int) returns json
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_live orchestrator.live;
begin
    select * into v_live from orchestrator.live q where q.task_id = p_task.id;
    return json_build_object(
        'id', p_task.id, 'task_type', p_task.task_type, 'params', p_task.params, 'attempt', p_attempt,
        'max_attempts', v_live.max_attempts, 'timeout_s', v_live.timeout_s,
        'output_prefix', public.internal_output_prefix(p_task.id, p_attempt, p_nonce), 'traceparent', orchestrator.trace_of(p_task),
        'dependencies', case when v_live.has_needs then orchestrator.inputs(orchestrator.needs(p_task)) else '[]' end);
end
$$;

-- Publishes and reads taken tasks one by one, after an error with all of them.
create or replace function orchestrator.hand_out_singly(
    p_launch orchestrator.launches, p_ids uuid[], p_attempts int[], p_now timestamptz
) returns json
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_tasks json[] := '{}';
    v_one json;
    v_task public.tasks;
begin
    for v_n in 1..cardinality(p_ids) loop
        v_one := null;
        begin
            perform from public.tasks t where t.id = p_ids[v_n] for no key update skip locked;
            if found then
                v_one := orchestrator.write_running(p_launch, p_ids[v_n:v_n], p_attempts[v_n:v_n], p_now)->0;
            end if;
        exception when others or assert_failure or query_canceled then
            perform orchestrator.refusal(sqlstate, sqlerrm);
        end;
        if v_one is null then
            select * into v_task from public.tasks t where t.id = p_ids[v_n];
            if v_task.id is null or v_task.status in ('Complete', 'Failed', 'Cancelled') then
                -- It was written while the triggers were off, or a user's trigger has ended it now.
                insert into orchestrator.rechecks (kind, name) values ('edit', p_ids[v_n]::text);
                continue;
            end if;
            update orchestrator.live q
               set shown = case when v_task.status = 'In Progress' then v_task.published else 0 end,
                   attempts_shown = coalesce(v_task.attempts, 0)
             where q.task_id = p_ids[v_n] and v_task.published < 2 * q.attempt;
            v_one := orchestrator.for_agent(v_task, p_launch.nonce, p_attempts[v_n]);
        end if;
        v_tasks := v_tasks || v_one;
    end loop;
    return case when cardinality(v_tasks) > 0 then array_to_json(v_tasks) end;
end
$$;

-- The tasks of one claim that the worker still holds; null for none.
create or replace function orchestrator.tasks_of_claim(p_launch orchestrator.launches, p_claim_no bigint) returns json
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return (
        select json_agg(orchestrator.for_agent(t.*, p_launch.nonce, q.attempt) order by q.place, q.turn, q.created_at, q.task_id)
          from orchestrator.live q join public.tasks t on t.id = q.task_id
         where q.worker_id = p_launch.worker_id and q.state = 'running' and q.nonce = p_launch.nonce
           and q.claim_no = p_claim_no);
end
$$;
