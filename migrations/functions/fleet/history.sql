-- The history for charts: the leader writes what it sees of each pool and worker once a minute.

-- Records the minute that has begun, once, and stores what is due of totals and roll-ups, for about a second.
-- Returns the recorded minute, or null; and whether more is due.
create or replace function public.fleet_record(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_minute timestamptz := date_trunc('minute', v_now, 'UTC');
    v_before timestamptz;
    v_is_more boolean;
    c_longest constant interval := '1 hour';  -- for which attempts are counted after a time without a leader
    c_newest constant int := 10000;  -- tasks; the audit reads the others
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_record');
    select c.done_at into v_before from public.fleet_chores c where c.fleet = p_fleet and c.name = 'minute';
    if (v_before < v_minute) is not false then
        v_before := greatest(coalesce(v_before, v_minute - interval '1 minute'), v_minute - c_longest);
        perform orchestrator.record_pools(p_fleet, v_before, v_minute, v_now);
        perform orchestrator.record_workers(p_fleet, v_minute, v_now);
        perform orchestrator.remember_names(array(
            select t.id from public.tasks t where t.created_at > v_before order by t.created_at desc limit c_newest));
        insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'minute', v_minute)
        on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    else
        v_minute := null;
    end if;
    loop
        v_is_more := orchestrator.roll_up(p_fleet, v_now);
        v_is_more := orchestrator.add_totals(p_fleet, v_now) or v_is_more;
        exit when not v_is_more or clock_timestamp() > statement_timestamp() + interval '1 second';
    end loop;
    return jsonb_build_object('minute', v_minute, 'more', v_is_more);
end
$$;

-- One row for each pool with tasks or workers. Attempts that end with a minute count in it, as far as they have
-- committed; p_now is some seconds later.
create or replace function orchestrator.record_pools(
    p_fleet text, p_since timestamptz, p_minute timestamptz, p_now timestamptz
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
begin
    insert into orchestrator.pool_minutes
    with running as (
        select q.pool, count(*) as n from orchestrator.live q where q.state = 'running' group by q.pool
    ), workers as (
        select w.pool, count(*) filter (where w.status = 'spawning') as spawning,
               count(*) filter (where w.status = 'active') as active, count(*) filter (where w.status = 'idle') as idle,
               count(*) filter (where w.status = 'terminating') as ending,
               sum(coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour))
                   filter (where w.billing_since is not null) as usd_per_hour
          from public.workers w where w.fleet = p_fleet and w.status <> 'terminated' group by w.pool
    ), ended as (
        select w.pool, count(*) filter (where a.outcome = 'complete') as completed,
               count(*) filter (where a.outcome in ('failed', 'lost')) as failed
          from orchestrator.attempts a join public.workers w on w.id = a.worker_id
         where w.fleet = p_fleet and a.ended_at > p_since and a.ended_at <= p_minute group by w.pool
    ), pools as (
        select d.pool from orchestrator.demand(p_now) d
        union select pool from running union select pool from workers union select pool from ended
    )
    select p_fleet, p.pool, p_minute, coalesce(d.ready, 0), coalesce(d.dependencies + d.limits + d.scheduled, 0),
           coalesce(r.n, 0), coalesce(w.spawning, 0), coalesce(w.active, 0), coalesce(w.idle, 0),
           coalesce(w.ending, 0), coalesce(w.usd_per_hour, 0), coalesce(e.completed, 0), coalesce(e.failed, 0)
      from pools p
      left join orchestrator.demand(p_now) d using (pool)
      left join running r using (pool) left join workers w using (pool) left join ended e using (pool)
    on conflict do nothing;
end
$$;

-- One row for each worker that has sent a heartbeat within two minutes. Readings are those of its health, if they are
-- numbers; a program of the user's may send them too.
create or replace function orchestrator.record_workers(p_fleet text, p_minute timestamptz, p_now timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_number constant text := '^[0-9]{1,9}([.][0-9]{1,9})?$';
begin
    insert into orchestrator.worker_minutes
    select w.id, p_minute, w.status,
           (select count(*) from orchestrator.live q where q.worker_id = w.id and q.state = 'running'),
           case when g.percent ~ c_number then least(g.percent::numeric, 100) end,
           case when g.used ~ c_number then g.used::numeric end, case when g.total ~ c_number then g.total::numeric end
      from public.workers w
     cross join lateral (
           select coalesce(w.health #>> '{gpu,percent}', w.health ->> 'gpu_percent') as percent,
                  coalesce(w.health #>> '{gpu,used_mb}', w.health ->> 'vram_used_mb') as used,
                  coalesce(w.health #>> '{gpu,total_mb}', w.health ->> 'vram_total_mb') as total) g
     where w.fleet = p_fleet and w.status <> 'terminated' and w.last_heartbeat > p_now - interval '2 minutes'
    on conflict do nothing;
end
$$;

-- Up to when worker_totals counts the attempts of a fleet; null: nothing is counted.
create or replace function orchestrator.totals_until(p_fleet text) returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select c.done_at from public.fleet_chores c where c.fleet = totals_until.p_fleet and c.name = 'totals'
$$;

-- Counts the next attempts of each worker, some minutes after they ended, when their transactions have committed.
-- Returns whether more is due.
create or replace function orchestrator.add_totals(p_fleet text, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    c_lag constant interval := '10 minutes';
    v_since timestamptz := coalesce(orchestrator.totals_until(p_fleet), (
        select min(a.ended_at) - interval '1 microsecond' from orchestrator.attempts a), p_now - c_lag);
    v_until timestamptz := least(v_since + interval '1 hour', p_now - c_lag);
begin
    if v_since >= v_until then
        return false;
    end if;
    insert into orchestrator.worker_totals as k (worker_id, completed, failed)
    select a.worker_id, count(*) filter (where a.outcome = 'complete'),
           count(*) filter (where a.outcome in ('failed', 'lost'))
      from orchestrator.attempts a join public.workers w on w.id = a.worker_id
     where w.fleet = p_fleet and a.ended_at > v_since and a.ended_at <= v_until
       and a.outcome in ('complete', 'failed', 'lost')
     group by a.worker_id
    on conflict (worker_id) do update
       set completed = k.completed + excluded.completed, failed = k.failed + excluded.failed;
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'totals', v_until)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return v_until < p_now - c_lag;
end
$$;

-- How many attempts of a worker completed, and failed or were lost: exactly, from the counter and what ended since.
-- That is read by the time of its end, unless the counter is late, so that it is little however many a worker has had.
create or replace function orchestrator.worker_attempts(
    p_worker_id text, p_until timestamptz, p_is_late boolean, out completed bigint, out failed bigint
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(sum(n.completed), 0)::bigint, coalesce(sum(n.failed), 0)::bigint from (
        select k.completed, k.failed from orchestrator.worker_totals k
         where k.worker_id = worker_attempts.p_worker_id
        union all
        select count(*) filter (where a.outcome = 'complete'), count(*) filter (where a.outcome in ('failed', 'lost'))
          from orchestrator.attempts a
         where a.ended_at > worker_attempts.p_until and a.worker_id || '' = worker_attempts.p_worker_id
           and not worker_attempts.p_is_late
        union all
        select count(*) filter (where a.outcome = 'complete'), count(*) filter (where a.outcome in ('failed', 'lost'))
          from orchestrator.attempts a
         where a.ended_at > worker_attempts.p_until and a.worker_id = worker_attempts.p_worker_id
           and worker_attempts.p_is_late) n
$$;
