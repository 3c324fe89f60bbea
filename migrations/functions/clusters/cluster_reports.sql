-- What the leader, the commands and the API read about clusters. Each list is bounded, and read by an index.

-- One cluster (null: all live ones) with everything about it. Of all clusters at once, the lists of operations, node
-- tasks and events are short, and cost_usd is null.
create or replace function public.fleet_cluster_report(p_fleet text, p_cluster text, p_now timestamptz default null)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_clusters constant int := 100;
    v_rows int := case when p_cluster is null then 20 else 100 end;
begin
    return jsonb_build_object('now', v_now, 'clusters', coalesce((
        select jsonb_agg(to_jsonb(c.*) - 'fleet'
                   || jsonb_build_object('demand', public.internal_cluster_demand(c.*, v_now),
                                         'cost_usd', case when p_cluster is not null
                                                          then public.internal_cluster_cost(c.id, v_now) end)
                   || public.internal_cluster_workers(c.id) || public.internal_cluster_history(c.id, v_rows)
                   order by c.id)
          from (select * from public.cluster_apps a
                 where a.fleet = p_fleet and p_cluster is null and a.status not in ('deleted', 'failed')
                union all
                select * from public.cluster_apps a where a.id = p_cluster and a.fleet = p_fleet
                 limit c_clusters) c), '[]'));
end
$$;

-- What health looks at: live clusters, and of each pool without one the newest if it failed within a day; as
-- fleet_cluster_report has them, with short histories.
create or replace function public.internal_cluster_troubles(p_fleet text, p_now timestamptz, p_rows int) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg(to_jsonb(c.*) - 'fleet'
               || jsonb_build_object('demand', public.internal_cluster_demand(c.*, internal_cluster_troubles.p_now),
                                     'cost_usd', null)
               || public.internal_cluster_workers(c.id) || public.internal_cluster_history(c.id, 5)
               order by c.id), '[]')
      from (select * from public.cluster_apps a
             where a.fleet = internal_cluster_troubles.p_fleet and a.status not in ('deleted', 'failed')
            union all
            select * from public.cluster_apps a
             where a.fleet = internal_cluster_troubles.p_fleet and a.status = 'failed'
               and a.status_since > internal_cluster_troubles.p_now - interval '1 day'
               and not exists (select from public.cluster_apps n
                                where n.fleet = a.fleet and n.pool = a.pool and n.id <> a.id
                                  and (n.status not in ('deleted', 'failed') or n.created_at > a.created_at))
             limit internal_cluster_troubles.p_rows) c
$$;

-- The rows of clusters, live ones first, then the newest, each with its number of members in each state.
create or replace function public.fleet_clusters(p_fleet text, p_limit int, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('now', public.internal_clock(fleet_clusters.p_now), 'clusters', coalesce((
        select jsonb_agg(to_jsonb(c.*) - array['fleet', 'smoke_evidence', 'ended']
                         || jsonb_build_object('members', coalesce((
                   select jsonb_object_agg(n.status, n.n) from (
                       select m.status, count(*) as n from public.cluster_members m where m.cluster = c.id
                        group by m.status) n), '{}')) order by c.ended, c.created_at desc, c.id)
          from (select a.*, a.status in ('deleted', 'failed') as ended from public.cluster_apps a
                 where a.fleet = fleet_clusters.p_fleet
                 order by ended, a.created_at desc, a.id
                 limit least(greatest(coalesce(fleet_clusters.p_limit, 100), 0), 1000)) c), '[]'))
$$;

-- What the tick's snapshot has of live clusters. A removed or failed member is shown until its worker has ended:
-- otherwise it would look like a worker that has not joined yet.
create or replace function public.internal_cluster_needs(p_fleet text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', c.id, 'pool', c.pool, 'status', c.status, 'nodes', c.nodes, 'members', coalesce((
                   select jsonb_agg(jsonb_build_object('worker_id', m.worker_id, 'status', m.status, 'role', m.role)
                                    order by m.worker_id)
                     from public.cluster_members m
                    where m.cluster = c.id and (m.status not in ('removed', 'failed') or exists (
                          select from public.workers w where w.id = m.worker_id and w.status <> 'terminated'))), '[]'))
               order by c.id), '[]')
      from public.cluster_apps c
     where c.fleet = internal_cluster_needs.p_fleet and c.status not in ('deleted', 'failed')
$$;

-- {members, unjoined}: all live members and the newest 50 of the others, with their workers; and live workers that the
-- cluster reserves and that have not joined.
create or replace function public.internal_cluster_workers(p_cluster text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select jsonb_build_object(
        'members', coalesce((
            select jsonb_agg(to_jsonb(m.*) || jsonb_build_object('worker', (
                       select public.internal_cluster_worker(w.*) from public.workers w where w.id = m.worker_id))
                       order by m.created_at, m.worker_id)
              from ((select * from public.cluster_members l
                      where l.cluster = internal_cluster_workers.p_cluster and l.status not in ('removed', 'failed'))
                    union all
                    (select * from public.cluster_members e
                      where e.cluster = internal_cluster_workers.p_cluster and e.status in ('removed', 'failed')
                      order by e.status_since desc limit 50)) m), '[]'),
        'unjoined', coalesce((
            select jsonb_agg(public.internal_cluster_worker(w.*) order by w.id)
              from (select * from public.workers u
                     where u.cluster = internal_cluster_workers.p_cluster and u.status <> 'terminated'
                       and not exists (select from public.cluster_members m
                                        where m.cluster = u.cluster and m.worker_id = u.id) limit 200) w), '[]'))
$$;

create or replace function public.internal_cluster_worker(p_worker public.workers) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_object_agg(f.key, f.value) from jsonb_each(to_jsonb(internal_cluster_worker.p_worker)) f
     where f.key = any (array['id', 'status', 'stage', 'gpu_count', 'gpu_type', 'data_center', 'price_usd_per_hour',
        'created_at', 'promoted_at', 'last_heartbeat', 'drain_requested_at', 'pod_id', 'ssh_host', 'ssh_port', 'nonce',
        'release', 'cluster'])
$$;

-- {operations, node_tasks, events}, the newest first: so many open ones, and so many others. Of events that a user
-- inserted, those about something else are left out, and long texts are cut.
create or replace function public.internal_cluster_history(p_cluster text, p_rows int) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = off set enable_bitmapscan = off set jit = off as $$
    select jsonb_build_object(
        'operations', coalesce((
            select jsonb_agg(to_jsonb(o.*) order by o.id desc)
              from ((select * from public.member_operations a
                      where a.cluster = internal_cluster_history.p_cluster
                        and a.status in ('accepted', 'dispatched', 'running')
                      order by a.id limit internal_cluster_history.p_rows)
                    union
                    (select * from public.member_operations b where b.cluster = internal_cluster_history.p_cluster
                      order by b.id desc limit internal_cluster_history.p_rows)) o), '[]'),
        'node_tasks', coalesce((
            select jsonb_agg(to_jsonb(n.*) order by n.id desc)
              from ((select * from public.node_tasks a
                      where a.cluster = internal_cluster_history.p_cluster and a.status in ('queued', 'dispatched')
                      order by a.id limit internal_cluster_history.p_rows)
                    union
                    (select * from public.node_tasks b where b.cluster = internal_cluster_history.p_cluster
                      order by b.id desc limit internal_cluster_history.p_rows)) n), '[]'),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e.*) order by e.id desc)
              from (select b.id, b.cluster, left(b.worker_id, 200) as worker_id, b.subject,
                           left(b.from_state, 100) as from_state, left(b.to_state, 100) as to_state,
                           left(b.reason, 2000) as reason, b.at
                      from public.cluster_events b
                     where b.cluster = internal_cluster_history.p_cluster
                       and b.subject in ('cluster', 'member', 'operation', 'node_task')
                     order by b.id desc limit internal_cluster_history.p_rows) e), '[]'))
$$;

-- Dollars of all workers that the cluster has had.
create or replace function public.internal_cluster_cost(p_cluster text, p_now timestamptz) returns numeric
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select coalesce(round(sum((public.internal_worker_costs(w.*, internal_cluster_cost.p_now)->>'cost_usd')::numeric),
                          6), 0)
      from public.workers w where w.cluster = internal_cluster_cost.p_cluster
$$;

-- Deletes clusters that ended 30 days ago, and of other clusters what ended so long ago.
create or replace function public.internal_cluster_retention(p_fleet text, p_now timestamptz, p_rows int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_before timestamptz := p_now - interval '30 days';
begin
    delete from public.cluster_apps c
     where c.fleet = p_fleet and c.status in ('deleted', 'failed') and c.status_since < v_before;
    delete from public.member_operations o where o.ctid = any (array(
        select e.ctid from public.member_operations e join public.cluster_apps c on c.id = e.cluster
         where c.fleet = p_fleet and e.status in ('succeeded', 'failed', 'expired') and e.status_since < v_before
         limit p_rows));
    delete from public.node_tasks n where n.ctid = any (array(
        select e.ctid from public.node_tasks e join public.cluster_apps c on c.id = e.cluster
         where c.fleet = p_fleet and e.status in ('completed', 'failed', 'expired') and e.status_since < v_before
         limit p_rows));
    delete from public.cluster_events v where v.ctid = any (array(
        select e.ctid from public.cluster_events e join public.cluster_apps c on c.id = e.cluster
         where c.fleet = p_fleet and e.at < v_before limit p_rows));
    delete from public.cluster_members m where m.ctid = any (array(
        select e.ctid from public.cluster_members e join public.cluster_apps c on c.id = e.cluster
         where c.fleet = p_fleet and e.status in ('removed', 'failed') and e.status_since < v_before
           and not exists (select from public.workers w where w.id = e.worker_id and w.status <> 'terminated')
         limit p_rows));
end
$$;
