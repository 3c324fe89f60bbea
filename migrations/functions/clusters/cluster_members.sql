-- Members of clusters: workers that a cluster reserves, with their index and their state in Slurm.

-- Adds a promoted worker that the cluster reserves as a pending member. p_fields: index_no (without it: the lowest free
-- one), node_name (without it: from the worker's id), and those of fleet_cluster_member_move. Answers {outcome,
-- index_no, node_name}; stale if the worker or the cluster is not ready for it, or the index is taken.
create or replace function public.fleet_cluster_join(
    p_fleet text, p_term bigint, p_cluster text, p_worker_id text, p_role text, p_fields jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_row public.cluster_members;
begin
    perform public.internal_check_keys(v_fields, array['index_no', 'node_name', 'ssh_host', 'ssh_port', 'fabric_addr',
        'hostname', 'adapter_detail'], 'p_fields');
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_join');
    perform from public.cluster_apps c
     where c.id = p_cluster and c.fleet = p_fleet and c.status in ('allocating', 'deploying', 'running', 'degraded')
       for no key update;
    if not found then
        return jsonb_build_object('outcome', 'stale', 'why', 'the cluster takes no members');
    elsif not exists (select from public.workers w
                       where w.id = p_worker_id and w.fleet = p_fleet and w.cluster = p_cluster
                         and w.status in ('active', 'idle')) then
        return jsonb_build_object('outcome', 'stale', 'why', 'the cluster does not reserve such a promoted worker');
    end if;
    v_row := jsonb_populate_record(null::public.cluster_members, v_fields);
    v_row.index_no := coalesce(v_row.index_no, (
        select min(n) from generate_series(0, 63) n
         where not exists (select from public.cluster_members m
                            where m.cluster = p_cluster and m.index_no = n and m.status not in ('removed', 'failed'))));
    if v_row.index_no is null then
        return jsonb_build_object('outcome', 'stale', 'why', 'the cluster has 64 members');
    end if;
    v_row.node_name := coalesce(v_row.node_name, lower(replace(p_worker_id, '_', '-')));
    perform public.internal_because('orchestrator', p_term, format('the worker is promoted, and joins as %s', p_role));
    begin
        insert into public.cluster_members (cluster, worker_id, role, node_name, index_no, ssh_host, ssh_port,
                                            fabric_addr, hostname, adapter_detail, created_at)
        values (p_cluster, p_worker_id, p_role, v_row.node_name, v_row.index_no, v_row.ssh_host, v_row.ssh_port,
                v_row.fabric_addr, v_row.hostname, coalesce(v_row.adapter_detail, '{}'), v_now);
    exception when unique_violation then
        return jsonb_build_object('outcome', 'stale', 'why', 'it has joined before, or its place is taken');
    end;
    return jsonb_build_object('outcome', 'ok', 'index_no', v_row.index_no, 'node_name', v_row.node_name);
end
$$;

-- Moves a member from one of the states p_from to p_status (null: it stays), with these fields. A cluster has one live
-- controller: a second one is stale.
create or replace function public.fleet_cluster_member_move(
    p_fleet text, p_term bigint, p_cluster text, p_worker_id text, p_from text[], p_status text, p_reason text,
    p_fields jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_row public.cluster_members;
begin
    if coalesce(p_reason, '') = '' then
        perform public.internal_refuse('OR007', 'a move of a member needs a reason');
    end if;
    perform public.internal_check_keys(v_fields, array['role', 'ssh_host', 'ssh_port', 'fabric_addr', 'hostname',
        'adapter_detail'], 'p_fields');
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_member_move');
    select m.* into v_row from public.cluster_members m join public.cluster_apps c on c.id = m.cluster
     where m.cluster = p_cluster and m.worker_id = p_worker_id and c.fleet = p_fleet for update of m;
    if not found or v_row.status <> all (p_from) then
        return jsonb_build_object('outcome', 'stale', 'status', v_row.status);
    end if;
    v_row := jsonb_populate_record(v_row, v_fields);
    v_row.status := coalesce(p_status, v_row.status);
    perform public.internal_because('orchestrator', p_term, p_reason);
    begin
        update public.cluster_members m
           set status = v_row.status, role = v_row.role, ssh_host = v_row.ssh_host, ssh_port = v_row.ssh_port,
               fabric_addr = v_row.fabric_addr, hostname = v_row.hostname,
               adapter_detail = coalesce(v_row.adapter_detail, '{}'), reason = left(p_reason, 500)
         where m.cluster = p_cluster and m.worker_id = p_worker_id;
    exception when unique_violation then
        return jsonb_build_object('outcome', 'stale', 'why', 'the cluster has another controller');
    end;
    if v_fields ? 'role' then  -- a change of the state does both, too
        perform orchestrator.keep_launch(w.*) from public.workers w where w.id = p_worker_id;
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;
    return jsonb_build_object('outcome', 'ok', 'status', v_row.status);
end
$$;
