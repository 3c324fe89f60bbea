-- fleet_leadership: who leads a fleet now, and where nobody does who led last and until when. It changes nothing.

create function public.fleet_leadership(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'last', (select jsonb_build_object('holder', l.holder, 'until', l.expires_at)
                   from public.fleet_lease l where l.fleet = p_fleet and l.expires_at <= v_now));
end
$$;

-- A new function comes with PostgreSQL's defaults: shut it, and open it for service_role.
do $$
declare
    v_function text := 'public.fleet_leadership(text, timestamptz)';
    v_role name;
begin
    execute format('revoke all on function %s from public', v_function);
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function %s from %I', v_function, v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function %s to service_role', v_function);
    end if;
end
$$;
