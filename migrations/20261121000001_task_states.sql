-- Where a project has an enum for the states of its tasks, it learns ours. Alone in its file, because a value added to an
-- enum cannot be used before its transaction has committed.

do $$
declare
    v_type record;
    v_state text;
begin
    select t.typtype, n.nspname, t.typname into v_type
      from pg_catalog.pg_attribute a
      join pg_catalog.pg_type t on t.oid = a.atttypid
      join pg_catalog.pg_namespace n on n.oid = t.typnamespace
     where a.attrelid = to_regclass('public.tasks') and a.attname = 'status' and not a.attisdropped;
    if v_type.typtype = 'e' then
        foreach v_state in array array['Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled'] loop
            execute format('alter type %I.%I add value if not exists %L', v_type.nspname, v_type.typname, v_state);
        end loop;
        raise notice 'tasks.status stays the enum %', v_type.typname using errcode = 'OR100';
    end if;
end
$$;
