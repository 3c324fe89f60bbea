-- What one answer to a claim may hold. An agent reads a bounded number of bytes and JSON values, and they are built in
-- time.

-- The type of a result cannot be replaced.
drop function if exists orchestrator.keep_fitting(orchestrator.launches, uuid[]);

-- Returns those of these taken tasks that fit into one answer, in their order; null for none. The others are ready
-- again. A task that fits into no answer, or into no cluster of its pool, waits until maintenance ends it (end_unfit).
create or replace function orchestrator.keep_fitting(p_launch orchestrator.launches, p_ids uuid[]) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_time constant interval := '5 seconds';
    v_task record;
    v_inputs record;
    v_share double precision := 0;
    v_kept uuid[];
    v_back uuid[] := '{}';
    v_unfit uuid[] := '{}';
begin
    for v_task in
        select q.task_id as id, q.is_heavy or q.has_needs or p_launch.cluster is not null as is_odd
          from orchestrator.live q where q.task_id = any (p_ids) order by array_position(p_ids, q.task_id)
    loop
        if v_task.is_odd and v_back = '{}' then
            v_inputs := orchestrator.inputs_size(v_task.id, p_launch.cluster);
            if v_inputs.code is not null then
                v_unfit := v_unfit || v_task.id;
                continue;
            end if;
            v_share := v_share + v_inputs.share;
        end if;
        if v_share > 1 or v_kept is not null and clock_timestamp() > statement_timestamp() + c_time then
            v_back := v_back || v_task.id;
        else
            v_kept := v_kept || v_task.id;
        end if;
    end loop;
    with back as (
        update orchestrator.live q
           set state = case when q.task_id = any (v_unfit) then 'waits_for_tasks'
                            else 'ready' end::orchestrator.task_state,
               attempt = q.attempt - 1, shown = 0, worker_id = null, nonce = null, claim_no = null, claimed_at = null,
               attempts_shown = (select coalesce(t.attempts, 0) from public.tasks t where t.id = q.task_id),
               progress_at = null, lease_expires_at = null, log_first = null
         where q.task_id = any (v_back || v_unfit)
        returning q.task_id, q.state, q.pool, q.place, q.turn, q.created_at, q.concurrency_key, q.task_type,
                  q.type_limited
    ), marked as (
        insert into orchestrator.marks (pool, place, turn, created_at, task_id)
        select b.pool, min(b.place), min(b.turn), min(b.created_at), '00000000-0000-0000-0000-000000000000'
          from back b where b.state = 'ready' group by b.pool
    )
    insert into orchestrator.rechecks (kind, name)
    select r.kind, r.name from back b
     cross join lateral (values ('unfit', b.task_id::text), ('key', b.concurrency_key),
                                ('type', case when b.type_limited then b.task_type end)) r (kind, name)
     where b.state <> 'ready' and r.name is not null;
    return v_kept;
end
$$;

-- How much of one answer a task's inputs take, or why no worker can get it (code and sentence): they are more than one
-- answer may hold, or this cluster (null: none) is too small. It stops where a limit is exceeded, so its cost is
-- bounded too.
create or replace function orchestrator.inputs_size(
    p_task_id uuid, p_cluster text, out share double precision, out code text, out message text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_bytes constant double precision := 33554432;
    c_values constant double precision := 500000;  -- and keys: each costs an agent a hundred bytes of memory
    c_frame_bytes constant int := 150;  -- of a dependency's id and of the keys
    c_frame_values constant int := 10;
    c_needs constant int := 10000;
    v_nodes constant int := (select c.max_nodes from public.cluster_apps c where c.id = p_cluster);
    v_task record;
    v_input record;
    v_text text;
    v_bytes bigint := 0;
    v_values bigint := 0;
begin
    select t.params, orchestrator.needs(t.*) as depends_on into v_task from public.tasks t where t.id = p_task_id;
    if public.internal_nodes_of(v_task.params) > v_nodes then
        code := 'SLURM_TOO_LARGE';
        message := format('It asks for %s nodes, and cluster %s may have %s',
                          public.internal_nodes_of(v_task.params), p_cluster, v_nodes);
        return;
    elsif cardinality(v_task.depends_on) > c_needs then  -- written while the triggers were off
        code := 'INPUTS_TOO_LARGE';
        message := format('It depends on %s tasks, and the limit is %s', cardinality(v_task.depends_on), c_needs);
        return;
    end if;
    for v_input in
        select v_task.params as value, 0 as frame_bytes
        union all
        select r.result_data, c_frame_bytes + coalesce(octet_length(r.output_location), 0)
               + coalesce(octet_length(r.task_type), 0)
          from (select distinct u.id from unnest(v_task.depends_on) u (id)) n
         cross join lateral orchestrator.result_of(n.id) r
    loop
        v_text := coalesce(v_input.value::text, 'null');
        v_bytes := v_bytes + octet_length(v_text) + v_input.frame_bytes;
        v_values := v_values + c_frame_values + public.internal_json_values(v_text);
        share := greatest(v_bytes / c_bytes, v_values / c_values);
        if share > 1 then
            code := 'INPUTS_TOO_LARGE';
            message := format('Its params and the results of the %s tasks that it depends on are more than %s',
                              cardinality(v_task.depends_on),
                              case when v_bytes > c_bytes then format('%s MiB', c_bytes / 1048576)
                                   else format('%s JSON values and keys', c_values) end);
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
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s',
                      sqlerrm);
end
$$;

-- The result of a Complete task, also of one that was deleted since, or that `tasks` does not show yet.
create or replace function orchestrator.result_of(
    p_id uuid, out task_type text, out output_location text, out result_data jsonb, out output_object jsonb
)
returns setof record
language sql stable security definer set search_path = pg_catalog, pg_temp rows 1 as $$
    select t.task_type, coalesce(p.output_location, case when p.task_id is null then t.output_location end),
           case when p.task_id is null then t.result_data else p.result_data end,
           case when p.task_id is null then t.output_object else p.output_object end
      from public.tasks t left join orchestrator.publications p on p.task_id = t.id
     where t.id = result_of.p_id
    union all
    select r.task_type, r.output_location, r.result_data, r.output_object from public.task_results r
     where r.id = result_of.p_id and not exists (select from public.tasks t where t.id = result_of.p_id)
$$;
