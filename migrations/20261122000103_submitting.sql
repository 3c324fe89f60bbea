-- Submitting leaves to the type's declaration what a task does not say.

create or replace function public.internal_submit(p_tasks jsonb, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_task jsonb;
    v_ref text;
    v_index int := 0;
    v_id uuid;
    v_ids uuid[] := '{}';
    v_new boolean[] := '{}';
    v_keys jsonb := '{}';  -- dedupe key or id in this batch -> the id it stands for
    v_depends uuid[];
    v_rows jsonb[] := '{}';
    v_inserted int;
begin
    for v_task in select value from jsonb_array_elements(p_tasks) loop
        perform public.internal_check_task(v_task, v_index);
        v_id := null;
        if v_task->>'dedupe_key' is not null then
            v_id := (v_keys->>(v_task->>'dedupe_key'))::uuid;
            if v_id is null then
                select t.id into v_id from public.tasks t
                 where t.dedupe_key = v_task->>'dedupe_key' and t.status in ('Queued', 'In Progress');
            end if;
        end if;
        if v_id is null and v_task->>'id' is not null then
            select t.id into v_id from public.tasks t where t.id = (v_task->>'id')::uuid;
            if v_id is null and (v_task->>'id')::uuid = any (v_ids) then
                v_id := (v_task->>'id')::uuid;
            end if;
        end if;
        v_new := v_new || (v_id is null);
        v_id := coalesce(v_id, (v_task->>'id')::uuid, gen_random_uuid());
        v_ids := v_ids || v_id;
        if v_task->>'dedupe_key' is not null then
            v_keys := v_keys || jsonb_build_object(v_task->>'dedupe_key', v_id);
        end if;
        if v_new[v_index + 1] then
            v_depends := '{}';
            for v_ref in select value from jsonb_array_elements_text(coalesce(nullif(v_task->'depends_on', 'null'), '[]')) loop
                v_depends := v_depends || public.internal_reference(v_ref, v_ids, v_index);
            end loop;
            v_rows := v_rows || (jsonb_strip_nulls(v_task - 'params') || jsonb_build_object(
                'id', v_id, 'depends_on', v_depends, 'params', coalesce(nullif(v_task->'params', 'null'), '{}'),
                'at', p_now + v_index * interval '1 microsecond'));  -- claimed in the order of the batch
        end if;
        v_index := v_index + 1;
    end loop;

    insert into public.tasks (id, task_type, params, pool, priority, max_attempts, run_after, depends_on, dedupe_key,
                              timeout_s, created_at, updated_at)
    select (r->>'id')::uuid, r->>'task_type', r->'params', r->>'pool',
           coalesce((r->>'priority')::int, 0), (r->>'max_attempts')::int, (r->>'run_after')::timestamptz,
           array(select jsonb_array_elements_text(r->'depends_on')::uuid), r->>'dedupe_key', (r->>'timeout_s')::numeric,
           (r->>'at')::timestamptz, p_now
      from unnest(v_rows) r
    on conflict do nothing;
    get diagnostics v_inserted = row_count;
    if v_inserted <> cardinality(v_rows) then
        raise exception 'a key was taken meanwhile' using errcode = 'ORBSY';
    end if;
    return jsonb_build_object('tasks', coalesce((
        select jsonb_agg(jsonb_build_object('id', i.id, 'created', i.created) order by i.n)
          from unnest(v_ids, v_new) with ordinality i (id, created, n)), '[]'));
end
$$;
