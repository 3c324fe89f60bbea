-- What is wrong with tasks, for the conditions of a fleet.

-- Tasks that were lost with a worker since p_since, the newest first. `workers`: how many a task has ended since p_all.
-- Its settings, because callers switch off sorts and nested loops.
create or replace function public.internal_lost_tasks(
    p_fleet text, p_since timestamptz, p_all timestamptz, p_limit int
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = on set enable_nestloop = on set enable_sort = on set jit = off as $$
#variable_conflict use_variable
begin
    return coalesce((  -- without a failure code, a user has queued the task again, and its worker was not lost
        select jsonb_agg(to_jsonb(l.*) order by l.last_at desc, l.task_id)
          from (select a.task_id, t.task_type, coalesce(p.status, t.status::text) as status,
                       count(distinct a.worker_id) as workers, max(a.ended_at) as last_at,
                       (array_agg(a.worker_id order by a.ended_at desc))[1] as worker_id,
                       (array_agg(w.exit_cause order by a.ended_at desc))[1] as exit_cause,
                       (array_agg(coalesce(w.failure_code, a.failure_code) order by a.ended_at desc))[1] as code,
                       (array_agg(w.metadata -> 'last_snapshot' order by a.ended_at desc))[1] as look
                  from (select n.task_id
                          from (select * from orchestrator.attempts b
                                 where b.outcome = 'lost' and b.failure_code is not null and b.ended_at > p_since
                                offset 0) n
                          join public.workers w on w.id = n.worker_id and w.fleet = p_fleet
                         group by n.task_id order by max(n.ended_at) desc limit p_limit) r
                 -- by its key, each
                 cross join lateral (select * from orchestrator.attempts k where k.task_id = r.task_id offset 0) a
                  join public.workers w on w.id = a.worker_id and w.fleet = p_fleet
                 cross join lateral (select * from public.tasks k where k.id = a.task_id offset 0) t
                  left join orchestrator.publications p on p.task_id = t.id and p.no > t.published
                 where a.outcome = 'lost' and a.failure_code is not null and a.ended_at > p_all
                 group by a.task_id, t.task_type, 3) l), '[]');
end
$$;

-- Tasks whose row has not shown for more than 10 s how they ended, or that they are queued again, because a trigger, a
-- constraint or a lock of a user keeps it from that, by pool and error. It counts 10,000 of them at most.
create or replace function public.internal_unpublished_tasks(p_now timestamptz, p_limit int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return coalesce((
        select jsonb_agg(to_jsonb(f.*) order by f.n desc, f.pool, f.reason)
          from (select orchestrator.pool_of(t.*) as pool, left(r.reason, 500) as reason, count(*) as n,
                       (array_agg(r.task_id order by r.at, r.task_id))[1] as task_id, min(r.at) as since
                  from (select * from orchestrator.publications f order by f.retry_at limit 10000) r
                 cross join lateral (select * from public.tasks k
                                      where k.id = r.task_id and k.published < r.no offset 0) t
                 where r.reason is not null and r.at < p_now - interval '10 seconds'
                 group by 1, 2 order by 3 desc, 1, 2 limit p_limit) f), '[]');
end
$$;

-- Tasks that failed for good within a quarter of an hour, by type and code, if more than half of all attempts that
-- ended in this time failed. OrchestratorTasksFail in ops/alerts.yml has the same bound.
create or replace function public.internal_failing_tasks(p_now timestamptz, p_limit int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = on set enable_sort = on set jit = off as $$
#variable_conflict use_variable
declare
    v_since timestamptz := p_now - interval '15 minutes';
    c_most constant int := 100000;  -- attempts that are counted
    c_newest constant int := 1000;  -- failed attempts whose tasks are read
begin
    if (select coalesce(count(*) filter (where a.outcome = 'failed')
                        <= count(*) filter (where a.outcome = 'complete'), true)
          from (select b.outcome from orchestrator.attempts b where b.ended_at > v_since
                 order by b.ended_at desc limit c_most) a) then
        return '[]';
    end if;
    return coalesce((
        select jsonb_agg(to_jsonb(f.*) order by f.n desc, f.task_type, f.code)
          from (select t.task_type, t.failure_code as code, count(*) as n, max(t.updated_at) as last_at,
                       (array_agg(t.id order by t.updated_at desc))[1] as last_task,
                       left((array_agg(t.error_message order by t.updated_at desc))[1], 500) as message,
                       0 as no_segments
                  from (select a.task_id from orchestrator.attempts a
                         where a.outcome = 'failed' and a.ended_at > v_since
                         order by a.ended_at desc limit c_newest) r
                 cross join lateral orchestrator.current_task(r.task_id) t
                 where t.status = 'Failed' group by t.task_type, t.failure_code
                 order by 3 desc limit p_limit) f), '[]');
end
$$;

-- Stages at which bring-ups failed within a quarter of an hour, in the form of fleet_report's list: of the newest
-- workers that were promoted or ended then, and of those that are on their way.
create or replace function public.internal_failed_bringups(p_fleet text, p_now timestamptz, p_limit int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    v_since timestamptz := p_now - interval '15 minutes';
    c_workers constant int := 100;
    c_newest constant int := 50;  -- attempts of one worker
begin
    return coalesce((
        with recent as (
            (select w.id, w.pool from public.workers w where w.fleet = p_fleet and w.bringup_ended_at > v_since
              order by w.bringup_ended_at desc limit c_workers)
            union
            (select w.id, w.pool from public.workers w
              where w.fleet = p_fleet and w.status <> 'terminated' and w.promoted_at is null
              order by w.id limit c_workers)
        ), attempts as (
            select a.*, l.pool from recent l
             cross join lateral (select b.* from public.worker_attempts b where b.worker_id = l.id
                                  order by b.id desc limit c_newest) a
             where a.ended_at > v_since
        )
        select jsonb_agg(to_jsonb(f.*) order by f.n desc, f.code)
          from (select coalesce(a.failure_code, 'UNKNOWN') as code, a.stage, a.pool,
                       upper(a.evidence ->> 'cause') as cause, count(*) as n, count(distinct a.worker_id) as workers,
                       max(a.ended_at) as last_at, (array_agg(a.evidence order by a.ended_at desc))[1] as evidence,
                       (select max(o.ended_at) from attempts o
                         where o.pool = a.pool and o.stage = a.stage and o.outcome = 'ok') as ok_at
                  from attempts a where a.outcome in ('failed', 'timeout', 'lost')
                 group by 1, 2, 3, 4 order by 5 desc limit p_limit) f), '[]');
end
$$;

-- What the leader asks once a minute: tasks without a handler among the first of each pool, those that wait for another
-- attempt included, tasks that cannot show how they ended, and what was lost or failed within a quarter of an hour.
-- p_handled: a list of the types that have a handler; empty if that is not known. Bounded, however long the queue is.
create or replace function public.fleet_task_troubles(p_fleet text, p_handled jsonb, p_now timestamptz default null)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_head constant int := 500;  -- tasks of a pool
    c_rows constant int := 50;  -- of each list
begin
    return (
        with waiting as (
            select h.pool, h.task_type, count(*) as n, count(*) filter (where h.is_ready) as ready
              from orchestrator.queue_heads(v_now, c_head) h
             where jsonb_array_length(p_handled) > 0 and not p_handled ? h.task_type
             group by 1, 2 order by 3 desc, 2 limit c_rows
        )
        select jsonb_build_object(
            'waiting_types', coalesce((select jsonb_agg(to_jsonb(w.*) order by w.n desc, w.pool, w.task_type)
                                         from waiting w), '[]'),
            'unpublished_tasks', public.internal_unpublished_tasks(v_now, c_rows),
            'schema_problems', public.fleet_schema_problems()->'problems',
            'webhooks', public.internal_webhook_troubles(v_now),
            'schedules', public.internal_schedule_troubles(v_now, c_rows),
            'clusters', public.internal_cluster_troubles(p_fleet, v_now, c_rows),
            'lost_tasks', public.internal_lost_tasks(
                p_fleet, v_now - interval '15 minutes', v_now - interval '24 hours', c_rows),
            'failed_tasks', public.internal_failing_tasks(v_now, c_rows),
            'failed_bringups', public.internal_failed_bringups(p_fleet, v_now, c_rows)));
end
$$;

-- The newest attempts of a day that failed or were lost, one of each task, with what their tasks do now. p_pools: only
-- of tasks of these pools, whose workers were of these as well; null for any. `looked_at` says how many were read, at
-- most 2,000: beyond them there may be more.
create or replace function public.fleet_failures(
    p_fleet text, p_pools jsonb, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_since timestamptz := public.internal_clock(p_now) - interval '1 day';
    v_most int := least(greatest(p_limit, 1), 100);
    c_looked_at constant int := 2000;
    v_one record;
    v_task public.tasks;
    v_seen uuid[] := '{}';
    v_found jsonb := '[]';
    v_looked_at int := 0;
begin
    for v_one in
        select a.task_id, a.attempt, a.worker_id, a.ended_at, a.failure_code, a.message, w.fleet, w.pool
          from (select b.* from orchestrator.attempts b
                 where b.outcome in ('failed', 'lost') and b.ended_at > v_since
                 order by b.ended_at desc limit c_looked_at) a
          left join lateral (select k.fleet, k.pool from public.workers k where k.id = a.worker_id offset 0) w on true
         order by a.ended_at desc
    loop
        v_looked_at := v_looked_at + 1;
        continue when v_one.fleet is distinct from p_fleet or v_one.task_id = any (v_seen)
                      or (p_pools is not null and not p_pools ? v_one.pool);
        v_seen := v_seen || v_one.task_id;
        v_task := orchestrator.current_task(v_one.task_id);
        continue when v_task.id is null or (p_pools is not null and not p_pools ? orchestrator.pool_of(v_task));
        v_found := v_found || jsonb_build_object(
            'task_id', v_one.task_id, 'attempt', v_one.attempt, 'worker_id', v_one.worker_id, 'pool', v_one.pool,
            'at', v_one.ended_at, 'task_type', v_task.task_type, 'status', v_task.status,
            'code', left(v_one.failure_code, 100), 'message', left(v_one.message, 200));
        exit when jsonb_array_length(v_found) >= v_most;
    end loop;
    return jsonb_build_object('failures', v_found, 'looked_at', v_looked_at, 'is_all', v_looked_at < c_looked_at);
end
$$;
