-- Tokens of the API, and the audit log. The database knows a token by its SHA-256: the token is a random number of 256
-- bits, so it cannot be guessed from the hash.

-- Stores a token: {name, hash, scopes, pools, tenant, expires_at}. A name is used once, because the audit log names it.
create or replace function public.fleet_token_create(
    p_fleet text, p_token jsonb, p_actor text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_tokens constant int := 1000;  -- of a fleet
begin
    perform public.internal_check_keys(p_token, array['name', 'hash', 'scopes', 'pools', 'tenant', 'expires_at'],
                                       'a token');
    if (select count(*) from public.api_tokens t where t.fleet = p_fleet) >= c_tokens then
        perform public.internal_refuse('OR007', 'the fleet has too many tokens', format('the limit is %s', c_tokens),
            'revoke tokens; a row is deleted 90 days after its end');
    elsif (p_token->>'expires_at')::timestamptz <= v_now then
        perform public.internal_refuse('OR007', 'the token would have expired already', format('expires_at is %s',
            p_token->>'expires_at'), 'name a time in the future');
    end if;
    insert into public.api_tokens (fleet, name, hash, scopes, pools, tenant, created_at, expires_at)
    select p_fleet, p_token->>'name', p_token->>'hash',
           array(select jsonb_array_elements_text(p_token->'scopes')),
           case when jsonb_typeof(p_token->'pools') = 'array'
                then array(select jsonb_array_elements_text(p_token->'pools')) end,
           p_token->>'tenant', v_now, (p_token->>'expires_at')::timestamptz
    on conflict on constraint api_tokens_pkey do nothing;
    if not found then
        perform public.internal_refuse('OR007', format('there is a token %L already', p_token->>'name'),
            'a name is used once, because the audit log names it', 'choose another name');
    end if;
    perform public.internal_audit(p_fleet, p_actor, 'token.create', p_token->>'name', p_token - 'name' - 'hash', v_now);
    return jsonb_build_object('created', true);
end
$$;

-- The valid token with this hash, or null; and whether the fleet has any valid token. Its use is recorded once a minute
-- at most.
create or replace function public.fleet_token_use(p_fleet text, p_hash text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_token public.api_tokens;
begin
    select * into v_token from public.api_tokens t
     where t.hash = p_hash and t.fleet = p_fleet and t.revoked_at is null and coalesce(t.expires_at > v_now, true);
    if found and coalesce(v_token.last_used_at < date_trunc('minute', v_now, 'UTC'), true) then
        update public.api_tokens t set last_used_at = date_trunc('minute', v_now, 'UTC') where t.hash = p_hash;
    end if;
    return jsonb_build_object(
        'now', v_now,
        'any', v_token.name is not null or exists (
            select from public.api_tokens t
             where t.fleet = p_fleet and t.revoked_at is null and coalesce(t.expires_at > v_now, true)),
        'token', case when v_token.name is not null then
            jsonb_build_object('name', v_token.name, 'scopes', v_token.scopes, 'pools', v_token.pools,
                               'tenant', v_token.tenant, 'expires_at', v_token.expires_at) end);
end
$$;

-- All tokens, the newest first, without their hashes.
create or replace function public.fleet_tokens(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('tokens', coalesce(
        jsonb_agg(to_jsonb(t.*) - 'hash' - 'fleet' order by t.created_at desc, t.name), '[]'))
      from public.api_tokens t where t.fleet = fleet_tokens.p_fleet
$$;

-- Ends a token, and what the leader still does in its name: {outcome: revoked, already, not_found}.
create or replace function public.fleet_token_revoke(
    p_fleet text, p_name text, p_actor text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    update public.api_tokens t set revoked_at = v_now
     where t.fleet = p_fleet and t.name = p_name and t.revoked_at is null;
    if not found then
        return jsonb_build_object('outcome', case when exists (
            select from public.api_tokens t
             where t.fleet = p_fleet and t.name = p_name) then 'already' else 'not_found' end);
    end if;
    perform public.internal_audit(p_fleet, p_actor, 'token.revoke', p_name, null, v_now);
    update orchestrator.bulk_changes c set outcome = 'stopped', ended_at = v_now, stopped_by = left(p_actor, 100),
           locked = '{}'
     where c.fleet = p_fleet and c.actor = p_name and c.ended_at is null;
    return jsonb_build_object('outcome', 'revoked');
end
$$;

-- The newest entries of the audit log before the entry p_before (null: from the newest on), of everything or of one
-- subject: a task, worker or pool.
create or replace function public.fleet_audit(
    p_fleet text, p_before bigint, p_limit int, p_subject text default null, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_before bigint := coalesce(p_before, 9223372036854775807);
    v_limit int := least(greatest(coalesce(p_limit, 100), 0), 1000);
    v_entries public.audit_log[];
begin
    if p_subject is null then
        v_entries := array(select a from public.audit_log a where a.fleet = p_fleet and a.id < v_before
                            order by a.id desc limit v_limit);
    else
        v_entries := array(select a from public.audit_log a
                            where a.fleet = p_fleet and a.subject = p_subject and a.id < v_before
                            order by a.id desc limit v_limit);
    end if;
    return jsonb_build_object('entries', coalesce((
        select jsonb_agg(to_jsonb(e.*) - 'fleet' order by e.id desc) from unnest(v_entries) e), '[]'));
end
$$;

-- Records an action. A detail that is too large is left out, and the entry says so.
create or replace function public.internal_audit(
    p_fleet text, p_actor text, p_action text, p_subject text, p_detail jsonb, p_now timestamptz
) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into public.audit_log (fleet, at, actor, action, subject, detail)
    values (internal_audit.p_fleet, internal_audit.p_now, left(internal_audit.p_actor, 100), internal_audit.p_action,
            left(internal_audit.p_subject, 300),
            case when octet_length(internal_audit.p_detail::text) > 8192 then '{"left_out": true}'
                else jsonb_strip_nulls(internal_audit.p_detail) end)
$$;
