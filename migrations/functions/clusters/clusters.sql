-- Slurm clusters: their rows, and the changes of their states.
--
-- A cluster runs on the workers of one pool. Operators create, scale and delete it (internal_cluster_act, by
-- fleet_act); the leader moves it from state to state. Each move is a compare-and-set under a term: it answers
-- {outcome: ok} or, if the row is no longer as the caller saw it, {outcome: stale}, and then nothing was changed.

-- Moves a cluster from one of the states p_from to p_status. A deadline and what it waits for belong to a state: a move
-- without them clears them. p_fields: see internal_cluster_with.
create or replace function public.fleet_cluster_move(
    p_fleet text, p_term bigint, p_cluster text, p_from text[], p_status text, p_reason text, p_fields jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_row public.cluster_apps;
begin
    if coalesce(p_reason, '') = '' or p_status is null then
        perform public.internal_refuse('OR007', 'a move of a cluster needs a state and a reason');
    end if;
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_move');
    select * into v_row from public.cluster_apps c where c.id = p_cluster and c.fleet = p_fleet for no key update;
    if not found or v_row.status <> all (p_from) then
        return jsonb_build_object('outcome', 'stale', 'status', v_row.status);
    elsif p_status = 'requested' and public.internal_cluster_runs(p_cluster) then
        return jsonb_build_object('outcome', 'stale', 'status', v_row.status, 'why', 'a task has begun on it');
    end if;
    if v_row.status <> p_status then
        v_row.deadline_at := null;
        v_row.waiting_for := null;
    end if;
    v_row.status := p_status;
    v_row.reason := left(p_reason, 500);
    perform public.internal_because('orchestrator', p_term, p_reason);
    perform public.internal_cluster_write(public.internal_cluster_with(v_row, p_fields, v_now));
    if p_status in ('deleted', 'failed') then
        perform public.internal_cluster_ended(p_cluster, p_term, format('the cluster is %s: %s', p_status, p_reason));
    end if;
    return jsonb_build_object('outcome', 'ok', 'status', p_status);
end
$$;

-- Whether one of its workers has a task. Its controller may have claimed one since its leader looked.
create or replace function public.internal_cluster_runs(p_cluster text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select exists (
        select from public.workers w
         cross join lateral (select from orchestrator.live q
                              where q.worker_id = w.id and q.state = 'running' limit 1) q
         where w.cluster = internal_cluster_runs.p_cluster)
$$;

-- Sets fields of a live cluster without a change of its state.
create or replace function public.fleet_cluster_wait(
    p_fleet text, p_term bigint, p_cluster text, p_fields jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_row public.cluster_apps;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_cluster_wait');
    select * into v_row from public.cluster_apps c where c.id = p_cluster and c.fleet = p_fleet for no key update;
    if not found or v_row.status in ('deleted', 'failed') then
        return jsonb_build_object('outcome', 'stale', 'status', v_row.status);
    end if;
    perform public.internal_cluster_write(public.internal_cluster_with(v_row, p_fields, v_now));
    return jsonb_build_object('outcome', 'ok', 'status', v_row.status);
end
$$;

-- The row with these fields: columns, and deadline_s in seconds from now. A field that is null clears its column.
create or replace function public.internal_cluster_with(p_row public.cluster_apps, p_fields jsonb, p_now timestamptz)
returns public.cluster_apps
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_row public.cluster_apps;
begin
    perform public.internal_check_keys(v_fields, array['nodes', 'conf_sha', 'deadline_s', 'waiting_for', 'smoke_at',
        'smoke_evidence', 'failure_code'], 'p_fields');
    v_row := jsonb_populate_record(p_row, v_fields - 'deadline_s');
    if v_fields ? 'deadline_s' then
        v_row.deadline_at := p_now + (v_fields->>'deadline_s')::numeric * interval '1 second';
    end if;
    return v_row;
end
$$;

create or replace function public.internal_cluster_write(p_row public.cluster_apps) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update public.cluster_apps c
       set status = internal_cluster_write.p_row.status, nodes = internal_cluster_write.p_row.nodes,
           min_nodes = internal_cluster_write.p_row.min_nodes, max_nodes = internal_cluster_write.p_row.max_nodes,
           conf_sha = internal_cluster_write.p_row.conf_sha, reason = internal_cluster_write.p_row.reason,
           failure_code = internal_cluster_write.p_row.failure_code,
           waiting_for = internal_cluster_write.p_row.waiting_for,
           deadline_at = internal_cluster_write.p_row.deadline_at, smoke_at = internal_cluster_write.p_row.smoke_at,
           smoke_evidence = internal_cluster_write.p_row.smoke_evidence,
           delete_requested_at = internal_cluster_write.p_row.delete_requested_at
     where c.id = internal_cluster_write.p_row.id
$$;

-- The end of a cluster is the end of its members, operations and node tasks.
create or replace function public.internal_cluster_ended(p_cluster text, p_term bigint, p_reason text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_reason text := left(p_reason, 500);
begin
    perform public.internal_because('orchestrator', p_term, p_reason);
    update public.cluster_members m set status = 'failed', reason = v_reason
     where m.cluster = p_cluster and m.status not in ('removed', 'failed');
    update public.member_operations o set status = 'failed', error = v_reason
     where o.cluster = p_cluster and o.status in ('accepted', 'dispatched', 'running');
    update public.node_tasks n set status = 'failed', error = v_reason
     where n.cluster = p_cluster and n.status in ('queued', 'dispatched');
end
$$;

-- An operator's action on the cluster p_cluster, by fleet_act: {outcome, …}. See the functions below.
create or replace function public.internal_cluster_act(
    p_fleet text, p_actor text, p_action text, p_cluster text, p_args jsonb, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_args jsonb := coalesce(nullif(p_args, 'null'), '{}');
    v_row public.cluster_apps;
begin
    perform public.internal_check_keys(v_args, case p_action
        when 'cluster.create' then array['pool', 'nodes', 'min_nodes', 'max_nodes']
        when 'cluster.scale' then array['nodes', 'min_nodes', 'max_nodes']
        when 'cluster.delete' then array['reason']
        else array['worker'] end, 'p_args');
    perform public.internal_because(p_actor, null,
                                    coalesce(nullif(v_args->>'reason', ''), format('%s requested it', p_actor)));
    if p_action = 'cluster.create' then
        return public.internal_cluster_create(p_fleet, p_cluster, v_args, p_now);
    end if;
    select * into v_row from public.cluster_apps c where c.id = p_cluster and c.fleet = p_fleet for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    end if;
    if p_action = 'cluster.delete' then
        return public.internal_cluster_delete(v_row, p_actor, v_args->>'reason', p_now);
    elsif v_row.status in ('deleting', 'deleted', 'failed') then
        perform public.internal_refuse('OR007', format('the cluster %s is %s', p_cluster, v_row.status), '',
            'create another cluster under another name');
    elsif p_action = 'cluster.scale' then
        return public.internal_cluster_scale(v_row, v_args);
    end if;
    return public.internal_cluster_request(v_row, p_actor, substr(p_action, 9), v_args->>'worker', p_now);
end
$$;

-- {outcome: created, cluster}. The name of an ended cluster is free after 30 days, when retention deletes its row.
create or replace function public.internal_cluster_create(
    p_fleet text, p_cluster text, p_args jsonb, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_nodes int := (p_args->>'nodes')::int;
    v_min int := coalesce((p_args->>'min_nodes')::int, v_nodes);
    v_max int := coalesce((p_args->>'max_nodes')::int, v_nodes);
    v_row public.cluster_apps;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    perform public.internal_check_id(p_args->>'pool', 'the pool');
    if coalesce(p_cluster !~ '^[a-z0-9][a-z0-9-]{0,40}$', true) then
        perform public.internal_refuse('OR007', 'the name of the cluster is not valid',
                                       format('got %L', left(p_cluster, 100)),
            'lower-case letters, digits and -, at most 41, the first one a letter or digit');
    end if;
    perform public.internal_cluster_check_size(v_nodes, v_min, v_max);
    begin
        insert into public.cluster_apps (id, fleet, pool, nodes, min_nodes, max_nodes, created_at)
        values (p_cluster, p_fleet, p_args->>'pool', v_nodes, v_min, v_max, p_now) returning * into v_row;
    exception when unique_violation then
        select * into v_row from public.cluster_apps c where c.id = p_cluster;
        if found then
            perform public.internal_refuse('OR007',
                                           format('there is a cluster %s, which is %s', p_cluster, v_row.status),
                'the name of an ended cluster is free after 30 days', 'take another name');
        end if;
        perform public.internal_refuse('OR007', format('the pool %s has a cluster', p_args->>'pool'),
            'a pool has one cluster at a time', 'delete that cluster first, or use another pool');
    end;
    return jsonb_build_object('outcome', 'created', 'now', p_now, 'cluster', to_jsonb(v_row) - 'fleet');
end
$$;

create or replace function public.internal_cluster_check_size(p_nodes int, p_min int, p_max int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if coalesce(p_min < 0 or p_max < 1 or p_max > 64 or p_nodes not between p_min and p_max, true) then
        perform public.internal_refuse('OR007', 'the size of the cluster is not valid',
            format('got %s nodes, at least %s and at most %s', p_nodes, p_min, p_max),
            '0 <= min_nodes <= nodes <= max_nodes <= 64, and max_nodes at least 1');
    end if;
end
$$;

-- {outcome: scaled or already, cluster}. The bounds of a cluster of a fixed size follow its size. A cluster that is
-- starting and gets more nodes has no deadline until the leader sets it: the old one was for fewer nodes.
create or replace function public.internal_cluster_scale(p_row public.cluster_apps, p_args jsonb) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_row public.cluster_apps := p_row;
    v_fixed boolean := p_row.min_nodes = p_row.max_nodes and not p_args ?| array['min_nodes', 'max_nodes'];
begin
    v_row.nodes := coalesce((p_args->>'nodes')::int, p_row.nodes);
    v_row.min_nodes := coalesce((p_args->>'min_nodes')::int,
                                case when v_fixed then v_row.nodes else p_row.min_nodes end);
    v_row.max_nodes := coalesce((p_args->>'max_nodes')::int,
                                case when v_fixed then v_row.nodes else p_row.max_nodes end);
    if not p_args ? 'nodes' then  -- new bounds only
        v_row.nodes := least(greatest(v_row.nodes, v_row.min_nodes), v_row.max_nodes);
    end if;
    perform public.internal_cluster_check_size(v_row.nodes, v_row.min_nodes, v_row.max_nodes);
    if v_row = p_row then
        return jsonb_build_object('outcome', 'already', 'cluster', to_jsonb(p_row) - 'fleet');
    end if;
    if v_row.nodes > p_row.nodes and v_row.status in ('allocating', 'deploying') then
        v_row.deadline_at := null;
        v_row.waiting_for := null;
    end if;
    perform public.internal_cluster_write(v_row);
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('outcome', 'scaled', 'cluster', to_jsonb(v_row) - 'fleet');
end
$$;

-- {outcome: requested or already, status}. The leader drains the members, and ends the cluster when none is left.
create or replace function public.internal_cluster_delete(
    p_row public.cluster_apps, p_actor text, p_reason text, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    if p_row.status in ('deleting', 'deleted', 'failed') then
        return jsonb_build_object('outcome', 'already', 'status', p_row.status);
    end if;
    update public.cluster_apps c
       set status = 'deleting', delete_requested_at = p_now, deadline_at = null, waiting_for = null,
           reason = left(coalesce(nullif(p_reason, ''), format('%s requested it', p_actor)), 500)
     where c.id = p_row.id;
    return jsonb_build_object('outcome', 'requested', 'status', 'deleting');
end
$$;

-- Before a change of a cluster, member, operation or node task: refuses an illegal transition. The trigger's argument
-- is the subject of cluster_transitions.
create or replace function public.internal_cluster_changing() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_first constant jsonb := '{"cluster": "requested", "member": "pending", "operation": "accepted",
                                "node_task": "queued"}';
begin
    if tg_op = 'INSERT' then
        if new.status <> c_first->>tg_argv[0] then
            perform public.internal_refuse(
                'OR007', format('this %s cannot begin as %s', replace(tg_argv[0], '_', ' '), new.status),
                '', format('insert it as %s', c_first->>tg_argv[0]));
        end if;
    elsif not exists (select from public.cluster_transitions t
                       where t.subject = tg_argv[0] and t.from_state = old.status and t.to_state = new.status) then
        perform public.internal_refuse('OR007',
            format('this %s cannot go from %s to %s', replace(tg_argv[0], '_', ' '), old.status, new.status),
            'it is not in cluster_transitions');
    end if;
    new.status_since := public.internal_now();
    return new;
end
$$;

-- After such a change: writes the event, and wakes the leader and the workers whose claims it decides about.
create or replace function public.internal_cluster_changed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_row jsonb := to_jsonb(new);
    v_cluster text := v_row->>case tg_argv[0] when 'cluster' then 'id' else 'cluster' end;
    v_from text;
begin
    if tg_op = 'UPDATE' then
        v_from := old.status;
    end if;
    insert into public.cluster_events (cluster, worker_id, subject, from_state, to_state, reason, at)
    values (v_cluster, case when tg_argv[0] <> 'cluster' then v_row->>'worker_id' end, tg_argv[0], v_from, new.status,
            left(coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand'), 500),
            public.internal_now());
    if tg_argv[0] in ('cluster', 'member') then  -- its controller may claim, or not any more
        perform orchestrator.keep_launch(w.worker) from (
            select c as worker from public.workers c where c.cluster = v_cluster order by c.id) w;
    end if;
    if tg_argv[0] = 'cluster' then
        perform pg_notify('orchestrator_fleet', '');
        perform pg_notify('orchestrator_fleet', m.worker_id) from public.cluster_members m
          where m.cluster = v_cluster and m.role = 'controller' and m.status not in ('removed', 'failed');
    elsif tg_argv[0] = 'member' then
        perform pg_notify('orchestrator_fleet', v_row->>'worker_id');
    end if;
    return null;
end
$$;
