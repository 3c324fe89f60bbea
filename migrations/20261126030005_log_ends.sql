-- What shipping needs of a worker's ledger: where each stream ends, and where what has arrived of it does. A worker that logs
-- all the time has thousands of pieces a day, and each new leader read them all before it shipped another byte: after a week
-- for ten seconds each, after two no longer at all.
create function public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' as $$
    with recursive streams (boot_id, stream) as (  -- from one to the next in the index, however many pieces each has
        (select o.boot_id, o.stream from public.log_objects o
          where o.worker_id = p_worker_id order by o.boot_id, o.stream limit 1)
        union all
        select n.boot_id, n.stream from streams s cross join lateral (
            select o.boot_id, o.stream from public.log_objects o
             where o.worker_id = p_worker_id and (o.boot_id, o.stream) > (s.boot_id, s.stream)
             order by o.boot_id, o.stream limit 1) n
    ), ends as (
        select o.* from streams s cross join lateral (
            (select * from public.log_objects l
              where l.worker_id = p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream
              order by l.seq desc limit 1)
            union
            (select * from public.log_objects l
              where l.worker_id = p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream and l.shipped_at is not null
              order by l.seq desc limit 1)) o
    )
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from ends o
     where exists (select from public.workers w where w.id = p_worker_id and w.fleet = p_fleet)
$$;

do $$
declare
    v_role name;
    c_function constant text := 'public.fleet_log_ends(text, text, timestamptz)';
begin
    execute format('revoke all on function %s from public', c_function);
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function %s from %I', c_function, v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function %s to service_role', c_function);
    end if;
end
$$;
