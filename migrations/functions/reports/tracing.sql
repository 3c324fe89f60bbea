-- The data for the spans of a trace (leader_jobs/traces.py). Attempts that ended after p_cursor {at, task, attempt}
-- (null: in the last ten minutes) and at least p_lag_s ago, when the transactions that began before have ended. In this
-- order, p_limit at most. `previous_end` is the end of the task's attempt before.
create or replace function public.fleet_ended_attempts(
    p_fleet text, p_term bigint, p_cursor jsonb, p_lag_s numeric, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_at timestamptz := coalesce((p_cursor->>'at')::timestamptz, v_now - interval '10 minutes');
    v_until timestamptz := v_now - p_lag_s * interval '1 second';
    v_attempts jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_ended_attempts');
    with ended as materialized (
        select a.* from orchestrator.attempts a
         where a.ended_at >= v_at and a.ended_at <= v_until
           and (a.ended_at, a.task_id, a.attempt)
               > (v_at, coalesce((p_cursor->>'task')::uuid, '00000000-0000-0000-0000-000000000000'),
                  coalesce((p_cursor->>'attempt')::int, 0))
         order by a.ended_at, a.task_id, a.attempt limit least(greatest(p_limit, 1), 1000)
    )
    select coalesce(jsonb_agg(jsonb_build_object(
               'task_id', e.task_id, 'attempt', e.attempt, 'started_at', e.started_at, 'ended_at', e.ended_at,
               'outcome', e.outcome, 'failure_code', e.failure_code, 'exit_class', e.exit_class,
               'worker_id', e.worker_id, 'gpu_type', w.gpu_type, 'is_ours', w.id is not null and t.id is not null,
               'task_type', t.task_type, 'pool', t.pool, 'created_at', t.created_at,
               'traceparent', case when public.internal_traceparent_problem(t.traceparent) is null
                                   then t.traceparent end,
               'run_after', t.run_after, 'previous_end', p.ended_at,
               'upload_started_at', e.upload_started_at, 'upload_ended_at', e.upload_ended_at)
               order by e.ended_at, e.task_id, e.attempt), '[]')
      into v_attempts
      from ended e
      left join public.tasks t on t.id = e.task_id
      left join public.workers w on w.id = e.worker_id and w.fleet = p_fleet
      left join lateral (select b.ended_at from orchestrator.attempts b
                          where b.task_id = e.task_id and b.attempt < e.attempt
                          order by b.attempt desc limit 1) p on true;
    return jsonb_build_object('attempts', v_attempts);
end
$$;
