-- Shared by all functions: errors, checks of arguments, the clock, and the caller.
--
-- A function records why and for whom it writes in settings that end with its transaction (orchestrator.now, actor,
-- term and reason). Triggers read them. Without them, the reason of a change is "changed by hand".

-- Raises one of our errors: SQLSTATE, what, why and how to fix it.
create or replace function public.internal_refuse(
    p_code text, p_what text, p_why text default '', p_fix text default ''
) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    raise exception '%', p_what using errcode = p_code, detail = p_why, hint = p_fix;
end
$$;

create or replace function public.internal_check_id(p_id text, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if p_id is null or p_id !~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$' then
        perform public.internal_refuse('OR007', format('%s is not a valid id', p_what), format('got %L', left(p_id, 100)),
            'letters, digits, _ and -, at most 63, the first one a letter or digit');
    end if;
end
$$;

create or replace function public.internal_check_size(p_value jsonb, p_limit_bytes int, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if octet_length(p_value::text) > p_limit_bytes then
        perform public.internal_refuse('OR007', format('%s is too large', p_what),
            format('%s bytes, the limit is %s', octet_length(p_value::text), p_limit_bytes),
            'Upload it and pass its location.');
    end if;
end
$$;

create or replace function public.internal_check_keys(p_object jsonb, p_allowed text[], p_what text) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_key text;
begin
    if p_object is null or jsonb_typeof(p_object) <> 'object' then
        perform public.internal_refuse('OR007', format('%s must be a JSON object', p_what));
    end if;
    select k into v_key from jsonb_object_keys(p_object) k where k <> all (p_allowed) limit 1;
    if v_key is not null then
        perform public.internal_refuse('OR007', format('%s has an unknown key %L', p_what, v_key), '',
            'known are: ' || array_to_string(p_allowed, ', '));
    end if;
end
$$;

-- Refuses a stale term. The key of the lease row stays locked until the transaction ends, so no takeover can happen in
-- between. A renewal can: the leader must not lose its lease because a write of its own waits for another transaction.
create or replace function public.internal_check_term(p_fleet text, p_term bigint, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_term bigint;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    select l.term into v_term from public.fleet_lease l where l.fleet = p_fleet for key share;
    if v_term is distinct from p_term or p_term is null then
        perform public.internal_refuse('OR001', format('%s refused: term %s does not lead fleet %s', p_what, p_term, p_fleet),
            format('the present term is %s', v_term), 'Another orchestrator leads; call fleet_lead and observe again.');
    end if;
end
$$;

-- Returns the time of a call and sets it for the triggers of its writes. Any caller except a pod may choose it.
create or replace function public.internal_clock(p_now timestamptz) returns timestamptz
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := clock_timestamp();
    v_set text;
begin
    if p_now is not null and not public.internal_is_pod() then
        v_now := p_now;
    end if;
    -- Not as text of the session's DateStyle, which may name a time zone that is read as another one (CST).
    v_set := set_config('orchestrator.now', to_json(v_now) #>> '{}', true);
    v_set := set_config('orchestrator.statement', statement_timestamp()::text, true);
    return v_now;
end
$$;

-- The time of the current call; for any other statement, the wall clock.
create or replace function public.internal_now() returns timestamptz
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    -- The time of a call applies to the writes of that call, not to the user's next statement in the same transaction.
    if current_setting('orchestrator.statement', true) = statement_timestamp()::text then
        return current_setting('orchestrator.now', true)::timestamptz;
    end if;
    return clock_timestamp();
end
$$;

-- Sets who writes, under which term and why, for the triggers of this transaction.
create or replace function public.internal_because(p_actor text, p_term bigint, p_reason text) returns void
language sql security definer set search_path = '' as $$
    select set_config('orchestrator.actor', coalesce(internal_because.p_actor, ''), true),
           set_config('orchestrator.term', coalesce(internal_because.p_term::text, ''), true),
           set_config('orchestrator.reason', coalesce(internal_because.p_reason, ''), true)
$$;

-- Fires the deferred constraint triggers of the writes so far, if the transaction consists of one call of a worker_* or
-- fleet_* function: then the caller's exception block gets their errors. In a user's transaction they fire at its end.
create or replace function public.internal_fire_deferred() returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if current_setting('orchestrator.alone', true) = statement_timestamp()::text then
        perform set_config('search_path', public.internal_users_path() || ', pg_temp', true);  -- until this function ends
        set constraints all immediate;
    end if;
end
$$;

-- Whether this transaction may wait once more for another one, which a limit or a user's trigger makes it wait for: three
-- waits may be in vain.
create or replace function public.internal_may_wait() returns boolean
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return coalesce(nullif(current_setting('orchestrator.vain_waits', true), '')::int, 0) < 3;
end
$$;

-- Counts a wait in vain.
create or replace function public.internal_count_wait() returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_waits int := coalesce(nullif(current_setting('orchestrator.vain_waits', true), '')::int, 0);
    v_set text := set_config('orchestrator.vain_waits', (v_waits + 1)::text, true);
begin
end
$$;

-- How long a claim waits for a lock: it may be one that a user's trigger asks for, or one of the server, which is short. A
-- transaction that has completed tasks may hold rows that their triggers wrote and others wait for.
create or replace function public.internal_claim_patience() returns text
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return case when not public.internal_may_wait() then '10ms'
                when current_setting('orchestrator.has_completed', true) = 'true' then '100ms'
                else '500ms' end;
end
$$;

-- Makes one change to each of these tasks, as far as users' triggers and constraints allow: to all at once, or if that
-- fails to each half, and so on. The statement that calls it must not fail because of one task. Returns how many rows
-- 'due' or 'pool' changed.
-- p_change: 'due' (they need not wait any more), 'pool' (p_with has the pool of each type that is not the default one) or
-- 'back' (an attempt does not count; p_with has the number of each task's).
create or replace function public.internal_change_each(
    p_change text, p_ids uuid[], p_with jsonb default null, p_until timestamptz default null
) returns bigint
language plpgsql security definer set search_path = '' set jit = off set lock_timeout = '500ms' as $$
#variable_conflict use_variable
declare
    c_time constant interval := '1 second';  -- after the first refusal; then the rest stays as it is
    v_count int := coalesce(cardinality(p_ids), 0);
    v_first uuid[] := p_ids[:v_count / 2];
    v_free uuid[];
    v_changed bigint;
    v_task record;
    v_message text;
begin
    if v_count = 0 then  -- a statement without rows would run users' triggers for statements
        return 0;
    end if;
    begin
        if p_change = 'due' then
            update public.tasks t set run_after = null where t.id = any (p_ids) and t.status = 'Queued';
        elsif p_change = 'pool' then
            update public.tasks t set pool = coalesce(p_with->>t.task_type, 'default')
             where t.id = any (p_ids) and t.status = 'Queued';
        else
            perform public.internal_give_back(p_ids, p_with);
        end if;
        get diagnostics v_changed = row_count;
        if p_change = 'pool' then
            -- The statement changed the rows in any order, in which tenants got their turns; their tasks go by p_ids.
            for v_task in
                with moved as (
                    select t.id, t.pool, t.priority, t.tenant, t.queue_turn,
                           row_number() over (p order by array_position(p_ids, t.id)) as place,
                           row_number() over (p order by t.queue_turn, array_position(p_ids, t.id)) as turn
                      from public.tasks t
                     where t.id = any (p_ids) and t.status = 'Queued' and not t.blocked and t.run_after is null
                       and t.tenant is not null
                    window p as (partition by t.pool, t.priority, t.tenant)
                )
                select m.id, g.queue_turn
                  from moved m join moved g on (g.pool, g.priority, g.tenant, g.turn) = (m.pool, m.priority, m.tenant, m.place)
                 where g.queue_turn <> m.queue_turn
            loop
                update public.tasks t set queue_turn = v_task.queue_turn where t.id = v_task.id;
            end loop;
        end if;
        perform public.internal_fire_deferred();
        return v_changed;
    exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
        if public.internal_is_transient(sqlstate) and sqlstate <> '55P03' then
            raise;
        end if;
        v_message := format('%s (%s)', sqlerrm, sqlstate);
        if sqlstate = '55P03' and p_until is null then  -- first those that no other transaction has locked
            v_free := array(select t.id from public.tasks t where t.id = any (p_ids) for no key update skip locked);
            v_first := case when cardinality(v_free) between 1 and v_count - 1 then v_free else v_first end;
        end if;
    end;
    p_until := coalesce(p_until, clock_timestamp() + c_time);
    if v_count = 1 or clock_timestamp() > p_until then
        raise warning '% tasks could not be changed (%): %', v_count, p_change, v_message;
        return 0;
    end if;
    return public.internal_change_each(p_change, v_first, p_with, p_until)
         + public.internal_change_each(
               p_change, array(select o.id from unnest(p_ids) with ordinality o (id, n)
                                where o.id <> all (v_first) order by o.n), p_with, p_until);
end
$$;

-- Whether the caller is a pod. It is plpgsql because an SQL function with its own search_path cannot be inlined, and is
-- slower.
create or replace function public.internal_is_pod() returns boolean
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    -- Inside a security definer function, current_user is the owner. This setting still has the role of the request.
    return coalesce(current_setting('role', true), '') = 'gpu_worker' or session_user = 'gpu_worker';
end
$$;

-- Whether an error is about the present state of this server (deadlock, resources, cancellation, shutdown, locks, input or
-- output) and not about the task. A lost connection is of another server, which a user's trigger calls: nobody catches the
-- loss of our own. So is a conflict between transactions that are READ COMMITTED, and a refused write in one that writes.
create or replace function public.internal_is_transient(p_sqlstate text) returns boolean
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return left(p_sqlstate, 2) in ('53', '57') or p_sqlstate in ('40P01', '55P03', '58030')
        or p_sqlstate = '40001' and current_setting('transaction_isolation') <> 'read committed'
        or p_sqlstate = '25006' and current_setting('transaction_read_only')::boolean;
end
$$;
