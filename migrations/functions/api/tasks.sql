-- task_*: submit, cancel and retry tasks.

create or replace function public.task_submit(p_tasks jsonb, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_batch constant int := 2000;
    c_tries constant int := 5;
    v_now timestamptz := public.internal_clock(p_now);
    v_constraint text;
begin
    if p_tasks is null or jsonb_typeof(p_tasks) <> 'array' or jsonb_array_length(p_tasks) > c_batch then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of tasks', '',
                                       format('at most %s at once', c_batch));
    end if;
    for v_try in 1..c_tries loop
        begin
            return public.internal_submit(p_tasks, v_now);
        exception
            when sqlstate 'ORBSY' then  -- the other submission has committed: now its task is found
                continue;
            when unique_violation then
                get stacked diagnostics v_constraint = constraint_name;
                if v_constraint <> 'live_dedupe' then
                    raise;
                end if;
        end;
    end loop;
    perform public.internal_refuse('OR002', 'the same keys are being submitted and ended by others all the time');
    return null;
end
$$;

create or replace function public.task_cancel(p_id uuid, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    perform from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found', 'status', null);
    end if;
    v_task := orchestrator.current_task(p_id);
    if v_task.status = 'Queued' and not exists (
           select from orchestrator.live q where q.task_id = p_id and q.state = 'running') then
        perform orchestrator.enter_users_path();
        update public.tasks t  -- as a publication shows an end
           set status = 'Cancelled', cancel_requested_at = v_now, updated_at = v_now, generation_processed_at = v_now
         where t.id = p_id;
        return jsonb_build_object('outcome', 'cancelled', 'status', 'Cancelled');
    elsif v_task.status in ('Queued', 'In Progress') then  -- the next heartbeat's answer tells its agent
        perform orchestrator.enter_users_path();
        update public.tasks t set cancel_requested_at = v_now where t.id = p_id and t.cancel_requested_at is null;
        return jsonb_build_object('outcome', 'cancelling', 'status', 'In Progress');
    end if;
    return jsonb_build_object('outcome', 'already', 'status', v_task.status);
end
$$;

-- Queues a failed or cancelled task again with a full set of attempts, and the tasks that failed only because of it.
create or replace function public.task_retry(p_id uuid, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    v_ids uuid[];
    v_constraint text;
begin
    perform from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    end if;
    v_task := orchestrator.current_task(p_id);
    if v_task.status not in ('Failed', 'Cancelled') then
        return jsonb_build_object('outcome', 'not_ended', 'status', v_task.status);
    end if;
    v_ids := array(select t.id from public.tasks t
                    where t.id = any (orchestrator.failed_dependants(p_id)) order by t.id for no key update);
    delete from orchestrator.publications p where p.task_id = any (v_ids);
    perform orchestrator.enter_users_path();
    update public.tasks t
       set status = 'Queued', attempts = 0, run_after = null, worker_id = null, cancel_requested_at = null,
           error_message = null, failure_code = null, failed_at_point = null, progress = null, updated_at = v_now,
           generation_processed_at = null
     where t.id = any (v_ids);
    return jsonb_build_object('outcome', 'requeued', 'tasks', to_jsonb(v_ids));
exception when unique_violation then
    get stacked diagnostics v_constraint = constraint_name;
    if v_constraint <> 'live_dedupe' then
        raise;
    end if;
    perform public.internal_refuse('OR007', 'a task with the same dedupe_key is already queued or running',
        format('dedupe_key %L', v_task.dedupe_key), 'wait for that one, or cancel it');
    return null;
end
$$;
