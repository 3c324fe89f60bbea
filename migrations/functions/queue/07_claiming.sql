-- How a worker takes tasks.
--
-- (task id, attempt number) is the fencing token of a claim and part of the keys of its outputs. It never repeats: a
-- row of `live` counts on from the attempts of its task, which outlive a deleted task.

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

-- The outages that leaders have declared, by fleet. Each ends at expires_at.
create or replace view orchestrator.store_outages as
select s.fleet, s.expires_at from public.fleet_settings s where s.name = 'store_away';

-- What launches hold. The prefix of a claim's outputs has the attempt and eleven characters of the launch: a task that
-- was deleted and inserted again, or a restored database, finds no earlier object under its keys.
create or replace view orchestrator.held as
select q.task_id, q.worker_id, q.state, q.nonce, q.claim_no, q.attempt, q.place, q.turn, q.created_at, q.max_attempts,
       q.timeout_s, q.has_needs,
       'outputs/' || q.task_id || '/' || q.attempt || '-' || left(md5(q.nonce), 11) || '/' as output_prefix
  -- Only a running row has a nonce. With its state here, a look for few ids might read the index of all that run.
  from orchestrator.live q where q.nonce is not null;

-- A claim number identifies one claim. A repeated claim returns the same tasks. A number below the highest one takes
-- nothing new. A number that was answered with no task is spent: the network may deliver a copy of the request after
-- the agent has asked under the next number. It must not take a task that the agent would never learn of. Only the
-- gateway waits for a task and asks again under the same number; p_wait_s says for how long.
create or replace function public.worker_claim(
    p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric, p_now timestamptz default null
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
begin
    if v_launch.nonce is distinct from p_nonce then
        return json_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::json);
    end if;
    return orchestrator.claim(v_launch, p_claim_no, p_batch, v_now,
        coalesce(p_wait_s, 0) > 0
        and not (public.internal_is_pod() and coalesce(current_setting('request.method', true), '') <> ''));
end
$$;

-- The caller's launch, locked. A pod must be the worker that it names (sub) and hold the one current token (jti).
create or replace function orchestrator.caller(p_worker_id text) returns orchestrator.launches
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
    if (select l.status <> 'active' from orchestrator.launches l where l.worker_id = p_worker_id) then
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
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_tasks json;
    v_status text := p_launch.status;
    v_is_spent boolean := false;
begin
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
                                       format('got %s and %s', p_claim_no, p_batch));
    elsif p_claim_no <= p_launch.claim_no then
        select json_agg(orchestrator.for_agent(t.*, h.*) order by h.place, h.turn, h.created_at, h.task_id) into v_tasks
          from orchestrator.held h join public.tasks t on t.id = h.task_id
         where h.worker_id = p_launch.worker_id and h.state = 'running' and h.nonce = p_launch.nonce
           and h.claim_no = p_claim_no;
        v_is_spent := v_tasks is null;
    else
        if p_launch.may and not exists (
               select from orchestrator.store_outages o where o.fleet = p_launch.fleet and o.expires_at > p_now) then
            v_tasks := orchestrator.take(p_launch, p_claim_no, p_batch, p_now);
        end if;
        if v_tasks is not null then
            v_status := 'active';
        elsif v_status = 'active' and p_launch.wanted = 'run' and (p_launch.may or p_launch.cluster is not null)
              and not exists (select from orchestrator.live q
                               where q.worker_id = p_launch.worker_id and q.state = 'running') then
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
        'may', p_launch.may);
end
$$;

-- Takes ready tasks for a launch and returns them as JSON; null for none. The statements read by index only: a plan
-- that was made while the queue was short must not be used when it is long.
create or replace function orchestrator.take(
    p_launch orchestrator.launches, p_claim_no bigint, p_batch int, p_now timestamptz
) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_least constant int := -2147483648;
    c_none constant bigint := 9007199254740991;
    -- Claims between two tries to raise the mark. A claim of n tasks counts as n, and the number shrinks by the root of
    -- n: a try costs as much as reading past the tasks of that many claims.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; a claim does not read more of them again and again
    c_slow constant interval := '100 milliseconds';  -- see orchestrator.slow_pools
    c_looks constant int := 20;  -- rounds, if a claim finds only tasks that no worker can get
    v_from record := orchestrator.claim_start(p_launch.pool);
    v_ids uuid[];
    v_is_odd boolean;
    v_is_slow boolean;
    v_began timestamptz;
    v_shared int;  -- the place of a task of a tenant
    v_tasks json;
begin
    for v_look in 1..c_looks loop
        with taken as (
            update orchestrator.live q
               set state = 'running', attempt = q.attempt + 1, attempts_shown = q.attempt + 1,
                   shown = 2 * (q.attempt + 1), worker_id = p_launch.worker_id, nonce = p_launch.nonce,
                   claim_no = p_claim_no, claimed_at = p_now, progress_at = p_now,
                   lease_expires_at = p_now + p_launch.lease, log_first = p_launch.log_bytes
             where q.ctid = any (array(
                       select c.ctid from orchestrator.live c
                        where c.pool = p_launch.pool and c.state = 'ready'
                          and (c.place, c.turn, c.created_at, c.task_id)
                              >= (v_from.place, v_from.turn, v_from.created_at, v_from.task_id)
                        order by c.place, c.turn, c.created_at, c.task_id limit p_batch for update skip locked))
            returning q.task_id, q.place, q.turn, q.created_at, q.tenant,
                      q.is_heavy or q.has_needs or p_launch.cluster is not null as is_odd
        )
        select array_agg(k.task_id order by k.place, k.turn, k.created_at, k.task_id), bool_or(k.is_odd),
               max(case when k.tenant is not null or k.turn < c_none then k.place end),
               exists (select from orchestrator.slow_pools s where s.pool = p_launch.pool and s.until > p_now)
          into v_ids, v_is_odd, v_shared, v_is_slow from taken k;
        if v_ids is not null then
            if v_is_odd then
                v_ids := orchestrator.keep_fitting(p_launch, v_ids);
                continue when v_ids is null;
            end if;
            v_began := clock_timestamp();
            v_tasks := orchestrator.publish_running(v_ids, p_now, v_is_slow);
            if clock_timestamp() > v_began + c_slow then
                insert into orchestrator.slow_calls (pool, at)
                select p_launch.pool, p_now where exists (select from orchestrator.users_triggers);
            end if;
            exit when v_tasks is not null;
        else
            -- Other claims take them now, or a mark is wrong: so that no task waits forever, the whole index is read.
            exit when v_from.place = c_least or (
                select q.task_id from orchestrator.live q where q.pool = p_launch.pool and q.state = 'ready'
                 order by q.pool, q.place, q.turn, q.created_at, q.task_id limit 1) is null;
            perform orchestrator.raise_mark(p_launch.pool, true);
            v_from.place := c_least;
            v_from.turn := 0;
            v_from.created_at := '-infinity';
        end if;
    end loop;
    if v_tasks is not null and (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0
                                or v_from.lowered > c_lowered) then
        perform orchestrator.raise_mark(p_launch.pool, false);
    end if;
    if v_shared is not null then
        perform orchestrator.give_turns(p_launch.pool, v_shared, p_batch);
    end if;
    return v_tasks;
end
$$;

-- Publishes In Progress of taken tasks, and returns their JSON in this order; null for none. The statement that
-- publishes reads them too. If it fails, each task is tried by itself. A task that cannot be published still goes to
-- the agent, and is published later; with p_later, all are.
create or replace function orchestrator.publish_running(p_ids uuid[], p_now timestamptz, p_later boolean) returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
#variable_conflict use_variable
declare
    v_tasks json;
    v_task public.tasks;
    v_free uuid[];
begin
    if not p_later then
        begin
            perform orchestrator.begin_publishing();
            with written as (
                update public.tasks t
                   set status = 'In Progress', worker_id = h.worker_id, attempts = h.attempt, published = 2 * h.attempt,
                       updated_at = p_now, generation_started_at = p_now, generation_processed_at = null,
                       run_after = null, progress = null, error_message = null, failure_code = null,
                       failed_at_point = null
                  from orchestrator.held h
                 where h.task_id = any (p_ids) and t.id = any (p_ids) and t.id = h.task_id
                   and t.published < 2 * h.attempt and t.status in ('Queued', 'In Progress')
                returning t.id, orchestrator.for_agent(t.*, h.*) as task,
                          t.status = 'In Progress' and t.published = 2 * h.attempt as is_shown
            )
            select json_agg(w.task order by array_position(p_ids, w.id)) into v_tasks from written w where w.is_shown;
            set constraints all immediate;
            perform set_config('search_path', 'pg_catalog, pg_temp', true),
                    set_config('orchestrator.publishing', '', true);
        exception when others or assert_failure or query_canceled then
            perform orchestrator.refusal(sqlstate, sqlerrm);
            v_tasks := null;
        end;
    end if;
    if json_array_length(v_tasks) = cardinality(p_ids) then
        return v_tasks;
    elsif cardinality(p_ids) > 1 then
        v_free := array(select t.id from public.tasks t where t.id = any (p_ids) for no key update skip locked);
        return (select json_agg(e.task order by i.n)
                  from unnest(p_ids) with ordinality i (id, n)
                 cross join lateral json_array_elements(orchestrator.publish_running(
                       array[i.id], p_now, p_later or i.id <> all (v_free))) e (task));
    end if;
    select * into v_task from public.tasks t where t.id = p_ids[1];
    -- The rows below are ours. On a busy server, a table may take longer than 10 ms to grow by a page.
    perform set_config('lock_timeout', '900ms', true);
    if v_task.id is null or v_task.status in ('Complete', 'Failed', 'Cancelled') then
        -- It was written while the triggers were off, or a user's trigger has ended it now.
        insert into orchestrator.rechecks (kind, name) values ('edit', p_ids[1]::text);
        return null;
    end if;
    with unshown as (
        update orchestrator.live q
           set shown = case when v_task.status = 'In Progress' then v_task.published else 0 end,
               attempts_shown = coalesce(v_task.attempts, 0)
         where q.task_id = p_ids[1] and v_task.published < 2 * q.attempt
        returning q.task_id
    )
    insert into orchestrator.rechecks (kind, name) select 'show', u.task_id::text from unshown u;
    return (select json_build_array(orchestrator.for_agent(v_task, h.*)) from orchestrator.held h
             where h.task_id = p_ids[1]);
end
$$;

-- The JSON of a claimed task for its agent. Add a column that agents need here and nowhere else.
create or replace function orchestrator.for_agent(p_task public.tasks, p_held orchestrator.held) returns json
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return json_build_object(
        'id', p_task.id, 'task_type', p_task.task_type, 'params', p_task.params, 'attempt', p_held.attempt,
        'max_attempts', p_held.max_attempts, 'timeout_s', p_held.timeout_s,
        'output_prefix', p_held.output_prefix,
        'traceparent', case when public.internal_traceparent_problem(p_task.traceparent) is null
                            then p_task.traceparent end,
        'dependencies', case when p_held.has_needs then (
            select coalesce(json_agg(json_build_object(
                       'id', n.id, 'task_type', r.task_type, 'output_location', r.output_location,
                       'result_data', r.result_data) order by n.place), '[]')
              from (select u.id, min(u.place) as place
                      from unnest(orchestrator.needs(p_task)) with ordinality u (id, place) group by u.id) n
             cross join lateral orchestrator.result_of(n.id) r) else '[]' end);
end
$$;

