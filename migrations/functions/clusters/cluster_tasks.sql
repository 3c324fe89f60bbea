-- The tasks of a cluster's pool, by the number of nodes that each asks for. A task that asks for more nodes than the
-- cluster may have is not given to a worker. Maintenance or the sweep ends it: otherwise the controller could run no
-- other task.

-- The ready and running tasks of its pool and the nodes that they ask for: {tasks, nodes, largest}, without ready tasks
-- that ask for more than the cluster may have: these fail (internal_cluster_refuse).
create or replace function public.internal_cluster_demand(p_row public.cluster_apps, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('tasks', count(*), 'nodes', coalesce(sum(t.nodes), 0),
                              'largest', coalesce(max(t.nodes), 0))
      from public.internal_cluster_tasks(internal_cluster_demand.p_row, internal_cluster_demand.p_now) t
     where not t.is_ready or t.nodes <= internal_cluster_demand.p_row.max_nodes
$$;

-- The running and the ready tasks of the cluster's pool with their numbers of nodes. The first 1,000 tasks count, and
-- of these the first 16 MB of params: of later ones, one node.
create or replace function public.internal_cluster_tasks(p_row public.cluster_apps, p_now timestamptz)
returns table (id uuid, nodes int, is_ready boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 1000;
    c_bytes constant int := 16777216;  -- of params, as stored
begin
    return query
        with running as (
            select t.id, t.params, false as is_ready from public.workers w
             cross join lateral (select r.task_id from orchestrator.live r
                                  where r.worker_id = w.id and r.state = 'running' limit c_tasks) q
              join public.tasks t on t.id = q.task_id
             where w.cluster = p_row.id limit c_tasks
        ), ready as (
            select t.id, t.params, true as is_ready from orchestrator.claim_start(p_row.pool) s
             cross join lateral (
                 select q.task_id from orchestrator.live q
                  where q.pool = p_row.pool and q.state = 'ready'
                    and (q.place, q.turn, q.created_at, q.task_id) >= (s.place, s.turn, s.created_at, s.task_id)
                  order by q.place, q.turn, q.created_at, q.task_id limit c_tasks) q
              join public.tasks t on t.id = q.task_id
        ), looked_at as (
            select a.*, sum(pg_column_size(a.params)) over (rows unbounded preceding) <= c_bytes as is_read
              from (select * from running union all select * from ready limit c_tasks) a
        )
        select l.id, case when l.is_read then public.internal_nodes_of(l.params) else 1 end, l.is_ready from looked_at l
         where p_row.status not in ('deleted', 'failed');
end
$$;

-- Ends the ready tasks that ask for more nodes than the cluster may have, 100 at once: without nodes, no worker claims
-- them.
create or replace function public.internal_cluster_refuse(p_row public.cluster_apps, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 100;
begin
    perform orchestrator.end_unfit(array(
        select t.id from public.internal_cluster_tasks(p_row, p_now) t
         where t.is_ready and t.nodes > p_row.max_nodes limit c_tasks));
end
$$;
