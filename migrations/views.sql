-- Views for dashboards, under the names that operators' dashboards use. grants.sql grants them to service_role only.
-- Most read with the rights of the caller (security_invoker); two read the queue's tables, to which only the owner has
-- rights. No code of this project reads them: a view cannot carry settings as a function can.
--
-- A project's own view of the same name is dropped, or renamed if something depends on it. The same applies to an
-- earlier text of ours.
do $$
declare
    v_name text;
    v_ours constant boolean := exists (select from public.schema_migrations m
                                        where m.version ~ E'^(views\\.sql|\\d{14})$');
begin
    foreach v_name in array array['orchestrator_status', 'active_workers_health', 'recent_task_activity',
                                  'worker_performance', 'task_queue_analysis', 'recent_errors'] loop
        if exists (select from pg_catalog.pg_class c
                    where c.oid = to_regclass('public.' || v_name) and c.relkind = 'v') then
            begin
                execute format('drop view public.%I', v_name);
                if not v_ours then
                    raise notice 'the view % is now this system''s', v_name using errcode = 'OR100';
                end if;
            exception when dependent_objects_still_exist then
                execute format('alter view public.%I rename to %I', v_name, v_name || '_before');
                raise notice 'the view % was in use; it is now %_before', v_name, v_name using errcode = 'OR100';
            end;
        end if;
    end loop;
end
$$;

-- Attempts that have ended are rows of orchestrator.attempts; of a running one, the row of `live` has everything. The
-- state before the queue had them in public.task_attempts.
do $$
declare
    v_name name;
begin
    if exists (select from pg_catalog.pg_class c
                where c.oid = to_regclass('public.task_attempts') and c.relkind = 'r') then
        lock table public.tasks in access exclusive mode;  -- calls of the state before lock it first, too
        for v_name in select g.tgname from pg_catalog.pg_trigger g
                       where g.tgrelid = 'public.task_attempts'::regclass and not g.tgisinternal loop
            execute format('drop trigger %I on public.task_attempts', v_name);
        end loop;
        for v_name in select c.conname from pg_catalog.pg_constraint c
                       where c.conrelid = 'public.task_attempts'::regclass and c.contype = 'c' loop
            execute format('alter table public.task_attempts drop constraint %I', v_name);
        end loop;
        drop table orchestrator.attempts;  -- without rows
        alter table public.task_attempts
            add column if not exists uncounted int not null default 0, add column if not exists run_after timestamptz;
        alter table public.task_attempts set schema orchestrator;
        alter table orchestrator.task_attempts rename to attempts;
        alter index orchestrator.task_attempts_pkey rename to attempts_pkey;
        alter index orchestrator.task_attempts_claim rename to attempts_claim;
        alter index orchestrator.task_attempts_worker rename to attempts_worker;
        alter index orchestrator.task_attempts_started rename to attempts_started;
        alter index orchestrator.task_attempts_ended rename to attempts_ended;
    end if;
end
$$;

-- All attempts, as users and reports read them.
create or replace view public.task_attempts as
select a.task_id, a.attempt, a.worker_id, a.nonce, a.claim_no, a.started_at, a.ended_at, a.outcome, a.failure_code,
       a.exit_class, a.failed_at_point, a.message, a.detail, a.log_first, a.log_last, a.given_back, a.permanent,
       a.upload_started_at, a.upload_ended_at
  from orchestrator.attempts a where a.ended_at is not null
union all
select q.task_id, q.attempt, q.worker_id, q.nonce, q.claim_no, q.claimed_at, null, null, null, null, null, null, null,
       q.log_first, null, null, null, null, null
  from orchestrator.live q where q.state = 'running' and q.nonce is not null;

-- One row: the queue, the workers, the leader, the cost per hour. If workers have no known price (unpriced_workers),
-- they cost more than usd_per_hour says.
create view public.orchestrator_status as
select t.queued_tasks, t.claimable_tasks, t.blocked_tasks, t.in_progress_tasks, t.completed_tasks, t.failed_tasks,
       t.cancelled_tasks, w.spawning_workers, w.active_workers, w.idle_workers, w.terminating_workers, w.total_workers,
       w.stale_workers, t.stuck_tasks, w.usd_per_hour, w.unpriced_workers,
       (select string_agg(l.fleet || ': ' || l.holder, ', ' order by l.fleet) from public.fleet_lease l
         where l.expires_at > now()) as leader,
       now() as snapshot_time
  from (select count(*) filter (where t.status::text = 'Queued') as queued_tasks,
               count(*) filter (where q.state = 'ready'
                                   or q.state = 'waits_for_time' and q.run_after <= now()) as claimable_tasks,
               count(*) filter (where q.state in ('waits_for_tasks', 'waits_for_key', 'waits_for_type'))
                   as blocked_tasks,
               count(*) filter (where t.status::text = 'In Progress') as in_progress_tasks,
               count(*) filter (where t.status::text = 'Complete') as completed_tasks,
               count(*) filter (where t.status::text = 'Failed') as failed_tasks,
               count(*) filter (where t.status::text = 'Cancelled') as cancelled_tasks,
               count(*) filter (where q.state = 'running' and q.lease_expires_at < now()) as stuck_tasks
          from public.tasks t left join orchestrator.live q on q.task_id = t.id) t,
       (select count(*) filter (where w.status = 'spawning') as spawning_workers,
               count(*) filter (where w.status = 'active') as active_workers,
               count(*) filter (where w.status = 'idle') as idle_workers,
               count(*) filter (where w.status = 'terminating') as terminating_workers,
               count(*) as total_workers,
               count(*) filter (where w.status in ('active', 'idle')
                   and coalesce(w.last_heartbeat, w.state_since) < now() - interval '10 minutes') as stale_workers,
               coalesce(sum(w.price_usd_per_hour) filter (where w.pod_id is not null), 0) as usd_per_hour,
               count(*) filter (where w.pod_id is not null and w.price_usd_per_hour is null) as unpriced_workers
          from public.workers w where w.status <> 'terminated') w;

-- A row for each live worker: its state and its work.
create view public.active_workers_health with (security_invoker = true) as
select w.id, w.fleet, w.pool, w.instance_type, w.gpu_type, w.status, w.stage, w.pod_id, w.created_at, w.last_heartbeat,
       extract(epoch from now() - w.last_heartbeat) as heartbeat_age_seconds,
       extract(epoch from now() - w.state_since) as state_age_seconds,
       w.waiting_on, w.waiting_for, w.deadline_at,
       g.total as vram_total_mb, g.used as vram_used_mb,
       case when g.total > 0 then round(g.used * 100 / g.total, 1) end as vram_usage_percent,
       t.id as current_task_id, t.status::text as current_task_status, t.task_type as current_task_type,
       extract(epoch from now() - t.generation_started_at) as task_runtime_seconds,
       case when w.status = 'spawning' and w.state_since < now() - interval '5 minutes' then 'SPAWNING_TOO_LONG'
            when w.status in ('active', 'idle')
                 and coalesce(w.last_heartbeat, w.state_since) < now() - interval '10 minutes' then 'NO_HEARTBEAT'
            when w.status = 'terminating' and w.state_since < now() - interval '10 minutes' then 'TERMINATING_TOO_LONG'
            else 'OK' end as health_status
  from public.workers w
  left join lateral (
       select case when v.total ~ E'^\\d{1,9}$' then v.total::numeric end as total,
              case when v.used ~ E'^\\d{1,9}$' then v.used::numeric end as used
         from (select coalesce(w.health ->> 'vram_total_mb', w.metadata ->> 'vram_total_mb') as total,
                      coalesce(w.health ->> 'vram_used_mb', w.metadata ->> 'vram_used_mb') as used) v) g on true
  left join lateral (
       select t.id, t.status, t.task_type, t.generation_started_at from public.tasks t
        where t.worker_id = w.id and t.status::text = 'In Progress' order by t.generation_started_at limit 1) t on true
 where w.status <> 'terminated';

-- Tasks that changed within a day.
create view public.recent_task_activity with (security_invoker = true) as
select t.id, t.task_type, coalesce(t.pool, d.pool, 'default') as pool, t.status::text as status, t.worker_id,
       t.attempts, t.created_at, t.updated_at, t.generation_started_at, t.generation_processed_at,
       extract(epoch from t.generation_started_at - t.created_at) as queue_seconds,
       extract(epoch from coalesce(t.generation_processed_at, now()) - t.generation_started_at) as processing_seconds,
       t.output_location, t.failure_code, t.error_message
  from public.tasks t left join public.task_types d on d.task_type = t.task_type
 where t.updated_at > now() - interval '24 hours';

-- A row for each worker of the last 30 days: its work and its cost (without intervals that are still open).
create view public.worker_performance with (security_invoker = true) as
select w.id, w.fleet, w.pool, w.gpu_type, w.status, w.created_at, w.terminated_at, w.exit_cause, w.failure_code,
       a.done as tasks_done, a.failed as tasks_failed,
       case when a.done + a.failed > 0 then round(a.done * 100.0 / (a.done + a.failed), 1) end as success_percent,
       round(a.mean_seconds, 1) as mean_task_seconds,
       extract(epoch from coalesce(w.terminated_at, now()) - w.created_at) as uptime_seconds,
       c.usd as cost_usd,
       case when c.seconds > 0 then round((c.busy_seconds / c.seconds * 100)::numeric, 1) end as busy_percent,
       case when a.done > 0 then round(c.usd / a.done, 6) end as usd_per_task
  from public.workers w
  cross join lateral (
       select count(*) filter (where a.outcome = 'complete') as done,
              count(*) filter (where a.outcome in ('failed', 'lost')) as failed,
              avg(extract(epoch from a.ended_at - a.started_at)) filter (where a.outcome = 'complete') as mean_seconds
         from public.task_attempts a where a.worker_id = w.id) a
  cross join lateral (
       select coalesce(sum(c.usd), 0) as usd, coalesce(sum(extract(epoch from c.to_at - c.from_at)), 0) as seconds,
              coalesce(sum(extract(epoch from c.to_at - c.from_at)) filter (where c.kind = 'busy'), 0) as busy_seconds
         from public.costs c where c.worker_id = w.id) c
 where coalesce(w.terminated_at, now()) > now() - interval '30 days';

-- The queue by type and status, with the reasons that hold queued tasks back.
create view public.task_queue_analysis as
select coalesce(q.pool, t.pool, d.pool, 'default') as pool, t.task_type, t.status::text as status, count(*) as tasks,
       count(*) filter (where q.state = 'waits_for_tasks') as blocked_by_dependencies,
       count(*) filter (where q.state = 'waits_for_time' and q.run_after > now()) as scheduled,
       extract(epoch from now() - min(t.created_at)) as oldest_seconds,
       round(avg(extract(epoch from t.generation_started_at - t.created_at)), 1) as mean_wait_seconds,
       round(avg(extract(epoch from t.generation_processed_at - t.generation_started_at))
             filter (where t.status::text = 'Complete'), 1) as mean_processing_seconds
  from public.tasks t left join orchestrator.live q on q.task_id = t.id
  left join public.task_types d on d.task_type = t.task_type
 group by 1, 2, 3;

-- Failures within a day: bring-ups, workers, attempts at tasks.
create view public.recent_errors with (security_invoker = true) as
select a.ended_at as at, 'bring-up' as source, a.worker_id, null::uuid as task_id, a.failure_code as code,
       a.stage || ' ' || a.outcome || coalesce(': ' || (a.evidence ->> 'error'), '') as message
  from public.worker_attempts a
 where a.outcome in ('failed', 'timeout', 'lost') and a.ended_at > now() - interval '24 hours'
union all
select e.at, 'worker', e.worker_id, null, coalesce(e.detail ->> 'failure_code', e.detail ->> 'exit_cause'), e.reason
  from public.worker_events e
 where e.to_state = 'terminating' and e.from_state <> 'terminating' and e.at > now() - interval '24 hours'
   and e.detail ->> 'exit_cause' in ('spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault',
                                     'pod_lost', 'stale_code', 'worker_sick', 'release_bad')
union all
select a.ended_at, 'task', a.worker_id, a.task_id, coalesce(a.failure_code, a.exit_class, a.outcome), a.message
  from public.task_attempts a
 where a.outcome in ('failed', 'lost') and a.ended_at > now() - interval '24 hours';
