-- A worker that is promoted and dies before it has done anything counts for the breaker like one that never came up: what
-- became of those whose climb ended within the last day is told with it (orchestrator/core/breaker.py).
alter table public.workers add column ending_since timestamptz;

comment on column public.workers.ending_since is 'When it began to end, whatever it was before';

create or replace function public.internal_worker_changing() returns trigger
language plpgsql security definer set search_path = '' as $$
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

create or replace function public.fleet_snapshot(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql volatile security definer set search_path = ''
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
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
            select w.id, w.pool, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
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
