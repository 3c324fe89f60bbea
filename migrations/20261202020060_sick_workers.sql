-- A worker that fails different tasks one after the other claims no more (held_back), until the planner has found out
-- whether the worker is sick or its release is bad. The tasks that a sick worker failed get one attempt back, once.

alter table public.workers add column held_back jsonb;
comment on column public.workers.held_back is 'Why it claims no more: {since, failures, types, codes}';
alter table public.task_attempts add column given_back boolean;
comment on column public.task_attempts.given_back is 'It does not count, because its worker was sick; at most one of a task';

alter table public.workers
    drop constraint workers_exit_cause_known,
    add constraint workers_exit_cause_known
        check (exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget', 'superseded',
                              'spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault', 'pod_lost',
                              'stale_code', 'agent_crashed', 'worker_sick', 'release_bad'));

-- Hold the worker back if its last tasks all failed, each another one; what else it holds goes to other workers.
create function public.internal_hold_back(p_worker public.workers, p_now timestamptz) returns void
    language plpgsql security definer
    set search_path to ''
as $$
declare
    v_limit int := greatest(1, coalesce((p_worker.metadata->>'max_failures')::int, 5));
    v_failures int;
    v_types text[];
    v_codes text[];
    v_task uuid;
    c_look constant int := 200;  -- attempts of this worker that are looked at: two claims of the largest size
    c_named constant int := 5;  -- types and codes that are remembered
begin
    if p_worker.held_back is not null or p_worker.own_program or p_worker.status not in ('active', 'idle') then
        return;
    end if;
    with newest as (
        select a.task_id, a.ended_at, a.outcome, a.failure_code from public.task_attempts a
         where a.worker_id = p_worker.id order by a.started_at desc limit c_look
    ), failed as (
        select n.task_id, n.failure_code from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
    )
    select count(distinct f.task_id), (array_agg(distinct t.task_type))[1:c_named],
           (array_agg(distinct f.failure_code))[1:c_named]
      into v_failures, v_types, v_codes
      from failed f left join public.tasks t on t.id = f.task_id;
    if v_failures < v_limit then
        return;
    end if;
    update public.workers w
       set held_back = jsonb_build_object('since', p_now, 'failures', v_failures,
                                          'types', to_jsonb(array_remove(v_types, null)),
                                          'codes', to_jsonb(array_remove(v_codes, null))),
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

-- When another worker last completed a task of the types that this one failed: shortly before it was held back, or since.
create function public.internal_done_elsewhere(p_worker public.workers) returns timestamptz
    language sql stable security definer
    set search_path to ''
as $$
    select max(a.ended_at)
      from public.workers o
     cross join lateral (
           select n.task_id, n.outcome, n.ended_at from public.task_attempts n
            where n.worker_id = o.id order by n.started_at desc limit 20) a
      join public.tasks t on t.id = a.task_id
     where o.fleet = p_worker.fleet and o.status <> 'terminated' and o.pool = p_worker.pool and o.id <> p_worker.id
       and a.outcome = 'complete' and a.ended_at > (p_worker.held_back->>'since')::timestamptz - interval '10 minutes'
       and p_worker.held_back->'types' ? t.task_type
$$;

-- The end of a sick worker: each task that it failed since its last success gets one attempt back, once in its life.
create function public.internal_worker_sick() returns trigger
    language plpgsql security definer
    set search_path to ''
as $$
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

create trigger workers_sick after update of exit_cause on public.workers for each row
    when (new.exit_cause = 'worker_sick' and old.exit_cause is distinct from new.exit_cause)
    execute function public.internal_worker_sick();

create or replace function public.worker_fail(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_failure jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
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
        perform public.internal_hold_back(v_worker, v_now);
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

create or replace function public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) RETURNS jsonb
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
            v_tasks := public.internal_take(p_worker, p_claim_no, p_batch, p_now);
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

create or replace function public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
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
begin
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
            select t.worker_id, t.pool, count(*) as n, min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
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
        ), queued as (
            select c.pool, c.total, c.dependencies, c.timed - coalesce(d.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then (
                       select min(t.created_at) from public.tasks t
                        where t.pool = c.pool and t.status = 'Queued' and not t.blocked and t.run_after is null) end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(n) as n from running group by pool) r on r.pool = p.pool
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
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)
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

do $$
declare
    v_function text;
    v_role text;
begin
    foreach v_function in array array['internal_hold_back(public.workers, timestamptz)', 'internal_worker_sick()',
                                      'internal_done_elsewhere(public.workers)'] loop
        execute format('revoke all on function public.%s from public', v_function);
        for v_role in select r.rolname from pg_catalog.pg_roles r
                       where r.rolname in ('anon', 'authenticated', 'service_role', 'gpu_worker') loop
            execute format('revoke all on function public.%s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
