-- The events of LISTEN for clients that cannot listen.

-- The events of LISTEN for clients that cannot listen (PostgREST, a transaction pooler): a mark for every pool with
-- claimable tasks and for every live worker, and one for leases and pauses under the name ''. A mark changes with
-- everything that would be notified. If the caller's digest is current, only the digest is returned.
create or replace function public.fleet_changes(p_digest text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_head constant int := 100;  -- tasks of a pool; if more are claimable, no worker waits for a task
    v_marks jsonb;
begin
    with recursive pools(pool) as (  -- goes from pool to pool in the index, however many tasks each has
        select orchestrator.next_pool('')
        union all
        select orchestrator.next_pool(p.pool) from pools p where p.pool is not null
    ), heads as (
        select p.pool, h.mark
          from pools p
         cross join lateral orchestrator.claim_start(p.pool) s
         cross join lateral (
             select md5(string_agg(c.task_id || '/' || c.attempt, ',')) as mark from (
                 (select q.task_id, q.attempt from orchestrator.live q
                   where q.pool = p.pool and q.state = 'ready'
                     and (q.place, q.turn, q.created_at, q.task_id) >= (s.place, s.turn, s.created_at, s.task_id)
                   order by q.place, q.turn, q.created_at, q.task_id limit c_head)
                 union all
                 (select q.task_id, q.attempt from orchestrator.live q
                   where q.pool = p.pool and q.state = 'waits_for_time' and q.run_after <= v_now
                   order by q.pool, q.run_after limit c_head)) c) h
         where h.mark is not null
    ), held as (
        select q.worker_id, string_agg(q.task_id || '/' || q.attempt, ',' order by q.task_id) as tasks
          from orchestrator.live q where q.state = 'running' and q.worker_id is not null group by q.worker_id
    ), fleet as (
        select w.id as key,
               md5(concat_ws('|', w.status, w.stage, w.drain_requested_at, w.stop_requested_at, w.agent->>'nonce',
                             w.last_heartbeat is null, h.tasks, m.role, m.status, c.status)) as mark
          from public.workers w left join held h on h.worker_id = w.id
          left join public.cluster_members m on m.cluster = w.cluster and m.worker_id = w.id
          left join public.cluster_apps c on c.id = m.cluster
         where w.status <> 'terminated'
        union all
        select '', md5(concat_ws('|',
            (select string_agg(concat_ws('/', l.fleet, l.term, l.holder, l.expires_at <= v_now), ',' order by l.fleet)
               from public.fleet_lease l),
            (select string_agg(concat_ws('/', s.fleet, s.name, s.set_at), ',' order by s.fleet, s.name)
               from public.fleet_settings s where s.name like 'paused%'),
            (select string_agg(concat_ws('/', c.id, c.status, c.nodes), ',' order by c.id)
               from public.cluster_apps c where c.status not in ('deleted', 'failed'))))
    )
    select jsonb_build_object(
        'orchestrator_tasks', coalesce((select jsonb_object_agg(h.pool, h.mark) from heads h), '{}'),
        'orchestrator_fleet', (select jsonb_object_agg(f.key, f.mark) from fleet f))
      into v_marks;
    return jsonb_build_object('digest', md5(v_marks::text),
                              'marks', case when md5(v_marks::text) is distinct from p_digest then v_marks end);
end
$$;
