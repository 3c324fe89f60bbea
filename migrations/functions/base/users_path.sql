-- The search path of what a user adds to `tasks` and `workers`: triggers, defaults, constraints. The path of our
-- functions is pg_catalog and, last, pg_temp: nobody's table, type or operator takes the place of another. (An empty
-- path would find the types of the session's temporary schema first.) What a user adds may name its tables without a
-- schema, as the user's own statements do.
--
-- Two triggers for each statement surround everything else that a write fires: the first sets the user's search path,
-- the last restores ours. The statement itself has been planned by then, with our path. Each function of ours sets our
-- path again. The last name in the path marks which statement has set it. No schema has this name, because names that
-- begin with pg_ are reserved; PostgreSQL restores the path when a function or a subtransaction ends.

-- The recorded path, as the setting of this function. Only the owner of the functions may call it.
create or replace function public.internal_users_path() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return current_setting('search_path');
end
$$;

-- Records the search path with which the migrating login's statements begin.
create or replace function public.internal_record_path() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_path constant text := (select s.reset_val from pg_catalog.pg_settings s where s.name = 'search_path');
begin
    if public.internal_users_path() is distinct from v_path then
        perform set_config('search_path', v_path, true);
        alter function public.internal_users_path() set search_path from current;
    end if;
end
$$;

-- It has no search path of its own, because a path that it set would end with it. So it runs with the rights of its
-- caller, and names the schema of everything.
create or replace function public.internal_enter_path() returns trigger
language plpgsql set jit = off as $$
#variable_conflict use_variable
begin
    if pg_catalog.current_setting('search_path') operator(pg_catalog.=) 'pg_catalog, pg_temp'
       and pg_catalog.has_function_privilege('public.internal_users_path()', 'execute') then
        perform pg_catalog.set_config('search_path', pg_catalog.format('%s, pg_temp, pg_%s_%s_%s',
            public.internal_users_path(), pg_catalog.lower(tg_op), tg_relid::pg_catalog.oid,
            pg_catalog.pg_trigger_depth()),
            true);
    end if;
    return null;
end
$$;

create or replace function public.internal_leave_path() returns trigger
language plpgsql set jit = off as $$
#variable_conflict use_variable
begin
    if pg_catalog.current_setting('search_path') operator(pg_catalog.~~) pg_catalog.format(E'%%, pg\\_%s\\_%s\\_%s',
           pg_catalog.lower(tg_op), tg_relid::pg_catalog.oid, pg_catalog.pg_trigger_depth()) then
        perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    end if;
    return null;
end
$$;
