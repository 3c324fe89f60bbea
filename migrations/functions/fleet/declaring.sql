-- Declarations of the leader about pools, programs and releases, and pauses of operators.

-- Declares the task types of a fleet: p_pools is a list of {task_type, pool, timeout_s, max_attempts}. A type that is
-- not in the list is forgotten. Queued tasks move only if the pool of their type has changed.
create or replace function public.fleet_declare_pools(
    p_fleet text, p_term bigint, p_pools jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_type jsonb;
    v_before jsonb;
    v_after jsonb;
    v_elsewhere text[];
    v_ids uuid[];
    c_most constant int := 100000;  -- tasks; the audit moves the others
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_pools');
    for v_type in select value from jsonb_array_elements(coalesce(p_pools, '[]')) loop
        perform public.internal_check_keys(v_type, array['task_type', 'pool', 'timeout_s', 'max_attempts'], 'p_pools');
    end loop;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_before
      from public.task_types d;
    delete from public.task_types t
     where t.fleet = p_fleet
       and t.task_type not in (select d->>'task_type' from jsonb_array_elements(coalesce(p_pools, '[]')) d);
    insert into public.task_types (task_type, fleet, pool, timeout_s, max_attempts, declared_at)
    select d->>'task_type', p_fleet, d->>'pool', (d->>'timeout_s')::numeric, (d->>'max_attempts')::int, v_now
      from jsonb_array_elements(coalesce(p_pools, '[]')) d
    on conflict (task_type) do update
       set fleet = excluded.fleet, pool = excluded.pool, timeout_s = excluded.timeout_s,
           max_attempts = excluded.max_attempts, declared_at = excluded.declared_at;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_after
      from public.task_types d;
    select array_agg(n.name) into v_elsewhere
      from (select jsonb_object_keys(v_before || v_after) as name) n
     where coalesce(v_before->>n.name, 'default') <> coalesce(v_after->>n.name, 'default');
    if v_elsewhere is not null then
        v_ids := array(
            select q.task_id from orchestrator.live q join public.tasks t on t.id = q.task_id
             where q.task_type = any (v_elsewhere) and t.pool is null
             order by q.place, q.turn, q.created_at, q.task_id limit c_most);  -- tenants get their turns in this order
        perform orchestrator.reconcile_free(v_ids);
    end if;
    return jsonb_build_object('declared', jsonb_array_length(coalesce(p_pools, '[]')),
                              'rerouted', coalesce(cardinality(v_ids), 0));
end
$$;

-- Declares the pools whose programs take tasks themselves, and the time after which a task without a lease is queued
-- again.
create or replace function public.fleet_declare_programs(
    p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_programs');
    if jsonb_typeof(p_pools) is distinct from 'array' or p_stuck_s is null or p_stuck_s not between 1 and 2592000 then
        perform public.internal_refuse('OR007', 'p_pools is a list of pools and p_stuck_s is from 1 to 2592000');
    end if;
    insert into public.fleet_settings (fleet, name, value, reason, set_at)
    values (p_fleet, 'programs', jsonb_build_object('pools', p_pools, 'stuck_s', p_stuck_s),
            'WORKER_START_COMMAND', v_now)
    on conflict (fleet, name) do update set value = excluded.value, set_at = excluded.set_at;
    return jsonb_build_object('declared', jsonb_array_length(p_pools));
end
$$;

-- Declares the release that the leader would start now, and its handlers. If a worker of another release has no handler
-- for a type and this release has one, the worker returns the task, and the attempt does not count. Without a worker of
-- this release the task waits; with one, an earlier worker that gets such a task is drained.
create or replace function public.fleet_declare_release(
    p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_release');
    if jsonb_typeof(p_releases) is distinct from 'object' or jsonb_typeof(p_task_types) is distinct from 'array' then
        perform public.internal_refuse('OR007', 'p_releases is {pool: release} and p_task_types a list of names');
    end if;
    insert into public.fleet_settings as s (fleet, name, value, reason, set_at)
    values (p_fleet, 'release',
            jsonb_build_object('term', p_term, 'releases', p_releases, 'task_types', p_task_types), 'declared', v_now)
    on conflict (fleet, name) do update
       set value = excluded.value, set_at = excluded.set_at where s.value <> excluded.value;
    return jsonb_build_object('declared', true);
end
$$;

-- Stops spawning in one pool, or in all if p_pool is null, for a time or, if that is null, until it is resumed. A null
-- reason resumes; without a pool it ends every pause.
create or replace function public.fleet_pause(
    p_fleet text, p_pool text, p_reason text, p_for_s numeric, p_now timestamptz default null
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
    if p_for_s <= 0 then
        perform public.internal_refuse('OR007', 'a pause must last longer than nothing', format('got %s s', p_for_s));
    end if;
    if p_reason is null then
        delete from public.fleet_settings s
         where s.fleet = p_fleet
           and case when p_pool is null then s.name = 'paused' or s.name like 'paused:%'
                    else s.name = 'paused:' || p_pool end;
    else
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, coalesce('paused:' || p_pool, 'paused'), 'true', p_reason, v_now,
                v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set value = excluded.value, reason = excluded.reason, set_at = excluded.set_at,
               expires_at = excluded.expires_at;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('paused', public.internal_pauses(p_fleet, v_now));
end
$$;

-- The pauses in force: {pool: {reason, until}}; "*" means every pool.
create or replace function public.internal_pauses(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(coalesce(nullif(substr(s.name, 8), ''), '*'),
                                     jsonb_build_object('reason', s.reason, 'until', s.expires_at)), '{}')
      from public.fleet_settings s
     where s.fleet = internal_pauses.p_fleet and (s.name = 'paused' or s.name like 'paused:%')
       and coalesce(s.expires_at > internal_pauses.p_now, true)
$$;

create or replace function public.internal_paused(p_fleet text, p_now timestamptz) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.reason from public.fleet_settings s
     where s.fleet = internal_paused.p_fleet and s.name = 'paused'
       and coalesce(s.expires_at > internal_paused.p_now, true)
$$;
