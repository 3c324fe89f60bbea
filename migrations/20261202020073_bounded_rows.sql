-- What enters `tasks` is bounded, whichever statement writes it: an agent must be able to read it.

create function public.internal_task_bounded() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    c_params_bytes constant int := 1048576;
    c_depends_on constant int := 10000;
    c_type_letters constant int := 200;
begin
    if octet_length(new.params::text) > c_params_bytes then
        perform public.internal_refuse('OR007', 'params is too large',
            format('%s bytes, the limit is %s', octet_length(new.params::text), c_params_bytes),
            'upload it and pass its location');
    elsif public.internal_is_unreadable(new.params) then
        perform public.internal_refuse('OR007', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter');
    elsif cardinality(new.depends_on) > c_depends_on or length(new.task_type) > c_type_letters then
        perform public.internal_refuse('OR007', 'depends_on or task_type is too long',
            format('the limits are %s ids and %s letters', c_depends_on, c_type_letters));
    end if;
    return new;
end
$$;

create trigger tasks_bounded before insert or update of params, depends_on, task_type on public.tasks
    for each row execute function public.internal_task_bounded();

create or replace function public.internal_check_task(p_task jsonb, p_index integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    v_what text := format('task %s', p_index);
    v_key text;
    v_value jsonb;
    v_fine boolean;
begin
    perform public.internal_check_keys(p_task, array['id', 'task_type', 'params', 'pool', 'priority', 'max_attempts',
        'run_after', 'depends_on', 'dedupe_key', 'timeout_s'], v_what);
    if coalesce(p_task->>'task_type', '') = '' then
        perform public.internal_refuse('OR007', v_what || ' has no task_type', '', 'say what kind of work it is');
    end if;
    for v_key, v_value in select key, value from jsonb_each(p_task) loop
        if v_value = 'null' then
            continue;
        end if;
        begin  -- a value that does not even parse is refused like one out of bounds
            v_fine := case v_key
                when 'id' then jsonb_typeof(v_value) = 'string' and (v_value #>> '{}')::uuid is not null
                when 'task_type' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') <= 200
                when 'params' then jsonb_typeof(v_value) = 'object' and octet_length(v_value::text) <= 1048576
                              and not public.internal_is_unreadable(v_value)
                when 'pool' then jsonb_typeof(v_value) = 'string'
                                 and v_value #>> '{}' ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'
                when 'priority' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int is not null
                when 'max_attempts' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int between 1 and 100
                when 'run_after' then jsonb_typeof(v_value) = 'string' and isfinite((v_value #>> '{}')::timestamptz)
                when 'depends_on' then jsonb_typeof(v_value) = 'array' and jsonb_array_length(v_value) <= 10000
                when 'dedupe_key' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') between 1 and 500
                when 'timeout_s' then jsonb_typeof(v_value) = 'number'
                                      and (v_value #>> '{}')::numeric between 0.001 and 2592000
            end;
        exception when data_exception then
            v_fine := false;
        end;
        if not v_fine then
            perform public.internal_refuse('OR007', format('%s: %s is not valid', v_what, v_key),
                'got ' || left(v_value::text, 200),
                case v_key
                    when 'id' then 'a uuid'
                    when 'task_type' then 'text of at most 200 characters'
                    when 'params' then 'a JSON object of at most 1 MiB and 64 levels, without a number of more than 4000 digits'
                    when 'pool' then 'letters, digits, _ and -, at most 63'
                    when 'priority' then 'a whole number; higher goes first'
                    when 'max_attempts' then 'a whole number from 1 to 100'
                    when 'run_after' then 'a time in ISO 8601, with its offset'
                    when 'depends_on' then 'a list of at most 10000 task ids, or "#0" for the first task of the batch'
                    when 'dedupe_key' then 'text of at most 500 characters'
                    else 'seconds, at most 2592000'
                end);
        end if;
    end loop;
end
$_$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_task_bounded from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_task_bounded from %I', v_role);
    end loop;
end
$$;
