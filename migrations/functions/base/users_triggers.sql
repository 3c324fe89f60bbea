-- Tries the user's triggers: writes what the orchestrator writes, and undoes it. `migrate --plan` makes these functions
-- in a transaction that it rolls back, also in a database that has none of ours yet: they call no others.

-- The triggers of a user that make a write of the orchestrator fail: [{what, why, fix}]. No row of the user's is
-- changed.
create or replace function public.fleet_try_triggers(p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return jsonb_build_object('problems', public.internal_try_triggers(null));
end
$$;

-- p_path: the search path of the trial, in a database without our functions.
create or replace function public.internal_try_triggers(p_path text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' set jit = off as $$
#variable_conflict use_variable
begin
    return public.internal_try_table('tasks', p_path) || public.internal_try_table('workers', p_path);
end
$$;

create or replace function public.internal_try_table(p_table text, p_path text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_problems jsonb := '[]';
    v_sqlstate text;
    v_message text;
    v_context text;
    v_function regprocedure;
    v_triggers text;
    c_tries constant int := 20;  -- failing functions
begin
    for v_try in 1..c_tries loop
        begin
            perform public.internal_write_trial(p_table, p_path);
            exit;
        exception when query_canceled or others or assert_failure then  -- a user's trigger may raise anything, or hang
            get stacked diagnostics v_context = pg_exception_context;
            v_sqlstate := sqlstate;
            v_message := sqlerrm;
        end;
        if v_sqlstate = 'OR010' then
            select coalesce(
                       'the trigger ' || string_agg(quote_ident(g.tgname), ' or ' order by g.tgname) || ' discards',
                       'writes are lost') into v_triggers
              from pg_catalog.pg_trigger g join pg_catalog.pg_proc p on p.oid = g.tgfoid
             where g.tgrelid = to_regclass('public.' || p_table) and not g.tgisinternal and g.tgenabled <> 'D'
               and not (p.pronamespace = 'public'::regnamespace and p.proname like E'internal\\_%')
               and p.pronamespace is distinct from to_regnamespace('orchestrator')
               and g.tgtype & 3 = 3;  -- before, for each row
            v_problems := v_problems || jsonb_build_object(
                'what', format('%s writes of the orchestrator to %s', v_triggers, p_table), 'why', v_message,
                'fix', 'let its function return new');
            exit;
        end if;
        v_function := null;
        select g.tgfoid, string_agg(quote_ident(g.tgname), ', ' order by g.tgname) into v_function, v_triggers
          from pg_catalog.pg_trigger g join pg_catalog.pg_proc p on p.oid = g.tgfoid
         where g.tgrelid = to_regclass('public.' || p_table) and not g.tgisinternal
           and not (p.pronamespace = 'public'::regnamespace and p.proname like E'internal\\_%')
           and p.pronamespace is distinct from to_regnamespace('orchestrator')
           and (strpos(v_context, p.proname || '(') > 0 or strpos(v_context, p.proname || '"(') > 0)
         group by g.tgfoid limit 1;
        if v_function is null then  -- a default, a check or a generated column
            if left(v_sqlstate, 2) in ('42', '3F') then
                v_problems := v_problems || jsonb_build_object(
                    'what', format('writes of the orchestrator to %s fail', p_table),
                    'why', format('%s (%s), as %s with the search path %s: %s', v_message, v_sqlstate, current_user,
                                  public.internal_trial_path(p_path), left(v_context, 300)),
                    'fix', format('name the schemas in the functions that defaults, checks and generated columns of '
                                  '%s call', p_table));
            end if;
            exit;
        end if;
        v_problems := v_problems || jsonb_build_object(
            'what', format('the trigger %s of %s makes writes of the orchestrator fail', v_triggers, p_table),
            'why', format('%s (%s) in the function %s, which runs as %s with the search path %s', v_message, v_sqlstate,
                          v_function, current_user, public.internal_trial_path(p_path)),
            'fix', public.internal_trigger_fix(v_function, v_sqlstate, v_message));
        -- Until the end of the trial the function does nothing, so that the others are tried too.
        exit when v_sqlstate = '57014';  -- the statement's timeout ends it once only
        execute format('create or replace function %s returns trigger language plpgsql as %L',
                       v_function, 'begin return coalesce(new, old); end');
    end loop;
    raise exception using errcode = 'OR008';  -- it undoes everything
exception
    when sqlstate 'OR008' or insufficient_privilege then  -- or the function belongs to another role
        return v_problems;
end
$$;

-- What a user can do about a trigger function that fails with this error.
create or replace function public.internal_trigger_fix(p_function regprocedure, p_sqlstate text, p_message text)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return case
        when p_sqlstate = '42501'
        then format('grant the right to %I, or: alter function %s security definer', current_user, p_function)
        when p_sqlstate = '57014'
        then format('let the function %s do less: each change of a task waits for it', p_function)
        when p_sqlstate = '42704' and p_message like '%configuration parameter%'
        then format('call current_setting(…, true) in the function %s: only your own program sets this', p_function)
        when p_sqlstate in ('42P01', '42883', '42704', '3F000')  -- a name is not found
        then format('name the schema of what it uses, or: alter function %s set search_path = …', p_function)
        else format('change the function %s, so that it accepts the change of a status', p_function) end;
end
$$;

create or replace function public.internal_trial_path(p_path text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if p_path is not null then
        return p_path;
    end if;
    return public.internal_users_path();
end
$$;

-- Writes a row of the table as the orchestrator does, in the columns that exist. Changes of a task are publications:
-- they run with the search path of the database's users, and the triggers of the queue skip them.
create or replace function public.internal_write_trial(p_table text, p_path text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_rel constant regclass := to_regclass('public.' || p_table);
    v_id text := case p_table when 'tasks' then gen_random_uuid()::text else 'orchestrator-trial' end;
    v_is_claimable boolean := true;
    v_write jsonb;
    c_tasks constant jsonb := '[
        {"status": "In Progress", "attempts": 1, "worker_id": "trial", "updated_at": "now",
         "generation_started_at": "now"},
        {"status": "Complete", "result_data": "{}", "output_location": "s3://trial/trial", "updated_at": "now"},
        {"status": "Failed", "error_message": "a trial", "updated_at": "now"}]';
    c_workers constant jsonb := '[
        {"metadata": "{}", "last_heartbeat": "now"}, {"status": "active"},
        {"status": "terminating", "exit_cause": "manual"}, {"status": "terminated"}]';
begin
    if v_rel is null then
        return;
    end if;
    begin
        perform public.internal_write_columns(v_rel, null, jsonb_build_object('id', v_id) || case p_table
            when 'tasks' then '{"status": "Queued"}' || coalesce(
                (select jsonb_build_object('task_type', t.task_type, 'params', t.params) from public.tasks t limit 1),
                '{"task_type": "trial", "params": {}}')
            else '{"status": "spawning", "instance_type": "trial", "stage": "intent", "waiting_on": "orchestrator",
                   "deadline_at": "now", "next_attempt_at": "now"}' end, p_path);
    exception when others or assert_failure then
        if left(sqlstate, 2) in ('42', '3F') or p_table = 'workers' then
            raise;
        end if;
        -- The user's own programs fill more columns, so an existing task is used. If it is not queued, only errors
        -- about missing names count.
        select t.id::text, t.status::text = 'Queued' into v_id, v_is_claimable
          from public.tasks t for no key update skip locked limit 1;
    end;
    if v_id is null then  -- every task is locked, or there is none
        return;
    end if;
    for v_write in select w from jsonb_array_elements(case p_table when 'tasks' then c_tasks else c_workers end) w loop
        begin
            perform public.internal_write_columns(v_rel, v_id, v_write, p_path);
            if p_table = 'tasks' and v_write->>'status' <> 'In Progress' then  -- a task ends once
                raise exception using errcode = 'OR008';
            end if;
        exception
            when sqlstate 'OR008' then
                null;
            when others or assert_failure then
                if v_is_claimable or left(sqlstate, 2) in ('42', '3F') then
                    raise;
                end if;
        end;
    end loop;
end
$$;

create or replace function public.internal_write_columns(p_rel regclass, p_id text, p_values jsonb, p_path text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_is_task constant boolean := p_rel = to_regclass('public.tasks');
    v_write text;
    v_before jsonb;
    v_after jsonb;
begin
    select case when p_id is null
                then format('insert into %s as r (%s) values (%s) returning to_jsonb(r)', p_rel,
                            string_agg(quote_ident(v.key), ', '), string_agg(quote_nullable(v.value), ', '))
                else format('update %s r set %s where id = %L returning to_jsonb(r)', p_rel,
                            string_agg(format('%I = %L', v.key, v.value), ', '), p_id) end
      into v_write
      from jsonb_each_text(p_values) v
      join pg_catalog.pg_attribute a on a.attrelid = p_rel and a.attname = v.key and not a.attisdropped;
    execute format('select to_jsonb(r) from %s r where id = %L', p_rel, p_id) into v_before;
    if v_is_task and p_id is not null then
        perform set_config('orchestrator.publishing', pg_trigger_depth()::text, true);
    end if;
    if v_is_task or p_path is not null then
        perform set_config('search_path', public.internal_trial_path(p_path), true);
    end if;
    execute v_write into v_after;
    if v_after is null or v_is_task and v_after = v_before then
        raise exception 'a trigger returned null or old: nothing was written' using errcode = 'OR010';
    end if;
    -- Deferred triggers of a task fire at this point too. Those of a worker fire when the transaction ends, with the
    -- path of the session.
    perform set_config('search_path', public.internal_trial_path(p_path), true);
    set constraints all immediate;
    set constraints all deferred;
    perform set_config('orchestrator.publishing', '', true);
end
$$;
