-- What is done with members of clusters (operations), and what operations do on pods (node tasks). Both have a
-- deadline; fleet_cluster_sweep expires them.

-- An operator's request: drain, reconcile or bootstrap_ssh of one member, by its worker's id or its node's name, or of
-- all live members. Answers {outcome, operations}: accepted; already, if each of them has such an operation that is
-- open; no_members.
create or replace function public.internal_cluster_request(
    p_row public.cluster_apps, p_actor text, p_kind text, p_worker text, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    -- A drain waits for the jobs of the node.
    v_deadline timestamptz := p_now + case p_kind when 'drain' then interval '1 day' else interval '15 minutes' end;
    v_workers text[] := array(
        select m.worker_id from public.cluster_members m
         where m.cluster = p_row.id and m.status not in ('removed', 'failed')
           and (p_worker is null or p_worker in (m.worker_id, m.node_name)) order by m.index_no);
    v_new bigint[];
begin
    if p_kind not in ('drain', 'reconcile', 'bootstrap_ssh') then
        perform public.internal_refuse('OR007', format('there is no action %L', left('cluster.' || p_kind, 100)));
    elsif p_kind = 'drain' and p_worker is null then
        perform public.internal_refuse('OR007', 'a drain needs a worker', '', 'to end all of them: cluster.delete');
    elsif p_worker is not null and v_workers = '{}' then
        return jsonb_build_object('outcome', 'not_found');
    end if;
    with added as (
        insert into public.member_operations (cluster, worker_id, kind, actor, created_at, deadline_at)
        select p_row.id, w.id, p_kind, left(p_actor, 100), p_now, v_deadline from unnest(v_workers) w (id)
        on conflict (cluster, (coalesce(worker_id, '')), kind) where status in ('accepted', 'dispatched', 'running')
        do nothing returning id
    )
    select coalesce(array_agg(a.id), '{}') into v_new from added a;
    return jsonb_build_object(
        'outcome', case when v_workers = '{}' then 'no_members' when v_new = '{}' then 'already' else 'accepted' end,
        'operations', coalesce((
            select jsonb_agg(to_jsonb(o.*) order by o.id) from public.member_operations o
             where o.cluster = p_row.id and o.worker_id = any (v_workers) and o.kind = p_kind
               and o.status in ('accepted', 'dispatched', 'running')), '[]'));
end
$$;

-- The leader's own operation: {outcome, id}. If such an operation is open, its id. Stale if the cluster has ended, or
-- does not reserve the worker.
create or replace function public.fleet_cluster_operate(
    p_fleet text, p_term bigint, p_cluster text, p_worker_id text, p_kind text, p_deadline_s numeric,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_operate');
    perform from public.cluster_apps c
     where c.id = p_cluster and c.fleet = p_fleet and c.status not in ('deleted', 'failed') for no key update;
    if not found or p_worker_id is not null and not exists (
            select from public.workers w where w.id = p_worker_id and w.fleet = p_fleet and w.cluster = p_cluster) then
        return jsonb_build_object('outcome', 'stale', 'id', null);
    end if;
    select o.id into v_id from public.member_operations o
     where o.cluster = p_cluster and coalesce(o.worker_id, '') = coalesce(p_worker_id, '') and o.kind = p_kind
       and o.status in ('accepted', 'dispatched', 'running');
    if not found then
        perform public.internal_because('orchestrator', p_term, format('%s requested', p_kind));
        insert into public.member_operations (cluster, worker_id, kind, actor, created_at, deadline_at)
        values (p_cluster, p_worker_id, p_kind, 'orchestrator', v_now, v_now + p_deadline_s * interval '1 second')
        returning id into v_id;
    end if;
    return jsonb_build_object('outcome', 'ok', 'id', v_id);
end
$$;

create or replace function public.fleet_cluster_operation_move(
    p_fleet text, p_term bigint, p_id bigint, p_from text[], p_status text, p_error text, p_evidence jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_operation_move');
    perform public.internal_check_size(p_evidence, 65536, 'p_evidence');
    perform public.internal_because('orchestrator', p_term, coalesce(p_error, p_status));
    update public.member_operations o
       set status = p_status, error = left(p_error, 500), evidence = coalesce(nullif(p_evidence, 'null'), o.evidence)
     where o.id = p_id and o.status = any (p_from)
       and exists (select from public.cluster_apps c where c.id = o.cluster and c.fleet = p_fleet);
    return jsonb_build_object('outcome', case when found then 'ok' else 'stale' end);
end
$$;

-- Queues a node task: {outcome, id}. An open one with the same kind, payload and way has the same id.
create or replace function public.fleet_node_task(
    p_fleet text, p_term bigint, p_cluster text, p_worker_id text, p_operation_id bigint, p_kind text, p_payload jsonb,
    p_via text, p_deadline_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_payload jsonb := coalesce(nullif(p_payload, 'null'), '{}');
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_node_task');
    perform public.internal_check_size(v_payload, 16384, 'p_payload');
    perform from public.cluster_apps c
     where c.id = p_cluster and c.fleet = p_fleet and c.status not in ('deleted', 'failed') for no key update;
    if not found or not exists (
            select from public.workers w
             where w.id = p_worker_id and w.fleet = p_fleet and w.cluster = p_cluster and w.status <> 'terminated') then
        return jsonb_build_object('outcome', 'stale', 'id', null);
    end if;
    select n.id into v_id from public.node_tasks n
     where n.worker_id = p_worker_id and n.cluster = p_cluster and n.status in ('queued', 'dispatched')
       and n.kind = p_kind and n.payload = v_payload and n.via = p_via
       and n.operation_id is not distinct from p_operation_id order by n.id limit 1;
    if not found then
        perform public.internal_because('orchestrator', p_term, format('queued, over %s', p_via));
        insert into public.node_tasks (cluster, worker_id, operation_id, kind, payload, via, created_at, deadline_at)
        values (p_cluster, p_worker_id, p_operation_id, p_kind, v_payload, p_via, v_now,
                v_now + p_deadline_s * interval '1 second') returning id into v_id;
    end if;
    return jsonb_build_object('outcome', 'ok', 'id', v_id);
end
$$;

create or replace function public.fleet_node_task_move(
    p_fleet text, p_term bigint, p_id bigint, p_from text[], p_status text, p_error text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_node_task_move');
    perform public.internal_because('orchestrator', p_term, coalesce(p_error, p_status));
    update public.node_tasks n set status = p_status, error = left(p_error, 500)
     where n.id = p_id and n.status = any (p_from)
       and exists (select from public.cluster_apps c where c.id = n.cluster and c.fleet = p_fleet);
    return jsonb_build_object('outcome', case when found then 'ok' else 'stale' end);
end
$$;

-- Moves an open node task from a silent agent to the leader, which runs it over SSH. The agent may no longer report its
-- end.
create or replace function public.fleet_node_task_take(
    p_fleet text, p_term bigint, p_id bigint, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_node_task_take');
    perform public.internal_because('orchestrator', p_term, 'its agent is silent: over ssh');
    update public.node_tasks n set via = 'ssh', status = 'dispatched'
     where n.id = p_id and n.via = 'agent' and n.status in ('queued', 'dispatched')
       and exists (select from public.cluster_apps c where c.id = n.cluster and c.fleet = p_fleet);
    return jsonb_build_object('outcome', case when found then 'ok' else 'stale' end);
end
$$;

-- Expires what has missed its deadline, 1,000 rows at once: {operations, node_tasks}. A row that a user's trigger keeps
-- from changing stays as it is. Ends tasks that no cluster of their pool can run.
create or replace function public.fleet_cluster_sweep(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_rows constant int := 1000;
    c_clusters constant int := 100;
    v_tasks bigint[];
    v_operations bigint[];
    v_cluster public.cluster_apps;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_sweep');
    perform public.internal_because('orchestrator', p_term, 'its deadline has passed');
    v_tasks := array(
        select l.id from public.node_tasks l
         where l.status in ('queued', 'dispatched') and l.deadline_at <= v_now
           and exists (select from public.cluster_apps c where c.id = l.cluster and c.fleet = p_fleet)
         order by l.deadline_at limit c_rows for update of l skip locked);
    v_operations := array(
        select l.id from public.member_operations l
         where l.status in ('accepted', 'dispatched', 'running') and l.deadline_at <= v_now
           and exists (select from public.cluster_apps c where c.id = l.cluster and c.fleet = p_fleet)
         order by l.deadline_at limit c_rows for update of l skip locked);
    for v_cluster in select c.* from public.cluster_apps c
                      where c.fleet = p_fleet and c.status not in ('deleting', 'deleted', 'failed')
                      order by c.id limit c_clusters loop
        perform public.internal_cluster_refuse(v_cluster, v_now);
    end loop;
    return jsonb_build_object('operations', public.internal_cluster_expire('operation', v_operations),
                              'node_tasks', public.internal_cluster_expire('node_task', v_tasks));
end
$$;

-- Expires these rows, and returns how many: all at once or, if that fails, each by itself.
create or replace function public.internal_cluster_expire(p_subject text, p_ids bigint[]) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_late constant text := 'its deadline has passed';
    v_expired int;
begin
    if p_subject = 'operation' then
        update public.member_operations o set status = 'expired', error = coalesce(o.error, c_late)
         where o.id = any (p_ids);
    else
        update public.node_tasks n set status = 'expired', error = c_late where n.id = any (p_ids);
    end if;
    get diagnostics v_expired = row_count;
    return v_expired;
exception when others or assert_failure then
    if cardinality(p_ids) = 1 then
        return 0;
    end if;
    return (select coalesce(sum(public.internal_cluster_expire(p_subject, array[i.id])), 0)::int
              from unnest(p_ids) i (id));
end
$$;

-- The agent reports the end of a node task: {outcome: ok, already or fenced}. Fenced: an earlier launch, or a task that
-- this worker was not sent.
create or replace function public.worker_node_task_done(
    p_worker_id text, p_nonce text, p_id bigint, p_ok boolean, p_error text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_status text;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop');
    end if;
    select n.status into v_status from public.node_tasks n
     where n.id = p_id and n.worker_id = p_worker_id and n.via = 'agent' for no key update;
    if not found or v_status = 'queued' then
        return jsonb_build_object('outcome', 'fenced', 'wanted', public.internal_wanted(v_worker));
    elsif v_status <> 'dispatched' then
        return jsonb_build_object('outcome', 'already', 'wanted', public.internal_wanted(v_worker));
    end if;
    perform public.internal_because('worker', null, coalesce(nullif(p_error, ''), 'reported by the agent'));
    update public.node_tasks n
       set status = case when p_ok then 'completed' else 'failed' end,
           error = case when not coalesce(p_ok, false)
                        then left(coalesce(nullif(p_error, ''), 'no reason given'), 500) end
     where n.id = p_id;
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker));
end
$$;
