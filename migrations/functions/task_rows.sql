-- Trigger functions of `tasks`: they check and complete every row, whichever statement writes it, and start the
-- follow-up work.
--
-- No setting suppresses a trigger. A statement of a user's own trigger within a claim or a completion is counted,
-- announced and settled like any other statement. The cost of a statement grows linearly with its rows.

-- A task that names no pool, timeout or number of attempts gets the declared values of its type.
create or replace function public.internal_task_routed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_type public.task_types;
begin
    if new.pool is null or new.max_attempts is null or new.timeout_s is null then
        select * into v_type from public.task_types d where d.task_type = new.task_type;
        new.pool_by_type := new.pool is null;
        new.pool := coalesce(new.pool, v_type.pool, 'default');
        new.max_attempts := coalesce(new.max_attempts, v_type.max_attempts, 3);
        new.timeout_s := coalesce(new.timeout_s, v_type.timeout_s);
    end if;
    new.lease_expires_at := public.internal_lease(new.lease_expires_at);
    new.run_after := public.internal_readable_time(new.run_after);
    new.created_at := public.internal_readable_time(new.created_at);
    new.blocked := new.status = 'Queued' and new.depends_on <> '{}';
    new.queue_gate := 0;
    if not new.blocked and new.status in ('Queued', 'In Progress') then
        new.queue_gate := case when new.concurrency_key is not null then 1
            when exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = new.task_type) then 2
            else 0 end;
        new.blocked := new.status = 'Queued' and new.queue_gate > 0;  -- until it is let in, after this statement
        if new.status = 'In Progress' and new.queue_gate > 0 then
            new.queue_gate := 3;
        end if;
    end if;
    new.queue_turn := 9007199254740991;
    if new.tenant is not null and new.status = 'Queued' and not new.blocked and new.run_after is null then
        new.queue_turn := public.internal_next_turn(new.pool, ~new.priority, new.tenant, false);
    end if;
    return new;
end
$$;

-- Checks the bounds of a row of `tasks`, whichever statement writes it, because an agent must be able to read it.
create or replace function public.internal_task_bounded() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_params_bytes constant int := 1048576;
    c_params_values constant int := 500000;  -- as many as a claim carries (claiming.sql)
    c_depends_on constant int := 10000;
    c_type_letters constant int := 200;
begin
    if new.traceparent is not null and public.internal_traceparent_problem(new.traceparent) is not null then
        new.traceparent := null;  -- a trace is never a reason to refuse work
    end if;
    if (tg_op = 'INSERT' or new.timeout_s is distinct from old.timeout_s) and new.timeout_s not between 0.001 and 2592000 then
        perform public.internal_refuse('OR007', 'timeout_s is not valid', format('got %s', new.timeout_s),
            'seconds, at most 2592000, or NULL for none');
    elsif (tg_op = 'INSERT' or new.depends_on is distinct from old.depends_on)
          and exists (select from unnest(new.depends_on) n (id) where n.id is null) then
        perform public.internal_refuse('OR007', 'depends_on contains NULL', '', 'ids of tasks, or {} for none');
    end if;
    if octet_length(new.params::text) > c_params_bytes then
        perform public.internal_refuse('OR007', 'params is too large',
            format('%s bytes, the limit is %s', octet_length(new.params::text), c_params_bytes),
            'upload it and pass its location');
    elsif octet_length(new.params::text) > c_params_values
          and public.internal_json_values(new.params::text) > c_params_values then
        perform public.internal_refuse('OR007', 'params has too many values',
            format('%s values and keys, the limit is %s', public.internal_json_values(new.params::text), c_params_values),
            'upload it and pass its location');
    elsif public.internal_is_unreadable(new.params) then
        perform public.internal_refuse('OR007', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter');
    elsif cardinality(new.depends_on) > c_depends_on or length(new.task_type) > c_type_letters then
        perform public.internal_refuse('OR007', 'depends_on or task_type is too long',
            format('the limits are %s ids and %s letters', c_depends_on, c_type_letters));
    elsif (tg_op = 'INSERT' or new.tenant is distinct from old.tenant) and length(new.tenant) not between 1 and 200 then
        perform public.internal_refuse('OR007', 'tenant is not valid', format('it has %s characters', length(new.tenant)),
            'text of 1 to 200 characters, or NULL for none');
    elsif (tg_op = 'INSERT' or new.concurrency_key is distinct from old.concurrency_key)
          and (length(new.concurrency_key) not between 1 and 200 or new.concurrency_key ~ '[[:cntrl:]]') then
        perform public.internal_refuse('OR007', 'concurrency_key is not valid',
            format('it has %s characters', length(new.concurrency_key)),
            'text of 1 to 200 characters without control characters, or NULL for none');
    elsif new.labels is not null and (tg_op = 'INSERT' or new.labels is distinct from old.labels)
          and public.internal_labels_problem(new.labels) is not null then
        perform public.internal_refuse('OR007', 'labels are not valid', public.internal_labels_problem(new.labels),
            public.internal_labels_rule());
    elsif new.webhook_url is not null and (tg_op = 'INSERT' or new.webhook_url is distinct from old.webhook_url)
          and public.internal_webhook_host(new.webhook_url) is null then
        perform public.internal_refuse('OR007', 'webhook_url is not valid', '', public.internal_webhook_rule());
    end if;
    if cardinality(new.depends_on) > 1 and (tg_op = 'INSERT' or new.depends_on is distinct from old.depends_on) then
        new.depends_on := public.internal_each_once(new.depends_on);
    end if;
    return new;
end
$$;

-- Each id once, at its first place: a task that names another one twice needs it once.
create or replace function public.internal_each_once(p_ids uuid[]) returns uuid[]
language sql immutable security definer set search_path = '' as $$
    select array(select n.id from unnest(internal_each_once.p_ids) with ordinality n (id, place)
                  group by n.id order by min(n.place))
$$;

-- Bounds what a user's program writes as a result: one enormous value would end every list of tasks, or the server's
-- memory. Agents send at most 1 MiB. A message is cut, because a failure must be stored.
create or replace function public.internal_task_sized() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_bytes constant int := 16777216;
    c_letters constant int := 100000;
    c_location_bytes constant int := 65536;
begin
    if (tg_op = 'INSERT' or new.result_data is distinct from old.result_data) and octet_length(new.result_data::text) > c_bytes
       or (tg_op = 'INSERT' or new.progress is distinct from old.progress) and octet_length(new.progress::text) > c_bytes then
        perform public.internal_refuse('OR007', 'result_data or progress is too large',
            format('the limit is %s MiB', c_bytes / 1048576), 'upload it and store its location');
    elsif (tg_op = 'INSERT' or new.output_location is distinct from old.output_location)
          and octet_length(new.output_location) > c_location_bytes then
        perform public.internal_refuse('OR007', 'output_location is too large',
            format('%s bytes, the limit is %s', octet_length(new.output_location), c_location_bytes), 'store an address');
    end if;
    new.error_message := left(new.error_message, c_letters);
    return new;
end
$$;

-- Returns why a text names no trace (https://www.w3.org/TR/trace-context/), or NULL.
create or replace function public.internal_traceparent_problem(p_traceparent text) returns text
language sql immutable security definer set search_path = '' as $$
    select case
        when internal_traceparent_problem.p_traceparent ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then null
        when length(internal_traceparent_problem.p_traceparent) <> 55
            then format('it has %s characters, not 55', length(internal_traceparent_problem.p_traceparent))
        when internal_traceparent_problem.p_traceparent is not null then 'it is not 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in lower case '
            'and with ids other than zero'
    end
$$;

-- Returns what is wrong with the labels of a task, or NULL. A key is at most 63 characters, without "=" or control
-- characters, because filters name a label as KEY=VALUE.
create or replace function public.internal_labels_problem(p_labels jsonb) returns text
language sql immutable security definer set search_path = '' as $$
    select case
        when internal_labels_problem.p_labels is null then null
        when jsonb_typeof(internal_labels_problem.p_labels) <> 'object'
            then 'labels are a JSON ' || jsonb_typeof(internal_labels_problem.p_labels) || ', not an object'
        when (select count(*) from jsonb_object_keys(internal_labels_problem.p_labels)) > 16
            then (select count(*) from jsonb_object_keys(internal_labels_problem.p_labels)) || ' labels, the limit is 16'
        else (
            select case
                when length(l.key) not between 1 and 63
                    then format('the key %s… has %s characters', to_json(left(l.key, 20)), length(l.key))
                when l.key ~ '[=[:cntrl:]]' then format('the key %s contains "=" or a control character', to_json(l.key))
                when jsonb_typeof(l.value) <> 'string'
                    then format('the value of %s is a JSON %s, not a text', to_json(l.key), jsonb_typeof(l.value))
                else format('the value of %s has %s characters', to_json(l.key), length(l.value #>> '{}'))
            end
              from jsonb_each(internal_labels_problem.p_labels) l
             where length(l.key) not between 1 and 63 or l.key ~ '[=[:cntrl:]]' or jsonb_typeof(l.value) <> 'string'
                or length(l.value #>> '{}') > 200
             order by l.key limit 1)
    end
$$;

create or replace function public.internal_labels_rule() returns text
language sql immutable security definer set search_path = '' as $$
    select 'an object of at most 16 keys of 1 to 63 characters, each with a text of at most 200 characters'
$$;

-- A message as tasks.error_message takes it: a project from before this system may have a shorter column, and a failure
-- that cannot be stored would run again without end.
create or replace function public.internal_message(p_text text) returns text
language sql stable security definer set search_path = '' as $$
    select left(internal_message.p_text, least(4000, (
        select nullif(a.atttypmod, -1) - 4 from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'error_message')))
$$;

-- A failure code is shown on terminals and compared with known codes. A pod may send any text as its code, such as an
-- escape sequence. It is stored as INVALID_CODE and the call succeeds: an agent that is refused would report the same
-- failure forever.
create or replace function public.internal_code_checked() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    new.failure_code := 'INVALID_CODE';
    return new;
end
$$;

-- A lease as it is stored. A lease that ends in years would keep a GPU for a task that no worker runs: it counts as none.
create or replace function public.internal_lease(p_until timestamptz) returns timestamptz
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_longest constant interval := '1 day';
begin
    return case when p_until is not null and p_until < 'infinity' and p_until > clock_timestamp() + c_longest
                     and p_until > public.internal_now() + c_longest then null else p_until end;
end
$$;

-- A time of a user's as it is stored. Infinite ones, years of five digits and those before Christ are not read by Python
-- and JavaScript: one of them would end every list of tasks.
create or replace function public.internal_readable_time(p_at timestamptz) returns timestamptz
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return case when p_at is not null then least(greatest(p_at, '1900-01-01 00:00:00Z'), '9000-01-01 00:00:00Z') end;
end
$$;

-- pool and max_attempts are nullable for generated clients. NULL in a write means "by task type".
create or replace function public.internal_task_changing() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_no_turn constant bigint := 9007199254740991;
    v_is_same boolean := (old.concurrency_key, old.task_type) is not distinct from (new.concurrency_key, new.task_type);
    v_was_gated boolean := old.status = 'Queued' and old.queue_gate in (1, 2);
    v_is_gating boolean := false;  -- internal_change_gates itself runs the statement
    v_is_limited boolean := new.concurrency_key is not null;
begin
    if new.queue_gate <> old.queue_gate and new.status = 'Queued' then
        v_is_gating := current_setting('orchestrator.gating', true) is not distinct from (pg_trigger_depth() - 1)::text;
    end if;
    if not v_is_limited and new.status in ('Queued', 'In Progress')  -- a claim and a heartbeat do not look
       and not (v_is_same and (new.status = 'In Progress' and old.status in ('Queued', 'In Progress')
                               or old.status = 'Queued' and old.queue_gate > 0
                                  and (old.run_after is not null or new.run_after is null))) then
        v_is_limited := exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = new.task_type);
    end if;
    if new.updated_at is not distinct from old.updated_at and new.queue_turn = old.queue_turn then
        new.updated_at := public.internal_now();
    end if;
    if new.lease_expires_at is not null and new.lease_expires_at is distinct from old.lease_expires_at then
        new.lease_expires_at := public.internal_lease(new.lease_expires_at);
    end if;
    if new.run_after is distinct from old.run_after or new.created_at is distinct from old.created_at then
        new.run_after := public.internal_readable_time(new.run_after);
        new.created_at := public.internal_readable_time(new.created_at);
    end if;
    new.queue_turn := least(greatest(new.queue_turn, 0), c_no_turn);  -- turns are counted on from it
    if new.attempts < new.uncounted then  -- a user resets them
        new.uncounted := greatest(new.attempts, 0);
    end if;
    if v_is_gating then
        new.blocked := new.queue_gate < 3;
    elsif new.status not in ('Queued', 'In Progress') then
        new.blocked := new.blocked and old.queue_gate not in (1, 2);
        new.queue_gate := 0;
    elsif new.status = 'In Progress' then
        new.blocked := new.blocked and old.queue_gate not in (1, 2);
        if v_is_same and new.concurrency_key is null and old.status in ('Queued', 'In Progress') then
            new.queue_gate := case when old.queue_gate > 0 or new.queue_gate > 0 then 3 else 0 end;
        else
            new.queue_gate := case when v_is_limited then 3 else 0 end;
        end if;
    else
        -- `blocked` has two causes: its dependencies at gate 0, or a limit at gates 1 and 2.
        if v_was_gated and new.queue_gate > 0 then
            new.blocked := false;
        end if;
        if new.blocked and new.depends_on = '{}' then
            new.blocked := false;
        elsif not new.blocked
              and (old.status in ('Complete', 'Failed', 'Cancelled') and new.depends_on <> '{}'
                   or new.depends_on is distinct from old.depends_on and new.depends_on <> '{}') then
            new.blocked := true;  -- until it is settled, after this statement
        end if;
        if new.blocked then
            new.queue_gate := 0;
        elsif v_is_same and old.status = 'Queued' and old.queue_gate > 0
              and (old.run_after is not null or new.run_after is null) then
            new.queue_gate := old.queue_gate;
            new.blocked := old.queue_gate < 3;
        else
            new.queue_gate := case when not v_is_limited then 0 when new.concurrency_key is not null then 1 else 2 end;
            new.blocked := v_is_limited;  -- until it is let in, after this statement
        end if;
    end if;
    if new.pool is null then
        new.pool_by_type := true;
    end if;
    if new.pool is null or new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    if new.max_attempts is null then
        new.max_attempts := coalesce((select d.max_attempts from public.task_types d where d.task_type = new.task_type), 3);
    end if;
    if new.status = 'Queued' and not new.blocked
       and (new.tenant is not null or old.tenant is not null or old.queue_turn < c_no_turn) then
        if new.run_after is not null and (old.status <> 'Queued' or old.run_after is null) then
            new.queue_turn := c_no_turn;  -- until it is due
        elsif new.run_after is not null then
            null;
        elsif old.status = 'In Progress' then
            new.queue_turn := coalesce(
                public.internal_next_turn(new.pool, ~new.priority, new.tenant, true), c_no_turn);  -- it comes back
        elsif old.status <> 'Queued' or old.blocked or old.run_after is not null
              or (old.pool, old.priority, old.tenant) is distinct from (new.pool, new.priority, new.tenant) then
            new.queue_turn := case when new.tenant is null then c_no_turn
                else public.internal_next_turn(new.pool, ~new.priority, new.tenant, false) end;
        end if;
    end if;
    return new;
end
$$;

create or replace function public.internal_tasks_added() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_waiting uuid[];
    v_ended uuid[];
    v_again uuid[];
    v_keys text[];
    v_types text[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- A transaction that deletes a dependency waits until it is known who needs it. Heartbeats and completions do
        -- not wait.
        perform from public.tasks d
          where d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    -- If a task with this id was Complete when it was deleted, its result was kept.
    v_again := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_again <> '{}' then
        perform public.internal_settle(public.internal_needing(v_again), '{}');
    end if;
    select array_agg(distinct a.concurrency_key) filter (where a.concurrency_key is not null),
           array_agg(distinct a.task_type) filter (where a.queue_gate > 1 and a.task_type is not null)
      into v_keys, v_types from added a where a.queue_gate > 0 and (a.run_after is null or a.status = 'In Progress');
    if v_keys is not null or v_types is not null then
        perform public.internal_limits_changed(v_keys, null, v_types, null);
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

create or replace function public.internal_tasks_changed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_ended uuid[];
    v_behind uuid[];
    v_taken_back uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
    v_finished text[];
    v_left uuid[];
    v_was_queued boolean;
    v_is_queued boolean;
    v_was_running boolean;
    v_was_complete boolean;
    v_is_ended boolean;
    v_is_gated boolean;
    v_limited text[];
    v_has_limit boolean;
    v_new_keys text[];
    v_free_keys text[];
    v_new_types text[];
    v_free_types text[];
    v_now timestamptz := public.internal_now();
    -- Whether internal_change_gates itself runs the statement: it has counted what it changes, except at the next gate.
    v_is_gating boolean := current_setting('orchestrator.gating', true) is not distinct from (pg_trigger_depth() - 1)::text;
    v_has_url boolean;  -- an ended task has a webhook_url
    -- Whether internal_settle_locked itself runs the statement, and not a trigger within it.
    v_is_settling boolean := current_setting('orchestrator.settling', true) is not distinct from (pg_trigger_depth() - 1)::text;
begin
    -- To start a query costs more than to read a few rows, so only what may have happened is looked for.
    select bool_or(r.status = 'Queued') filter (where not r.is_new), bool_or(r.status = 'Queued') filter (where r.is_new),
           bool_or(r.status = 'In Progress') filter (where not r.is_new),
           bool_or(r.status = 'Complete') filter (where not r.is_new),
           bool_or(r.status in ('Complete', 'Failed', 'Cancelled')) filter (where r.is_new), bool_or(r.queue_gate > 0)
      into v_was_queued, v_is_queued, v_was_running, v_was_complete, v_is_ended, v_is_gated
      from (select true as is_new, a.status, a.queue_gate from changed a
            union all select false, b.status, b.queue_gate from was b) r;
    -- A full join is hashed or merged: no plan of it is quadratic, whatever number of rows the planner expects. With a
    -- condition on one side (in WHERE, not in FILTER) it would be no full join.
    if v_was_running or v_is_ended then
        select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status is distinct from b.status),
               bool_or(a.webhook_url is not null),
               array_agg(b.id) filter (where b.status = 'In Progress'
                                         and (a.status = 'In Progress' and a.attempts = b.attempts
                                              and a.worker_id = b.worker_id) is not true),
               array_agg(b.worker_id) filter (where b.status = 'In Progress' and b.worker_id is not null
                                                and (a.status = 'In Progress' and a.attempts = b.attempts
                                                     and a.worker_id = b.worker_id or a.status = 'Complete') is not true),
               array_agg(b.worker_id) filter (where b.status = 'In Progress' and a.status = 'Complete')
          into v_ended, v_has_url, v_left, v_workers, v_finished
          from changed a full join was b on b.id = a.id;
    end if;
    if v_is_queued then
        select array_agg(a.id) filter (where a.status = 'Queued'
                                         and (a.depends_on is distinct from b.depends_on
                                              or b.status <> 'Queued' and a.depends_on <> '{}'
                                              or b.blocked and b.queue_gate = 0 and (not a.blocked or a.queue_gate > 0)
                                                  and not v_is_settling)),
               array_agg(a.pool) filter (where a.status = 'Queued' and not a.blocked
                                           and (b.status is distinct from 'Queued' or b.blocked or b.pool <> a.pool
                                                or b.run_after > coalesce(a.run_after, '-infinity')))
          into v_waiting, v_pools
          from changed a full join was b on b.id = a.id;
    end if;
    if v_was_complete then
        select array_agg(b.id) filter (where b.status = 'Complete' and a.status is distinct from 'Complete')
          into v_taken_back
          from changed a full join was b on b.id = a.id;
    end if;
    if v_is_gated then
        v_limited := case when v_is_gating then array(select l.name from public.concurrency_limits l where l.scope = 'type') end;
        select bool_or(
                   case when b.queue_gate = 3 and b.status = 'Queued' and a.status = 'In Progress'  -- a claim
                        then (a.concurrency_key, a.task_type) is distinct from (b.concurrency_key, b.task_type)
                        when b.queue_gate = 3 and b.status = 'In Progress' and a.status in ('Complete', 'Failed', 'Cancelled')
                        then b.lease_expires_at <= v_now  -- if it is valid, it frees its places, and nothing else
                        when v_is_gating and a.queue_gate in (1, 3) and b.queue_gate in (1, 3)
                        then (a.status, a.concurrency_key, a.task_type, a.run_after)
                                 is distinct from (b.status, b.concurrency_key, b.task_type, b.run_after)
                             or a.task_type = any (v_limited)
                        else a.queue_gate > 0 or b.queue_gate > 0 end),
               array_agg(b.concurrency_key) filter (where b.queue_gate = 3 and b.status = 'In Progress'
                                                      and b.concurrency_key is not null),
               array_agg(b.task_type) filter (where b.queue_gate = 3 and b.status = 'In Progress')
          into v_has_limit, v_free_keys, v_free_types
          from changed a full join was b on b.id = a.id;
    end if;
    if v_has_limit then  -- otherwise only tasks that ended have freed places
        select array_agg(distinct coalesce(a.concurrency_key, b.concurrency_key)) filter (where l.asks_key and l.counts),
               array_agg(b.concurrency_key) filter (where l.frees_key and l.counts),
               array_agg(distinct coalesce(a.task_type, b.task_type)) filter (where l.asks_type or l.frees_type and v_is_gating
                   and (b.queue_gate = 3 and a.queue_gate = 2 and a.task_type = b.task_type) is not true),  -- it was taken back
               array_agg(b.task_type) filter (where l.frees_type and not v_is_gating)
          into v_new_keys, v_free_keys, v_new_types, v_free_types
          from changed a full join was b on b.id = a.id
         cross join lateral (select p.*, not v_is_gating or a.concurrency_key is distinct from b.concurrency_key as counts
                               from public.internal_places(a.*, b.*, v_now) p offset 0) l
         where (a.queue_gate, a.status, a.concurrency_key, a.task_type, a.run_after, a.lease_expires_at)
                   is distinct from (b.queue_gate, b.status, b.concurrency_key, b.task_type, b.run_after, b.lease_expires_at)
           and (a.queue_gate > 0 or b.queue_gate > 0)
           and (b.queue_gate = 3 and b.status = 'Queued' and a.status = 'In Progress'  -- a claim
                and (a.concurrency_key, a.task_type) is not distinct from (b.concurrency_key, b.task_type)) is not true;
    end if;
    if v_is_gating and v_has_limit then  -- a user's trigger made a task leave the limit that was about to let it in
        insert into public.concurrency_notes (scope, name)
        select case b.queue_gate when 1 then 'key' else 'type' end,
               case b.queue_gate when 1 then b.concurrency_key else b.task_type end
          from was b left join changed a on a.id = b.id
         where b.status = 'Queued' and b.queue_gate in (1, 2)
           and (a.status = 'Queued' and case b.queue_gate when 1 then a.concurrency_key = b.concurrency_key and a.queue_gate > 1
                                        else a.task_type = b.task_type and a.queue_gate = 3 end) is not true
         group by 1, 2;
    end if;
    if v_left is not null then
        perform public.internal_close_attempts(v_left, false);
    end if;
    if v_ended is not null then
        if v_has_url or exists (select from public.webhooks) then
            perform public.internal_webhooks_write(v_ended, public.internal_now());
        end if;
        v_behind := case when not v_is_settling then public.internal_dependants(v_ended) end;
        if v_behind is not null then
            perform public.internal_settle(v_behind, '{}');
        end if;
    end if;
    if v_taken_back is not null then
        perform public.internal_settle(public.internal_needing(v_taken_back), '{}');
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_new_keys is not null or v_free_keys is not null or v_new_types is not null or v_free_types is not null then
        perform public.internal_limits_changed(v_new_keys, v_free_keys, v_new_types, v_free_types);
    end if;
    -- A task that is let in mostly follows another one, and a busy worker takes it with its next claim. A notification
    -- makes the commits of all workers wait for each other.
    if v_pools is not null then
        perform pg_notify('orchestrator_tasks', p.pool) from (select distinct pool from unnest(v_pools) n (pool)) p
          where not v_is_gating or exists (select from public.workers w where w.pool = p.pool and w.status = 'idle')
             or not exists (select from public.workers w where w.pool = p.pool and w.status = 'active');
    end if;
    if v_workers is not null then
        perform pg_notify('orchestrator_fleet', w.id) from (select distinct id from unnest(v_workers) n (id)) w;
    end if;
    if v_finished is not null then
        perform pg_notify('orchestrator_fleet', w.id) from public.workers w  -- not for each result of a running worker
          where w.id = any (v_finished)
            and (w.status = 'terminating' or w.drain_requested_at is not null or w.stop_requested_at is not null);
    end if;
    if v_was_queued or v_is_queued then
        insert into public.task_counts (pool, kind, n)
        select c.pool, c.kind, sum(c.n)
          from (select a.pool, case when a.blocked and a.queue_gate = 0 then 'blocked' when a.run_after is not null then 'timed'
                                    when a.blocked then 'gated' else 'plain' end as kind, 1 as n
                  from changed a where a.status = 'Queued'
                union all
                select b.pool, case when b.blocked and b.queue_gate = 0 then 'blocked' when b.run_after is not null then 'timed'
                                    when b.blocked then 'gated' else 'plain' end, -1
                  from was b where b.status = 'Queued') c
         group by 1, 2 having sum(c.n) <> 0;
    end if;
    if v_is_queued then
        insert into public.task_marks (pool, place, queue_turn, created_at, id)
        select a.pool, min(~a.priority), min(a.queue_turn), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    end if;
    return null;
end
$$;

create or replace function public.internal_tasks_removed() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_held uuid[];
    v_lost uuid[];
    v_keys text[];
    v_types text[];
begin
    if tg_op = 'TRUNCATE' then
        perform pg_notify('orchestrator_fleet', w.id)
           from (select distinct a.worker_id as id from public.task_attempts a where a.ended_at is null) w where w.id is not null;
        delete from public.task_results;
        delete from public.tasks_unsettled;
        delete from public.task_refusals;
        delete from public.concurrency_notes;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, r.output_object, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    select array_agg(distinct r.concurrency_key), array_agg(distinct r.task_type) into v_keys, v_types
      from removed r where r.queue_gate > 1;
    if v_types is not null then
        perform public.internal_limits_changed(array_remove(v_keys, null), null, v_types, null);
    end if;
    if v_held is not null then
        perform pg_notify('orchestrator_fleet', w.id)
           from (select distinct r.worker_id as id from removed r where r.status = 'In Progress' and r.worker_id is not null) w;
    end if;
    return null;
end
$$;
