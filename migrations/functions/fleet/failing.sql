-- How a worker fails a task, and what that says about the worker.

create or replace function public.worker_fail(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_failure jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_is_unable boolean := coalesce(p_failure->>'code' = 'NO_HANDLER', false);
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
    v_held record;
    v_task orchestrator.live;
    v_worker public.workers;
    v_release text;
    v_outcome text;
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_held := orchestrator.hold(v_launch, p_nonce, p_task_id, p_attempt,
        array['failed', 'cancelled'] || case when v_is_unable then array['released'] end);
    if v_held.outcome <> 'held' then
        return jsonb_build_object('outcome', v_held.outcome);
    end if;
    v_task := v_held.task;
    select * into v_worker from public.workers w where w.id = p_worker_id for no key update;
    if v_is_unable then
        v_release := public.internal_replacing_release(v_worker, v_task.task_type, v_now);
    end if;
    if v_release is not null then
        v_outcome := orchestrator.fail_as_earlier(v_worker, v_task, p_failure, v_release, v_now);
        return jsonb_build_object('outcome', v_outcome);
    end if;
    v_outcome := orchestrator.give_up(v_task, 'failed', coalesce(p_failure, '{}'), true, true, v_now);
    perform public.internal_hold_back(v_worker, v_now);
    return jsonb_build_object('outcome', v_outcome);
end
$$;

-- The declared release has a handler for a task, and the earlier release of the worker has none: the task waits for a
-- worker of the declared release. If there is one, the task is ready at once, and this worker is drained.
create or replace function orchestrator.fail_as_earlier(
    p_worker public.workers, p_task orchestrator.live, p_failure jsonb, p_release text, p_now timestamptz
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_wait_s constant int := 60;  -- doubles up to ten times; ends when the first of that release is promoted
    v_is_here boolean := public.internal_is_here(p_worker.fleet, p_worker.pool, p_release);
    v_outcome text;
begin
    v_outcome := orchestrator.give_up(p_task, 'released', p_failure || jsonb_build_object(
        'code', 'EARLIER_RELEASE',
        'message', format('Worker %s is of an earlier release, %s, which has no handler for %s; %s has one',
                          p_worker.id, p_worker.release, p_task.task_type, p_release)), false, false, p_now,
        case when not v_is_here then (c_wait_s * least(2 ^ least(p_task.uncounted, 4), 10))::numeric end);
    update public.workers w
       set metadata = w.metadata || jsonb_build_object('lacks', p_task.task_type),
           drain_requested_at = case when v_is_here then coalesce(w.drain_requested_at, p_now)
                                     else w.drain_requested_at end
     where w.id = p_worker.id;
    perform pg_notify('orchestrator_fleet', p_worker.id);
    return v_outcome;
end
$$;
