-- How many workers operators allow for a time, in a pool or in the whole fleet; rows of fleet_settings, as pauses.

-- Allows at most p_most workers in one pool, or in the whole fleet if p_pool is null, for a time; the limit of the same
-- pool before it ends. A null p_most ends it; without a pool it ends every limit.
create or replace function public.fleet_scale_limit(
    p_fleet text, p_pool text, p_most int, p_reason text, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_most constant int := 100000;  -- workers
    c_longest_s constant int := 31536000;  -- a year
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if p_pool is not null then
        perform public.internal_check_id(p_pool, 'p_pool');
    end if;
    if p_most is null then
        delete from public.fleet_settings s
         where s.fleet = p_fleet
           and case when p_pool is null then s.name = 'limited' or s.name like 'limited:%'
                    else s.name = 'limited:' || p_pool end;
    else
        if p_most not between 1 and c_most then
            perform public.internal_refuse('OR007', format('a limit is a number from 1 to %s', c_most),
                                           format('got %s', p_most), 'pause the pool, if no worker may start');
        end if;
        if (p_for_s > 0 and p_for_s <= c_longest_s) is not true then
            perform public.internal_refuse('OR007', 'a limit lasts for more than nothing and at most a year',
                                           format('got %s s', p_for_s));
        end if;
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, coalesce('limited:' || p_pool, 'limited'), to_jsonb(p_most), p_reason, v_now,
                v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set value = excluded.value, reason = excluded.reason, set_at = excluded.set_at,
               expires_at = excluded.expires_at;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('limits', public.internal_scale_limits(p_fleet, v_now));
end
$$;

-- The limits in force: {limits: {pool: {most, reason, until}}}; "*" means the whole fleet.
create or replace function public.fleet_scale_limits(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return jsonb_build_object('limits', public.internal_scale_limits(p_fleet, public.internal_clock(p_now)));
end
$$;

create or replace function public.internal_scale_limits(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(coalesce(nullif(substr(s.name, 9), ''), '*'),
                                     jsonb_build_object('most', s.value, 'reason', s.reason, 'until', s.expires_at)),
                    '{}')
      from public.fleet_settings s
     where s.fleet = internal_scale_limits.p_fleet and (s.name = 'limited' or s.name like 'limited:%')
       and s.expires_at > internal_scale_limits.p_now
$$;
