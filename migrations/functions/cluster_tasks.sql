-- The tasks of a cluster's pool, by the number of nodes that each asks for. A task that asks for more nodes than the cluster
-- may have is ended by the claim that finds it or by the leader's sweep: it would keep the controller from all others.

-- The ready and running tasks of its pool and the nodes that they ask for: {tasks, nodes, largest}, without ready tasks
-- that ask for more than the cluster may have: these fail (internal_cluster_refuse).
create or replace function public.internal_cluster_demand(p_row public.cluster_apps, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('tasks', count(*), 'nodes', coalesce(sum(t.nodes), 0), 'largest', coalesce(max(t.nodes), 0))
      from public.internal_cluster_tasks(internal_cluster_demand.p_row, internal_cluster_demand.p_now) t
     where not t.is_ready or t.nodes <= internal_cluster_demand.p_row.max_nodes
$$;

-- The number of nodes that the params of a task ask for: 1 without a whole number from 1 to 64. The handler refuses such
-- params, or runs the job on one node.
create or replace function public.internal_nodes_of(p_params jsonb) returns int
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_text text := p_params->>'nodes';
begin
    if jsonb_typeof(p_params->'nodes') = 'number' and v_text ~ '^[0-9]{1,2}([.]0+)?$' then
        if v_text::numeric between 1 and 64 then
            return v_text::numeric::int;
        end if;
    end if;
    return 1;
end
$$;

-- The running and the ready tasks of the cluster's pool with their numbers of nodes. The first 1,000 tasks count, and of
-- these the first 16 MB of params: of later ones, one node.
create or replace function public.internal_cluster_tasks(p_row public.cluster_apps, p_now timestamptz)
returns table (id uuid, nodes int, is_ready boolean)
language plpgsql stable security definer set search_path = '' set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 1000;
    c_bytes constant int := 16777216;  -- of params, as stored
begin
    return query
        with running as (
            select t.id, t.params, false as is_ready from public.workers w
             cross join lateral (select r.id, r.params from public.tasks r
                                  where r.worker_id = w.id and r.status = 'In Progress' limit c_tasks) t
             where w.cluster = p_row.id limit c_tasks
        ), ready as (
            select t.id, t.params, true as is_ready from public.internal_claim_start(p_row.pool, p_now) s
             cross join lateral (
                 select q.id, q.params from public.tasks q
                  where q.pool = p_row.pool and q.status = 'Queued' and not q.blocked
                    and (q.run_after is null or q.run_after <= p_now)
                    and (~q.priority, q.queue_turn, q.created_at, q.id) >= (s.place, s.queue_turn, s.created_at, s.id)
                    and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = q.id), true)
                  order by ~q.priority, q.queue_turn, q.created_at, q.id limit c_tasks) t
        ), looked_at as (
            select a.*, sum(pg_column_size(a.params)) over (rows unbounded preceding) <= c_bytes as is_read
              from (select * from running union all select * from ready limit c_tasks) a
        )
        select l.id, case when l.is_read then public.internal_nodes_of(l.params) else 1 end, l.is_ready from looked_at l
         where p_row.status not in ('deleted', 'failed');
end
$$;

-- Returns which of these locked, claimable rows the cluster can run, as internal_limit_answer does. The others are ended,
-- or added to p_passed: a job that Slurm could never start would keep its controller from all other tasks.
create or replace function public.internal_cluster_fit(
    p_cluster text, p_rows tid[], p_now timestamptz, inout p_passed uuid[], out fit tid[]
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_variable
declare
    c_nodes constant int := 64;  -- of a cluster
    v_row public.cluster_apps;
    v_task record;
begin
    select * into v_row from public.cluster_apps c where c.id = p_cluster;
    for v_task in select t.ctid as place, t.id, public.internal_nodes_of(t.params) as nodes from public.tasks t
                   where t.ctid = any (p_rows) and case t.status when 'Queued' then true end loop
        if v_task.nodes <= coalesce(v_row.max_nodes, c_nodes) then
            fit := fit || v_task.place;
        elsif not public.internal_cluster_refuse_task(v_row, v_task.id, v_task.nodes, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

-- Ends the ready tasks that ask for more nodes than the cluster may have, 100 at once: without nodes, nobody claims them.
create or replace function public.internal_cluster_refuse(p_row public.cluster_apps, p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off
set lock_timeout = '500ms' as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 100;
    c_time constant interval := '1 second';  -- users' triggers may take long
    v_task record;
begin
    for v_task in select t.id, t.nodes from public.internal_cluster_tasks(p_row, p_now) t
                   where t.is_ready and t.nodes > p_row.max_nodes limit c_tasks loop
        begin
            perform from public.tasks t
             where t.id = v_task.id and t.status = 'Queued' and not t.blocked
               and public.internal_nodes_of(t.params) > p_row.max_nodes for no key update skip locked;
            if found then
                perform public.internal_cluster_refuse_task(p_row, v_task.id, v_task.nodes, p_now);
            end if;
        exception when lock_not_available then  -- in a user's trigger; the next sweep tries again
            null;
        end;
        exit when clock_timestamp() > statement_timestamp() + c_time;
    end loop;
end
$$;

create or replace function public.internal_cluster_refuse_task(
    p_row public.cluster_apps, p_id uuid, p_nodes int, p_now timestamptz
) returns boolean
language sql security definer set search_path = '' as $$
    select public.internal_end_unclaimed(
        internal_cluster_refuse_task.p_id, 'SLURM_TOO_LARGE',
        format('It asks for %s nodes, and cluster %s may have %s', internal_cluster_refuse_task.p_nodes,
               (internal_cluster_refuse_task.p_row).id, (internal_cluster_refuse_task.p_row).max_nodes),
        internal_cluster_refuse_task.p_now)
$$;
