-- What one answer to a claim may hold. An agent reads a bounded number of bytes and JSON values, and they are built in time.

-- Keeps those of these taken tasks that fit into one answer, in their order, and puts the others back. A task that fits into
-- no answer, or into no cluster of its pool, ends as Failed.
create or replace function orchestrator.keep_fitting(
    p_launch orchestrator.launches, p_ids uuid[], out ids uuid[], out attempts int[]
)
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_bytes constant int := 33554432;
    c_values constant int := 500000;  -- and keys: each costs an agent a hundred bytes of memory
    c_time constant interval := '5 seconds';
    v_nodes int := (select coalesce(c.max_nodes, 64) from public.cluster_apps c where c.id = p_launch.cluster);
    v_task record;
    v_inputs record;
    v_bytes bigint := 0;
    v_values bigint := 0;
    v_back uuid[] := '{}';
begin
    for v_task in
        select q.task_id, q.attempt, q.is_heavy or q.has_needs as is_heavy,
               case when v_nodes is not null then (
                   select public.internal_nodes_of(t.params) from public.tasks t where t.id = q.task_id) end as nodes
          from orchestrator.live q where q.task_id = any (p_ids) order by array_position(p_ids, q.task_id)
    loop
        if cardinality(v_back) > 0 or ids is not null and clock_timestamp() > statement_timestamp() + c_time then
            v_back := v_back || v_task.task_id;
            continue;
        end if;
        if v_task.nodes > v_nodes then
            perform orchestrator.end_unclaimable(orchestrator.untaken(v_task.task_id), 'SLURM_TOO_LARGE', format(
                'It asks for %s nodes, and cluster %s may have %s', v_task.nodes, p_launch.cluster, v_nodes));
            continue;
        end if;
        if v_task.is_heavy then
            v_inputs := orchestrator.inputs_size(v_task.task_id, c_bytes, c_values);
            if v_inputs.code is not null then
                perform orchestrator.end_unclaimable(orchestrator.untaken(v_task.task_id), v_inputs.code, v_inputs.message);
                continue;
            end if;
            v_bytes := v_bytes + v_inputs.bytes;
            v_values := v_values + v_inputs.json_values;
            if v_bytes > c_bytes or v_values > c_values then
                v_back := v_back || v_task.task_id;
                continue;
            end if;
        end if;
        ids := ids || v_task.task_id;
        attempts := attempts || v_task.attempt;
    end loop;
    if v_back <> '{}' then
        update orchestrator.live q
           set state = 'ready', attempt = q.attempt - 1, shown = 0, worker_id = null, nonce = null, claim_no = null,
               claimed_at = null, progress_at = null, lease_expires_at = null, log_first = null
         where q.task_id = any (v_back);
        insert into orchestrator.marks (pool, place, turn, created_at, task_id)
        select q.pool, min(q.place), min(q.turn), min(q.created_at), '00000000-0000-0000-0000-000000000000'
          from orchestrator.live q where q.task_id = any (v_back) group by q.pool;
    end if;
end
$$;

-- A taken task as it was before.
create or replace function orchestrator.untaken(p_id uuid) returns orchestrator.live
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_task orchestrator.live;
begin
    select * into v_task from orchestrator.live q where q.task_id = p_id;
    v_task.attempt := v_task.attempt - 1;
    v_task.shown := 0;
    return v_task;
end
$$;

-- Ends a locked task that no worker can get. What follows for others is left to the leader.
create or replace function orchestrator.end_unclaimable(p_task orchestrator.live, p_code text, p_message text) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    perform orchestrator.leave(array[p_task.task_id]);
    perform orchestrator.publish_later(
        array[orchestrator.end_without_run(p_task, 'Failed', p_code, p_message, 'Claiming')], null);
    insert into orchestrator.rechecks (kind, name) values ('ended', p_task.task_id::text);
end
$$;

-- Returns why a task's inputs cannot be given to a worker (code and sentence), or their size in the answer to a claim. It
-- stops where they exceed a limit, so its cost is bounded too.
create or replace function orchestrator.inputs_size(
    p_task_id uuid, p_limit_bytes int, p_limit_values int, out bytes bigint, out json_values bigint, out code text,
    out message text
)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_frame_bytes constant int := 150;  -- of a dependency's id and of the keys
    c_frame_values constant int := 10;
    v_depends uuid[];
    v_input record;
    v_text text;
begin
    bytes := 0;
    json_values := 0;
    select orchestrator.needs(t.*) into v_depends from public.tasks t where t.id = p_task_id;
    for v_input in
        select t.params as value, 0 as frame_bytes from public.tasks t where t.id = p_task_id
        union all
        select r.result_data, c_frame_bytes + coalesce(octet_length(r.output_location), 0)
               + coalesce(octet_length(r.task_type), 0)
          from (select distinct u.id from unnest(v_depends) u (id)) n cross join lateral orchestrator.result_of(n.id) r
    loop
        v_text := coalesce(v_input.value::text, 'null');
        bytes := bytes + octet_length(v_text) + v_input.frame_bytes;
        json_values := json_values + c_frame_values + public.internal_json_values(v_text);
        if bytes > p_limit_bytes or json_values > p_limit_values then
            code := 'INPUTS_TOO_LARGE';
            message := format('Its params and the results of the %s tasks that it depends on are more than %s',
                              cardinality(v_depends),
                              case when bytes > p_limit_bytes then format('%s MiB', p_limit_bytes / 1048576)
                                   else format('%s JSON values and keys', p_limit_values) end);
            return;
        elsif public.internal_is_unreadable(v_input.value) then
            code := 'INPUTS_UNREADABLE';
            message := 'Its params or the results of the tasks that it depends on are nested deeper than 64 levels, '
                       'or have a number of more than 4000 digits';
            return;
        end if;
    end loop;
exception when program_limit_exceeded or statement_too_complex or numeric_value_out_of_range then
    code := 'INPUTS_TOO_LARGE';
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s', sqlerrm);
end
$$;

-- The results that a task needs, in the order of depends_on.
create or replace function orchestrator.inputs(p_ids uuid[]) returns json
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return (
        select coalesce(json_agg(json_build_object('id', n.id, 'task_type', r.task_type, 'output_location', r.output_location,
                                                   'result_data', r.result_data) order by n.place), '[]')
          from (select u.id, min(u.place) as place from unnest(p_ids) with ordinality u (id, place) group by u.id) n
         cross join lateral orchestrator.result_of(n.id) r);
end
$$;

-- The result of a Complete task, also of one that was deleted since, or that `tasks` does not show yet.
create or replace function orchestrator.result_of(
    p_id uuid, out task_type text, out output_location text, out result_data jsonb, out output_object jsonb
)
returns setof record
language sql stable security definer set search_path = '' rows 1 as $$
    select t.task_type, coalesce(p.output_location, case when p.task_id is null then t.output_location end),
           case when p.task_id is null then t.result_data else p.result_data end,
           case when p.task_id is null then t.output_object else p.output_object end
      from public.tasks t left join orchestrator.publications p on p.task_id = t.id
     where t.id = result_of.p_id
    union all
    select r.task_type, r.output_location, r.result_data, r.output_object from public.task_results r
     where r.id = result_of.p_id and not exists (select from public.tasks t where t.id = result_of.p_id)
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
