-- Operators' choices of the rule of scaling, in a pool or in the whole fleet; rows of fleet_settings, as pauses.

-- Chooses the rule, fixed or learned, of one pool, or of every pool without a choice of its own if p_pool is null. With
-- null for p_policy, the settings decide again; without a pool, in every pool.
create or replace function public.fleet_scaling_policy(
    p_fleet text, p_pool text, p_policy text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if p_pool is not null then
        perform public.internal_check_id(p_pool, 'p_pool');
    end if;
    if p_policy is null then
        delete from public.fleet_settings s
         where s.fleet = p_fleet
           and case when p_pool is null then s.name = 'scaling' or s.name like 'scaling:%'
                    else s.name = 'scaling:' || p_pool end;
    elsif p_policy not in ('fixed', 'learned') then
        perform public.internal_refuse('OR007', 'the rule of scaling is fixed or learned',
                                       format('got %L', left(p_policy, 100)));
    else
        insert into public.fleet_settings (fleet, name, value, reason, set_at)
        values (p_fleet, coalesce('scaling:' || p_pool, 'scaling'), to_jsonb(p_policy), 'chosen by an operator', v_now)
        on conflict (fleet, name) do update set value = excluded.value, set_at = excluded.set_at;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return public.fleet_scaling_policies(p_fleet, p_now);
end
$$;

-- The choices in force: {policies: {pool: fixed or learned}}; "*" means every pool without a choice of its own.
create or replace function public.fleet_scaling_policies(p_fleet text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('policies', public.internal_scaling_policies(fleet_scaling_policies.p_fleet))
$$;

create or replace function public.internal_scaling_policies(p_fleet text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(coalesce(nullif(substr(s.name, 9), ''), '*'), s.value), '{}')
      from public.fleet_settings s
     where s.fleet = internal_scaling_policies.p_fleet and (s.name = 'scaling' or s.name like 'scaling:%')
$$;
