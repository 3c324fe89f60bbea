-- Outages of the object store, as the leader declares them.

-- The leader declares for p_for_s that the object store is unavailable. During this time no worker of its fleet claims.
-- A null reason ends it.
create or replace function public.fleet_store_away(
    p_fleet text, p_term bigint, p_reason text, p_since timestamptz, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_ended int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_store_away');
    if p_reason is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'store_away';
        get diagnostics v_ended = row_count;
        if v_ended > 0 then  -- waiting claims try again
            perform pg_notify('orchestrator_tasks', p.pool)
               from (select distinct w.pool from public.workers w
                      where w.fleet = p_fleet and w.status in ('active', 'idle')) p;
        end if;
    else
        if p_since is null or p_for_s is null or p_for_s <= 0 or p_for_s > 3600 then
            perform public.internal_refuse('OR007', 'p_since must be given, and p_for_s be from 0 to 3600 seconds');
        end if;
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, 'store_away', 'true', left(p_reason, 1000), p_since, v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set reason = excluded.reason, set_at = excluded.set_at, expires_at = excluded.expires_at;
    end if;
    return jsonb_build_object('away', p_reason is not null);
end
$$;
