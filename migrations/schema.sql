-- What the migrations make, as pg_dump shows it: for reading and review, applied by nothing.
-- A test compares it with a migrated database. Written by: python -m tests.db.conformance.schema_dump

CREATE SCHEMA public;

COMMENT ON SCHEMA public IS 'standard public schema';

CREATE FUNCTION public.fleet_answer(p_fleet text, p_term bigint, p_answers jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_answered int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_answer');
    update public.worker_asks a set answered_at = v_now, answer = n->'answer'
      from jsonb_array_elements(p_answers) n, public.workers w
     where a.id = (n->>'id')::bigint and a.answered_at is null and w.id = a.worker_id and w.fleet = p_fleet;
    get diagnostics v_answered = row_count;
    delete from public.worker_asks a using public.workers w
     where w.id = a.worker_id and w.fleet = p_fleet
       and (a.answered_at < v_now - interval '5 minutes' or a.asked_at < v_now - interval '1 hour');
    return jsonb_build_object('answered', v_answered);
end
$$;

CREATE FUNCTION public.fleet_asks(p_fleet text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object('asks', coalesce(jsonb_agg(to_jsonb(o)), '[]'))
      from (select a.id, a.worker_id, a.method, a.subject, a.terms
              from public.worker_asks a join public.workers w on w.id = a.worker_id
             where a.answered_at is null and w.fleet = p_fleet and w.status <> 'terminated'
             order by row_number() over (partition by a.worker_id order by a.id), a.id limit least(p_limit, 1000)) o
$$;

CREATE FUNCTION public.fleet_attempt_close(p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text, p_exception_type text, p_evidence jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_close');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a
       set ended_at = v_now, outcome = p_outcome, failure_code = p_failure_code, exception_type = p_exception_type,
           evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    if not found and not exists (select from public.worker_attempts a where a.id = p_id) then
        perform public.internal_refuse('OR007', format('there is no attempt %s', p_id));
    end if;
    return '{}';
end
$$;

CREATE FUNCTION public.fleet_attempt_note(p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_note');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a set failure_code = p_failure_code, evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    return jsonb_build_object('noted', found);
end
$$;

CREATE FUNCTION public.fleet_attempt_open(p_fleet text, p_term bigint, p_worker_id text, p_stage text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_open');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
     where a.worker_id = p_worker_id and a.ended_at is null;
    insert into public.worker_attempts (worker_id, stage, attempt, term, started_at)
    select p_worker_id, p_stage, count(*) + 1, p_term, v_now
      from public.worker_attempts a where a.worker_id = p_worker_id and a.stage = p_stage
    returning id into v_id;
    return jsonb_build_object('id', v_id);
end
$$;

CREATE FUNCTION public.fleet_changes(p_digest text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    c_head constant int := 100;  -- tasks of a pool: where more than that can be claimed, nobody waits for another
    v_marks jsonb;
begin
    with recursive pools(pool) as (  -- from one to the next in the index, however many tasks each has
        (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked order by t.pool limit 1)
        union all
        select (select t.pool from public.tasks t where t.status = 'Queued' and not t.blocked and t.pool > p.pool
                 order by t.pool limit 1)
          from pools p where p.pool is not null
    ), heads as (
        select p.pool, h.mark
          from pools p
         cross join lateral (
             select md5(string_agg(c.id || '/' || c.attempts, ',')) as mark from (
                 select t.id, t.attempts from public.tasks t
                  where t.pool = p.pool and t.status = 'Queued' and not t.blocked
                    and coalesce(t.run_after <= v_now, true)
                  order by ~t.priority, t.created_at, t.id limit c_head) c) h
         where h.mark is not null
    ), held as (
        select t.worker_id, string_agg(t.id || '/' || t.attempts, ',' order by t.id) as tasks
          from public.tasks t where t.status = 'In Progress' and t.worker_id is not null group by t.worker_id
    ), fleet as (
        select w.id as key,
               md5(concat_ws('|', w.status, w.stage, w.drain_requested_at, w.stop_requested_at, w.agent->>'nonce',
                             w.last_heartbeat is null, h.tasks)) as mark
          from public.workers w left join held h on h.worker_id = w.id
         where w.status <> 'terminated'
        union all
        select '', md5(concat_ws('|',
            (select string_agg(concat_ws('/', l.fleet, l.term, l.holder, l.expires_at <= v_now), ',' order by l.fleet)
               from public.fleet_lease l),
            (select string_agg(concat_ws('/', s.fleet, s.name, s.set_at), ',' order by s.fleet, s.name)
               from public.fleet_settings s where s.name like 'paused%')))
    )
    select jsonb_build_object(
        'orchestrator_tasks', coalesce((select jsonb_object_agg(h.pool, h.mark) from heads h), '{}'),
        'orchestrator_fleet', (select jsonb_object_agg(f.key, f.mark) from fleet f))
      into v_marks;
    return jsonb_build_object('digest', md5(v_marks::text),
                              'marks', case when md5(v_marks::text) is distinct from p_digest then v_marks end);
end
$$;

CREATE FUNCTION public.fleet_cost(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    c_tasks constant int := 1000;  -- the dearest so many are listed; the sums count all
begin
    if p_since is null or p_since >= v_until then
        perform public.internal_refuse('OR007', 'p_since must be before p_until',
            format('got %s and %s', p_since, v_until));
    end if;
    return (
        with booked as (
            select c.worker_id, c.kind, c.from_at, c.to_at, c.usd
              from public.costs c where c.fleet = p_fleet and c.to_at > p_since and c.from_at < v_until
            union all
            select w.id, o.kind, o.from_at, o.to_at, o.usd
              from public.workers w cross join lateral public.internal_open_interval(w, v_now) o
             where w.fleet = p_fleet and w.status <> 'terminated' and o.to_at > p_since and o.from_at < v_until
        ), spent as (  -- only what lies within
            select b.worker_id, b.kind,
                   extract(epoch from least(b.to_at, v_until) - greatest(b.from_at, p_since)) as seconds,
                   b.usd * extract(epoch from least(b.to_at, v_until) - greatest(b.from_at, p_since))
                         / extract(epoch from b.to_at - b.from_at) as usd
              from booked b where b.to_at > b.from_at
        ), by_kind as (
            select s.worker_id, s.kind, sum(s.seconds) as seconds, sum(s.usd) as usd
              from spent s group by s.worker_id, s.kind
        ), workers as (
            select w.id, w.pool, w.gpu_type, w.gpu_count, w.pod_id, w.status, w.price_usd_per_hour,
                   sum(k.seconds) as seconds, sum(k.usd) as usd,
                   jsonb_object_agg(k.kind, jsonb_build_object('seconds', round(k.seconds, 3),
                                                               'usd', round(k.usd, 6))) as kinds
              from by_kind k join public.workers w on w.id = k.worker_id
             group by w.id
        ), shares as (
            select s.task_id, t.task_type, s.outcome, s.seconds, s.usd
              from public.internal_shares(p_since, v_until, v_now) s join public.tasks t on t.id = s.task_id
             where s.fleet = p_fleet
        ), tasks as (
            select s.task_id, s.task_type, count(*) as attempts, sum(s.seconds) as seconds, sum(s.usd) as usd,
                   coalesce(sum(s.usd) filter (where s.outcome <> 'complete'), 0) as wasted_usd
              from shares s group by s.task_id, s.task_type
        )
        select jsonb_build_object(
            'now', v_now, 'since', p_since, 'until', v_until,
            'usd', (select coalesce(round(sum(w.usd), 6), 0) from workers w),
            'kinds', coalesce((
                select jsonb_object_agg(k.kind, jsonb_build_object('seconds', round(k.seconds, 3), 'usd', round(k.usd, 6)))
                  from (select b.kind, sum(b.seconds) as seconds, sum(b.usd) as usd
                          from by_kind b group by b.kind) k), '{}'),
            'workers', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', w.id, 'pool', w.pool, 'gpu_type', w.gpu_type, 'gpu_count', w.gpu_count,
                           'pod_id', w.pod_id, 'status', w.status, 'price_usd_per_hour', w.price_usd_per_hour,
                           'seconds', round(w.seconds, 3), 'usd', round(w.usd, 6), 'kinds', w.kinds)
                           order by w.usd desc, w.id) from workers w), '[]'),
            'types', coalesce((
                select jsonb_agg(to_jsonb(y) order by y.usd desc, y.task_type)
                  from (select t.task_type, count(*) as tasks, sum(t.attempts) as attempts,
                               round(sum(t.seconds), 3) as seconds, round(sum(t.usd), 6) as usd,
                               round(sum(t.wasted_usd), 6) as wasted_usd
                          from tasks t group by t.task_type) y), '[]'),
            'tasks', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', t.task_id, 'task_type', t.task_type, 'attempts', t.attempts,
                           'seconds', round(t.seconds, 3), 'usd', round(t.usd, 6),
                           'wasted_usd', round(t.wasted_usd, 6)) order by t.usd desc, t.task_id)
                  from (select * from tasks t order by t.usd desc, t.task_id limit c_tasks) t), '[]')));
end
$$;

CREATE FUNCTION public.fleet_decisions(p_fleet text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object('decisions', coalesce((
        select jsonb_agg(to_jsonb(d) order by d.id desc) from (
            select * from public.decisions d where d.fleet = p_fleet
             order by d.id desc limit least(greatest(coalesce(p_limit, 100), 0), 10000)) d), '[]'))
$$;

CREATE FUNCTION public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_type jsonb;
    v_before jsonb;
    v_after jsonb;
    v_elsewhere text[];
    v_moved bigint := 0;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_pools');
    for v_type in select value from jsonb_array_elements(coalesce(p_pools, '[]')) loop
        perform public.internal_check_keys(v_type, array['task_type', 'pool', 'timeout_s', 'max_attempts'], 'p_pools');
    end loop;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_before from public.task_types d;
    delete from public.task_types t
     where t.fleet = p_fleet
       and t.task_type not in (select d->>'task_type' from jsonb_array_elements(coalesce(p_pools, '[]')) d);
    insert into public.task_types (task_type, fleet, pool, timeout_s, max_attempts, declared_at)
    select d->>'task_type', p_fleet, d->>'pool', (d->>'timeout_s')::numeric, (d->>'max_attempts')::int, v_now
      from jsonb_array_elements(coalesce(p_pools, '[]')) d
    on conflict (task_type) do update
       set fleet = excluded.fleet, pool = excluded.pool, timeout_s = excluded.timeout_s,
           max_attempts = excluded.max_attempts, declared_at = excluded.declared_at;
    select coalesce(jsonb_object_agg(d.task_type, coalesce(d.pool, 'default')), '{}') into v_after from public.task_types d;
    select array_agg(n.name) into v_elsewhere
      from (select jsonb_object_keys(v_before || v_after) as name) n
     where coalesce(v_before->>n.name, 'default') <> coalesce(v_after->>n.name, 'default');
    if v_elsewhere is not null then
        update public.tasks t
           set pool = coalesce(v_after->>t.task_type, 'default')
         where t.status = 'Queued' and t.pool_by_type and t.task_type = any (v_elsewhere)
           and t.pool <> coalesce(v_after->>t.task_type, 'default');
        get diagnostics v_moved = row_count;
    end if;
    return jsonb_build_object('declared', jsonb_array_length(coalesce(p_pools, '[]')), 'rerouted', v_moved);
end
$$;

CREATE FUNCTION public.fleet_declare_programs(p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_programs');
    if jsonb_typeof(p_pools) is distinct from 'array' or p_stuck_s is null or p_stuck_s not between 1 and 2592000 then
        perform public.internal_refuse('OR007', 'p_pools is a list of pools and p_stuck_s is from 1 to 2592000');
    end if;
    insert into public.fleet_settings (fleet, name, value, reason, set_at)
    values (p_fleet, 'programs', jsonb_build_object('pools', p_pools, 'stuck_s', p_stuck_s), 'WORKER_START_COMMAND', v_now)
    on conflict (fleet, name) do update set value = excluded.value, set_at = excluded.set_at;
    return jsonb_build_object('declared', jsonb_array_length(p_pools));
end
$$;

CREATE FUNCTION public.fleet_declare_release(p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_release');
    if jsonb_typeof(p_releases) is distinct from 'object' or jsonb_typeof(p_task_types) is distinct from 'array' then
        perform public.internal_refuse('OR007', 'p_releases is {pool: release} and p_task_types a list of names');
    end if;
    insert into public.fleet_settings as s (fleet, name, value, reason, set_at)
    values (p_fleet, 'release',
            jsonb_build_object('term', p_term, 'releases', p_releases, 'task_types', p_task_types), 'declared', v_now)
    on conflict (fleet, name) do update
       set value = excluded.value, set_at = excluded.set_at where s.value <> excluded.value;
    return jsonb_build_object('declared', true);
end
$$;

CREATE FUNCTION public.fleet_describe() RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_version text := (select max(m.version) from public.schema_migrations m);
begin
    if v_version is null and to_regclass('supabase_migrations.schema_migrations') is not null then
        execute 'select max(version::text) from supabase_migrations.schema_migrations' into v_version;
    end if;
    return jsonb_build_object(
        'schema_version', v_version,
        'functions', (
            select jsonb_object_agg(p.proname, to_jsonb(coalesce(p.proargnames, '{}'::text[])))
              from pg_catalog.pg_proc p
             where p.pronamespace = 'public'::regnamespace and p.prosecdef
               and p.proname ~ '^(task|worker|fleet)_' and p.prorettype = 'jsonb'::regtype));
end
$$;

CREATE FUNCTION public.fleet_efficiency(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_cost jsonb := public.fleet_cost(p_fleet, p_since, v_until, v_now);  -- refuses a window that is none
    v_length_s numeric := extract(epoch from v_until - p_since);
    v_paid_s numeric;
begin
    select coalesce(sum((k.value ->> 'seconds')::numeric), 0) into v_paid_s from jsonb_each(v_cost -> 'kinds') k;
    return (
        with ended as (
            select a.outcome, extract(epoch from a.to_at - a.from_at) / a.of as seconds
              from public.internal_turns(p_since, v_now) a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and coalesce(w.terminated_at > p_since - interval '1 day', true)
               and a.outcome is not null and a.to_at > p_since and a.to_at <= v_until
        ), counted as (
            select count(*) filter (where e.outcome = 'complete') as completed,
                   count(*) filter (where e.outcome in ('failed', 'lost')) as failed_attempts,
                   percentile_cont(0.5) within group (order by e.seconds)
                       filter (where e.outcome = 'complete') as run_p50_s
              from ended e
        ), given_up as (  -- tasks, not attempts; one that a dependency failed has no worker
            select count(*) as failed
              from public.tasks t left join public.workers w on w.id = t.worker_id
             where t.status = 'Failed' and coalesce(t.generation_processed_at, t.updated_at) > p_since
               and coalesce(t.generation_processed_at, t.updated_at) <= v_until
               and coalesce(w.fleet, p_fleet) = p_fleet
        ), waits as (
            select extract(epoch from least(coalesce(t.generation_started_at, v_until), v_until)
                                      - greatest(t.created_at, p_since)) as seconds
              from public.tasks t
             where t.created_at < v_until and coalesce(t.generation_started_at > p_since, t.status = 'Queued')
        ), queue as (
            select coalesce(sum(greatest(w.seconds, 0)), 0) / v_length_s as mean_depth,
                   percentile_cont(0.5) within group (order by w.seconds) as wait_p50_s,
                   percentile_cont(0.95) within group (order by w.seconds) as wait_p95_s
              from waits w
        )
        select jsonb_build_object(
            'since', p_since, 'until', v_until,
            'completed', c.completed, 'failed', g.failed, 'failed_attempts', c.failed_attempts,
            'tasks_per_hour', round(c.completed * 3600 / v_length_s, 2),
            'run_p50_s', round(c.run_p50_s::numeric, 3),
            'queue_mean', round(q.mean_depth, 2),
            'queue_now', (select count(*) from public.tasks t where t.status = 'Queued'),
            'wait_p50_s', round(q.wait_p50_s::numeric, 3), 'wait_p95_s', round(q.wait_p95_s::numeric, 3),
            'paid_s', v_paid_s,
            'utilisation', round(coalesce((v_cost -> 'kinds' -> 'busy' ->> 'seconds')::numeric, 0)
                                 / nullif(v_paid_s, 0), 4),
            'usd', (v_cost ->> 'usd')::numeric,
            'usd_per_task', round((v_cost ->> 'usd')::numeric / nullif(c.completed, 0), 6))
          from counted c, given_up g, queue q);
end
$$;

CREATE FUNCTION public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'worker', case when v_worker.id is not null then public.internal_worker_report(v_worker, v_now) end,
        'usual', public.fleet_usual(p_fleet, v_worker.gpu_type, v_now),
        'queued', (select count(*) from public.tasks t
                    where t.pool = v_worker.pool and t.status = 'Queued' and not t.blocked
                      and coalesce(t.run_after <= v_now, true)),
        'running', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', t.id, 'task_type', t.task_type, 'attempt', t.attempts, 'max_attempts', t.max_attempts,
                       'started_at', t.generation_started_at, 'progress', t.progress, 'progress_at', t.progress_at,
                       'lease_expires_at', t.lease_expires_at) order by t.generation_started_at, t.id)
              from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'), '[]'),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e) order by e.id)
              from (select * from public.worker_events e where e.worker_id = v_worker.id
                     order by e.id desc limit 200) e), '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) order by a.id)
              from (select * from public.worker_attempts a where a.worker_id = v_worker.id
                     order by a.id desc limit 200) a), '[]')));
end
$$;

CREATE FUNCTION public.fleet_heartbeats(p_beats jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_beat record;
    v_answers jsonb := '{}';
begin
    for v_beat in
        select w.id, w.nonce, b.health, b.logs
          from jsonb_to_recordset(p_beats) b (worker_id text, nonce text, jti text, health jsonb, logs jsonb)
          join public.workers w on w.id = b.worker_id and w.nonce = b.nonce and w.token_jti = b.jti
         where w.status <> 'terminated'
           for update of w skip locked loop
        v_answers := v_answers || jsonb_build_object(
            v_beat.id, public.worker_heartbeat(v_beat.id, v_beat.nonce, '[]', v_beat.health, v_beat.logs, p_now));
    end loop;
    return v_answers;
end
$$;

CREATE FUNCTION public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'hosts', coalesce((
        select jsonb_agg(to_jsonb(h) - 'fleet' || jsonb_build_object('avoided', coalesce(h.avoid_until > v_now, false))
                         order by h.last_failure desc, h.key)
          from (select * from public.hosts h
                 where h.fleet = p_fleet and (h.avoid_until > v_now or not coalesce(p_avoided, false))
                 order by h.last_failure desc, h.key limit 1000) h),
        '[]'));
end
$$;

CREATE FUNCTION public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz;
    v_lease public.fleet_lease;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if coalesce(p_holder, '') = '' or p_ttl_s is null or p_ttl_s <= 0 or p_ttl_s > 3600 then
        perform public.internal_refuse('OR007', 'p_holder must be named and p_ttl_s be from 0 to 3600 seconds');
    end if;
    insert into public.fleet_lease (fleet, holder, term, expires_at, since)
    values (p_fleet, '', 0, 'epoch', 'epoch') on conflict do nothing;
    select * into v_lease from public.fleet_lease l where l.fleet = p_fleet for update;
    v_now := public.internal_clock(p_now);  -- after the wait for the lock, not before it
    if v_lease.expires_at <= v_now then
        update public.fleet_lease l
           set holder = p_holder, term = l.term + 1, since = v_now,
               unled_from = case when l.term > 0 then l.expires_at end,
               expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
    elsif v_lease.holder = p_holder then
        update public.fleet_lease l set expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
    end if;
    return jsonb_build_object('leader', v_lease.holder = p_holder, 'term', v_lease.term, 'holder', v_lease.holder,
                              'expires_at', v_lease.expires_at, 'since', v_lease.since);
end
$$;

CREATE FUNCTION public.fleet_leadership(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'last', (select jsonb_build_object('holder', l.holder, 'until', l.expires_at)
                   from public.fleet_lease l where l.fleet = p_fleet and l.expires_at <= v_now));
end
$$;

CREATE FUNCTION public.fleet_log_begin(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_begin');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq;
    if found then
        if (v_piece.first_byte, v_piece.last_byte, v_piece.sha256, v_piece.key)
           is distinct from (p_first, p_last, p_sha256, p_key) then
            perform public.internal_refuse('OR002', format('piece %s of %s/%s is another one', p_seq, p_boot_id, p_stream),
                format('it is [%s, %s)', v_piece.first_byte, v_piece.last_byte), 'Read the ledger again.');
        end if;
        return '{}';
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream order by o.seq desc limit 1;
    if v_piece.seq is null and (p_first <> 0 or p_seq not in (0, 1))
       or v_piece.seq is not null and (p_seq <> v_piece.seq + 1 or p_first is distinct from v_piece.last_byte) then
        perform public.internal_refuse('OR002', format('piece %s of %s/%s does not follow the one before', p_seq, p_boot_id, p_stream),
            format('it starts at %s, the ledger ends with piece %s at %s', p_first, v_piece.seq, v_piece.last_byte),
            'Read the ledger again.');
    end if;
    insert into public.log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, sha256, key, begun_at)
    values (p_worker_id, p_boot_id, p_stream, p_seq, p_first, p_last, p_sha256, p_key, v_now);
    return '{}';
end
$$;

CREATE FUNCTION public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    with recursive streams (boot_id, stream) as (  -- from one to the next in the index, however many pieces each has
        (select o.boot_id, o.stream from public.log_objects o
          where o.worker_id = p_worker_id order by o.boot_id, o.stream limit 1)
        union all
        select n.boot_id, n.stream from streams s cross join lateral (
            select o.boot_id, o.stream from public.log_objects o
             where o.worker_id = p_worker_id and (o.boot_id, o.stream) > (s.boot_id, s.stream)
             order by o.boot_id, o.stream limit 1) n
    ), ends as (
        select o.* from streams s cross join lateral (
            (select * from public.log_objects l
              where l.worker_id = p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream
              order by l.seq desc limit 1)
            union
            (select * from public.log_objects l
              where l.worker_id = p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream and l.shipped_at is not null
              order by l.seq desc limit 1)) o
    )
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from ends o
     where exists (select from public.workers w where w.id = p_worker_id and w.fleet = p_fleet)
$$;

CREATE FUNCTION public.fleet_log_lost(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_first bigint, p_last bigint, p_reason text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_shipped bigint;
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_lost');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    select coalesce(max(o.last_byte), 0) into v_shipped from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.shipped_at is not null;
    if p_first is distinct from v_shipped then
        perform public.internal_refuse('OR002', format('%s/%s has arrived up to byte %s, not %s', p_boot_id, p_stream,
            v_shipped, p_first), '', 'Read the ledger again.');
    end if;
    update public.log_objects o set declared_lost = true, reason = coalesce(p_reason, 'no reason given')
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.shipped_at is null
       and not o.declared_lost;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream order by o.seq desc limit 1;
    if v_piece.seq is null or v_piece.last_byte is not null and coalesce(p_last > v_piece.last_byte, true) then
        if p_last is null or p_last > coalesce(v_piece.last_byte, 0) then
            insert into public.log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, begun_at,
                                            declared_lost, reason)
            values (p_worker_id, p_boot_id, p_stream, coalesce(v_piece.seq + 1, 0), coalesce(v_piece.last_byte, 0),
                    p_last, v_now, true, coalesce(p_reason, 'no reason given'));
        end if;
    end if;
    return '{}';
end
$$;

CREATE FUNCTION public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from public.log_objects o
     where o.worker_id = p_worker_id
       and exists (select from public.workers w where w.id = o.worker_id and w.fleet = p_fleet)
$$;

CREATE FUNCTION public.fleet_log_shipped(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_shipped');
    update public.log_objects o set shipped_at = coalesce(o.shipped_at, v_now)
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq
       and o.first_byte = p_first and o.last_byte = p_last and o.sha256 = p_sha256 and o.key = p_key
       and not o.declared_lost;
    if not found then
        perform public.internal_refuse('OR002', format('piece %s of %s/%s was not begun like this', p_seq, p_boot_id, p_stream),
            '', 'Read the ledger again.');
    end if;
    return '{}';
end
$$;

CREATE FUNCTION public.fleet_metrics(p_fleet text, p_since timestamp with time zone, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := v_now - interval '2 seconds';
    v_since timestamptz := greatest(coalesce(p_since, v_until), v_until - interval '1 hour');
begin
    return jsonb_build_object(
        'until', v_until,
        'claimed', (
            select count(*) from public.task_attempts a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and a.started_at > v_since and a.started_at <= v_until),
        'ended', coalesce((
            select jsonb_agg(jsonb_build_object('outcome', e.outcome, 'code', e.failure_code, 'n', e.n))
              from (select a.outcome, a.failure_code, count(*) as n
                      from public.task_attempts a join public.workers w on w.id = a.worker_id
                     where w.fleet = p_fleet and a.ended_at > v_since and a.ended_at <= v_until
                     group by a.outcome, a.failure_code) e), '[]'),
        'log_bytes_pending', (
            select coalesce(sum(greatest(0, s.bytes::bigint - coalesce(o.last_byte, 0))), 0)
              from public.workers w
             cross join lateral jsonb_each(w.log_bytes) b (boot_id, streams)
             cross join lateral jsonb_each_text(b.streams) s (stream, bytes)
              left join lateral (
                    select l.last_byte from public.log_objects l
                     where l.worker_id = w.id and l.boot_id = b.boot_id and l.stream = s.stream
                       and (l.shipped_at is not null or l.declared_lost)
                     order by l.seq desc limit 1) o on true
             where w.fleet = p_fleet and w.status <> 'terminated' and jsonb_typeof(w.log_bytes) = 'object'));
end
$$;

CREATE FUNCTION public.fleet_move(p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_old public.workers;
    v_new public.workers;
begin
    perform public.internal_check_keys(v_fields, array['pod_id', 'ssh_host', 'ssh_port', 'host_key', 'nonce', 'code_sha',
        'token_jti', 'price_usd_per_hour', 'gpu_type', 'data_center', 'machine_id', 'release', 'reserved_usd',
        'reserved_usd_per_hour', 'budget', 'waiting_on', 'waiting_for', 'exit_cause', 'failure_code', 'metadata',
        'deadline_s', 'next_attempt_s', 'unbilled_s', 'billed_s'], 'p_fields');
    if coalesce(p_reason, '') = '' then
        perform public.internal_refuse('OR007', 'a move needs a reason');
    end if;
    perform public.internal_check_term(p_fleet, p_term, 'fleet_move');
    select * into v_old from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    elsif v_old.status <> all (p_from) then
        perform public.internal_refuse('OR002', format('%s is %s', p_worker_id, v_old.status),
            format('expected it to be %s', array_to_string(p_from, ' or ')), 'Observe again.');
    end if;
    v_new := jsonb_populate_record(
        v_old, v_fields - array['budget', 'metadata', 'deadline_s', 'next_attempt_s', 'unbilled_s', 'billed_s']);
    v_new.status := coalesce(p_to, v_old.status);
    v_new.stage := coalesce(p_stage, case when p_to = 'terminated' then 'gone' end, v_old.stage);
    if v_new.status in ('terminating', 'terminated') and v_new.exit_cause is null then
        perform public.internal_refuse('OR007', format('%s cannot be %s without an exit_cause', p_worker_id, p_to), '',
            'put exit_cause into p_fields');
    end if;
    perform public.internal_check_budget(p_fleet, p_worker_id, v_new.reserved_usd, v_new.reserved_usd_per_hour,
                                         v_fields->'budget', v_now);
    perform public.internal_because('orchestrator', p_term, p_reason);
    update public.workers w
       set status = v_new.status, stage = v_new.stage, state_reason = p_reason, pod_id = v_new.pod_id,
           billing_since = case when v_old.pod_id is null and v_new.pod_id is not null
                                    then v_now - coalesce((v_fields->>'billed_s')::numeric, 0) * interval '1 second'
                                when v_old.status = 'spawning' then greatest(v_old.billing_since,
                                    v_now - (v_fields->>'unbilled_s')::numeric * interval '1 second')
                                else v_old.billing_since end,
           ssh_host = v_new.ssh_host, ssh_port = v_new.ssh_port, host_key = v_new.host_key, nonce = v_new.nonce,
           code_sha = v_new.code_sha, token_jti = v_new.token_jti, price_usd_per_hour = v_new.price_usd_per_hour,
           gpu_type = v_new.gpu_type, data_center = v_new.data_center, machine_id = v_new.machine_id,
           release = v_new.release, reserved_usd = v_new.reserved_usd,
           reserved_usd_per_hour = v_new.reserved_usd_per_hour,
           waiting_on = v_new.waiting_on, waiting_for = v_new.waiting_for, exit_cause = v_new.exit_cause,
           failure_code = v_new.failure_code,
           metadata = w.metadata || coalesce(nullif(v_fields->'metadata', 'null'), '{}'),
           deadline_at = case when v_fields->>'deadline_s' is null then w.deadline_at
                              else v_now + (v_fields->>'deadline_s')::numeric * interval '1 second' end,
           next_attempt_at = case when v_fields->>'next_attempt_s' is null then w.next_attempt_at
                                  else v_now + (v_fields->>'next_attempt_s')::numeric * interval '1 second' end
     where w.id = p_worker_id returning * into v_new;
    if v_new.status = 'terminated' and v_old.status <> 'terminated' then
        perform public.internal_rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;

CREATE FUNCTION public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_offer');
    insert into public.offers as o (fleet, key, cooldown_until, refusals, last_refusal, last_code, last_success, probe_budget)
    values (p_fleet, p_key, case when p_refused then v_now + interval '30 seconds' end,
            case when p_refused then 1 else 0 end, case when p_refused then v_now end,
            case when p_refused then p_code end, case when not p_refused then v_now end, case when p_refused then 1 end)
    on conflict (fleet, key) do update
       set refusals = case when p_refused then o.refusals + 1 else 0 end,
           cooldown_until = case when p_refused
                                 then v_now + least(30 * 2 ^ least(o.refusals, 10), 600) * interval '1 second' end,
           probe_budget = case when p_refused then 1
                                when o.probe_budget is not null then least(o.probe_budget * 2, 1024) end,
           last_refusal = coalesce(excluded.last_refusal, o.last_refusal),
           last_code = coalesce(excluded.last_code, o.last_code),
           last_success = coalesce(excluded.last_success, o.last_success);
    return '{}';
end
$$;

CREATE FUNCTION public.fleet_pause(p_fleet text, p_pool text, p_reason text, p_for_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if p_pool is not null then
        perform public.internal_check_id(p_pool, 'p_pool');
    end if;
    if p_for_s <= 0 then
        perform public.internal_refuse('OR007', 'a pause must last longer than nothing', format('got %s s', p_for_s));
    end if;
    if p_reason is null then
        delete from public.fleet_settings s
         where s.fleet = p_fleet
           and case when p_pool is null then s.name = 'paused' or s.name like 'paused:%'
                    else s.name = 'paused:' || p_pool end;
    else
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, coalesce('paused:' || p_pool, 'paused'), 'true', p_reason, v_now,
                v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set value = excluded.value, reason = excluded.reason, set_at = excluded.set_at,
               expires_at = excluded.expires_at;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('paused', public.internal_pauses(p_fleet, v_now));
end
$$;

CREATE FUNCTION public.fleet_record_decision(p_fleet text, p_term bigint, p_decision jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_last public.decisions;
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_record_decision');
    perform public.internal_check_keys(p_decision, array['pool', 'rule', 'target', 'inputs', 'actions', 'blocked'],
                                       'p_decision');
    select * into v_last from public.decisions d
     where d.fleet = p_fleet and d.pool = p_decision->>'pool' order by d.id desc limit 1;
    if v_last.id is null or v_last.rule is distinct from p_decision->>'rule'
       or v_last.target is distinct from (p_decision->>'target')::int
       or v_last.actions is distinct from coalesce(p_decision->'actions', '[]')
       or v_last.blocked is distinct from coalesce(p_decision->'blocked', '[]') then
        insert into public.decisions (fleet, pool, term, at, rule, target, inputs, actions, blocked)
        values (p_fleet, p_decision->>'pool', p_term, v_now, p_decision->>'rule', (p_decision->>'target')::int,
                coalesce(p_decision->'inputs', '{}'), coalesce(p_decision->'actions', '[]'),
                coalesce(p_decision->'blocked', '[]'))
        returning id into v_id;
    end if;
    return jsonb_build_object('id', v_id);
end
$$;

CREATE FUNCTION public.fleet_report(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_day timestamptz := v_now - interval '24 hours';
    c_rows constant int := 50;  -- of each list
begin
    return (
        with mine as (select w.* from public.workers w where w.fleet = p_fleet),
        turns as (
            select w.pool, avg(extract(epoch from a.to_at - a.from_at) / a.of) as mean_s
              from public.internal_turns(v_day, v_now) a join mine w on w.id = a.worker_id
             where coalesce(w.terminated_at > v_day, true) and a.outcome = 'complete' and a.to_at > v_day
             group by w.pool
        ),
        queue as (
            select t.pool,
                   count(*) filter (where t.status = 'Queued' and not t.blocked
                                      and coalesce(t.run_after <= v_now, true)) as claimable,
                   count(*) filter (where t.status = 'Queued' and t.blocked) as dependencies,
                   count(*) filter (where t.status = 'Queued' and not t.blocked and t.run_after > v_now) as scheduled,
                   min(t.run_after) filter (where t.status = 'Queued' and not t.blocked
                                              and t.run_after > v_now) as next_due_at,
                   count(*) filter (where t.status = 'In Progress') as running,
                   count(*) filter (where t.status = 'Complete'
                                      and t.generation_processed_at > v_now - interval '1 hour') as completed_1h,
                   min(t.created_at) filter (where t.status = 'Queued' and not t.blocked
                                               and coalesce(t.run_after <= v_now, true)) as oldest_claimable_at,
                   (select u.mean_s from turns u where u.pool = t.pool) as mean_task_s
              from public.tasks t group by t.pool
        ),
        attempts as (
            select a.*, w.pool from public.worker_attempts a join mine w on w.id = a.worker_id
             where a.ended_at > v_day and a.outcome in ('failed', 'timeout', 'lost')
        ),
        failed as (
            select t.task_type, t.failure_code, t.error_message, t.id, t.updated_at from public.tasks t
             where t.status = 'Failed' and t.updated_at > v_day
        ),
        spent as (
            select date_trunc('day', c.from_at at time zone 'UTC') as day, sum(c.usd) as usd from public.costs c
             where c.fleet = p_fleet and c.from_at > v_now - interval '8 days' and c.to_at <= v_day group by 1
        )
        select jsonb_build_object(
            'now', v_now,
            'leader', public.internal_leader(p_fleet, v_now),
            'paused', public.internal_pauses(p_fleet, v_now),
            'total_workers', (select count(*) from mine),
            'workers_by_status', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select w.status, count(*) as n from mine w group by w.status) s), '{}'),
            'task_counts', coalesce((
                select jsonb_object_agg(s.status, s.n)
                  from (select t.status::text as status, count(*) as n from public.tasks t group by 1) s), '{}'),
            'queue', coalesce((select jsonb_agg(to_jsonb(q) order by q.pool) from queue q), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t, v_now, 0)),
            'recent_workers', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'id', w.id, 'status', w.status, 'pool', w.pool, 'gpu_type', w.gpu_type, 'pod_id', w.pod_id,
                           'created_at', w.created_at, 'promoted_at', w.promoted_at, 'terminated_at', w.terminated_at,
                           'exit_cause', w.exit_cause, 'failure_code', w.failure_code) order by w.created_at desc, w.id)
                  from (select * from mine w order by w.created_at desc, w.id limit c_rows) w), '[]'),
            'failed_climbs', coalesce((
                select jsonb_agg(to_jsonb(f) order by f.n desc, f.code)
                  from (select coalesce(a.failure_code, 'UNKNOWN') as code, a.stage, a.pool,
                               upper(a.evidence ->> 'cause') as cause, count(*) as n, count(distinct a.worker_id) as workers,
                               max(a.ended_at) as last_at,
                               (select max(o.ended_at) from public.worker_attempts o join mine w on w.id = o.worker_id
                                 where w.pool = a.pool and o.stage = a.stage and o.outcome = 'ok'
                                   and o.ended_at > v_day) as ok_at
                          from attempts a group by 1, 2, 3, 4) f), '[]'),
            'failed_tasks', coalesce((
                select jsonb_agg(to_jsonb(f) order by f.n desc, f.task_type)
                  from (select f.task_type, f.failure_code as code, count(*) as n, max(f.updated_at) as last_at,
                               (array_agg(f.id order by f.updated_at desc))[1] as last_task,
                               left((array_agg(f.error_message order by f.updated_at desc))[1], 500) as message,
                               count(*) filter (where f.failure_code is distinct from 'DEPENDENCY_FAILED'
                                   and f.error_message like '%No valid segment videos found%') as no_segments
                          from failed f group by f.task_type, f.failure_code) f), '[]'),
            'error_patterns', jsonb_build_object(
                'orphaned_tasks_reset', (
                    select count(*) from public.task_attempts a join mine w on w.id = a.worker_id
                     where a.outcome = 'lost' and a.ended_at > v_day),
                'ssh_errors', (
                    select count(*) from attempts a
                     where a.failure_code in ('TCP_REFUSED', 'TCP_TIMEOUT', 'NOT_SSH', 'SSH_DETAILS_MISSING',
                                              'HOST_KEY_CHANGED', 'EXEC_FAILED', 'CONNECTION_LOST')),
                'auth_failures', (
                    select count(*) from attempts a where a.failure_code in ('AUTH_FAILED', 'API_AUTH')),
                'other_errors', (
                    select count(*) from attempts a
                     where coalesce(a.failure_code, '') not in (
                               'TCP_REFUSED', 'TCP_TIMEOUT', 'NOT_SSH', 'SSH_DETAILS_MISSING', 'HOST_KEY_CHANGED',
                               'EXEC_FAILED', 'CONNECTION_LOST', 'AUTH_FAILED', 'API_AUTH'))),
            'recent_cycles', coalesce((
                select jsonb_agg(to_jsonb(d) - 'fleet' order by d.id desc)
                  from (select * from public.decisions d where d.fleet = p_fleet order by d.id desc limit c_rows) d), '[]'),
            'worker_lifecycle_events', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'at', e.at, 'worker_id', e.worker_id, 'from_state', e.from_state, 'to_state', e.to_state,
                           'reason', e.reason, 'actor', e.actor) order by e.id desc)
                  from (select e.* from public.worker_events e
                         where e.fleet = p_fleet and e.from_state is distinct from e.to_state
                         order by e.id desc limit c_rows) e), '[]'),
            'spent', jsonb_build_object(
                'last_hour_usd', (public.fleet_cost(p_fleet, v_now - interval '1 hour', v_now, v_now) ->> 'usd')::numeric,
                'last_day_usd', (public.fleet_cost(p_fleet, v_day, v_now, v_now) ->> 'usd')::numeric,
                'usual_day_usd', (select round(avg(s.usd), 6) from spent s))));
end
$$;

CREATE FUNCTION public.fleet_request_termination(p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    v_drain timestamptz;
    v_stop timestamptz;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    end if;
    v_drain := coalesce(v_worker.drain_requested_at, v_now);
    v_stop := case when p_now_not_drain then coalesce(v_worker.stop_requested_at, v_now)
                   else v_worker.stop_requested_at end;
    if v_worker.status = 'terminated' or v_stop is not distinct from v_worker.stop_requested_at
       and (v_worker.drain_requested_at is not null or v_worker.status = 'terminating') then
        return jsonb_build_object('outcome', 'already', 'status', v_worker.status);
    end if;
    update public.workers w set drain_requested_at = v_drain, stop_requested_at = v_stop where w.id = p_worker_id;
    insert into public.worker_events
        (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, actor, at)
    values (p_worker_id, p_fleet, v_worker.status, v_worker.status, v_worker.stage, v_worker.stage,
            format('termination requested%s: %s', case when p_now_not_drain then ' at once' else '' end,
                   coalesce(p_reason, 'no reason given')), 'operator', v_now);
    return jsonb_build_object('outcome', 'requested', 'status', v_worker.status);
end
$$;

CREATE FUNCTION public.fleet_rescue(p_fleet text, p_term bigint, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue');
    return jsonb_build_object('tasks', public.internal_rescue(p_worker_id, v_now));
end
$$;

CREATE FUNCTION public.fleet_rescue_overdue(p_fleet text, p_term bigint, p_over_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue_overdue');
    return jsonb_build_object('tasks', public.internal_rescue(null, v_now, p_over_s, p_fleet));
end
$$;

CREATE FUNCTION public.fleet_resign(p_fleet text, p_holder text, p_term bigint, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    update public.fleet_lease l set expires_at = v_now
     where l.fleet = p_fleet and l.holder = p_holder and l.term = p_term and l.expires_at > v_now;
    if found then  -- a standby that listens takes over at once
        perform pg_notify('orchestrator_fleet', '');
        return jsonb_build_object('resigned', true);
    end if;
    return jsonb_build_object('resigned', false);
end
$$;

CREATE FUNCTION public.fleet_retain(p_fleet text, p_term bigint, p_every_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_deleted jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retain');
    if exists (select from public.fleet_chores c
                where c.fleet = p_fleet and c.name = 'retention' and c.done_at > v_now - p_every_s * interval '1 second') then
        return jsonb_build_object('deleted', null);
    end if;
    v_deleted := public.fleet_retention(p_fleet, p_term, p_now);
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'retention', v_now)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return jsonb_build_object('deleted', v_deleted);
end
$$;

CREATE FUNCTION public.fleet_retention(p_fleet text, p_term bigint, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 100000;  -- rows per table and call, which is once an hour
    v_decisions int;
    v_events int;
    v_attempts int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retention');
    delete from public.decisions d where d.ctid = any (array(
        select o.ctid from public.decisions o
          join (select n.pool, max(n.id) as id from public.decisions n where n.fleet = p_fleet group by n.pool) newest
            on newest.pool = o.pool and newest.id > o.id
         where o.fleet = p_fleet and o.at < v_now - interval '30 days' limit c_bite));
    get diagnostics v_decisions = row_count;
    delete from public.worker_events e where e.ctid = any (array(
        select o.ctid from public.worker_events o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet
           and o.at < v_now - interval '7 days'  -- by its index: the rest is not looked at
           and (w.terminated_at < v_now - interval '90 days'
                or o.from_state in ('active', 'idle') and o.to_state in ('active', 'idle')) limit c_bite));
    get diagnostics v_events = row_count;
    delete from public.worker_attempts a where a.ctid = any (array(
        select o.ctid from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite));
    get diagnostics v_attempts = row_count;
    delete from public.log_objects l where l.ctid = any (array(
        select o.ctid from public.log_objects o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite));
    with hours as (
        select c.worker_id, c.fleet, c.kind, date_trunc('hour', c.from_at, 'UTC') as began, array_agg(c.ctid) as places,
               sum(c.to_at - c.from_at) as took, sum(c.usd) as usd
          from public.costs c
         where c.fleet = p_fleet and c.to_at > v_now - interval '3 hours' and c.to_at < date_trunc('hour', v_now, 'UTC')
           and date_trunc('hour', c.to_at, 'UTC') = date_trunc('hour', c.from_at, 'UTC')
         group by 1, 2, 3, 4 having count(*) > 1
    ), gone as (
        delete from public.costs c where c.ctid = any (array(select unnest(h.places) from hours h))
    )
    insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
    select h.worker_id, h.fleet, h.kind, h.began, h.began + h.took, h.usd from hours h;
    perform public.internal_roll_up(true);
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;

CREATE FUNCTION public.fleet_scaling_explain(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_decisions constant int := 500;  -- of each pool: so far it is looked back since when something has been blocked
begin
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_paused(p_fleet, v_now),
        'offers', coalesce((select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key)
                              from public.offers o where o.fleet = p_fleet), '[]'),
        'decisions', coalesce((
            select jsonb_object_agg(p.pool, public.internal_pool_decision(p_fleet, p.pool))
              from (select distinct d.pool from public.decisions d where d.fleet = p_fleet) p), '{}'),
        'blocks', coalesce((
            select jsonb_object_agg(p.pool, (
                       select jsonb_agg(jsonb_build_object('at', c.at, 'blocked', c.blocked) order by c.id desc)
                         from (select d.*, lag(d.blocked) over (order by d.id) as before
                                 from (select * from public.decisions d where d.fleet = p_fleet and d.pool = p.pool
                                        order by d.id desc limit c_decisions) d) c
                        where c.blocked is distinct from c.before))
              from (select distinct d.pool from public.decisions d where d.fleet = p_fleet) p), '{}'),
        'waiting', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', w.id, 'pool', w.pool, 'stage', w.stage, 'waiting_on', w.waiting_on,
                       'waiting_for', w.waiting_for, 'next_attempt_at', w.next_attempt_at,
                       'deadline_at', w.deadline_at) order by w.id)
              from public.workers w
             where w.fleet = p_fleet and w.status = 'spawning'
               and w.waiting_on in ('capacity', 'budget', 'operator')), '[]')));
end
$$;

CREATE FUNCTION public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_batch constant int := 100;  -- tasks of one claim
    c_differences constant int := 1000;  -- more rows than that are rolled up first
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    perform public.internal_settle_late();
    if (select count(*) from (select from public.task_counts limit c_differences + 1) c) > c_differences then
        perform public.internal_roll_up(false);
    end if;
    if to_regclass('public.hosts') is not null then  -- it comes with a later migration
        select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') into v_avoid
          from public.hosts h where h.fleet = p_fleet and h.avoid_until > v_now;
    end if;
    return (
        with recursive spawned(pool) as (  -- from one to the next in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), running as (
            select t.worker_id, t.pool, count(*) as n,
                   count(*) filter (where case
                       when t.lease_expires_at > v_now and t.lease_expires_at < 'infinity' then true
                       else (select h.held_by <> 'nobody' from public.internal_holder(t, v_now) h) end) as counted,
                   min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
                   max(coalesce(t.progress_at, t.generation_started_at)) as moved_at,
                   (array_agg(t.id order by coalesce(t.progress_at, t.generation_started_at), t.id))[1] as slowest
              from public.tasks t where t.status = 'In Progress' group by t.worker_id, t.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at, max(r.moved_at) as moved_at,
                   (array_agg(r.slowest order by r.progress_at))[1] as slowest
              from running r where r.worker_id is not null group by r.worker_id
        ), counts as (
            select c.pool, c.kind, sum(c.n) as n from public.task_counts c group by c.pool, c.kind
        ), due as (  -- what has come due since it was put off
            select c.pool, count(t.run_after) as n, min(t.created_at) as oldest
              from counts c
              left join public.tasks t on t.pool = c.pool and t.status = 'Queued' and not t.blocked
                                      and t.run_after is not null and t.run_after <= v_now
             where c.kind = 'timed' and c.n > 0 group by c.pool
        ), refused as (  -- they wait for the next try, which needs no worker
            select r.pool, r.n from public.internal_refused_ready(v_now) r
        ), queued as (
            select c.pool, c.total, c.dependencies, c.timed - coalesce(d.n, 0) + coalesce(f.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) - coalesce(f.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then (
                       select min(t.created_at) from public.tasks t
                        where t.pool = c.pool and t.status = 'Queued' and not t.blocked and t.run_after is null
                          and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = t.id), true))
                   end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
              left join refused f on f.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(counted) as n from running group by pool) r on r.pool = p.pool
        ), climbs as (
            select w.id, w.pool, w.created_at, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
                   w.release, w.ending_since,
                   row_number() over (partition by w.pool order by w.climb_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.climb_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'done_elsewhere_at', case when w.held_back is not null then public.internal_done_elsewhere(w) end,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from public.task_attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end) order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', case when d.paused then 0 else d.ready end, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t, v_now, 0)
                   and not public.internal_is_unrescuable(t.id, v_now)
                   and not public.internal_is_anothers(p_fleet, t.worker_id, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, n.created_at) from spawned s
                 cross join lateral (
                       select w.created_at from public.workers w
                        where w.fleet = p_fleet and w.pool = s.pool and w.stage is not null
                        order by w.created_at desc limit 1) n), '{}'),
            'ended', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'worker_id', c.id, 'pool', c.pool, 'at', c.climb_ended_at, 'promoted', c.promoted,
                           'exit_cause', c.exit_cause, 'failure_code', c.failure_code, 'release', c.release,
                           'boot_s', case when c.promoted then extract(epoch from c.climb_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'worked', c.promoted and exists (  -- bounded, where a handler fails a thousand tasks
                               select from (select a.outcome from public.task_attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.climb_ended_at, c.id)
                  from climbs c where c.place <= c_climbs), '[]'),
            'proven', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'spent', (select to_jsonb(s) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

CREATE FUNCTION public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_usd numeric := coalesce((p_worker->>'reserved_usd')::numeric, 0);
    v_usd_per_hour numeric := coalesce((p_worker->>'reserved_usd_per_hour')::numeric, 0);
    v_created int;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    perform public.internal_check_keys(p_worker, array['id', 'pool', 'gpu_type', 'gpu_count', 'data_center', 'release',
        'reserved_usd', 'reserved_usd_per_hour', 'budget', 'heartbeat_s', 'lease_s', 'own_program', 'deadline_s', 'actor',
        'reason', 'metadata'], 'p_worker');
    perform public.internal_check_id(p_worker->>'id', 'the worker id');
    perform public.internal_check_id(coalesce(p_worker->>'pool', 'default'), 'the pool');
    if p_term is not null then
        perform public.internal_check_term(p_fleet, p_term, 'fleet_spawn');
    end if;
    if not exists (select from public.workers w where w.id = p_worker->>'id') then
        perform public.internal_check_budget(p_fleet, p_worker->>'id', v_usd, v_usd_per_hour, p_worker->'budget', v_now);
    end if;
    perform public.internal_because(
        coalesce(p_worker->>'actor', case when p_term is null then 'operator' else 'orchestrator' end), p_term,
        coalesce(p_worker->>'reason', 'spawn requested'));
    insert into public.workers (
        id, fleet, pool, status, stage, waiting_on, deadline_at, next_attempt_at, instance_type, gpu_type, gpu_count,
        data_center, release, reserved_usd, reserved_usd_per_hour, heartbeat_s, lease_s, own_program, metadata,
        created_at, last_heartbeat)
    values (
        p_worker->>'id', p_fleet, coalesce(p_worker->>'pool', 'default'), 'spawning', 'intent', 'orchestrator',
        v_now + coalesce((p_worker->>'deadline_s')::numeric, 30) * interval '1 second', v_now,
        coalesce(p_worker->>'gpu_type', 'unknown'), p_worker->>'gpu_type',
        coalesce((p_worker->>'gpu_count')::int, 1), p_worker->>'data_center', p_worker->>'release', v_usd, v_usd_per_hour,
        coalesce((p_worker->>'heartbeat_s')::numeric, 20), coalesce((p_worker->>'lease_s')::numeric, 60),
        coalesce((p_worker->>'own_program')::boolean, false),
        coalesce(nullif(p_worker->'metadata', 'null'), '{}'), v_now, null)
    on conflict (id) do nothing;
    get diagnostics v_created = row_count;
    return jsonb_build_object('created', v_created = 1);
end
$$;

CREATE FUNCTION public.fleet_store_away(p_fleet text, p_term bigint, p_reason text, p_since timestamp with time zone, p_for_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_ended int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_store_away');
    if p_reason is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'store_away';
        get diagnostics v_ended = row_count;
        if v_ended > 0 then  -- claims that wait look again
            perform pg_notify('orchestrator_tasks', p.pool)
               from (select distinct w.pool from public.workers w
                      where w.fleet = p_fleet and w.status in ('active', 'idle')) p;
        end if;
    else
        if p_since is null or p_for_s is null or p_for_s <= 0 or p_for_s > 3600 then
            perform public.internal_refuse('OR007', 'p_since must be given, and p_for_s be from 0 to 3600 seconds');
        end if;
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, 'store_away', 'true', left(p_reason, 1000), p_since, v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set reason = excluded.reason, set_at = excluded.set_at, expires_at = excluded.expires_at;
    end if;
    return jsonb_build_object('away', p_reason is not null);
end
$$;

CREATE FUNCTION public.fleet_strike(p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb, p_avoid_s numeric, p_after integer, p_memory_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_what jsonb := jsonb_build_array(coalesce(nullif(p_evidence, 'null'), '{}')
                                      || jsonb_build_object('code', p_code, 'at', v_now));
    v_host public.hosts;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_strike');
    perform public.internal_check_size(p_evidence, 65536, 'p_evidence');
    if coalesce(p_key, '') = '' or coalesce(p_code, '') = '' or p_avoid_s is null or p_after is null
       or p_memory_s is null then
        perform public.internal_refuse('OR007', 'a strike needs p_key, p_code, p_avoid_s, p_after and p_memory_s');
    end if;
    delete from public.hosts h
     where h.fleet = p_fleet and h.last_failure < v_now - interval '90 days' and coalesce(h.avoid_until <= v_now, true);
    insert into public.hosts as h (fleet, key, strikes, evidence, last_failure)
    values (p_fleet, p_key, 1, v_what, v_now)
    on conflict (fleet, key) do update
       set strikes = case when h.last_failure < v_now - p_memory_s * interval '1 second' then 1 else h.strikes + 1 end,
           evidence = (select jsonb_agg(e.what order by e.n)
                         from jsonb_array_elements(v_what || h.evidence) with ordinality e (what, n) where e.n <= 10),
           last_failure = v_now
    returning * into v_host;
    if v_host.strikes >= p_after then
        update public.hosts h set avoid_until = greatest(h.avoid_until, v_now + p_avoid_s * interval '1 second')
         where h.fleet = p_fleet and h.key = p_key returning * into v_host;
    end if;
    return jsonb_build_object('strikes', v_host.strikes, 'avoid_until', v_host.avoid_until);
end
$$;

CREATE FUNCTION public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    c_workers constant int := 25;  -- the newest of its pool, and …
    c_attempts constant int := 200;  -- … the newest of each: what is usual for its type
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'usual', (
            select jsonb_build_object('task_type', v_task.task_type, 'n', count(*),
                       'p50_s', round(percentile_cont(0.5) within group (order by x.seconds)::numeric, 3),
                       'p95_s', round(percentile_cont(0.95) within group (order by x.seconds)::numeric, 3))
              from (select w.id from public.workers w where w.fleet = p_fleet and w.pool = v_task.pool
                     order by w.created_at desc limit c_workers) w
              cross join lateral (select * from public.task_attempts b where b.worker_id = w.id
                                   order by b.started_at desc limit c_attempts) a
              join public.tasks t on t.id = a.task_id
              cross join lateral (select extract(epoch from a.ended_at - greatest(a.started_at, (
                       select max(b.ended_at) from public.task_attempts b  -- the one before, of the same claim
                        where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                          and b.ended_at < a.ended_at))) as seconds) x
             where a.outcome = 'complete' and t.task_type = v_task.task_type),
        'holder', case when v_task.status = 'In Progress' then (select to_jsonb(h) from public.internal_holder(v_task, v_now) h) end,
        'refusal', (select to_jsonb(r) - 'task_id' from public.task_refusals r where r.task_id = p_task_id),
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (~t.priority, t.created_at, t.id) < (~v_task.priority, v_task.created_at, v_task.id)),
        'workers', coalesce((
            select jsonb_object_agg(s.status, s.n)
              from (select w.status, count(*) as n from public.workers w
                     where w.fleet = p_fleet and w.pool = v_task.pool and w.status <> 'terminated'
                     group by w.status) s), '{}'),
        'worker', (select jsonb_build_object('id', w.id, 'status', w.status, 'last_heartbeat', w.last_heartbeat,
                                             'exit_cause', w.exit_cause, 'failure_code', w.failure_code)
                     from public.workers w where w.id = v_task.worker_id),
        'dependencies', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', n.id, 'task_type', coalesce(d.task_type, r.task_type),
                       'status', coalesce(d.status::text, case when r.id is not null then 'Complete' end), 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id
              left join public.task_results r on r.id = n.id), '[]'),
        'dependants', (select count(*) from public.tasks t
                        where t.blocked and t.status = 'Queued' and t.depends_on && array[p_task_id]),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) || jsonb_build_object(
                       'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code,
                       'usd', case when w.price_usd_per_hour is not null then round(coalesce(s.usd, 0), 6) end)
                       order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
              left join public.internal_shares('-infinity', v_now, v_now, p_task_id) s
                     on s.task_id = a.task_id and s.attempt = a.attempt
             where a.task_id = p_task_id), '[]')));
end
$$;

CREATE FUNCTION public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    with climbs as (
        select w.id, extract(epoch from e.at - w.created_at) as seconds
          from public.workers w
          cross join lateral (select e.at from public.worker_events e
                               where e.worker_id = w.id and e.from_state = 'spawning' and e.to_state = 'active'
                               order by e.id limit 1) e
         where w.fleet = p_fleet and (p_gpu_type is null or w.gpu_type = p_gpu_type)
         order by w.created_at desc limit 1000
    ), stages as (
        select a.stage, count(*) as n, percentile_cont(0.5) within group (order by x.seconds) as p50_s,
               percentile_cont(0.95) within group (order by x.seconds) as p95_s
          from climbs c
          join public.worker_attempts a on a.worker_id = c.id and a.outcome = 'ok'
          cross join lateral (select extract(epoch from a.ended_at - a.started_at) as seconds) x
         group by a.stage
    )
    select jsonb_build_object(
        'stages', coalesce((
            select jsonb_object_agg(s.stage, jsonb_build_object(
                       'n', s.n, 'p50_s', round(s.p50_s::numeric, 3), 'p95_s', round(s.p95_s::numeric, 3))) from stages s), '{}'),
        'gpu_type', p_gpu_type, 'n', count(*),
        'p50_s', round(percentile_cont(0.5) within group (order by c.seconds)::numeric, 3),
        'p95_s', round(percentile_cont(0.95) within group (order by c.seconds)::numeric, 3)) from climbs c
$$;

CREATE FUNCTION public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    c_first constant int := 200;  -- its bring-up …
    c_last constant int := 800;  -- … and what it came to
    c_tasks constant int := 1000;  -- the newest
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    if not found then
        return jsonb_build_object('now', v_now, 'worker', null, 'events', '[]'::jsonb, 'attempts', '[]'::jsonb,
                                  'tasks', '[]'::jsonb, 'left_out', '{}'::jsonb, 'states', '{}'::jsonb);
    end if;
    return jsonb_build_object(
        'now', v_now,
        'worker', public.internal_worker_report(v_worker, v_now),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e) order by e.id) from (
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id desc limit c_last)) e),
            '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) order by a.id) from (
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id desc limit c_last)) a),
            '[]'),
        'tasks', coalesce((select jsonb_agg(to_jsonb(a) order by a.started_at, a.task_id)
                             from (select * from public.task_attempts a where a.worker_id = p_worker_id
                                    order by a.started_at desc limit c_tasks) a), '[]'),
        'left_out', jsonb_build_object(
            'events', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_events e where e.worker_id = p_worker_id)),
            'attempts', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_attempts a where a.worker_id = p_worker_id)),
            'tasks', jsonb_build_object('at', 0, 'count', (
                select greatest(count(*) - c_tasks, 0) from public.task_attempts a where a.worker_id = p_worker_id))),
        'states', coalesce((
            select jsonb_object_agg(s.state, s.seconds)
              from (select m.state, sum(extract(epoch from coalesce(m.to_at, v_now) - m.at)) as seconds
                      from (select e.to_state as state, e.at, lead(e.at) over (order by e.id) as to_at
                              from public.worker_events e
                             where e.worker_id = p_worker_id and e.from_state is distinct from e.to_state) m
                     where m.state <> 'terminated' group by m.state) s), '{}'));
end
$$;

CREATE FUNCTION public.fleet_workers(p_fleet text, p_all boolean, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'workers', coalesce((
        select jsonb_agg(public.internal_worker_report(w, v_now) order by w.created_at desc, w.id)
          from (select * from public.workers w
                 where w.fleet = p_fleet and (coalesce(p_all, false) or w.status <> 'terminated')
                 order by w.created_at desc, w.id limit least(greatest(coalesce(p_limit, 1000), 0), 10000)) w), '[]'));
end
$$;

CREATE FUNCTION public.internal_ask(p_worker_id text, p_method text, p_subject text, p_terms jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_ask public.worker_asks;
begin
    select * into v_ask from public.worker_asks a
     where a.worker_id = p_worker_id and a.method = p_method and md5(a.subject) = md5(p_subject);
    if v_ask.terms = p_terms and v_ask.answered_at > p_now - interval '5 minutes' then
        return v_ask.answer;
    end if;
    if v_ask.id is null or v_ask.answered_at is not null or v_ask.terms <> p_terms then
        insert into public.worker_asks as a (worker_id, method, subject, terms, asked_at)
        select p_worker_id, p_method, p_subject, p_terms, p_now
         where (select count(*) from public.worker_asks o where o.worker_id = p_worker_id and o.answered_at is null) < 1000
        on conflict (worker_id, method, md5(subject))
            do update set terms = excluded.terms, asked_at = excluded.asked_at, answered_at = null, answer = null;
        perform pg_notify('orchestrator_asks', p_worker_id);
    end if;
    perform set_config('response.status', '202', true);  -- PostgREST's answer; older agents take it for "ask again"
    return null;
end
$$;

CREATE FUNCTION public.internal_attempts_removed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_highest int;
begin
    if tg_op = 'DELETE' then
        select max(r.attempt) into v_highest
          from removed r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce where w.status <> 'terminated';
    elsif tg_op = 'TRUNCATE' then
        select max(r.attempt) into v_highest
          from public.task_attempts r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce
         where w.status <> 'terminated';
    else
        v_highest := old.attempt;
    end if;
    if v_highest is not null then
        perform public.internal_raise_floor(v_highest);
    end if;
    return null;
end
$$;

CREATE FUNCTION public.internal_because(p_actor text, p_term bigint, p_reason text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select set_config('orchestrator.actor', coalesce(p_actor, ''), true),
           set_config('orchestrator.term', coalesce(p_term::text, ''), true),
           set_config('orchestrator.reason', coalesce(p_reason, ''), true)
$$;

CREATE TABLE public.workers (
    id text NOT NULL,
    instance_type text DEFAULT 'unknown'::text NOT NULL,
    status text DEFAULT 'spawning'::text NOT NULL,
    last_heartbeat timestamp with time zone,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    fleet text DEFAULT 'default'::text NOT NULL,
    pool text DEFAULT 'default'::text NOT NULL,
    state_since timestamp with time zone DEFAULT now() NOT NULL,
    state_reason text,
    stage text,
    stage_since timestamp with time zone DEFAULT now() NOT NULL,
    waiting_on text,
    waiting_for text,
    deadline_at timestamp with time zone,
    next_attempt_at timestamp with time zone,
    exit_cause text,
    failure_code text,
    drain_requested_at timestamp with time zone,
    stop_requested_at timestamp with time zone,
    terminated_at timestamp with time zone,
    pod_id text,
    ssh_host text,
    ssh_port integer,
    host_key text,
    gpu_type text,
    gpu_count integer DEFAULT 1 NOT NULL,
    data_center text,
    machine_id text,
    price_usd_per_hour numeric,
    reserved_usd numeric DEFAULT 0 NOT NULL,
    billing_since timestamp with time zone,
    nonce text,
    code_sha text,
    token_jti text,
    claim_no bigint DEFAULT 0 NOT NULL,
    own_program boolean DEFAULT false NOT NULL,
    heartbeat_s numeric DEFAULT 20 NOT NULL,
    lease_s numeric DEFAULT 60 NOT NULL,
    agent jsonb,
    health jsonb,
    log_bytes jsonb DEFAULT '{}'::jsonb NOT NULL,
    release text,
    reserved_usd_per_hour numeric DEFAULT 0 NOT NULL,
    climb_ended_at timestamp with time zone,
    promoted_at timestamp with time zone,
    billing_until timestamp with time zone,
    ending_since timestamp with time zone,
    held_back jsonb,
    CONSTRAINT workers_exit_cause_known CHECK ((exit_cause = ANY (ARRAY['idle_timeout'::text, 'scale_down'::text, 'manual'::text, 'shutdown'::text, 'max_lifetime'::text, 'budget'::text, 'superseded'::text, 'spawn_failed'::text, 'heartbeat_lost'::text, 'task_stuck'::text, 'gpu_fault'::text, 'host_fault'::text, 'pod_lost'::text, 'stale_code'::text, 'agent_crashed'::text, 'worker_sick'::text, 'release_bad'::text]))),
    CONSTRAINT workers_exit_has_cause CHECK (((status <> ALL (ARRAY['terminating'::text, 'terminated'::text])) OR (exit_cause IS NOT NULL))),
    CONSTRAINT workers_fleet_named CHECK (((fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(fleet) <= 63))),
    CONSTRAINT workers_live_waits CHECK (((status = 'terminated'::text) OR ((stage IS NOT NULL) AND (waiting_on IS NOT NULL) AND (deadline_at IS NOT NULL) AND (next_attempt_at IS NOT NULL)))),
    CONSTRAINT workers_pool_named CHECK (((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(pool) <= 63))),
    CONSTRAINT workers_reserved CHECK (((reserved_usd >= (0)::numeric) AND (reserved_usd_per_hour >= (0)::numeric))),
    CONSTRAINT workers_stage_known CHECK ((stage = ANY (ARRAY['intent'::text, 'pod_created'::text, 'pod_running'::text, 'ssh_details'::text, 'tcp'::text, 'ssh_auth'::text, 'exec'::text, 'identity'::text, 'platform'::text, 'gpu_inventory'::text, 'gpu_health'::text, 'gpu_fabric'::text, 'deploy'::text, 'process'::text, 'heartbeat'::text, 'promoted'::text, 'draining'::text, 'flushing'::text, 'deleting'::text, 'gone'::text]))),
    CONSTRAINT workers_status_known CHECK ((status = ANY (ARRAY['spawning'::text, 'active'::text, 'idle'::text, 'terminating'::text, 'terminated'::text]))),
    CONSTRAINT workers_waiting_on_known CHECK ((waiting_on = ANY (ARRAY['orchestrator'::text, 'provider'::text, 'worker'::text, 'operator'::text, 'capacity'::text, 'budget'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN public.workers.last_heartbeat IS 'Of the current launch; never defaulted to now';

COMMENT ON COLUMN public.workers.state_since IS 'When status last changed; the idle clock';

COMMENT ON COLUMN public.workers.drain_requested_at IS 'An operator or the planner wants it gone, its tasks finished';

COMMENT ON COLUMN public.workers.stop_requested_at IS 'It is wanted gone now, its tasks given up';

COMMENT ON COLUMN public.workers.reserved_usd IS 'What ending it in good order may still cost: part of the committed budget';

COMMENT ON COLUMN public.workers.billing_since IS 'When its pod got a machine, as far as it was seen: costs count from here';

COMMENT ON COLUMN public.workers.nonce IS 'The current launch of its agent; any other is fenced';

COMMENT ON COLUMN public.workers.token_jti IS 'The one token that is accepted; null revokes it';

COMMENT ON COLUMN public.workers.claim_no IS 'The number from which the current launch may claim; a claim that took tasks has its number in task_attempts';

COMMENT ON COLUMN public.workers.agent IS 'What the agent said of itself when it registered';

COMMENT ON COLUMN public.workers.log_bytes IS '{launch: {stream: bytes}} as heartbeats last told';

COMMENT ON COLUMN public.workers.release IS 'image@code that it runs';

COMMENT ON COLUMN public.workers.reserved_usd_per_hour IS 'Its price, before the provider has told it';

COMMENT ON COLUMN public.workers.climb_ended_at IS 'When it left spawning, promoted or not';

COMMENT ON COLUMN public.workers.billing_until IS 'When its pod was last known to be there: nothing later is booked';

COMMENT ON COLUMN public.workers.ending_since IS 'When it began to end, whatever it was before';

COMMENT ON COLUMN public.workers.held_back IS 'Why it claims no more: {since, first, failures, types, codes}';

CREATE FUNCTION public.internal_caller(p_worker_id text, p_lock boolean) RETURNS public.workers
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_claims jsonb;
    v_worker public.workers;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    if public.internal_is_pod() then
        v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
        if v_claims->>'sub' is null or v_claims->>'sub' is distinct from p_worker_id then
            perform public.internal_refuse('OR006', 'the token is not of this worker');
        end if;
    end if;
    if p_lock then
        select * into v_worker from public.workers w where w.id = p_worker_id for update;
    else
        select * into v_worker from public.workers w where w.id = p_worker_id;
    end if;
    if v_worker.id is null or v_worker.status = 'terminated' then
        perform public.internal_refuse('OR005', 'no such worker, or it has terminated', '', 'stop');
    end if;
    if v_claims is not null and (v_worker.token_jti is null or v_claims->>'jti' is distinct from v_worker.token_jti) then
        perform public.internal_refuse('OR006', 'the token was revoked');
    end if;
    return v_worker;
end
$$;

CREATE FUNCTION public.internal_check_budget(p_fleet text, p_worker_id text, p_usd numeric, p_usd_per_hour numeric, p_budget jsonb, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    v_hourly numeric := (p_budget->>'hourly_usd')::numeric;
    v_daily numeric := (p_budget->>'daily_usd')::numeric;
    v_wanted numeric := p_usd + coalesce((p_budget->>'useful_usd')::numeric, 0);
    v_spent record;
begin
    if v_hourly is null and v_daily is null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('orchestrator budget of ' || p_fleet, 0));
    select * into v_spent from public.internal_spent(p_fleet, p_worker_id, p_now);
    if v_spent.hourly_usd + p_usd_per_hour > v_hourly then
        perform public.internal_refuse('OR003', format('%s is over the hourly budget', p_worker_id),
            format('$%s/h running + $%s/h > MAX_HOURLY_COST_USD=%s', round(v_spent.hourly_usd, 4),
                   round(p_usd_per_hour, 4), v_hourly), 'raise MAX_HOURLY_COST_USD, or let a worker end');
    elsif v_spent.today_usd + v_spent.committed_usd + v_wanted > v_daily then
        perform public.internal_refuse('OR003', format('%s is over the budget of the day', p_worker_id),
            format('$%s spent + $%s committed + $%s > DAILY_BUDGET_USD=%s', round(v_spent.today_usd, 4),
                   round(v_spent.committed_usd, 4), round(v_wanted, 4), v_daily),
            'raise DAILY_BUDGET_USD, or wait for midnight UTC');
    end if;
end
$_$;

CREATE FUNCTION public.internal_check_id(p_id text, p_what text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
begin
    if p_id is null or p_id !~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$' then
        perform public.internal_refuse('OR007', format('%s is not a valid id', p_what), format('got %L', left(p_id, 100)),
            'letters, digits, _ and -, at most 63, the first one a letter or digit');
    end if;
end
$_$;

CREATE FUNCTION public.internal_check_keys(p_object jsonb, p_allowed text[], p_what text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_key text;
begin
    if p_object is null or jsonb_typeof(p_object) <> 'object' then
        perform public.internal_refuse('OR007', format('%s must be a JSON object', p_what));
    end if;
    select k into v_key from jsonb_object_keys(p_object) k where k <> all (p_allowed) limit 1;
    if v_key is not null then
        perform public.internal_refuse('OR007', format('%s has an unknown key %L', p_what, v_key), '',
            'known are: ' || array_to_string(p_allowed, ', '));
    end if;
end
$$;

CREATE FUNCTION public.internal_check_size(p_value jsonb, p_limit_bytes integer, p_what text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    if octet_length(p_value::text) > p_limit_bytes then
        perform public.internal_refuse('OR007', format('%s is too large', p_what),
            format('%s bytes, the limit is %s', octet_length(p_value::text), p_limit_bytes),
            'Upload it and pass its location.');
    end if;
end
$$;

CREATE FUNCTION public.internal_check_task(p_task jsonb, p_index integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    v_what text := format('task %s', p_index);
    v_key text;
    v_value jsonb;
    v_fine boolean;
begin
    perform public.internal_check_keys(p_task, array['id', 'task_type', 'params', 'pool', 'priority', 'max_attempts',
        'run_after', 'depends_on', 'dedupe_key', 'timeout_s'], v_what);
    if coalesce(p_task->>'task_type', '') = '' then
        perform public.internal_refuse('OR007', v_what || ' has no task_type', '', 'say what kind of work it is');
    end if;
    for v_key, v_value in select key, value from jsonb_each(p_task) loop
        if v_value = 'null' then
            continue;
        end if;
        begin  -- a value that does not even parse is refused like one out of bounds
            v_fine := case v_key
                when 'id' then jsonb_typeof(v_value) = 'string' and (v_value #>> '{}')::uuid is not null
                when 'task_type' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') <= 200
                when 'params' then jsonb_typeof(v_value) = 'object' and octet_length(v_value::text) <= 1048576
                              and not public.internal_is_unreadable(v_value)
                when 'pool' then jsonb_typeof(v_value) = 'string'
                                 and v_value #>> '{}' ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'
                when 'priority' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int is not null
                when 'max_attempts' then jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::int between 1 and 100
                when 'run_after' then jsonb_typeof(v_value) = 'string' and isfinite((v_value #>> '{}')::timestamptz)
                when 'depends_on' then jsonb_typeof(v_value) = 'array' and jsonb_array_length(v_value) <= 10000
                when 'dedupe_key' then jsonb_typeof(v_value) = 'string' and length(v_value #>> '{}') between 1 and 500
                when 'timeout_s' then jsonb_typeof(v_value) = 'number'
                                      and (v_value #>> '{}')::numeric between 0.001 and 2592000
            end;
        exception when data_exception then
            v_fine := false;
        end;
        if not v_fine then
            perform public.internal_refuse('OR007', format('%s: %s is not valid', v_what, v_key),
                'got ' || left(v_value::text, 200),
                case v_key
                    when 'id' then 'a uuid'
                    when 'task_type' then 'text of at most 200 characters'
                    when 'params' then 'a JSON object of at most 1 MiB and 64 levels, without a number of more than 4000 digits'
                    when 'pool' then 'letters, digits, _ and -, at most 63'
                    when 'priority' then 'a whole number; higher goes first'
                    when 'max_attempts' then 'a whole number from 1 to 100'
                    when 'run_after' then 'a time in ISO 8601, with its offset'
                    when 'depends_on' then 'a list of at most 10000 task ids, or "#0" for the first task of the batch'
                    when 'dedupe_key' then 'text of at most 500 characters'
                    else 'seconds, at most 2592000'
                end);
        end if;
    end loop;
end
$_$;

CREATE FUNCTION public.internal_check_term(p_fleet text, p_term bigint, p_what text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_term bigint;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    select l.term into v_term from public.fleet_lease l where l.fleet = p_fleet for share;
    if v_term is distinct from p_term or p_term is null then
        perform public.internal_refuse('OR001', format('%s refused: term %s does not lead fleet %s', p_what, p_term, p_fleet),
            format('the present term is %s', v_term), 'Another orchestrator leads; call fleet_lead and observe again.');
    end if;
end
$$;

CREATE FUNCTION public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_wanted text := public.internal_wanted(p_worker);
    v_tasks jsonb;
    v_status text := p_worker.status;
    v_claim_no bigint := p_worker.claim_no;
    v_spent boolean := false;
begin
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted <> 'run' or p_worker.status not in ('spawning', 'active', 'idle') then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
    elsif p_claim_no < v_claim_no
       or p_claim_no <= (select max(a.claim_no) from public.task_attempts a
                          where a.worker_id = p_worker.id and a.nonce = p_nonce) then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
        v_spent := v_tasks = '[]';
    else
        if p_worker.status <> 'spawning' and p_worker.held_back is null then
            if not public.internal_is_store_away(p_worker.fleet, p_now) then
                v_tasks := public.internal_take(p_worker, p_claim_no, p_batch, p_now);
            end if;
            if v_tasks is not null then
                v_status := 'active';
            elsif p_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is null then
            v_claim_no := p_claim_no;
            if coalesce(p_wait_s, 0) <= 0 or public.internal_is_pod() and public.internal_is_over_postgrest() then
                v_claim_no := p_claim_no + 1;
            end if;
        end if;
        if v_status <> p_worker.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', jsonb_array_length(v_tasks), p_worker.pool)
                else format('asked for work of pool %s and there was none', p_worker.pool) end);
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker.id;
        elsif v_claim_no <> p_worker.claim_no then
            update public.workers w set claim_no = v_claim_no where w.id = p_worker.id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', p_worker.pool, 'state', v_status,
                              'tasks', coalesce(v_tasks, '[]'), 'spent', v_spent);
end
$$;

CREATE FUNCTION public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', t.id, 'task_type', t.task_type, 'params', t.params, 'attempt', t.attempts,
               'max_attempts', t.max_attempts, 'timeout_s', t.timeout_s,
               'output_prefix', public.internal_output_prefix(t.id, t.attempts, a.nonce),
               'dependencies', coalesce((
                    select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                        'output_location', d.output_location,
                                                        'result_data', d.result_data) order by n.place)
                      from unnest(t.depends_on) with ordinality n (id, place) join public.internal_results(t.depends_on) d on d.id = n.id), '[]')
           ) order by t.priority desc, t.created_at, t.id), '[]')
      from public.task_attempts a
      join public.tasks t on t.id = a.task_id and t.attempts = a.attempt
     where a.worker_id = p_worker_id and a.nonce = p_nonce and a.claim_no = p_claim_no and a.ended_at is null
       and t.status = 'In Progress' and t.worker_id = p_worker_id
$$;

CREATE FUNCTION public.internal_clock(p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_now timestamptz := clock_timestamp();
    v_set text;
begin
    if p_now is not null and not public.internal_is_pod() then
        v_now := p_now;
    end if;
    v_set := set_config('orchestrator.now', v_now::text, true);
    v_set := set_config('orchestrator.statement', statement_timestamp()::text, true);
    return v_now;
end
$$;

CREATE FUNCTION public.internal_close_attempts(p_ids uuid[], p_gone boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
    update public.task_attempts a
       set ended_at = greatest(public.internal_now(), a.started_at),
           outcome = case t.status when 'Complete' then 'complete' when 'Failed' then 'failed'
                                   when 'Cancelled' then 'cancelled' else 'lost' end,
           message = case when p_gone then 'The task was deleted'
                          else format('The task was changed by hand: %s', t.status) end
      from unnest(p_ids) n (id) left join public.tasks t on t.id = n.id
     where a.task_id = n.id and a.ended_at is null
       and (t.status = 'In Progress' and t.attempts = a.attempt and t.worker_id = a.worker_id) is not true;
end
$$;

CREATE FUNCTION public.internal_code_checked() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    new.failure_code := 'INVALID_CODE';
    return new;
end
$$;

CREATE FUNCTION public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_log_last bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- no list, or something in it is no id or number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = p_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = p_now
          from (select * from unnest(v_ids, v_attempts, v_data) u (id, attempt, result_data) order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker.id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = p_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select array_agg(d.id) into v_held from done d;
    if cardinality(v_held) = cardinality(v_ids) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    if exists (select from unnest(v_ids, v_attempts) u (id, attempt) join public.tasks t on t.id = u.id and t.attempts = u.attempt
                where t.status = 'In Progress' and t.worker_id = p_worker.id) then  -- one by one, the others are taken
        perform public.internal_refuse('OR007', 'a trigger of the database suppressed a completion');
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when (r->>'task_id')::uuid = any (v_held) and t.attempts = (r->>'attempt')::int then 'ok'
                   when exists (select from public.task_attempts a
                                 where a.task_id = (r->>'task_id')::uuid and a.attempt = (r->>'attempt')::int
                                   and a.worker_id = p_worker.id and a.outcome = 'complete') then 'already'
                   else 'fenced' end order by n)
          from jsonb_array_elements(p_results) with ordinality e (r, n)
          left join public.tasks t on t.id = (r->>'task_id')::uuid));
end
$$;

CREATE FUNCTION public.internal_cost_booking() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_until timestamptz;
begin
    select w.billing_until into v_until from public.workers w where w.id = new.worker_id;
    if new.from_at >= v_until then
        return null;
    elsif new.to_at > v_until then
        new.usd := new.usd * extract(epoch from v_until - new.from_at) / extract(epoch from new.to_at - new.from_at);
        new.to_at := v_until;
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_dependants(p_ids uuid[]) RETURNS uuid[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_indexscan TO 'off'
    SET jit TO 'off'
    AS $$
    select array_agg(distinct w.id)
      from (select array_agg(e.id) as ids from unnest(p_ids) with ordinality e (id, n) group by (e.n - 1) / 1000) s
     cross join lateral (
           select t.id from public.tasks t where t.blocked and t.status = 'Queued' and t.depends_on && s.ids) w
$$;

CREATE FUNCTION public.internal_done_elsewhere(p_worker public.workers) RETURNS timestamp with time zone
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select max(a.ended_at)
      from public.workers o
     cross join lateral (
           select n.task_id, n.outcome, n.started_at, n.ended_at from public.task_attempts n
            where n.worker_id = o.id order by n.started_at desc limit 20) a
      join public.tasks t on t.id = a.task_id
     where o.fleet = p_worker.fleet and o.status <> 'terminated' and o.pool = p_worker.pool and o.id <> p_worker.id
       and a.outcome = 'complete'
       and a.started_at >= coalesce(p_worker.held_back->>'first', p_worker.held_back->>'since')::timestamptz
       and p_worker.held_back->'types' ? t.task_type
$$;

CREATE FUNCTION public.internal_end_cycle(p_ids uuid[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_CYCLE',
           error_message = format('It waits for task %s, and these tasks wait for each other: none can ever run', t.depends_on[1])
     where t.id = any (p_ids) and t.status = 'Queued' and t.blocked
$$;

CREATE FUNCTION public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    update public.tasks t
       set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
           failure_code = p_code, error_message = left(p_message, 4000)
     where t.id = p_task_id;
    perform public.internal_fire_deferred();
    if exists (select from public.tasks t where t.id = p_task_id and t.status = 'Queued' and not t.blocked
                                            and (t.run_after is null or t.run_after <= p_now)) then
        perform public.internal_refused(array[p_task_id], 'claim', p_message);
        return false;
    end if;
    return true;
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'claim', p_message);
    return false;
end
$$;

CREATE FUNCTION public.internal_events_are_final() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    perform public.internal_refuse('OR007', 'worker_events is append-only');
    return null;
end
$$;

CREATE FUNCTION public.internal_fail_behind(p_ended uuid[], p_most integer) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    c_letters constant int := 4000;
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_all uuid[] := public.internal_waiting_behind(p_ended, p_most);
    v_places jsonb;  -- of each of v_all. A value of such an object is found without a join, whatever the planner expects
    v_locked uuid[];
    v_task record;
    v_cause int;
    v_message text;
    v_ids uuid[] := '{}';
    v_messages text[] := '{}';
    v_ends text[] := '{}';  -- by place: how the task ended, as a dependant says it; null: it did not end
    v_whys text[] := '{}';  -- why it ended
    v_roots boolean[] := '{}';  -- whether that is why the first task of all ended
begin
    select array_agg(l.id) into v_locked from (
        select t.id from public.tasks t where t.id = any (v_all) and t.status = 'Queued' and t.blocked
         order by t.id for no key update skip locked) l;
    if v_locked is null then
        return '{}';
    end if;
    select jsonb_object_agg(p.id, p.n) into v_places from unnest(v_all) with ordinality p (id, n);
    for v_task in
        select (v_places->t.id::text)::int as n, t.id, t.task_type, t.status, t.failure_code, t.error_message,
               array(select (v_places->d.id::text)::int from unnest(t.depends_on) with ordinality d (id, place)
                      where v_places ? d.id::text order by d.place) as needs
          from public.tasks t where t.id = any (p_ended || v_locked) and v_places ? t.id::text order by 1
    loop
        v_cause := null;
        if v_task.status in ('Failed', 'Cancelled') then
            v_roots[v_task.n] := v_task.failure_code is not distinct from 'DEPENDENCY_FAILED';
            v_whys[v_task.n] := case
                when v_roots[v_task.n] then regexp_replace(
                    v_task.error_message, '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                else concat_ws(': ', v_task.failure_code, v_task.error_message) end;
            v_ends[v_task.n] := format('Dependency %s (%s) ended as %s', v_task.id, v_task.task_type, v_task.status);
            continue;
        end if;
        foreach v_cause in array v_task.needs loop
            exit when v_ends[v_cause] is not null;
            v_cause := null;
        end loop;
        continue when v_cause is null;
        v_message := left(concat_ws(': ', v_ends[v_cause], nullif(v_whys[v_cause], '')), c_letters);
        v_ids := v_ids || v_task.id;
        v_messages := v_messages || v_message;
        v_ends[v_task.n] := format('Dependency %s (%s) ended as Failed', v_task.id, v_task.task_type);
        v_whys[v_task.n] := case when v_roots[v_cause] then v_whys[v_cause] else v_message end;
        v_roots[v_task.n] := true;
    end loop;
    begin
        v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
        v_places := jsonb_object(v_ids::text[], v_messages);
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED', error_message = v_places->>t.id::text
         where t.id = any (v_ids) and t.status = 'Queued';
        if (select count(*) from public.tasks t where t.id = any (v_ids) and t.status = 'Failed') < cardinality(v_ids) then
            raise exception using errcode = 'OR008';  -- known only here
        end if;
        v_set := set_config('orchestrator.settling', v_before, true);
        perform public.internal_fire_deferred();
    exception when others then  -- OR008, or a user's trigger
        if public.internal_is_passing(sqlstate) then
            raise;
        end if;
        return null;
    end;
    return v_ids;
end
$$;

CREATE FUNCTION public.internal_failed_behind(p_id uuid) RETURNS uuid[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_indexscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
    with recursive behind (id) as (
        select p_id
        union
        select f.id from behind b cross join lateral (
            select t.id from public.tasks t
             where t.depends_on @> array[b.id] and t.depends_on <> '{}' and t.status = 'Failed'
               and t.failure_code = 'DEPENDENCY_FAILED') f
    )
    select array_agg(b.id) from behind b
$$;

CREATE FUNCTION public.internal_fire_deferred() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    if current_setting('orchestrator.alone', true) = statement_timestamp()::text then
        set constraints all immediate;
    end if;
end
$$;

CREATE FUNCTION public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
    v_planned text;  -- why its worker is being ended, if that was meant
    v_backoff boolean := p_backoff;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    if p_outcome = 'lost' then
        select w.exit_cause into v_planned from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget',
                                'superseded');
    end if;
    if v_planned is not null then
        p_outcome := 'released';
        p_counted := false;
        p_failure := jsonb_build_object(
            'code', 'RELEASED', 'message', format('Worker %s was ended: %s', v_task.worker_id, v_planned));
    end if;
    v_used := v_task.attempts - v_task.uncounted;
    if p_outcome = 'lost' and v_used > 1 then
        v_backoff := exists (select from public.task_attempts a where a.task_id = p_task_id
                                and a.attempt < v_task.attempts and a.outcome = 'lost');
    end if;
    if v_task.cancel_requested_at is not null then
        v_outcome := 'cancelled';
        v_status := 'Cancelled';
    elsif p_counted and (v_used >= v_task.max_attempts or p_failure->'retryable' = 'false') then
        v_outcome := 'failed';
        v_status := 'Failed';
    elsif v_backoff then
        -- 30 s, doubling up to an hour after each failure; +-20 % from the id, so that a crowd does not come back at once.
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + v_jitter * interval '1 second'
            * case when p_outcome = 'lost' then 30 else least(30 * 2 ^ least(v_used - 1, 20), 3600) end;
    end if;
    -- The attempt first: the task's own triggers close what is still open.
    update public.task_attempts a
       set ended_at = p_now,
           outcome = case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end,
           failure_code = left(p_failure->>'code', 100), exit_class = left(p_failure->>'exit_class', 100),
           failed_at_point = left(p_failure->>'point', 100), message = left(p_failure->>'message', 4000),
           detail = p_failure->'detail',
           log_last = (select (w.log_bytes #>> array[a.nonce, 'handler'])::bigint
                         from public.workers w where w.id = a.worker_id)
     where a.task_id = p_task_id and a.attempt = v_task.attempts and a.ended_at is null;
    update public.tasks t
       set status = v_status, run_after = v_run_after, lease_expires_at = null,
           uncounted = t.uncounted + case when p_counted then 0 else 1 end,
           worker_id = case when v_outcome = 'requeued' then null else t.worker_id end,
           generation_processed_at = case when v_outcome = 'requeued' then null else p_now end,
           error_message = left(p_failure->>'message', 4000), failure_code = left(p_failure->>'code', 100),
           failed_at_point = case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end
     where t.id = p_task_id;
    if not found then
        raise exception 'a trigger of the database suppressed the end of attempt % at task %', v_task.attempts, p_task_id;
    end if;
    return v_outcome;
end
$$;

CREATE FUNCTION public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_floor int := (select f.last_value from public.task_attempts_floor f);
begin
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, updated_at = p_now,
               (attempts, uncounted) = (
                   select n.attempt, t.uncounted + n.attempt - t.attempts - 1
                     from (select 1 + greatest(t.attempts, v_floor, (select max(a.attempt) from public.task_attempts a
                                                                      where a.task_id = t.id)) as attempt) n),
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (p_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at, t.status
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first
          from taken k where k.status = 'In Progress'  -- as a user's trigger left it
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', public.internal_output_prefix(k.id, k.attempts, p_worker.nonce),
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.internal_results(k.depends_on) d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k where k.status = 'In Progress';
    return v_tasks;
end
$$;

CREATE FUNCTION public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone, INOUT p_passed uuid[], OUT tasks jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_task record;
    v_message text;
    v_one jsonb;
begin
    for v_task in select t.ctid as place, t.id from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        begin
            v_one := public.internal_hand_over(p_worker, p_claim_no, array[v_task.place], p_now);
            perform public.internal_fire_deferred();
            if v_one is not null then
                tasks := coalesce(tasks, '[]') || v_one;
                continue;
            end if;
            continue when not exists (select from public.tasks t where t.id = v_task.id and t.status = 'Queued' and not t.blocked);
            v_message := 'A trigger of the database suppressed its claim';
        exception when others then  -- whatever a user's row, trigger or constraint makes of it
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
        end;
        if not public.internal_end_unclaimed(v_task.id, 'TASK_UNCLAIMABLE', v_message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

CREATE FUNCTION public.internal_hold(p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt integer, p_outcomes text[]) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_held boolean;
begin
    if p_worker.nonce is distinct from p_nonce then
        return 'fenced';
    end if;
    select t.status = 'In Progress' and t.worker_id = p_worker.id and t.attempts = p_attempt into v_held
      from public.tasks t where t.id = p_task_id for no key update;
    if v_held then
        return 'held';
    elsif exists (select from public.task_attempts a
                   where a.task_id = p_task_id and a.attempt = p_attempt and a.worker_id = p_worker.id
                     and a.outcome = any (p_outcomes)) then
        return 'already';
    end if;
    return 'fenced';
end
$$;

CREATE FUNCTION public.internal_hold_back(p_worker public.workers, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_limit int := greatest(1, coalesce((p_worker.metadata->>'max_failures')::int, 5));
    v_failures int;
    v_types text[];
    v_codes text[];
    v_first timestamptz;
    v_permanent boolean;
    v_held jsonb;
    v_task uuid;
    c_look constant int := 200;  -- attempts of this worker that are looked at: two claims of the largest size
    c_named constant int := 5;  -- types and codes that are remembered
begin
    if p_worker.held_back is not null or p_worker.own_program or p_worker.status not in ('active', 'idle') then
        return;
    end if;
    with newest as (
        select a.task_id, a.ended_at, a.outcome, a.failure_code, a.permanent from public.task_attempts a
         where a.worker_id = p_worker.id order by a.started_at desc limit c_look
    ), failed as (
        select n.task_id, n.failure_code, n.ended_at, n.permanent from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
    )
    select count(distinct f.task_id), (array_agg(distinct t.task_type))[1:c_named],
           (array_agg(distinct f.failure_code))[1:c_named],
           min(f.ended_at), bool_and(coalesce(f.permanent, false))
      into v_failures, v_types, v_codes, v_first, v_permanent
      from failed f left join public.tasks t on t.id = f.task_id;
    if v_failures < v_limit then
        return;
    end if;
    v_held := jsonb_build_object('since', p_now, 'first', v_first, 'failures', v_failures,
                                 'types', to_jsonb(array_remove(v_types, null)),
                                 'codes', to_jsonb(array_remove(v_codes, null)));
    if v_permanent then  -- the handler blames these tasks, and nothing contradicts it unless others complete such tasks
        p_worker.held_back := v_held;
        if public.internal_done_elsewhere(p_worker) is null then
            return;
        end if;
    end if;
    update public.workers w
       set held_back = v_held,
           waiting_on = 'orchestrator',
           waiting_for = format('a second opinion: it claims no more after %s different tasks failed in a row (%s)',
                                v_failures, array_to_string(v_codes, ', '))
     where w.id = p_worker.id;
    for v_task in
        select t.id from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress'
         order by t.id for update skip locked loop
        perform public.internal_give_up(v_task, 'released', jsonb_build_object('code', 'RELEASED', 'message',
            format('Worker %s claims no more: its last %s tasks failed', p_worker.id, v_failures)), false, false, p_now);
    end loop;
    perform pg_notify('orchestrator_fleet', p_worker.id);
end
$$;

CREATE TABLE public.tasks (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    task_type text NOT NULL,
    params jsonb DEFAULT '{}'::jsonb NOT NULL,
    status text DEFAULT 'Queued'::text NOT NULL,
    worker_id text,
    attempts integer DEFAULT 0 NOT NULL,
    output_location text,
    result_data jsonb,
    error_message text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    generation_started_at timestamp with time zone,
    generation_processed_at timestamp with time zone,
    pool text,
    priority integer DEFAULT 0 NOT NULL,
    max_attempts integer,
    uncounted integer DEFAULT 0 NOT NULL,
    timeout_s numeric,
    run_after timestamp with time zone,
    depends_on uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    blocked boolean DEFAULT false NOT NULL,
    dedupe_key text,
    lease_expires_at timestamp with time zone,
    progress jsonb,
    progress_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    failure_code text,
    failed_at_point text,
    pool_by_type boolean DEFAULT false NOT NULL,
    output_object jsonb,
    CONSTRAINT tasks_attempts_counted CHECK (((attempts >= 0) AND ((uncounted >= 0) AND (uncounted <= attempts)) AND (max_attempts > 0))),
    CONSTRAINT tasks_filled CHECK (((pool IS NOT NULL) AND (max_attempts IS NOT NULL))),
    CONSTRAINT tasks_pool_named CHECK (((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$'::text) AND (octet_length(pool) <= 63))),
    CONSTRAINT tasks_status_known CHECK ((status = ANY (ARRAY['Queued'::text, 'In Progress'::text, 'Complete'::text, 'Failed'::text, 'Cancelled'::text])))
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN public.tasks.attempts IS 'How often it was claimed: the fencing token of the claim that holds it';

COMMENT ON COLUMN public.tasks.pool IS 'NULL in a write: by task type';

COMMENT ON COLUMN public.tasks.priority IS 'Higher first, then age';

COMMENT ON COLUMN public.tasks.max_attempts IS 'NULL in a write: by task type';

COMMENT ON COLUMN public.tasks.uncounted IS 'Attempts that do not count against max_attempts: given back unstarted, or before a retry';

COMMENT ON COLUMN public.tasks.blocked IS 'Queued, but a task in depends_on is not Complete; kept by triggers';

COMMENT ON COLUMN public.tasks.dedupe_key IS 'Unique while the task is Queued or In Progress';

COMMENT ON COLUMN public.tasks.lease_expires_at IS 'Renewed by heartbeats; past it the task is rescued';

COMMENT ON COLUMN public.tasks.progress_at IS 'When progress last changed; the stuck clock';

COMMENT ON COLUMN public.tasks.failed_at_point IS 'Claiming, Processing or Completion';

COMMENT ON COLUMN public.tasks.pool_by_type IS 'Its pool was not named by whoever submitted it, but filled in';

CREATE FUNCTION public.internal_holder(p_task public.tasks, p_now timestamp with time zone, OUT held_by text, OUT rescue_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_worker record;
    v_program boolean;
    v_stuck_s numeric;
begin
    select bool_or(s.value->'pools' ? p_task.pool), max((s.value->>'stuck_s')::numeric) into v_program, v_stuck_s
      from public.fleet_settings s where s.name = 'programs';
    select w.status = 'terminated' as gone, w.terminated_at, w.own_program, w.metadata ? 'legacy_status' as legacy
      into v_worker from public.workers w where w.id = p_task.worker_id;
    if p_task.lease_expires_at < 'infinity' then
        rescue_at := p_task.lease_expires_at;
        if v_program and not exists (select from public.task_attempts a
                                      where a.task_id = p_task.id and a.attempt = p_task.attempts) then
            rescue_at := null;  -- the lease is not of a claim: its program has the task, whatever the lease says
        end if;
    elsif v_worker.gone and not (v_program and v_worker.legacy) then
        rescue_at := v_worker.terminated_at;
    elsif not v_program and v_worker.own_program is not true then
        rescue_at := greatest(p_task.updated_at, p_task.progress_at) + v_stuck_s * interval '1 second';
    end if;
    held_by := case when rescue_at is null and v_stuck_s is null then 'unknown'
                    when rescue_at is null then 'program'
                    when rescue_at > p_now and p_task.lease_expires_at < 'infinity' then 'lease'
                    else 'nobody' end;
end
$$;

CREATE FUNCTION public.internal_inputs(p_task_id uuid, p_limit_bytes integer, OUT bytes bigint, OUT code text, OUT message text) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_needs int;
begin
    bytes := 0;
    select cardinality(t.depends_on), octet_length(t.params::text)
           + coalesce((select sum(octet_length(d.result_data::text)) from public.internal_results(t.depends_on) d), 0)
      into v_needs, bytes from public.tasks t where t.id = p_task_id;
    if bytes > p_limit_bytes then
        code := 'INPUTS_TOO_LARGE';
        message := format('Its params and the results of the %s tasks that it depends on are more than %s MiB',
                          v_needs, p_limit_bytes / 1048576);
    elsif exists (select from public.tasks t where t.id = p_task_id and public.internal_is_unreadable(t.params))
       or exists (select from public.tasks t cross join lateral public.internal_results(t.depends_on) d
                   where t.id = p_task_id and public.internal_is_unreadable(d.result_data)) then
        code := 'INPUTS_UNREADABLE';
        message := 'Its params or the results of the tasks that it depends on are nested deeper than 64 levels, '
                   'or have a number of more than 4000 digits';
    end if;
exception when program_limit_exceeded or statement_too_complex or numeric_value_out_of_range then
    code := 'INPUTS_TOO_LARGE';
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s', sqlerrm);
end
$$;

CREATE FUNCTION public.internal_is_anothers(p_fleet text, p_worker_id text, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select exists (select from public.workers w join public.fleet_lease l on l.fleet = w.fleet
                    where w.id = p_worker_id and w.fleet <> p_fleet and l.expires_at > p_now)
$$;

CREATE FUNCTION public.internal_is_here(p_fleet text, p_pool text, p_release text) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select exists (select from public.workers w
                    where w.fleet = p_fleet and w.pool = p_pool and w.release = p_release
                      and w.status in ('active', 'idle') and w.drain_requested_at is null)
$$;

CREATE FUNCTION public.internal_is_lost(p_task public.tasks, p_now timestamp with time zone, p_over_s numeric) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select coalesce(h.rescue_at <= p_now - p_over_s * interval '1 second', false) from public.internal_holder(p_task, p_now) h
$$;

CREATE FUNCTION public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select exists (
        select from public.fleet_lease l
         where l.fleet = p_fleet and l.unled_from is not null
           and l.since - l.unled_from >= greatest(p_lease_s - 20, p_lease_s / 2) * interval '1 second'
           and p_lease_expires_at - p_lease_s * interval '1 second' >= l.unled_from - interval '60 seconds'
           and p_lease_expires_at > l.unled_from and p_lease_expires_at < l.since + interval '30 seconds')
$$;

CREATE FUNCTION public.internal_is_over_postgrest() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select nullif(current_setting('request.method', true), '') is not null
$$;

CREATE FUNCTION public.internal_is_passing(p_sqlstate text) RETURNS boolean
    LANGUAGE sql IMMUTABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select left(p_sqlstate, 2) in ('08', '25', '40', '53', '55', '57', '58')
$$;

CREATE FUNCTION public.internal_is_pod() RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    -- Inside a security definer function current_user is the owner; the role that the request runs under is still here.
    return coalesce(current_setting('role', true), '') = 'gpu_worker' or session_user = 'gpu_worker';
end
$$;

CREATE FUNCTION public.internal_is_store_away(p_fleet text, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select exists (select from public.fleet_settings s
                    where s.fleet = p_fleet and s.name = 'store_away' and s.expires_at > p_now)
$$;

CREATE FUNCTION public.internal_is_unreadable(p_value jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    c_digits constant int := 4000;  -- Python refuses 4,301 of them
    v_text text;
begin
    if p_value @? 'strict $.**{65}' then
        return true;
    end if;
    v_text := p_value::text;
    -- A text without as many digits in a row as an expression can count has no such number. The digits may be a string's.
    return octet_length(v_text) > c_digits
       and v_text ~ '[0-9]{255}'
       and p_value @? 'strict $.** ? (@.type() == "number" && (@ >= 1e4000 || @ <= -1e4000))';
end
$_$;

CREATE FUNCTION public.internal_is_unrescuable(p_task_id uuid, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select exists (select from public.task_refusals r
                    where r.task_id = p_task_id and r.what = 'rescue' and r.retry_at > p_now)
$$;

CREATE FUNCTION public.internal_leader(p_fleet text, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select jsonb_build_object('holder', l.holder, 'since', l.since, 'term', l.term, 'expires_at', l.expires_at)
      from public.fleet_lease l where l.fleet = p_fleet and l.expires_at > p_now
$$;

CREATE FUNCTION public.internal_lock_briefly(p_ids uuid[], p_share boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '100ms'
    AS $$
declare
    c_waits constant int := 3;  -- in vain, in one transaction
    v_waits int := coalesce(nullif(current_setting('orchestrator.waits', true), '')::int, 0);
    v_set text;
begin
    if v_waits >= c_waits
       or exists (select from public.tasks_unsettled u where u.noted_at < clock_timestamp() - interval '1 second') then
        return false;
    end if;
    begin
        if p_share then
            perform from public.tasks t where t.id = any (p_ids) order by t.id for share;
        else
            perform from public.tasks t where t.id = any (p_ids) order by t.id for no key update;
        end if;
        return true;
    exception when lock_not_available or deadlock_detected then
        v_set := set_config('orchestrator.waits', (v_waits + 1)::text, true);
    end;
    return false;
end
$$;

CREATE FUNCTION public.internal_lock_queued(p_ids uuid[], INOUT p_waits integer, OUT locked uuid[], OUT missed uuid[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
begin
    for v_look in 1..2 loop
        select array_agg(l.id) into locked from (
            select t.id from public.tasks t where t.id = any (p_ids) and t.status = 'Queued'
             order by t.id for no key update skip locked) l;
        missed := array(select t.id from public.tasks t where t.id = any (p_ids) and t.status = 'Queued'
                        except select unnest(locked));
        exit when missed = '{}' or p_waits = 0 or not public.internal_lock_briefly(missed, false);
    end loop;
    if missed <> '{}' and p_waits > 0 then
        p_waits := p_waits - 1;
    end if;
end
$$;

CREATE FUNCTION public.internal_mark(p_pool text, p_now timestamp with time zone, OUT place integer, OUT created_at timestamp with time zone, OUT id uuid, OUT lowered integer) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    c_nowhere constant uuid := '00000000-0000-0000-0000-000000000000';
    c_least constant int := -2147483648;
    c_due constant int := 100;  -- more of them than that, and the claim looks everywhere
    v_low int;
    v_low_at timestamptz;
    v_due int;
    v_due_place int;
    v_due_at timestamptz;
begin
    select r.place, r.created_at, r.id, l.n, l.place, l.created_at, d.n, d.place, d.created_at
      into place, created_at, id, lowered, v_low, v_low_at, v_due, v_due_place, v_due_at
      from (select m.seen, m.xid, m.place, m.created_at, m.id from public.task_marks m
             where m.pool = p_pool and m.seen is not null order by m.no desc limit 1) r
     cross join lateral (
           select count(*) as n, min(m.place) as place, min(m.created_at) as created_at from public.task_marks m
            where m.pool = p_pool and m.seen is null and m.xid >= pg_snapshot_xmin(r.seen)
              and (m.xid = r.xid or not pg_visible_in_snapshot(m.xid, r.seen))) l
     cross join lateral (
           select count(*) as n, min(c.place) as place, min(c.created_at) as created_at from (
               select ~t.priority as place, t.created_at from public.tasks t
                where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after <= p_now
                order by t.run_after limit c_due) c) d  -- ordered: by its own index, and not through the whole queue
     where pg_snapshot_xmax(r.seen) <= pg_snapshot_xmax(pg_current_snapshot());  -- not restored from another server
    if not found or v_due = c_due then
        place := c_least;
        created_at := '-infinity';
        id := c_nowhere;
        return;
    end if;
    if (v_low, v_low_at) <= (place, created_at) then
        place := v_low;
        created_at := v_low_at;
        id := c_nowhere;
    end if;
    if (v_due_place, v_due_at) <= (place, created_at) then
        place := v_due_place;
        created_at := v_due_at;
        id := c_nowhere;
    end if;
end
$$;

CREATE FUNCTION public.internal_needing(p_ids uuid[]) RETURNS uuid[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_indexscan TO 'off'
    SET jit TO 'off'
    AS $$
    select array_agg(distinct w.id)
      from (select array_agg(e.id) as ids from unnest(p_ids) with ordinality e (id, n) group by (e.n - 1) / 1000) s
     cross join lateral (
           select t.id from public.tasks t
            where t.status = 'Queued' and t.depends_on <> '{}' and t.depends_on && s.ids) w
$$;

CREATE FUNCTION public.internal_now() RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    -- The time of a call holds for what follows from that call, and not for a user's next statement in its transaction.
    if current_setting('orchestrator.statement', true) = statement_timestamp()::text then
        return current_setting('orchestrator.now', true)::timestamptz;
    end if;
    return clock_timestamp();
end
$$;

CREATE FUNCTION public.internal_open_interval(p_worker public.workers, p_now timestamp with time zone) RETURNS TABLE(kind text, from_at timestamp with time zone, to_at timestamp with time zone, usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select case p_worker.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                else 'draining' end,
           i.from_at, i.to_at,
           coalesce(p_worker.price_usd_per_hour, 0) * extract(epoch from i.to_at - i.from_at) / 3600
      from (select greatest(p_worker.state_since, p_worker.billing_since) as from_at,
                   least(p_now, p_worker.billing_until) as to_at) i
     where p_worker.status <> 'terminated' and p_worker.billing_since is not null and i.to_at > i.from_at
$$;

CREATE FUNCTION public.internal_output_prefix(p_task_id uuid, p_attempt integer, p_nonce text) RETURNS text
    LANGUAGE sql IMMUTABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select 'outputs/' || p_task_id || '/' || p_attempt || '-' || left(md5(p_nonce), 11) || '/'
$$;

CREATE FUNCTION public.internal_paused(p_fleet text, p_now timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select s.reason from public.fleet_settings s
     where s.fleet = p_fleet and s.name = 'paused' and coalesce(s.expires_at > p_now, true)
$$;

CREATE FUNCTION public.internal_pauses(p_fleet text, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select coalesce(jsonb_object_agg(coalesce(nullif(substr(s.name, 8), ''), '*'),
                                     jsonb_build_object('reason', s.reason, 'until', s.expires_at)), '{}')
      from public.fleet_settings s
     where s.fleet = p_fleet and (s.name = 'paused' or s.name like 'paused:%') and coalesce(s.expires_at > p_now, true)
$$;

CREATE FUNCTION public.internal_pool_decision(p_fleet text, p_pool text) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select to_jsonb(d) from public.decisions d
     where d.fleet = p_fleet and d.pool = p_pool order by d.id desc limit 1
$$;

CREATE FUNCTION public.internal_raise_floor(p_attempt integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    -- Without the lock the lower of two values could be written last.
    perform pg_advisory_xact_lock(hashtextextended('orchestrator attempts floor', 0));
    perform setval('public.task_attempts_floor', p_attempt)
       from public.task_attempts_floor f where p_attempt > f.last_value;
end
$$;

CREATE FUNCTION public.internal_raise_mark(p_pool text, p_now timestamp with time zone, p_anew boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_sort TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_seen pg_snapshot;
    v_last record;
    v_from record;
    c_marks constant int := 1951809;  -- a namespace of advisory locks
begin
    if current_setting('transaction_isolation') <> 'read committed'  -- its snapshot may be older than the last mark's
       or not pg_try_advisory_xact_lock(c_marks, hashtext(p_pool)) then
        return;
    end if;
    v_seen := pg_current_snapshot();
    select m.no, pg_snapshot_xmin(m.seen) as xmin into v_last
      from public.task_marks m where m.pool = p_pool and m.seen is not null order by m.no desc limit 1;
    select m.place, m.created_at, m.id into v_from from public.internal_mark(p_pool, p_now) m;
    if p_anew then
        v_from.place := -2147483648;
        v_from.created_at := '-infinity';
    end if;
    insert into public.task_marks (pool, seen, place, created_at, id)
    select p_pool, v_seen, coalesce(h.place, 2147483647), coalesce(h.created_at, 'infinity'),
           coalesce(h.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      from (values (1)) v (one) left join (
           select ~t.priority as place, t.created_at, t.id from public.tasks t
            where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after is null
              and (~t.priority, t.created_at, t.id) >= (v_from.place, v_from.created_at, v_from.id)
            order by ~t.priority, t.created_at, t.id limit 1) h on true;
    delete from public.task_marks m where m.pool = p_pool and m.seen is not null and m.no = v_last.no;
    delete from public.task_marks m
     where m.pool = p_pool and m.seen is null and m.xid >= coalesce(v_last.xmin, '0') and m.xid < pg_snapshot_xmin(v_seen);
    if p_anew then
        delete from public.task_marks m
         where m.pool = p_pool and m.seen is null
           and (m.xid < pg_snapshot_xmin(v_seen) or m.xid >= pg_snapshot_xmax(pg_current_snapshot()));
    end if;
end
$$;

CREATE FUNCTION public.internal_reference(p_reference text, p_ids uuid[], p_index integer) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    v_id uuid;
begin
    if p_reference ~ '^#[0-9]{1,9}$' then
        if substr(p_reference, 2)::int < p_index then
            return p_ids[substr(p_reference, 2)::int + 1];
        end if;
    elsif p_reference ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        v_id := p_reference::uuid;
        if v_id = any (p_ids[1:p_index]) or exists (select from public.tasks t where t.id = v_id) then
            return v_id;
        end if;
    end if;
    perform public.internal_refuse('OR007', format('task %s depends on %L, which does not exist', p_index, left(p_reference, 100)),
        'a dependency is an existing task, or an entry before it in the batch',
        'submit it first, or name it "#0", "#1", … by its place in the batch');
    return null;
end
$_$;

CREATE FUNCTION public.internal_refuse(p_code text, p_what text, p_why text DEFAULT ''::text, p_fix text DEFAULT ''::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    raise exception '%', p_what using errcode = p_code, detail = p_why, hint = p_fix;
end
$$;

CREATE FUNCTION public.internal_refused(p_ids uuid[], p_what text, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_now timestamptz := public.internal_now();
begin
    insert into public.task_refusals as r (task_id, what, reason, refused_at, retry_at)
    select distinct n.id, p_what, left(p_reason, 4000), v_now, v_now + interval '30 seconds'
      from unnest(p_ids) n (id) where n.id is not null order by 1
    on conflict (task_id) do update
       set what = excluded.what, reason = excluded.reason, refused_at = excluded.refused_at,
           times = case when r.what = excluded.what then least(r.times, 1000) + 1 else 1 end,
           retry_at = v_now + least(30 * 2 ^ case when r.what = excluded.what then least(r.times, 10) else 0 end, 600)
                              * interval '1 second';
end
$$;

CREATE FUNCTION public.internal_refused_ready(p_now timestamp with time zone) RETURNS TABLE(pool text, n bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select t.pool, count(*) from public.task_refusals r join public.tasks t on t.id = r.task_id
     where r.what = 'claim' and t.status = 'Queued' and not t.blocked and (t.run_after is null or t.run_after <= p_now)
     group by t.pool
$$;

CREATE FUNCTION public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_id uuid;
begin
    update public.tasks t
       set lease_expires_at = p_now + p_lease_s * interval '1 second',
           progress = coalesce(nullif(n->'progress', 'null'), t.progress),
           progress_at = case when coalesce(nullif(n->'progress', 'null'), t.progress) is distinct from t.progress
                              then p_now else t.progress_at end
      from jsonb_array_elements(p_tasks) n
     where t.id = any (p_ids) and t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int;
    perform public.internal_fire_deferred();
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    if cardinality(p_ids) > 1 then
        foreach v_id in array p_ids loop
            perform public.internal_renew(array[v_id], p_tasks, p_lease_s, p_now);
        end loop;
    end if;  -- otherwise its lease runs out
end
$$;

CREATE FUNCTION public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric DEFAULT 0, p_fleet text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.worker_id = p_worker_id and t.status = 'In Progress' and not public.internal_is_unrescuable(t.id, p_now)
             order by t.id for no key update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= p_now)
               and public.internal_is_lost(t, p_now, p_over_s)
               and not public.internal_is_unrescuable(t.id, p_now)
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at, t.updated_at,
               t.lease_expires_at < 'infinity' is true or w.status is not distinct from 'terminated' as leased,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s,
               public.internal_is_outage(w.fleet, w.lease_s, t.lease_expires_at) as outage
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        if v_task.outage and v_task.still_s is null then
            v_tasks := v_tasks || jsonb_build_object(
                'id', v_task.id, 'worker_id', v_task.worker_id,
                'outcome', public.internal_rescue_one(v_task.id, 'released', jsonb_build_object(
                    'code', 'RELEASED', 'message', format(
                        'Worker %s could not renew its lease, which ended %s: the database or the orchestrator was away',
                        v_task.worker_id, v_task.lease_expires_at)), false, p_now));
            continue;
        end if;
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            when not v_task.leased then jsonb_build_object(
                'code', 'NO_HOLDER', 'exit_class', 'lost',
                'message', format('It was In Progress without a lease, and it did not change since %s', v_task.updated_at))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_rescue_one(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, p_now));
    end loop;
    return v_tasks;
end
$$;

CREATE FUNCTION public.internal_rescue_one(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_outcome text;
begin
    v_outcome := public.internal_give_up(p_task_id, p_outcome, p_failure, p_counted, false, p_now);
    perform public.internal_fire_deferred();
    delete from public.task_refusals r where r.task_id = p_task_id;
    return v_outcome;
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'rescue',
        format('The database refused to take it back from its worker: %s (%s)', sqlerrm, sqlstate));
    return 'refused';
end
$$;

CREATE FUNCTION public.internal_results(p_ids uuid[]) RETURNS TABLE(id uuid, task_type text, output_location text, result_data jsonb, output_object jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select t.id, t.task_type, t.output_location, t.result_data,
           case when t.output_object->>'location' = t.output_location then t.output_object end
      from public.tasks t where t.id = any (p_ids)
    union all
    select r.id, r.task_type, r.output_location, r.result_data,
           case when r.output_object->>'location' = r.output_location then r.output_object end
      from public.task_results r
     where r.id = any (p_ids) and not exists (select from public.tasks t where t.id = r.id)
$$;

CREATE FUNCTION public.internal_roll_up(p_anew boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    if p_anew then
        perform public.internal_settle_all(public.internal_now());
    end if;
    lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts go on
    if p_anew then
        with gone as (delete from public.task_counts)
        insert into public.task_counts (pool, kind, n)
        select t.pool, case when t.blocked then 'blocked' when t.run_after is not null then 'timed' else 'plain' end, count(*)
          from public.tasks t where t.status = 'Queued' group by 1, 2;
        perform public.internal_raise_mark(p.pool, public.internal_now(), true)
           from (select distinct m.pool from public.task_marks m) p;
    else
        with gone as (delete from public.task_counts returning pool, kind, n)
        insert into public.task_counts (pool, kind, n)
        select g.pool, g.kind, sum(g.n) from gone g group by 1, 2 having sum(g.n) <> 0;
    end if;
end
$$;

CREATE FUNCTION public.internal_settle(p_ids uuid[], p_gone uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    c_most constant int := 2000;  -- that fail in one statement; fewer while a user's trigger keeps one of them from it
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
    v_ended uuid[];
    v_behind uuid[];
    v_most int := c_most;
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            perform public.internal_unsettled(v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ended := public.internal_settle_each(false, v_lock.locked, v_gone);
        v_gone := '{}';
        v_behind := '{}';
        if v_ended <> '{}' then
            v_most := least(2 * v_most, c_most);
            loop
                v_behind := public.internal_fail_behind(v_ended, v_most);
                exit when v_behind is not null or v_most = 1;
                v_most := v_most / 2;
            end loop;
        end if;
        v_ids := public.internal_dependants(v_ended || v_behind);
    end loop;
end
$$;

CREATE FUNCTION public.internal_settle_again(p_nos bigint[], p_waits boolean) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_nos bigint[];
    v_ids uuid[];
    v_needed uuid[];
    v_kept uuid[];
    v_open uuid[];
    v_busy jsonb;
    v_lock record;
begin
    select array_agg(l.no) into v_nos from (
        select u.no from public.tasks_unsettled u where u.no = any (p_nos) order by u.no for update skip locked) l;
    if v_nos is null then
        return 0;
    end if;
    v_ids := array(select distinct unnest(u.task_ids) from public.tasks_unsettled u where u.no = any (v_nos));
    select * into v_lock from public.internal_lock_queued(v_ids, 0);
    v_needed := array(
        select d.id from public.tasks d
         where d.status in ('Queued', 'In Progress', 'Complete')
           and d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_lock.locked))));
    v_kept := array(select s.id from (
        select d.id from public.tasks d where d.id = any (v_needed) and d.status in ('Queued', 'In Progress', 'Complete')
         order by d.id for share skip locked) s);
    if cardinality(v_kept) < cardinality(v_needed) and p_waits and public.internal_lock_briefly(v_needed, true) then
        v_kept := v_needed;
    end if;
    perform public.internal_settle(v_lock.locked, '{}');
    v_open := v_lock.missed;
    if cardinality(v_kept) < cardinality(v_needed) then
        select jsonb_object_agg(b.id, true) into v_busy from (select unnest(v_needed) as id except select unnest(v_kept)) b;
        v_open := v_open || array(select t.id from public.tasks t
                                   where t.id = any (v_lock.locked)
                                     and exists (select from unnest(t.depends_on) n (id) where v_busy ? n.id::text));
    end if;
    select coalesce(jsonb_object_agg(o.id, true), '{}') into v_busy from unnest(v_open) o (id);
    delete from public.tasks_unsettled u
     where u.no = any (v_nos) and not exists (select from unnest(u.task_ids) n (id) where v_busy ? n.id::text);
    if not p_waits and v_open <> '{}' then
        update public.tasks_unsettled u
           set tried_at = clock_timestamp(), task_ids = array(select n.id from unnest(u.task_ids) n (id) where v_busy ? n.id::text)
         where u.no = any (v_nos);
    end if;
    return cardinality(v_nos);
end
$$;

CREATE FUNCTION public.internal_settle_all(p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    c_slice constant int := 1000;
    c_absent constant interval := '1 hour';  -- after that nobody will insert it
    v_ids uuid[];
    v_gone uuid[];
begin
    perform public.internal_settle_late();
    for v_ids in
        select array_agg(q.id) from (
            select t.id, row_number() over () as n from public.tasks t
             where t.status = 'Queued' and (t.blocked or t.depends_on <> '{}')) q
         group by q.n / c_slice
    loop
        begin
            v_gone := array(
                select distinct n.id from public.tasks t cross join unnest(t.depends_on) n (id)
                 where t.id = any (v_ids) and t.updated_at < p_now - c_absent
                   and not exists (select from public.tasks d where d.id = n.id)
                   and not exists (select from public.task_results r where r.id = n.id));
            perform public.internal_settle(v_ids, v_gone);
        exception when others then
            raise warning 'tasks could not be settled: % (%)', sqlerrm, sqlstate;
        end;
    end loop;
    begin
        perform public.internal_settle_cycles(null);
    exception when others then
        raise warning 'cycles could not be ended: % (%)', sqlerrm, sqlstate;
    end;
    delete from public.task_results r
     where not exists (select from public.tasks t
                        where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id]);
    delete from public.task_refusals r
     where not exists (select from public.tasks t where t.id = r.task_id and t.status in ('Queued', 'In Progress'));
end
$$;

CREATE FUNCTION public.internal_settle_at_commit() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    perform public.internal_settle_again(array[new.no], true);
    return null;
end
$$;

CREATE FUNCTION public.internal_settle_cycles(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    c_most constant int := 10000;
    v_ids uuid[];
    v_lock record;
begin
    if p_ids is null then
        v_ids := array(select t.id from public.tasks t where t.blocked and t.status = 'Queued');
    elsif public.internal_dependants(p_ids) is null then
        return;  -- nobody waits for them
    else
        with recursive needed (id) as (
            select unnest(p_ids)
            union
            select n.id
              from needed d cross join lateral (  -- limited: one row by its key each, whatever the planner expects
                  select t.depends_on from public.tasks t where t.id = d.id and t.blocked and t.status = 'Queued' limit 1) t
              cross join unnest(t.depends_on) n (id)
        )
        select array_agg(l.id) into v_ids from (select d.id from needed d limit c_most + 1) l;
        if cardinality(v_ids) > c_most then
            return;
        end if;
    end if;
    v_ids := public.internal_stuck(v_ids);
    if v_ids <> '{}' then
        select * into v_lock from public.internal_lock_queued(v_ids, 1);
        if v_lock.locked <> '{}' then
            perform public.internal_settle_each(true, v_lock.locked, '{}');
        end if;
    end if;
end
$$;

CREATE FUNCTION public.internal_settle_each(p_is_cycle boolean, p_ids uuid[], p_gone uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    c_time constant interval := '200 milliseconds';  -- for what fails
    v_until timestamptz;
    v_first int[] := '{1}';
    v_last int[] := array[cardinality(p_ids)];
    v_low int;
    v_high int;
    v_some uuid[];
    v_ended uuid[] := '{}';
    v_message text;
begin
    while cardinality(v_first) > 0 loop
        v_low := v_first[cardinality(v_first)];
        v_high := v_last[cardinality(v_last)];
        v_first := trim_array(v_first, 1);
        v_last := trim_array(v_last, 1);
        begin
            if p_is_cycle then
                perform public.internal_end_cycle(p_ids[v_low:v_high]);
            else
                v_some := public.internal_settle_locked(p_ids[v_low:v_high], p_gone);
            end if;
            perform public.internal_fire_deferred();
            v_ended := v_ended || v_some;
            continue;
        exception when others then  -- a user's trigger or constraint may raise anything
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to settle it: %s (%s)', sqlerrm, sqlstate);
        end;
        v_until := coalesce(v_until, clock_timestamp() + c_time);
        if v_low = v_high then
            perform public.internal_refused(p_ids[v_low:v_low], 'settle', v_message);
        elsif clock_timestamp() > v_until then
            perform public.internal_unsettled(p_ids[v_low:v_high]);
        else
            v_first := v_first || array[(v_low + v_high) / 2 + 1, v_low];
            v_last := v_last || array[v_high, (v_low + v_high) / 2];
        end if;
    end loop;
    return v_ended;
end
$$;

CREATE FUNCTION public.internal_settle_late() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET lock_timeout TO '100ms'
    SET jit TO 'off'
    AS $$
declare
    c_time constant interval := '100 milliseconds';
    c_rows constant int := 500;  -- of one look, …
    c_tasks constant int := 1000;  -- … in which no row begins after so many tasks
    v_began timestamptz := clock_timestamp();
    v_nos bigint[];
    v_no bigint;
    v_refusal public.task_refusals;
begin
    while clock_timestamp() < v_began + c_time loop
        select array_agg(b.no) into v_nos from (
            select u.no, sum(cardinality(u.task_ids)) over (order by u.tried_at, u.no) - cardinality(u.task_ids) as before
              from (select * from public.tasks_unsettled u where u.tried_at < v_began
                     order by u.tried_at, u.no limit c_rows) u) b
         where b.before < c_tasks;
        exit when v_nos is null;
        begin
            exit when public.internal_settle_again(v_nos, false) = 0;
        exception when others then  -- an error that passes: each alone, the next time after the others
            foreach v_no in array v_nos loop
                begin
                    if clock_timestamp() < v_began + c_time then
                        perform public.internal_settle_again(array[v_no], false);
                    end if;
                exception when others then
                    update public.tasks_unsettled u set tried_at = clock_timestamp() where u.no = v_no;
                end;
            end loop;
            exit;
        end;
    end loop;
    for v_refusal in
        select * from public.task_refusals r where r.retry_at <= public.internal_now() and r.what <> 'rescue'
         order by r.retry_at limit c_rows
    loop
        exit when clock_timestamp() > v_began + 2 * c_time;
        begin
            if v_refusal.what = 'claim' then
                perform public.internal_try_refused(v_refusal.task_id);
            else
                perform public.internal_settle(array[v_refusal.task_id], '{}');
                delete from public.task_refusals r
                 where r.task_id = v_refusal.task_id and r.what = 'settle' and r.retry_at <= public.internal_now();
            end if;
        exception when others then
            perform public.internal_refused(array[v_refusal.task_id], v_refusal.what, format('%s (%s)', sqlerrm, sqlstate));
        end;
    end loop;
end
$$;

CREATE FUNCTION public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_gone jsonb := (select jsonb_object_agg(g.id, true) from unnest(p_gone) g (id) where g.id is not null);
    v_flips uuid[];
    v_failed jsonb;  -- of each task that fails: the dependency that failed before it …
    v_lost jsonb;  -- … or does not exist
    v_some uuid[];
    v_done uuid[] := '{}';
    v_kept uuid[];
begin
    -- At this depth of triggers, and no other, a cascade is followed by the loop in internal_settle.
    v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
    select coalesce(array_agg(l.id) filter (where l.failed is null and not l.is_lost and l.blocked is distinct from l.waits), '{}'),
           coalesce(jsonb_object_agg(l.id, l.failed) filter (where l.failed is not null), '{}'),
           coalesce(jsonb_object_agg(l.id, l.lost) filter (where l.failed is null and l.is_lost), '{}')
      into v_flips, v_failed, v_lost
      from (select t.id, t.blocked, n.waits, n.failed, n.lost, n.is_lost
              from public.tasks t
             cross join lateral (
                   select coalesce(bool_or(s.status <> 'Complete'), false) as waits,
                          (array_agg(s.id) filter (where s.status in ('Failed', 'Cancelled')))[1] as failed,
                          (array_agg(s.id) filter (where s.status = 'gone'))[1] as lost,
                          coalesce(bool_or(s.status = 'gone'), false) as is_lost
                     from (select n.id,  -- each by its key: a join could read all of the table for each task
                                  coalesce((select d.status::text from public.tasks d where d.id = n.id),
                                           (select 'Complete' from public.task_results r where r.id = n.id),
                                           case when n.id is null or v_gone ? n.id::text then 'gone' else 'absent' end) as status
                             from unnest(t.depends_on) n (id) offset 0) s) n
             where t.id = any (p_ids) and t.status = 'Queued') l;
    if v_flips <> '{}' then
        with done as (
            update public.tasks t set blocked = not t.blocked
             where t.id = any (v_flips) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
    end if;
    if v_failed <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_failed) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
                   error_message = (
                       select left(concat_ws(': ',
                                  format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status),
                                  nullif(d.failure_code, 'DEPENDENCY_FAILED'),
                                  case when d.failure_code = 'DEPENDENCY_FAILED'
                                       then regexp_replace(d.error_message,
                                                           '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                                       else d.error_message end), 4000)
                         from public.tasks d where d.id = (v_failed->>t.id::text)::uuid)
             where t.id = any (v_some) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
        v_flips := v_flips || v_some;
    end if;
    if v_lost <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_lost) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_DELETED',
                   error_message = coalesce(format('Dependency %s does not exist: it was deleted before it was complete',
                                                   (v_lost->>t.id::text)::uuid), 'depends_on contains NULL')
             where t.id = any (v_some) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
        v_flips := v_flips || v_some;
    end if;
    v_set := set_config('orchestrator.settling', v_before, true);
    if cardinality(v_done) < cardinality(v_flips) then
        v_kept := array(select unnest(v_flips) except select unnest(v_done));
        perform public.internal_refused(v_kept, 'settle', 'A trigger of the database suppressed the change');
    end if;
    return array(select t.id from public.tasks t
                  where t.id = any (p_ids) and t.status in ('Complete', 'Failed', 'Cancelled'));
end
$$;

CREATE FUNCTION public.internal_settle_new(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ready uuid[];
    v_needed uuid[];
    v_kept int;
begin
    perform public.internal_settle(p_ids, '{}');
    v_waiting := array(select t.id from public.tasks t where t.id = any (p_ids) and t.blocked and t.status = 'Queued');
    if v_waiting <> '{}' then
        perform public.internal_settle_cycles(v_waiting);
        perform public.internal_unsettled(v_waiting);
    end if;
    v_ready := array(select t.id from public.tasks t
                      where t.id = any (p_ids) and not t.blocked and t.status = 'Queued' and t.depends_on <> '{}');
    v_needed := array(select d.id from public.tasks d where d.id = any (array(
                          select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_ready))));
    select count(*) into v_kept from (
        select from public.tasks d where d.id = any (v_needed) and d.status = 'Complete'
         order by d.id for share skip locked) k;
    if v_kept < cardinality(v_needed) then
        perform public.internal_unsettled(v_ready);
    end if;
end
$$;

CREATE FUNCTION public.internal_shares(p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone, p_task_id uuid DEFAULT NULL::uuid) RETURNS TABLE(fleet text, task_id uuid, attempt integer, outcome text, seconds numeric, usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select w.fleet, a.task_id, a.attempt, a.outcome, x.seconds, coalesce(w.price_usd_per_hour, 0) * x.seconds / 3600
      from public.internal_turns(p_since, p_now, p_task_id) a
      join public.workers w on w.id = a.worker_id
      cross join lateral (
          select extract(epoch from least(a.to_at, w.billing_until, p_until) - greatest(a.from_at, p_since)) / a.of) x (seconds)
     where w.billing_since is not null and w.created_at < p_until and coalesce(w.terminated_at > p_since, true)
       and x.seconds > 0
$$;

CREATE FUNCTION public.internal_sift(p_rows tid[], p_limit_bytes integer, p_now timestamp with time zone, INOUT p_passed uuid[], OUT fit tid[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_task record;
    v_inputs record;
    v_bytes bigint := 0;
begin
    for v_task in select t.ctid as place, t.id from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        select * into v_inputs from public.internal_inputs(v_task.id, p_limit_bytes);
        if v_inputs.code is null then
            v_bytes := v_bytes + v_inputs.bytes;
            exit when v_bytes > p_limit_bytes;
            fit := fit || v_task.place;
        elsif not public.internal_end_unclaimed(v_task.id, v_inputs.code, v_inputs.message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

CREATE FUNCTION public.internal_spent(p_fleet text, p_without text, p_now timestamp with time zone) RETURNS TABLE(today_usd numeric, committed_usd numeric, hourly_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    with day (began) as (
        select date_trunc('day', p_now, 'UTC')
    ), live as (
        select w.*, coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour) as rate
          from public.workers w where w.fleet = p_fleet and w.status <> 'terminated'
    )
    select (select coalesce(sum(case when c.from_at >= d.began then c.usd
                                     else c.usd * extract(epoch from c.to_at - d.began)
                                          / nullif(extract(epoch from c.to_at - c.from_at), 0) end), 0)
              from public.costs c where c.fleet = p_fleet and c.to_at > d.began)
           + coalesce(sum(l.rate * extract(epoch from p_now - greatest(l.state_since, l.billing_since, d.began)) / 3600)
                      filter (where l.billing_since is not null), 0),
           coalesce(sum(greatest(l.reserved_usd - case when l.status = 'terminating'
                            then l.rate * extract(epoch from p_now - l.state_since) / 3600 else 0 end, 0))
                    filter (where l.id is distinct from p_without), 0),
           coalesce(sum(l.rate) filter (where l.id is distinct from p_without), 0)
      from day d left join live l on true group by d.began
$$;

CREATE FUNCTION public.internal_stuck(p_ids uuid[]) RETURNS uuid[]
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_nestloop TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_hashjoin TO 'on'
    SET jit TO 'off'
    AS $$
declare
    v_ids uuid[];
    v_reached int[];  -- places in v_ids; each is followed in its turn
    v_is_reached boolean[];
    v_to int[];  -- places of dependants; from v_first[n] on those of v_ids[n]
    v_first int[];
    v_place int;
    v_next int := 1;
begin
    with edges (id, needs) as materialized (
        select t.id, n.id from public.tasks t cross join unnest(t.depends_on) n (id)
         where t.id = any (p_ids) and t.blocked and t.status = 'Queued'
    ), open (id, needs) as materialized (  -- without those that are complete
        select e.id, e.needs from edges e
          left join public.tasks d on d.id = e.needs
          left join public.task_results r on r.id = e.needs
         where d.status is distinct from 'Complete' and (d.id is not null or r.id is null)
    ), placed (id, n) as materialized (
        select o.id, (row_number() over (order by o.id))::int from (select distinct o.id from open o) o
    ), follows (needs, id) as materialized (
        select n.n, p.n from open o join placed p on p.id = o.id left join placed n on n.id = o.needs
    ), counted (n, dependants) as (
        select p.n, count(f.id) from placed p left join follows f on f.needs = p.n group by p.n
    )
    select array(select p.id from placed p order by p.n),
           array(select distinct f.id from follows f where f.needs is null),
           array(select f.id from follows f where f.needs is not null order by f.needs),
           array(select 1 + sum(c.dependants) over (order by c.n) - c.dependants from counted c order by c.n)
      into v_ids, v_reached, v_to, v_first;
    v_first := v_first || cardinality(v_to) + 1;
    v_is_reached := array_fill(false, array[cardinality(v_ids)]);
    foreach v_place in array v_reached loop
        v_is_reached[v_place] := true;
    end loop;
    while v_next <= cardinality(v_reached) loop
        for v_edge in v_first[v_reached[v_next]]..v_first[v_reached[v_next] + 1] - 1 loop
            v_place := v_to[v_edge];
            if not v_is_reached[v_place] then
                v_is_reached[v_place] := true;
                v_reached := v_reached || v_place;
            end if;
        end loop;
        v_next := v_next + 1;
    end loop;
    return array(select i.id from unnest(v_ids, v_is_reached) i (id, is_reached) where not i.is_reached);
end
$$;

CREATE FUNCTION public.internal_submit(p_tasks jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
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

CREATE FUNCTION public.internal_succeeding(p_worker public.workers, p_task_type text, p_now timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select s.value->'releases'->>p_worker.pool
      from public.fleet_settings s join public.fleet_lease l on l.fleet = s.fleet
     where s.fleet = p_worker.fleet and s.name = 'release'
       and ((s.value->>'term')::bigint = l.term or l.since > p_now - interval '60 seconds')
       and s.value->'releases'->>p_worker.pool <> p_worker.release and s.value->'task_types' ? p_task_type
$$;

CREATE FUNCTION public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_from record;
    v_rows tid[];
    v_heavy boolean;
    v_tasks jsonb;
    v_rest jsonb;
    v_passed uuid[] := '{}';  -- tasks that can neither be claimed nor ended
    c_least constant int := -2147483648;
    -- Single claims between two tries to raise the mark; of n at once, by the root of n fewer: a try costs what reading past
    -- the tasks of that many claims does.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
    c_light_bytes constant int := 2000;  -- of params, as stored and as text: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: what an agent reads, and what is made well within a call's deadline
    c_looks constant int := 20;  -- a claim that found only tasks to end comes to nothing; the next one goes on
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    for v_look in 1..c_looks loop
        select array_agg(l.ctid), bool_or(l.heavy)
          into v_rows, v_heavy from (
            select q.ctid,
                   case when q.depends_on <> '{}' or pg_column_size(q.params) > c_light_bytes then true
                        else octet_length(q.params::text) > c_light_bytes or public.internal_is_unreadable(q.params) end as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
               and q.id <> all (v_passed)
               and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = q.id), true)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for no key update skip locked) l;
        if v_heavy then
            select s.p_passed, s.fit into v_passed, v_rows
              from public.internal_sift(v_rows, c_bytes, p_now, v_passed) s;
            continue when v_rows is null;
        elsif v_rows is null then
            -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task
            -- waits for ever for that: it is looked everywhere before a worker is sent away.
            if v_from.place = c_least
               or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0)
                  <= coalesce((select r.n from public.internal_refused_ready(p_now) r where r.pool = p_worker.pool), 0) then
                return null;
            end if;
            perform public.internal_raise_mark(p_worker.pool, p_now, true);
            v_from.place := c_least;
            v_from.created_at := '-infinity';
            continue;
        end if;
        begin
            v_tasks := public.internal_hand_over(p_worker, p_claim_no, v_rows, p_now);
            perform public.internal_fire_deferred();
        exception when others then  -- one of them is the cause, and it is found without the others
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_tasks := null;
        end;
        if v_tasks is null or jsonb_array_length(v_tasks) < cardinality(v_rows) then
            -- A row that was handed over has another place now. The others are suppressed by a user's trigger.
            v_rest := v_tasks;
            select s.p_passed, s.tasks into v_passed, v_tasks
              from public.internal_hand_over_singly(p_worker, p_claim_no, v_rows, p_now, v_passed) s;
            v_tasks := coalesce(v_rest || v_tasks, v_rest, v_tasks);
        end if;
        exit when v_tasks is not null;
    end loop;
    if v_tasks is not null
       and (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered) then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
end
$$;

CREATE FUNCTION public.internal_task_bounded() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    c_params_bytes constant int := 1048576;
    c_depends_on constant int := 10000;
    c_type_letters constant int := 200;
begin
    if octet_length(new.params::text) > c_params_bytes then
        perform public.internal_refuse('OR007', 'params is too large',
            format('%s bytes, the limit is %s', octet_length(new.params::text), c_params_bytes),
            'upload it and pass its location');
    elsif public.internal_is_unreadable(new.params) then
        perform public.internal_refuse('OR007', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter');
    elsif cardinality(new.depends_on) > c_depends_on or length(new.task_type) > c_type_letters then
        perform public.internal_refuse('OR007', 'depends_on or task_type is too long',
            format('the limits are %s ids and %s letters', c_depends_on, c_type_letters));
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_task_changing() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    if new.updated_at is not distinct from old.updated_at then
        new.updated_at := public.internal_now();
    end if;
    if new.attempts < new.uncounted then  -- a user starts them again
        new.uncounted := greatest(new.attempts, 0);
    end if;
    if new.pool is null then
        new.pool_by_type := true;
    end if;
    if new.pool is null or new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    if new.max_attempts is null then
        new.max_attempts := coalesce((select d.max_attempts from public.task_types d where d.task_type = new.task_type), 3);
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_task_routed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_type public.task_types;
begin
    if new.pool is null or new.max_attempts is null or new.timeout_s is null then
        select * into v_type from public.task_types d where d.task_type = new.task_type;
        new.pool_by_type := new.pool is null;
        new.pool := coalesce(new.pool, v_type.pool, 'default');
        new.max_attempts := coalesce(new.max_attempts, v_type.max_attempts, 3);
        new.timeout_s := coalesce(new.timeout_s, v_type.timeout_s);
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_tasks_added() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ended uuid[];
    v_again uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- Who deletes a dependency waits until it is known who needs it. Heartbeats and completions do not wait.
        perform from public.tasks d
          where d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    -- Of a task with this id that was Complete when it was deleted, the result is kept.
    v_again := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_again <> '{}' then
        perform public.internal_settle(public.internal_needing(v_again), '{}');
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

CREATE FUNCTION public.internal_tasks_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_ended uuid[];
    v_taken_back uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
    v_finished text[];
    v_left uuid[];
    v_queued bigint;
begin
    -- A full join is hashed or merged: no plan of it is quadratic, whatever number of rows it was made for.
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status is distinct from b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on is distinct from b.depends_on
                                          or b.status <> 'Queued' and a.depends_on <> '{}')),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status is distinct from 'Queued' or b.blocked or b.pool <> a.pool
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and b.worker_id is not null
                                                     and (a.status in ('In Progress', 'Complete')) is not true),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status = 'Complete'),
           array_agg(b.id) filter (where b.status = 'In Progress'
                                     and (a.status = 'In Progress' and a.attempts = b.attempts
                                          and a.worker_id = b.worker_id) is not true),
           count(*) filter (where a.status = 'Queued' or b.status = 'Queued'),
           array_agg(b.id) filter (where b.status = 'Complete' and a.status is distinct from 'Complete')
      into v_ended, v_waiting, v_pools, v_workers, v_finished, v_left, v_queued, v_taken_back
      from changed a full join was b on b.id = a.id;
    if v_left is not null then
        perform public.internal_close_attempts(v_left, false);
    end if;
    if v_ended is not null
       and current_setting('orchestrator.settling', true) is distinct from (pg_trigger_depth() - 1)::text then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    if v_taken_back is not null then
        perform public.internal_settle(public.internal_needing(v_taken_back), '{}');
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w;
    perform pg_notify('orchestrator_fleet', w.id) from public.workers w  -- of a running worker's results nobody need know
      where w.id = any (v_finished) and public.internal_wanted(w) <> 'run';
    if v_queued > 0 then
        insert into public.task_counts (pool, kind, n)
        select c.pool, c.kind, sum(c.n)
          from (select a.pool, case when a.blocked then 'blocked' when a.run_after is not null then 'timed'
                                    else 'plain' end as kind, 1 as n
                  from changed a where a.status = 'Queued'
                union all
                select b.pool, case when b.blocked then 'blocked' when b.run_after is not null then 'timed'
                                    else 'plain' end, -1
                  from was b where b.status = 'Queued') c
         group by 1, 2 having sum(c.n) <> 0;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    end if;
    return null;
end
$$;

CREATE FUNCTION public.internal_tasks_counted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_counts;
    elsif tg_op = 'INSERT' then
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, count(*)
          from added a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from added a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    else
        insert into public.task_counts (pool, kind, n)
        select a.pool, k.kind, -count(*)
          from removed a cross join lateral (
              select case when a.blocked then 'blocked' when a.run_after is not null then 'timed' else 'plain' end as kind) k
         where a.status = 'Queued' group by 1, 2;
    end if;
    return null;
end
$$;

CREATE FUNCTION public.internal_tasks_removed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_held uuid[];
    v_lost uuid[];
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_results;
        delete from public.tasks_unsettled;
        delete from public.task_refusals;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, r.output_object, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    return null;
end
$$;

CREATE FUNCTION public.internal_try_refused(p_task_id uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_now timestamptz := public.internal_now();
    v_message text;
    v_is_ready boolean;
begin
    select t.status = 'Queued' and not t.blocked into v_is_ready
      from public.tasks t where t.id = p_task_id for no key update skip locked;
    if v_is_ready is null and exists (select from public.tasks t where t.id = p_task_id) then
        perform public.internal_refused(array[p_task_id], 'claim', 'Another transaction was changing it');
        return;
    elsif v_is_ready is not true then  -- if nobody can claim it then either, the next claim finds out
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'claim';
        return;
    end if;
    begin
        update public.tasks t
           set status = 'In Progress', updated_at = v_now, attempts = t.attempts + 1, lease_expires_at = v_now,
               progress = null, progress_at = v_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = v_now, generation_processed_at = null
         where t.id = p_task_id;
        perform public.internal_fire_deferred();
        if exists (select from public.tasks t where t.id = p_task_id and t.status = 'Queued' and not t.blocked) then
            v_message := 'A trigger of the database suppressed its claim';
        end if;
        raise exception using errcode = 'OR008';  -- known only here: it takes back the claim
    exception
        when sqlstate 'OR008' then null;
        when others then v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
    end;
    if v_message is null then
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'claim';
    else
        perform public.internal_refused(array[p_task_id], 'claim', v_message);
    end if;
end
$$;

CREATE FUNCTION public.internal_turns(p_since timestamp with time zone, p_now timestamp with time zone, p_task_id uuid DEFAULT NULL::uuid) RETURNS TABLE(worker_id text, task_id uuid, attempt integer, outcome text, from_at timestamp with time zone, to_at timestamp with time zone, of bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
#variable_conflict use_column
begin
    return query
    with reaching as (
        select a.* from public.task_attempts a
         where p_task_id is null and (a.started_at > p_since or a.ended_at > p_since)
        union all
        select a.* from public.tasks t
         cross join lateral (select b.* from public.task_attempts b
                              where b.task_id = t.id and b.attempt = t.attempts limit 1) a  -- by its key: these are few
         where p_task_id is null and t.status = 'In Progress' and a.started_at <= p_since and a.ended_at is null
        union all
        select a.* from (select distinct b.worker_id, b.nonce, b.claim_no
                           from public.task_attempts b where b.task_id = p_task_id) c
          join public.task_attempts a on a.worker_id = c.worker_id and a.nonce = c.nonce and a.claim_no = c.claim_no
    )
    select e.worker_id, e.task_id, e.attempt, e.outcome,
           greatest(e.started_at,
                    case when e.started_at <= p_since then (  -- the end of the one before, of the same claim
                        select max(b.ended_at) from public.task_attempts b
                         where b.worker_id = e.worker_id and b.nonce = e.nonce and b.claim_no = e.claim_no
                           and b.ended_at <= p_since) end,
                    max(e.to_at) over (partition by e.worker_id, e.nonce, e.claim_no order by e.to_at
                                       range between unbounded preceding and current row exclude group)),
           e.to_at, count(*) over (partition by e.worker_id, e.nonce, e.claim_no, e.to_at)
      from (select r.*, coalesce(r.ended_at, p_now) as to_at from reaching r) e;
end
$$;

CREATE FUNCTION public.internal_unsettled(p_ids uuid[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO ''
    AS $$
    insert into public.tasks_unsettled (task_ids)
    select array_agg(n.id) from unnest(p_ids) with ordinality n (id, place) group by (n.place - 1) / 500
$$;

CREATE FUNCTION public.internal_upload_terms(p_item jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER
    SET search_path TO ''
    AS $_$
begin
    if p_item->'once' is distinct from 'true' then
        return '{}';
    elsif jsonb_typeof(p_item->'bytes') is distinct from 'number' or p_item->>'bytes' !~ '^[0-9]{1,15}$'
          or coalesce(p_item->>'sha256', '') !~ '^[0-9a-f]{64}$' then
        perform public.internal_refuse('OR007', 'an upload of one write names its bytes and its sha256');
    end if;
    return jsonb_build_object('once', true, 'bytes', p_item->'bytes', 'sha256', p_item->'sha256');
end
$_$;

CREATE FUNCTION public.internal_waiting_behind(p_ended uuid[], p_most integer) RETURNS uuid[]
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET enable_indexscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
    with recursive ended (ids) as (
        select array(select d.id from public.tasks d where d.id = any (p_ended) and d.status in ('Failed', 'Cancelled'))
    ), behind (id) as (
        select n.id from ended e cross join unnest(e.ids) n (id)
        union
        select w.id from behind b cross join lateral (
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.depends_on @> array[b.id]) w
    )
    select array_agg(l.id) from (select b.id from behind b limit p_most + cardinality(p_ended)) l
$$;

CREATE FUNCTION public.internal_wanted(p_worker public.workers) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO ''
    AS $$
begin
    return case when p_worker.stop_requested_at is not null then 'stop'
                when p_worker.status = 'terminating' and p_worker.stage in ('flushing', 'deleting', 'gone') then 'stop'
                when p_worker.status = 'terminating' or p_worker.drain_requested_at is not null then 'drain'
                else 'run' end;
end
$$;

CREATE FUNCTION public.internal_worker_billing() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_proven timestamptz;
    v_deleted timestamptz;
begin
    if new.billing_since is null or new.status = old.status or new.status not in ('terminating', 'terminated') then
        return new;
    end if;
    select max(a.ended_at) filter (where a.outcome = 'ok' and a.stage <> 'deleting'),
           max(a.ended_at) filter (where a.outcome = 'ok' and a.stage = 'deleting' and a.evidence->'known' = 'true')
      into v_proven, v_deleted
      from public.worker_attempts a where a.worker_id = new.id;
    if new.failure_code = 'POD_MISSING' and new.billing_until is null then
        -- It was there at its last heartbeat, at the last stage that was proven, at its last claim, in the last list.
        new.billing_until := greatest(new.billing_since, new.last_heartbeat, v_proven,
                                      case when old.status in ('active', 'idle') then old.state_since end,
                                      (new.metadata->>'listed_at')::timestamptz);
    end if;
    if new.status = 'terminated' then  -- now that absence is proven, the last delete is known to have worked
        new.billing_until := least(new.billing_until, v_deleted);
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_worker_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_from_state text;
    v_from_stage text;
    v_from timestamptz;
    v_moved_to text;
begin
    if tg_op = 'UPDATE' then
        v_from_state := old.status;
        v_from_stage := old.stage;
        v_from := greatest(old.state_since, new.billing_since);
        if old.ssh_host is not null and (old.ssh_host, old.ssh_port) is distinct from (new.ssh_host, new.ssh_port) then
            v_moved_to := concat_ws(':', new.ssh_host, new.ssh_port);
        end if;
        if new.status <> old.status and new.billing_since is not null and v_from < new.state_since then
            insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
            values (old.id, old.fleet,
                    case old.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                    else 'draining' end,
                    v_from, new.state_since,
                    coalesce(new.price_usd_per_hour, 0) * extract(epoch from new.state_since - v_from) / 3600);
        end if;
    end if;
    if v_from_state is distinct from new.status or v_from_stage is distinct from new.stage or v_moved_to is not null then
        insert into public.worker_events
            (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, term, actor, at, detail)
        values (new.id, new.fleet, v_from_state, new.status, v_from_stage, new.stage,
                coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand'),
                nullif(current_setting('orchestrator.term', true), '')::bigint,
                coalesce(nullif(current_setting('orchestrator.actor', true), ''), session_user),
                public.internal_now(),
                jsonb_strip_nulls(jsonb_build_object('exit_cause', new.exit_cause, 'failure_code', new.failure_code,
                                                     'pod_id', new.pod_id, 'waiting_for', new.waiting_for,
                                                     'ssh', v_moved_to)));
    end if;
    perform pg_notify('orchestrator_fleet', new.id);
    return null;
end
$$;

CREATE FUNCTION public.internal_worker_changing() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_now();
    v_reason text := coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand');
begin
    if tg_op = 'INSERT' then
        if new.status <> 'spawning' then
            perform public.internal_refuse('OR007', format('a worker cannot begin as %s', new.status),
                'every worker is spawned, by an intent', 'insert it as spawning');
        end if;
        new.state_since := v_now;
        new.stage_since := v_now;
        new.state_reason := v_reason;
        return new;
    end if;
    if new.status <> old.status then
        if not exists (select from public.worker_transitions t
                        where t.from_state = old.status and t.to_state = new.status) then
            perform public.internal_refuse('OR007', format('%s cannot go from %s to %s', old.id, old.status, new.status),
                'it is not in worker_transitions', 'spawning > active <> idle > terminating > terminated');
        end if;
        new.state_since := v_now;
        new.state_reason := v_reason;
        if new.status = 'terminated' then
            new.terminated_at := v_now;
            new.token_jti := null;
        elsif new.status = 'terminating' then
            new.ending_since := v_now;
        end if;
    end if;
    if new.stage is distinct from old.stage then
        new.stage_since := v_now;
    end if;
    if new.nonce is distinct from old.nonce then  -- a new launch: nothing that the old one said counts for it
        new.last_heartbeat := null;
        new.claim_no := 0;
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_worker_climbed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
begin
    new.climb_ended_at := public.internal_now();
    if new.status = 'active' then
        new.promoted_at := new.climb_ended_at;
        if new.release is not null then
            insert into public.releases as r (fleet, release, promoted_at)
            values (new.fleet, new.release, new.promoted_at)
            on conflict (fleet, release) do update set promoted_at = excluded.promoted_at
             where r.promoted_at < excluded.promoted_at - interval '1 minute';  -- many are promoted at once
            if not public.internal_is_here(new.fleet, new.pool, new.release) then  -- the first: what waited for it is due
                update public.tasks t set run_after = null
                 where t.pool = new.pool and t.status = 'Queued' and not t.blocked and t.run_after > new.promoted_at
                   and t.failure_code = 'EARLIER_RELEASE';
            end if;
        end if;
    end if;
    return new;
end
$$;

CREATE FUNCTION public.internal_worker_costs(p_worker public.workers, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    with spent (kind, usd) as (
        select c.kind, c.usd from public.costs c where c.worker_id = p_worker.id
        union all
        select o.kind, o.usd from public.internal_open_interval(p_worker, p_now) o
    ), by_kind as (select kind, sum(usd) as usd from spent group by kind)
    select jsonb_build_object(
        'cost_usd', coalesce((select round(sum(k.usd), 6) from by_kind k), 0),
        'cost_by_kind', coalesce((select jsonb_object_agg(k.kind, round(k.usd, 6)) from by_kind k), '{}'))
$$;

CREATE FUNCTION public.internal_worker_json(p_worker public.workers) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select to_jsonb(p_worker) || jsonb_build_object('tasks_running', (
        select count(*) from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress'))
$$;

CREATE FUNCTION public.internal_worker_report(p_worker public.workers, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select public.internal_worker_json(p_worker) || public.internal_worker_costs(p_worker, p_now) || (
        select jsonb_build_object('tasks_done', count(*) filter (where a.outcome = 'complete'),
                                  'tasks_failed', count(*) filter (where a.outcome in ('failed', 'lost')))
          from public.task_attempts a where a.worker_id = p_worker.id)
$$;

CREATE FUNCTION public.internal_worker_sick() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_ids uuid[];
    c_look constant int := 200;
begin
    with newest as (
        select a.task_id, a.attempt, a.ended_at, a.outcome from public.task_attempts a
         where a.worker_id = new.id order by a.started_at desc limit c_look
    ), failed as (
        select distinct on (n.task_id) n.task_id, n.attempt from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
           and not exists (select from public.task_attempts g where g.task_id = n.task_id and g.given_back)
         order by n.task_id, n.attempt desc
    ), locked as (
        select t.id, f.attempt from failed f join public.tasks t on t.id = f.task_id
         where t.status in ('Queued', 'In Progress', 'Failed') and t.uncounted < t.attempts
         order by t.id for update of t skip locked
    ), given as (
        update public.task_attempts a set given_back = true
          from locked l where a.task_id = l.id and a.attempt = l.attempt
        returning a.task_id
    )
    select array_agg(g.task_id) into v_ids from given g;
    update public.tasks t set uncounted = t.uncounted + 1 where t.id = any (v_ids) and t.status <> 'Failed';
    update public.tasks t
       set status = 'Queued', uncounted = t.uncounted + 1, run_after = null, worker_id = null, lease_expires_at = null,
           error_message = null, failure_code = null, failed_at_point = null, progress = null, progress_at = null,
           generation_processed_at = null
     where t.id = any (v_ids) and t.status = 'Failed' and t.attempts - t.uncounted >= t.max_attempts
       and not exists (select from public.tasks d where d.dedupe_key = t.dedupe_key and d.id <> t.id
                          and d.status in ('Queued', 'In Progress'));
    with recursive revived (id) as (  -- what failed only because one of these had failed
        select t.id from public.tasks t where t.id = any (v_ids) and t.status = 'Queued'
        union
        select t.id from revived r join public.tasks t on t.depends_on @> array[r.id]
         where t.status = 'Failed' and t.failure_code = 'DEPENDENCY_FAILED'
    )
    update public.tasks t
       set status = 'Queued', blocked = true, run_after = null, error_message = null, failure_code = null,
           failed_at_point = null, generation_processed_at = null
     where t.id in (select r.id from revived r) and t.status = 'Failed';
    return null;
end
$$;

CREATE FUNCTION public.task_cancel(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    select * into v_task from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found', 'status', null);
    elsif v_task.status = 'Queued' then
        update public.tasks t set status = 'Cancelled', blocked = false, cancel_requested_at = v_now where t.id = p_id;
        return jsonb_build_object('outcome', 'cancelled', 'status', 'Cancelled');
    elsif v_task.status = 'In Progress' then  -- its agent is told with the next heartbeat
        update public.tasks t set cancel_requested_at = v_now where t.id = p_id and t.cancel_requested_at is null;
        return jsonb_build_object('outcome', 'cancelling', 'status', 'In Progress');
    end if;
    return jsonb_build_object('outcome', 'already', 'status', v_task.status);
end
$$;

CREATE FUNCTION public.task_get(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object(
        'task', (select to_jsonb(t) from public.tasks t where t.id = p_id),
        'attempts', coalesce((select jsonb_agg(to_jsonb(a) order by a.attempt)
                                from public.task_attempts a where a.task_id = p_id), '[]'))
$$;

CREATE FUNCTION public.task_list(p_status text, p_task_type text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object(
        'tasks', coalesce((
            select jsonb_agg(to_jsonb(t) order by t.created_at desc, t.id) from (
                select * from public.tasks t
                 where (p_status is null or t.status::text = p_status)
                   and (p_task_type is null or t.task_type = p_task_type)
                 order by t.created_at desc, t.id limit least(greatest(coalesce(p_limit, 100), 0), 10000)) t), '[]'),
        'counts', coalesce((
            select jsonb_object_agg(c.status, c.n)
              from (select t.status, count(*) as n from public.tasks t
                     where p_task_type is null or t.task_type = p_task_type group by t.status) c), '{}'))
$$;

CREATE FUNCTION public.task_retry(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    v_ids uuid[];
begin
    select * into v_task from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    elsif v_task.status not in ('Failed', 'Cancelled') then
        return jsonb_build_object('outcome', 'not_ended', 'status', v_task.status);
    end if;
    select array_agg(l.id) into v_ids from (
        select t.id from public.tasks t where t.id = any (public.internal_failed_behind(p_id)) order by t.id for no key update) l;
    update public.tasks t
       set status = 'Queued', uncounted = t.attempts, run_after = null, worker_id = null, lease_expires_at = null,
           cancel_requested_at = null, error_message = null, failure_code = null, failed_at_point = null,
           progress = null, progress_at = null, blocked = t.depends_on <> '{}'
     where t.id = any (v_ids);
    return jsonb_build_object('outcome', 'requeued', 'tasks', to_jsonb(v_ids));
exception when unique_violation then
    perform public.internal_refuse('OR007', 'a task with the same dedupe_key is already queued or running',
        format('dedupe_key %L', v_task.dedupe_key), 'wait for that one, or cancel it');
    return null;
end
$$;

CREATE FUNCTION public.task_submit(p_tasks jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_batch constant int := 2000;
    c_tries constant int := 5;
begin
    if p_tasks is null or jsonb_typeof(p_tasks) <> 'array' or jsonb_array_length(p_tasks) > c_batch then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of tasks', '', format('at most %s at once', c_batch));
    end if;
    for v_try in 1..c_tries loop
        begin
            return public.internal_submit(p_tasks, v_now);
        exception when sqlstate 'ORBSY' then
            continue;  -- the other submission has committed: now its task is found
        end;
    end loop;
    perform public.internal_refuse('OR002', 'the same keys are being submitted and ended by others all the time');
    return null;
end
$$;

CREATE FUNCTION public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
    return public.internal_claim(public.internal_caller(p_worker_id, true), p_nonce, p_claim_no, p_batch, p_wait_s,
                                 public.internal_clock(p_now));
end
$$;

CREATE FUNCTION public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
    return public.worker_complete_output(
        p_worker_id, p_nonce, p_task_id, p_attempt, p_output_location, p_result_data, null, p_now);
end
$$;

CREATE FUNCTION public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    -- Locked before any task is: the order in which a heartbeat locks them.
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_ended jsonb := public.internal_complete_many(v_worker, p_nonce, p_results, v_now);
begin
    return v_ended || public.internal_claim(v_worker, p_nonce, p_claim_no, p_batch, 0, v_now);
end
$$;

CREATE FUNCTION public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
    return public.internal_complete_many(public.internal_caller(p_worker_id, false), p_nonce, p_results, public.internal_clock(p_now));
end
$$;

CREATE FUNCTION public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid;
    v_answer jsonb;
    v_over_postgrest boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_object jsonb := case when not v_over_postgrest then p_output end;  -- a pod may not say what the bucket shows
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and v_over_postgrest
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, '{}', v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
            v_object := v_answer->'object';
        elsif v_object = 'false' then
            v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
            return jsonb_build_object('outcome', case v_answer #>> '{}' when 'held' then 'look' else v_answer #>> '{}' end);
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    with done as (
        update public.tasks t
           set status = 'Complete', output_location = p_output_location,
               output_object = v_object || jsonb_build_object('location', p_output_location), result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id and t.attempts = p_attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select d.id into v_held from done d;
    if v_held is null then
        v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
        if v_answer = '"held"' then
            perform public.internal_refuse('OR007', 'a trigger of the database suppressed the completion');
        end if;
        return jsonb_build_object('outcome', v_answer);
    end if;
    return jsonb_build_object('outcome', 'ok');
end
$$;

CREATE FUNCTION public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_unable boolean := coalesce(p_failure->>'code' = 'NO_HANDLER', false);
    v_worker public.workers := public.internal_caller(p_worker_id, true);  -- its row is locked before its task's
    v_type text;
    v_release text;
    v_outcome text;
    v_here boolean;
    c_wait_s constant int := 60;  -- doubling up to ten times as much; over when the first of that release is promoted
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt,
        array['failed', 'cancelled'] || case when v_unable then array['released'] end);
    if v_outcome = 'held' and v_unable then
        select t.task_type, public.internal_succeeding(v_worker, t.task_type, v_now) into v_type, v_release
          from public.tasks t where t.id = p_task_id;
    end if;
    if v_outcome = 'held' and v_release is not null then
        v_outcome := public.internal_give_up(p_task_id, 'released', p_failure || jsonb_build_object(
            'code', 'EARLIER_RELEASE', 'message', format('Worker %s is of an earlier release, %s, which has no handler for %s; %s has one',
                                                         p_worker_id, v_worker.release, v_type, v_release)), false, false, v_now);
        v_here := public.internal_is_here(v_worker.fleet, v_worker.pool, v_release);
        if not v_here then
            update public.tasks t
               set run_after = v_now + c_wait_s * least(2 ^ least(t.uncounted - 1, 4), 10) * interval '1 second'
             where t.id = p_task_id and t.status = 'Queued';
        end if;
        update public.workers w
           set metadata = w.metadata || jsonb_build_object('lacks', v_type),
               drain_requested_at = case when v_here then coalesce(w.drain_requested_at, v_now)
                                         else w.drain_requested_at end
         where w.id = p_worker_id;
        perform pg_notify('orchestrator_fleet', p_worker_id);
    elsif v_outcome = 'held' then
        v_outcome := public.internal_give_up(p_task_id, 'failed', coalesce(p_failure, '{}'), true, true, v_now);
        if p_failure->'retryable' = 'false' then
            update public.task_attempts a set permanent = true where a.task_id = p_task_id and a.attempt = p_attempt;
        end if;
        perform public.internal_hold_back(v_worker, v_now);
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

CREATE FUNCTION public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $_$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_asks boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_item jsonb;
    v_key text;
    v_answer jsonb;
    v_granted jsonb := '[]';
    v_refused jsonb := '[]';
    v_pending jsonb := '[]';
    v_replaced jsonb := '[]';
    v_terms jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in select value from jsonb_array_elements(p_items) loop
        v_key := v_item->>'key';
        v_terms := null;
        if v_key ~ '^outputs/[^/]+/[0-9]+(-[0-9a-f]+)?/[^/]' and v_key !~ '(^|/)\.{1,2}(/|$)|//|[[:cntrl:]]'
           and length(v_key) <= 900 then
            select case v_item->>'method'
                       when 'PUT' then public.internal_upload_terms(v_item)
                       else coalesce(h.object, '{}') end
              into v_terms
              from public.tasks t
              left join lateral (
                   select coalesce(d.output_object, '{}') as object from public.internal_results(t.depends_on) d
                    where v_item->>'method' = 'GET' and starts_with(v_key, format('outputs/%s/', d.id))
                      and right(d.output_location, length(v_key) + 1) = '/' || v_key
                      order by d.output_object is null limit 1) h on true
             where t.worker_id = p_worker_id and t.status = 'In Progress'
               and case v_item->>'method'
                       when 'PUT' then starts_with(v_key, public.internal_output_prefix(t.id, t.attempts, p_nonce))
                                       or starts_with(v_key, format('outputs/%s/%s/', t.id, t.attempts))
                       when 'GET' then h.object is not null
                       else false
                   end
             limit 1;
        end if;
        if v_terms is not null then
            v_answer := v_terms;
            if v_asks then
                v_answer := public.internal_ask(p_worker_id, v_item->>'method', v_key, v_terms, v_now);
            end if;
            if v_answer is null then
                v_pending := v_pending || jsonb_build_array(v_key);
            elsif v_answer ? 'refused' then
                v_refused := v_refused || jsonb_build_array(v_key);
                if v_answer ? 'replaced' then
                    v_replaced := v_replaced || jsonb_build_array(v_key);
                end if;
            else
                v_granted := v_granted || (v_answer || jsonb_build_object('method', v_item->>'method', 'key', v_key));
            end if;
        else
            v_refused := v_refused || jsonb_build_array(v_key);
        end if;
    end loop;
    if v_pending <> '[]' then
        return jsonb_build_object('outcome', 'pending', 'items', v_granted, 'refused', v_refused, 'replaced', v_replaced,
                                  'pending', v_pending);
    end if;
    return jsonb_build_object('outcome', 'ok', 'items', v_granted, 'refused', v_refused, 'replaced', v_replaced);
end
$_$;

CREATE FUNCTION public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $_$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_held uuid[];
    v_cancel jsonb;
    v_fenced jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    if jsonb_typeof(coalesce(p_tasks, '[]')) <> 'array' or jsonb_array_length(coalesce(p_tasks, '[]')) > 1000 then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of at most 1000 {id, attempt, progress}');
    end if;
    perform public.internal_check_size(p_tasks, 1048576, 'p_tasks');
    perform public.internal_check_size(p_health, 65536, 'p_health');
    perform public.internal_check_size(p_logs, 4096, 'p_logs');
    if p_logs is not null and p_logs <> 'null' and (
           jsonb_typeof(p_logs) <> 'object'
           or exists (select from jsonb_each(p_logs) l
                       where jsonb_typeof(l.value) <> 'number' or l.value::text !~ '^[0-9]{1,15}$')) then
        perform public.internal_refuse('OR007', 'p_logs must be {stream: bytes}', left(p_logs::text, 200));
    end if;

    update public.workers w
       set last_heartbeat = v_now, health = coalesce(p_health, w.health),
           log_bytes = case when jsonb_typeof(p_logs) = 'object'
                            then w.log_bytes || jsonb_build_object(p_nonce, p_logs) else w.log_bytes end,
           agent = case when w.agent->>'nonce' = p_nonce then w.agent
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end,
           deadline_at = case when w.status in ('active', 'idle') then v_now + w.lease_s * interval '1 second'
                              else w.deadline_at end,
           next_attempt_at = case when w.status in ('active', 'idle') then v_now + w.heartbeat_s * interval '1 second'
                                  else w.next_attempt_at end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for no key update of t) l;
    if v_held is not null then
        perform public.internal_renew(v_held, p_tasks, v_worker.lease_s, v_now);
    end if;
    select coalesce(jsonb_agg(t.id), '[]') into v_cancel
      from public.tasks t where t.id = any (v_held) and t.cancel_requested_at is not null;
    select coalesce(jsonb_agg(n->>'id'), '[]') into v_fenced
      from jsonb_array_elements(coalesce(p_tasks, '[]')) n where (n->>'id')::uuid <> all (coalesce(v_held, '{}'));
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker), 'cancel', v_cancel,
                              'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s,
                              'led', exists (select from public.fleet_lease l
                                              where l.fleet = v_worker.fleet and l.expires_at > v_now));
end
$_$;

CREATE FUNCTION public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop');
    end if;
    if p_agent is null or jsonb_typeof(p_agent) <> 'object' then
        perform public.internal_refuse('OR007', 'p_agent must be a JSON object');
    end if;
    perform public.internal_check_size(p_agent, 65536, 'p_agent');
    update public.workers w
       set last_heartbeat = v_now, agent = p_agent || jsonb_build_object('nonce', p_nonce)
     where w.id = p_worker_id;
    perform pg_notify('orchestrator_fleet', p_worker_id);
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker),
                              'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s);
end
$$;

CREATE FUNCTION public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_reason text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['released', 'cancelled']);
begin
    if v_outcome = 'held' then
        perform public.internal_give_up(p_task_id, 'released',
            jsonb_build_object('code', 'RELEASED', 'message', p_reason), false, false, v_now);
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

CREATE FUNCTION public.worker_renew(p_worker_id text, p_nonce text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_answer jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    if not (public.internal_is_pod() and public.internal_is_over_postgrest()) then
        return jsonb_build_object('outcome', 'ok');
    end if;
    v_answer := public.internal_ask(p_worker_id, 'RENEW', v_worker.token_jti, '{}', v_now);
    if v_answer is null then
        return jsonb_build_object('outcome', 'pending');
    end if;
    delete from public.worker_asks a where a.worker_id = p_worker_id and a.method = 'RENEW';
    return jsonb_build_object('outcome', 'ok') || v_answer;
end
$$;

CREATE VIEW public.active_workers_health WITH (security_invoker='true') AS
 SELECT w.id,
    w.fleet,
    w.pool,
    w.instance_type,
    w.gpu_type,
    w.status,
    w.stage,
    w.pod_id,
    w.created_at,
    w.last_heartbeat,
    EXTRACT(epoch FROM (now() - w.last_heartbeat)) AS heartbeat_age_seconds,
    EXTRACT(epoch FROM (now() - w.state_since)) AS state_age_seconds,
    w.waiting_on,
    w.waiting_for,
    w.deadline_at,
    g.total AS vram_total_mb,
    g.used AS vram_used_mb,
        CASE
            WHEN (g.total > (0)::numeric) THEN round(((g.used * (100)::numeric) / g.total), 1)
            ELSE NULL::numeric
        END AS vram_usage_percent,
    t.id AS current_task_id,
    t.status AS current_task_status,
    t.task_type AS current_task_type,
    EXTRACT(epoch FROM (now() - t.generation_started_at)) AS task_runtime_seconds,
        CASE
            WHEN ((w.status = 'spawning'::text) AND (w.state_since < (now() - '00:05:00'::interval))) THEN 'SPAWNING_TOO_LONG'::text
            WHEN ((w.status = ANY (ARRAY['active'::text, 'idle'::text])) AND (COALESCE(w.last_heartbeat, w.state_since) < (now() - '00:10:00'::interval))) THEN 'NO_HEARTBEAT'::text
            WHEN ((w.status = 'terminating'::text) AND (w.state_since < (now() - '00:10:00'::interval))) THEN 'TERMINATING_TOO_LONG'::text
            ELSE 'OK'::text
        END AS health_status
   FROM ((public.workers w
     LEFT JOIN LATERAL ( SELECT
                CASE
                    WHEN (v.total ~ '^\d{1,9}$'::text) THEN (v.total)::numeric
                    ELSE NULL::numeric
                END AS total,
                CASE
                    WHEN (v.used ~ '^\d{1,9}$'::text) THEN (v.used)::numeric
                    ELSE NULL::numeric
                END AS used
           FROM ( SELECT COALESCE((w.health ->> 'vram_total_mb'::text), (w.metadata ->> 'vram_total_mb'::text)) AS total,
                    COALESCE((w.health ->> 'vram_used_mb'::text), (w.metadata ->> 'vram_used_mb'::text)) AS used) v) g ON (true))
     LEFT JOIN LATERAL ( SELECT t_1.id,
            t_1.status,
            t_1.task_type,
            t_1.generation_started_at
           FROM public.tasks t_1
          WHERE ((t_1.worker_id = w.id) AND (t_1.status = 'In Progress'::text))
          ORDER BY t_1.generation_started_at
         LIMIT 1) t ON (true))
  WHERE (w.status <> 'terminated'::text);

CREATE TABLE public.costs (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    fleet text NOT NULL,
    kind text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    usd numeric NOT NULL,
    CONSTRAINT costs_check CHECK ((to_at >= from_at)),
    CONSTRAINT costs_kind_check CHECK ((kind = ANY (ARRAY['booting'::text, 'busy'::text, 'idle'::text, 'draining'::text])))
);

ALTER TABLE public.costs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.costs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.database_identity (
    is_this boolean DEFAULT true NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT database_identity_is_this_check CHECK (is_this)
);

CREATE TABLE public.decisions (
    id bigint NOT NULL,
    fleet text NOT NULL,
    pool text NOT NULL,
    term bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    rule text NOT NULL,
    target integer NOT NULL,
    inputs jsonb NOT NULL,
    actions jsonb NOT NULL,
    blocked jsonb NOT NULL
);

ALTER TABLE public.decisions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.decisions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.fleet_chores (
    fleet text NOT NULL,
    name text NOT NULL,
    done_at timestamp with time zone NOT NULL,
    CONSTRAINT fleet_chores_name_check CHECK ((name <> ''::text))
);

CREATE TABLE public.fleet_lease (
    fleet text NOT NULL,
    holder text NOT NULL,
    term bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    since timestamp with time zone NOT NULL,
    unled_from timestamp with time zone
);

COMMENT ON COLUMN public.fleet_lease.unled_from IS 'When the lease before this term ended: from then until `since` no leader was there, or it could not reach the database.';

CREATE TABLE public.fleet_settings (
    fleet text NOT NULL,
    name text NOT NULL,
    value jsonb NOT NULL,
    reason text NOT NULL,
    set_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone
);

CREATE TABLE public.hosts (
    fleet text NOT NULL,
    key text NOT NULL,
    strikes integer NOT NULL,
    evidence jsonb NOT NULL,
    last_failure timestamp with time zone NOT NULL,
    avoid_until timestamp with time zone,
    CONSTRAINT hosts_key_check CHECK ((key ~ '^(machine|place):.'::text)),
    CONSTRAINT hosts_strikes_check CHECK ((strikes > 0))
);

CREATE TABLE public.log_objects (
    worker_id text NOT NULL,
    boot_id text NOT NULL,
    stream text NOT NULL,
    seq integer NOT NULL,
    first_byte bigint NOT NULL,
    last_byte bigint,
    sha256 text,
    key text,
    begun_at timestamp with time zone NOT NULL,
    shipped_at timestamp with time zone,
    declared_lost boolean DEFAULT false NOT NULL,
    reason text,
    CONSTRAINT log_objects_check CHECK (((first_byte >= 0) AND ((last_byte IS NULL) OR (last_byte > first_byte)))),
    CONSTRAINT log_objects_check1 CHECK ((declared_lost OR ((last_byte IS NOT NULL) AND (sha256 IS NOT NULL) AND (key IS NOT NULL)))),
    CONSTRAINT log_objects_check2 CHECK ((NOT (declared_lost AND (shipped_at IS NOT NULL)))),
    CONSTRAINT log_objects_check3 CHECK (((NOT declared_lost) OR (reason IS NOT NULL)))
);

CREATE TABLE public.offers (
    fleet text NOT NULL,
    key text NOT NULL,
    cooldown_until timestamp with time zone,
    refusals integer DEFAULT 0 NOT NULL,
    last_refusal timestamp with time zone,
    last_code text,
    last_success timestamp with time zone,
    probe_budget integer,
    CONSTRAINT offers_probe_budget_check CHECK ((probe_budget > 0))
);

COMMENT ON COLUMN public.offers.probe_budget IS 'Create calls that may be under way at once: 1 after a refusal, doubled by a success';

CREATE VIEW public.orchestrator_status WITH (security_invoker='true') AS
 SELECT t.queued_tasks,
    t.claimable_tasks,
    t.blocked_tasks,
    t.in_progress_tasks,
    t.completed_tasks,
    t.failed_tasks,
    t.cancelled_tasks,
    w.spawning_workers,
    w.active_workers,
    w.idle_workers,
    w.terminating_workers,
    w.total_workers,
    w.stale_workers,
    t.stuck_tasks,
    w.usd_per_hour,
    ( SELECT string_agg(((l.fleet || ': '::text) || l.holder), ', '::text ORDER BY l.fleet) AS string_agg
           FROM public.fleet_lease l
          WHERE (l.expires_at > now())) AS leader,
    now() AS snapshot_time
   FROM ( SELECT count(*) FILTER (WHERE (t_1.status = 'Queued'::text)) AS queued_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'Queued'::text) AND (NOT t_1.blocked) AND COALESCE((t_1.run_after <= now()), true))) AS claimable_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'Queued'::text) AND t_1.blocked)) AS blocked_tasks,
            count(*) FILTER (WHERE (t_1.status = 'In Progress'::text)) AS in_progress_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Complete'::text)) AS completed_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Failed'::text)) AS failed_tasks,
            count(*) FILTER (WHERE (t_1.status = 'Cancelled'::text)) AS cancelled_tasks,
            count(*) FILTER (WHERE ((t_1.status = 'In Progress'::text) AND (t_1.lease_expires_at < now()))) AS stuck_tasks
           FROM public.tasks t_1) t,
    ( SELECT count(*) FILTER (WHERE (w_1.status = 'spawning'::text)) AS spawning_workers,
            count(*) FILTER (WHERE (w_1.status = 'active'::text)) AS active_workers,
            count(*) FILTER (WHERE (w_1.status = 'idle'::text)) AS idle_workers,
            count(*) FILTER (WHERE (w_1.status = 'terminating'::text)) AS terminating_workers,
            count(*) AS total_workers,
            count(*) FILTER (WHERE ((w_1.status = ANY (ARRAY['active'::text, 'idle'::text])) AND (COALESCE(w_1.last_heartbeat, w_1.state_since) < (now() - '00:10:00'::interval)))) AS stale_workers,
            COALESCE(sum(w_1.price_usd_per_hour) FILTER (WHERE (w_1.pod_id IS NOT NULL)), (0)::numeric) AS usd_per_hour
           FROM public.workers w_1
          WHERE (w_1.status <> 'terminated'::text)) w;

CREATE TABLE public.task_attempts (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_id text NOT NULL,
    nonce text NOT NULL,
    claim_no bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    outcome text,
    failure_code text,
    exit_class text,
    failed_at_point text,
    message text,
    detail jsonb,
    log_first bigint,
    log_last bigint,
    given_back boolean,
    permanent boolean,
    CONSTRAINT task_attempts_check CHECK (((ended_at IS NULL) = (outcome IS NULL)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON COLUMN public.task_attempts.given_back IS 'It does not count, because its worker was sick; at most one of a task';

COMMENT ON COLUMN public.task_attempts.permanent IS 'The handler said that another attempt would fail as well';

CREATE TABLE public.worker_attempts (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    stage text NOT NULL,
    attempt integer NOT NULL,
    term bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    outcome text,
    failure_code text,
    exception_type text,
    evidence jsonb,
    CONSTRAINT worker_attempts_check CHECK (((ended_at IS NULL) = (outcome IS NULL))),
    CONSTRAINT worker_attempts_outcome_check CHECK ((outcome = ANY (ARRAY['ok'::text, 'failed'::text, 'timeout'::text, 'cancelled'::text, 'lost'::text])))
);

CREATE TABLE public.worker_events (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    fleet text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    from_stage text,
    to_stage text,
    reason text NOT NULL,
    term bigint,
    actor text NOT NULL,
    at timestamp with time zone NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL
);

CREATE VIEW public.recent_errors WITH (security_invoker='true') AS
 SELECT a.ended_at AS at,
    'bring-up'::text AS source,
    a.worker_id,
    NULL::uuid AS task_id,
    a.failure_code AS code,
    (((a.stage || ' '::text) || a.outcome) || COALESCE((': '::text || (a.evidence ->> 'error'::text)), ''::text)) AS message
   FROM public.worker_attempts a
  WHERE ((a.outcome = ANY (ARRAY['failed'::text, 'timeout'::text, 'lost'::text])) AND (a.ended_at > (now() - '24:00:00'::interval)))
UNION ALL
 SELECT e.at,
    'worker'::text AS source,
    e.worker_id,
    NULL::uuid AS task_id,
    COALESCE((e.detail ->> 'failure_code'::text), (e.detail ->> 'exit_cause'::text)) AS code,
    e.reason AS message
   FROM public.worker_events e
  WHERE ((e.to_state = 'terminating'::text) AND (e.from_state <> 'terminating'::text) AND (e.at > (now() - '24:00:00'::interval)) AND ((e.detail ->> 'exit_cause'::text) = ANY (ARRAY['spawn_failed'::text, 'heartbeat_lost'::text, 'task_stuck'::text, 'gpu_fault'::text, 'host_fault'::text, 'pod_lost'::text, 'stale_code'::text, 'agent_crashed'::text])))
UNION ALL
 SELECT a.ended_at AS at,
    'task'::text AS source,
    a.worker_id,
    a.task_id,
    COALESCE(a.failure_code, a.exit_class, a.outcome) AS code,
    a.message
   FROM public.task_attempts a
  WHERE ((a.outcome = ANY (ARRAY['failed'::text, 'lost'::text])) AND (a.ended_at > (now() - '24:00:00'::interval)));

CREATE VIEW public.recent_task_activity WITH (security_invoker='true') AS
 SELECT id,
    task_type,
    pool,
    status,
    worker_id,
    attempts,
    created_at,
    updated_at,
    generation_started_at,
    generation_processed_at,
    EXTRACT(epoch FROM (generation_started_at - created_at)) AS queue_seconds,
    EXTRACT(epoch FROM (COALESCE(generation_processed_at, now()) - generation_started_at)) AS processing_seconds,
    output_location,
    failure_code,
    error_message
   FROM public.tasks t
  WHERE (updated_at > (now() - '24:00:00'::interval));

CREATE TABLE public.releases (
    fleet text NOT NULL,
    release text NOT NULL,
    promoted_at timestamp with time zone NOT NULL
);

CREATE TABLE public.schema_migrations (
    version text NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE SEQUENCE public.task_attempts_floor
    AS integer
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;

CREATE TABLE public.task_counts (
    pool text NOT NULL,
    kind text NOT NULL,
    n bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY public.task_counts REPLICA IDENTITY FULL;

COMMENT ON TABLE public.task_counts IS 'Differences; the sum for a pool and kind is the number of its queued tasks';

CREATE TABLE public.task_marks (
    no bigint NOT NULL,
    pool text NOT NULL,
    seen pg_snapshot,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    place integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    id uuid NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0');

COMMENT ON TABLE public.task_marks IS 'Where claims begin to look in each pool; see the migration claim_marks';

ALTER TABLE public.task_marks ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.task_marks_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW public.task_queue_analysis WITH (security_invoker='true') AS
 SELECT pool,
    task_type,
    status,
    count(*) AS tasks,
    count(*) FILTER (WHERE ((status = 'Queued'::text) AND blocked)) AS blocked_by_dependencies,
    count(*) FILTER (WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after > now()))) AS scheduled,
    EXTRACT(epoch FROM (now() - min(created_at))) AS oldest_seconds,
    round(avg(EXTRACT(epoch FROM (generation_started_at - created_at))), 1) AS mean_wait_seconds,
    round(avg(EXTRACT(epoch FROM (generation_processed_at - generation_started_at))) FILTER (WHERE (status = 'Complete'::text)), 1) AS mean_processing_seconds
   FROM public.tasks t
  GROUP BY pool, task_type, status;

CREATE TABLE public.task_refusals (
    task_id uuid NOT NULL,
    what text NOT NULL,
    reason text NOT NULL,
    times integer DEFAULT 1 NOT NULL,
    refused_at timestamp with time zone NOT NULL,
    retry_at timestamp with time zone NOT NULL,
    CONSTRAINT task_refusals_what_known CHECK ((what = ANY (ARRAY['claim'::text, 'rescue'::text, 'settle'::text])))
);

COMMENT ON TABLE public.task_refusals IS 'Tasks that a trigger or a constraint of a user keeps from being claimed, rescued or settled';

CREATE TABLE public.task_results (
    id uuid NOT NULL,
    task_type text NOT NULL,
    output_location text,
    result_data jsonb,
    deleted_at timestamp with time zone NOT NULL,
    output_object jsonb
);

COMMENT ON TABLE public.task_results IS 'Of Complete tasks that were deleted while another task needed them';

CREATE TABLE public.task_types (
    task_type text NOT NULL,
    fleet text NOT NULL,
    pool text,
    timeout_s numeric,
    max_attempts integer,
    declared_at timestamp with time zone NOT NULL,
    CONSTRAINT task_types_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT task_types_pool_check CHECK ((pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'::text)),
    CONSTRAINT task_types_timeout_s_check CHECK ((timeout_s > (0)::numeric))
);

CREATE TABLE public.tasks_unsettled (
    no bigint NOT NULL,
    task_ids uuid[] NOT NULL,
    noted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tried_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.tasks_unsettled IS 'Queued tasks whose dependencies, or which themselves, another transaction may be changing';

ALTER TABLE public.tasks_unsettled ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.tasks_unsettled_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.worker_asks (
    id bigint NOT NULL,
    worker_id text NOT NULL,
    method text NOT NULL,
    subject text NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    answer jsonb,
    terms jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT worker_asks_method_check CHECK ((method = ANY (ARRAY['GET'::text, 'PUT'::text, 'HEAD'::text, 'RENEW'::text]))),
    CONSTRAINT worker_asks_subject_check CHECK ((octet_length(subject) <= 4096))
);

COMMENT ON COLUMN public.worker_asks.method IS 'GET and PUT: sign a URL; HEAD: is the object there?; RENEW: the next token';

COMMENT ON COLUMN public.worker_asks.subject IS 'A granted key; with HEAD a location; with RENEW the jti of the token';

COMMENT ON COLUMN public.worker_asks.answer IS '{url, location}, {found}, {sealed: [text]} or {refused: true}';

ALTER TABLE public.worker_asks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_asks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.worker_attempts ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.worker_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.worker_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW public.worker_performance WITH (security_invoker='true') AS
 SELECT w.id,
    w.fleet,
    w.pool,
    w.gpu_type,
    w.status,
    w.created_at,
    w.terminated_at,
    w.exit_cause,
    w.failure_code,
    a.done AS tasks_done,
    a.failed AS tasks_failed,
        CASE
            WHEN ((a.done + a.failed) > 0) THEN round((((a.done)::numeric * 100.0) / ((a.done + a.failed))::numeric), 1)
            ELSE NULL::numeric
        END AS success_percent,
    round(a.mean_seconds, 1) AS mean_task_seconds,
    EXTRACT(epoch FROM (COALESCE(w.terminated_at, now()) - w.created_at)) AS uptime_seconds,
    c.usd AS cost_usd,
        CASE
            WHEN (c.seconds > (0)::numeric) THEN round(((c.busy_seconds / c.seconds) * (100)::numeric), 1)
            ELSE NULL::numeric
        END AS busy_percent,
        CASE
            WHEN (a.done > 0) THEN round((c.usd / (a.done)::numeric), 6)
            ELSE NULL::numeric
        END AS usd_per_task
   FROM ((public.workers w
     CROSS JOIN LATERAL ( SELECT count(*) FILTER (WHERE (a_1.outcome = 'complete'::text)) AS done,
            count(*) FILTER (WHERE (a_1.outcome = ANY (ARRAY['failed'::text, 'lost'::text]))) AS failed,
            avg(EXTRACT(epoch FROM (a_1.ended_at - a_1.started_at))) FILTER (WHERE (a_1.outcome = 'complete'::text)) AS mean_seconds
           FROM public.task_attempts a_1
          WHERE (a_1.worker_id = w.id)) a)
     CROSS JOIN LATERAL ( SELECT COALESCE(sum(c_1.usd), (0)::numeric) AS usd,
            COALESCE(sum(EXTRACT(epoch FROM (c_1.to_at - c_1.from_at))), (0)::numeric) AS seconds,
            COALESCE(sum(EXTRACT(epoch FROM (c_1.to_at - c_1.from_at))) FILTER (WHERE (c_1.kind = 'busy'::text)), (0)::numeric) AS busy_seconds
           FROM public.costs c_1
          WHERE (c_1.worker_id = w.id)) c)
  WHERE (COALESCE(w.terminated_at, now()) > (now() - '30 days'::interval));

CREATE TABLE public.worker_transitions (
    from_state text NOT NULL,
    to_state text NOT NULL
);

ALTER TABLE ONLY public.costs
    ADD CONSTRAINT costs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.database_identity
    ADD CONSTRAINT database_identity_pkey PRIMARY KEY (is_this);

ALTER TABLE ONLY public.decisions
    ADD CONSTRAINT decisions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.fleet_chores
    ADD CONSTRAINT fleet_chores_pkey PRIMARY KEY (fleet, name);

ALTER TABLE ONLY public.fleet_lease
    ADD CONSTRAINT fleet_lease_pkey PRIMARY KEY (fleet);

ALTER TABLE ONLY public.fleet_settings
    ADD CONSTRAINT fleet_settings_pkey PRIMARY KEY (fleet, name);

ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT hosts_pkey PRIMARY KEY (fleet, key);

ALTER TABLE ONLY public.log_objects
    ADD CONSTRAINT log_objects_pkey PRIMARY KEY (worker_id, boot_id, stream, seq);

ALTER TABLE ONLY public.offers
    ADD CONSTRAINT offers_pkey PRIMARY KEY (fleet, key);

ALTER TABLE ONLY public.releases
    ADD CONSTRAINT releases_pkey PRIMARY KEY (fleet, release);

ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY public.task_attempts
    ADD CONSTRAINT task_attempts_pkey PRIMARY KEY (task_id, attempt);

ALTER TABLE ONLY public.task_marks
    ADD CONSTRAINT task_marks_pkey PRIMARY KEY (no);

ALTER TABLE ONLY public.task_refusals
    ADD CONSTRAINT task_refusals_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY public.task_results
    ADD CONSTRAINT task_results_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.task_types
    ADD CONSTRAINT task_types_pkey PRIMARY KEY (task_type);

ALTER TABLE ONLY public.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.tasks_unsettled
    ADD CONSTRAINT tasks_unsettled_pkey PRIMARY KEY (no);

ALTER TABLE ONLY public.worker_asks
    ADD CONSTRAINT worker_asks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.worker_attempts
    ADD CONSTRAINT worker_attempts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.worker_events
    ADD CONSTRAINT worker_events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.worker_transitions
    ADD CONSTRAINT worker_transitions_pkey PRIMARY KEY (from_state, to_state);

ALTER TABLE public.workers
    ADD CONSTRAINT workers_id_safe CHECK ((id ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'::text)) NOT VALID;

ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

CREATE INDEX costs_spent ON public.costs USING btree (fleet, to_at) INCLUDE (from_at, usd);

CREATE INDEX costs_worker ON public.costs USING btree (worker_id);

CREATE INDEX decisions_age ON public.decisions USING btree (at);

CREATE INDEX decisions_pool ON public.decisions USING btree (fleet, pool, id DESC);

CREATE INDEX task_attempts_claim ON public.task_attempts USING btree (worker_id, nonce, claim_no);

CREATE INDEX task_attempts_ended ON public.task_attempts USING brin (ended_at) WITH (pages_per_range='8');

CREATE INDEX task_attempts_started ON public.task_attempts USING brin (started_at) WITH (pages_per_range='8');

CREATE INDEX task_attempts_worker ON public.task_attempts USING btree (worker_id, started_at DESC);

CREATE INDEX task_marks_lowered ON public.task_marks USING btree (pool, xid) WHERE (seen IS NULL);

CREATE INDEX task_marks_raised ON public.task_marks USING btree (pool, no DESC) WHERE (seen IS NOT NULL);

CREATE INDEX task_refusals_due ON public.task_refusals USING btree (retry_at);

CREATE INDEX tasks_claim ON public.tasks USING btree (pool, ((~ priority)), created_at, id) INCLUDE (run_after) WHERE ((status = 'Queued'::text) AND (NOT blocked));

CREATE UNIQUE INDEX tasks_dedupe ON public.tasks USING btree (dedupe_key) WHERE ((dedupe_key IS NOT NULL) AND (status = ANY (ARRAY['Queued'::text, 'In Progress'::text])));

CREATE INDEX tasks_dependants ON public.tasks USING gin (depends_on) WITH (fastupdate=off) WHERE blocked;

CREATE INDEX tasks_needing ON public.tasks USING gin (depends_on) WITH (fastupdate=off) WHERE ((status <> 'Complete'::text) AND (depends_on <> '{}'::uuid[]));

CREATE INDEX tasks_oldest ON public.tasks USING btree (pool, created_at) WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after IS NULL));

CREATE INDEX tasks_recent ON public.tasks USING btree (created_at DESC);

CREATE INDEX tasks_running ON public.tasks USING btree (worker_id) WHERE (status = 'In Progress'::text);

CREATE INDEX tasks_timed ON public.tasks USING btree (pool, run_after) INCLUDE (created_at) WHERE ((status = 'Queued'::text) AND (NOT blocked) AND (run_after IS NOT NULL));

CREATE INDEX tasks_unsettled_next ON public.tasks_unsettled USING btree (tried_at, no);

CREATE INDEX tasks_unsettled_noted ON public.tasks_unsettled USING btree (noted_at);

CREATE UNIQUE INDEX worker_asks_once ON public.worker_asks USING btree (worker_id, method, md5(subject));

CREATE INDEX worker_asks_open ON public.worker_asks USING btree (worker_id) WHERE (answered_at IS NULL);

CREATE INDEX worker_attempts_worker ON public.worker_attempts USING btree (worker_id, id);

CREATE INDEX worker_events_age ON public.worker_events USING brin (at);

CREATE INDEX worker_events_worker ON public.worker_events USING btree (worker_id, id);

CREATE INDEX workers_climbs ON public.workers USING btree (fleet, climb_ended_at) WHERE (climb_ended_at IS NOT NULL);

CREATE INDEX workers_live ON public.workers USING btree (fleet, id) WHERE (status <> 'terminated'::text);

CREATE INDEX workers_recent ON public.workers USING btree (fleet, pool, created_at DESC);

CREATE TRIGGER costs_booking BEFORE INSERT ON public.costs FOR EACH ROW EXECUTE FUNCTION public.internal_cost_booking();

CREATE TRIGGER failure_code_checked BEFORE INSERT OR UPDATE OF failure_code ON public.task_attempts FOR EACH ROW WHEN ((new.failure_code !~ '^[A-Z0-9_]{1,64}$'::text)) EXECUTE FUNCTION public.internal_code_checked();

CREATE TRIGGER failure_code_checked BEFORE INSERT OR UPDATE OF failure_code ON public.tasks FOR EACH ROW WHEN ((new.failure_code !~ '^[A-Z0-9_]{1,64}$'::text)) EXECUTE FUNCTION public.internal_code_checked();

CREATE TRIGGER task_attempts_removed AFTER DELETE ON public.task_attempts REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_attempts_removed();

CREATE TRIGGER task_attempts_renumbered AFTER UPDATE OF task_id, attempt, worker_id, nonce ON public.task_attempts FOR EACH ROW WHEN (((((old.task_id IS DISTINCT FROM new.task_id) OR (old.attempt IS DISTINCT FROM new.attempt)) OR (old.worker_id IS DISTINCT FROM new.worker_id)) OR (old.nonce IS DISTINCT FROM new.nonce))) EXECUTE FUNCTION public.internal_attempts_removed();

CREATE TRIGGER task_attempts_truncated BEFORE TRUNCATE ON public.task_attempts FOR EACH STATEMENT EXECUTE FUNCTION public.internal_attempts_removed();

CREATE TRIGGER tasks_added AFTER INSERT ON public.tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_added();

CREATE TRIGGER tasks_bounded BEFORE INSERT OR UPDATE OF params, depends_on, task_type ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_bounded();

CREATE TRIGGER tasks_changed AFTER UPDATE ON public.tasks REFERENCING OLD TABLE AS was NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_changed();

CREATE TRIGGER tasks_changing BEFORE UPDATE ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_changing();

CREATE TRIGGER tasks_counted_added AFTER INSERT ON public.tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();

CREATE TRIGGER tasks_counted_removed AFTER DELETE ON public.tasks REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();

CREATE TRIGGER tasks_counted_truncated AFTER TRUNCATE ON public.tasks FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_counted();

CREATE TRIGGER tasks_removed AFTER DELETE ON public.tasks REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_removed();

CREATE TRIGGER tasks_removed_all AFTER TRUNCATE ON public.tasks FOR EACH STATEMENT EXECUTE FUNCTION public.internal_tasks_removed();

CREATE TRIGGER tasks_routed BEFORE INSERT ON public.tasks FOR EACH ROW EXECUTE FUNCTION public.internal_task_routed();

CREATE CONSTRAINT TRIGGER tasks_unsettled_at_commit AFTER INSERT ON public.tasks_unsettled DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.internal_settle_at_commit();

CREATE TRIGGER worker_events_final BEFORE UPDATE ON public.worker_events FOR EACH STATEMENT EXECUTE FUNCTION public.internal_events_are_final();

CREATE TRIGGER workers_added AFTER INSERT ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_changed();

CREATE TRIGGER workers_billing BEFORE UPDATE OF status ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_billing();

CREATE TRIGGER workers_changed AFTER UPDATE ON public.workers FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.stage IS DISTINCT FROM new.stage) OR (old.drain_requested_at IS DISTINCT FROM new.drain_requested_at) OR (old.stop_requested_at IS DISTINCT FROM new.stop_requested_at) OR (old.ssh_host IS DISTINCT FROM new.ssh_host) OR (old.ssh_port IS DISTINCT FROM new.ssh_port))) EXECUTE FUNCTION public.internal_worker_changed();

CREATE TRIGGER workers_changing BEFORE INSERT OR UPDATE ON public.workers FOR EACH ROW EXECUTE FUNCTION public.internal_worker_changing();

CREATE TRIGGER workers_climbed BEFORE UPDATE ON public.workers FOR EACH ROW WHEN (((old.status = 'spawning'::text) AND (new.status <> 'spawning'::text))) EXECUTE FUNCTION public.internal_worker_climbed();

CREATE TRIGGER workers_sick AFTER UPDATE OF exit_cause ON public.workers FOR EACH ROW WHEN (((new.exit_cause = 'worker_sick'::text) AND (old.exit_cause IS DISTINCT FROM new.exit_cause))) EXECUTE FUNCTION public.internal_worker_sick();

ALTER TABLE ONLY public.worker_asks
    ADD CONSTRAINT worker_asks_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES public.workers(id) ON DELETE CASCADE;

ALTER TABLE public.costs ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.database_identity ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.decisions ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.fleet_chores ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.fleet_lease ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.fleet_settings ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.hosts ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.log_objects ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.offers ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.releases ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.schema_migrations ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_attempts ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_counts ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_marks ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_refusals ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_results ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.task_types ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.tasks ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.tasks_unsettled ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.worker_asks ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.worker_attempts ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.worker_events ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.worker_transitions ENABLE ROW LEVEL SECURITY;

ALTER TABLE public.workers ENABLE ROW LEVEL SECURITY;

GRANT USAGE ON SCHEMA public TO postgres;
GRANT USAGE ON SCHEMA public TO anon;
GRANT USAGE ON SCHEMA public TO authenticated;
GRANT USAGE ON SCHEMA public TO service_role;
GRANT USAGE ON SCHEMA public TO gpu_worker;

REVOKE ALL ON FUNCTION public.fleet_answer(p_fleet text, p_term bigint, p_answers jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_answer(p_fleet text, p_term bigint, p_answers jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_asks(p_fleet text, p_limit integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_asks(p_fleet text, p_limit integer, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_attempt_close(p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text, p_exception_type text, p_evidence jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_attempt_close(p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text, p_exception_type text, p_evidence jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_attempt_note(p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_attempt_note(p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_attempt_open(p_fleet text, p_term bigint, p_worker_id text, p_stage text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_attempt_open(p_fleet text, p_term bigint, p_worker_id text, p_stage text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_changes(p_digest text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_changes(p_digest text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_cost(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_cost(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_decisions(p_fleet text, p_limit integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_decisions(p_fleet text, p_limit integer, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_declare_programs(p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_declare_programs(p_fleet text, p_term bigint, p_pools jsonb, p_stuck_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_declare_release(p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_declare_release(p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_describe() FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_describe() TO service_role;

REVOKE ALL ON FUNCTION public.fleet_efficiency(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_efficiency(p_fleet text, p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_explain(p_fleet text, p_worker_id text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_heartbeats(p_beats jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_heartbeats(p_beats jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_leadership(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_leadership(p_fleet text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_log_begin(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_log_begin(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_log_lost(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_first bigint, p_last bigint, p_reason text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_log_lost(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_first bigint, p_last bigint, p_reason text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_log_shipped(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_log_shipped(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq integer, p_first bigint, p_last bigint, p_sha256 text, p_key text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_metrics(p_fleet text, p_since timestamp with time zone, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_metrics(p_fleet text, p_since timestamp with time zone, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_move(p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_move(p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_pause(p_fleet text, p_pool text, p_reason text, p_for_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_pause(p_fleet text, p_pool text, p_reason text, p_for_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_record_decision(p_fleet text, p_term bigint, p_decision jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_record_decision(p_fleet text, p_term bigint, p_decision jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_report(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_report(p_fleet text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_request_termination(p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_request_termination(p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_rescue(p_fleet text, p_term bigint, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_rescue(p_fleet text, p_term bigint, p_worker_id text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_rescue_overdue(p_fleet text, p_term bigint, p_over_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_rescue_overdue(p_fleet text, p_term bigint, p_over_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_resign(p_fleet text, p_holder text, p_term bigint, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_resign(p_fleet text, p_holder text, p_term bigint, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_retain(p_fleet text, p_term bigint, p_every_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_retain(p_fleet text, p_term bigint, p_every_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_retention(p_fleet text, p_term bigint, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_retention(p_fleet text, p_term bigint, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_scaling_explain(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_scaling_explain(p_fleet text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_snapshot(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_snapshot(p_fleet text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_store_away(p_fleet text, p_term bigint, p_reason text, p_since timestamp with time zone, p_for_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_store_away(p_fleet text, p_term bigint, p_reason text, p_since timestamp with time zone, p_for_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_strike(p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb, p_avoid_s numeric, p_after integer, p_memory_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_strike(p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb, p_avoid_s numeric, p_after integer, p_memory_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_usual(p_fleet text, p_gpu_type text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.fleet_workers(p_fleet text, p_all boolean, p_limit integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.fleet_workers(p_fleet text, p_all boolean, p_limit integer, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.internal_ask(p_worker_id text, p_method text, p_subject text, p_terms jsonb, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_attempts_removed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_because(p_actor text, p_term bigint, p_reason text) FROM PUBLIC;

GRANT ALL ON TABLE public.workers TO service_role;

REVOKE ALL ON FUNCTION public.internal_caller(p_worker_id text, p_lock boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_budget(p_fleet text, p_worker_id text, p_usd numeric, p_usd_per_hour numeric, p_budget jsonb, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_id(p_id text, p_what text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_keys(p_object jsonb, p_allowed text[], p_what text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_size(p_value jsonb, p_limit_bytes integer, p_what text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_task(p_task jsonb, p_index integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_check_term(p_fleet text, p_term bigint, p_what text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_clock(p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_close_attempts(p_ids uuid[], p_gone boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_code_checked() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_cost_booking() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_dependants(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_done_elsewhere(p_worker public.workers) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_end_cycle(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_events_are_final() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_fail_behind(p_ended uuid[], p_most integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_failed_behind(p_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_fire_deferred() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone, INOUT p_passed uuid[], OUT tasks jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_hold(p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt integer, p_outcomes text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_hold_back(p_worker public.workers, p_now timestamp with time zone) FROM PUBLIC;

GRANT ALL ON TABLE public.tasks TO service_role;

REVOKE ALL ON FUNCTION public.internal_holder(p_task public.tasks, p_now timestamp with time zone, OUT held_by text, OUT rescue_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_inputs(p_task_id uuid, p_limit_bytes integer, OUT bytes bigint, OUT code text, OUT message text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_anothers(p_fleet text, p_worker_id text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_here(p_fleet text, p_pool text, p_release text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_lost(p_task public.tasks, p_now timestamp with time zone, p_over_s numeric) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_over_postgrest() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_passing(p_sqlstate text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_pod() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_store_away(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_unreadable(p_value jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_is_unrescuable(p_task_id uuid, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_leader(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_lock_briefly(p_ids uuid[], p_share boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_lock_queued(p_ids uuid[], INOUT p_waits integer, OUT locked uuid[], OUT missed uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_mark(p_pool text, p_now timestamp with time zone, OUT place integer, OUT created_at timestamp with time zone, OUT id uuid, OUT lowered integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_needing(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_now() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_open_interval(p_worker public.workers, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_output_prefix(p_task_id uuid, p_attempt integer, p_nonce text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_paused(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_pauses(p_fleet text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_pool_decision(p_fleet text, p_pool text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_raise_floor(p_attempt integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_raise_mark(p_pool text, p_now timestamp with time zone, p_anew boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_reference(p_reference text, p_ids uuid[], p_index integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_refuse(p_code text, p_what text, p_why text, p_fix text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_refused(p_ids uuid[], p_what text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_refused_ready(p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric, p_fleet text) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_rescue_one(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_results(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_roll_up(p_anew boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle(p_ids uuid[], p_gone uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_again(p_nos bigint[], p_waits boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_all(p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_at_commit() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_cycles(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_each(p_is_cycle boolean, p_ids uuid[], p_gone uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_late() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_settle_new(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_shares(p_since timestamp with time zone, p_until timestamp with time zone, p_now timestamp with time zone, p_task_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_sift(p_rows tid[], p_limit_bytes integer, p_now timestamp with time zone, INOUT p_passed uuid[], OUT fit tid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_spent(p_fleet text, p_without text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_stuck(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_submit(p_tasks jsonb, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_succeeding(p_worker public.workers, p_task_type text, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_task_bounded() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_task_changing() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_task_routed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_tasks_added() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_tasks_changed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_tasks_counted() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_tasks_removed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_try_refused(p_task_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_turns(p_since timestamp with time zone, p_now timestamp with time zone, p_task_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_unsettled(p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_upload_terms(p_item jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_waiting_behind(p_ended uuid[], p_most integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_wanted(p_worker public.workers) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_billing() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_changed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_changing() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_climbed() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_costs(p_worker public.workers, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_json(p_worker public.workers) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_report(p_worker public.workers, p_now timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION public.internal_worker_sick() FROM PUBLIC;

REVOKE ALL ON FUNCTION public.task_cancel(p_id uuid, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.task_cancel(p_id uuid, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.task_get(p_id uuid, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.task_get(p_id uuid, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.task_list(p_status text, p_task_type text, p_limit integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.task_list(p_status text, p_task_type text, p_limit integer, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.task_retry(p_id uuid, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.task_retry(p_id uuid, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.task_submit(p_tasks jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.task_submit(p_tasks jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_complete_and_claim(p_worker_id text, p_nonce text, p_results jsonb, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_complete_many(p_worker_id text, p_nonce text, p_results jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_register(p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_reason text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_reason text, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_release(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_reason text, p_now timestamp with time zone) TO service_role;

REVOKE ALL ON FUNCTION public.worker_renew(p_worker_id text, p_nonce text, p_now timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION public.worker_renew(p_worker_id text, p_nonce text, p_now timestamp with time zone) TO gpu_worker;
GRANT ALL ON FUNCTION public.worker_renew(p_worker_id text, p_nonce text, p_now timestamp with time zone) TO service_role;

GRANT SELECT ON TABLE public.active_workers_health TO service_role;

GRANT ALL ON TABLE public.costs TO service_role;

GRANT ALL ON SEQUENCE public.costs_id_seq TO service_role;

GRANT ALL ON TABLE public.database_identity TO service_role;

GRANT ALL ON TABLE public.decisions TO service_role;

GRANT ALL ON SEQUENCE public.decisions_id_seq TO service_role;

GRANT ALL ON TABLE public.fleet_chores TO service_role;

GRANT ALL ON TABLE public.fleet_lease TO service_role;

GRANT ALL ON TABLE public.fleet_settings TO service_role;

GRANT ALL ON TABLE public.hosts TO service_role;

GRANT ALL ON TABLE public.log_objects TO service_role;

GRANT ALL ON TABLE public.offers TO service_role;

GRANT SELECT ON TABLE public.orchestrator_status TO service_role;

GRANT ALL ON TABLE public.task_attempts TO service_role;

GRANT ALL ON TABLE public.worker_attempts TO service_role;

GRANT ALL ON TABLE public.worker_events TO service_role;

GRANT SELECT ON TABLE public.recent_errors TO service_role;

GRANT SELECT ON TABLE public.recent_task_activity TO service_role;

GRANT ALL ON TABLE public.releases TO service_role;

GRANT ALL ON TABLE public.schema_migrations TO service_role;

GRANT ALL ON TABLE public.task_counts TO service_role;

GRANT ALL ON TABLE public.task_marks TO service_role;

GRANT ALL ON SEQUENCE public.task_marks_no_seq TO service_role;

GRANT SELECT ON TABLE public.task_queue_analysis TO service_role;

GRANT ALL ON TABLE public.task_refusals TO service_role;

GRANT ALL ON TABLE public.task_results TO service_role;

GRANT ALL ON TABLE public.task_types TO service_role;

GRANT ALL ON TABLE public.tasks_unsettled TO service_role;

GRANT ALL ON SEQUENCE public.tasks_unsettled_no_seq TO service_role;

GRANT ALL ON TABLE public.worker_asks TO service_role;

GRANT ALL ON SEQUENCE public.worker_asks_id_seq TO service_role;

GRANT ALL ON SEQUENCE public.worker_attempts_id_seq TO service_role;

GRANT ALL ON SEQUENCE public.worker_events_id_seq TO service_role;

GRANT SELECT ON TABLE public.worker_performance TO service_role;

GRANT ALL ON TABLE public.worker_transitions TO service_role;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON SEQUENCES TO anon;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON SEQUENCES TO authenticated;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON SEQUENCES TO service_role;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON FUNCTIONS TO anon;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON FUNCTIONS TO authenticated;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON FUNCTIONS TO service_role;

ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON TABLES TO anon;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON TABLES TO authenticated;
ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON TABLES TO service_role;
