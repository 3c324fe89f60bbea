-- What all functions share: the clock, refusals, who is calling; and the rule of the workers' states, which holds for
-- everyone, by hand in an SQL editor included.
--
-- A function says why and on whose behalf it writes through settings that end with its transaction
-- (orchestrator.now/actor/term/reason); the trigger reads them. Without them the reason is "changed by hand".

create function public.internal_is_pod() returns boolean
language sql stable security definer set search_path = '' as $$
    -- Inside a security definer function current_user is the owner; the role that the request runs under is still here.
    select coalesce(current_setting('role', true), '') = 'gpu_worker' or session_user = 'gpu_worker'
$$;

create function public.internal_clock(p_now timestamptz) returns timestamptz
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := clock_timestamp();
begin
    if p_now is not null and not public.internal_is_pod() then
        v_now := p_now;
    end if;
    perform set_config('orchestrator.now', v_now::text, true);
    return v_now;
end
$$;

create function public.internal_now() returns timestamptz
language sql volatile security definer set search_path = '' as $$
    select coalesce(nullif(current_setting('orchestrator.now', true), '')::timestamptz, clock_timestamp())
$$;

create function public.internal_because(p_actor text, p_term bigint, p_reason text) returns void
language sql volatile security definer set search_path = '' as $$
    select set_config('orchestrator.actor', coalesce(p_actor, ''), true),
           set_config('orchestrator.term', coalesce(p_term::text, ''), true),
           set_config('orchestrator.reason', coalesce(p_reason, ''), true)
$$;

create function public.internal_refuse(p_code text, p_what text, p_why text default '', p_fix text default '')
returns void language plpgsql security definer set search_path = '' as $$
begin
    raise exception '%', p_what using errcode = p_code, detail = p_why, hint = p_fix;
end
$$;

create function public.internal_check_id(p_id text, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
begin
    if p_id is null or p_id !~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$' then
        perform public.internal_refuse('OR007', format('%s is not a valid id', p_what), format('got %L', left(p_id, 100)),
            'letters, digits, _ and -, at most 63, the first one a letter or digit');
    end if;
end
$$;

create function public.internal_check_size(p_value jsonb, p_limit_bytes int, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
begin
    if octet_length(p_value::text) > p_limit_bytes then
        perform public.internal_refuse('OR007', format('%s is too large', p_what),
            format('%s bytes, the limit is %s', octet_length(p_value::text), p_limit_bytes),
            'Upload it and pass its location.');
    end if;
end
$$;

create function public.internal_check_keys(p_object jsonb, p_allowed text[], p_what text) returns void
language plpgsql security definer set search_path = '' as $$
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

-- The lease row stays locked in share mode until the caller's transaction ends, so that no takeover can fall in between.
create function public.internal_check_term(p_fleet text, p_term bigint, p_what text) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_term bigint;
begin
    select l.term into v_term from public.fleet_lease l where l.fleet = p_fleet for share;
    if v_term is distinct from p_term or p_term is null then
        perform public.internal_refuse('OR001', format('%s refused: term %s does not lead fleet %s', p_what, p_term, p_fleet),
            format('the present term is %s', v_term), 'Another orchestrator leads; call fleet_lead and observe again.');
    end if;
end
$$;

-- Before: refuse what may not be, stamp what follows from it.
create function public.internal_worker_changing() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_now();
    v_reason text := coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand');
begin
    if tg_op = 'INSERT' then
        if new.status <> 'spawning' then
            perform public.internal_refuse('OR007', format('a worker cannot begin as %s', new.status),
                'every worker is spawned, by an intent', 'insert it as spawning');
        end if;
        new.state_since := v_now;
        new.stage_since := v_now;
        new.state_reason := v_reason;
        return new;
    end if;
    if new.status <> old.status then
        if not exists (select from public.worker_transitions t
                        where t.from_state = old.status and t.to_state = new.status) then
            perform public.internal_refuse('OR007', format('%s cannot go from %s to %s', old.id, old.status, new.status),
                'it is not in worker_transitions', 'spawning > active <> idle > terminating > terminated');
        end if;
        new.state_since := v_now;
        new.state_reason := v_reason;
        if new.status = 'terminated' then
            new.terminated_at := v_now;
            new.token_jti := null;
        end if;
    end if;
    if new.stage is distinct from old.stage then
        new.stage_since := v_now;
    end if;
    if new.nonce is distinct from old.nonce then  -- a new launch: nothing that the old one said counts for it
        new.last_heartbeat := null;
        new.claim_no := 0;
    end if;
    return new;
end
$$;
create trigger workers_changing before insert or update on public.workers
    for each row execute function public.internal_worker_changing();

-- After, when it is certain (an insert may yet give way to a row that exists): history, costs, and whoever listens.
create function public.internal_worker_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_from_state text;
    v_from_stage text;
    v_from timestamptz;
begin
    if tg_op = 'UPDATE' then
        v_from_state := old.status;
        v_from_stage := old.stage;
        v_from := greatest(old.state_since, new.billing_since);
        if new.status <> old.status and new.billing_since is not null and v_from < new.state_since then
            insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
            values (old.id, old.fleet,
                    case old.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                    else 'draining' end,
                    v_from, new.state_since,
                    coalesce(new.price_usd_per_hour, 0) * extract(epoch from new.state_since - v_from) / 3600);
        end if;
    end if;
    if v_from_state is distinct from new.status or v_from_stage is distinct from new.stage then
        insert into public.worker_events
            (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, term, actor, at, detail)
        values (new.id, new.fleet, v_from_state, new.status, v_from_stage, new.stage,
                coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand'),
                nullif(current_setting('orchestrator.term', true), '')::bigint,
                coalesce(nullif(current_setting('orchestrator.actor', true), ''), session_user),
                public.internal_now(),
                jsonb_strip_nulls(jsonb_build_object('exit_cause', new.exit_cause, 'failure_code', new.failure_code,
                                                     'pod_id', new.pod_id, 'waiting_for', new.waiting_for)));
    end if;
    perform pg_notify('orchestrator_fleet', new.id);
    return null;
end
$$;
create trigger workers_added after insert on public.workers
    for each row execute function public.internal_worker_changed();
create trigger workers_changed after update on public.workers
    for each row when (old.status is distinct from new.status or old.stage is distinct from new.stage
                       or old.drain_requested_at is distinct from new.drain_requested_at
                       or old.stop_requested_at is distinct from new.stop_requested_at)
    execute function public.internal_worker_changed();

create function public.internal_events_are_final() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    perform public.internal_refuse('OR007', 'worker_events is append-only');
    return null;
end
$$;
create trigger worker_events_final before update on public.worker_events
    for each statement execute function public.internal_events_are_final();
