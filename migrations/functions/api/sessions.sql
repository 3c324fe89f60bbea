-- Sessions of the dashboard. A session is a random number of 256 bits in a cookie; the database knows its SHA-256.

-- Opens a session: {hash, token_hash, is_link, expires_at}. A one-time link is a session that fleet_session_follow()
-- turns into another one. Sessions that have ended are deleted. The audit log says who opened it.
create or replace function public.fleet_session_open(
    p_fleet text, p_session jsonb, p_actor text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_sessions constant int := 10000;  -- of a fleet
begin
    perform public.internal_check_keys(p_session, array['hash', 'token_hash', 'is_link', 'expires_at'], 'a session');
    delete from orchestrator.sessions s where s.expires_at <= v_now;
    if (select count(*) from orchestrator.sessions s where s.fleet = p_fleet) >= c_sessions then
        perform public.internal_refuse('OR007', 'too many people are signed in', format('the limit is %s', c_sessions),
            'sign out elsewhere, or wait: a session ends after 12 hours');
    end if;
    insert into orchestrator.sessions (hash, fleet, token_hash, is_link, expires_at)
    values (p_session->>'hash', p_fleet, p_session->>'token_hash', (p_session->>'is_link')::boolean,
            (p_session->>'expires_at')::timestamptz);
    perform public.internal_audit(
        p_fleet, p_actor, case when (p_session->>'is_link')::boolean then 'dashboard.link' else 'dashboard.sign_in' end,
        'dashboard', jsonb_build_object('expires_at', p_session->'expires_at'), v_now);
    return jsonb_build_object('opened', true);
end
$$;

-- The session with this hash: {token_hash, expires_at}, or null. A one-time link is none yet.
create or replace function public.fleet_session(p_fleet text, p_hash text, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('session', (
        select jsonb_build_object('token_hash', s.token_hash, 'expires_at', s.expires_at)
          from orchestrator.sessions s
         where s.hash = fleet_session.p_hash and s.fleet = fleet_session.p_fleet and not s.is_link
           and s.expires_at > public.internal_clock(fleet_session.p_now)))
$$;

-- Turns a one-time link into a session: {opened}. It works once.
create or replace function public.fleet_session_follow(
    p_fleet text, p_link text, p_hash text, p_expires_at timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    update orchestrator.sessions s set hash = p_hash, is_link = false, expires_at = p_expires_at
     where s.hash = p_link and s.fleet = p_fleet and s.is_link and s.expires_at > public.internal_clock(p_now);
    return jsonb_build_object('opened', found);
end
$$;

-- Ends a session: {ended}.
create or replace function public.fleet_session_end(p_fleet text, p_hash text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_clock(p_now);
    delete from orchestrator.sessions s where s.hash = p_hash and s.fleet = p_fleet;
    return jsonb_build_object('ended', found);
end
$$;
