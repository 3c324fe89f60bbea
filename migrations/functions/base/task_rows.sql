-- What the values of a task may be, for submissions and for users' own statements.

-- Returns why a text names no trace (https://www.w3.org/TR/trace-context/), or NULL.
create or replace function public.internal_traceparent_problem(p_traceparent text) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case
        when internal_traceparent_problem.p_traceparent
             ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' then null
        when length(internal_traceparent_problem.p_traceparent) <> 55
            then format('it has %s characters, not 55', length(internal_traceparent_problem.p_traceparent))
        when internal_traceparent_problem.p_traceparent is not null
        then 'it is not 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in lower case '
            'and with ids other than zero'
    end
$$;

-- Returns what is wrong with the labels of a task, or NULL. A key is at most 63 characters, without "=" or control
-- characters, because filters name a label as KEY=VALUE.
create or replace function public.internal_labels_problem(p_labels jsonb) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case
        when internal_labels_problem.p_labels is null then null
        when jsonb_typeof(internal_labels_problem.p_labels) <> 'object'
            then 'labels are a JSON ' || jsonb_typeof(internal_labels_problem.p_labels) || ', not an object'
        when (select count(*) from jsonb_object_keys(internal_labels_problem.p_labels)) > 16
            then (select count(*)
                    from jsonb_object_keys(internal_labels_problem.p_labels)) || ' labels, the limit is 16'
        else (
            select case
                when length(l.key) not between 1 and 63
                    then format('the key %s… has %s characters', to_json(left(l.key, 20)), length(l.key))
                when l.key ~ '[=[:cntrl:]]'
                then format('the key %s contains "=" or a control character', to_json(l.key))
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
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select 'an object of at most 16 keys of 1 to 63 characters, each with a text of at most 200 characters'
$$;

-- A message as tasks.error_message takes it: a project from before this system may have a shorter column, and a failure
-- that cannot be stored would run again without end.
create or replace function public.internal_message(p_text text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select left(internal_message.p_text, least(4000, (
        select nullif(a.atttypmod, -1) - 4 from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'error_message')))
$$;

-- A time of a user's as it is stored. Infinite ones, years of five digits and those before Christ are not read by
-- Python and JavaScript: one of them would end every list of tasks.
create or replace function public.internal_readable_time(p_at timestamptz) returns timestamptz
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return case when p_at is not null then least(greatest(p_at, '1900-01-01 00:00:00Z'), '9000-01-01 00:00:00Z') end;
end
$$;

-- Returns the number of values and keys of a JSON text: one for each mark that is not within a string.
create or replace function public.internal_json_values(p_text text) returns bigint
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    p_text := regexp_replace(p_text, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g');
    return 1 + octet_length(p_text) - octet_length(
        replace(replace(replace(replace(p_text, ',', ''), ':', ''), '[', ''), '{', ''));
end
$$;

-- Whether an agent or a generated client could not read a value: too many nested levels, or a number with more digits
-- than Python converts. The depth of the search is bounded. It is cheap, because a claim searches up to 32 MiB of
-- params.
create or replace function public.internal_is_unreadable(p_value jsonb) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
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

-- Whether row_problem() must look at a task: what is too deep or too long is large. It has no settings of its own, so
-- that PostgreSQL makes it part of the triggers' statements.
create or replace function orchestrator.may_have_problem(t public.tasks) returns boolean
language sql immutable as $$
    select pg_column_size(t.params) > 200 or octet_length(t.params::text) > 200 or t.labels is not null
        or t.webhook_url is not null or t.tenant is not null or t.concurrency_key is not null or t.depends_on <> '{}'
        or t.timeout_s is not null or length(t.task_type) > 200 or pg_column_size(t.result_data) > 65536
        or pg_column_size(t.progress) > 65536 or octet_length(t.output_location) > 65536
        or t.status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled')
        or t.pool !~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' or octet_length(t.pool) > 63 or t.max_attempts < 1 or t.attempts < 0
        or t.published not between 0 and 2000000
$$;

-- What is wrong with a task that no agent could read, or that would end every list of tasks: what, why and how to fix
-- it, a line each; null for nothing.
create or replace function orchestrator.row_problem(p_task public.tasks) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_params_bytes constant int := 1048576;
    c_values constant int := 500000;  -- as many as a claim carries
    c_result_bytes constant int := 16777216;
    v_bytes int := octet_length(p_task.params::text);
begin
    return case
        when p_task.status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled')
        then concat_ws(E'\n',
            'status is not valid', format('got %L', left(p_task.status::text, 100)),
            'Queued, In Progress, Complete, Failed or Cancelled')
        when p_task.pool !~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' or octet_length(p_task.pool) > 63 then concat_ws(E'\n',
            'pool is not valid', format('got %s', left(to_json(p_task.pool)::text, 100)),
            'letters, digits, _ and -, at most 63, or NULL for the pool of its type')
        when p_task.max_attempts < 1 or p_task.attempts < 0
        then concat_ws(E'\n', 'max_attempts or attempts is not valid',
            format('got %s and %s', p_task.max_attempts, p_task.attempts), 'at least 1 and 0')
        when p_task.published not between 0 and 2000000 then concat_ws(E'\n', 'published is not valid',
            format('got %s', p_task.published), 'leave it out: the queue counts with it')
        when p_task.timeout_s not between 0.001 and 2592000 then concat_ws(E'\n', 'timeout_s is not valid',
            format('got %s', p_task.timeout_s), 'seconds, at most 2592000, or NULL for none')
        when array_position(p_task.depends_on, null) is not null then concat_ws(E'\n', 'depends_on contains NULL', '',
            'ids of tasks, or {} for none')
        when v_bytes > c_params_bytes then concat_ws(E'\n', 'params is too large',
            format('%s bytes, the limit is %s', v_bytes, c_params_bytes), 'upload it and pass its location')
        when v_bytes > c_values and public.internal_json_values(p_task.params::text) > c_values then concat_ws(E'\n',
            'params has too many values', format('the limit is %s values and keys', c_values),
            'upload it and pass its location')
        when public.internal_is_unreadable(p_task.params) then concat_ws(E'\n', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter')
        when cardinality(p_task.depends_on) > 10000 or length(p_task.task_type) > 200 then concat_ws(E'\n',
            'depends_on or task_type is too long', 'the limits are 10000 ids and 200 letters', '')
        when length(p_task.tenant) not between 1 and 200 then concat_ws(E'\n', 'tenant is not valid',
            format('it has %s characters', length(p_task.tenant)), 'text of 1 to 200 characters, or NULL for none')
        when length(p_task.concurrency_key) not between 1 and 200 or p_task.concurrency_key ~ '[[:cntrl:]]'
        then concat_ws(E'\n',
            'concurrency_key is not valid', format('it has %s characters', length(p_task.concurrency_key)),
            'text of 1 to 200 characters without control characters, or NULL for none')
        when p_task.labels is not null and public.internal_labels_problem(p_task.labels) is not null
        then concat_ws(E'\n',
            'labels are not valid', public.internal_labels_problem(p_task.labels), public.internal_labels_rule())
        when p_task.webhook_url is not null and public.internal_webhook_host(p_task.webhook_url) is null
        then concat_ws(E'\n',
            'webhook_url is not valid', '', public.internal_webhook_rule())
        when octet_length(p_task.result_data::text) > c_result_bytes
             or octet_length(p_task.progress::text) > c_result_bytes
            then concat_ws(E'\n', 'result_data or progress is too large',
                           format('the limit is %s MiB', c_result_bytes / 1048576), 'upload it and store its location')
        when octet_length(p_task.output_location) > 65536 then concat_ws(E'\n', 'output_location is too large',
            format('%s bytes, the limit is 65536', octet_length(p_task.output_location)), 'store an address')
    end;
end
$$;

-- The number of nodes that the params of a task ask for: 1 without a whole number from 1 to 64. The handler refuses
-- such params, or runs the job on one node.
create or replace function public.internal_nodes_of(p_params jsonb) returns int
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_text text := p_params->>'nodes';
begin
    if jsonb_typeof(p_params->'nodes') = 'number' and v_text ~ '^[0-9]{1,2}([.]0+)?$' then
        if v_text::numeric between 1 and 64 then
            return v_text::numeric::int;
        end if;
    end if;
    return 1;
end
$$;

-- One end of an upload, from what an agent says: {started_s, ended_s}, in seconds since p_from. NULL if that is no time
-- between p_from and p_now: an agent may say anything. Its clock may be a little faster than the database's.
create or replace function public.internal_upload_at(
    p_upload jsonb, p_end text, p_from timestamptz, p_now timestamptz
) returns timestamptz
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_started_s numeric;
    v_ended_s numeric;
    c_fast_s constant numeric := 5;
begin
    if jsonb_typeof(p_upload->'started_s') = 'number' and jsonb_typeof(p_upload->'ended_s') = 'number' then
        v_started_s := (p_upload->>'started_s')::numeric;
        v_ended_s := (p_upload->>'ended_s')::numeric;
    end if;
    if 0 <= v_started_s and v_started_s <= v_ended_s and v_ended_s <= extract(epoch from p_now - p_from) + c_fast_s then
        return least(p_now, p_from + case p_end when 'started_s' then v_started_s
                                                else v_ended_s end * interval '1 second');
    end if;
    return null;
end
$$;
