-- Shared by all functions: errors, checks of arguments, the clock, and the caller.
--
-- A function records why and for whom it writes in settings that end with its transaction (orchestrator.now, actor,
-- term and reason). Triggers read them. Without them, the reason of a change is "changed by hand".

-- Raises one of our errors: SQLSTATE, what, why and how to fix it.
create or replace function public.internal_refuse(
    p_code text, p_what text, p_why text default '', p_fix text default ''
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    raise exception '%', p_what using errcode = p_code, detail = p_why, hint = p_fix;
end
$$;

create or replace function public.internal_check_id(p_id text, p_what text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if p_id is null or p_id !~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$' then
        perform public.internal_refuse('OR007', format('%s is not a valid id', p_what),
                                       format('got %L', left(p_id, 100)),
            'letters, digits, _ and -, at most 63, the first one a letter or digit');
    end if;
end
$$;

create or replace function public.internal_check_size(p_value jsonb, p_limit_bytes int, p_what text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_term bigint;
begin
    select l.term into v_term from public.fleet_lease l where l.fleet = p_fleet for key share;
    if v_term is distinct from p_term or p_term is null then
        perform public.internal_refuse('OR001',
                                       format('%s refused: term %s does not lead fleet %s', p_what, p_term, p_fleet),
            format('the present term is %s', v_term), 'Another orchestrator leads; call fleet_lead and observe again.');
    end if;
end
$$;

-- Returns the time of a call and sets it for the triggers of its writes. Any caller except a pod may choose it.
create or replace function public.internal_clock(p_now timestamptz) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
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
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select set_config('orchestrator.actor', coalesce(internal_because.p_actor, ''), true),
           set_config('orchestrator.term', coalesce(internal_because.p_term::text, ''), true),
           set_config('orchestrator.reason', coalesce(internal_because.p_reason, ''), true)
$$;

-- Whether the caller is a pod. PostgREST sets request.method in every transaction; a pod can neither set it through the
-- gateway nor omit it there. The function is plpgsql because an SQL function with its own search_path cannot be
-- inlined, and is slower.
create or replace function public.internal_is_pod() returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    -- Inside a security definer function, current_user is the owner. This setting still has the role of the request.
    -- The gateway says so too, because its login may have no such role.
    return coalesce(current_setting('role', true), '') = 'gpu_worker' or session_user = 'gpu_worker'
           or coalesce(current_setting('orchestrator.caller', true), '') = 'pod';
end
$$;

-- Whether an error is about the present state of this server (deadlock, resources, cancellation, shutdown, locks, input
-- or output) and not about the task. A lost connection does not count: it is to another server, which a user's trigger
-- calls, because the loss of our own cannot be caught. A conflict in a READ COMMITTED transaction, or a refused write
-- in one that may write, comes from such a server too.
create or replace function public.internal_is_transient(p_sqlstate text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return left(p_sqlstate, 2) in ('53', '57') or p_sqlstate in ('40P01', '55P03', '58030')
        or p_sqlstate = '40001' and current_setting('transaction_isolation') <> 'read committed'
        or p_sqlstate = '25006' and current_setting('transaction_read_only')::boolean;
end
$$;
