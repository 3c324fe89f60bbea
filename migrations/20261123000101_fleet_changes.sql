-- What LISTEN tells, for those who cannot listen (PostgREST, a transaction pooler): a mark for every pool that has
-- something to claim and for every live worker, one for leases and pauses under the name ''. A mark is another one after
-- whatever would have been notified. Asked with the digest of what the caller knows already, nothing comes back but it.

create function public.fleet_changes(p_digest text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_head constant int := 100;  -- tasks of a pool: where more than that can be claimed, nobody waits for another
    v_marks jsonb;
begin
    with recursive pools(pool) as (  -- from one to the next in the index, however many tasks each has
        (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked order by t.pool limit 1)
        union all
        select (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked and t.pool > p.pool
                 order by t.pool limit 1)
          from pools p where p.pool is not null
    ), heads as (
        select p.pool, h.mark
          from pools p
         cross join lateral (
             select md5(string_agg(c.id || '/' || c.attempts, ',')) as mark from (
                 select t.id, t.attempts from public.tasks t
                  where t.pool = p.pool and t.status = 'Queued' and not t.blocked
                    and coalesce(t.run_after <= v_now, true)
                  order by t.priority desc, t.created_at, t.id limit c_head) c) h
         where h.mark is not null
    ), held as (
        select t.worker_id, string_agg(t.id || '/' || t.attempts, ',' order by t.id) as tasks
          from public.tasks t where t.status = 'In Progress' and t.worker_id is not null group by t.worker_id
    ), fleet as (
        select w.id as key,
               md5(concat_ws('|', w.status, w.stage, w.drain_requested_at, w.stop_requested_at, w.agent->>'nonce',
                             w.last_heartbeat is null, h.tasks)) as mark
          from public.workers w left join held h on h.worker_id = w.id
         where w.status <> 'terminated'
        union all
        select '', md5(concat_ws('|',
            (select string_agg(concat_ws('/', l.fleet, l.term, l.holder, l.expires_at <= v_now), ',' order by l.fleet)
               from public.fleet_lease l),
            (select string_agg(concat_ws('/', s.fleet, s.name, s.set_at), ',' order by s.fleet, s.name)
               from public.fleet_settings s where s.name like 'paused%')))
    )
    select jsonb_build_object(
        'orchestrator_tasks', coalesce((select jsonb_object_agg(h.pool, h.mark) from heads h), '{}'),
        'orchestrator_fleet', (select jsonb_object_agg(f.key, f.mark) from fleet f))
      into v_marks;
    return jsonb_build_object('digest', md5(v_marks::text),
                              'marks', case when md5(v_marks::text) is distinct from p_digest then v_marks end);
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.fleet_changes(text, timestamptz) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.fleet_changes(text, timestamptz) from %I', v_role);
        if v_role = 'service_role' then
            grant execute on function public.fleet_changes(text, timestamptz) to service_role;
        end if;
    end loop;
end
$$;
