-- A database with a past: tasks that ended, 100,000 on each day, tasks that are queued, and what a fleet has recorded
-- meanwhile. It reads the settings past.ended, past.queued and past.until (when the newest task ended), and expects the
-- live workers w-0 to w-24, who ran the newest tasks.

create function pg_temp.until() returns timestamptz language sql stable
    return current_setting('past.until')::timestamptz;
create function pg_temp.ended() returns int language sql stable return current_setting('past.ended')::int;
create function pg_temp.days() returns numeric language sql stable return pg_temp.ended() / 100000.0;
-- The rows of a table of which there are so many on a day, and which retention deletes after so many days. It does so
-- once an hour.
create function pg_temp.kept(a_day int, days int) returns int language sql stable
    return (a_day * least(pg_temp.days(), days + 1 / 24.0))::int;
-- Of the ended task n (1 ended last): 25 workers at a time run a thousand tasks each, and one of five is of the pool a.
create function pg_temp.at(n bigint) returns timestamptz language sql stable
    return pg_temp.until() - n * interval '0.864 s';
create function pg_temp.task(n bigint) returns uuid language sql immutable return md5('task ' || n)::uuid;
create function pg_temp.worker(n bigint) returns bigint language sql immutable return n / 25000 * 25 + n % 25;
create function pg_temp.pool(w bigint) returns text language sql immutable
    return case w % 5 when 4 then 'a' else 'default' end;
-- Of a hundred tasks three failed with their third attempt, one was cancelled, and four needed a second attempt.
create function pg_temp.attempts(n bigint) returns int language sql immutable
    return case when n % 100 = 3 then 0 when n % 100 < 3 then 3 when n % 100 < 8 then 2 else 1 end;
create function pg_temp.code(n bigint) returns text language sql immutable
    return (array['HANDLER_ERROR', 'OOM', 'TIMEOUT'])[1 + n % 3];

set synchronous_commit = off;
set session_replication_role = replica;

insert into tasks (id, task_type, params, status, worker_id, attempts, output_location, result_data, error_message,
                   failure_code, failed_at_point, created_at, updated_at, generation_started_at,
                   generation_processed_at, pool, tenant, labels, published)
select pg_temp.task(n), 't' || n % 10, jsonb_build_object('clip', n, 'frames', 144, 'prompt', 'a cat in the rain'),
       case when r = 3 then 'Cancelled' when r < 3 then 'Failed' else 'Complete' end,
       case when r <> 3 then 'w-' || pg_temp.worker(n) end, pg_temp.attempts(n),
       case when r > 3 then 's3://bucket/outputs/' || n || '/clip.mp4' end,
       case when r > 3 then jsonb_build_object('frames', 144, 'seconds', n % 60) end,
       case when r < 3 then 'RuntimeError: no segment of clip ' || n || ' could be read' end,
       case when r < 3 then pg_temp.code(n) end, case when r < 3 then 'Processing' end, ended - interval '80 s', ended,
       case when r <> 3 then ended - interval '20 s' end, ended, pg_temp.pool(n % 25),
       case when n % 2 = 0 then 'tenant-' || n % 200 end,
       case when n % 3 = 0 then jsonb_build_object('show', 'show-' || n % 60, 'user', 'user-' || n % 6000) end,
       2 * pg_temp.attempts(n) + 1
  from (select n, n % 100 as r, pg_temp.at(n) as ended from generate_series(pg_temp.ended(), 1, -1) n) t;

insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at, outcome,
                                   failure_code, exit_class, failed_at_point, message, permanent, log_first, log_last)
select pg_temp.task(n), a, 'w-' || pg_temp.worker(n), 'launch-' || pg_temp.worker(n),
       case when a < tries then 1000 + n % 25000 else 500 - n % 25000 / 50 end,  -- two tasks of one claim
       ended - case when a = tries and n % 25000 / 25 % 2 = 0 then interval '42 s' else interval '20 s' end, ended,
       case when code is null then 'complete' when n % 100 = 4 then 'lost' else 'failed' end, code,
       case when code is not null then 'exception' end, case when code is not null then 'Processing' end,
       case when code is not null then 'RuntimeError: no segment of clip ' || n || ' could be read' end,
       case when code is not null then false end, n, n + 1000
  from (select n, a, pg_temp.attempts(n) as tries,
               pg_temp.at(n) - (pg_temp.attempts(n) - a) * interval '25 s' as ended,
               case when a < pg_temp.attempts(n) or n % 100 < 3 then pg_temp.code(n) end as code
          from generate_series(pg_temp.ended(), 1, -1) n, generate_series(1, pg_temp.attempts(n)) a) t;

-- An ended worker lived for six hours. For ten of them, one spawn failed.
insert into workers (id, fleet, pool, status, stage, instance_type, gpu_type, gpu_count, release, nonce, pod_id,
                     created_at, state_since, stage_since, promoted_at, bringup_ended_at, ending_since, terminated_at,
                     last_heartbeat, billing_since, billing_until, price_usd_per_hour, reserved_usd_per_hour,
                     exit_cause, failure_code, metadata, agent)
select id, 'default', pool, 'terminated', 'gone', 'NVIDIA A40', 'NVIDIA A40', 1, 'image@code', nonce, 'pod-' || id,
       began, ended, ended, case when nonce is not null then began + interval '2 min' end, began + interval '2 min',
       ended - interval '30 s', ended, ended - interval '30 s', began + interval '20 s', ended, 0.44, 0.5,
       case when nonce is null then 'spawn_failed' else 'idle_timeout' end,
       case when nonce is null then 'TCP_TIMEOUT' end, '{"offer": "NVIDIA A40|EU|SECURE"}',
       case when nonce is not null then '{"protocol": 1, "gpus": [{"name": "NVIDIA A40"}]}'::jsonb end
  from (select 'w-' || w as id, pg_temp.pool(w) as pool, 'launch-' || w as nonce,
               pg_temp.at((w / 25 + 1) * 25000) - interval '3 min' as began, pg_temp.at(w / 25 * 25000) as ended
          from generate_series(25, pg_temp.ended() / 1000 - 1) w
         union all
        select 'x-' || x, 'a', null, pg_temp.at(x * 10000) - interval '5 min', pg_temp.at(x * 10000)
          from generate_series(1, pg_temp.ended() / 10000) x) t;
update workers w
   set created_at = b.at, billing_since = b.at, promoted_at = b.at + interval '2 min', state_since = b.at,
       bringup_ended_at = b.at + interval '2 min', price_usd_per_hour = 0.44
  from (select pg_temp.at(least(25000, pg_temp.ended())) - interval '3 min' as at) b
 where w.id like 'w-%' and w.status <> 'terminated';

delete from worker_events;
insert into worker_events (worker_id, fleet, from_state, to_state, to_stage, reason, term, actor, at)
select * from (
    select w.id, w.fleet, s.was, s.now, s.stage, 'as planned', 1, 'orchestrator', w.created_at + s.after
      from workers w, (values (null, 'spawning', 'intent', interval '0'),
               ('spawning', 'spawning', 'pod_created', interval '5 s'),
               ('spawning', 'spawning', 'pod_running', interval '30 s'),
               ('spawning', 'spawning', 'deploy', interval '60 s'),
               ('spawning', 'spawning', 'process', interval '90 s'),
               ('spawning', 'active', 'promoted', interval '2 min'),
               ('active', 'terminating', 'draining', interval '6 h'),
               ('terminating', 'terminating', 'deleting', interval '6 h 20 s'),
               ('terminating', 'terminated', 'gone', interval '6 h 30 s')) s (was, now, stage, after)
     where w.created_at > pg_temp.until() - interval '91 days'
       and (s.after < interval '2 min' or w.promoted_at is not null)
       and (w.status = 'terminated' or s.after <= interval '2 min')
    union all
    select w.id, w.fleet, case i % 2 when 0 then 'active' else 'idle' end,
           case i % 2 when 0 then 'idle' else 'active' end, 'promoted', 'tasks', 1, 'gpu',
           w.promoted_at + i * interval '9 min'
      from workers w, generate_series(1, 38) i
     where w.promoted_at > pg_temp.until() - interval '7 days 7 hours'
    ) e (id, fleet, was, now, stage, reason, term, actor, at)
 where e.at < pg_temp.until() order by e.at;
insert into worker_attempts (worker_id, stage, attempt, term, started_at, ended_at, outcome, failure_code, evidence)
select w.id, s.stage, 1, 1, w.created_at + (s.n - 1) * interval '8 s', w.created_at + s.n * interval '8 s',
       case when w.promoted_at is null and s.n = 4 then 'timeout' else 'ok' end,
       case when w.promoted_at is null and s.n = 4 then 'TCP_TIMEOUT' end, '{"seconds": 7.9, "host": "10.0.0.1"}'
  from workers w, unnest(array['pod_created', 'pod_running', 'ssh_details', 'tcp', 'ssh_auth', 'exec', 'identity',
                               'platform', 'gpu_inventory', 'gpu_health', 'deploy', 'process', 'heartbeat',
                               'promoted']) with ordinality s (stage, n)
 where w.created_at > pg_temp.until() - interval '91 days' and (w.promoted_at is not null or s.n <= 4)
 order by w.created_at, s.n;
insert into log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, sha256, key, begun_at, shipped_at)
select w.id, w.nonce, s.stream, i, i * 65536, (i + 1) * 65536, md5(w.id || i), 'logs/' || w.id || '/' || i,
       w.created_at + i * interval '20 min', w.created_at + i * interval '20 min'
  from workers w, generate_series(0, 17) i, (values ('agent'), ('handler')) s (stream)
 where w.created_at > pg_temp.until() - interval '91 days' and w.nonce is not null;
insert into costs (worker_id, fleet, kind, from_at, to_at, usd)
select w.id, w.fleet, k.kind, f.at, f.at + k.share * interval '1 h', 0.44 * k.share
  from workers w, generate_series(0, 5) h, (values ('busy', 0.9), ('idle', 0.1)) k (kind, share),
       lateral (select w.created_at + (h + case k.kind when 'idle' then 0.9 else 0 end) * interval '1 h' as at) f
 where w.promoted_at is not null and f.at + interval '1 h' < pg_temp.until() order by f.at;

insert into orchestrator.pool_minutes
select 'default', p.pool, date_trunc('minute', pg_temp.until()) - n * interval '1 min', n % 977, n % 50, 25, 0, 25, n % 3, 0,
       11, 60 + n % 10, n % 5
  from generate_series(1, pg_temp.kept(1440, 8)) n, (values ('default'), ('a')) p (pool);
insert into orchestrator.worker_minutes
select w.id, date_trunc('minute', pg_temp.until()) - n * interval '1 min', 'active', 1, n % 100, 20000 + n, 46068
  from workers w, generate_series(1, least(400, pg_temp.kept(1440, 8))) n where w.status <> 'terminated';

insert into decisions (fleet, pool, term, at, rule, target, inputs, actions, blocked)
select 'default', p.pool, 1, pg_temp.until() - n * interval '40 s',
       'ceil(' || n % 977 || ' claimable / 4) = ' || n % 25, n % 25,
       jsonb_build_object('claimable', n % 977, 'running', 25, 'live', 25, 'idle', n % 3),
       case n % 50 when 0 then '[{"kind": "spawn", "count": 1}]' else '[]' end::jsonb,
       case when n % 90 < 9 then '[{"reason": "capacity", "count": 1}]' else '[]' end::jsonb
  from generate_series(pg_temp.kept(2160, 30), 1, -1) n, (values ('default'), ('a')) p (pool);
insert into audit_log (fleet, at, actor, action, subject, detail)
select * from (
    select 'default', pg_temp.until() - n * interval '8.64 s', 'token:client-' || n % 20,
           case n % 50 when 0 then 'task.cancel' else 'task.submit' end, pg_temp.task(n)::text, '{"tasks": 10}'::jsonb
      from generate_series(1, pg_temp.kept(10000, 7)) n
    union all
    select 'default', pg_temp.until() - n * interval '432 s', 'cli:operator', 'worker.terminate', 'w-' || n, null
      from generate_series(1, pg_temp.kept(200, 90)) n) a (fleet, at) order by a.at;
insert into api_submissions (fleet, actor, key, sha256, answer, at)
select 'default', 'token:client-' || n % 20, md5(n::text), md5(n::text), '[]', pg_temp.until() - n * interval '8.64 s'
  from generate_series(1, pg_temp.kept(10000, 1)) n;
insert into webhook_messages (event, task_id, url, host, body, created_at, give_up_at, attempts, sent_at)
select 'task.completed', pg_temp.task(n), 'https://example.com', 'example.com', '{"status": "Complete"}',
       pg_temp.at(n), pg_temp.at(n) + interval '1 day', 1, pg_temp.at(n)
  from generate_series(20, 20 * pg_temp.kept(5000, 1), 20) n;
insert into schedules (name, every_s, task, created_at, next_at)
select 'schedule-' || n, 600, '{"task_type": "t1"}', pg_temp.until(), pg_temp.until() + n * interval '1 min'
  from generate_series(1, 3) n;
insert into schedule_runs (schedule, due_at, outcome, task_id, at)
select 'schedule-' || s, pg_temp.until() - n * interval '10 min', 'fired', md5('run ' || n || ' ' || s)::uuid,
       pg_temp.until() - n * interval '10 min'
  from generate_series(1, 3) s, generate_series(1, pg_temp.kept(144, 30)) n;
insert into task_types (task_type, fleet, timeout_s, declared_at)
select 't' || n, 'default', 3600, pg_temp.until() from generate_series(0, 9) n;
insert into tenants (tenant, weight) select 'tenant-' || n, 2 from generate_series(0, 18, 2) n;
insert into offers (fleet, key, last_success)
select 'default', 'GPU ' || n || '|EU|SECURE', pg_temp.until() from generate_series(1, 10) n;
insert into hosts (fleet, key, strikes, evidence, last_failure)
select 'default', 'machine:m' || n, 1, '[]', pg_temp.until() from generate_series(1, 20) n;

set session_replication_role = origin;

-- Of twenty queued tasks, one waits for a time, one for a place of its key and one for another task. The triggers fill
-- the tables of the queue.
do $$
begin
    for v_last in reverse current_setting('past.queued')::int..1 by 50000 loop
        insert into tasks (id, task_type, params, created_at, run_after, pool, tenant, labels, concurrency_key,
                           depends_on)
        select md5('queued ' || n)::uuid, 't' || n % 10, jsonb_build_object('clip', n, 'frames', 144),
               pg_temp.until() - n * interval '0.8 s',
               case n % 20 when 7 then pg_temp.until() + (3600 + n) * interval '1 s' end, pg_temp.pool(n % 25),
               case when n % 2 = 0 then 'tenant-' || n % 200 end,
               case when n % 3 = 0 then jsonb_build_object('show', 'show-' || n % 60, 'user', 'user-' || n % 6000) end,
               case n % 20 when 11 then 'key-' || n % 97 end,
               case n % 20 when 13 then array[md5('queued ' || n + 1)::uuid] else '{}' end
          from generate_series(v_last, greatest(1, v_last - 49999), -1) n;
    end loop;
end
$$
