-- Machines and places that failed: what is held against them, and until when they are avoided.

create table public.hosts (
    fleet text not null,
    key text not null check (key ~ '^(machine|place):.'),  -- machine:<id>, place:<data centre>|<GPU type>
    strikes int not null check (strikes > 0),  -- that still count
    evidence jsonb not null,  -- the newest ten: code, worker, pod, when, what was seen
    last_failure timestamptz not null,
    avoid_until timestamptz,  -- null: remembered, not avoided
    primary key (fleet, key)
);
alter table public.hosts enable row level security;

-- One failure against a key. It is avoided for p_avoid_s from its p_after-th strike on; a strike that is more than
-- p_memory_s older than the next one is forgotten.
create function public.fleet_strike(p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb,
                                    p_avoid_s numeric, p_after int, p_memory_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_what jsonb := jsonb_build_array(coalesce(nullif(p_evidence, 'null'), '{}')
                                      || jsonb_build_object('code', p_code, 'at', v_now));
    v_host public.hosts;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_strike');
    perform public.internal_check_size(p_evidence, 65536, 'p_evidence');
    if coalesce(p_key, '') = '' or coalesce(p_code, '') = '' or p_avoid_s is null or p_after is null
       or p_memory_s is null then
        perform public.internal_refuse('OR007', 'a strike needs p_key, p_code, p_avoid_s, p_after and p_memory_s');
    end if;
    delete from public.hosts h
     where h.fleet = p_fleet and h.last_failure < v_now - interval '90 days' and coalesce(h.avoid_until <= v_now, true);
    insert into public.hosts as h (fleet, key, strikes, evidence, last_failure)
    values (p_fleet, p_key, 1, v_what, v_now)
    on conflict (fleet, key) do update
       set strikes = case when h.last_failure < v_now - p_memory_s * interval '1 second' then 1 else h.strikes + 1 end,
           evidence = (select jsonb_agg(e.what order by e.n)
                         from jsonb_array_elements(v_what || h.evidence) with ordinality e (what, n) where e.n <= 10),
           last_failure = v_now
    returning * into v_host;
    if v_host.strikes >= p_after then
        update public.hosts h set avoid_until = greatest(h.avoid_until, v_now + p_avoid_s * interval '1 second')
         where h.fleet = p_fleet and h.key = p_key returning * into v_host;
    end if;
    return jsonb_build_object('strikes', v_host.strikes, 'avoid_until', v_host.avoid_until);
end
$$;

-- What is remembered, the newest failure first; with p_avoided only what is avoided now.
create function public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'hosts', coalesce((
        select jsonb_agg(to_jsonb(h) - 'fleet' || jsonb_build_object('avoided', coalesce(h.avoid_until > v_now, false))
                         order by h.last_failure desc, h.key)
          from (select * from public.hosts h
                 where h.fleet = p_fleet and (h.avoid_until > v_now or not coalesce(p_avoided, false))
                 order by h.last_failure desc, h.key limit 1000) h),
        '[]'));
end
$$;

do $$
declare
    v_function regprocedure;
    v_role name;
begin
    foreach v_function in array array[
        'public.fleet_strike(text, bigint, text, text, jsonb, numeric, int, numeric, timestamptz)',
        'public.fleet_hosts(text, boolean, timestamptz)']::regprocedure[] loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
        if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant execute on function %s to service_role', v_function);
        end if;
    end loop;
    revoke all on public.hosts from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on public.hosts from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant all on public.hosts to service_role;
    end if;
end
$$;
