-- How a worker takes tasks.
--
-- (task id, attempt number) is the fencing token of a claim and part of the keys of its outputs. It never repeats,
-- even if users write to `tasks` and `task_attempts`. A claim takes the number after the highest of
--   * tasks.attempts,
--   * the numbers of the task's rows in task_attempts, which outlive a deleted task and a reset of its attempts, and
--   * the floor: the highest number in a row of task_attempts that was deleted, truncated or renumbered while the
--     launch that made the claim could still use it. The floor is a row of task_floors, which retention deletes when no
--     launch can use the number any more.
-- If that skips numbers, tasks.uncounted grows by as many, so that attempts - uncounted can be compared with
-- max_attempts.
--
-- A user's trigger or constraint that refuses the change of one task affects only that task: a claim, rescue or
-- heartbeat changes each task in a block of its own if changing all of them at once fails. A task that can be neither
-- claimed nor ended gets a row in task_refusals. So does a task whose claim fails because of the schema (a constraint,
-- a missing column, a rule): the next task would fail as well, and must not end for that. Claims pass over such tasks,
-- and the planner starts no worker for them. A snapshot tries a claim from time to time and takes it back; if that
-- works, the row is deleted.

-- A claim number identifies one claim. A repeated claim returns the same tasks. A number below the highest one takes
-- nothing new. A number that was answered with no task is spent: the network may deliver a copy of the request late,
-- when the agent already asks under the next number. It must not take a task of which the agent would never know. Only
-- the gateway waits for a task and asks again under the same number; p_wait_s says for how long.
create or replace function public.worker_claim(
    p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off
set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_variable
begin
    return public.internal_claim(public.internal_caller(p_worker_id, true), p_nonce, p_claim_no, p_batch, p_wait_s,
                                 public.internal_clock(p_now));
end
$$;

-- A claim that takes tasks does not write the worker's row unless the worker's state changes: its number is in
-- task_attempts. A repeated number that was spent before is answered at once. A worker that a cluster reserves gets no
-- task, and `reserved`: the gateway must not wake it for tasks.
create or replace function public.internal_claim(
    p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_wanted text := public.internal_wanted(p_worker);
    v_tasks jsonb;
    v_status text := p_worker.status;
    v_claim_no bigint := p_worker.claim_no;
    v_spent boolean := false;
    v_may boolean := p_worker.cluster is null or public.internal_is_controller(p_worker);
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
       or p_claim_no <= (select a.claim_no from public.task_attempts a
                          where a.worker_id = p_worker.id and a.nonce = p_nonce
                          order by a.worker_id desc, a.nonce desc, a.claim_no desc limit 1) then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
        v_spent := v_tasks = '[]';
    else
        if p_worker.status <> 'spawning'
           and (p_worker.held_back is null or public.internal_may_claim_again(p_worker, p_now)) then
            if v_may and not public.internal_is_store_away(p_worker.fleet, p_now) then
                v_tasks := public.internal_take(p_worker, p_claim_no, p_batch, p_now);
            end if;
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
                              'tasks', coalesce(v_tasks, '[]'), 'spent', v_spent)
        || case when v_may then '{}' else '{"reserved": true}'::jsonb end;
end
$$;

-- The JSON of a claimed task for an agent. Add a column that agents need here and nowhere else.
create or replace function public.internal_task_for_agent(p_task public.tasks, p_nonce text) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_dependencies jsonb := '[]';
begin
    if p_task.depends_on <> '{}' then
        v_dependencies := coalesce((
            select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type, 'output_location', d.output_location,
                                                'result_data', d.result_data) order by n.place)
              from (select u.id, min(u.place) as place from unnest(p_task.depends_on) with ordinality u (id, place)
                     group by u.id) n
              join public.internal_results(p_task.depends_on) d on d.id = n.id), '[]');
    end if;
    return jsonb_build_object(
        'id', p_task.id, 'task_type', p_task.task_type, 'params', p_task.params, 'attempt', p_task.attempts,
        'max_attempts', p_task.max_attempts,
        'timeout_s', case when p_task.timeout_s between 0.001 and 2592000 then p_task.timeout_s end,
        'output_prefix', public.internal_output_prefix(p_task.id, p_task.attempts, p_nonce),
        'traceparent', p_task.traceparent,
        'dependencies', v_dependencies);
end
$$;

-- The tasks of one claim that the worker still holds, as JSON for an agent.
create or replace function public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) returns jsonb
language sql stable security definer set search_path = '' as $$
    select coalesce(jsonb_agg(public.internal_task_for_agent(t.*, a.nonce)
                              order by t.priority desc, t.queue_turn, t.created_at, t.id), '[]')
      from public.task_attempts a
      join public.tasks t on t.id = a.task_id and t.attempts = a.attempt
     where a.worker_id = internal_claimed.p_worker_id and a.nonce = internal_claimed.p_nonce and a.claim_no = internal_claimed.p_claim_no and a.ended_at is null
       and t.status = 'In Progress' and t.worker_id = internal_claimed.p_worker_id
$$;

-- Takes tasks for a worker and returns them. Sequential scans and sorts are off: a plan that was made while the queue
-- was short must not be used when it is long.
create or replace function public.internal_take(
    p_worker public.workers, p_claim_no bigint, p_batch int, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_variable
declare
    v_from record;
    v_rows tid[];
    v_ids uuid[];  -- of the tasks in v_rows
    v_heavy boolean;
    v_limited boolean;  -- a task was written without triggers, or before the limit of its type
    v_has_limits boolean := exists (select from public.concurrency_limits l where l.scope = 'type');
    v_shared int;  -- ~priority of the task of a tenant with the lowest priority that was found
    v_tasks jsonb;
    v_rest jsonb;
    v_passed uuid[] := '{}';  -- tasks that can neither be claimed nor ended
    c_least constant int := -2147483648;
    c_no_turn constant bigint := 9007199254740991;
    -- Claims between two tries to raise the mark. A claim of n tasks counts as n, and the number shrinks by the root of
    -- n: a try costs as much as reading past the tasks of that many claims.
    c_raise_every constant int := 32;
    c_postponed constant int := 1000;  -- tasks of a pool; a claim may read past so many
    c_lowered constant int := 64;  -- marks; a claim does not read more of them again and again
    c_light_bytes constant int := 2000;  -- of params, as stored and as text: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: an agent reads so much, and it is built in time
    c_values constant int := 500000;  -- and JSON values and keys of it: each costs an agent a hundred bytes of memory
    c_looks constant int := 20;  -- rounds, if a claim finds only tasks that must fail; the next claim continues
    c_time constant interval := '2 seconds';  -- of rounds, if users' triggers wait for other transactions
    c_inputs_time constant interval := '5 seconds';  -- of rounds, if tasks have inputs that no worker can get
begin
    v_from := public.internal_claim_start(p_worker.pool, p_now);
    for v_look in 1..c_looks loop
        select array_agg(l.ctid), array_agg(l.id), bool_or(l.limited), bool_or(l.heavy), coalesce(max(l.shared), v_shared)
          into v_rows, v_ids, v_limited, v_heavy, v_shared from (
            select q.ctid, q.id, q.queue_gate = 0 and (q.concurrency_key is not null or v_has_limits and exists (
                       select from public.concurrency_limits c where c.scope = 'type' and c.name = q.task_type)) as limited,
                   case when q.tenant is not null or q.queue_turn < c_no_turn then ~q.priority end as shared,
                   case when q.depends_on <> '{}' or pg_column_size(q.params) > c_light_bytes then true
                        else octet_length(q.params::text) > c_light_bytes or public.internal_is_unreadable(q.params) end as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.queue_turn, q.created_at, q.id)
                   >= (v_from.place, v_from.queue_turn, v_from.created_at, v_from.id)
               and q.id <> all (v_passed)
               and coalesce((select case r.what when 'claim' then false
                                                when 'let_in' then q.queue_gate > 0 or r.retry_at <= p_now else true end
                               from public.task_refusals r where r.task_id = q.id), true)
             order by ~q.priority, q.queue_turn, q.created_at, q.id
             limit p_batch for no key update skip locked) l;
        if v_limited then
            v_passed := v_passed || public.internal_begin_waiting(array(
                select u.place from unnest(v_rows || public.internal_lock_ungated(
                    p_worker.pool, v_from.place, v_from.queue_turn, v_from.created_at, v_from.id, p_now)) u (place)
                 group by 1));
            continue when clock_timestamp() < statement_timestamp() + c_time;
            exit;
        end if;
        if p_worker.cluster is not null and v_rows is not null then
            select s.p_passed, s.fit into v_passed, v_rows
              from public.internal_cluster_fit(p_worker.cluster, v_rows, p_now, v_passed) s;
            continue when v_rows is null;
            v_ids := array(select t.id from public.tasks t where t.ctid = any (v_rows));
        end if;
        if v_heavy then
            begin
                select s.p_passed, s.fit into v_passed, v_rows
                  from public.internal_limit_answer(v_rows, c_bytes, c_values, p_now, v_passed) s;
            exception when query_canceled then
                perform public.internal_claim_cancelled(v_ids);
                return null;
            end;
            continue when v_rows is null and clock_timestamp() < statement_timestamp() + c_inputs_time;
            exit when v_rows is null;
            v_ids := array(select t.id from public.tasks t where t.ctid = any (v_rows));
        elsif v_rows is null then
            -- No row was found although the counts show tasks: other claims take them now, or a mark is wrong. So that
            -- no task waits forever, the whole index is read before the claim returns nothing.
            if v_from.place = c_least then
                -- So that no claim of an idle worker reads past all postponed tasks again.
                if v_look = 1 and c_postponed
                   < (select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'timed') then
                    perform public.internal_raise_mark(p_worker.pool, p_now, true);
                end if;
                return null;
            elsif coalesce((select sum(c.n) from public.task_counts c
                             where c.pool = p_worker.pool and c.kind = 'plain'), 0)
                  <= coalesce((select r.n from public.internal_refused_ready(p_now) r where r.pool = p_worker.pool), 0) then
                return null;
            end if;
            perform public.internal_raise_mark(p_worker.pool, p_now, true);
            v_from.place := c_least;
            v_from.queue_turn := 0;
            v_from.created_at := '-infinity';
            continue;
        end if;
        begin
            v_tasks := public.internal_hand_over(p_worker, p_claim_no, v_rows, p_now);
            perform public.internal_fire_deferred();
        exception when query_canceled then
            perform public.internal_claim_cancelled(v_ids);
            return null;
        when others or assert_failure then  -- one of them is the cause; the single claims find out which
            if sqlstate = '55P03' then
                perform public.internal_count_wait();
            elsif public.internal_is_transient(sqlstate) then
                raise;
            end if;
            v_tasks := null;
        end;
        if v_tasks is null or jsonb_array_length(v_tasks) < cardinality(v_rows) then
            -- The others are suppressed by a user's trigger, or it has put the old row in the place of the new one.
            v_rest := v_tasks;
            select s.p_passed, s.tasks into v_passed, v_tasks
              from public.internal_hand_over_singly(p_worker, p_claim_no, v_ids, p_now, v_passed) s;
            v_tasks := coalesce(v_rest || v_tasks, v_rest, v_tasks);
        end if;
        exit when v_tasks is not null or clock_timestamp() > statement_timestamp() + c_time;
    end loop;
    if v_tasks is null then  -- there may be more: a claim that waits continues at once
        perform pg_notify('orchestrator_tasks', p_worker.pool);
    elsif (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered) then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    if v_shared is not null then
        perform public.internal_deal_turns(p_worker.pool, v_shared, p_batch, p_now);
    end if;
    return v_tasks;
end
$$;

-- A claim was cancelled, mostly by the server's statement_timeout, while it handed over these tasks. Claims pass over them
-- for a while: otherwise the next claim would begin with them and be cancelled too, and the pool would stop. The timeout
-- ends a statement once, so what follows must take a moment.
create or replace function public.internal_claim_cancelled(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    perform public.internal_refused(p_ids, 'claim', 'The claim took too long and was cancelled (57014)', '57014');
end
$$;

-- Returns which of these locked rows fit into one answer, in their order, as far as there is time. Rows that fit into no
-- answer are ended; if that is impossible, they are added to p_passed.
create or replace function public.internal_limit_answer(
    p_rows tid[], p_limit_bytes int, p_limit_values int, p_now timestamptz, inout p_passed uuid[], out fit tid[]
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_variable
declare
    v_task record;
    v_inputs record;
    v_bytes bigint := 0;
    v_values bigint := 0;
    c_time constant interval := '5 seconds';
begin
    for v_task in select t.ctid as place, t.id from public.tasks t
                   where t.ctid = any (p_rows) and case t.status when 'Queued' then true end
                   order by ~t.priority, t.queue_turn, t.created_at, t.id loop
        exit when clock_timestamp() > statement_timestamp() + c_time and (fit is not null or v_inputs is not null);
        select * into v_inputs from public.internal_inputs(v_task.id, p_limit_bytes, p_limit_values);
        if v_inputs.code is null then
            v_bytes := v_bytes + v_inputs.bytes;
            v_values := v_values + v_inputs.json_values;
            exit when v_bytes > p_limit_bytes or v_values > p_limit_values;
            fit := fit || v_task.place;
        elsif not public.internal_end_unclaimed(v_task.id, v_inputs.code, v_inputs.message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

-- Returns why a task's inputs cannot be given to a worker (code and sentence), or their size in the answer to a claim. It
-- stops where they exceed a limit, so its cost is bounded too.
create or replace function public.internal_inputs(
    p_task_id uuid, p_limit_bytes int, p_limit_values int, out bytes bigint, out json_values bigint, out code text,
    out message text
)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_frame_bytes constant int := 150;  -- of a dependency's id and of the keys
    c_frame_values constant int := 10;
    v_depends uuid[];
    v_input record;
    v_text text;
begin
    bytes := 0;
    json_values := 0;
    select t.depends_on into v_depends from public.tasks t where t.id = p_task_id;
    for v_input in
        select t.params as value, 0 as frame_bytes from public.tasks t where t.id = p_task_id
        union all
        select d.result_data, c_frame_bytes + coalesce(octet_length(d.output_location), 0)
               + coalesce(octet_length(d.task_type), 0)
          from public.internal_results(v_depends) d
    loop
        v_text := coalesce(v_input.value::text, 'null');
        bytes := bytes + octet_length(v_text) + v_input.frame_bytes;
        json_values := json_values + c_frame_values + public.internal_json_values(v_text);
        if bytes > p_limit_bytes or json_values > p_limit_values then
            code := 'INPUTS_TOO_LARGE';
            message := format('Its params and the results of the %s tasks that it depends on are more than %s',
                              cardinality(v_depends),
                              case when bytes > p_limit_bytes then format('%s MiB', p_limit_bytes / 1048576)
                                   else format('%s JSON values and keys', p_limit_values) end);
            return;
        elsif public.internal_is_unreadable(v_input.value) then
            code := 'INPUTS_UNREADABLE';
            message := 'Its params or the results of the tasks that it depends on are nested deeper than 64 levels, '
                       'or have a number of more than 4000 digits';
            return;
        end if;
    end loop;
exception when program_limit_exceeded or statement_too_complex or numeric_value_out_of_range then
    code := 'INPUTS_TOO_LARGE';
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s', sqlerrm);
end
$$;

-- Returns the number of values and keys of a JSON text: one for each mark that is not within a string.
create or replace function public.internal_json_values(p_text text) returns bigint
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    p_text := regexp_replace(p_text, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g');
    return 1 + octet_length(p_text) - octet_length(
        replace(replace(replace(replace(p_text, ',', ''), ':', ''), '[', ''), '{', ''));
end
$$;

-- Gives these locked, claimable rows to the worker: either all of them or, after an error, none. A user's trigger must
-- not make the claim wait for another transaction, except three times for a moment.
create or replace function public.internal_hand_over(
    p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set lock_timeout = '500ms' as $$
#variable_conflict use_variable
declare
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_set text := set_config('lock_timeout', public.internal_claim_patience(), true);
begin
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, updated_at = p_now,
               (attempts, uncounted) = (
                   select n.attempt, t.uncounted + n.attempt - t.attempts - 1
                     from (select 1 + greatest(
                               t.attempts, (select f.attempt from public.task_floors f where f.task_id = t.id),
                               (select max(a.attempt) from public.task_attempts a where a.task_id = t.id)) as attempt
                             offset 0) n),  -- computed once
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (p_rows)
           -- A row of a child table may have the same place. The CASE keeps the planner from the index of queued tasks.
           and case t.status when 'Queued' then true end
        returning t.id, t.attempts, t.priority, t.queue_turn, t.created_at,
                  case t.status when 'In Progress'  -- a user's trigger may have changed it
                      then public.internal_task_for_agent(t.*, p_worker.nonce) end as task
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first
          from taken k where k.task is not null
    )
    select jsonb_agg(k.task order by k.priority desc, k.queue_turn, k.created_at, k.id)
      into v_tasks from taken k where k.task is not null;
    return v_tasks;
end
$$;

-- Gives those of these tasks that are queued to the worker, one by one, after an error with all of them: only the tasks
-- that cannot be given are ended. Those that the schema refuses, or whose triggers wait for another transaction, are added
-- to p_passed and stay queued. A trigger may have moved other rows, so each is found again by its id.
create or replace function public.internal_hand_over_singly(
    p_worker public.workers, p_claim_no bigint, p_ids uuid[], p_now timestamptz, inout p_passed uuid[], out tasks jsonb
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_variable
declare
    v_id uuid;
    v_row tid;
    v_message text;
    v_constraint text;
    v_one jsonb;
begin
    foreach v_id in array array(select t.id from public.tasks t
                                 where t.id = any (p_ids) and case t.status when 'Queued' then true end
                                 order by ~t.priority, t.queue_turn, t.created_at, t.id) loop
        begin
            select t.ctid into v_row from public.tasks t where t.id = v_id for no key update;
            v_one := public.internal_hand_over(p_worker, p_claim_no, array[v_row], p_now);
            perform public.internal_fire_deferred();
            if v_one is not null then
                tasks := coalesce(tasks, '[]') || v_one;
                continue;
            end if;
            continue when not exists (select from public.tasks t where t.id = v_id and t.status = 'Queued' and not t.blocked);
            v_message := 'A trigger of the database suppressed its claim';
        exception when query_canceled then
            perform public.internal_claim_cancelled(array[v_id]);
            p_passed := p_passed || v_id;
            return;
        when others or assert_failure then  -- a user's row, trigger or constraint may raise anything
            if sqlstate = '55P03' then
                perform public.internal_count_wait();
            elsif public.internal_is_transient(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
            get stacked diagnostics v_constraint = constraint_name;
            if v_constraint <> '' or public.internal_is_of_schema(sqlstate) then
                perform public.internal_refused(array[v_id], 'claim', v_message, sqlstate);
                p_passed := p_passed || v_id;
                continue;
            end if;
        end;
        if not public.internal_end_unclaimed(v_id, 'TASK_UNCLAIMABLE', v_message, p_now) then
            p_passed := p_passed || v_id;
        end if;
    end loop;
end
$$;

-- The prefix of a claim's outputs. It contains the attempt number and eleven characters of the launch. So a task that
-- was deleted and inserted again, or a restored database, finds no earlier object under its keys.
create or replace function public.internal_output_prefix(p_task_id uuid, p_attempt int, p_nonce text) returns text
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return 'outputs/' || p_task_id || '/' || p_attempt || '-' || left(md5(p_nonce), 11) || '/';
end
$$;

-- Ends a queued task that no worker can get. Returns false if a user's trigger refuses or suppresses the change, or waits
-- for another transaction.
create or replace function public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamptz)
returns boolean
language plpgsql security definer set search_path = '' set lock_timeout = '500ms' as $$
#variable_conflict use_variable
declare
    v_set text := set_config('lock_timeout', public.internal_claim_patience(), true);
begin
    update public.tasks t
       set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
           failure_code = p_code, error_message = public.internal_message(p_message)
     where t.id = p_task_id;
    perform public.internal_fire_deferred();
    if exists (select from public.tasks t where t.id = p_task_id and t.status = 'Queued' and not t.blocked
                                            and (t.run_after is null or t.run_after <= p_now)) then
        perform public.internal_refused(array[p_task_id], 'claim', p_message);
        return false;
    end if;
    return true;
exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
    if sqlstate = '55P03' then
        perform public.internal_count_wait();
    elsif public.internal_is_transient(sqlstate) then
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'claim', p_message, sqlstate);
    return false;
end
$$;

-- Whether an agent or a generated client could not read a value: too many nested levels, or a number with more digits
-- than Python converts. The depth of the search is bounded. It is cheap, because a claim searches up to 32 MiB of
-- params.
create or replace function public.internal_is_unreadable(p_value jsonb) returns boolean
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_digits constant int := 4000;  -- Python refuses 4,301 of them
    v_text text;
begin
    if p_value @? 'strict $.**{65}' then
        return true;
    end if;
    v_text := p_value::text;
    -- A text without that many digits in a row cannot contain such a number. The digits may also be part of a string.
    return octet_length(v_text) > c_digits
       and v_text ~ '[0-9]{255}'
       and p_value @? 'strict $.** ? (@.type() == "number" && (@ >= 1e4000 || @ <= -1e4000))';
end
$$;

-- The release that replaces the worker's release for this type, because the worker's release has no handler for it.
-- Null if any release may run it, or if no release is declared. A declaration of an earlier leader is valid until the
-- present leader has had time to declare; a leader of an earlier version never declares one.
create or replace function public.internal_replacing_release(p_worker public.workers, p_task_type text, p_now timestamptz)
returns text
language sql stable security definer set search_path = '' as $$
    select s.value->'releases'->>internal_replacing_release.p_worker.pool
      from public.fleet_settings s join public.fleet_lease l on l.fleet = s.fleet
     where s.fleet = internal_replacing_release.p_worker.fleet and s.name = 'release'
       and ((s.value->>'term')::bigint = l.term or l.since > internal_replacing_release.p_now - interval '60 seconds')
       and s.value->'releases'->>internal_replacing_release.p_worker.pool <> internal_replacing_release.p_worker.release and s.value->'task_types' ? internal_replacing_release.p_task_type
$$;

-- Whether a worker of this release is ready in the pool and not drained.
create or replace function public.internal_is_here(p_fleet text, p_pool text, p_release text) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.workers w
                    where w.fleet = internal_is_here.p_fleet and w.pool = internal_is_here.p_pool and w.release = internal_is_here.p_release
                      and w.status in ('active', 'idle') and w.drain_requested_at is null)
$$;

-- Keeps the highest number of each task whose row is deleted, as long as a worker could use it.
create or replace function public.internal_attempts_removed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    if tg_op = 'DELETE' then
        insert into public.task_floors as f (task_id, attempt, noted_at)
        select r.task_id, max(r.attempt), clock_timestamp()
          from removed r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce
         where w.status <> 'terminated' group by r.task_id order by r.task_id
        on conflict (task_id) do update set attempt = greatest(f.attempt, excluded.attempt), noted_at = excluded.noted_at;
    elsif tg_op = 'TRUNCATE' then
        insert into public.task_floors as f (task_id, attempt, noted_at)
        select r.task_id, max(r.attempt), clock_timestamp()
          from public.task_attempts r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce
         where w.status <> 'terminated' group by r.task_id order by r.task_id
        on conflict (task_id) do update set attempt = greatest(f.attempt, excluded.attempt), noted_at = excluded.noted_at;
    else
        insert into public.task_floors as f (task_id, attempt, noted_at)
        values (old.task_id, old.attempt, clock_timestamp())
        on conflict (task_id) do update set attempt = greatest(f.attempt, excluded.attempt), noted_at = excluded.noted_at;
    end if;
    return null;
end
$$;
