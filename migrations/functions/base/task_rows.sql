-- What the values of a task may be, for submissions and for users' own statements.

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

-- A time of a user's as it is stored. Infinite ones, years of five digits and those before Christ are not read by Python
-- and JavaScript: one of them would end every list of tasks.
create or replace function public.internal_readable_time(p_at timestamptz) returns timestamptz
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return case when p_at is not null then least(greatest(p_at, '1900-01-01 00:00:00Z'), '9000-01-01 00:00:00Z') end;
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
