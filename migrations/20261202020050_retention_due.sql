-- Retention ran after an hour of a process's life, so that a service that is deployed every half hour never ran it. The
-- database keeps when a chore was last done.
create table public.fleet_chores (
    fleet text not null,
    name text not null check (name <> ''),
    done_at timestamptz not null,
    primary key (fleet, name)
);
alter table public.fleet_chores enable row level security;

-- Delete what is past its age, as fleet_retention does, if that was not done within p_every_s. "deleted" is null if it is
-- not due.
create function public.fleet_retain(p_fleet text, p_term bigint, p_every_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_deleted jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retain');
    if exists (select from public.fleet_chores c
                where c.fleet = p_fleet and c.name = 'retention' and c.done_at > v_now - p_every_s * interval '1 second') then
        return jsonb_build_object('deleted', null);
    end if;
    v_deleted := public.fleet_retention(p_fleet, p_term, p_now);
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'retention', v_now)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return jsonb_build_object('deleted', v_deleted);
end
$$;

do $$
declare
    v_role text;
begin
    revoke all on public.fleet_chores from public;
    revoke all on function public.fleet_retain(text, bigint, numeric, timestamptz) from public;
    foreach v_role in array array['anon', 'authenticated'] loop
        if exists (select from pg_catalog.pg_roles where rolname = v_role) then
            execute format('revoke all on public.fleet_chores from %I', v_role);
            execute format('revoke all on function public.fleet_retain(text, bigint, numeric, timestamptz) from %I', v_role);
        end if;
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant all on public.fleet_chores to service_role;
        grant execute on function public.fleet_retain(text, bigint, numeric, timestamptz) to service_role;
    end if;
end
$$;
